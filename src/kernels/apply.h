/* apply.h - the apply step on 16 elements: y = w' * (s - m) * r + b with s, w, b as f32 values.
 *
 * All arguments but vectors and `st` are constants in the fused kernels. */
#ifndef TN_APPLY_H
#define TN_APPLY_H

#include "kernels/stats.h"

struct apply {
    double mh, ml, r;
    float mh32, ml32, rh32, rl32;
};

/* Outside of this range of 1/sqrt, f32 products could leave the normal range: such groups take TN_A64. */
#define TN_R32_MIN 0x1p-70
#define TN_R32_MAX 0x1p100
/* Below this the two-part product x*r would lose its low part: such blocks take TN_A64. */
#define TN_H32_TINY 0x1p-100f

TN_INLINE bool apply_needs_f64(bool centred, const struct tn_stat *st)
{
    /* centred: x - mean must not overflow; sigma <= 1/r bounds it. NaN and 0 fail both tests. */
    double lo = centred ? 0x1p-60 : TN_R32_MIN;
    return !(st->rh >= lo && st->rh <= TN_R32_MAX);
}

TN_INLINE struct apply apply_setup(const struct tn_stat *st)
{
    struct apply a;
    a.mh = st->mh;
    a.ml = st->ml;
    a.r = st->rh;
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

TN_INLINE vf apply_f64(bool centred, tn_dtype round_h, double offset, bool has_w, bool has_b, vf x, vf w,
                       vf b, const struct apply *a)
{
    vd t = vd_from_vf(x);
    if (centred)
        t = vd_sub(vd_sub(t, vd_set1(a->mh)), vd_set1(a->ml));
    t = vd_mul(t, vd_set1(a->r));
    if (round_h != TN_NONE)
        t = vd_from_vf(round_to(round_h, vd_to_vf(t)));
    if (has_w) {
        vd wide = vd_from_vf(w);
        if (offset != 0.0)
            wide = vd_add(wide, vd_set1(offset));
        t = vd_mul(t, wide);
    }
    if (has_b)
        t = vd_add(t, vd_from_vf(b));
    return vd_to_vf(t);
}

/* RMSNorm with r = rh + rl: t + e = x*r to 2^-48 relative, e the part that f32 drops. */
TN_INLINE vf apply_two_part(tn_dtype round_h, bool has_w, vf x, vf w, const struct apply *a)
{
    vf rh = vf_set1(a->rh32), t = vf_mul(x, rh);
    if (TN_UNLIKELY(vf_any_tiny(t, TN_H32_TINY)))
        return apply_f64(false, round_h, 0.0, has_w, false, x, w, w, a);
    vf e = vf_fma(x, vf_set1(a->rl32), vf_fms(x, rh, t));
    if (!has_w)
        return vf_add(t, e);
    if (round_h == TN_F32)
        return vf_mul(vf_add(t, e), w);
    return vf_fma(t, w, vf_mul(e, w));
}

TN_INLINE vf apply_f32(bool centred, tn_dtype round_h, double offset, bool has_w, bool has_b,
                       bool may_be_tiny, vf x, vf w, vf b, const struct apply *a)
{
    vf t = x;
    if (centred)
        t = vf_sub(vf_sub(t, vf_set1(a->mh32)), vf_set1(a->ml32));
    t = vf_mul(t, vf_set1(a->rh32));
    if (may_be_tiny && TN_UNLIKELY(vf_any_tiny(t, TN_H32_TINY)))
        return apply_f64(centred, round_h, offset, has_w, has_b, x, w, b, a);
    t = round_to(round_h, t);
    if (!has_w)
        return has_b ? vf_add(t, b) : t;
    if (offset != 0.0)
        w = vf_add(w, vf_set1((float)offset));
    return has_b ? vf_fma(t, w, b) : vf_mul(t, w);
}

TN_INLINE vf apply_block(enum tn_algo algo, bool centred, tn_dtype round_h, double offset, bool has_w,
                         bool has_b, bool may_be_tiny, vf x, vf w, vf b, const struct apply *a)
{
    if (algo == TN_A2P)
        return apply_two_part(round_h, has_w, x, w, a);
    if (algo == TN_A32)
        return apply_f32(centred, round_h, offset, has_w, has_b, may_be_tiny, x, w, b, a);
    return apply_f64(centred, round_h, offset, has_w, has_b, x, w, b, a);
}

#endif
