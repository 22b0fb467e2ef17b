/* torch_ops.cpp - the schemas of torch.ops.truenorm, and which kernel each has.
 *
 * Gradients, shapes for tracing and batching rules are registered from Python (truenorm.torch), which the stable ABI
 * does not cover. An overload `no_grad` computes the same without a place in the autograd graph; it is what the
 * Python functions call when no gradient can be asked for.
 *
 * Enumerations are their C values: kind, eps_mode, cast, grade, sum_mode, gate_order, act; flags as TN_ROUND_*. */
#include "blocks.h"
#include "torch_norm.h"

#define TENSORS                                                                                              \
    "Tensor x, Tensor? weight=None, Tensor? bias=None, Tensor? residual=None, Tensor? gate=None, "           \
    "Tensor? mod_scale=None, Tensor? mod_shift=None, "
#define OPTIONS                                                                                              \
    "int kind=0, float eps=1e-6, int eps_mode=0, int cast=0, int grade=0, int flags=0, float "               \
    "weight_offset=0.0, "                                                                                    \
    "float divisor=0.0, SymInt group=0, SymInt partial=0, SymInt positions=1, int sum_mode=0, int "          \
    "gate_order=0, "                                                                                         \
    "int act=0, ScalarType? sum_dtype=None, ScalarType? out_dtype=None"
/* Gradients of x, residual, gate, weight, bias, mod_scale, mod_shift; None where output_mask says false. */
#define BACKWARD                                                                                             \
    "Tensor dy, Tensor? dsum, Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? gate, "      \
    "Tensor? mod_scale, Tensor? mod_shift, Tensor? mean, Tensor? rstd, " OPTIONS                             \
    ", *, bool[7] output_mask) -> "                                                                          \
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"

STABLE_TORCH_LIBRARY(truenorm, m)
{
    m.def("rms_norm(Tensor x, Tensor? weight, float eps, int cast=0, float weight_offset=0.0) -> Tensor");
    m.def("rms_norm.no_grad(Tensor x, Tensor? weight, float eps, int cast=0, float weight_offset=0.0) -> "
          "Tensor");
    m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
    m.def("layer_norm.no_grad(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
    m.def("norm(" TENSORS OPTIONS ") -> Tensor");
    m.def("norm.no_grad(" TENSORS OPTIONS ") -> Tensor");
    m.def("add_norm(" TENSORS OPTIONS ") -> (Tensor, Tensor)");
    m.def("add_norm.no_grad(" TENSORS OPTIONS ") -> (Tensor, Tensor)");
    m.def("norm_stats(" TENSORS OPTIONS ", ScalarType? stats_dtype=None) -> (Tensor, Tensor, Tensor)");
    m.def("norm_quantized(" TENSORS OPTIONS ") -> (Tensor, Tensor)");
    m.def("norm_scaled(Tensor scale, " TENSORS OPTIONS ") -> Tensor");
    m.def("norm_backward(" BACKWARD);
    m.def("norm_backward.no_grad(" BACKWARD);
    m.def("rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, float eps, int cast, float weight_offset, "
          "int need) -> (Tensor, Tensor)");
    m.def("layer_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, float eps, int need) -> "
          "(Tensor, Tensor, Tensor)");
    m.def("empty_norm(Tensor x, Tensor? weight, float eps, int cast=0, float weight_offset=0.0) -> Tensor");
    m.def("empty_norm.no_grad(Tensor x, Tensor? weight, float eps, int cast=0, float weight_offset=0.0) -> "
          "Tensor");
    m.def("set_isa(int index) -> ()"); /* of tn_isa_list: this library is a copy of its own */
    m.def("held_memory() -> int");     /* blocks.h, of which it has its own too */
    m.def("release_memory() -> ()");
    m.def("set_memory_limit(int bytes) -> ()");
}

static void set_isa(StableIValue *stack, uint64_t, uint64_t)
{
    const char *names[8];
    size_t count = tn_isa_list(names, 8);
    int64_t index = truenorm_torch::Args(stack).integer();
    if (index < 0 || static_cast<size_t>(index) >= count)
        truenorm_torch::fail("truenorm: no such instruction set");
    truenorm_torch::check_status(tn_isa_set(names[index]));
}

static void held_memory(StableIValue *stack, uint64_t, uint64_t)
{
    *stack = torch::stable::detail::from(static_cast<int64_t>(truenorm_blocks::held()));
}

static void release_memory(StableIValue *, uint64_t, uint64_t)
{
    truenorm_blocks::release();
}

static void set_memory_limit(StableIValue *stack, uint64_t, uint64_t)
{
    int64_t bytes = truenorm_torch::Args(stack).integer();
    truenorm_blocks::set_limit(bytes < 0 ? 0 : static_cast<size_t>(bytes));
}

STABLE_TORCH_LIBRARY_IMPL(truenorm, CompositeExplicitAutograd, m)
{
    m.impl("set_isa", &set_isa);
    m.impl("held_memory", &held_memory);
    m.impl("release_memory", &release_memory);
    m.impl("set_memory_limit", &set_memory_limit);
}

STABLE_TORCH_LIBRARY_IMPL(truenorm, CPU, m)
{
    m.impl("rms_norm", &truenorm_torch::rms_norm);
    m.impl("rms_norm.no_grad", &truenorm_torch::rms_norm);
    m.impl("layer_norm", &truenorm_torch::layer_norm);
    m.impl("layer_norm.no_grad", &truenorm_torch::layer_norm);
    m.impl("norm", &truenorm_torch::norm);
    m.impl("norm.no_grad", &truenorm_torch::norm);
    m.impl("add_norm", &truenorm_torch::add_norm);
    m.impl("add_norm.no_grad", &truenorm_torch::add_norm);
    m.impl("norm_stats", &truenorm_torch::norm_stats);
    m.impl("norm_quantized", &truenorm_torch::norm_quantized);
    m.impl("norm_scaled", &truenorm_torch::norm_scaled);
    m.impl("norm_backward", &truenorm_torch::norm_backward);
    m.impl("norm_backward.no_grad", &truenorm_torch::norm_backward);
    m.impl("rms_norm_backward", &truenorm_torch::rms_norm_backward);
    m.impl("layer_norm_backward", &truenorm_torch::layer_norm_backward);
    m.impl("empty_norm", &truenorm_torch::empty_norm);
    m.impl("empty_norm.no_grad", &truenorm_torch::empty_norm);
}
