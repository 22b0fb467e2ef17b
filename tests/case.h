/* case.h - one call of the library as data: descriptor, dtypes, layouts, generators; its buffers; its description. */
#ifndef TN_TEST_CASE_H
#define TN_TEST_CASE_H

#include "support.h"

enum operand {
    OP_X,
    OP_RESIDUAL,
    OP_GATE,
    OP_WEIGHT,
    OP_BIAS,
    OP_SCALE_IN,
    OP_MEAN_IN,
    OP_RSTD_IN,
    OP_MOD_SCALE,
    OP_MOD_SHIFT,
    OP_Y, /* outputs from here */
    OP_SUM,
    OP_MEAN,
    OP_RSTD,
    OP_SCALE_OUT,
    OP_MOMENT2,
    OP_COUNT
};

struct spec {
    tn_norm_desc d;
    uint64_t seed;
    tn_dtype dtype[OP_COUNT]; /* TN_NONE: absent */
    enum gen gen[OP_COUNT];
    enum layout layout[OP_COUNT];
    unsigned char misalign[OP_COUNT];
    int gen2;              /* generator of every third row of x; -1: the same */
    enum operand y_over;   /* y is written over this input; OP_Y: not */
    enum operand sum_over; /* the same for sum; OP_SUM: not */
};

struct test_case {
    struct spec spec;
    struct buffer b[OP_COUNT];
    tn_norm_io io;     /* for the call */
    tn_norm_io before; /* for the oracle: inputs as they were before the call */
};

typedef tn_status forward_fn(const tn_norm_desc *, const tn_norm_io *, const tn_executor *);

/* One dtype for x, y and (if asked) weight and bias; generators normal and weight, dense, aligned. */
struct spec spec_make(tn_kind kind, tn_dtype dtype, size_t rows, size_t n, bool weight, bool bias);
/* Any lawful descriptor over any lawful operands, at most `limit` columns. */
struct spec spec_random(struct rng *r, size_t limit);
void spec_y_over(struct spec *s, enum operand input); /* with its dtype and layout */
void case_make(struct test_case *c, const struct spec *s);
void case_free(struct test_case *c);
void case_reset(struct test_case *c); /* all buffers as before the call */
/* NULL, or what was written that must not be: inputs, canaries, gaps between rows. */
const char *case_trespass(const struct test_case *c);
const char *case_describe(const struct spec *s); /* a static buffer */

#endif
