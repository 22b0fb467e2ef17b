/* grad_oracle.h - the gradients of truenorm.h in arbitrary precision (MPFR), by reverse mode over the forward
 * formula one operation at a time, straight from a descriptor and its operands. Shares no code with the library. */
#ifndef TN_TEST_GRAD_ORACLE_H
#define TN_TEST_GRAD_ORACLE_H

#include "grad_operands.h"

struct grad_figures {
    size_t elements;
    double worst_ulp;   /* error in ulp of the result, where no cancellation widens the bound */
    double worst_part;  /* error as a part of its bound */
    double worst_units; /* error beyond half an ulp, in 2^-53 of the terms that were added */
};

struct grad_report {
    struct grad_figures of[GR_COUNT][TN_F16 + 1]; /* by output and its dtype */
    size_t failures;
    /* Set by the caller: hold the outputs against central differences of the forward formula (small rows
     * without roundings only) instead of the derivative. */
    bool differences;
    double worst_difference; /* of the two, relative to the largest adjoint of the group */
    /* Set by the caller: how far the statistics that the call was given may be from the exact ones, relative to
     * 1/sqrt and to |mean|. */
    double stat_error;
    char text[640]; /* the first failure */
};

/* Compares every output of `grads` with the exact one. Inputs must be as they were before the call; `start` names
 * the outputs as they were (for accumulate). Rows that hold a NaN or an inf are not judged. Returns this call's
 * failures. */
size_t grad_oracle_check(const tn_norm_desc *desc, const tn_norm_io *io, const tn_norm_grads *grads,
                         const tn_norm_grads *start, struct grad_report *r);
void grad_oracle_free(void);

#endif
