/* vec_neon.h - the vocabulary (vec_contract.md) on AArch64 NEON: vf is four registers, vd eight. */
#ifndef TN_VEC_H
#define TN_VEC_H

#define TN_VEC_GROUP 1 /* blocks of 16 that kernels work on at once: what the registers hold */

#include <arm_neon.h>

#include "base/half.h"
#include "truenorm.h"

typedef struct vf {
    float32x4_t v[4];
} vf;
typedef struct vd {
    float64x2_t v[8];
} vd;

/* One op on each register of a vf or vd; EXPR sees the register number k. Not a loop: gcc would keep the registers in
 * memory until it unrolls it, and take minutes. */
#define TN_ONE(number, EXPR)                                                                                 \
    {                                                                                                        \
        enum { k = number };                                                                                 \
        r.v[k] = (EXPR);                                                                                     \
    }
/* clang-format off */
#define TN_VF(EXPR)                                                                                          \
    vf r;                                                                                                    \
    TN_ONE(0, EXPR) TN_ONE(1, EXPR) TN_ONE(2, EXPR) TN_ONE(3, EXPR)                                          \
    return r
#define TN_VD(EXPR)                                                                                          \
    vd r;                                                                                                    \
    TN_ONE(0, EXPR) TN_ONE(1, EXPR) TN_ONE(2, EXPR) TN_ONE(3, EXPR)                                          \
    TN_ONE(4, EXPR) TN_ONE(5, EXPR) TN_ONE(6, EXPR) TN_ONE(7, EXPR)                                          \
    return r
/* clang-format on */

TN_INLINE vf vf_set1(float a) { TN_VF(vdupq_n_f32(a)); }
TN_INLINE vf vf_add(vf a, vf b) { TN_VF(vaddq_f32(a.v[k], b.v[k])); }
TN_INLINE vf vf_sub(vf a, vf b) { TN_VF(vsubq_f32(a.v[k], b.v[k])); }
TN_INLINE vf vf_mul(vf a, vf b) { TN_VF(vmulq_f32(a.v[k], b.v[k])); }
TN_INLINE vf vf_div(vf a, vf b) { TN_VF(vdivq_f32(a.v[k], b.v[k])); }
TN_INLINE vf vf_fma(vf a, vf b, vf c) { TN_VF(vfmaq_f32(c.v[k], a.v[k], b.v[k])); }

TN_INLINE vf vf_fms(vf a, vf b, vf c) { TN_VF(vfmaq_f32(vnegq_f32(c.v[k]), a.v[k], b.v[k])); }

TN_INLINE vf vf_scale2(vf a, vf b)
{
    TN_VF(vreinterpretq_f32_u32(
        vaddq_u32(vreinterpretq_u32_f32(a.v[k]), vshlq_n_u32(vreinterpretq_u32_f32(b.v[k]), 23))));
}

/* The bits less one: 0 is large. */
typedef struct vt {
    uint32x4_t least;
} vt;
TN_INLINE vt vt_none(void) { return (vt){vdupq_n_u32(0xffffffffu)}; }
TN_INLINE vt vt_tiny(vt t, vf a, float limit)
{
    (void)limit;
    for (int k = 0; k < 4; k++)
        t.least =
            vminq_u32(t.least, vsubq_u32(vshlq_n_u32(vreinterpretq_u32_f32(a.v[k]), 1), vdupq_n_u32(1)));
    return t;
}
TN_INLINE int vt_any(vt t, float limit) { return vminvq_u32(t.least) < (tn_f32_bits(limit) << 1) - 1; }

TN_INLINE vf vf_abs(vf a) { TN_VF(vabsq_f32(a.v[k])); }
TN_INLINE vf vf_min(vf a, vf m) { TN_VF(vbslq_f32(vcltq_f32(a.v[k], m.v[k]), a.v[k], m.v[k])); }
TN_INLINE int vf_any_less(vf a, float limit)
{
    uint32x4_t any = vdupq_n_u32(0);
    for (int k = 0; k < 4; k++)
        any = vorrq_u32(any, vcltq_f32(a.v[k], vdupq_n_f32(limit)));
    return vmaxvq_u32(any) != 0;
}

TN_INLINE float32x4_t vf_widen(tn_dtype dt, uint16x4_t h)
{
    if (dt == TN_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(h));
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}
TN_INLINE uint16x4_t vf_narrow(tn_dtype dt, float32x4_t v)
{
    if (dt == TN_F16)
        return vreinterpret_u16_f16(vcvt_f16_f32(v));
    uint32x4_t u = vreinterpretq_u32_f32(v);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t r = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), r, quiet), 16);
}

TN_INLINE vf vf_load(tn_dtype dt, const void *p, size_t i)
{
    if (dt == TN_F32) {
        const uint8_t *b = (const uint8_t *)p + i * 4;
        TN_VF(vreinterpretq_f32_u8(vld1q_u8(b + 16 * k)));
    }
    const uint8_t *b = (const uint8_t *)p + i * 2;
    TN_VF(vf_widen(dt, vreinterpret_u16_u8(vld1_u8(b + 8 * k))));
}
TN_INLINE void vf_store_quarter(tn_dtype dt, uint8_t *b, float32x4_t v)
{
    if (dt == TN_F32)
        vst1q_u8(b, vreinterpretq_u8_f32(v));
    else
        vst1_u8(b, vreinterpret_u8_u16(vf_narrow(dt, v)));
}
TN_INLINE void vf_store(tn_dtype dt, void *p, size_t i, vf v)
{
    const size_t size = dt == TN_F32 ? 4 : 2;
    uint8_t *b = (uint8_t *)p + i * size;
    vf_store_quarter(dt, b, v.v[0]);
    vf_store_quarter(dt, b + 4 * size, v.v[1]);
    vf_store_quarter(dt, b + 8 * size, v.v[2]);
    vf_store_quarter(dt, b + 12 * size, v.v[3]);
}
TN_INLINE void vf_put(bool past, tn_dtype dt, void *p, size_t i, const vf *v, size_t m)
{
    (void)past;
    for (size_t j = 0; j < m; j++)
        vf_store(dt, p, i + 16 * j, v[j]);
}
TN_INLINE void vf_stream_end(void) {}
TN_INLINE vf vf_load_n(tn_dtype dt, const void *p, size_t i, size_t n)
{
    size_t size = dt == TN_F32 ? 4 : 2;
    char t[64] = {0};
    memcpy(t, (const char *)p + i * size, n * size);
    return vf_load(dt, t, 0);
}
TN_INLINE void vf_store_n(tn_dtype dt, void *p, size_t i, vf v, size_t n)
{
    size_t size = dt == TN_F32 ? 4 : 2;
    char t[64];
    vf_store(dt, t, 0, v);
    memcpy((char *)p + i * size, t, n * size);
}
TN_INLINE vf vf_round(tn_dtype dt, vf a)
{
    if (dt == TN_F32)
        return a;
    TN_VF(vf_widen(dt, vf_narrow(dt, a.v[k])));
}

TN_INLINE vd vd_set1(double a) { TN_VD(vdupq_n_f64(a)); }
TN_INLINE vd vd_add(vd a, vd b) { TN_VD(vaddq_f64(a.v[k], b.v[k])); }
TN_INLINE vd vd_sub(vd a, vd b) { TN_VD(vsubq_f64(a.v[k], b.v[k])); }
TN_INLINE vd vd_mul(vd a, vd b) { TN_VD(vmulq_f64(a.v[k], b.v[k])); }
TN_INLINE vd vd_div(vd a, vd b) { TN_VD(vdivq_f64(a.v[k], b.v[k])); }
TN_INLINE vd vd_sqrt(vd a) { TN_VD(vsqrtq_f64(a.v[k])); }
TN_INLINE vd vd_fma(vd a, vd b, vd c) { TN_VD(vfmaq_f64(c.v[k], a.v[k], b.v[k])); }
TN_INLINE vd vd_plus(vd a, vd b) { return vd_add(a, b); }
TN_INLINE vd vd_abs(vd a) { TN_VD(vabsq_f64(a.v[k])); }
TN_INLINE vd vd_max(vd a, vd b) { TN_VD(vbslq_f64(vcgtq_f64(a.v[k], b.v[k]), a.v[k], b.v[k])); }
TN_INLINE vd vd_select_neg(vd x, vd a, vd b) { TN_VD(vbslq_f64(vcltzq_f64(x.v[k]), a.v[k], b.v[k])); }

TN_INLINE vd vd_first(vd a, size_t n)
{
    static const uint64_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint64x2_t count = vdupq_n_u64(n);
    TN_VD(vreinterpretq_f64_u64(
        vandq_u64(vreinterpretq_u64_f64(a.v[k]), vcltq_u64(vld1q_u64(lanes + 2 * k), count))));
}

TN_INLINE vd vd_from_vf(vf a)
{
    TN_VD(k & 1 ? vcvt_high_f64_f32(a.v[k / 2]) : vcvt_f64_f32(vget_low_f32(a.v[k / 2])));
}
TN_INLINE vd vd_widen(tn_dtype dt, const void *p, size_t i) { return vd_from_vf(vf_load(dt, p, i)); }
TN_INLINE vf vd_to_vf(vd a) { TN_VF(vcvt_high_f32_f64(vcvt_f32_f64(a.v[2 * k]), a.v[2 * k + 1])); }

TN_INLINE vd vd_pow2(vd a)
{
    float64x2_t magic = vdupq_n_f64(0x1.8p52 + 1023.0);
    TN_VD(vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(vaddq_f64(a.v[k], magic)), 52)));
}

TN_INLINE vd vd_load(const double *p) { TN_VD(vld1q_f64(p + 2 * k)); }
TN_INLINE void vd_store(double *p, vd a)
{
    vst1q_f64(p, a.v[0]), vst1q_f64(p + 2, a.v[1]), vst1q_f64(p + 4, a.v[2]), vst1q_f64(p + 6, a.v[3]);
    vst1q_f64(p + 8, a.v[4]), vst1q_f64(p + 10, a.v[5]), vst1q_f64(p + 12, a.v[6]), vst1q_f64(p + 14, a.v[7]);
}

TN_INLINE float64x2_t vd_sum_pair(vd a)
{
    float64x2_t s0 = vaddq_f64(a.v[0], a.v[4]), s1 = vaddq_f64(a.v[1], a.v[5]);
    float64x2_t s2 = vaddq_f64(a.v[2], a.v[6]), s3 = vaddq_f64(a.v[3], a.v[7]);
    return vaddq_f64(vaddq_f64(s0, s2), vaddq_f64(s1, s3));
}
TN_INLINE double vd_sum(vd a)
{
    float64x2_t s = vd_sum_pair(a);
    return vgetq_lane_f64(s, 0) + vgetq_lane_f64(s, 1);
}
TN_INLINE vd vd_sum_rows(const vd rows[16])
{
    TN_VD(vpaddq_f64(vd_sum_pair(rows[2 * k]), vd_sum_pair(rows[2 * k + 1])));
}

TN_INLINE int32x2_t vd_round_i8(float64x2_t x)
{
    uint64x2_t number = vceqq_f64(x, x);
    x = vmaxq_f64(vminq_f64(x, vdupq_n_f64(127.0)), vdupq_n_f64(-128.0));
    return vmovn_s64(vandq_s64(vcvtnq_s64_f64(x), vreinterpretq_s64_u64(number)));
}
TN_INLINE void vd_store_i8(void *p, vd a)
{
    for (int k = 0; k < 2; k++) {
        int32x4_t lo = vcombine_s32(vd_round_i8(a.v[4 * k]), vd_round_i8(a.v[4 * k + 1]));
        int32x4_t hi = vcombine_s32(vd_round_i8(a.v[4 * k + 2]), vd_round_i8(a.v[4 * k + 3]));
        vst1_s8((int8_t *)p + 8 * k, vmovn_s16(vcombine_s16(vmovn_s32(lo), vmovn_s32(hi))));
    }
}

TN_INLINE double vd_hmax(vd a)
{
    for (int half = 4; half; half /= 2)
        for (int k = 0; k < half; k++)
            a.v[k] = vmaxq_f64(a.v[k], a.v[k + half]);
    return vmaxvq_f64(a.v[0]);
}

#undef TN_VF
#undef TN_VD
#endif
