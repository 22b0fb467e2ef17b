/* half.h - the small formats in scalar C: the definition that every vector header must equal.
 * All conversions round to nearest, ties to even; any NaN stays a NaN (quiet). */
#ifndef TN_HALF_H
#define TN_HALF_H

#include "base/base.h"
#include "truenorm.h"

/* Bytes of one element; 0 for an unknown dtype. */
static inline size_t tn_element_size(tn_dtype dt)
{
    switch ((int)dt) {
    case TN_F64:
        return 8;
    case TN_F32:
        return 4;
    case TN_BF16:
    case TN_F16:
        return 2;
    case TN_I8:
    case TN_E4M3:
    case TN_E5M2:
        return 1;
    default:
        return 0;
    }
}

static inline float tn_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t tn_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline uint64_t tn_f64_bits(double f)
{
    uint64_t u;
    memcpy(&u, &f, 8);
    return u;
}

static inline float tn_bf16_to_f32(uint16_t h)
{
    return tn_bits_f32((uint32_t)h << 16);
}

static inline uint16_t tn_f32_to_bf16(float f)
{
    uint32_t u = tn_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float tn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31)
        return tn_bits_f32(sign | 0x7f800000u | (m ? (m << 13) | 0x400000u : 0));
    if (e == 0) {
        float v = (float)m * 0x1p-24f;
        return tn_bits_f32(sign | tn_f32_bits(v));
    }
    return tn_bits_f32(sign | ((e + 112) << 23) | (m << 13));
}

static inline uint16_t tn_f32_to_f16(float f)
{
    uint32_t u = tn_f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a <= 0x33000000u)
        return (uint16_t)sign;
    if (a < 0x38800000u) { /* subnormal result: shift the significand into units of 2^-24 */
        uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
        uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
        q += (rest > half) || (rest == half && (q & 1));
        return (uint16_t)(sign | q);
    }
    a += 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

/* f64 to an fp8 format with `m` stored mantissa bits and bias `bias`, rounding once.
 * `top` is the largest finite code, `over` the code of anything that rounds above it (inf too). */
static inline uint8_t tn_f64_to_fp8(double f, int m, int bias, uint8_t top, uint8_t over)
{
    uint64_t u = tn_f64_bits(f);
    uint8_t sign = (uint8_t)(u >> 63 << 7);
    if (f != f)
        return 0x7f; /* the sign of a NaN differs between processors */
    int e = (int)(u >> 52 & 0x7ff) - 1023;
    if (e < 1 - bias - m - 1)
        return sign; /* below half of the smallest subnormal */
    if (e > 15 + 1)
        return sign | over;
    uint64_t sig = (u & 0xfffffffffffffull) | 0x10000000000000ull;
    int drop = 52 - m + (e < 1 - bias ? 1 - bias - e : 0); /* bits to round away */
    uint64_t q = sig >> drop, rest = sig & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    q += (rest > half) || (rest == half && (q & 1));
    /* q carries the hidden bit where the result is normal; adding the exponent lets a carry propagate */
    uint64_t code = e < 1 - bias ? q : q + ((uint64_t)(e + bias - 1) << m);
    return code > top ? sign | over : sign | (uint8_t)code;
}

static inline uint8_t tn_f64_to_e4m3(double f)
{
    return tn_f64_to_fp8(f, 3, 7, 0x7e, 0x7e);
}
static inline uint8_t tn_f64_to_e5m2(double f)
{
    return tn_f64_to_fp8(f, 2, 15, 0x7b, 0x7c);
}

static inline int8_t tn_f64_to_i8(double f)
{
    if (f != f)
        return 0;
    double r = f < -128 ? -128 : f > 127 ? 127 : f;
    r = (r + 0x1.8p52) - 0x1.8p52; /* round to nearest even */
    return (int8_t)r;
}

#endif
