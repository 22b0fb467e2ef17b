/* number.h - what the oracle calculates with: an exact value, and how far the library may lawfully be from it;
 * where a cast point lies within that distance of a tie, both neighbours. */
#ifndef TN_TEST_NUMBER_H
#define TN_TEST_NUMBER_H

#include <mpfr.h>

#include "support.h"

#define CHOICES_MAX 16
#define TIE_ULP 0.001 /* a cast may go either way where the exact value is this near to a tie */

struct approx {
    mpfr_t v;
    double tol;
    bool exact; /* made of rounded values only: the library holds it as it is, so that ties go to even */
};

struct choices {
    struct approx c[CHOICES_MAX];
    int count;
};

void choices_init(struct choices *s);
void choices_clear(struct choices *s);
void choices_precision(struct choices *s, mpfr_prec_t precision); /* values are lost */

double ulp_of(tn_dtype dtype, double v);
int ulp_exponent(tn_dtype dtype, mpfr_srcptr v);
double magnitude(mpfr_srcptr v); /* |v| as a double */
double round_nearest(tn_dtype dtype, mpfr_srcptr v);
/* Is the value known exactly, and held by what the library rounds from: f32 for a 16-bit dtype, else f64? */
bool approx_strict(const struct approx *a, tn_dtype dtype);
/* Each value rounded to the dtype, to one or to both neighbours. */
void choices_cast(struct choices *s, tn_dtype dtype, mpfr_ptr scratch);
/* |got - want| in ulp of want; an infinite `got` stands for the first power of two that overflows. */
double error_ulp(tn_dtype dtype, double got, mpfr_srcptr want, mpfr_ptr scratch);

#endif
