/* act.h - sigmoid and silu in f64, the same bits on every machine: our own exp, by additions and multiplications. */
#ifndef TN_ACT_H
#define TN_ACT_H

#include "kernels/kernels.h"

/* exp(x) for x <= 0 (or NaN), within 1.5 ulp; below -745.2 it is 0. Cody-Waite reduction x = k ln 2 + r with
 * |r| <= 0.347, then the Taylor sum to r^13/13! (the next term is below 2^-57). */
TN_INLINE vd vd_exp_nonpositive(vd x)
{
    static const double inverse_factorial[12] = {
        0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22,
        0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10,
        0x1.1111111111111p-7,  0x1.5555555555555p-5,  0x1.5555555555555p-3,  0.5};
    const vd shift = vd_set1(0x1.8p52);
    x = vd_max(vd_set1(-746.0), x); /* a NaN stays */
    vd k = vd_sub(vd_add(vd_mul(x, vd_set1(0x1.71547652b82fep0)), shift), shift);
    /* ln 2 = hi + lo, hi with 11 trailing zeros: k * hi is exact */
    vd r = vd_sub(x, vd_mul(k, vd_set1(0x1.62e42fefa3800p-1)));
    r = vd_sub(r, vd_mul(k, vd_set1(0x1.ef35793c76730p-45)));
    vd s = vd_set1(inverse_factorial[0]);
    for (int i = 1; i < 12; i++)
        s = vd_add(vd_mul(s, r), vd_set1(inverse_factorial[i]));
    s = vd_add(vd_add(vd_mul(vd_mul(s, r), r), r), vd_set1(1.0));
    /* 2^k in two factors, so that k down to -1076 stays in range */
    vd half = vd_sub(vd_add(vd_mul(k, vd_set1(0.5)), shift), shift);
    return vd_mul(vd_mul(s, vd_pow2(half)), vd_pow2(vd_sub(k, half)));
}

/* 1 / (1 + exp(-x)), by exp of the non-positive side so that nothing overflows. */
TN_INLINE vd vd_sigmoid(vd x)
{
    vd one = vd_set1(1.0), e = vd_exp_nonpositive(vd_sub(vd_set1(0.0), vd_abs(x)));
    return vd_div(vd_select_neg(x, e, one), vd_add(one, e));
}

TN_INLINE vd vd_act(tn_act act, vd x)
{
    vd s = vd_sigmoid(x);
    return act == TN_SILU ? vd_mul(x, s) : s;
}

#endif
