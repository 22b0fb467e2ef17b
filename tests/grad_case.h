/* grad_case.h - one backward call as data: a forward case, dtypes, layouts and generators of the gradients. */
#ifndef TN_TEST_GRAD_CASE_H
#define TN_TEST_GRAD_CASE_H

#include "case.h"
#include "grad_oracle.h"

/* The input that dx, dresidual or dgate is written over. */
enum over { OVER_NONE, OVER_DY, OVER_DSUM, OVER_X, OVER_RESIDUAL, OVER_GATE };

struct grad_spec {
    struct spec f;            /* its y counts for its dtype only, its mean and rstd where `saved` */
    tn_dtype dtype[GR_COUNT]; /* TN_NONE: absent */
    enum gen gen[2];          /* of dy and dsum */
    enum layout layout[GR_COUNT];
    bool per_first[GR_COUNT]; /* a stride of 0 over rows[1] (per batch), whatever the layout says of it */
    unsigned char misalign[GR_COUNT];
    enum over over[GR_COUNT];
    bool accumulate, saved,
        workspace; /* saved: statistics from a forward call, of the dtypes of f's mean and rstd */
};

struct grad_case {
    struct grad_spec spec;
    struct test_case f;
    struct buffer b[GR_COUNT];
    tn_norm_io io, io_before;
    tn_norm_grads g, before; /* before: inputs and outputs as they were */
    void *workspace;
};

/* dx, dweight and dbias (the latter two where the forward has them) of x's dtype; dy normal. */
struct grad_spec grad_spec_make(tn_kind kind, tn_dtype dtype, size_t rows, size_t n, bool weight, bool bias);
/* Asks for every gradient that the forward case has something for, in `dtype` (TN_NONE: in its operand's). */
void grad_spec_all(struct grad_spec *s, tn_dtype dtype);
/* Any lawful backward call, at most `limit` columns. */
struct grad_spec grad_spec_random(struct rng *r, size_t limit);
void grad_case_make(struct grad_case *c, const struct grad_spec *s);
void grad_case_free(struct grad_case *c);
void grad_case_reset(struct grad_case *c);
/* NULL, or what was written that must not be. */
const char *grad_case_trespass(const struct grad_case *c);
const char *grad_case_describe(const struct grad_spec *s); /* a static buffer */
tn_status grad_case_run(struct grad_case *c, const tn_executor *executor);
/* The outputs after the call. */
tn_norm_grads grad_case_after(const struct grad_case *c);
/* NULL, or the name of an output whose bits differ; layouts may differ. */
const char *grad_case_differ(const struct grad_case *a, const struct grad_case *b, size_t where[3]);

#endif
