/* support.h - what every test stands on: random numbers, dtypes, row generators, guarded buffers.
 * Shares no code with the library; needs neither cmocka nor MPFR, so that test_bits can cross-compile. */
#ifndef TN_TEST_SUPPORT_H
#define TN_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "truenorm.h"

/* ---- random numbers: splitmix64, integers only --------------------------------------------------- */

struct rng {
    uint64_t state;
};

uint64_t rng_next(struct rng *r);
size_t rng_below(struct rng *r, size_t limit);
double rng_unit(struct rng *r);   /* [0, 1), 32 bits */
double rng_normal(struct rng *r); /* sum of 12 uniforms - 6: exact, the same on every machine */

/* ---- dtypes -------------------------------------------------------------------------------------- */

struct dtype_info {
    const char *name;
    size_t size;
    int precision; /* significand bits with the hidden one; 0 for int8 */
    int emin;      /* exponent of the smallest normal */
    int emax;      /* exponent of the largest finite value */
    double largest;
    bool saturates;
};

const struct dtype_info *dtype_info(tn_dtype dtype);
double dtype_round(tn_dtype dtype,
                   double v); /* nearest even; overflow to inf or saturation as the header says */
double dtype_get(const void *base, tn_dtype dtype, ptrdiff_t index);
void dtype_put(void *base, tn_dtype dtype, ptrdiff_t index, double v);
bool dtype_is_float(tn_dtype dtype);

/* ---- row generators ------------------------------------------------------------------------------ */

enum gen {
    GEN_NORMAL,
    GEN_MEAN_1E4,
    GEN_MEAN_1E6,
    GEN_MEAN_1E7,
    GEN_HUGE,
    GEN_TINY,
    GEN_SUBNORMAL,
    GEN_MIXED,
    GEN_CONSTANT,
    GEN_OUTLIER,
    GEN_LOGNORMAL,
    GEN_FINITE_COUNT,
    GEN_ZERO = GEN_FINITE_COUNT,
    GEN_ONE_NAN,
    GEN_ONE_INF,
    GEN_COUNT,
    GEN_WEIGHT = GEN_COUNT, /* 0.5 ... 1.5 with signs */
    GEN_GATE,               /* 3 N(0,1), some large */
};

const char *gen_name(enum gen g);
/* Fills a row of n values that are exact in `dtype`. */
void gen_row(struct rng *r, enum gen g, tn_dtype dtype, size_t n, double *out);

/* ---- guarded buffers ----------------------------------------------------------------------------- */

/* How the elements of a rows[0] x rows[1] x n view lie in memory. */
enum layout {
    LAY_DENSE,     /* rows one after another */
    LAY_PADDED,    /* a gap of canaries after each row */
    LAY_INNER,     /* inner stride 3 */
    LAY_CHANNELS,  /* channels first: inner stride = number of rows */
    LAY_NEGATIVE,  /* all strides negative */
    LAY_SWAPPED,   /* rows[1] varies slowest */
    LAY_SHARED,    /* inputs: one row for all */
    LAY_PER_SECOND /* inputs: one row per index of rows[1], e.g. per head */
};
#define LAY_OUTPUT_COUNT 6

const char *layout_name(enum layout l);

struct buffer {
    tn_dtype dtype; /* TN_NONE: absent */
    enum layout layout;
    size_t rows[2], n;
    ptrdiff_t stride[2], inner;
    unsigned char *raw, *snapshot; /* everything with its guards; as it was before the call */
    bool *owned;                   /* for each byte: is it part of an element */
    size_t raw_bytes;
    ptrdiff_t first; /* byte offset of element (0, 0, 0) */
};

/* Elements filled with canaries; `misalign` bytes past a 64-byte boundary. */
void buffer_make(struct buffer *b, tn_dtype dtype, size_t rows0, size_t rows1, size_t n, enum layout layout,
                 size_t misalign);
void buffer_free(struct buffer *b);
void *buffer_data(const struct buffer *b);
ptrdiff_t buffer_index(const struct buffer *b, size_t i, size_t j, size_t k);
double buffer_get(const struct buffer *b, size_t i, size_t j, size_t k);
void buffer_put(struct buffer *b, size_t i, size_t j, size_t k, double v);
/* Every row from the generator; g2 (if >= 0) for every third row, so that neighbours differ in kind. */
void buffer_fill(struct buffer *b, struct rng *r, enum gen g, int g2);
void buffer_snapshot(struct buffer *b);
tn_in buffer_in(const struct buffer *b);
tn_in buffer_before(const struct buffer *b); /* the view of the snapshot */
tn_out buffer_out(const struct buffer *b);
/* Byte offset from the start of `raw` of the first byte that changed: outside of elements, or anywhere if `all`;
 * -1 if none did. */
ptrdiff_t buffer_changed(const struct buffer *b, bool all);

/* ---- small things -------------------------------------------------------------------------------- */

void *must_malloc(size_t bytes); /* exits the program where memory is short */
/* Bit equality of two views of the same shape; any NaN equals any NaN, but for fp8 codes. Fills where[3] at the first difference. */
bool views_equal(const tn_out *a, const tn_out *b, const size_t rows[2], size_t n, size_t where[3]);
/* 0, or 77 (ctest: skipped) where TN_ISA names an instruction set that is not usable here. */
int isa_unusable(void);

#endif
