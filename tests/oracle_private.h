/* oracle_private.h - the oracle's state, shared by oracle.c (rows, statistics, verdicts) and oracle_y.c (one element). */
#ifndef TN_TEST_ORACLE_PRIVATE_H
#define TN_TEST_ORACLE_PRIVATE_H

#include "number.h"
#include "oracle.h"

#define U64 0x1p-53
#define GATE_ULPS 8 /* of f64: the activation and the product */

struct oracle {
    const tn_norm_desc *d;
    const tn_norm_io *io;
    enum oracle_step step;
    struct oracle_report *report;
    size_t failures;
    size_t row[2];

    bool centred, wide; /* wide: an operand of the statistics is f64 */
    size_t groups, group, counted;
    double growth; /* relative error that a sum of n terms in f64 may have */

    double *s;       /* x + residual as the norm sees it */
    mpfr_t *gated;   /* s * act(gate), where gated before */
    size_t capacity; /* of both */

    mpfr_prec_t precision;
    mpfr_t mean, moment, denominator, h, gate, t, t2, scratch;
    mpfr_t largest;    /* |s| of the group, where gated before */
    double mean_abs;   /* mean |s| of the group */
    double leverage;   /* |mean| / sigma where the caller's divisor makes the mean another one */
    bool gated_normal; /* gated before, and not all elements are tiny */
    double gate_h;     /* gate_error / sigma */
    double gate_error; /* what rounding s = x * act(gate) to f64 may move the mean, and each s - mean */
    struct choices rstd, z;
    double big; /* larger term of the last sum */
};

/* oracle.c */
double oracle_element(const struct oracle *o, const tn_in *v, size_t k);
double oracle_written(const struct oracle *o, const tn_out *v, size_t k);
void oracle_judge(struct oracle *o, const char *what, size_t k, tn_dtype dtype, double got,
                  const struct choices *z, double ulps);
void oracle_judge_one(struct oracle *o, const char *what, size_t k, const tn_out *v, double ulps, double tol);
void oracle_activation(struct oracle *o, mpfr_ptr out, double g);
void oracle_centred(struct oracle *o, mpfr_ptr out, size_t k);
void oracle_statistics(struct oracle *o, size_t g, bool check);

/* oracle_y.c */
double oracle_row_scale(struct oracle *o);
void oracle_judge_y(struct oracle *o, size_t k, double scale);

#endif
