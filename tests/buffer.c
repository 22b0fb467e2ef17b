/* buffer.c - guarded buffers: views of any layout in a sea of canaries. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#define GUARD 192 /* bytes before and after; more than the widest vector */

static const char *const layout_names[] = {
    "dense", "padded", "inner3", "channels_first", "negative", "swapped", "shared", "per_second",
};

const char *layout_name(enum layout l)
{
    return (unsigned)l <= LAY_PER_SECOND ? layout_names[l] : "?";
}

static void set_strides(struct buffer *b)
{
    ptrdiff_t n = (ptrdiff_t)b->n, r0 = (ptrdiff_t)b->rows[0], r1 = (ptrdiff_t)b->rows[1], gap = 5;
    ptrdiff_t dense = n ? n : 1;
    b->inner = 1;
    b->stride[1] = dense;
    b->stride[0] = dense * r1;
    switch (b->layout) {
    case LAY_PADDED:
        b->stride[1] = n + gap;
        b->stride[0] = (n + gap) * r1 + gap;
        break;
    case LAY_INNER:
        b->inner = 3;
        b->stride[1] = 3 * n + 1;
        b->stride[0] = (3 * n + 1) * r1;
        break;
    case LAY_CHANNELS:
        b->inner = r0 * r1;
        b->stride[1] = 1;
        b->stride[0] = r1;
        break;
    case LAY_NEGATIVE:
        b->inner = -1;
        b->stride[1] = -(n + gap);
        b->stride[0] = -(n + gap) * r1;
        break;
    case LAY_SWAPPED:
        b->stride[0] = dense;
        b->stride[1] = dense * r0;
        break;
    case LAY_SHARED:
        b->stride[0] = b->stride[1] = 0;
        break;
    case LAY_PER_SECOND:
        b->stride[0] = 0;
        break;
    default:
        break;
    }
}

/* The lowest and highest element index of the view. */
static void extent(const struct buffer *b, ptrdiff_t *low, ptrdiff_t *high)
{
    const size_t dims[3] = {b->rows[0], b->rows[1], b->n};
    const ptrdiff_t strides[3] = {b->stride[0], b->stride[1], b->inner};
    *low = *high = 0;
    if (!dims[0] || !dims[1] || !dims[2])
        return;
    for (int i = 0; i < 3; i++) {
        ptrdiff_t reach = (ptrdiff_t)(dims[i] - 1) * strides[i];
        *(reach < 0 ? low : high) += reach;
    }
}

static unsigned char canary(size_t i)
{
    return (unsigned char)(0xA5 ^ (i * 37));
}

void buffer_make(struct buffer *b, tn_dtype dtype, size_t rows0, size_t rows1, size_t n, enum layout layout,
                 size_t misalign)
{
    memset(b, 0, sizeof *b);
    b->dtype = dtype;
    if (dtype == TN_NONE)
        return;
    b->layout = layout;
    b->rows[0] = rows0;
    b->rows[1] = rows1;
    b->n = n;
    set_strides(b);
    ptrdiff_t low, high, size = (ptrdiff_t)dtype_info(dtype)->size;
    extent(b, &low, &high);
    b->raw_bytes = (size_t)((high - low + 1) * size) + 2 * GUARD + 64 + misalign;
    b->raw = must_malloc(b->raw_bytes);
    b->snapshot = must_malloc(b->raw_bytes);
    b->owned = must_malloc(b->raw_bytes * sizeof *b->owned);
    memset(b->owned, 0, b->raw_bytes * sizeof *b->owned);
    size_t start = (64 - (uintptr_t)b->raw % 64) % 64 + GUARD + misalign;
    b->first = (ptrdiff_t)start - low * size;
    for (size_t i = 0; i < b->raw_bytes; i++)
        b->raw[i] = canary(i);
    for (size_t i = 0; i < rows0; i++)
        for (size_t j = 0; j < rows1; j++)
            for (size_t k = 0; k < n; k++)
                memset(b->owned + b->first + buffer_index(b, i, j, k) * size, 1, (size_t)size);
    buffer_snapshot(b);
}

void buffer_free(struct buffer *b)
{
    free(b->raw);
    free(b->snapshot);
    free(b->owned);
    memset(b, 0, sizeof *b);
}

void *buffer_data(const struct buffer *b)
{
    return b->dtype == TN_NONE ? NULL : b->raw + b->first;
}

ptrdiff_t buffer_index(const struct buffer *b, size_t i, size_t j, size_t k)
{
    return (ptrdiff_t)i * b->stride[0] + (ptrdiff_t)j * b->stride[1] + (ptrdiff_t)k * b->inner;
}

double buffer_get(const struct buffer *b, size_t i, size_t j, size_t k)
{
    return dtype_get(buffer_data(b), b->dtype, buffer_index(b, i, j, k));
}

void buffer_put(struct buffer *b, size_t i, size_t j, size_t k, double v)
{
    dtype_put(buffer_data(b), b->dtype, buffer_index(b, i, j, k), v);
}

void buffer_fill(struct buffer *b, struct rng *r, enum gen g, int g2)
{
    if (b->dtype == TN_NONE)
        return;
    double *row = must_malloc(b->n * sizeof *row);
    size_t rows0 = b->stride[0] == 0 && b->rows[0] ? 1 : b->rows[0];
    size_t rows1 = b->stride[1] == 0 && b->rows[1] ? 1 : b->rows[1];
    for (size_t i = 0; i < rows0; i++)
        for (size_t j = 0; j < rows1; j++) {
            bool other = g2 >= 0 && (i * rows1 + j) % 3 == 1;
            gen_row(r, other ? (enum gen)g2 : g, b->dtype, b->n, row);
            for (size_t k = 0; k < b->n; k++)
                buffer_put(b, i, j, k, row[k]);
        }
    free(row);
    buffer_snapshot(b);
}

void buffer_snapshot(struct buffer *b)
{
    if (b->dtype != TN_NONE)
        memcpy(b->snapshot, b->raw, b->raw_bytes);
}

tn_in buffer_in(const struct buffer *b)
{
    tn_in v = {buffer_data(b), b->dtype, {b->stride[0], b->stride[1]}, b->inner};
    return v;
}

tn_in buffer_before(const struct buffer *b)
{
    tn_in v = buffer_in(b);
    if (b->dtype != TN_NONE)
        v.data = b->snapshot + b->first;
    return v;
}

tn_out buffer_out(const struct buffer *b)
{
    tn_out v = {buffer_data(b), b->dtype, {b->stride[0], b->stride[1]}, b->inner};
    return v;
}

ptrdiff_t buffer_changed(const struct buffer *b, bool all)
{
    if (b->dtype == TN_NONE || memcmp(b->raw, b->snapshot, b->raw_bytes) == 0)
        return -1;
    for (size_t i = 0; i < b->raw_bytes; i++)
        if (b->raw[i] != b->snapshot[i] && (all || !b->owned[i]))
            return (ptrdiff_t)i;
    return -1;
}
