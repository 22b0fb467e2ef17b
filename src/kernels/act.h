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

/* The same within 2^-45, for results that are rounded to f32 or less; exp(-708) below -708. A minimax polynomial, by
 * pairs of terms: what it costs is the length of the chain. */
TN_INLINE vd vd_exp_brief(vd x)
{
    static const double c[8] = {0x1.fffffffff13f5p-2,  0x1.5555555589f03p-3,  0x1.5555557deefedp-5,
                                0x1.1111108e2c71ap-7,  0x1.6c163be90213fp-10, 0x1.a01b738487b3fp-13,
                                0x1.a16e32e2c4edep-16, 0x1.7101824654be4p-19};
    const vd shift = vd_set1(0x1.8p52), one = vd_set1(1.0);
    x = vd_max(vd_set1(-708.0), x); /* a NaN stays */
    vd k = vd_sub(vd_fma(x, vd_set1(0x1.71547652b82fep0), shift), shift);
    vd r = vd_fma(k, vd_set1(-0x1.62e42fefa39efp-1), x); /* off by k 2^-55 */
    vd r2 = vd_mul(r, r), r4 = vd_mul(r2, r2);
    vd low = vd_fma(vd_fma(vd_set1(c[3]), r, vd_set1(c[2])), r2, vd_fma(vd_set1(c[1]), r, vd_set1(c[0])));
    vd high = vd_fma(vd_fma(vd_set1(c[7]), r, vd_set1(c[6])), r2, vd_fma(vd_set1(c[5]), r, vd_set1(c[4])));
    vd s = vd_fma(vd_fma(high, r4, low), r2, vd_add(r, one));
    return vd_mul(s, vd_pow2(k));
}

/* 1/d for d in [1, 2], within 2^-45: f32 division and a Newton step, for division in f64 is slow. */
TN_INLINE vd vd_reciprocal(vd d)
{
    vd y = vd_from_vf(vf_div(vf_set1(1.0f), vd_to_vf(d)));
    return vd_fma(y, vd_fma(vd_sub(vd_set1(0.0), d), y, vd_set1(1.0)), y);
}

/* 1 / (1 + exp(-x)), by exp of the non-positive side so that nothing overflows. */
TN_INLINE vd vd_sigmoid(bool brief, vd x)
{
    vd one = vd_set1(1.0), minus = vd_sub(vd_set1(0.0), vd_abs(x));
    vd e = brief ? vd_exp_brief(minus) : vd_exp_nonpositive(minus);
    vd numerator = vd_select_neg(x, e, one), d = vd_add(one, e);
    return brief ? vd_mul(numerator, vd_reciprocal(d)) : vd_div(numerator, d);
}

TN_INLINE vd vd_act(tn_act act, bool brief, vd x)
{
    vd s = vd_sigmoid(brief, x);
    return act == TN_SILU ? vd_mul(x, s) : s;
}

/* Beyond this |x| vf_act would leave f32's normal range. */
#define TN_ACT32_MAX 80.0f

/* 1 + exp(-x) in f32 for |x| <= TN_ACT32_MAX (or NaN), within 2 2^-24 relative: exp by a minimax polynomial (2^-28). */
TN_INLINE vf vf_act_divisor(vf x)
{
    static const float c[5] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239d4p-7f,
                               0x1.6a244cp-10f};
    const vf shift = vf_set1(0x1.8p23f), one = vf_set1(1.0f);
    vf t = vf_fma(x, vf_set1(-0x1.715476p0f), shift), k = vf_sub(t, shift);
    /* r = -x - k ln 2; ln 2 = hi + lo, hi with 9 trailing zeros: k * hi is exact */
    vf r = vf_sub(vf_mul(k, vf_set1(-0x1.62e4p-1f)), x);
    r = vf_fma(k, vf_set1(-0x1.7f7d1cp-20f), r);
    vf r2 = vf_mul(r, r);
    vf low = vf_fma(vf_set1(c[1]), r, vf_set1(c[0]));
    vf high = vf_fma(vf_set1(c[4]), r2, vf_fma(vf_set1(c[3]), r, vf_set1(c[2])));
    vf s = vf_add(vf_fma(vf_fma(high, r2, low), r2, r), one);
    return vf_add(one, vf_scale2(s, t));
}

/* act in f32 for such x, within 3 2^-24 relative. */
TN_INLINE vf vf_act(tn_act act, vf x)
{
    return vf_div(act == TN_SILU ? x : vf_set1(1.0f), vf_act_divisor(x));
}

/* x act(gate), likewise. `exact`: x gate is, as it is of two f16; the error then is that of act alone. */
TN_INLINE vf vf_gated(tn_act act, bool exact, vf x, vf gate)
{
    if (!exact)
        return vf_mul(x, vf_act(act, gate));
    return vf_div(act == TN_SILU ? vf_mul(x, gate) : x, vf_act_divisor(gate));
}

#endif
