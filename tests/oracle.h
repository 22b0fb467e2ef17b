/* oracle.h - the formula of truenorm.h in arbitrary precision (MPFR), straight from a descriptor and its operands,
 * element by element. Shares no code with the library. */
#ifndef TN_TEST_ORACLE_H
#define TN_TEST_ORACLE_H

#include "support.h"

enum oracle_step { ORACLE_FORWARD, ORACLE_MOMENTS, ORACLE_APPLY };

struct oracle_report {
    size_t elements;   /* of y, so far */
    size_t misrounded; /* of them: not the nearest value of their dtype */
    size_t failures;   /* values of any output that miss their bound */
    double worst_ulp;  /* largest error of y in ulp of its dtype, where no cancellation widens the bound */
    double worst_part; /* largest error of y as a part of its bound */
    char text[640];    /* the first failure */
};

/* Compares every output of io with the exact result. Inputs must be as they were before the call (in-place calls:
 * a copy). A report may gather many calls; zero it first. Returns the failures of this call. */
size_t oracle_check(const tn_norm_desc *desc, const tn_norm_io *io, enum oracle_step step,
                    struct oracle_report *r);
void oracle_free(void);

#endif
