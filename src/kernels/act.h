/* act.h - sigmoid and silu in f64, the same bits on every machine: our own exp, by IEEE operations only. */
#ifndef TN_ACT_H
#define TN_ACT_H

#include "kernels/kernels.h"

/* exp(x) for x <= 0 (or NaN). Cody-Waite reduction x = k ln 2 + r with |r| <= 0.347, then the Taylor sum to r^13/13!:
 * within 1.5 ulp, 0 below -745.2. */
TN_INLINE vd vd_exp_nonpositive(vd x)
{
    static const double inverse_factorial[12] = {
        0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22,
        0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10,
        0x1.1111111111111p-7,  0x1.5555555555555p-5,  0x1.5555555555555p-3,  0.5};
    const vd shift = vd_set1(0x1.8p52), one = vd_set1(1.0);
    x = vd_max(vd_set1(-746.0), x); /* a NaN stays */
    vd k = vd_sub(vd_fma(x, vd_set1(0x1.71547652b82fep0), shift), shift);
    /* ln 2 = hi + lo, hi with 11 trailing zeros: k * hi is exact */
    vd r = vd_fma(k, vd_set1(-0x1.62e42fefa3800p-1), x);
    r = vd_fma(k, vd_set1(-0x1.ef35793c76730p-45), r);
    vd s = vd_set1(inverse_factorial[0]);
    for (int i = 1; i < 12; i++)
        s = vd_fma(s, r, vd_set1(inverse_factorial[i]));
    s = vd_fma(vd_fma(s, r, one), r, one);
    /* 2^k in two factors, so that k down to -1076 stays in range */
    vd half = vd_sub(vd_fma(k, vd_set1(0.5), shift), shift);
    return vd_mul(vd_mul(s, vd_pow2(half)), vd_pow2(vd_sub(k, half)));
}

/* ---- in 2^-44, for results that are rounded to f32 or less ---- */

/* Several blocks at once, step by step: the chains of operations are long, and the processor does not look far ahead. */
#define TN_ACTS 4
#define TN_ACTS_F32 (TN_VEC_GROUP == 4 ? 4 : 1) /* blocks at once that registers are enough for */
#define TN_ACTS_F64 (TN_VEC_GROUP == 4 ? 2 : 1)
#define TN_EACH for (size_t j = 0; j < m; j++)

/* exp(x) of m numbers; exp(-708) below -708. A minimax polynomial, by pairs of terms. */
TN_INLINE void vd_exps(size_t m, const vd *x, vd *e)
{
    static const double c[8] = {0x1.fffffffff13f5p-2,  0x1.5555555589f03p-3,  0x1.5555557deefedp-5,
                                0x1.1111108e2c71ap-7,  0x1.6c163be90213fp-10, 0x1.a01b738487b3fp-13,
                                0x1.a16e32e2c4edep-16, 0x1.7101824654be4p-19};
    const vd shift = vd_set1(0x1.8p52), one = vd_set1(1.0);
    vd k[TN_ACTS], r[TN_ACTS], r2[TN_ACTS], low[TN_ACTS], high[TN_ACTS];
    TN_EACH r[j] = vd_max(vd_set1(-708.0), x[j]); /* a NaN stays */
    TN_EACH k[j] = vd_fma(r[j], vd_set1(0x1.71547652b82fep0), shift);
    TN_EACH k[j] = vd_sub(k[j], shift);
    TN_EACH r[j] = vd_fma(k[j], vd_set1(-0x1.62e42fefa39efp-1), r[j]); /* off by k 2^-55 */
    TN_EACH r2[j] = vd_mul(r[j], r[j]);
    TN_EACH low[j] = vd_fma(vd_set1(c[1]), r[j], vd_set1(c[0]));
    TN_EACH high[j] = vd_fma(vd_set1(c[5]), r[j], vd_set1(c[4]));
    TN_EACH low[j] = vd_fma(vd_fma(vd_set1(c[3]), r[j], vd_set1(c[2])), r2[j], low[j]);
    TN_EACH high[j] = vd_fma(vd_fma(vd_set1(c[7]), r[j], vd_set1(c[6])), r2[j], high[j]);
    TN_EACH low[j] = vd_fma(high[j], vd_mul(r2[j], r2[j]), low[j]);
    TN_EACH low[j] = vd_fma(low[j], r2[j], vd_add(r[j], one));
    TN_EACH e[j] = vd_mul(low[j], vd_pow2(k[j]));
}

/* 1 / (1 + exp(-x)) is made by exp of the non-positive side, so that nothing overflows. */
TN_INLINE void vd_sigmoids(size_t m, const vd *x, vd *s)
{
    const vd one = vd_set1(1.0), zero = vd_set1(0.0);
    vd e[TN_ACTS], d[TN_ACTS], y[TN_ACTS];
    vf y32[TN_ACTS];
    TN_EACH e[j] = vd_sub(zero, vd_abs(x[j]));
    vd_exps(m, e, e);
    TN_EACH d[j] = vd_add(one, e[j]);
    /* 1/d by f32 division and a Newton step, for division in f64 is slow */
    TN_EACH y32[j] = vf_div(vf_set1(1.0f), vd_to_vf(d[j]));
    TN_EACH y[j] = vd_from_vf(y32[j]);
    TN_EACH d[j] = vd_fma(vd_sub(zero, d[j]), y[j], one);
    TN_EACH y[j] = vd_fma(d[j], y[j], y[j]);
    TN_EACH s[j] = vd_mul(vd_select_neg(x[j], e[j], one), y[j]);
}

/* act of m numbers. */
TN_INLINE void vd_acts(tn_act act, size_t m, const vd *x, vd *y)
{
    vd s[TN_ACTS];
    vd_sigmoids(m, x, s);
    TN_EACH y[j] = act == TN_SILU ? vd_mul(x[j], s[j]) : s[j];
}

/* ---- in full ---- */

TN_INLINE vd vd_sigmoid(vd x)
{
    vd one = vd_set1(1.0), e = vd_exp_nonpositive(vd_sub(vd_set1(0.0), vd_abs(x)));
    return vd_div(vd_select_neg(x, e, one), vd_add(one, e));
}

TN_INLINE vd vd_act(tn_act act, bool brief, vd x)
{
    vd s;
    if (brief)
        vd_sigmoids(1, &x, &s);
    else
        s = vd_sigmoid(x);
    return act == TN_SILU ? vd_mul(x, s) : s;
}

/* ---- in f32 ---- */

/* Beyond this |x| vf_act would leave f32's normal range. */
#define TN_ACT32_MAX 80.0f

/* 1 + exp(-x) of m numbers |x| <= TN_ACT32_MAX (or NaN), within 2 2^-24: exp by a minimax polynomial (2^-28). */
TN_INLINE void vf_act_divisors(size_t m, const vf *x, vf *d)
{
    static const float c[5] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239d4p-7f,
                               0x1.6a244cp-10f};
    const vf shift = vf_set1(0x1.8p23f), one = vf_set1(1.0f);
    vf t[TN_ACTS], k[TN_ACTS], r[TN_ACTS], r2[TN_ACTS], low[TN_ACTS], high[TN_ACTS];
    TN_EACH t[j] = vf_fma(x[j], vf_set1(-0x1.715476p0f), shift);
    TN_EACH k[j] = vf_sub(t[j], shift);
    /* r = -x - k ln 2; ln 2 = hi + lo, hi with 9 trailing zeros: k * hi is exact */
    TN_EACH r[j] = vf_sub(vf_mul(k[j], vf_set1(-0x1.62e4p-1f)), x[j]);
    TN_EACH r[j] = vf_fma(k[j], vf_set1(-0x1.7f7d1cp-20f), r[j]);
    TN_EACH r2[j] = vf_mul(r[j], r[j]);
    TN_EACH low[j] = vf_fma(vf_set1(c[1]), r[j], vf_set1(c[0]));
    TN_EACH high[j] = vf_fma(vf_set1(c[4]), r2[j], vf_fma(vf_set1(c[3]), r[j], vf_set1(c[2])));
    TN_EACH low[j] = vf_fma(high[j], r2[j], low[j]);
    TN_EACH low[j] = vf_add(vf_fma(low[j], r2[j], r[j]), one);
    TN_EACH d[j] = vf_add(one, vf_scale2(low[j], t[j]));
}
#undef TN_EACH

/* act in f32 for such x, within 3 2^-24 relative. */
TN_INLINE vf vf_act(tn_act act, vf x)
{
    vf d;
    vf_act_divisors(1, &x, &d);
    return vf_div(act == TN_SILU ? x : vf_set1(1.0f), d);
}

/* x act(gate) of m numbers, likewise. `exact`: x gate is, as it is of two f16; the error then is that of act alone. */
TN_INLINE void vf_gate(tn_act act, bool exact, size_t m, const vf *x, const vf *gate, vf *s)
{
    vf d[TN_ACTS];
    vf_act_divisors(m, gate, d);
    for (size_t j = 0; j < m; j++) {
        if (exact)
            s[j] = vf_div(act == TN_SILU ? vf_mul(x[j], gate[j]) : x[j], d[j]);
        else
            s[j] = vf_mul(x[j], vf_div(act == TN_SILU ? gate[j] : vf_set1(1.0f), d[j]));
    }
}

TN_INLINE vf vf_gated(tn_act act, bool exact, vf x, vf gate)
{
    vf s;
    vf_gate(act, exact, 1, &x, &gate, &s);
    return s;
}

#endif
