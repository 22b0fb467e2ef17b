/* table.h - compiles every kernel for the machine that the including file chose and fills its table. */
#include "kernels/grad_fused.h"

/* The fused instances: a row loop each. */
#ifndef TN_NO_FUSED
TN_INLINE void fused_rows(tn_dtype xt, tn_dtype wt, tn_dtype yt, bool centred, enum tn_algo algo,
                          tn_dtype round_h, bool offset, const struct tn_plan *p, size_t r0, size_t r1)
{
    TN_FOR_GROUPS(p, r0, r1, fused_group(xt, wt, yt, centred, algo, round_h, offset ? 1.0 : 0.0, &at));
}

#define TN_FUSED_DEFINE(k, xt, wt, yt, centred, algo, round_h, offset)                                       \
    static void fused_##k(const struct tn_plan *p, size_t r0, size_t r1)                                     \
    {                                                                                                        \
        fused_rows(xt, wt, yt, centred, algo, round_h, offset, p, r0, r1);                                   \
    }
#define TN_FUSED_ENTRY(k, xt, wt, yt, centred, algo, round_h, offset) fused_##k,
TN_FUSED_LIST(TN_FUSED_DEFINE)

#define TN_GRAD_DEFINE(k, xt, wt, centred)                                                                   \
    static void grad_fused_##k(const struct tn_grad_plan *p, size_t r0, size_t r1, double *sums)             \
    {                                                                                                        \
        fused_grad_rows(xt, wt, centred, p, r0, r1, sums);                                                   \
    }
#define TN_GRAD_ENTRY(k, xt, wt, centred) grad_fused_##k,
TN_GRAD_LIST(TN_GRAD_DEFINE)
#else
/* Plain C takes the general kernel for all: the same bits in a fifth of the code. */
#define TN_FUSED_ENTRY(k, xt, wt, yt, centred, algo, round_h, offset)                                        \
    (centred) ? ((algo) == TN_A32 ? narrow_layer_a32 : narrow_layer_a64)                                     \
              : ((algo) == TN_A32   ? narrow_rms_a32                                                         \
                 : (algo) == TN_A2P ? narrow_rms_a2p                                                         \
                                    : narrow_rms_a64),
#define TN_GRAD_ENTRY(k, xt, wt, centred) grad_wide_rows,
#endif

#define TN_STRING_(x) #x
#define TN_STRING(x) TN_STRING_(x)
#define TN_TABLE_(isa) tn_kernels_##isa
#define TN_TABLE(isa) TN_TABLE_(isa)

const struct tn_kernels TN_TABLE(TN_KERNEL_ISA) = {
    TN_STRING(TN_KERNEL_ISA),
    {TN_FUSED_LIST(TN_FUSED_ENTRY)},
    {{narrow_rms_a32, narrow_rms_a2p, narrow_rms_a64},
     {narrow_layer_a32, narrow_layer_a64, narrow_layer_a64}},
    wide_rows,
    {TN_GRAD_LIST(TN_GRAD_ENTRY)},
    grad_wide_rows,
};
