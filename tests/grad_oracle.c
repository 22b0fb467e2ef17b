/* grad_oracle.c - operands in, column sums, verdicts: how far an output may be from the exact gradient.
 *
 * Every bound is half an ulp of the output's dtype (and a little for rounding to 16 bits through f32), plus UNITS
 * times 2^-53 of the terms that were added: see docs/backward.md. */
#include "grad_oracle_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define U64 0x1p-53
#define UNITS 12.0
#define UNITS_GATED 24.0 /* sigmoid has an error of its own, and a gate before enters h, 1/sqrt and G */

/* One column output: exact sums with what they may be off by. */
struct sums {
    tn_out out, start;
    size_t rows[2], columns;
    mpfr_t *v;
    double *tol;
    bool *unjudged;
};

struct oracle {
    const tn_norm_desc *d;
    const tn_norm_io *io;
    const tn_norm_grads *g;
    struct grad_report *report;
    size_t failures, row[2], group;
    struct tape t;
    double *mag_g, *mag_h; /* |terms| of G and of h, by element of the group */
    size_t capacity;
    double rounding_g, mean_g, mean_gh, phi; /* of the group */
    bool lost_r;                             /* 1/sqrt is rounded to 0 or inf: nothing to judge */
    double units,
        unit; /* how many roundings, and of what size: relative rounding of one operation, or what a doubtful 1/sqrt may be off by */
    struct sums sums[GR_COUNT];
    mpfr_t want, scratch;
};
static struct oracle oracle;
static bool oracle_ready;

static void oracle_start(struct oracle *o, size_t group)
{
    if (!oracle_ready)
        mpfr_inits2(TAPE_BITS, o->want, o->scratch, (mpfr_ptr)0);
    oracle_ready = true;
    tape_reserve(&o->t, group);
    if (o->capacity >= group)
        return;
    free(o->mag_g);
    free(o->mag_h);
    o->mag_g = must_malloc(group * sizeof *o->mag_g);
    o->mag_h = must_malloc(group * sizeof *o->mag_h);
    o->capacity = group;
}

void grad_oracle_free(void)
{
    if (oracle_ready)
        mpfr_clears(oracle.want, oracle.scratch, (mpfr_ptr)0);
    oracle_ready = false;
    tape_free(&oracle.t);
    free(oracle.mag_g);
    free(oracle.mag_h);
    memset(&oracle, 0, sizeof oracle);
    mpfr_free_cache();
}

/* ---- operands ------------------------------------------------------------------------------------- */

static double element_or(const struct oracle *o, const tn_in *v, size_t k, double absent)
{
    if (!v->data)
        return absent;
    ptrdiff_t index =
        (ptrdiff_t)o->row[0] * v->stride[0] + (ptrdiff_t)o->row[1] * v->stride[1] + (ptrdiff_t)k * v->inner;
    return dtype_get(v->data, v->dtype, index);
}

/* One IEEE addition, then where asked the sum's dtype, the 16-bit ones through f32. */
static double load_sum(const struct oracle *o, size_t k)
{
    const tn_norm_io *io = o->io;
    double s = element_or(o, &io->x, k, 0);
    if (!io->residual.data)
        return s;
    s += element_or(o, &io->residual, k, 0);
    tn_dtype to = io->sum.dtype != TN_NONE ? io->sum.dtype : io->x.dtype;
    return o->d->sum == TN_SUM_EXACT || to == TN_F64 ? s : dtype_round(to, dtype_round(TN_F32, s));
}

static void load_weight(const struct oracle *o, size_t k, size_t column)
{
    mpfr_ptr w = &o->t.v[N_W][k];
    double plain = element_or(o, &o->io->weight, column, 1), offset = o->d->weight_offset;
    mpfr_set_d(w, plain, MPFR_RNDN);
    if (!o->io->weight.data || offset == 0)
        return;
    mpfr_add_d(w, w, offset, MPFR_RNDN);
    tn_dtype to = o->io->weight.dtype;
    if (o->d->flags & TN_ROUND_OFFSET && to != TN_F64)
        mpfr_set_d(w, dtype_round(to, dtype_round(TN_F32, plain + offset)), MPFR_RNDN);
}

static bool is_half(tn_dtype dtype)
{
    return dtype == TN_BF16 || dtype == TN_F16;
}

static void set_tape(struct oracle *o)
{
    const tn_norm_desc *d = o->d;
    const tn_norm_io *io = o->io;
    struct tape *t = &o->t;
    tn_dtype y = io->y.dtype != TN_NONE ? io->y.dtype : io->x.dtype;
    t->d = d;
    t->n = d->group ? d->group : d->n;
    t->counted = d->partial ? d->partial : t->n;
    t->divisor = d->divisor > 0 ? d->divisor : (double)t->counted;
    t->round_r = d->flags & TN_ROUND_RSTD ? io->x.dtype : TN_NONE;
    t->round_p = d->flags & TN_ROUND_PRODUCT && (is_half(y) || y == TN_F32) ? y : TN_NONE;
    t->round_h = TN_NONE;
    if (d->cast == TN_CAST_BEFORE_SCALE)
        t->round_h = io->x.dtype;
    if (d->cast == TN_CAST_T5 && io->weight.data && is_half(io->weight.dtype))
        t->round_h = io->weight.dtype;
}

/* False where an operand of the group is not finite. */
static bool load_group(struct oracle *o)
{
    const tn_norm_io *io = o->io;
    bool finite = true;
    size_t positions = o->d->positions ? o->d->positions : 1;
    for (size_t k = 0; k < o->t.n; k++) {
        size_t at = o->group * o->t.n + k, column = at / positions;
        const double in[] = {load_sum(o, at),
                             element_or(o, &io->gate, at, 0),
                             element_or(o, &io->weight, column, 1),
                             element_or(o, &io->bias, column, 0),
                             element_or(o, &io->mod_scale, at, 0),
                             element_or(o, &io->mod_shift, at, 0),
                             element_or(o, &o->g->dy, at, 0),
                             element_or(o, &o->g->dsum, at, 0)};
        for (int i = N_S; i <= N_DSUM; i++) {
            mpfr_set_d(&o->t.v[i][k], in[i], MPFR_RNDN);
            finite = finite && isfinite(in[i]);
        }
        load_weight(o, k, column);
    }
    return finite;
}

/* ---- magnitudes ----------------------------------------------------------------------------------- */

static double mag(const struct oracle *o, enum node node, size_t k)
{
    return magnitude(&o->t.v[node][k]);
}

static double mag_factor(const struct oracle *o, size_t k) /* of 1 + mod_scale */
{
    return 1 + mag(o, N_MUL, k);
}

static double mag_slope(const struct oracle *o, size_t k)
{
    double g = mpfr_get_d(&o->t.v[N_GATE][k], MPFR_RNDN), s = 1 / (1 + exp(-g)), rest = 1 / (1 + exp(g));
    return o->d->act == TN_SILU ? s * (1 + fabs(g) * rest) : s * rest;
}

static double mag_affine(const struct oracle *o, size_t k) /* of w' h + b */
{
    double w = mag(o, N_W, k) + (o->io->weight.data ? fabs(o->d->weight_offset) : 0);
    return w * o->mag_h[k] + mag(o, N_B, k);
}

/* What the roundings of f64 operations are relative to: G and h term by term, and the row's sums of them. */
static void magnitudes(struct oracle *o)
{
    const struct tape *t = &o->t;
    double r = magnitude(t->rr), sigma = magnitude(t->sigma), squares = 0, largest = 0;
    bool centred = o->d->kind == TN_LAYER, gated = o->d->gate == TN_GATE_BEFORE;
    for (size_t k = 0; k < t->counted; k++) {
        squares += mag(o, N_H, k) * mag(o, N_H, k);
        largest = fmax(largest, gated ? mag(o, N_U, k) : 0);
    }
    double rest = centred ? sqrt(squares / t->divisor) + largest * r : 0;
    if (centred && o->report->stat_error > 0)
        rest += magnitude(t->mean) * r;
    rest += 0x1p-1019 * (1 + (centred ? r : 0)); /* the grain of f64, in units of 2^-53 */
    double lost = centred && sigma > 0 ? largest / sigma : 0;
    o->mean_g = o->mean_gh = 0;
    for (size_t k = 0; k < t->n; k++) {
        double w = mag(o, N_W, k) + (o->io->weight.data ? fabs(o->d->weight_offset) : 0);
        o->mag_h[k] = mag(o, N_H, k) * (1 + lost) + rest;
        o->mag_g[k] = mag(o, N_DZ, k) * mag_factor(o, k) * w;
        o->mean_g += centred ? o->mag_g[k] / t->divisor : 0;
        o->mean_gh += o->mag_g[k] * o->mag_h[k] / (o->d->kind == TN_L2 ? 1 : t->divisor);
    }
    double phi = o->d->eps_mode == TN_EPS_OUTSIDE && sigma > 0 ? magnitude(t->q) / sigma : 1;
    if (t->round_r != TN_NONE && r > 0)
        phi *= pow(magnitude(t->r) / r, 3);
    o->phi = phi * fmax(phi, 1); /* the lesser of two close numbers, where eps is outside and large */
    o->units = o->d->gate == TN_GATE_NONE ? UNITS : UNITS_GATED;
    o->lost_r = t->round_r != TN_NONE && (mpfr_zero_p(t->rr) || !mpfr_number_p(t->rr)) && !mpfr_zero_p(t->r);
    o->unit = o->lost_r ? INFINITY : U64 + (4 * t->r_doubt + 3 * o->report->stat_error) / o->units;
}

/* The terms of dx before the gate and dsum. */
static double mag_dx(const struct oracle *o, size_t k)
{
    return magnitude(o->t.rr) * (o->mag_g[k] + o->mean_g + o->mag_h[k] * o->mean_gh * o->phi);
}

/* ---- verdicts ------------------------------------------------------------------------------------- */

static double output_ulps(tn_dtype dtype)
{
    return dtype == TN_F64 ? 1.5 : dtype == TN_F32 ? 0.5001 : 0.501;
}

/* o->want against `got`: tol is absolute, `terms` what it was made from. */
static void judge(struct oracle *o, enum grad_operand op, size_t k, tn_dtype dtype, double got, double tol)
{
    if (!isfinite(tol) || !mpfr_number_p(o->want)) /* beyond f64 on the way */
        return;
    struct grad_figures *f = &o->report->of[op][dtype];
    int ulp = ulp_exponent(dtype, o->want);
    double wide = ldexp(tol, -ulp), bound = output_ulps(dtype) + wide;
    double error = error_ulp(dtype, got, o->want, o->scratch);
    if (isinf(got) && tol >= dtype_info(dtype)->largest) /* either sign may overflow */
        return;
    f->elements++;
    if (wide < 1e-4)
        f->worst_ulp = fmax(f->worst_ulp, error);
    if (bound > 0 && isfinite(bound))
        f->worst_part = fmax(f->worst_part, error / bound);
    if (error > 0.501 && wide > 0)
        f->worst_units = fmax(f->worst_units, (error - 0.501) / wide * o->units);
    if (error <= bound)
        return;
    o->failures++;
    o->report->failures++;
    if (!o->report->text[0])
        snprintf(o->report->text, sizeof o->report->text,
                 "%s %s, row (%zu, %zu), element %zu: got %.17g, want %.17g, error %.6g ulp, bound %.6g ulp",
                 grad_operand_name(op), dtype_info(dtype)->name, o->row[0], o->row[1], k, got,
                 mpfr_get_d(o->want, MPFR_RNDN), error, bound);
}

static double written(const struct oracle *o, const tn_out *v, size_t k)
{
    const tn_in in = {v->data, v->dtype, {v->stride[0], v->stride[1]}, v->inner};
    return element_or(o, &in, k, 0);
}

static void judge_elements(struct oracle *o)
{
    const struct tape *t = &o->t;
    for (size_t k = 0; k < t->n; k++) {
        size_t at = o->group * t->n + k;
        double terms = mag_dx(o, k), units = o->units * o->unit;
        double gate = terms * mag(o, N_S, k) * mag_slope(o, k);
        if (o->d->gate == TN_GATE_BEFORE)
            terms *= mag(o, N_ACT, k);
        if (o->d->gate == TN_GATE_AFTER) {
            double z = mag_affine(o, k) * mag_factor(o, k) + mag(o, N_ADD, k);
            gate = mag(o, N_DY, k) * mag_slope(o, k) * z;
        }
        double doubt = (t->h_doubt[k] * mag(o, N_W, k) + t->p_doubt[k]) * mag_factor(o, k) * mag(o, N_DY, k) *
                       mag_slope(o, k);
        mpfr_set(o->want, &t->v[N_DS][k], MPFR_RNDN);
        terms += mag(o, N_DSUM, k);
        if (o->g->dx.data)
            judge(o, GR_DX, at, o->g->dx.dtype, written(o, &o->g->dx, at), units * terms);
        if (o->g->dresidual.data)
            judge(o, GR_DRESIDUAL, at, o->g->dresidual.dtype, written(o, &o->g->dresidual, at),
                  units * terms);
        if (!o->g->dgate.data)
            continue;
        mpfr_set(o->want, &t->v[N_DGATE][k], MPFR_RNDN);
        judge(o, GR_DGATE, at, o->g->dgate.dtype, written(o, &o->g->dgate, at),
              units * gate + (o->d->gate == TN_GATE_AFTER ? doubt : 0));
    }
}

/* ---- column sums ---------------------------------------------------------------------------------- */

static void sums_open(struct oracle *o, const tn_norm_grads *start)
{
    tn_norm_grads g = *o->g, before = *start;
    for (int op = GR_DWEIGHT; op < GR_COUNT; op++) {
        struct sums *s = &o->sums[op];
        s->out = *grad_output(&g, (enum grad_operand)op);
        s->start = *grad_output(&before, (enum grad_operand)op);
        if (!s->out.data)
            continue;
        for (int a = 0; a < 2; a++)
            s->rows[a] = s->out.stride[a] && o->d->rows[a] ? o->d->rows[a] : 1;
        s->columns = grad_columns_of(o->d, (enum grad_operand)op);
        size_t count = s->rows[0] * s->rows[1] * s->columns;
        s->v = must_malloc(count * sizeof *s->v);
        s->tol = must_malloc(count * sizeof *s->tol);
        s->unjudged = must_malloc(count * sizeof *s->unjudged);
        for (size_t i = 0; i < count; i++) {
            mpfr_init2(s->v[i], TAPE_BITS);
            mpfr_set_zero(s->v[i], 1);
            s->tol[i] = 0;
            s->unjudged[i] = false;
        }
    }
}

static void sums_close(struct oracle *o)
{
    for (int op = GR_DWEIGHT; op < GR_COUNT; op++) {
        struct sums *s = &o->sums[op];
        size_t count = s->out.data ? s->rows[0] * s->rows[1] * s->columns : 0;
        for (size_t i = 0; i < count; i++) {
            o->row[0] = i / s->columns / s->rows[1];
            o->row[1] = i / s->columns % s->rows[1];
            mpfr_set(o->want, s->v[i], MPFR_RNDN);
            if (o->g->accumulate)
                mpfr_add_d(o->want, o->want, written(o, &s->start, i % s->columns), MPFR_RNDN);
            if (o->g->accumulate)
                s->tol[i] += magnitude(o->want) * U64;
            if (!s->unjudged[i])
                judge(o, (enum grad_operand)op, i % s->columns, s->out.dtype,
                      written(o, &s->out, i % s->columns), s->tol[i]);
            mpfr_clear(s->v[i]);
        }
        free(s->v);
        free(s->tol);
        free(s->unjudged);
        memset(s, 0, sizeof *s);
    }
}

/* Adds element k of the group to output `op`; terms NaN: what is summed there is not to be judged. */
static void sums_add(struct oracle *o, enum grad_operand op, size_t k, mpfr_srcptr v, double tol, bool finite)
{
    struct sums *s = &o->sums[op];
    if (!s->out.data)
        return;
    size_t at = (o->group * o->t.n + k) / (o->d->n / s->columns);
    size_t row = (s->rows[0] > 1 ? o->row[0] : 0) * s->rows[1] + (s->rows[1] > 1 ? o->row[1] : 0);
    size_t i = row * s->columns + at;
    if (finite)
        mpfr_add(s->v[i], s->v[i], v, MPFR_RNDN);
    s->tol[i] += tol;
    s->unjudged[i] = s->unjudged[i] || !finite;
}

static void add_columns(struct oracle *o, bool finite)
{
    const struct tape *t = &o->t;
    double units = o->units * o->unit;
    for (size_t k = 0; k < t->n; k++) {
        double dz = finite ? mag(o, N_DZ, k) : 0, da = finite ? dz * mag_factor(o, k) : 0;
        double a = finite ? mag_affine(o, k) : 0, w = mag(o, N_W, k);
        sums_add(o, GR_DWEIGHT, k, &t->v[N_DW][k], finite ? units * da * o->mag_h[k] + t->h_doubt[k] * da : 0,
                 finite);
        sums_add(o, GR_DBIAS, k, &t->v[N_DB][k], units * da, finite);
        sums_add(o, GR_DMOD_SCALE, k, &t->v[N_DMUL][k],
                 finite ? units * dz * a + (t->h_doubt[k] * w + t->p_doubt[k]) * dz : 0, finite);
        sums_add(o, GR_DMOD_SHIFT, k, &t->v[N_DADD][k], units * dz, finite);
    }
}

/* ---- all rows ------------------------------------------------------------------------------------- */

static void check_group(struct oracle *o)
{
    bool finite = load_group(o);
    if (finite) {
        tape_forward(&o->t);
        tape_reverse(&o->t);
        magnitudes(o);
        if (o->report->differences)
            o->report->worst_difference = fmax(o->report->worst_difference, tape_differences(&o->t));
        judge_elements(o);
    }
    add_columns(o, finite);
}

size_t grad_oracle_check(const tn_norm_desc *desc, const tn_norm_io *io, const tn_norm_grads *grads,
                         const tn_norm_grads *start, struct grad_report *r)
{
    struct oracle *o = &oracle;
    oracle_start(o, desc->group ? desc->group : desc->n);
    o->d = desc;
    o->io = io;
    o->g = grads;
    o->report = r;
    o->failures = 0;
    set_tape(o);
    sums_open(o, start);
    for (o->row[0] = 0; o->row[0] < desc->rows[0]; o->row[0]++)
        for (o->row[1] = 0; o->row[1] < desc->rows[1]; o->row[1]++)
            for (o->group = 0; o->t.n && o->group < desc->n / o->t.n; o->group++)
                check_group(o);
    sums_close(o);
    return o->failures;
}
