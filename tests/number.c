/* number.c - exact values with tolerances, cast points, ulps. */
#include "number.h"

#include <math.h>

void choices_init(struct choices *s)
{
    for (int i = 0; i < CHOICES_MAX; i++)
        mpfr_init2(s->c[i].v, 256);
    s->count = 0;
}

void choices_clear(struct choices *s)
{
    for (int i = 0; i < CHOICES_MAX; i++)
        mpfr_clear(s->c[i].v);
}

void choices_precision(struct choices *s, mpfr_prec_t precision)
{
    for (int i = 0; i < CHOICES_MAX; i++)
        if (mpfr_get_prec(s->c[i].v) != precision)
            mpfr_set_prec(s->c[i].v, precision);
}

double ulp_of(tn_dtype dtype, double v)
{
    const struct dtype_info *d = dtype_info(dtype);
    int e = d->emin + 1;
    if (dtype == TN_I8)
        return 1;
    if (v != 0 && isfinite(v))
        frexp(v, &e);
    e = e - 1 < d->emin ? d->emin : e - 1 > d->emax ? d->emax : e - 1;
    return ldexp(1, e - d->precision + 1);
}

/* log2 of the ulp at v. */
int ulp_exponent(tn_dtype dtype, mpfr_srcptr v)
{
    const struct dtype_info *d = dtype_info(dtype);
    if (dtype == TN_I8)
        return 0;
    mpfr_exp_t e = mpfr_regular_p(v) ? mpfr_get_exp(v) - 1 : d->emin;
    int clipped = e < d->emin ? d->emin : e > d->emax ? d->emax : (int)e;
    return clipped - d->precision + 1;
}

double magnitude(mpfr_srcptr v)
{
    return fabs(mpfr_get_d(v, MPFR_RNDN));
}

double round_nearest(tn_dtype dtype, mpfr_srcptr v)
{
    const struct dtype_info *d = dtype_info(dtype);
    if (!mpfr_regular_p(v)) {
        double special = mpfr_get_d(v, MPFR_RNDN);
        return dtype_is_float(dtype) ? special : dtype_round(dtype, special);
    }
    if (mpfr_get_exp(v) > d->emax + 1)
        return copysign(d->saturates ? d->largest : INFINITY, mpfr_get_d(v, MPFR_RNDN));
    int exponent = ulp_exponent(dtype, v);
    static mpfr_t scaled;
    static bool ready;
    if (!ready)
        mpfr_init2(scaled, 64);
    ready = true;
    if (mpfr_get_prec(scaled) != mpfr_get_prec(v))
        mpfr_set_prec(scaled, mpfr_get_prec(v));
    mpfr_mul_2si(scaled, v, -exponent, MPFR_RNDN);
    mpfr_roundeven(scaled, scaled);
    double q = mpfr_get_d(scaled, MPFR_RNDN);
    if (exponent < -1000) /* in two steps, so that nothing overflows on the way */
        return dtype_round(dtype, ldexp(ldexp(q, -500), exponent + 500));
    return dtype_round(dtype, ldexp(q, exponent));
}

bool approx_strict(const struct approx *a, tn_dtype dtype)
{
    if (!a->exact || a->tol != 0 || !mpfr_number_p(a->v))
        return false;
    return mpfr_zero_p(a->v) || mpfr_min_prec(a->v) <= (dtype == TN_BF16 || dtype == TN_F16 ? 24 : 53);
}

/* value + delta, rounded */
static double round_shifted(tn_dtype dtype, mpfr_srcptr v, double delta, mpfr_ptr scratch)
{
    mpfr_add_d(scratch, v, delta, MPFR_RNDN);
    return round_nearest(dtype, scratch);
}

static void choices_add(struct choices *s, int from, double v)
{
    for (int i = from; i < s->count; i++)
        if (s->c[i].tol == 0 && mpfr_cmp_d(s->c[i].v, v) == 0)
            return;
    if (s->count == CHOICES_MAX)
        return;
    mpfr_set_d(s->c[s->count].v, v, MPFR_RNDN);
    s->c[s->count].exact = true;
    s->c[s->count++].tol = 0;
}

void choices_cast(struct choices *s, tn_dtype dtype, mpfr_ptr scratch)
{
    if (dtype == TN_NONE || dtype == TN_F64)
        return;
    int given = s->count;
    for (int i = 0; i < given; i++) {
        struct approx *a = &s->c[i];
        if (!mpfr_number_p(a->v))
            continue;
        double ulp = ldexp(1, ulp_exponent(dtype, a->v));
        double delta = approx_strict(a, dtype) ? 0 : a->tol + TIE_ULP * ulp;
        double low = round_shifted(dtype, a->v, -delta, scratch);
        double high = round_shifted(dtype, a->v, delta, scratch);
        if (delta > 0.49 * ulp && low != high) {
            a->tol = delta + 0.5 * ulp; /* the cast point says nothing about a value this uncertain */
            continue;
        }
        mpfr_set_d(a->v, low, MPFR_RNDN);
        a->tol = 0;
        a->exact = true;
        if (high != low)
            choices_add(s, i + 1, high);
    }
}

double error_ulp(tn_dtype dtype, double got, mpfr_srcptr want, mpfr_ptr scratch)
{
    const struct dtype_info *d = dtype_info(dtype);
    if (mpfr_nan_p(want))
        return isnan(got) || (dtype == TN_I8 && got == 0) ? 0 : INFINITY;
    if (isnan(got))
        return INFINITY;
    if (d->saturates) {
        double high = d->largest, low = dtype == TN_I8 ? -128 : -high;
        if (mpfr_cmp_d(want, high) > 0)
            return (high - got) / ulp_of(dtype, high);
        if (mpfr_cmp_d(want, low) < 0)
            return (got - low) / ulp_of(dtype, low);
    }
    if (mpfr_inf_p(want))
        return isinf(got) && !signbit(got) == !mpfr_signbit(want) ? 0 : INFINITY;
    if (isinf(got)) {
        if (!signbit(got) != !mpfr_signbit(want))
            return INFINITY;
        if (mpfr_get_exp(want) > d->emax + 1)
            return 0; /* beyond the power of two that inf stands for */
        mpfr_set_si_2exp(scratch, signbit(got) ? -1 : 1, d->emax + 1, MPFR_RNDN);
    } else {
        mpfr_set_d(scratch, got, MPFR_RNDN);
    }
    mpfr_sub(scratch, scratch, want, MPFR_RNDN);
    mpfr_mul_2si(scratch, scratch, -ulp_exponent(dtype, want), MPFR_RNDN);
    return magnitude(scratch);
}
