/* fuzz.h - what the descriptor fuzz targets share: reading fuzz bytes as options and views in one small arena.
 *
 * The order in which bytes are read is what gives tests/corpus its meaning. */
#ifndef FUZZ_H
#define FUZZ_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "truenorm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t size, at;
};

struct view {
    unsigned char *data;
    tn_dtype dtype;
    ptrdiff_t stride[2], inner;
    size_t columns;
};

struct arena {
    unsigned char *data;
    size_t size;
};

static inline void broken(const char *why)
{
    fprintf(stderr, "fuzz: %s\n", why);
    abort();
}

static inline void *allocate(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p)
        broken("out of memory");
    return p;
}

static inline unsigned byte(struct input *in)
{
    return in->at < in->size ? in->data[in->at++] : 0;
}

/* Mostly one of `count` lawful values, now and then one above. */
static inline int choice(struct input *in, int count)
{
    unsigned b = byte(in);
    return b >= 0xf8 ? count + (int)(b & 7) - 4 : (int)(b % (unsigned)count);
}

static inline double number(struct input *in)
{
    static const double some[] = {0,    1e-6,  1,      2,        0.5, 1e-30, 1e30, -1,
                                  -0.0, 1e300, 5e-324, INFINITY, NAN, 3,     17,   1e-12};
    return some[byte(in) % 16];
}

/* The options from `flags` on, and now and then a size that overflows. */
static inline void read_options(struct input *in, tn_norm_desc *d)
{
    d->flags = byte(in) % 17;
    d->eps_mode = (tn_eps_mode)choice(in, 3);
    d->divisor = byte(in) % 4 ? 0 : number(in);
    d->group = byte(in) % 3 ? 0 : byte(in) % 20;
    d->partial = byte(in) % 3 ? 0 : byte(in) % 20;
    d->weight_offset = byte(in) % 3 ? 0 : number(in);
    d->gate = (tn_gate)choice(in, 3);
    d->act = (tn_act)choice(in, 2);
    d->sum = (tn_sum)choice(in, 2);
    d->positions = byte(in) % 4 ? 0 : byte(in) % 8;
    if (byte(in) == 0xff)
        d->rows[byte(in) % 2] = (size_t)PTRDIFF_MAX - byte(in);
    if (byte(in) == 0xff)
        d->n = (size_t)-1 - byte(in);
}

/* True if the sizes overflow, so that the call must fail; sizes that are merely large become small. */
static inline bool limit_sizes(tn_norm_desc *d)
{
    double elements = (double)d->rows[0] * (double)d->rows[1] * (double)d->n;
    if (elements > 0x1p61)
        return true;
    if (elements > 1e6)
        d->rows[0] = d->rows[1] = d->n = 3;
    return false;
}

static inline size_t group_columns(const tn_norm_desc *d)
{
    return d->group && d->n % d->group == 0 ? d->n / d->group : d->group ? d->n : 1;
}

static inline size_t parameter_columns(const tn_norm_desc *d)
{
    return d->positions && d->n % d->positions == 0 ? d->n / d->positions : d->n;
}

static inline ptrdiff_t stride(struct input *in, size_t usual)
{
    unsigned b = byte(in);
    return b < 0xc0 ? (ptrdiff_t)usual : b < 0xe0 ? -(ptrdiff_t)usual : (ptrdiff_t)(int8_t)byte(in);
}

/* An unknown dtype counts as the largest: the call must fail anyway. */
static inline size_t element_size(tn_dtype dtype)
{
    return tn_dtype_size(dtype) ? tn_dtype_size(dtype) : 8;
}

/* Bytes below and above element 0, or false if they are out of all proportion. */
static inline bool reach(const size_t rows[2], const struct view *v, ptrdiff_t *low, ptrdiff_t *high)
{
    const size_t count[3] = {rows[0], rows[1], v->columns};
    const ptrdiff_t strides[3] = {v->stride[0], v->stride[1], v->inner};
    const ptrdiff_t size = (ptrdiff_t)element_size(v->dtype);
    *low = 0;
    *high = size;
    for (int a = 0; a < 3; a++) {
        if (count[a] > 1000 || strides[a] > 100000 || strides[a] < -100000)
            return false;
        ptrdiff_t span = (ptrdiff_t)(count[a] ? count[a] - 1 : 0) * strides[a] * size;
        *(span < 0 ? low : high) += span;
    }
    return true;
}

/* Puts a view somewhere in the arena; it stays absent where it cannot fit (in a call that must fail: anywhere). */
static inline void place(struct input *in, struct view *v, const size_t rows[2], const struct arena *a,
                         bool must_fail)
{
    ptrdiff_t low, high;
    size_t offset = byte(in) | byte(in) << 8;
    if (must_fail)
        v->data = a->data + offset % a->size;
    else if (reach(rows, v, &low, &high) && high - low <= (ptrdiff_t)a->size)
        v->data = a->data + (-low) + (ptrdiff_t)(offset % (a->size - (size_t)(high - low) + 1));
}

static inline tn_in as_in(const struct view *v)
{
    tn_in in = {v->data, v->dtype, {v->stride[0], v->stride[1]}, v->inner};
    return in;
}

static inline tn_out as_out(const struct view *v)
{
    tn_out out = {v->data, v->dtype, {v->stride[0], v->stride[1]}, v->inner};
    return out;
}

/* Every byte that a call changed must be one of its own. */
static inline void check_changes(const struct arena *a, const unsigned char *before, const bool *mine,
                                 tn_status status)
{
    for (size_t i = 0; i < a->size; i++)
        if (a->data[i] != before[i] && !mine[i])
            broken(status == TN_OK ? "wrote outside of its outputs" : "wrote despite an error");
}

#endif
