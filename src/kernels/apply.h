/* apply.h - the apply step on 16 elements: y = w' * (s - m) * r + b with s, w, b as f32 values.
 *
 * `struct variant` says what a kernel does. In a fused instance all of it is constant. */
#ifndef TN_APPLY_H
#define TN_APPLY_H

#include "kernels/stats.h"

struct variant {
    tn_dtype x, w, y; /* dtypes in memory; w: of weight and bias */
    bool centred;
    enum tn_algo algo;
    tn_dtype round_h;
    double offset;
    bool has_w, has_b;
    bool fold;        /* t = x * r + c instead of ((x - mh) - ml) * r */
    bool may_be_tiny; /* f16 values times r never are */
    bool gated;       /* by the gate after */
    tn_act act;
};

struct apply {
    double mh, ml, r, c;
    float mh32, ml32, rh32, rl32;
};

/* Outside of this range of 1/sqrt, f32 products could leave the normal range: such groups take TN_A64. */
#define TN_R32_MIN 0x1p-70
#define TN_R32_MAX 0x1p100
/* Below this the two-part product x*r would lose its low part: such blocks take TN_A64. */
#define TN_H32_TINY 0x1p-100f

/* Below this f32 arithmetic is not what it should be: the product x*r is subnormal, or the low part of two is. */
TN_INLINE float tiny_limit(enum tn_algo algo)
{
    return algo == TN_A2P ? TN_H32_TINY : 0x1p-126f;
}

/* Beyond this |mean| / sigma the two f32 parts of the mean are too short. */
#define TN_MEAN32_MAX 0x1p10

TN_INLINE bool apply_needs_f64(bool centred, const struct tn_stat *st)
{
    /* centred: x - mean must not overflow; sigma <= 1/r bounds it. NaN and 0 fail both tests. */
    double lo = centred ? 0x1p-60 : TN_R32_MIN;
    if (centred && !(fabs(st->mh) * st->rh <= TN_MEAN32_MAX))
        return true;
    return !(st->rh >= lo && st->rh <= TN_R32_MAX);
}

TN_INLINE struct apply apply_setup(const struct tn_stat *st)
{
    struct apply a;
    a.mh = st->mh;
    a.ml = st->ml;
    a.r = st->rh;
    double c = st->mh * st->rh;
    a.c = -(c + (fma(st->mh, st->rh, -c) + st->ml * st->rh));
    a.mh32 = (float)st->mh;
    a.ml32 = (float)((st->mh - (double)a.mh32) + st->ml);
    a.rh32 = (float)st->rh;
    a.rl32 = (float)(st->rh - (double)a.rh32);
    return a;
}

TN_INLINE vf round_to(tn_dtype dt, vf v)
{
    return dt == TN_BF16 ? vf_round(TN_BF16, v) : dt == TN_F16 ? vf_round(TN_F16, v) : v;
}

/* y in f64 of s, w, b as f64. */
TN_INLINE vd apply_wide(const struct variant k, vd t, vd w, vd b, const struct apply *a)
{
    if (k.centred && k.fold)
        t = vd_fma(t, vd_set1(a->r), vd_set1(a->c));
    else if (k.centred)
        t = vd_mul(vd_sub(vd_sub(t, vd_set1(a->mh)), vd_set1(a->ml)), vd_set1(a->r));
    else
        t = vd_mul(t, vd_set1(a->r));
    if (k.round_h != TN_NONE)
        t = vd_from_vf(round_to(k.round_h, vd_to_vf(t)));
    if (k.has_w && k.offset != 0.0)
        w = vd_add(w, vd_set1(k.offset));
    if (k.has_b)
        return k.has_w ? vd_fma(t, w, b) : vd_add(t, b);
    return k.has_w ? vd_mul(t, w) : t;
}

TN_INLINE vf apply_f64(const struct variant k, vf x, vf w, vf b, const struct apply *a)
{
    return vd_to_vf(apply_wide(k, vd_from_vf(x), vd_from_vf(w), vd_from_vf(b), a));
}

/* t = (x - m) * rh in f32, what the range test looks at. */
TN_INLINE vf apply_scaled(const struct variant k, vf x, const struct apply *a)
{
    if (k.centred)
        x = vf_sub(vf_sub(x, vf_set1(a->mh32)), vf_set1(a->ml32));
    return vf_mul(x, vf_set1(a->rh32));
}

/* RMSNorm with r = rh + rl: t + e = x*r to 2^-48 relative, e the part that f32 drops. */
TN_INLINE vf apply_two_part(const struct variant k, vf x, vf t, vf w, const struct apply *a)
{
    vf e = vf_fma(x, vf_set1(a->rl32), vf_fms(x, vf_set1(a->rh32), t));
    if (!k.has_w)
        return vf_add(t, e);
    if (k.round_h == TN_F32)
        return vf_mul(vf_add(t, e), w);
    return vf_fma(t, w, vf_mul(e, w));
}

/* y from x and t, for the two f32 arithmetics. */
TN_INLINE vf apply_f32(const struct variant k, vf x, vf t, vf w, vf b, const struct apply *a)
{
    if (k.algo == TN_A2P)
        return apply_two_part(k, x, t, w, a);
    t = round_to(k.round_h, t);
    if (!k.has_w)
        return k.has_b ? vf_add(t, b) : t;
    if (k.offset != 0.0)
        w = vf_add(w, vf_set1((float)k.offset));
    return k.has_b ? vf_fma(t, w, b) : vf_mul(t, w);
}

/* How far a gate is inside of the range of vf_act: below 0 it is outside. */
TN_INLINE vf gate_margin(vf gate)
{
    return vf_sub(vf_set1(TN_ACT32_MAX), vf_abs(gate));
}

/* The same for s = x * act(gate): below 0 also where f32 may have lost digits of s. */
TN_INLINE vf gated_margin(vf gate, vf s)
{
    return vf_min(vf_sub(vf_abs(s), vf_set1(TN_H32_TINY)), gate_margin(gate));
}

/* Of the first n lanes only. */
TN_INLINE vf last_margin(vf gate, vf s, size_t n)
{
    return vd_to_vf(vd_first(vd_from_vf(gated_margin(gate, s)), n));
}

/* One block, with its range tests. Gates only in TN_A32. */
TN_INLINE vf apply_block(const struct variant k, vf x, vf w, vf b, vf gate, const struct apply *a)
{
    if (k.algo == TN_A64)
        return apply_f64(k, x, w, b, a);
    vf t = apply_scaled(k, x, a);
    const float limit = tiny_limit(k.algo);
    bool tiny = k.may_be_tiny && vt_any(vt_tiny(vt_none(), t, limit), limit);
    if (TN_UNLIKELY(tiny || (k.gated && vf_any_less(gate_margin(gate), 0.0f)))) {
        vd y = apply_wide(k, vd_from_vf(x), vd_from_vf(w), vd_from_vf(b), a);
        return vd_to_vf(k.gated ? vd_mul(y, vd_act(k.act, true, vd_from_vf(gate))) : y);
    }
    vf y = apply_f32(k, x, t, w, b, a);
    return k.gated ? vf_mul(y, vf_act(k.act, gate)) : y;
}

#endif
