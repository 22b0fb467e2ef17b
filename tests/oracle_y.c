/* oracle_y.c - the oracle's y: one element with its cast points, bounds and quantisation. */
#include "oracle_private.h"

#include <math.h>

/* ---- one element ---------------------------------------------------------------------------------- */

static tn_dtype cast_dtype(const struct oracle *o)
{
    const tn_norm_io *io = o->io;
    if (o->d->cast == TN_CAST_BEFORE_SCALE)
        return io->x.dtype;
    if (o->d->cast == TN_CAST_T5 && io->weight.data &&
        (io->weight.dtype == TN_BF16 || io->weight.dtype == TN_F16))
        return io->weight.dtype;
    return TN_NONE;
}

static double fast_ulps(const struct oracle *o)
{
    if (o->d->grade != TN_FAST || o->wide)
        return 0;
    return o->d->gate == TN_GATE_BEFORE ? 12.0 : o->d->gate == TN_GATE_AFTER ? 8.0 : o->centred ? 4.0 : 2.5;
}

/* Grade fast computes in f32: a cast to f32 is then no event of its own, but at the ends of its range. */
static void cast_point(struct oracle *o, struct choices *z, tn_dtype dtype)
{
    if (fast_ulps(o) == 0 || dtype != TN_F32) {
        choices_cast(z, dtype, o->scratch);
        return;
    }
    for (int i = 0; i < z->count; i++) {
        struct approx *a = &z->c[i];
        a->exact = false;
        if (mpfr_number_p(a->v) && magnitude(a->v) < 0x1p-126)
            a->tol += 0x1p-149;
        if (mpfr_number_p(a->v) && isinf(round_nearest(TN_F32, a->v)))
            mpfr_set_inf(a->v, mpfr_sgn(a->v));
    }
}

/* |s| / sigma of an element gated before */
static double own_size(struct oracle *o, size_t k)
{
    mpfr_mul(o->t, o->gated[k], o->rstd.c[0].v, MPFR_RNDN);
    return magnitude(o->t);
}

static double relative_tolerance(const struct approx *a)
{
    double size = magnitude(a->v);
    return a->tol > 0 && size > 0 && isfinite(size) ? a->tol / size : 0;
}

/* h: the tolerance is what LayerNorm's subtraction of the mean may cost, relative to max(1, |h|). */
static void element_h(struct oracle *o, size_t k)
{
    struct choices *z = &o->z;
    z->count = o->rstd.count;
    oracle_centred(o, o->h, k);
    for (int i = 0; i < z->count; i++) {
        mpfr_mul(z->c[i].v, o->h, o->rstd.c[i].v, MPFR_RNDN);
        double h = magnitude(z->c[i].v), tol = relative_tolerance(&o->rstd.c[i]) * h;
        if (o->centred && !o->wide)
            tol += o->growth * fmax(fmax(1, h), o->leverage);
        if (o->centred && o->d->gate == TN_GATE_BEFORE)
            tol += o->gate_h + GATE_ULPS * U64 * own_size(o, k);
        if (o->gated_normal) /* a small x * act(gate) in a row of ordinary size may become subnormal */
            tol += ldexp(magnitude(o->rstd.c[i].v), -1074);
        if (fast_ulps(o) > 0 && cast_dtype(o) != TN_NONE && cast_dtype(o) != TN_F32)
            tol += fast_ulps(o) * ulp_of(TN_F32, h);
        z->c[i].tol = isfinite(tol) ? tol : 0;
        z->c[i].exact = false;
    }
    cast_point(o, z, cast_dtype(o));
}

/* The weight with its offset: both neighbours where their sum is near a tie and f32 does not hold it exactly. */
static int weights(struct oracle *o, size_t k, mpfr_t out[2])
{
    const tn_norm_io *io = o->io;
    tn_dtype dtype = io->weight.dtype;
    double w = oracle_element(o, &io->weight, k);
    mpfr_set_d(out[0], w, MPFR_RNDN);
    mpfr_add_d(out[0], out[0], o->d->weight_offset, MPFR_RNDN);
    if (!(o->d->flags & TN_ROUND_OFFSET) || dtype == TN_F64 || !mpfr_regular_p(out[0]))
        return 1;
    double ulp = mpfr_min_prec(out[0]) <= 24 ? 0 : ldexp(TIE_ULP, ulp_exponent(dtype, out[0]));
    mpfr_sub_d(o->t, out[0], ulp, MPFR_RNDN);
    mpfr_add_d(out[1], out[0], ulp, MPFR_RNDN);
    mpfr_set_d(out[0], round_nearest(dtype, o->t), MPFR_RNDN);
    mpfr_set_d(out[1], round_nearest(dtype, out[1]), MPFR_RNDN);
    return mpfr_equal_p(out[0], out[1]) ? 1 : 2;
}

/* Is a product held as it is by what the library multiplies in: f32 in grade fast, else f64? */
static bool product_exact(const struct oracle *o, const struct approx *a, mpfr_srcptr weight)
{
    mpfr_prec_t limit = fast_ulps(o) > 0 ? 24 : 53;
    return a->exact && (!mpfr_regular_p(weight) || mpfr_min_prec(weight) <= 24) &&
           (!mpfr_regular_p(a->v) || mpfr_min_prec(a->v) <= limit);
}

static void scale_by(const struct oracle *o, struct approx *to, const struct approx *from, mpfr_srcptr weight)
{
    mpfr_mul(to->v, from->v, weight, MPFR_RNDN);
    to->tol = from->tol * magnitude(weight);
    to->exact = from->exact;
    to->exact = product_exact(o, to, weight);
}

static void scale_choices(struct oracle *o, size_t k)
{
    struct choices *z = &o->z;
    mpfr_t w[2];
    mpfr_inits2(o->precision, w[0], w[1], (mpfr_ptr)0);
    int count = weights(o, k, w), given = z->count;
    if (count == 2 && given * 2 <= CHOICES_MAX) {
        for (int i = 0; i < given; i++)
            scale_by(o, &z->c[given + i], &z->c[i], w[1]);
        z->count = 2 * given;
    }
    for (int i = 0; i < given; i++)
        scale_by(o, &z->c[i], &z->c[i], w[0]);
    o->big *= fmax(magnitude(w[0]), magnitude(w[1]));
    mpfr_clears(w[0], w[1], (mpfr_ptr)0);
}

/* z * factor + term, either of which may be absent (NULL, 0); the larger term of the sum goes to o->big. `spread` is
 * the error that f64 arithmetic may make relative to the terms. */
static void affine(struct oracle *o, mpfr_srcptr factor, double term, double spread)
{
    struct choices *z = &o->z;
    double f = factor ? magnitude(factor) : 1;
    o->big *= f;
    for (int i = 0; i < z->count; i++) {
        if (factor)
            mpfr_mul(z->c[i].v, z->c[i].v, factor, MPFR_RNDN);
        double terms =
            (o->centred ? 0 : magnitude(z->c[i].v)) + fabs(term); /* centred: h has the other part */
        z->c[i].tol *= f;
        z->c[i].exact = z->c[i].exact && !factor;
        if (isfinite(terms) && !z->c[i].exact)
            z->c[i].tol += spread * terms;
        mpfr_add_d(z->c[i].v, z->c[i].v, term, MPFR_RNDN);
    }
    o->big = fmax(o->big, fabs(term));
}

static void modulate(struct oracle *o, size_t k)
{
    const tn_norm_io *io = o->io;
    mpfr_set_ui(o->gate, 1, MPFR_RNDN);
    if (io->mod_scale.data)
        mpfr_add_d(o->gate, o->gate, oracle_element(o, &io->mod_scale, k), MPFR_RNDN);
    affine(o, o->gate, io->mod_shift.data ? oracle_element(o, &io->mod_shift, k) : 0,
           o->wide ? 0 : o->growth);
}

/* The exact y of element k before its last rounding, in o->z; o->big is the larger term of its last sum. */
static void element_y(struct oracle *o, size_t k)
{
    const tn_norm_io *io = o->io;
    size_t column = k / (o->d->positions ? o->d->positions : 1);
    element_h(o, k);
    o->big = magnitude(o->z.c[0].v);
    if (io->weight.data)
        scale_choices(o, column);
    if (o->d->flags & TN_ROUND_PRODUCT)
        cast_point(o, &o->z, dtype_is_float(io->y.dtype) ? io->y.dtype : TN_NONE);
    if (io->bias.data)
        affine(o, NULL, oracle_element(o, &io->bias, column), o->wide ? 0 : o->growth);
    if (io->mod_scale.data || io->mod_shift.data)
        modulate(o, k);
    if (o->d->gate == TN_GATE_AFTER) {
        oracle_activation(o, o->gate, oracle_element(o, &io->gate, k));
        affine(o, o->gate, 0, 0);
    }
}

/* More roundings in f64 than product and sum. */
static bool extra_steps(const struct oracle *o)
{
    return o->d->gate != TN_GATE_NONE || o->io->mod_scale.data || o->io->mod_shift.data;
}

/* The bound of the last rounding, in ulp of y. */
static double last_ulps(struct oracle *o)
{
    tn_dtype dtype = o->io->y.dtype;
    mpfr_srcptr v = o->z.c[0].v;
    double fast = fast_ulps(o), ulps = dtype == TN_F32 ? 0.5001 : 0.501;
    o->big = fmax(o->big, magnitude(v));
    if (!isfinite(o->big))
        return ulps;
    if (dtype == TN_F32 && o->centred && !o->wide)
        ulps = 0.5 + 1e-9;
    if (o->wide && dtype != TN_F64) /* as good as f64 results, then rounded */
        return ulps + 4 * ldexp(ulp_of(TN_F64, o->big), -ulp_exponent(dtype, v));
    if (dtype == TN_F64 && fast == 0)
        return ldexp(ulp_of(TN_F64, o->big), -ulp_exponent(dtype, v)) * (extra_steps(o) ? 8 : 4);
    fast *= ldexp(ulp_of(TN_F32, o->big), -ulp_exponent(dtype, v));
    return dtype == TN_F32 && fast > ulps ? fast : fast > 0 && dtype == TN_F64 ? fast : fast + ulps;
}

/* ---- quantised results ---------------------------------------------------------------------------- */

double oracle_row_scale(struct oracle *o)
{
    const tn_norm_io *io = o->io;
    if (io->scale_in.data)
        return oracle_element(o, &io->scale_in, 0);
    double largest = 0, top = dtype_info(io->y.dtype)->largest, tol = 0;
    mpfr_set_zero(o->t2, 1);
    for (size_t g = 0; g < o->groups; g++) {
        oracle_statistics(o, g, false);
        for (size_t k = g * o->group; k < (g + 1) * o->group; k++) {
            element_y(o, k);
            for (int i = 0; i < o->z.count; i++) {
                if (i > 0 && mpfr_inf_p(o->z.c[i].v)) /* only the far end of a permitted range */
                    continue;
                if (mpfr_nan_p(o->z.c[i].v) || mpfr_cmpabs(o->z.c[i].v, o->t2) <= 0)
                    continue;
                if (o->z.count > 1)
                    tol = 2 * ulp_of(TN_BF16, magnitude(o->z.c[i].v));
                mpfr_abs(o->t2, o->z.c[i].v, MPFR_RNDN);
                largest = o->z.c[i].tol + fast_ulps(o) * ulp_of(TN_F32, o->big);
            }
        }
    }
    mpfr_div_d(o->t, o->t2, top, MPFR_RNDN);
    bool narrow = io->scale_out.dtype == TN_F32;
    if (mpfr_zero_p(o->t) ||
        (narrow && mpfr_cmp_d(o->t, 0x1p-150) <= 0)) /* nothing to scale, or not in f32 */
        mpfr_set_ui(o->t, 1, MPFR_RNDN);
    double ulps = narrow ? 0.5001 : extra_steps(o) ? 8 : 4;
    oracle_judge_one(o, "scale", 0, &io->scale_out, ulps,
                     isfinite(largest + tol) ? (largest + tol) / top : 0);
    return oracle_written(o, &io->scale_out, 0);
}

void oracle_judge_y(struct oracle *o, size_t k, double scale)
{
    struct choices *z = &o->z;
    tn_dtype dtype = o->io->y.dtype;
    element_y(o, k);
    double got = oracle_written(o, &o->io->y, k);
    if (dtype_is_float(dtype)) {
        oracle_judge(o, "y", k, dtype, got, z, last_ulps(o));
        return;
    }
    double fast = fast_ulps(o) * ulp_of(TN_F32, o->big);
    for (int i = 0; i < z->count; i++) {
        mpfr_div_d(z->c[i].v, z->c[i].v, scale, MPFR_RNDN);
        z->c[i].tol = isfinite(z->c[i].tol + fast) ? (z->c[i].tol + fast) / fabs(scale) : 0;
        z->c[i].exact = false;
    }
    oracle_judge(o, "y", k, dtype, got, z, 0.501);
}
