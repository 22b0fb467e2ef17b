/* grad_oracle_private.h - the tape of one group: inputs, intermediates of the forward, and their adjoints. */
#ifndef TN_TEST_GRAD_ORACLE_PRIVATE_H
#define TN_TEST_GRAD_ORACLE_PRIVATE_H

#include "grad_oracle.h"
#include "number.h"

#define TAPE_BITS 320
#define TAPE_LIMBS (TAPE_BITS / 64)

typedef __mpfr_struct real; /* one number; arrays of it share one block of limbs */

enum node {
    N_S, /* inputs: x + residual, gate, w', bias, mod_scale, mod_shift, dy, dsum */
    N_GATE,
    N_W,
    N_B,
    N_MUL,
    N_ADD,
    N_DY,
    N_DSUM,
    N_ACT, /* act(gate), act'(gate) */
    N_SLOPE,
    N_U,  /* s or s * act */
    N_D,  /* u - mean */
    N_H,  /* d * r */
    N_HR, /* h as it meets the weight */
    N_A,  /* w' hr + b */
    N_Z,  /* a (1 + mul) + add */
    N_DZ, /* adjoints: dL/dz, dL/dh, dL/dd */
    N_DH,
    N_DD,
    N_DS, /* the results: dL/d of each input, in the inputs' order */
    N_DGATE,
    N_DW,
    N_DB,
    N_DMUL,
    N_DADD,
    N_COUNT
};

struct tape {
    const tn_norm_desc *d;
    size_t n, counted, capacity;
    double divisor;
    tn_dtype round_r, round_h, round_p; /* TN_NONE: not */
    real *v[N_COUNT];
    mp_limb_t *limbs;
    real *cells;
    mpfr_t mean, moment, q, r, rr, sigma, t, t2; /* rr: r as it multiplies d */
    double r_doubt;            /* relative: r lies so near to a tie that it may round either way */
    double *h_doubt, *p_doubt; /* absolute, the same of h and of w' h */
};

void tape_reserve(struct tape *t, size_t n);
void tape_free(struct tape *t);
void tape_forward(struct tape *t);
void tape_reverse(struct tape *t);
/* Fills the results with central differences; returns the largest distance from the analytic ones, relative to
 * the largest of them. */
double tape_differences(struct tape *t);

#endif
