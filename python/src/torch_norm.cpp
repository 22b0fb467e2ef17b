/* torch_norm.cpp - the forward operators. */
#include "torch_norm.h"

namespace truenorm_torch
{

void check_status(tn_status status)
{
    if (status != TN_OK)
        fail(std::string("truenorm: ") + tn_status_text(status));
}

/* ---- arguments ---- */

Options::Options(tn_kind kind, double eps) : desc(tn_norm_init(kind, 1, 0, eps))
{
    desc.flags = TN_NEGATIVE_EPS; /* torch computes with whatever eps it is given */
}

static size_t size_argument(int64_t value)
{
    return value < 0 ? SIZE_MAX : static_cast<size_t>(value); /* the library refuses what cannot be */
}

template <typename Enum> static void take_enum(Args &args, Enum *field)
{
    *field = static_cast<Enum>(args.integer());
}

Options::Options(Args &args) : desc(tn_norm_init(TN_RMS, 1, 0, 0.0))
{
    take_enum(args, &desc.kind);
    desc.eps = args.real();
    take_enum(args, &desc.eps_mode);
    take_enum(args, &desc.cast);
    take_enum(args, &desc.grade);
    desc.flags = static_cast<unsigned>(args.integer()) | TN_NEGATIVE_EPS;
    desc.weight_offset = args.real();
    desc.divisor = args.real();
    desc.group = size_argument(args.integer());
    desc.partial = size_argument(args.integer());
    desc.positions = size_argument(args.integer());
    take_enum(args, &desc.sum);
    take_enum(args, &desc.gate);
    take_enum(args, &desc.act);
    sum_dtype = args.maybe_dtype();
    out_dtype = args.maybe_dtype();
}

Operands::Operands(Args &args)
    : x(args.tensor()), weight(args.maybe_tensor()), bias(args.maybe_tensor()), residual(args.maybe_tensor()),
      gate(args.maybe_tensor()), mod_scale(args.maybe_tensor()), mod_shift(args.maybe_tensor())
{
}

/* ---- a call ---- */

static int precision(tn_dtype dtype)
{
    return dtype == TN_F64 ? 3 : dtype == TN_F32 ? 2 : 1;
}

/* torch.promote_types for the four floating dtypes. */
static tn_dtype promote(tn_dtype a, tn_dtype b)
{
    if (a == b)
        return a;
    if (precision(a) == 1 && precision(b) == 1)
        return TN_F32;
    return precision(a) > precision(b) ? a : b;
}

static tn_dtype default_dtype(tn_cast cast, tn_dtype x, tn_dtype weight)
{
    if (cast == TN_CAST_BEFORE_SCALE)
        return weight ? promote(x, weight) : x;
    if (cast == TN_CAST_T5)
        return weight == TN_BF16 || weight == TN_F16 ? weight : TN_F32;
    return x;
}

Call::Call(Operands operands, const Options &options)
    : desc(options.desc), io(tn_io_init()), x(std::move(operands.x), "x"),
      weight(std::move(operands.weight), "weight"), bias(std::move(operands.bias), "bias"),
      residual(std::move(operands.residual), "residual"), gate(std::move(operands.gate), "gate"),
      mod_scale(std::move(operands.mod_scale), "mod_scale"),
      mod_shift(std::move(operands.mod_shift), "mod_shift"), layout(x)
{
    desc.n = static_cast<size_t>(layout.n());
    size_t positions = desc.positions ? desc.positions : 1;
    if (desc.n % positions || (desc.group && desc.n % desc.group))
        fail("truenorm: group and positions must divide the last size of the input, " +
             std::to_string(desc.n));
    groups = desc.group ? static_cast<int64_t>(desc.n / desc.group) : 1;
    set_dtypes(options);
}

void Call::set_dtypes(const Options &options)
{
    io.y.dtype = options.out_dtype ? options.out_dtype : default_dtype(desc.cast, x.dtype, weight.dtype);
    io.sum.dtype = options.sum_dtype ? options.sum_dtype : x.dtype;
    if (tn_dtype_size(io.y.dtype) == 0 || tn_dtype_size(io.sum.dtype) == 0 || io.sum.dtype > TN_F16)
        fail("truenorm: this dtype cannot be a result");
}

void Call::describe(bool reduced)
{
    int64_t width = static_cast<int64_t>(desc.n / (desc.positions ? desc.positions : 1));
    layout.add_param(weight, width, reduced, "weight");
    layout.add_param(bias, width, reduced, "bias");
    layout.add_param(mod_scale, layout.n(), reduced, "mod_scale");
    layout.add_param(mod_shift, layout.n(), reduced, "mod_shift");
    layout.add_element(x, "x");
    layout.add_element(residual, "residual");
    layout.add_element(gate, "gate");
    layout.add_element(dy, "dy");
    layout.add_element(dsum, "dsum");
    layout.add_element(mean, "mean", groups);
    layout.add_element(rstd, "rstd", groups);
    layout.rows(desc.rows);
    io.x = layout.element(x);
    io.residual = layout.element(residual);
    io.gate = layout.element(gate);
    io.weight = layout.param(weight);
    io.bias = layout.param(bias);
    io.mod_scale = layout.param(mod_scale);
    io.mod_shift = layout.param(mod_shift);
    io.mean_in = layout.element(mean);
    io.rstd_in = layout.element(rstd);
}

/* ---- outputs ---- */

/* A new output of x's leading axes and `width` elements in the last, described in *out. */
static Owned make_output(const Call &call, tn_dtype dtype, int64_t width, tn_out *out)
{
    int64_t size[kMostAxes];
    for (int64_t i = 0; i < call.x.dim - 1; i++)
        size[i] = call.x.size[i];
    size[call.x.dim - 1] = width;
    void *data = nullptr;
    Owned tensor = make_tensor(size, call.x.dim, dtype, &data);
    *out = call.layout.output(data, dtype, width);
    return tensor;
}

static void check_float(tn_dtype dtype)
{
    if (dtype > TN_F16)
        fail("truenorm: out_dtype must be float64, float32, bfloat16 or float16");
}

static Owned make_y(Call &call)
{
    return make_output(call, call.io.y.dtype, call.layout.n(), &call.io.y);
}

static void run(Call &call)
{
    check_status(tn_norm_forward(&call.desc, &call.io, &torch_executor));
}

/* ---- operators ---- */

static void finish_single(Call &call, StableIValue *stack)
{
    call.describe(false);
    check_float(call.io.y.dtype);
    Owned y = make_y(call);
    run(call);
    Results(stack).add(std::move(y));
}

void rms_norm(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands;
    operands.x = args.tensor();
    operands.weight = args.maybe_tensor();
    Options options(TN_RMS, args.real());
    take_enum(args, &options.desc.cast);
    options.desc.weight_offset = args.real();
    Call call(std::move(operands), options);
    finish_single(call, stack);
}

void layer_norm(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands;
    operands.x = args.tensor();
    operands.weight = args.maybe_tensor();
    operands.bias = args.maybe_tensor();
    Options options(TN_LAYER, args.real());
    Call call(std::move(operands), options);
    finish_single(call, stack);
}

void norm(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands(args);
    Options options(args);
    Call call(std::move(operands), options);
    finish_single(call, stack);
}

void add_norm(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands(args);
    Options options(args);
    Call call(std::move(operands), options);
    if (!call.residual)
        fail("truenorm: add_norm needs a residual");
    call.describe(false);
    check_float(call.io.y.dtype);
    Owned sum = make_output(call, call.io.sum.dtype, call.layout.n(), &call.io.sum);
    Owned y = make_y(call);
    run(call);
    Results results(stack);
    results.add(std::move(y));
    results.add(std::move(sum));
}

void norm_stats(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands(args);
    Options options(args);
    tn_dtype stats = args.maybe_dtype();
    Call call(std::move(operands), options);
    call.describe(false);
    check_float(call.io.y.dtype);
    if (stats == TN_NONE)
        stats = call.x.dtype == TN_F64 ? TN_F64 : TN_F32;
    if (stats != TN_F64 && stats != TN_F32)
        fail("truenorm: stats_dtype must be float64 or float32");
    Owned mean = make_output(call, stats, call.groups, &call.io.mean);
    Owned rstd = make_output(call, stats, call.groups, &call.io.rstd);
    Owned y = make_y(call);
    run(call);
    Results results(stack);
    results.add(std::move(y));
    results.add(std::move(mean));
    results.add(std::move(rstd));
}

static void check_quantised(tn_dtype dtype)
{
    if (dtype != TN_I8 && dtype != TN_E4M3 && dtype != TN_E5M2)
        fail("truenorm: out_dtype must be int8, float8_e4m3fn or float8_e5m2");
}

/* With a scale of each row, which is returned. */
void norm_quantized(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands(args);
    Options options(args);
    Call call(std::move(operands), options);
    check_quantised(call.io.y.dtype);
    call.describe(false);
    Owned scale = make_output(call, TN_F32, 1, &call.io.scale_out);
    Owned y = make_y(call);
    run(call);
    Results results(stack);
    results.add(std::move(y));
    results.add(std::move(scale));
}

/* With a scale that is given: one for all rows, or one for each. */
void norm_scaled(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Owned given = args.tensor();
    Operands operands(args);
    Options options(args);
    Call call(std::move(operands), options);
    check_quantised(call.io.y.dtype);
    Tensor scale(std::move(given), "scale");
    int64_t one = 1;
    if (scale.dim == 0) {
        scale.dim = 1;
        scale.size = scale.stride = &one;
    }
    call.layout.add_param(scale, 1, false, "scale");
    call.describe(false);
    call.io.scale_in = call.layout.param(scale);
    Owned y = make_y(call);
    run(call);
    Results(stack).add(std::move(y));
}

/* Nothing but an output of x's shape: what any operator of this kind costs (truenorm.torch.overhead). */
void empty_norm(StableIValue *stack, uint64_t, uint64_t)
{
    Args args(stack);
    Operands operands;
    operands.x = args.tensor();
    operands.weight = args.maybe_tensor();
    Tensor x(std::move(operands.x), "x");
    void *data = nullptr;
    Owned y = make_tensor(x.size, x.dim, x.dtype, &data);
    Results(stack).add(std::move(y));
}

} // namespace truenorm_torch
