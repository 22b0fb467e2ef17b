/* stage.h - operands of any dtype and stride, a chunk at a time, as contiguous f32 or f64 in L1.
 *
 * Gathering and converting a chunk costs a pass over L1; a whole row is never copied. */
#ifndef TN_STAGE_H
#define TN_STAGE_H

#include "kernels/kernels.h"

#define TN_CHUNK 512 /* elements; a multiple of 32, so that lanes keep their meaning across chunks */

TN_INLINE char *operand_at(const struct tn_operand *o, size_t i0, size_t i1)
{
    return o->data + (ptrdiff_t)i0 * o->stride[0] + (ptrdiff_t)i1 * o->stride[1];
}

TN_INLINE size_t round_up16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* n elements of `size` bytes, `inner` bytes apart, to contiguous dst. */
static TN_NOINLINE void gather(const char *src, ptrdiff_t inner, size_t size, size_t n, void *dst)
{
    char *to = dst;
    if (size == 2)
        for (size_t i = 0; i < n; i++)
            memcpy(to + i * 2, src + (ptrdiff_t)i * inner, 2);
    else if (size == 4)
        for (size_t i = 0; i < n; i++)
            memcpy(to + i * 4, src + (ptrdiff_t)i * inner, 4);
    else if (size == 8)
        for (size_t i = 0; i < n; i++)
            memcpy(to + i * 8, src + (ptrdiff_t)i * inner, 8);
    else
        for (size_t i = 0; i < n; i++)
            to[i] = src[(ptrdiff_t)i * inner];
}

static TN_NOINLINE void scatter(char *dst, ptrdiff_t inner, size_t size, size_t n, const void *src)
{
    const char *from = src;
    if (size == 2)
        for (size_t i = 0; i < n; i++)
            memcpy(dst + (ptrdiff_t)i * inner, from + i * 2, 2);
    else if (size == 4)
        for (size_t i = 0; i < n; i++)
            memcpy(dst + (ptrdiff_t)i * inner, from + i * 4, 4);
    else if (size == 8)
        for (size_t i = 0; i < n; i++)
            memcpy(dst + (ptrdiff_t)i * inner, from + i * 8, 8);
    else
        for (size_t i = 0; i < n; i++)
            dst[(ptrdiff_t)i * inner] = from[i];
}

/* Elements [i, i+n) of a row of o as contiguous bytes of its own dtype: in place or gathered into raw. */
TN_INLINE const void *contiguous(const struct tn_operand *o, const char *row, size_t i, size_t n, void *raw)
{
    size_t size = tn_element_size(o->dtype);
    const char *src = row + (ptrdiff_t)i * o->inner;
    if (o->inner == (ptrdiff_t)size)
        return src;
    gather(src, o->inner, size, n, raw);
    return raw;
}

/* 16-bit to f32, f32 to 16-bit, and both to and from f64; n elements, the wide side padded to 16. */
TN_INLINE void widen_f32(tn_dtype dt, const void *src, size_t n, float *dst)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(TN_F32, dst, i, vf_load(dt, src, i));
    if (i < n)
        vf_store(TN_F32, dst, i, vf_load_n(dt, src, i, n - i));
}
TN_INLINE void widen_f64(tn_dtype dt, const void *src, size_t n, double *dst)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        vd_store(dst + i, vd_from_vf(vf_load(dt, src, i)));
    if (i < n)
        vd_store(dst + i, vd_from_vf(vf_load_n(dt, src, i, n - i)));
}
TN_INLINE void narrow_f32(tn_dtype dt, const float *src, size_t n, void *dst)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(dt, dst, i, vf_load(TN_F32, src, i));
    if (i < n)
        vf_store_n(dt, dst, i, vf_load(TN_F32, src, i), n - i);
}
TN_INLINE void narrow_f64(tn_dtype dt, const double *src, size_t n, void *dst)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(dt, dst, i, vd_to_vf(vd_load(src + i)));
    if (i < n)
        vf_store_n(dt, dst, i, vd_to_vf(vd_load(src + i)), n - i);
}

/* Elements [i, i+n) of a row as f32 (f32, bf16, f16 operands): in place, or in buf. `buf` and `raw` hold
 * TN_CHUNK floats. Reading past n within the last 16 of a returned buf is allowed, of an operand not. */
static TN_NOINLINE const float *stage_f32(const struct tn_operand *o, const char *row, size_t i, size_t n,
                                          float *buf, float *raw)
{
    if (o->dtype == TN_F32)
        return contiguous(o, row, i, n, buf);
    const void *src = contiguous(o, row, i, n, raw);
    if (o->dtype == TN_BF16)
        widen_f32(TN_BF16, src, n, buf);
    else
        widen_f32(TN_F16, src, n, buf);
    return buf;
}

/* The same as f64, always in buf, zeros up to the next multiple of 16. */
static TN_NOINLINE void stage_f64(const struct tn_operand *o, const char *row, size_t i, size_t n,
                                  double *buf, double *raw)
{
    const void *src = contiguous(o, row, i, n, raw);
    if (o->dtype == TN_F64) {
        memcpy(buf, src, n * 8);
        for (size_t k = n; k < round_up16(n); k++)
            buf[k] = 0.0;
    } else if (o->dtype == TN_F32) {
        widen_f64(TN_F32, src, n, buf);
    } else if (o->dtype == TN_BF16) {
        widen_f64(TN_BF16, src, n, buf);
    } else {
        widen_f64(TN_F16, src, n, buf);
    }
}

/* f32 values (padded to 16) to elements [i, i+n) of a row of o; raw holds TN_CHUNK floats. */
static TN_NOINLINE void unstage_f32(const struct tn_operand *o, char *row, size_t i, size_t n,
                                    const float *buf, float *raw)
{
    size_t size = tn_element_size(o->dtype);
    char *dst = row + (ptrdiff_t)i * o->inner;
    void *to = o->inner == (ptrdiff_t)size ? (void *)dst : (void *)raw;
    if (o->dtype == TN_F32)
        memcpy(to, buf, n * 4);
    else if (o->dtype == TN_BF16)
        narrow_f32(TN_BF16, buf, n, to);
    else
        narrow_f32(TN_F16, buf, n, to);
    if (to == (void *)raw)
        scatter(dst, o->inner, size, n, raw);
}

/* f64 values (padded to 16) to elements [i, i+n) of a row of o, any dtype; raw holds TN_CHUNK doubles. */
static TN_NOINLINE void unstage_f64(const struct tn_operand *o, char *row, size_t i, size_t n,
                                    const double *buf, double *raw)
{
    size_t size = tn_element_size(o->dtype);
    char *dst = row + (ptrdiff_t)i * o->inner;
    void *to = o->inner == (ptrdiff_t)size ? (void *)dst : (void *)raw;
    uint8_t *bytes = to;
    switch ((int)o->dtype) {
    case TN_F64:
        memcpy(to, buf, n * 8);
        break;
    case TN_F32:
        narrow_f64(TN_F32, buf, n, to);
        break;
    case TN_BF16:
        narrow_f64(TN_BF16, buf, n, to);
        break;
    case TN_F16:
        narrow_f64(TN_F16, buf, n, to);
        break;
    case TN_I8:
        for (size_t k = 0; k < n; k++)
            bytes[k] = (uint8_t)tn_f64_to_i8(buf[k]);
        break;
    case TN_E4M3:
        for (size_t k = 0; k < n; k++)
            bytes[k] = tn_f64_to_e4m3(buf[k]);
        break;
    default:
        for (size_t k = 0; k < n; k++)
            bytes[k] = tn_f64_to_e5m2(buf[k]);
        break;
    }
    if (to == (void *)raw)
        scatter(dst, o->inner, size, n, raw);
}

#endif
