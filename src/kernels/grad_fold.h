/* grad_fold.h - the backward of a row from sums that need no statistics, all made in one pass: of d, d^2, G and G d,
 * where d = u - shift, u what the norm sees, shift 0 or, where the variance would cancel, the mean.
 *
 *     h = d r + hc,   dx = G r + (c - d k)      with k = r^3 <(G - c0) d> phi,   c = ml k - c0 r,   hc = -ml r
 *
 * ml = m - shift. For groups whose inputs are not f64 and, for LayerNorm, that are counted in full (docs/backward.md). */
#ifndef TN_GRAD_FOLD_H
#define TN_GRAD_FOLD_H

#include "kernels/stage.h"
#include "kernels/stats.h"
#include "kernels/wide.h"

/* (mean - shift)^2 / variance up to which the sums serve. */
#define TN_GRAD_FOLD_LIMIT 4.0

struct fold_lanes {
    struct lanes d, dd, g, gd;
};

struct grad_fold {
    double shift, r, hc, minus_k, c;
};

TN_INLINE struct fold_lanes fold_zero(void)
{
    return (struct fold_lanes){lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
}

/* v of elements [i, i + 16): zeros instead of what the statistics do not count. */
TN_INLINE vd counted_lanes(const struct tn_plan *p, size_t i, vd v)
{
    return i + 16 <= p->counted || p->counted == p->group ? v
                                                          : vd_first(v, p->counted > i ? p->counted - i : 0);
}

/* dx of elements [i, i + 16): of those that the statistics do not count only `rest` = r G is left. */
TN_INLINE vd past_counted(const struct tn_plan *p, size_t i, vd dx, vd rest)
{
    if (i + 16 <= p->counted || p->counted == p->group)
        return dx;
    const size_t left = p->counted > i ? p->counted - i : 0;
    return vd_add(vd_first(dx, left), vd_sub(rest, vd_first(rest, left)));
}

/* counted: d where it counts, else 0. */
TN_INLINE void fold_step(bool centred, vd d, vd counted, vd g, vd *sum_d, vd *sum_dd, vd *sum_g, vd *sum_gd)
{
    *sum_dd = vd_fma(counted, counted, *sum_dd);
    *sum_gd = vd_fma(g, d, *sum_gd);
    if (centred) {
        *sum_d = vd_plus(d, *sum_d);
        *sum_g = vd_plus(g, *sum_g);
    }
}

/* d(1/q)/dsigma relative to the eps-inside formula, q = 1/r. */
static TN_NOINLINE double grad_phi(const struct tn_plan *p, double r, double scale)
{
    double eps = p->eps * scale;
    if (p->eps_mode == TN_EPS_INSIDE || r == 0.0)
        return 1.0;
    if (p->eps_mode == TN_EPS_OUTSIDE) {
        double q = 1.0 / r, sigma = q - eps;
        return sigma > q * 0x1p-50 ? q / sigma : 0.0;
    }
    double limit = 1.0 / eps;
    bool given_f32 = p->source == TN_STATS_GIVEN && p->rstd_in.dtype == TN_F32;
    return r < (given_f32 ? (double)(float)limit : limit) ? 1.0 : 0.0;
}

#define TN_FOLD_ROWS 16 /* as vd_sum_rows takes them */

/* The same of several rows, their lanes joined. Those of d and G are LayerNorm's. */
struct fold_sums {
    vd d[TN_FOLD_ROWS], dd[TN_FOLD_ROWS], g[TN_FOLD_ROWS], gd[TN_FOLD_ROWS];
};

TN_INLINE void fold_join(bool centred, const struct fold_lanes *s, size_t row, struct fold_sums *joined)
{
    joined->dd[row] = vd_add(s->dd.a, s->dd.b);
    joined->gd[row] = vd_add(s->gd.a, s->gd.b);
    if (centred) {
        joined->d[row] = vd_add(s->d.a, s->d.b);
        joined->g[row] = vd_add(s->g.a, s->g.b);
    }
}

/* From the sums of a row to what applies them. False: the variance is too small beside the squared mean; f->shift is now
 * the mean, to sum again with. */
TN_INLINE bool fold_finish(const struct group_ref *at, bool centred, bool again, const struct fold_sums *sums,
                           size_t row, struct grad_fold *f)
{
    const struct tn_plan *p = at->p;
    struct tn_stat st = {0, 0, 0, 0, 1.0, false};
    double dd = vd_sum(sums->dd[row]), gd = vd_sum(sums->gd[row]), d = 0.0, c0 = 0.0, ml = 0.0, v;
    if (centred) {
        d = vd_sum(sums->d[row]);
        v = stat_variance(p, d, dd, &ml);
        if (!again && TN_UNLIKELY(!(v * TN_GRAD_FOLD_LIMIT >= ml * ml))) {
            f->shift = ml;
            return false;
        }
        c0 = vd_sum(sums->g[row]) / p->count;
        gd -= c0 * d;
    } else {
        v = dd / p->count;
    }
    if (p->source == TN_STATS_GIVEN) {
        read_given(at, &st);
        ml = centred ? st.mh - f->shift : 0.0;
    } else {
        stat_rstd(p, v, &st);
    }
    double r = st.rh, c1 = gd / p->count * r;
    if (TN_UNLIKELY(p->eps_mode != TN_EPS_INSIDE))
        c1 *= grad_phi(p, r, 1.0);
    f->r = r;
    f->hc = -(ml * r);
    double k = c1 * r * r;
    f->minus_k = -k;
    f->c = fma(ml, k, -(c0 * r)); /* not -fma(): its -0 is gcc's +0 */
    return true;
}

/* ---- sixteen rows at once ---- */

struct fold_rows {
    double r[TN_FOLD_ROWS], hc[TN_FOLD_ROWS], minus_k[TN_FOLD_ROWS], c[TN_FOLD_ROWS];
};

/* fold_finish of the groups from refs[0] to refs[m - 1], shift 0, eps inside. False: one of them is not common. */
TN_INLINE bool fold_finish_rows(const struct group_ref *refs, size_t m, bool centred, struct fold_sums *sums,
                                struct fold_rows *out)
{
    const struct tn_plan *p = refs->p;
    const vd count = vd_set1(p->count), zero = vd_set1(0.0), one = vd_set1(1.0), minus = vd_set1(-1.0);
    if (p->eps_mode != TN_EPS_INSIDE || p->count != (double)p->counted)
        return false;
    for (size_t j = m; j < TN_FOLD_ROWS; j++)
        sums->d[j] = sums->dd[j] = sums->g[j] = sums->gd[j] = zero;
    vd dd = vd_sum_rows(sums->dd), gd = vd_sum_rows(sums->gd), ml = zero, c0 = zero, v;
    if (centred) {
        vd d = vd_sum_rows(sums->d);
        ml = vd_div(d, count);
        v = vd_div(vd_sub(dd, vd_mul(d, ml)), count);
        c0 = vd_div(vd_sum_rows(sums->g), count);
        gd = vd_sub(gd, vd_mul(c0, d));
    } else {
        v = vd_div(dd, count);
    }
    /* below 0 where the variance is large enough, and v + eps not 0; a NaN says nothing */
    vd margin = vd_sub(vd_mul(ml, ml), vd_mul(v, vd_set1(TN_GRAD_FOLD_LIMIT)));
    margin = vd_max(vd_sub(vd_set1(p->eps > 0.0 ? -1.0 : 0.0), vd_add(v, vd_set1(p->eps))), margin);
    vd good = vd_select_neg(margin, one, zero), r;
    if (vd_sum(vd_first(good, m)) != (double)m)
        return false;
    if (p->source == TN_STATS_GIVEN) {
        double mh[TN_FOLD_ROWS] = {0}, rh[TN_FOLD_ROWS] = {0};
        for (size_t j = 0; j < m; j++) {
            struct tn_stat st;
            read_given(&refs[j], &st);
            mh[j] = st.mh;
            rh[j] = st.rh;
        }
        r = vd_load(rh);
        ml = centred ? vd_load(mh) : zero;
    } else {
        r = vd_div(one, vd_sqrt(vd_add(v, vd_set1(p->eps))));
    }
    vd c1 = vd_mul(vd_div(gd, count), r), k = vd_mul(vd_mul(c1, r), r);
    vd_store(out->r, r);
    /* 0 - x would lose the sign of a zero */
    vd_store(out->hc, vd_mul(vd_mul(ml, r), minus));
    vd_store(out->minus_k, vd_mul(k, minus));
    vd_store(out->c, vd_fma(ml, k, vd_mul(vd_mul(c0, r), minus)));
    return true;
}

/* ---- gates ---- */

/* exp(x) of m numbers x <= 0 (or NaN) within 2 ulp, 0 below -745.2: vd_exp_nonpositive with a minimax polynomial
 * (2^-56), step by step as in act.h. */
#define TN_EACH for (size_t j = 0; j < m; j++)
TN_INLINE void fold_exps(size_t m, const vd *x, vd *e)
{
    static const double c[10] = {0x1.af389eea54156p-26, 0x1.28917c9f3a495p-22, 0x1.71de0db2eb873p-19,
                                 0x1.a019b914881bap-16, 0x1.a01a01a7c2f2cp-13, 0x1.6c16c17889f3cp-10,
                                 0x1.11111111109b5p-7,  0x1.5555555553d68p-5,  0x1.5555555555556p-3,
                                 0x1.0000000000001p-1};
    const vd shift = vd_set1(0x1.8p52), one = vd_set1(1.0);
    vd k[TN_ACTS], r[TN_ACTS], s[TN_ACTS];
    TN_EACH r[j] = vd_max(vd_set1(-746.0), x[j]); /* a NaN stays */
    TN_EACH k[j] = vd_fma(r[j], vd_set1(0x1.71547652b82fep0), shift);
    TN_EACH k[j] = vd_sub(k[j], shift);
    TN_EACH r[j] = vd_fma(k[j], vd_set1(-0x1.62e42fefa3800p-1), r[j]);
    TN_EACH r[j] = vd_fma(k[j], vd_set1(-0x1.ef35793c76730p-45), r[j]);
    TN_EACH s[j] = vd_set1(c[0]);
    for (int i = 1; i < 10; i++)
        TN_EACH s[j] = vd_fma(s[j], r[j], vd_set1(c[i]));
    TN_EACH s[j] = vd_fma(s[j], r[j], one);
    TN_EACH s[j] = vd_fma(s[j], r[j], one);
    TN_EACH s[j] = vd_mul(s[j], vd_pow2(vd_add(k[j], vd_set1(100.0))));
    TN_EACH e[j] = vd_mul(s[j], vd_set1(0x1p-100));
}

/* 1/d of m numbers in [1, 2] within 2 ulp: a cubic (1 - d y = T4(2d - 3) / 577), a step of third and one of second
 * order. */
TN_INLINE void fold_reciprocals(size_t m, const vd *d, vd *y)
{
    const vd one = vd_set1(1.0), zero = vd_set1(0.0);
    vd minus_d[TN_ACTS], e[TN_ACTS];
    TN_EACH minus_d[j] = vd_sub(zero, d[j]);
    TN_EACH y[j] = vd_fma(d[j], vd_set1(-128.0 / 577.0), vd_set1(768.0 / 577.0));
    TN_EACH y[j] = vd_fma(y[j], d[j], vd_set1(-1696.0 / 577.0));
    TN_EACH y[j] = vd_fma(y[j], d[j], vd_set1(1632.0 / 577.0));
    TN_EACH e[j] = vd_fma(minus_d[j], y[j], one);
    TN_EACH e[j] = vd_fma(e[j], e[j], e[j]);
    TN_EACH y[j] = vd_fma(y[j], e[j], y[j]);
    TN_EACH e[j] = vd_fma(minus_d[j], y[j], one);
    TN_EACH y[j] = vd_fma(y[j], e[j], y[j]);
}

/* The smaller of sigmoid(x) and sigmoid(-x), of m numbers: all that act and slope need. */
TN_INLINE void fold_smalls(size_t m, const vd *x, vd *small)
{
    vd e[TN_ACTS], d[TN_ACTS], y[TN_ACTS];
    TN_EACH e[j] = vd_sub(vd_set1(0.0), vd_abs(x[j]));
    fold_exps(m, e, e);
    TN_EACH d[j] = vd_add(vd_set1(1.0), e[j]);
    fold_reciprocals(m, d, y);
    TN_EACH small[j] = vd_mul(e[j], y[j]);
}
#undef TN_EACH

TN_INLINE vd fold_small(vd x)
{
    vd small;
    fold_smalls(1, &x, &small);
    return small;
}

/* act and act' of x, whose fold_small is `small`. */
TN_INLINE void fold_act(tn_act act, vd x, vd small, vd *value, vd *slope)
{
    vd large = vd_sub(vd_set1(1.0), small);
    vd s = vd_select_neg(x, small, large), rest = vd_select_neg(x, large, small);
    *value = act == TN_SILU ? vd_mul(x, s) : s;
    *slope = act == TN_SILU ? vd_fma(*value, rest, s) : vd_mul(s, rest);
}

/* fold_small of n contiguous elements, the last 16 filled up. */
TN_INLINE void fold_small_of(tn_dtype dt, const char *gate, size_t n, double *small)
{
    size_t i = 0;
    for (; i + 16 * TN_ACTS_F32 <= n; i += 16 * TN_ACTS_F32) {
        vd x[TN_ACTS_F32];
        for (size_t j = 0; j < TN_ACTS_F32; j++)
            x[j] = vd_widen(dt, gate, i + 16 * j);
        fold_smalls(TN_ACTS_F32, x, x);
        for (size_t j = 0; j < TN_ACTS_F32; j++)
            vd_store(small + i + 16 * j, x[j]);
    }
    for (; i + 16 <= n; i += 16)
        vd_store(small + i, fold_small(vd_widen(dt, gate, i)));
    if (i < n)
        vd_store(small + i, fold_small(vd_from_vf(vf_load_n(dt, gate, i, n - i))));
}
static TN_NOINLINE void fold_small_row(tn_dtype dt, const char *gate, size_t n, double *small)
{
    if (dt == TN_F32)
        fold_small_of(TN_F32, gate, n, small);
    else if (dt == TN_BF16)
        fold_small_of(TN_BF16, gate, n, small);
    else
        fold_small_of(TN_F16, gate, n, small);
}

/* ---- of 16 elements ---- */

TN_INLINE vd fold_h(bool centred, vd d, vd r, vd hc)
{
    return centred ? vd_fma(d, r, hc) : vd_mul(d, r);
}

/* minus_k: -k. */
TN_INLINE vd fold_dx(bool centred, vd d, vd g, vd r, vd minus_k, vd c)
{
    return vd_fma(g, r, centred ? vd_fma(d, minus_k, c) : vd_mul(d, minus_k));
}

#endif
