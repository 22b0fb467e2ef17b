/* table.h - compiles every kernel for the machine that the including file chose and fills its table. */
#include "kernels/batch.h"
#include "kernels/grad_fused.h"

/* The general kernel of a fused instance: the same bits. */
#define TN_GENERAL(centred, algo, extra)                                                                     \
    ((extra) > TN_ADDS && (algo) == TN_A64 ? wide_rows                                                       \
     : (centred)                           ? ((algo) == TN_A32 ? narrow_layer_a32 : narrow_layer_a64)        \
                                           : ((algo) == TN_A32   ? narrow_rms_a32                            \
                                              : (algo) == TN_A2P ? narrow_rms_a2p                            \
                                                                 : narrow_rms_a64))

/* The fused instances: a row loop each. TN_LEAN, where sanitizers make compiling slow: f32 weights without offset or
 * inner cast only, nothing gated, no int8; the others take the general kernel. */
#ifdef TN_LEAN
#define TN_LEFT_OUT(wt, round_h, offset, extra)                                                              \
    ((wt) != TN_F32 || (round_h) != TN_NONE || (offset) || (extra) > TN_ADDS)
#else
#define TN_LEFT_OUT(wt, round_h, offset, extra) false
#endif
#ifndef TN_NO_FUSED
#define TN_VARIANT(xt, wt, yt, centred, algo, round_h, offset, extra)                                        \
    {                                                                                                        \
        xt, wt, yt, centred, algo, round_h, (offset) ? 1.0 : 0.0, (wt) != TN_NONE, false, false,             \
            (centred) || (xt) != TN_F16 || (extra) == TN_GATED_BEFORE,                                       \
            (algo) == TN_A32 && (extra) == TN_GATED_AFTER, TN_SILU                                           \
    }
#define TN_FUSED_DEFINE(i, xt, wt, yt, centred, algo, round_h, offset, extra)                                \
    static TN_NOINLINE void careful_##i(const struct fused_row *row, size_t at, size_t left,                 \
                                        const struct apply *a)                                               \
    {                                                                                                        \
        if (TN_LEFT_OUT(wt, round_h, offset, extra))                                                         \
            return;                                                                                          \
        struct variant v = TN_VARIANT(xt, wt, yt, centred, algo, round_h, offset, extra);                    \
        v.x = (extra) == TN_GATED_BEFORE ? TN_F32 : (xt);                                                    \
        apply_carefully(v, row, at, left, a);                                                                \
    }                                                                                                        \
    static void fused_##i(const struct tn_plan *p, size_t r0, size_t r1)                                     \
    {                                                                                                        \
        if (TN_LEFT_OUT(wt, round_h, offset, extra)) {                                                       \
            TN_GENERAL(centred, algo, extra)(p, r0, r1);                                                     \
            return;                                                                                          \
        }                                                                                                    \
        const struct fused k = {                                                                             \
            TN_VARIANT(xt, wt, yt, centred, algo, round_h, offset, extra), extra,                            \
            !(centred) ? ((extra) <= TN_ADDS && (algo) == TN_A32 && (xt) != TN_F32 && (yt) != TN_F32         \
                              ? FIRST_SHORT                                                                  \
                              : FIRST_SQUARES)                                                               \
                       : FIRST_RAW,                                                                          \
            careful_##i};                                                                                    \
        const size_t batch = batch_rows(k, p, r1 - r0);                                                      \
        if ((extra) == TN_GATED_BEFORE || batch > 1)                                                         \
            batched_rows(k, p, r0, r1, batch);                                                               \
        else                                                                                                 \
            fused_rows(k, p, r0, r1);                                                                        \
    }
#define TN_GRAD_DEFINE(k, xt, wt, centred, extra)                                                            \
    static void grad_fused_##k(const struct tn_grad_plan *p, size_t r0, size_t r1, double *sums)             \
    {                                                                                                        \
        if (TN_LEFT_OUT(wt, TN_NONE, false, extra)) {                                                        \
            grad_wide_rows(p, r0, r1, sums);                                                                 \
            return;                                                                                          \
        }                                                                                                    \
        fused_grad_rows((struct grad_kind){xt, wt, centred, extra}, p, r0, r1, sums);                        \
    }
#define TN_FUSED_ENTRY(i, xt, wt, yt, centred, algo, round_h, offset, extra) fused_##i,
#define TN_GRAD_ENTRY(k, xt, wt, centred, extra) grad_fused_##k,
TN_FUSED_LIST(TN_FUSED_DEFINE)
TN_GRAD_LIST(TN_GRAD_DEFINE)
#else
/* Plain C takes the general kernel for all: the same bits in a fifth of the code. */
#define TN_FUSED_ENTRY(i, xt, wt, yt, centred, algo, round_h, offset, extra) TN_GENERAL(centred, algo, extra),
#define TN_GRAD_ENTRY(k, xt, wt, centred, extra) grad_wide_rows,
#endif

static void widen_16bit(tn_dtype dt, const void *src, size_t n, float *dst)
{
    size_t whole = n / 16 * 16;
    float last[16];
    if (dt == TN_BF16)
        widen_f32(TN_BF16, src, whole, dst);
    else
        widen_f32(TN_F16, src, whole, dst);
    const char *rest = (const char *)src + whole * 2;
    if (whole < n && dt == TN_BF16)
        widen_f32(TN_BF16, rest, n - whole, last);
    else if (whole < n)
        widen_f32(TN_F16, rest, n - whole, last);
    memcpy(dst + whole, last, (n - whole) * sizeof *dst);
}

#define TN_STRING_(x) #x
#define TN_STRING(x) TN_STRING_(x)
#define TN_TABLE_(isa) tn_kernels_##isa
#define TN_TABLE(isa) TN_TABLE_(isa)

const struct tn_kernels TN_TABLE(TN_KERNEL_ISA) = {
    TN_STRING(TN_KERNEL_ISA),
    widen_16bit,
    {TN_FUSED_LIST(TN_FUSED_ENTRY)},
    {{narrow_rms_a32, narrow_rms_a2p, narrow_rms_a64},
     {narrow_layer_a32, narrow_layer_a64, narrow_layer_a64}},
    wide_rows,
    {TN_GRAD_LIST(TN_GRAD_ENTRY)},
    grad_wide_rows,
    write_columns,
};
