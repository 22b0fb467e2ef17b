/* wide.h - the general kernel over f64 values: f64 operands, unrounded sums, gates, partial statistics, extra cast
 * points, int8 and fp8 results. Works a chunk at a time: each step is one loop over f64 in L1.
 *
 * Where an operand of the statistics is f64 (plan->wide_sums) the sums are double-double and rows whose sums leave
 * the safe range are rescaled by a power of two; so f64 results are right to about half an ulp. */
#ifndef TN_WIDE_H
#define TN_WIDE_H

#include "kernels/act.h"
#include "kernels/narrow.h"

struct wide_buffers {
    double s[TN_CHUNK], t[TN_CHUNK], raw[TN_CHUNK];
};

static inline double round_scalar(tn_dtype dt, double v)
{
    float f = (float)v;
    return dt == TN_BF16  ? (double)tn_bf16_to_f32(tn_f32_to_bf16(f))
           : dt == TN_F16 ? (double)tn_f16_to_f32(tn_f32_to_f16(f))
           : dt == TN_F32 ? (double)f
                          : v;
}

TN_INLINE vd round_f64_to(tn_dtype dt, vd v)
{
    if (dt == TN_NONE || dt == TN_F64)
        return v;
    return vd_from_vf(round_to(dt, vd_to_vf(v)));
}

/* Elements [i, i+n) of a parameter whose elements serve plan->positions elements of the row each. */
static TN_NOINLINE void stage_param(const struct group_ref *at, const struct tn_operand *o, size_t i,
                                    size_t n, double *buf, double *raw)
{
    const struct tn_plan *p = at->p;
    if (p->positions == 1) {
        stage_f64(o, group_row(at, o), i, n, buf, raw);
        return;
    }
    const char *row = operand_at(o, at->i0, at->i1);
    size_t first = at->g * p->group + i;
    for (size_t k = 0; k < round_up16(n);) {
        double value[16] = {0}, one_raw[1];
        size_t column = (first + k) / p->positions, same = p->positions - (first + k) % p->positions;
        if (k < n)
            stage_f64(o, row, column, 1, value, one_raw);
        for (size_t end = k < n && k + same < n ? k + same : k < n ? n : round_up16(n); k < end; k++)
            buf[k] = value[0];
    }
}

/* Elements [i, i+n) of s * scale into buf->s, zeros up to a multiple of 16. */
static TN_NOINLINE void wide_input(const struct group_ref *at, size_t i, size_t n, double scale,
                                   bool store_sum, struct wide_buffers *buf)
{
    const struct tn_plan *p = at->p;
    stage_f64(&p->x, group_row(at, &p->x), i, n, buf->s, buf->raw);
    if (p->residual.data) {
        stage_f64(&p->residual, group_row(at, &p->residual), i, n, buf->t, buf->raw);
        for (size_t k = 0; k < n; k += 16) {
            vd sum = vd_add(vd_load(buf->s + k), vd_load(buf->t + k));
            vd_store(buf->s + k, round_f64_to(p->sum_dtype, sum));
        }
        if (store_sum && p->sum.data)
            unstage_f64(&p->sum, group_row(at, &p->sum), i, n, buf->s, buf->raw);
    }
    if (scale != 1.0) /* before the gate, whose product could overflow */
        for (size_t k = 0; k < n; k += 16)
            vd_store(buf->s + k, vd_mul(vd_load(buf->s + k), vd_set1(scale)));
    if (p->gate_place == TN_GATE_BEFORE) {
        stage_f64(&p->gate, group_row(at, &p->gate), i, n, buf->t, buf->raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(buf->s + k,
                     vd_mul(vd_load(buf->s + k), vd_act(p->act, p->brief_act, vd_load(buf->t + k))));
    }
    if (n % 16)
        vd_store(buf->s + n / 16 * 16, vd_first(vd_load(buf->s + n / 16 * 16), n % 16));
}

/* ---- double-double lanes ---- */

struct lanes2 {
    struct lanes hi, lo;
};

/* Error of s = x + y (Knuth). */
TN_INLINE vd two_sum_error(vd x, vd y, vd s)
{
    vd yy = vd_sub(s, x);
    return vd_add(vd_sub(x, vd_sub(s, yy)), vd_sub(y, yy));
}
TN_INLINE void add_two(vd *hi, vd *lo, vd x, vd x_low)
{
    vd s = vd_add(*hi, x);
    *lo = vd_add(*lo, vd_add(two_sum_error(*hi, x, s), x_low));
    *hi = s;
}
TN_INLINE void add_square(vd *hi, vd *lo, vd x)
{
    vd q = vd_mul(x, x);
    add_two(hi, lo, q, vd_fma(x, x, vd_sub(vd_set1(0.0), q)));
}

struct two {
    double hi, lo;
};
static TN_NOINLINE struct two lanes2_sum(const struct lanes2 *s)
{
    double hi[32], lo[32];
    vd_store(hi, s->hi.a);
    vd_store(hi + 16, s->hi.b);
    vd_store(lo, s->lo.a);
    vd_store(lo + 16, s->lo.b);
    for (int half = 16; half; half /= 2)
        for (int j = 0; j < half; j++) {
            double sum = hi[j] + hi[j + half], y = sum - hi[j];
            lo[j] += lo[j + half] + ((hi[j] - (sum - y)) + (hi[j + half] - y));
            hi[j] = sum;
        }
    double sum = hi[0] - hi[0] == 0.0 ? hi[0] + lo[0] : hi[0];
    struct two r = {sum, sum - sum == 0.0 ? lo[0] - (sum - hi[0]) : 0.0};
    return r;
}
/* (hi + lo) / d in two parts. */
TN_INLINE struct two two_div(struct two a, double d)
{
    double q = a.hi / d, low = (fma(-q, d, a.hi) + a.lo) / d;
    struct two r = {q, low - low == 0.0 ? low : 0.0};
    return r;
}

/* ---- statistics ---- */

enum wide_sum { SUM_VALUES, SUM_SQUARES, SUM_CENTRED_SQUARES, MAX_ABS };

TN_INLINE void wide_step(enum wide_sum what, bool wide_sums, const struct tn_stat *st, const double *at,
                         size_t left, vd *hi, vd *lo)
{
    vd v = vd_load(at);
    if (what == SUM_CENTRED_SQUARES) {
        v = vd_sub(vd_sub(v, vd_set1(st->mh)), vd_set1(st->ml));
        if (left < 16)
            v = vd_first(v, left);
        if (!wide_sums)
            *lo = vd_add(*lo, v);
    }
    if (what == MAX_ABS)
        *hi = vd_max(vd_abs(v), *hi);
    else if (!wide_sums)
        *hi = what == SUM_VALUES ? vd_add(*hi, v) : vd_fma(v, v, *hi);
    else if (what == SUM_VALUES)
        add_two(hi, lo, v, vd_set1(0.0));
    else
        add_square(hi, lo, v);
}

/* One pass over the counted elements of a group. With wide_sums `lo` holds the low parts, without them the plain
 * sum of the centred values. */
TN_INLINE void wide_pass(enum wide_sum what, bool wide_sums, const struct group_ref *at,
                         struct wide_buffers *buf, const struct tn_stat *st, struct lanes2 *acc)
{
    struct lanes2 s = {lanes_zero(), lanes_zero()};
    size_t n = at->p->counted;
    for (size_t i = 0; i < n; i += TN_CHUNK) {
        size_t m = chunk_of(i, n);
        wide_input(at, i, m, st->scale, false, buf);
        for (size_t k = 0; k < m; k += 32) {
            wide_step(what, wide_sums, st, buf->s + k, m - k, &s.hi.a, &s.lo.a);
            if (k + 16 < m)
                wide_step(what, wide_sums, st, buf->s + k + 16, m - k - 16, &s.hi.b, &s.lo.b);
        }
    }
    *acc = s;
}

static TN_NOINLINE void plain_statistics(const struct group_ref *at, struct wide_buffers *buf,
                                         struct tn_stat *st, double *moment2)
{
    const struct tn_plan *p = at->p;
    struct lanes2 s;
    if (!p->centred) {
        wide_pass(SUM_SQUARES, false, at, buf, st, &s);
        *moment2 = lanes_sum(s.hi);
        stat_rstd(p, *moment2 / p->count, st);
        return;
    }
    wide_pass(SUM_VALUES, false, at, buf, st, &s);
    st->mh = lanes_sum(s.hi) / p->count;
    wide_pass(SUM_CENTRED_SQUARES, false, at, buf, st, &s);
    double v = stat_variance(p, lanes_sum(s.lo), lanes_sum(s.hi), &st->ml);
    *moment2 = v * p->count;
    stat_rstd(p, v, st);
}

/* Mean and the sum of squares (centred if so) of s * st->scale. */
static TN_NOINLINE struct two two_part_moments(const struct group_ref *at, struct wide_buffers *buf,
                                               struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    struct lanes2 s;
    st->mh = st->ml = 0.0;
    if (p->centred) {
        wide_pass(SUM_VALUES, true, at, buf, st, &s);
        struct two mean = two_div(lanes2_sum(&s), p->count);
        st->mh = mean.hi;
        st->ml = mean.lo;
        wide_pass(SUM_CENTRED_SQUARES, true, at, buf, st, &s);
    } else {
        wide_pass(SUM_SQUARES, true, at, buf, st, &s);
    }
    return lanes2_sum(&s);
}

/* Exponent e of the largest |s| of the counted elements, |s| in [2^(e-1), 2^e). False if it is 0, inf or NaN. */
static TN_NOINLINE bool largest_exponent(const struct group_ref *at, struct wide_buffers *buf, int *e)
{
    const int down = 600; /* a second look, for products with a gate that overflow */
    struct tn_stat st = {0, 0, 0, 0, 1.0, false};
    struct lanes2 s;
    for (int shift = 0; shift <= down; shift += down) {
        st.scale = ldexp(1.0, -shift);
        wide_pass(MAX_ABS, false, at, buf, &st, &s);
        double top = vd_hmax(vd_max(s.hi.a, s.hi.b));
        if (top - top == 0.0) {
            (void)frexp(top, e);
            *e += shift;
            return top > 0.0;
        }
        if (at->p->gate_place != TN_GATE_BEFORE)
            break;
    }
    return false;
}

/* The power of two that brings a row to a safe size: large rows to 2^400, which leaves the small elements that count
 * exact; small ones to 1, as far as eps * scale^2 stays finite. */
static TN_NOINLINE double rescue_scale(const struct group_ref *at, struct wide_buffers *buf)
{
    const struct tn_plan *p = at->p;
    double eps = p->eps > 0.0 ? p->eps : 0.0, root = p->eps_mode == TN_EPS_INSIDE ? sqrt(eps) : eps;
    int e, e_eps;
    if (!largest_exponent(at, buf, &e))
        return 1.0;
    (void)frexp(root, &e_eps);
    int k = e > 400 ? 400 - e : e < -400 ? -e : 0;
    if (k > 0 && root > 0.0 && k > 400 - e_eps)
        k = 400 - e_eps;
    return ldexp(1.0, k > 1000 ? 1000 : k < -1000 ? -1000 : k);
}

static TN_NOINLINE void two_part_statistics(const struct group_ref *at, struct wide_buffers *buf,
                                            struct tn_stat *st, double *moment2)
{
    const struct tn_plan *p = at->p;
    struct two m2 = two_part_moments(at, buf, st);
    bool mean_lost = p->centred && !(st->mh - st->mh == 0.0);
    bool unsafe = !(m2.hi <= 0x1p900) || !(m2.hi >= 0x1p-900);
    if (mean_lost || (unsafe && p->source != TN_STATS_MOMENTS)) {
        st->scale = rescue_scale(at, buf);
        if (st->scale != 1.0 || mean_lost)
            m2 = two_part_moments(at, buf, st);
    }
    *moment2 = m2.hi / st->scale / st->scale;
    struct two v = two_div(m2, p->count);
    rstd_two_part(p, v.hi, v.lo, st->scale, st);
    /* elements beyond a partial row's counted ones may be too large to scale up */
    double r = st->rh * st->scale, mh = st->mh / st->scale;
    bool mean_fits = mh == 0.0 || fabs(mh) > 0x1p-900; /* with its low part */
    if (p->counted < p->group && mean_fits && p->gate_place != TN_GATE_BEFORE && st->scale > 1.0 &&
        r - r == 0.0) {
        st->rh = r;
        st->rl *= st->scale;
        st->mh = mh;
        st->ml /= st->scale;
        st->scale = 1.0;
    }
}

/* ---- apply ---- */

/* t + e, but an infinite t, whose low part is a NaN. */
TN_INLINE vd add_low(vd t, vd e)
{
    return vd_select_neg(vd_sub(vd_abs(t), vd_set1(INFINITY)), vd_add(t, e), t);
}

/* How a row becomes int8 or fp8: y / scale, by the reciprocal where that is exact enough. */
struct quantiser {
    double factor;
    bool divide;
};

TN_INLINE struct quantiser quantiser_of(double scale)
{
    struct quantiser q = {1.0 / scale, !(fabs(scale) >= 0x1p-1000 && fabs(scale) <= 0x1p1000)};
    if (q.divide)
        q.factor = scale;
    return q;
}

TN_INLINE vd quantise(const struct quantiser *q, vd y)
{
    vd factor = vd_set1(q->factor);
    return q->divide ? vd_div(y, factor) : vd_mul(y, factor);
}

/* The dynamic scale of a row whose largest |y| is top. */
TN_INLINE double scale_of(const struct tn_plan *p, double top)
{
    double limit = p->y.dtype == TN_I8 ? 127.0 : p->y.dtype == TN_E4M3 ? 448.0 : 57344.0;
    double scale = top / limit;
    if (p->scale_out.dtype == TN_F32)
        scale = (double)(float)scale;
    return scale == 0.0 ? 1.0 : scale;
}

/* w' * h + b and the gate after, for elements [i, i+n), into buf->s. */
static TN_NOINLINE void wide_result(const struct group_ref *at, size_t i, size_t n, const struct tn_stat *st,
                                    bool store_sum, struct wide_buffers *buf)
{
    const struct tn_plan *p = at->p;
    const vd rh = vd_set1(st->rh), rl = vd_set1(st->rl);
    const bool has_w = p->weight.data;
    wide_input(at, i, n, st->scale, store_sum, buf);
    if (has_w)
        stage_param(at, &p->weight, i, n, buf->t, buf->raw);
    for (size_t k = 0; k < n; k += 16) {
        vd s = vd_load(buf->s + k);
        if (p->centred)
            s = vd_sub(vd_sub(s, vd_set1(st->mh)), vd_set1(st->ml));
        vd t = vd_mul(s, rh), e = vd_set1(0.0);
        if (st->rl != 0.0)
            e = vd_add(vd_fma(s, rh, vd_sub(e, t)), vd_mul(s, rl));
        if (p->round_h != TN_NONE) {
            t = round_f64_to(p->round_h, st->rl != 0.0 ? add_low(t, e) : t); /* -0 + 0 would be 0 */
            e = vd_set1(0.0);
        }
        if (has_w) {
            vd w = vd_load(buf->t + k);
            if (p->offset != 0.0)
                w = vd_add(w, vd_set1(p->offset));
            w = round_f64_to(p->round_w, w);
            vd y = vd_mul(t, w);
            if (st->rl != 0.0)
                e = vd_add(vd_fma(t, w, vd_sub(vd_set1(0.0), y)), vd_mul(e, w));
            t = y;
        }
        if (st->rl != 0.0)
            t = add_low(t, e);
        vd_store(buf->s + k, round_f64_to(p->round_p, t));
    }
    if (p->bias.data) {
        stage_param(at, &p->bias, i, n, buf->t, buf->raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(buf->s + k, vd_add(vd_load(buf->s + k), vd_load(buf->t + k)));
    }
    if (p->mod_scale.data) {
        stage_f64(&p->mod_scale, group_row(at, &p->mod_scale), i, n, buf->t, buf->raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(buf->s + k, vd_mul(vd_load(buf->s + k), vd_add(vd_load(buf->t + k), vd_set1(1.0))));
    }
    if (p->mod_shift.data) {
        stage_f64(&p->mod_shift, group_row(at, &p->mod_shift), i, n, buf->t, buf->raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(buf->s + k, vd_add(vd_load(buf->s + k), vd_load(buf->t + k)));
    }
    if (p->gate_place == TN_GATE_AFTER) {
        stage_f64(&p->gate, group_row(at, &p->gate), i, n, buf->t, buf->raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(buf->s + k,
                     vd_mul(vd_load(buf->s + k), vd_act(p->act, p->brief_act, vd_load(buf->t + k))));
    }
}

static TN_NOINLINE void wide_group_stat(const struct group_ref *at, struct wide_buffers *buf,
                                        struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    double moment2 = 0.0;
    *st = (struct tn_stat){0, 0, 0, 0, 1.0, false};
    if (p->source == TN_STATS_GIVEN) {
        read_given(at, st);
    } else {
        if (p->wide_sums)
            two_part_statistics(at, buf, st, &moment2);
        else
            plain_statistics(at, buf, st, &moment2);
        if (p->round_r != TN_NONE) {
            /* with a rescued row the unscaled 1/sqrt is what gets rounded */
            st->rh = round_scalar(p->round_r, st->rh * st->scale) / st->scale;
            st->rl = 0.0;
        }
    }
    if (p->source == TN_STATS_OWN && p->brief_act && stores_better_stats(p))
        better_stats(at);
    else
        write_stats(at, st);
    if (p->source == TN_STATS_MOMENTS)
        write_stat(&p->moment2, at->i0, at->i1, at->g, moment2);
}

static TN_NOINLINE void wide_apply(const struct group_ref *at, const struct tn_stat *st,
                                   const struct quantiser *q, struct wide_buffers *buf)
{
    const struct tn_plan *p = at->p;
    if (!p->y.data && !p->sum.data)
        return;
    for (size_t i = 0; i < p->group; i += TN_CHUNK) {
        size_t n = chunk_of(i, p->group);
        if (!p->y.data) {
            wide_input(at, i, n, 1.0, true, buf);
            continue;
        }
        wide_result(at, i, n, st, true, buf);
        if (p->quantised)
            for (size_t k = 0; k < n; k += 16)
                vd_store(buf->s + k, quantise(q, vd_load(buf->s + k)));
        unstage_f64(&p->y, group_row(at, &p->y), i, n, buf->s, buf->raw);
    }
}

/* Largest |y| of a group, for the scale of a quantised row; NaNs do not enter. */
static TN_NOINLINE double wide_max(const struct group_ref *at, const struct tn_stat *st, double top,
                                   struct wide_buffers *buf)
{
    const struct tn_plan *p = at->p;
    vd m = vd_set1(top);
    for (size_t i = 0; i < p->group; i += TN_CHUNK) {
        size_t n = chunk_of(i, p->group);
        wide_result(at, i, n, st, false, buf);
        for (size_t k = 0; k < n; k += 16) {
            vd v = vd_load(buf->s + k);
            if (n - k < 16)
                v = vd_first(v, n - k);
            m = vd_max(vd_abs(v), m);
        }
    }
    return vd_hmax(m);
}

/* The f32 scale of a dynamically quantised row. */
static TN_NOINLINE double row_scale(const struct tn_plan *p, struct group_ref *at, struct wide_buffers *buf)
{
    double top = 0.0;
    for (at->g = 0; at->g < p->groups; at->g++) {
        struct tn_stat st;
        wide_group_stat(at, buf, &st);
        top = wide_max(at, &st, top, buf);
    }
    double scale = scale_of(p, top);
    write_stat(&p->scale_out, at->i0, at->i1, 0, scale);
    return scale;
}

static TN_NOINLINE void better_stats(const struct group_ref *at)
{
    struct tn_plan full = *at->p;
    struct group_ref again = {&full, at->i0, at->i1, at->g};
    struct wide_buffers buf;
    struct tn_stat st;
    full.brief_act = false;
    wide_group_stat(&again, &buf, &st);
}

/* One group, unquantised: what f32 arithmetic leaves. */
static TN_NOINLINE void wide_group(const struct group_ref *at)
{
    struct wide_buffers buf;
    const struct quantiser q = quantiser_of(1.0);
    struct tn_stat st;
    wide_group_stat(at, &buf, &st);
    wide_apply(at, &st, &q, &buf);
}

static void wide_rows(const struct tn_plan *p, size_t r0, size_t r1)
{
    struct wide_buffers buf;
    for (size_t r = r0; r < r1; r++) {
        struct group_ref at = {p, r / p->rows[1], r % p->rows[1], 0};
        struct quantiser q = quantiser_of(1.0);
        if (p->dynamic_scale)
            q = quantiser_of(row_scale(p, &at, &buf));
        else if (p->quantised)
            q = quantiser_of(read_stat(&p->scale_in, at.i0, at.i1, 0));
        for (at.g = 0; at.g < p->groups; at.g++) {
            struct tn_stat st;
            wide_group_stat(&at, &buf, &st);
            if (p->source != TN_STATS_MOMENTS)
                wide_apply(&at, &st, &q, &buf);
        }
    }
}

#endif
