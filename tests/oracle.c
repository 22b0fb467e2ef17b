/* oracle.c - the formula in arbitrary precision, and the bounds that docs/numerics.md promises. */
#include "oracle_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct oracle oracle;
static bool oracle_ready;

#define ORACLE_NUMBERS(o)                                                                                    \
    {                                                                                                        \
        (o)->mean, (o)->moment, (o)->denominator, (o)->h, (o)->gate, (o)->t, (o)->t2, (o)->largest,          \
            (o)->scratch                                                                                     \
    }
#define ORACLE_NUMBER_COUNT 9

static void set_precision(struct oracle *o, mpfr_prec_t precision)
{
    mpfr_ptr all[] = ORACLE_NUMBERS(o);
    if (o->precision == precision)
        return;
    o->precision = precision;
    for (int i = 0; i < ORACLE_NUMBER_COUNT; i++)
        mpfr_set_prec(all[i], precision);
    choices_precision(&o->rstd, precision);
    choices_precision(&o->z, precision);
}

static void oracle_start(struct oracle *o)
{
    if (oracle_ready)
        return;
    oracle_ready = true;
    mpfr_ptr all[] = ORACLE_NUMBERS(o);
    for (int i = 0; i < ORACLE_NUMBER_COUNT; i++)
        mpfr_init2(all[i], 256);
    choices_init(&o->rstd);
    choices_init(&o->z);
    o->precision = 256;
}

static void free_rows(struct oracle *o)
{
    for (size_t k = 0; o->gated && k < o->capacity; k++)
        mpfr_clear(o->gated[k]);
    free(o->gated);
    free(o->s);
    o->gated = NULL;
    o->s = NULL;
    o->capacity = 0;
}

void oracle_free(void)
{
    if (!oracle_ready)
        return;
    mpfr_ptr all[] = ORACLE_NUMBERS(&oracle);
    for (int i = 0; i < ORACLE_NUMBER_COUNT; i++)
        mpfr_clear(all[i]);
    choices_clear(&oracle.rstd);
    choices_clear(&oracle.z);
    free_rows(&oracle);
    oracle_ready = false;
    mpfr_free_cache();
}

static void reserve_rows(struct oracle *o, size_t n, bool gated)
{
    if (o->capacity >= n && (!gated || o->gated))
        return;
    free_rows(o);
    o->s = must_malloc(n * sizeof *o->s);
    o->capacity = n;
    if (!gated)
        return;
    o->gated = must_malloc(n * sizeof *o->gated);
    for (size_t k = 0; k < n; k++)
        mpfr_init2(o->gated[k], 64);
}

/* ---- operands ------------------------------------------------------------------------------------- */

double oracle_element(const struct oracle *o, const tn_in *v, size_t k)
{
    ptrdiff_t index =
        (ptrdiff_t)o->row[0] * v->stride[0] + (ptrdiff_t)o->row[1] * v->stride[1] + (ptrdiff_t)k * v->inner;
    return dtype_get(v->data, v->dtype, index);
}

double oracle_written(const struct oracle *o, const tn_out *v, size_t k)
{
    const tn_in in = {v->data, v->dtype, {v->stride[0], v->stride[1]}, v->inner};
    return oracle_element(o, &in, k);
}

/* ---- verdicts ------------------------------------------------------------------------------------- */

static void fail(struct oracle *o, const char *what, size_t k, double got, double want, double error,
                 double bound)
{
    o->failures++;
    o->report->failures++;
    if (o->report->text[0])
        return;
    snprintf(
        o->report->text, sizeof o->report->text,
        "%s, row (%zu, %zu), element %zu: got %.17g (%a), want %.17g (%a), error %.6g ulp, bound %.6g ulp",
        what, o->row[0], o->row[1], k, got, got, want, want, error, bound);
}

/* One value against all lawful ones: the error less the tolerance decides, both in ulp. Only y counts in the
 * report's worst figures. */
void oracle_judge(struct oracle *o, const char *what, size_t k, tn_dtype dtype, double got,
                  const struct choices *z, double ulps)
{
    double best = INFINITY, best_error = INFINITY, best_bound = ulps;
    int at = 0;
    for (int i = 0; i < z->count; i++) {
        double bound = ulps + ldexp(z->c[i].tol, -ulp_exponent(dtype, z->c[i].v));
        double error = error_ulp(dtype, got, z->c[i].v, o->scratch), over = error - bound;
        if (dtype_is_float(dtype) && dtype != TN_F64 && approx_strict(&z->c[i], dtype) &&
            got != round_nearest(dtype, z->c[i].v))
            over = INFINITY; /* a tie that went the wrong way, or worse */
        if (i && !(over < best))
            continue;
        best = over;
        best_error = error;
        best_bound = bound;
        at = i;
    }
    if (!(best <= 0))
        fail(o, what, k, got, mpfr_get_d(z->c[at].v, MPFR_RNDN), best_error, best_bound);
    if (what[0] != 'y')
        return;
    struct oracle_report *r = o->report;
    r->elements++;
    r->misrounded += best_error > 0.5;
    if (ulps <= 8 && best_bound <= ulps + 1e-3) /* where no cancellation widened the bound */
        r->worst_ulp = fmax(r->worst_ulp, best_error);
    r->worst_part = fmax(r->worst_part, best_error / best_bound);
}

/* A single exact value with a tolerance, in o->t. */
void oracle_judge_one(struct oracle *o, const char *what, size_t k, const tn_out *v, double ulps, double tol)
{
    struct choices *z = &o->z;
    mpfr_set(z->c[0].v, o->t, MPFR_RNDN);
    z->c[0].tol = tol;
    z->c[0].exact = false;
    z->count = 1;
    oracle_judge(o, what, k, v->dtype, oracle_written(o, v, k), z, ulps);
}

/* ---- the row as the norm sees it ------------------------------------------------------------------ */

void oracle_activation(struct oracle *o, mpfr_ptr out, double g)
{
    mpfr_set_d(out, -g, MPFR_RNDN);
    mpfr_exp(out, out, MPFR_RNDN);
    mpfr_add_ui(out, out, 1, MPFR_RNDN);
    mpfr_d_div(out, o->d->act == TN_SILU ? g : 1.0, out, MPFR_RNDN);
}

/* x + residual rounded to f64, then where asked to f32 and from there to a 16-bit dtype. */
static double load_sum(struct oracle *o, size_t k)
{
    const tn_norm_io *io = o->io;
    double x = oracle_element(o, &io->x, k), s = x;
    tn_dtype to = io->sum.dtype != TN_NONE ? io->sum.dtype : io->x.dtype;
    if (io->residual.data)
        s = x + oracle_element(o, &io->residual, k); /* one IEEE operation: exact, then rounded to f64 */
    double rounded = s;
    if (to != TN_F64)
        rounded = dtype_round(to, dtype_round(TN_F32, s));
    if (io->sum.data && o->step == ORACLE_FORWARD) {
        double got = oracle_written(o, &io->sum, k);
        if (got != rounded && !(isnan(got) && isnan(rounded)))
            fail(o, "sum", k, got, rounded, INFINITY, 0);
    }
    return io->residual.data && o->d->sum == TN_SUM_ROUNDED ? rounded : s;
}

static void load_row(struct oracle *o)
{
    int low = 2000, high = -2000, e;
    for (size_t k = 0; k < o->d->n; k++) {
        double s = o->s[k] = load_sum(o, k);
        if (s == 0 || !isfinite(s))
            continue;
        frexp(s, &e);
        low = e < low ? e : low;
        high = e > high ? e : high;
    }
    int range = high > low ? high - low : 0;
    bool gated = o->d->gate == TN_GATE_BEFORE;
    /* sums of f64 values exact: only quotients and roots round, 100 bits below the smallest term */
    set_precision(o, o->centred || gated ? 256 + (range > 100 ? range : 0) : 256);
    o->gated_normal = false;
    if (!gated)
        return;
    for (size_t k = 0; k < o->d->n; k++) {
        mpfr_set_prec(o->gated[k], o->precision);
        oracle_activation(o, o->gated[k], oracle_element(o, &o->io->gate, k));
        mpfr_mul_d(o->gated[k], o->gated[k], o->s[k], MPFR_RNDN);
        o->gated_normal |= mpfr_number_p(o->gated[k]) && magnitude(o->gated[k]) > 0x1p-440;
    }
}

/* s - mean into out */
void oracle_centred(struct oracle *o, mpfr_ptr out, size_t k)
{
    if (o->d->gate == TN_GATE_BEFORE)
        mpfr_set(out, o->gated[k], MPFR_RNDN);
    else
        mpfr_set_d(out, o->s[k], MPFR_RNDN);
    if (o->centred)
        mpfr_sub(out, out, o->mean, MPFR_RNDN);
}

/* ---- statistics ----------------------------------------------------------------------------------- */

static void exact_mean(struct oracle *o, size_t g, double divisor)
{
    bool gated = o->d->gate == TN_GATE_BEFORE;
    for (size_t k = g * o->group; k < g * o->group + o->counted; k++) {
        double size = gated ? magnitude(o->gated[k]) : fabs(o->s[k]);
        if (gated && mpfr_number_p(o->gated[k]) && mpfr_cmpabs(o->gated[k], o->largest) > 0)
            mpfr_abs(o->largest, o->gated[k], MPFR_RNDN);
        if (gated)
            mpfr_add(o->mean, o->mean, o->gated[k], MPFR_RNDN);
        else
            mpfr_add_d(o->mean, o->mean, o->s[k], MPFR_RNDN);
        o->mean_abs += size / divisor;
    }
    mpfr_div_d(o->mean, o->mean, divisor, MPFR_RNDN);
    mpfr_mul_d(o->t, o->largest, GATE_ULPS * U64, MPFR_RNDN);
    o->gate_error = magnitude(o->t);
}

static void exact_moment(struct oracle *o, size_t g)
{
    mpfr_set_zero(o->moment, 1);
    for (size_t k = g * o->group; k < g * o->group + o->counted; k++) {
        oracle_centred(o, o->t, k);
        mpfr_sqr(o->t, o->t, MPFR_RNDN);
        mpfr_add(o->moment, o->moment, o->t, MPFR_RNDN);
    }
}

/* The factor of the row from its moment, in o->rstd: 0 where the denominator is 0. */
static void exact_rstd(struct oracle *o, double divisor)
{
    const tn_norm_desc *d = o->d;
    mpfr_div_d(o->denominator, o->moment, divisor, MPFR_RNDN);
    if (d->eps_mode == TN_EPS_INSIDE)
        mpfr_add_d(o->denominator, o->denominator, d->eps, MPFR_RNDN);
    mpfr_sqrt(o->denominator, o->denominator, MPFR_RNDN);
    if (d->eps_mode == TN_EPS_OUTSIDE)
        mpfr_add_d(o->denominator, o->denominator, d->eps, MPFR_RNDN);
    if (d->eps_mode == TN_EPS_CLAMP && mpfr_cmp_d(o->denominator, d->eps) < 0)
        mpfr_set_d(o->denominator, d->eps, MPFR_RNDN);
    mpfr_ptr r = o->rstd.c[0].v;
    o->rstd.count = 1;
    o->rstd.c[0].tol = 0;
    o->rstd.c[0].exact = false;
    if (mpfr_zero_p(o->denominator))
        mpfr_set_zero(r, 1);
    else
        mpfr_ui_div(r, 1, o->denominator, MPFR_RNDN);
}

/* Half an ulp for a narrow dtype; 4 for f64, whose operations are themselves rounded, 8 behind a gate. */
static double output_ulps(const struct oracle *o, tn_dtype dtype)
{
    return dtype == TN_F64 ? (o->d->gate == TN_GATE_BEFORE ? 8 : 4) : dtype == TN_F32 ? 0.5001 : 0.501;
}

static void check_statistics(struct oracle *o, size_t g)
{
    const tn_norm_io *io = o->io;
    if (io->mean.data && o->step != ORACLE_APPLY) {
        double tol = o->wide || !isfinite(o->mean_abs) ? 0 : o->growth * o->mean_abs;
        mpfr_set(o->t, o->mean, MPFR_RNDN);
        oracle_judge_one(o, "mean", g, &io->mean, output_ulps(o, io->mean.dtype), tol + o->gate_error);
    }
    if (io->rstd.data && o->step == ORACLE_FORWARD)
        oracle_judge(o, "rstd", g, io->rstd.dtype, oracle_written(o, &io->rstd, g), &o->rstd,
                     output_ulps(o, io->rstd.dtype));
    if (io->moment2.data && o->step == ORACLE_MOMENTS) {
        double m2 = magnitude(o->moment), spread = sqrt((double)o->counted) * o->gate_error;
        double tol = o->growth * m2 + 2 * spread * sqrt(m2) + spread * spread;
        mpfr_set(o->t, o->moment, MPFR_RNDN);
        oracle_judge_one(o, "moment2", g, &io->moment2, output_ulps(o, io->moment2.dtype),
                         isfinite(tol) ? tol : 0);
    }
}

static void round_rstd(struct oracle *o)
{
    struct approx *r = o->rstd.c;
    if (o->io->x.dtype != TN_F64) {
        choices_cast(&o->rstd, o->io->x.dtype, o->scratch);
        return;
    }
    /* f64 is what it is computed in: the cast may only show beyond the range of normal numbers */
    if (!mpfr_regular_p(r->v) || (mpfr_get_exp(r->v) > -1000 && mpfr_get_exp(r->v) <= 1024))
        return;
    o->rstd.count = 2;
    mpfr_set_d(r[1].v, round_nearest(TN_F64, r->v), MPFR_RNDN);
    r[1].tol = ulp_of(TN_F64, magnitude(r->v));
    r[1].exact = false;
}

void oracle_statistics(struct oracle *o, size_t g, bool check)
{
    const tn_norm_desc *d = o->d;
    double divisor = d->divisor > 0 ? d->divisor : (double)o->counted;
    mpfr_set_zero(o->mean, 1);
    mpfr_set_zero(o->largest, 1);
    o->mean_abs = o->gate_error = 0;
    if (o->step == ORACLE_APPLY) {
        if (o->centred)
            mpfr_set_d(o->mean, oracle_element(o, &o->io->mean_in, g), MPFR_RNDN);
        mpfr_set_d(o->rstd.c[0].v, oracle_element(o, &o->io->rstd_in, g), MPFR_RNDN);
        o->rstd.c[0].tol = 0;
        o->rstd.c[0].exact = false;
        o->rstd.count = 1;
    } else {
        if (o->centred)
            exact_mean(o, g, divisor);
        exact_moment(o, g);
        exact_rstd(o, d->kind == TN_L2 ? 1.0 : divisor);
    }
    o->leverage = o->gate_h = 0;
    if (o->centred && mpfr_number_p(o->rstd.c[0].v)) { /* what the mean's error does to sigma */
        double r = magnitude(o->rstd.c[0].v);
        mpfr_mul(o->t, o->rstd.c[0].v, o->largest, MPFR_RNDN);
        o->gate_h = GATE_ULPS * U64 * magnitude(o->t);
        if (d->divisor > 0) /* then the mean does not centre the row, and has one part only */
            o->leverage = magnitude(o->mean) * r;
        double tol = r * (o->gate_h + (o->wide ? 0 : o->growth * fmax(1, o->leverage)));
        o->rstd.c[0].tol = isfinite(tol) ? tol : 0;
    }
    if (d->flags & TN_ROUND_RSTD && o->step != ORACLE_APPLY) /* a given rstd is taken as it is */
        round_rstd(o);
    if (check)
        check_statistics(o, g);
}

/* ---- all rows ------------------------------------------------------------------------------------- */

static void check_row(struct oracle *o)
{
    const tn_norm_io *io = o->io;
    double scale = 1;
    load_row(o);
    if (io->y.data && !dtype_is_float(io->y.dtype) && o->step != ORACLE_MOMENTS)
        scale = oracle_row_scale(o);
    for (size_t g = 0; g < o->groups; g++) {
        oracle_statistics(o, g, true);
        if (!io->y.data || o->step == ORACLE_MOMENTS)
            continue;
        for (size_t k = g * o->group; k < (g + 1) * o->group; k++)
            oracle_judge_y(o, k, scale);
    }
}

size_t oracle_check(const tn_norm_desc *desc, const tn_norm_io *io, enum oracle_step step,
                    struct oracle_report *r)
{
    struct oracle *o = &oracle;
    oracle_start(o);
    o->d = desc;
    o->io = io;
    o->step = step;
    o->report = r;
    o->failures = 0;
    o->centred = desc->kind == TN_LAYER;
    o->wide = io->x.dtype == TN_F64 || (io->residual.data && io->residual.dtype == TN_F64) ||
              (desc->gate == TN_GATE_BEFORE && io->gate.dtype == TN_F64);
    o->group = desc->group ? desc->group : desc->n;
    o->groups = o->group ? desc->n / o->group : 0;
    o->counted = desc->partial ? desc->partial : o->group;
    o->growth = ((double)desc->n / 64 + 16) * U64;
    reserve_rows(o, desc->n, desc->gate == TN_GATE_BEFORE);
    for (size_t i = 0; i < desc->rows[0]; i++)
        for (size_t j = 0; j < desc->rows[1]; j++) {
            o->row[0] = i;
            o->row[1] = j;
            check_row(o);
        }
    return o->failures;
}
