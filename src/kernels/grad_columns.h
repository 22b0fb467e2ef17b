/* grad_columns.h - column sums: the blocks of rows added up, and written. */
#ifndef TN_GRAD_COLUMNS_H
#define TN_GRAD_COLUMNS_H

#include "kernels/stage.h"

TN_INLINE vd load_sums(bool tail, const double *sums, size_t left)
{
    double t[16] = {0};
    if (!tail)
        return vd_load(sums);
    memcpy(t, sums, left * sizeof *t);
    return vd_load(t);
}

TN_INLINE void store_sums(bool tail, double *sums, size_t left, vd v)
{
    double t[16];
    vd_store(tail ? t : sums, v);
    if (tail)
        memcpy(sums, t, left * sizeof *t);
}

TN_INLINE void write_columns_as(tn_dtype dt, const double *sums, size_t count, size_t stride, size_t n,
                                char *out, bool accumulate)
{
    for (size_t k = 0; k < n; k += 16) {
        const bool tail = n - k < 16;
        const size_t left = tail ? n - k : 16;
        vd total = load_sums(tail, sums + k, left);
        for (size_t b = 1; b < count; b++)
            total = vd_add(total, load_sums(tail, sums + b * stride + k, left));
        if (accumulate) {
            vd old = dt == TN_F64 ? load_sums(tail, (const double *)(const void *)out + k, left)
                     : tail       ? vd_from_vf(vf_load_n(dt, out, k, left))
                                  : vd_widen(dt, out, k);
            total = vd_add(old, total);
        }
        if (dt == TN_F64)
            store_sums(tail, (double *)(void *)out + k, left, total);
        else if (tail)
            vf_store_n(dt, out, k, vd_to_vf(total), left);
        else
            vf_store(dt, out, k, vd_to_vf(total));
    }
}

static void write_columns(const double *sums, size_t count, size_t stride, size_t n, tn_dtype dt, char *out,
                          bool accumulate)
{
    if (dt == TN_F64)
        write_columns_as(TN_F64, sums, count, stride, n, out, accumulate);
    else if (dt == TN_F32)
        write_columns_as(TN_F32, sums, count, stride, n, out, accumulate);
    else if (dt == TN_BF16)
        write_columns_as(TN_BF16, sums, count, stride, n, out, accumulate);
    else
        write_columns_as(TN_F16, sums, count, stride, n, out, accumulate);
}

#endif
