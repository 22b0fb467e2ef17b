/* torch_norm.h - the operands and options that forward and backward operators share. */
#ifndef TRUENORM_TORCH_NORM_H
#define TRUENORM_TORCH_NORM_H

#include "torch_layout.h"

namespace truenorm_torch
{

/* The options of the schemas, in this order (torch_ops.cpp, OPTIONS). The integers are the values of the C enums. */
struct Options {
    tn_norm_desc desc;
    tn_dtype sum_dtype = TN_NONE; /* TN_NONE: x's */
    tn_dtype out_dtype = TN_NONE; /* TN_NONE: that of the cast mode */

    Options(tn_kind kind, double eps);
    explicit Options(Args &args);
};

/* The tensors of the schemas, in this order (torch_ops.cpp, TENSORS). */
struct Operands {
    Owned x, weight, bias, residual, gate, mod_scale, mod_shift;

    Operands() = default;
    explicit Operands(Args &args);
};

/* A prepared call: dtypes and shapes checked, every operand described. */
struct Call {
    tn_norm_desc desc;
    tn_norm_io io;
    Tensor x, weight, bias, residual, gate, mod_scale, mod_shift;
    Tensor mean, rstd, dy, dsum; /* backward only; set before `describe` */
    Layout layout;
    int64_t groups; /* statistics of a row */

    Call(Operands operands, const Options &options);
    /* Fits the operands to two row strides; `reduced` as Layout::add_param. */
    void describe(bool reduced);

  private:
    void set_dtypes(const Options &options);
};

void check_status(tn_status status);

/* Boxed kernels. */
using Kernel = void(StableIValue *stack, uint64_t inputs, uint64_t outputs);
Kernel rms_norm, layer_norm, norm, add_norm, norm_stats, norm_quantized, norm_scaled, norm_backward,
    rms_norm_backward, layer_norm_backward, empty_norm;

} // namespace truenorm_torch
#endif
