/* vec_avx2.h - the vocabulary (vec_contract.md) on AVX2, FMA, F16C: vf is two registers, vd four. */
#ifndef TN_VEC_H
#define TN_VEC_H

#define TN_VEC_GROUP 2 /* blocks of 16 that kernels work on at once: what the registers hold */

#include <immintrin.h>

#include "base/half.h"
#include "truenorm.h"

typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vd {
    __m256d a, b, c, d;
} vd;

TN_INLINE vf vf_make(__m256 a, __m256 b) { return (vf){a, b}; }
TN_INLINE vd vd_make(__m256d a, __m256d b, __m256d c, __m256d d) { return (vd){a, b, c, d}; }

TN_INLINE vf vf_set1(float a) { return vf_make(_mm256_set1_ps(a), _mm256_set1_ps(a)); }
TN_INLINE vf vf_add(vf x, vf y) { return vf_make(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
TN_INLINE vf vf_sub(vf x, vf y) { return vf_make(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
TN_INLINE vf vf_mul(vf x, vf y) { return vf_make(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
TN_INLINE vf vf_div(vf x, vf y) { return vf_make(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
TN_INLINE vf vf_fma(vf x, vf y, vf z)
{
    return vf_make(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}

TN_INLINE vf vf_fms(vf x, vf y, vf z)
{
    return vf_make(_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b));
}

TN_INLINE __m256 vf_scale2_half(__m256 a, __m256 k)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(k), 23)));
}
TN_INLINE vf vf_scale2(vf x, vf k) { return vf_make(vf_scale2_half(x.a, k.a), vf_scale2_half(x.b, k.b)); }

TN_INLINE __m256 vf_abs_half(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
/* The bits less one: 0 is large. */
typedef struct vt {
    __m256i a, b;
} vt;
TN_INLINE vt vt_none(void) { return (vt){_mm256_set1_epi32(-1), _mm256_set1_epi32(-1)}; }
TN_INLINE __m256i vt_tiny_half(__m256i t, __m256 v)
{
    __m256i key = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(v), 1), _mm256_set1_epi32(-1));
    return _mm256_min_epu32(t, key);
}
TN_INLINE vt vt_tiny(vt t, vf v, float limit)
{
    (void)limit;
    return (vt){vt_tiny_half(t.a, v.a), vt_tiny_half(t.b, v.b)};
}
TN_INLINE int vt_any(vt t, float limit)
{
    __m256i least = _mm256_min_epu32(t.a, t.b),
            last = _mm256_set1_epi32((int)((tn_f32_bits(limit) << 1) - 2));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_min_epu32(least, last), least)) != 0;
}

TN_INLINE vf vf_abs(vf x) { return vf_make(vf_abs_half(x.a), vf_abs_half(x.b)); }
TN_INLINE vf vf_min(vf x, vf m) { return vf_make(_mm256_min_ps(x.a, m.a), _mm256_min_ps(x.b, m.b)); }
TN_INLINE int vf_any_less(vf x, float limit)
{
    __m256 l = _mm256_set1_ps(limit);
    return _mm256_movemask_ps(
               _mm256_or_ps(_mm256_cmp_ps(x.a, l, _CMP_LT_OQ), _mm256_cmp_ps(x.b, l, _CMP_LT_OQ))) != 0;
}

TN_INLINE __m256 vf_widen(tn_dtype dt, __m128i h)
{
    if (dt == TN_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
TN_INLINE __m128i vf_narrow(tn_dtype dt, __m256 v)
{
    if (dt == TN_F16)
        return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

TN_INLINE vf vf_load(tn_dtype dt, const void *p, size_t i)
{
    if (dt == TN_F32) {
        const float *f = (const float *)(const void *)((const char *)p + i * 4);
        return vf_make(_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8));
    }
    const __m128i *h = (const __m128i *)(const void *)((const char *)p + i * 2);
    return vf_make(vf_widen(dt, _mm_loadu_si128(h)), vf_widen(dt, _mm_loadu_si128(h + 1)));
}
TN_INLINE void vf_store(tn_dtype dt, void *p, size_t i, vf v)
{
    if (dt == TN_F32) {
        float *f = (float *)(void *)((char *)p + i * 4);
        _mm256_storeu_ps(f, v.a);
        _mm256_storeu_ps(f + 8, v.b);
    } else {
        __m128i *h = (__m128i *)(void *)((char *)p + i * 2);
        _mm_storeu_si128(h, vf_narrow(dt, v.a));
        _mm_storeu_si128(h + 1, vf_narrow(dt, v.b));
    }
}
TN_INLINE void vf_stream(tn_dtype dt, void *p, size_t i, vf v)
{
    if (dt == TN_F32) {
        float *f = (float *)(void *)((char *)p + i * 4);
        _mm256_stream_ps(f, v.a);
        _mm256_stream_ps(f + 8, v.b);
    } else {
        __m128i *h = (__m128i *)(void *)((char *)p + i * 2);
        _mm_stream_si128(h, vf_narrow(dt, v.a));
        _mm_stream_si128(h + 1, vf_narrow(dt, v.b));
    }
}
TN_INLINE void vf_put(bool past, tn_dtype dt, void *p, size_t i, const vf *v, size_t m)
{
    for (size_t j = 0; j < m; j++) {
        if (past)
            vf_stream(dt, p, i + 16 * j, v[j]);
        else
            vf_store(dt, p, i + 16 * j, v[j]);
    }
}
TN_INLINE void vf_stream_end(void) { _mm_sfence(); }
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
TN_INLINE vf vf_round(tn_dtype dt, vf x)
{
    return dt == TN_F32 ? x : vf_make(vf_widen(dt, vf_narrow(dt, x.a)), vf_widen(dt, vf_narrow(dt, x.b)));
}

/* One f64 op on the four registers. */
#define TN_VD(OP) vd_make(OP(x.a, y.a), OP(x.b, y.b), OP(x.c, y.c), OP(x.d, y.d))
TN_INLINE vd vd_set1(double s)
{
    __m256d v = _mm256_set1_pd(s);
    return vd_make(v, v, v, v);
}
TN_INLINE vd vd_add(vd x, vd y) { return TN_VD(_mm256_add_pd); }
TN_INLINE vd vd_sub(vd x, vd y) { return TN_VD(_mm256_sub_pd); }
TN_INLINE vd vd_mul(vd x, vd y) { return TN_VD(_mm256_mul_pd); }
TN_INLINE vd vd_div(vd x, vd y) { return TN_VD(_mm256_div_pd); }
TN_INLINE vd vd_max(vd x, vd y) { return TN_VD(_mm256_max_pd); }
TN_INLINE vd vd_abs(vd y)
{
    vd x = vd_set1(-0.0);
    return TN_VD(_mm256_andnot_pd);
}
#undef TN_VD
TN_INLINE vd vd_sqrt(vd x)
{
    return vd_make(_mm256_sqrt_pd(x.a), _mm256_sqrt_pd(x.b), _mm256_sqrt_pd(x.c), _mm256_sqrt_pd(x.d));
}
TN_INLINE vd vd_fma(vd x, vd y, vd z)
{
    return vd_make(_mm256_fmadd_pd(x.a, y.a, z.a), _mm256_fmadd_pd(x.b, y.b, z.b),
                   _mm256_fmadd_pd(x.c, y.c, z.c), _mm256_fmadd_pd(x.d, y.d, z.d));
}

TN_INLINE vd vd_plus(vd x, vd y) { return vd_fma(x, vd_set1(1.0), y); }
TN_INLINE __m256d vd_pick_neg(__m256d x, __m256d y, __m256d z)
{
    return _mm256_blendv_pd(z, y, _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_LT_OQ));
}
TN_INLINE vd vd_select_neg(vd x, vd y, vd z)
{
    return vd_make(vd_pick_neg(x.a, y.a, z.a), vd_pick_neg(x.b, y.b, z.b), vd_pick_neg(x.c, y.c, z.c),
                   vd_pick_neg(x.d, y.d, z.d));
}
TN_INLINE __m256d vd_first_quarter(__m256d x, size_t n, long long lane)
{
    __m256i index = _mm256_add_epi64(_mm256_setr_epi64x(0, 1, 2, 3), _mm256_set1_epi64x(lane));
    return _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_set1_epi64x((long long)n), index)));
}
TN_INLINE vd vd_first(vd x, size_t n)
{
    return vd_make(vd_first_quarter(x.a, n, 0), vd_first_quarter(x.b, n, 4), vd_first_quarter(x.c, n, 8),
                   vd_first_quarter(x.d, n, 12));
}

TN_INLINE vd vd_from_vf(vf x)
{
    return vd_make(
        _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)),
        _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)));
}
TN_INLINE __m256d vd_widen_quarter(tn_dtype dt, const void *p, size_t i)
{
    if (dt == TN_F32)
        return _mm256_cvtps_pd(_mm_loadu_ps((const float *)(const void *)((const char *)p + i * 4)));
    __m128i h = _mm_loadl_epi64((const __m128i *)(const void *)((const char *)p + i * 2));
    if (dt == TN_F16)
        return _mm256_cvtps_pd(_mm_cvtph_ps(h));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(h), 16)));
}
TN_INLINE vd vd_widen(tn_dtype dt, const void *p, size_t i)
{
    return vd_make(vd_widen_quarter(dt, p, i), vd_widen_quarter(dt, p, i + 4), vd_widen_quarter(dt, p, i + 8),
                   vd_widen_quarter(dt, p, i + 12));
}
TN_INLINE vf vd_to_vf(vd x)
{
    return vf_make(_mm256_set_m128(_mm256_cvtpd_ps(x.b), _mm256_cvtpd_ps(x.a)),
                   _mm256_set_m128(_mm256_cvtpd_ps(x.d), _mm256_cvtpd_ps(x.c)));
}

TN_INLINE __m256d vd_pow2_quarter(__m256d k)
{
    __m256d t = _mm256_add_pd(k, _mm256_set1_pd(0x1.8p52 + 1023.0));
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(t), 52));
}
TN_INLINE vd vd_pow2(vd k)
{
    return vd_make(vd_pow2_quarter(k.a), vd_pow2_quarter(k.b), vd_pow2_quarter(k.c), vd_pow2_quarter(k.d));
}

TN_INLINE vd vd_load(const double *p)
{
    return vd_make(_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8),
                   _mm256_loadu_pd(p + 12));
}
TN_INLINE void vd_store(double *p, vd x)
{
    _mm256_storeu_pd(p, x.a);
    _mm256_storeu_pd(p + 4, x.b);
    _mm256_storeu_pd(p + 8, x.c);
    _mm256_storeu_pd(p + 12, x.d);
}

TN_INLINE double vd_sum(vd x)
{
    __m256d s4 = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}
/* Four rows of four: the last two levels of vd_sum's tree on pairs of rows. */
TN_INLINE __m256d vd_sum_four(const vd *rows)
{
    __m256d s[4], two[2];
    for (int k = 0; k < 4; k++)
        s[k] = _mm256_add_pd(_mm256_add_pd(rows[k].a, rows[k].c), _mm256_add_pd(rows[k].b, rows[k].d));
    for (int k = 0; k < 2; k++)
        two[k] = _mm256_add_pd(_mm256_permute2f128_pd(s[2 * k], s[2 * k + 1], 0x20),
                               _mm256_permute2f128_pd(s[2 * k], s[2 * k + 1], 0x31));
    __m256d one = _mm256_add_pd(_mm256_unpacklo_pd(two[0], two[1]), _mm256_unpackhi_pd(two[0], two[1]));
    return _mm256_permute4x64_pd(one, 0xd8);
}
TN_INLINE vd vd_sum_rows(const vd rows[16])
{
    return vd_make(vd_sum_four(rows), vd_sum_four(rows + 4), vd_sum_four(rows + 8), vd_sum_four(rows + 12));
}

TN_INLINE __m128i vd_round_i8(__m256d x)
{
    __m256d number = _mm256_cmp_pd(x, x, _CMP_ORD_Q);
    x = _mm256_max_pd(_mm256_min_pd(x, _mm256_set1_pd(127.0)), _mm256_set1_pd(-128.0));
    return _mm256_cvtpd_epi32(_mm256_and_pd(x, number));
}
TN_INLINE void vd_store_i8(void *p, vd x)
{
    __m128i lo = _mm_packs_epi32(vd_round_i8(x.a), vd_round_i8(x.b));
    __m128i hi = _mm_packs_epi32(vd_round_i8(x.c), vd_round_i8(x.d));
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(lo, hi));
}

TN_INLINE double vd_hmax(vd x)
{
    __m256d m = _mm256_max_pd(_mm256_max_pd(x.a, x.c), _mm256_max_pd(x.b, x.d));
    __m128d h = _mm_max_pd(_mm256_castpd256_pd128(m), _mm256_extractf128_pd(m, 1));
    return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
}

#endif
