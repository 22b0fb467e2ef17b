/* vec_avx512.h - the vocabulary (vec_contract.md) on AVX-512 F, BW, DQ, VL: vf is one register, vd two.
 * With TN_VEC_BF16 defined, also on the BF16 conversions. */
#ifndef TN_VEC_H
#define TN_VEC_H

#define TN_VEC_GROUP 4 /* blocks of 16 that kernels work on at once: what the registers hold */

#include <immintrin.h>

#include "base/half.h"
#include "truenorm.h"

typedef __m512 vf;
typedef struct vd {
    __m512d a, b;
} vd;

TN_INLINE __mmask16 vf_mask(size_t n) { return (__mmask16)((1u << n) - 1u); }
TN_INLINE vd vd_make(__m512d a, __m512d b) { return (vd){a, b}; }

TN_INLINE vf vf_set1(float a) { return _mm512_set1_ps(a); }
TN_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
TN_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
TN_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
TN_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
TN_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }

TN_INLINE vf vf_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }

TN_INLINE vf vf_scale2(vf a, vf k)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(k), 23)));
}

/* With the limit 2^-126 the processor knows the class of a number; else its bits less one, so that 0 is large. */
typedef struct vt {
    __mmask16 any;
    __m512i least;
} vt;
#define TN_SUBNORMAL 0x20 /* a class of vfpclass; the BF16 instructions flush it */
#define TN_ZERO 0x06
#define TN_SMALLER 2 /* by absolute value, for vrange */
TN_INLINE vt vt_none(void) { return (vt){0, _mm512_set1_epi32(-1)}; }
TN_INLINE vt vt_tiny(vt t, vf v, float limit)
{
    if (limit == 0x1p-126f)
        t.any = _kor_mask16(t.any, _mm512_fpclass_ps_mask(v, TN_SUBNORMAL));
    else
        t.least = _mm512_min_epu32(
            t.least, _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(v), 1), _mm512_set1_epi32(-1)));
    return t;
}
TN_INLINE int vt_any(vt t, float limit)
{
    const int key = (int)((tn_f32_bits(limit) << 1) - 1);
    if (limit == 0x1p-126f)
        return !_kortestz_mask16_u8(t.any, t.any);
    return _mm512_cmplt_epu32_mask(t.least, _mm512_set1_epi32(key)) != 0;
}

TN_INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
TN_INLINE vf vf_min(vf a, vf m) { return _mm512_min_ps(a, m); }
TN_INLINE int vf_any_less(vf a, float limit)
{
    return _mm512_cmp_ps_mask(a, _mm512_set1_ps(limit), _CMP_LT_OQ) != 0;
}

TN_INLINE vf vf_widen(tn_dtype dt, __m256i h)
{
    if (dt == TN_F16)
        return _mm512_cvtph_ps(h);
    /* each to the upper half of its f32, by one permutation instead of a widening and a shift */
    const __m512i place =
        _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, place, _mm512_castsi256_si512(h)));
}
TN_INLINE __m256i vf_narrow_bf16(vf v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
TN_INLINE __m256i vf_narrow(tn_dtype dt, vf v)
{
    if (dt == TN_F16)
        return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#ifdef TN_VEC_BF16
    if (TN_LIKELY(_mm512_fpclass_ps_mask(v, TN_SUBNORMAL) == 0))
        return (__m256i)_mm512_cvtneps_pbh(v);
#endif
    return vf_narrow_bf16(v);
}

TN_INLINE vf vf_load(tn_dtype dt, const void *p, size_t i)
{
    if (dt == TN_F32)
        return _mm512_loadu_ps((const char *)p + i * 4);
    return vf_widen(dt, _mm256_loadu_si256((const __m256i *)(const void *)((const char *)p + i * 2)));
}
TN_INLINE vf vf_load_n(tn_dtype dt, const void *p, size_t i, size_t n)
{
    if (dt == TN_F32)
        return _mm512_maskz_loadu_ps(vf_mask(n), (const char *)p + i * 4);
    return vf_widen(dt, _mm256_maskz_loadu_epi16(vf_mask(n), (const char *)p + i * 2));
}
TN_INLINE void vf_store(tn_dtype dt, void *p, size_t i, vf v)
{
    if (dt == TN_F32)
        _mm512_storeu_ps((char *)p + i * 4, v);
    else
        _mm256_storeu_si256((__m256i *)(void *)((char *)p + i * 2), vf_narrow(dt, v));
}
TN_INLINE void vf_store_n(tn_dtype dt, void *p, size_t i, vf v, size_t n)
{
    if (dt == TN_F32)
        _mm512_mask_storeu_ps((char *)p + i * 4, vf_mask(n), v);
    else
        _mm256_mask_storeu_epi16((char *)p + i * 2, vf_mask(n), vf_narrow(dt, v));
}
#ifdef TN_VEC_BF16
/* Is one of m vectors subnormal somewhere? The smallest of their lanes tells, but for zeros, where all are looked at. */
TN_INLINE bool vf_any_subnormal(const vf *v, size_t m)
{
    vf least = _mm512_range_ps(v[0], v[1], TN_SMALLER);
    if (m == 4)
        least = _mm512_range_ps(least, _mm512_range_ps(v[2], v[3], TN_SMALLER), TN_SMALLER);
    __mmask16 any = _mm512_fpclass_ps_mask(least, TN_SUBNORMAL | TN_ZERO);
    if (TN_LIKELY(_kortestz_mask16_u8(any, any)))
        return false;
    any = _mm512_fpclass_ps_mask(v[0], TN_SUBNORMAL);
    for (size_t j = 1; j < m; j++)
        any = _kor_mask16(any, _mm512_fpclass_ps_mask(v[j], TN_SUBNORMAL));
    return !_kortestz_mask16_u8(any, any);
}
#endif
TN_INLINE void vf_put_line(bool past, char *to, __m512i v)
{
    if (past)
        _mm512_stream_si512((__m512i *)(void *)to, v);
    else
        _mm512_storeu_si512(to, v);
}
TN_INLINE void vf_put(bool past, tn_dtype dt, void *p, size_t i, const vf *v, size_t m)
{
    char *to = (char *)p + i * (dt == TN_F32 ? 4 : 2);
    if (dt == TN_F32) {
        for (size_t j = 0; j < m; j++)
            vf_put_line(past, to + 64 * j, _mm512_castps_si512(v[j]));
        return;
    }
    if (m == 1) {
        __m256i *half = (__m256i *)(void *)to;
        past ? _mm256_stream_si256(half, vf_narrow(dt, v[0]))
             : _mm256_storeu_si256(half, vf_narrow(dt, v[0]));
        return;
    }
#ifdef TN_VEC_BF16
    if (dt == TN_BF16 && TN_LIKELY(!vf_any_subnormal(v, m))) {
        for (size_t j = 0; j < m; j += 2)
            vf_put_line(past, to + 32 * j, (__m512i)_mm512_cvtne2ps_pbh(v[j + 1], v[j]));
        return;
    }
#endif
    for (size_t j = 0; j < m; j += 2)
        vf_put_line(
            past, to + 32 * j,
            _mm512_inserti64x4(_mm512_castsi256_si512(vf_narrow(dt, v[j])), vf_narrow(dt, v[j + 1]), 1));
}
TN_INLINE void vf_stream_end(void) { _mm_sfence(); }
TN_INLINE vf vf_round(tn_dtype dt, vf a) { return dt == TN_F32 ? a : vf_widen(dt, vf_narrow(dt, a)); }

TN_INLINE vd vd_set1(double a) { return vd_make(_mm512_set1_pd(a), _mm512_set1_pd(a)); }
TN_INLINE vd vd_add(vd x, vd y) { return vd_make(_mm512_add_pd(x.a, y.a), _mm512_add_pd(x.b, y.b)); }
TN_INLINE vd vd_sub(vd x, vd y) { return vd_make(_mm512_sub_pd(x.a, y.a), _mm512_sub_pd(x.b, y.b)); }
TN_INLINE vd vd_mul(vd x, vd y) { return vd_make(_mm512_mul_pd(x.a, y.a), _mm512_mul_pd(x.b, y.b)); }
TN_INLINE vd vd_div(vd x, vd y) { return vd_make(_mm512_div_pd(x.a, y.a), _mm512_div_pd(x.b, y.b)); }
TN_INLINE vd vd_max(vd x, vd y) { return vd_make(_mm512_max_pd(x.a, y.a), _mm512_max_pd(x.b, y.b)); }
TN_INLINE vd vd_abs(vd x) { return vd_make(_mm512_abs_pd(x.a), _mm512_abs_pd(x.b)); }
TN_INLINE vd vd_sqrt(vd x) { return vd_make(_mm512_sqrt_pd(x.a), _mm512_sqrt_pd(x.b)); }
TN_INLINE vd vd_fma(vd x, vd y, vd z)
{
    return vd_make(_mm512_fmadd_pd(x.a, y.a, z.a), _mm512_fmadd_pd(x.b, y.b, z.b));
}

/* On the multipliers: conversions occupy the adders. */
TN_INLINE vd vd_plus(vd x, vd y) { return vd_fma(x, vd_set1(1.0), y); }
TN_INLINE vd vd_select_neg(vd x, vd y, vd z)
{
    __mmask8 ka = _mm512_cmp_pd_mask(x.a, _mm512_setzero_pd(), _CMP_LT_OQ);
    __mmask8 kb = _mm512_cmp_pd_mask(x.b, _mm512_setzero_pd(), _CMP_LT_OQ);
    return vd_make(_mm512_mask_blend_pd(ka, z.a, y.a), _mm512_mask_blend_pd(kb, z.b, y.b));
}
TN_INLINE vd vd_first(vd x, size_t n)
{
    uint32_t k = (1u << n) - 1u;
    return vd_make(_mm512_maskz_mov_pd((__mmask8)(k & 0xffu), x.a),
                   _mm512_maskz_mov_pd((__mmask8)(k >> 8 & 0xffu), x.b));
}

TN_INLINE vd vd_from_vf(vf x)
{
    return vd_make(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}
/* Eight elements of 16 as f32; two halves are cheaper than one vector that is taken apart. */
TN_INLINE __m256 vf_half(tn_dtype dt, const void *p, size_t i, int first)
{
    const char *at = (const char *)p + i * (dt == TN_F32 ? 4 : 2);
    if (dt == TN_F32)
        return _mm256_loadu_ps((const float *)(const void *)(at + 4 * first));
    if (dt == TN_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 2 * first)));
    const __m256i place = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), 16);
    return _mm256_castsi256_ps(
        _mm256_maskz_permutexvar_epi16(0xaaaa, place, _mm256_loadu_si256((const __m256i *)(const void *)at)));
}
TN_INLINE vd vd_widen(tn_dtype dt, const void *p, size_t i)
{
    return vd_make(_mm512_cvtps_pd(vf_half(dt, p, i, 0)), _mm512_cvtps_pd(vf_half(dt, p, i, 8)));
}
TN_INLINE vf vd_to_vf(vd x)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.a)), _mm512_cvtpd_ps(x.b), 1);
}

TN_INLINE __m512d vd_pow2_half(__m512d k)
{
    __m512d t = _mm512_add_pd(k, _mm512_set1_pd(0x1.8p52 + 1023.0));
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(t), 52));
}
TN_INLINE vd vd_pow2(vd k) { return vd_make(vd_pow2_half(k.a), vd_pow2_half(k.b)); }

TN_INLINE vd vd_load(const double *p) { return vd_make(_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)); }
TN_INLINE void vd_store(double *p, vd x)
{
    _mm512_storeu_pd(p, x.a);
    _mm512_storeu_pd(p + 8, x.b);
}

TN_INLINE double vd_sum(vd x)
{
    __m512d s8 = _mm512_add_pd(x.a, x.b);
    __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}
/* Eight rows of eight: each of the three levels of vd_sum's tree on pairs of rows. */
TN_INLINE __m512d vd_sum_eight(const vd *rows)
{
    __m512d s[8], four[4], two[2];
    for (int k = 0; k < 8; k++)
        s[k] = _mm512_add_pd(rows[k].a, rows[k].b);
    for (int k = 0; k < 4; k++)
        four[k] = _mm512_add_pd(_mm512_shuffle_f64x2(s[2 * k], s[2 * k + 1], 0x44),
                                _mm512_shuffle_f64x2(s[2 * k], s[2 * k + 1], 0xee));
    for (int k = 0; k < 2; k++)
        two[k] = _mm512_add_pd(_mm512_shuffle_f64x2(four[2 * k], four[2 * k + 1], 0x88),
                               _mm512_shuffle_f64x2(four[2 * k], four[2 * k + 1], 0xdd));
    __m512d one = _mm512_add_pd(_mm512_unpacklo_pd(two[0], two[1]), _mm512_unpackhi_pd(two[0], two[1]));
    return _mm512_permutexvar_pd(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), one);
}
TN_INLINE vd vd_sum_rows(const vd rows[16]) { return vd_make(vd_sum_eight(rows), vd_sum_eight(rows + 8)); }

TN_INLINE __m256i vd_round_i8(__m512d x)
{
    __mmask8 number = _mm512_cmp_pd_mask(x, x, _CMP_ORD_Q);
    x = _mm512_max_pd(_mm512_min_pd(x, _mm512_set1_pd(127.0)), _mm512_set1_pd(-128.0));
    return _mm512_maskz_cvtpd_epi32(number, x);
}
TN_INLINE void vd_store_i8(void *p, vd x)
{
    __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(vd_round_i8(x.a)), vd_round_i8(x.b), 1);
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(q));
}

TN_INLINE double vd_hmax(vd x) { return _mm512_reduce_max_pd(_mm512_max_pd(x.a, x.b)); }

#endif
