/* torch_grad.cpp - the backward operator. */
#include "torch_norm.h"

namespace truenorm_torch
{

namespace
{

/* The places of the gradients in output_mask and in the result. */
enum Output { DX, DRESIDUAL, DGATE, DWEIGHT, DBIAS, DMOD_SCALE, DMOD_SHIFT, OUTPUTS };

struct Gradients {
    Call &call;
    uint64_t mask;
    tn_norm_grads grads = tn_grads_init();
    Owned tensors[OUTPUTS];

    Gradients(Call &prepared, uint64_t output_mask) : call(prepared), mask(output_mask) {}

    bool wanted(Output which, const Tensor &like) const
    {
        return (mask >> which & 1) && like;
    }

    /* A gradient of the shape and dtype of an elementwise input. */
    void element(Output which, const Tensor &like, tn_out *out)
    {
        if (!wanted(which, like))
            return;
        void *data = nullptr;
        tensors[which] = make_tensor(like.size, like.dim, like.dtype, &data);
        *out = call.layout.output(data, like.dtype, call.layout.n());
    }

    void param(Output which, const Tensor &like, tn_out *out)
    {
        if (!wanted(which, like))
            return;
        void *data = nullptr;
        tensors[which] = make_tensor(like.size, like.dim, like.dtype, &data);
        *out = call.layout.param_output(data, like.dtype, like);
    }
};

void run(Gradients &g)
{
    Call &call = g.call;
    call.io.sum.data = nullptr; /* only its dtype counts here */
    g.grads.dy = call.layout.element(call.dy);
    g.grads.dsum = call.layout.element(call.dsum);
    g.element(DX, call.x, &g.grads.dx);
    g.element(DRESIDUAL, call.residual, &g.grads.dresidual);
    g.element(DGATE, call.gate, &g.grads.dgate);
    g.param(DWEIGHT, call.weight, &g.grads.dweight);
    g.param(DBIAS, call.bias, &g.grads.dbias);
    g.param(DMOD_SCALE, call.mod_scale, &g.grads.dmod_scale);
    g.param(DMOD_SHIFT, call.mod_shift, &g.grads.dmod_shift);
    bool any = false;
    for (const Owned &tensor : g.tensors)
        any = any || tensor;
    if (any)
        check_status(tn_norm_backward(&call.desc, &call.io, &g.grads, &torch_executor));
}

} // namespace

/* The backwards of the two frequent norms: a call with few arguments is that much faster. `need`: bit 0 is x, then
 * weight and bias. */
static uint64_t needed(int64_t need)
{
    uint64_t bits = static_cast<uint64_t>(need);
    return (bits & 1) << DX | (bits >> 1 & 1) << DWEIGHT | (bits >> 2 & 1) << DBIAS;
}

static void finish(Call &call, Owned dy, int64_t need, StableIValue *stack, bool bias)
{
    call.dy = Tensor(std::move(dy), "dy");
    call.describe(true);
    Gradients g(call, needed(need));
    run(g);
    Results results(stack);
    for (Output which : {DX, DWEIGHT, DBIAS})
        if (which != DBIAS || bias)
            results.add(g.tensors[which] ? std::move(g.tensors[which]) : undefined_tensor());
}

void rms_norm_backward(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Owned dy = args.tensor();
    Operands operands;
    operands.x = args.tensor();
    operands.weight = args.maybe_tensor();
    Options options(TN_RMS, args.real());
    options.desc.cast = static_cast<tn_cast>(args.integer());
    options.desc.weight_offset = args.real();
    int64_t need = args.integer();
    Call call(std::move(operands), options);
    finish(call, std::move(dy), need, stack, false);
}

void layer_norm_backward(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Owned dy = args.tensor();
    Operands operands;
    operands.x = args.tensor();
    operands.weight = args.maybe_tensor();
    operands.bias = args.maybe_tensor();
    Options options(TN_LAYER, args.real());
    int64_t need = args.integer();
    Call call(std::move(operands), options);
    finish(call, std::move(dy), need, stack, true);
}

void norm_backward(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Owned dy = args.tensor(), dsum = args.maybe_tensor();
    Operands operands(args);
    Owned mean = args.maybe_tensor(), rstd = args.maybe_tensor();
    Options options(args);
    uint64_t mask = args.mask();
    Call call(std::move(operands), options);
    call.dy = Tensor(std::move(dy), "dy");
    call.dsum = Tensor(std::move(dsum), "dsum");
    call.mean = Tensor(std::move(mean), "mean");
    call.rstd = Tensor(std::move(rstd), "rstd");
    call.describe(true);
    Gradients g(call, mask);
    run(g);
    Results results(stack);
    for (Owned &tensor : g.tensors)
        results.add(tensor ? std::move(tensor) : undefined_tensor());
}

} // namespace truenorm_torch
