/* vec_scalar.h - the vocabulary in plain C: the definition (vec_contract.md). */
#ifndef TN_VEC_H
#define TN_VEC_H

#define TN_VEC_GROUP 1 /* blocks of 16 that kernels work on at once: what the registers hold */

#include <math.h>

#include "base/half.h"
#include "truenorm.h"

typedef struct vf {
    float v[16];
} vf;
typedef struct vd {
    double v[16];
} vd;

/* One loop per op; EXPR sees the lane number j. */
#define TN_VF(EXPR)                                                                                          \
    vf r;                                                                                                    \
    for (int j = 0; j < 16; j++)                                                                             \
        r.v[j] = (EXPR);                                                                                     \
    return r
#define TN_VD(EXPR)                                                                                          \
    vd r;                                                                                                    \
    for (int j = 0; j < 16; j++)                                                                             \
        r.v[j] = (EXPR);                                                                                     \
    return r

TN_INLINE vf vf_set1(float a) { TN_VF(a); }
TN_INLINE vf vf_add(vf a, vf b) { TN_VF(a.v[j] + b.v[j]); }
TN_INLINE vf vf_sub(vf a, vf b) { TN_VF(a.v[j] - b.v[j]); }
TN_INLINE vf vf_mul(vf a, vf b) { TN_VF(a.v[j] * b.v[j]); }
TN_INLINE vf vf_div(vf a, vf b) { TN_VF(a.v[j] / b.v[j]); }
TN_INLINE vf vf_fma(vf a, vf b, vf c) { TN_VF(fmaf(a.v[j], b.v[j], c.v[j])); }

TN_INLINE vf vf_fms(vf a, vf b, vf c) { TN_VF(fmaf(a.v[j], b.v[j], -c.v[j])); }

TN_INLINE vf vf_scale2(vf a, vf k) { TN_VF(tn_bits_f32(tn_f32_bits(a.v[j]) + (tn_f32_bits(k.v[j]) << 23))); }

typedef int vt;
TN_INLINE vt vt_none(void) { return 0; }
TN_INLINE vt vt_tiny(vt t, vf a, float limit)
{
    for (int j = 0; j < 16; j++)
        t |= fabsf(a.v[j]) < limit && a.v[j] != 0.0f;
    return t;
}
TN_INLINE int vt_any(vt t, float limit)
{
    (void)limit;
    return t;
}

TN_INLINE vf vf_abs(vf a) { TN_VF(fabsf(a.v[j])); }
TN_INLINE vf vf_min(vf a, vf m) { TN_VF(a.v[j] < m.v[j] ? a.v[j] : m.v[j]); }
TN_INLINE int vf_any_less(vf a, float limit)
{
    int any = 0;
    for (int j = 0; j < 16; j++)
        any |= a.v[j] < limit;
    return any;
}

TN_INLINE vf vf_load_n(tn_dtype dt, const void *p, size_t i, size_t n)
{
    vf r = {{0}};
    if (dt == TN_F32) {
        memcpy(r.v, (const char *)p + i * 4, n * 4);
        return r;
    }
    uint16_t h[16] = {0};
    memcpy(h, (const char *)p + i * 2, n * 2);
    for (size_t j = 0; j < n; j++)
        r.v[j] = dt == TN_BF16 ? tn_bf16_to_f32(h[j]) : tn_f16_to_f32(h[j]);
    return r;
}
TN_INLINE vf vf_load(tn_dtype dt, const void *p, size_t i) { return vf_load_n(dt, p, i, 16); }

TN_INLINE void vf_store_n(tn_dtype dt, void *p, size_t i, vf v, size_t n)
{
    if (dt == TN_F32) {
        memcpy((char *)p + i * 4, v.v, n * 4);
        return;
    }
    uint16_t h[16];
    for (int j = 0; j < 16; j++)
        h[j] = dt == TN_BF16 ? tn_f32_to_bf16(v.v[j]) : tn_f32_to_f16(v.v[j]);
    memcpy((char *)p + i * 2, h, n * 2);
}
TN_INLINE void vf_store(tn_dtype dt, void *p, size_t i, vf v) { vf_store_n(dt, p, i, v, 16); }

TN_INLINE void vf_put(bool past, tn_dtype dt, void *p, size_t i, const vf *v, size_t m)
{
    (void)past;
    for (size_t j = 0; j < m; j++)
        vf_store(dt, p, i + 16 * j, v[j]);
}
TN_INLINE void vf_stream_end(void) {}

TN_INLINE vf vf_round(tn_dtype dt, vf a)
{
    if (dt == TN_BF16) {
        TN_VF(tn_bf16_to_f32(tn_f32_to_bf16(a.v[j])));
    }
    if (dt == TN_F16) {
        TN_VF(tn_f16_to_f32(tn_f32_to_f16(a.v[j])));
    }
    return a;
}

TN_INLINE vd vd_set1(double a) { TN_VD(a); }
TN_INLINE vd vd_add(vd a, vd b) { TN_VD(a.v[j] + b.v[j]); }
TN_INLINE vd vd_sub(vd a, vd b) { TN_VD(a.v[j] - b.v[j]); }
TN_INLINE vd vd_mul(vd a, vd b) { TN_VD(a.v[j] * b.v[j]); }
TN_INLINE vd vd_div(vd a, vd b) { TN_VD(a.v[j] / b.v[j]); }
TN_INLINE vd vd_sqrt(vd a) { TN_VD(sqrt(a.v[j])); }
TN_INLINE vd vd_fma(vd a, vd b, vd c) { TN_VD(fma(a.v[j], b.v[j], c.v[j])); }
TN_INLINE vd vd_plus(vd a, vd b) { return vd_add(a, b); }
TN_INLINE vd vd_abs(vd a) { TN_VD(fabs(a.v[j])); }
TN_INLINE vd vd_max(vd a, vd b) { TN_VD(a.v[j] > b.v[j] ? a.v[j] : b.v[j]); }
TN_INLINE vd vd_select_neg(vd x, vd a, vd b) { TN_VD(x.v[j] < 0.0 ? a.v[j] : b.v[j]); }
TN_INLINE vd vd_first(vd a, size_t n) { TN_VD((size_t)j < n ? a.v[j] : 0.0); }
TN_INLINE vd vd_from_vf(vf a) { TN_VD((double)a.v[j]); }
TN_INLINE vd vd_widen(tn_dtype dt, const void *p, size_t i) { return vd_from_vf(vf_load(dt, p, i)); }
TN_INLINE vf vd_to_vf(vd a) { TN_VF((float)a.v[j]); }

TN_INLINE vd vd_pow2(vd k)
{
    vd r;
    for (int j = 0; j < 16; j++) {
        uint64_t u = tn_f64_bits(k.v[j] + (0x1.8p52 + 1023.0)) << 52;
        memcpy(&r.v[j], &u, 8);
    }
    return r;
}

TN_INLINE vd vd_load(const double *p)
{
    vd r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
TN_INLINE void vd_store(double *p, vd a) { memcpy(p, a.v, sizeof a.v); }

TN_INLINE double vd_sum(vd a)
{
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++)
            a.v[j] += a.v[j + half];
    return a.v[0];
}

TN_INLINE vd vd_sum_rows(const vd rows[16]) { TN_VD(vd_sum(rows[j])); }

TN_INLINE void vd_store_i8(void *p, vd a)
{
    int8_t q[16];
    for (int j = 0; j < 16; j++)
        q[j] = tn_f64_to_i8(a.v[j]);
    memcpy(p, q, 16);
}

TN_INLINE double vd_hmax(vd a)
{
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++)
            a.v[j] = a.v[j] > a.v[j + half] ? a.v[j] : a.v[j + half];
    return a.v[0];
}

#undef TN_VF
#undef TN_VD
#endif
