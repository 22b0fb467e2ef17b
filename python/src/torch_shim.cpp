/* torch_shim.cpp - see torch_shim.h. */
#include "torch_shim.h"

#include "blocks.h"

/* Since torch 2.11; null in 2.10, whose headers' target hides it. */
#ifdef __APPLE__
#define TN_WEAK __attribute__((weak_import))
#else
#define TN_WEAK __attribute__((weak))
#endif
extern "C" TN_WEAK AOTITorchError torch_from_blob(void *data, int64_t dim, const int64_t *sizes,
                                                  const int64_t *strides, int64_t offset, int32_t dtype,
                                                  int32_t device_type, int32_t device_index,
                                                  AtenTensorHandle *made, int32_t layout,
                                                  const uint8_t *metadata, int64_t metadata_size,
                                                  void (*deleter)(void *data, void *context), void *context);

namespace truenorm_torch
{

void fail(const std::string &message)
{
    throw std::runtime_error(message);
}

std::string shape_text(const int64_t *size, int64_t dim)
{
    std::string text = "[";
    for (int64_t i = 0; i < dim; i++)
        text += (i ? ", " : "") + std::to_string(size[i]);
    return text + "]";
}

/* ---- dtypes ---- */

namespace
{
struct Code {
    tn_dtype dtype;
    int32_t code;
    const char *name;
};

const Code *codes()
{
    static const Code table[] = {
        {TN_F32, aoti_torch_dtype_float32(), "float32"},
        {TN_BF16, aoti_torch_dtype_bfloat16(), "bfloat16"},
        {TN_F16, aoti_torch_dtype_float16(), "float16"},
        {TN_F64, aoti_torch_dtype_float64(), "float64"},
        {TN_I8, aoti_torch_dtype_int8(), "int8"},
        {TN_E4M3, aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
        {TN_E5M2, aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},
        {TN_NONE, 0, "none"},
    };
    return table;
}
} // namespace

tn_dtype dtype_of_code(int32_t code)
{
    const Code *c = codes();
    while (c->dtype != TN_NONE && c->code != code)
        c++;
    return c->dtype;
}

static const Code *entry(tn_dtype dtype)
{
    const Code *c = codes();
    while (c->dtype != TN_NONE && c->dtype != dtype)
        c++;
    return c;
}

int32_t code_of_dtype(tn_dtype dtype)
{
    return entry(dtype)->code;
}

const char *dtype_name(tn_dtype dtype)
{
    return entry(dtype)->name;
}

/* ---- tensors ---- */

Tensor::Tensor(Owned handle, const char *name) : owned(std::move(handle))
{
    AtenTensorHandle h = owned.get();
    if (!h)
        return;
    int32_t code = -1;
    int64_t *sizes = nullptr, *strides = nullptr;
    check(torch_get_const_data_ptr(h, &data), "data_ptr");
    check(aoti_torch_get_dtype(h, &code), "dtype");
    check(aoti_torch_get_dim(h, &dim), "dim");
    check(aoti_torch_get_sizes(h, &sizes), "sizes");
    check(aoti_torch_get_strides(h, &strides), "strides");
    size = sizes;
    stride = strides;
    dtype = dtype_of_code(code);
    if (dtype == TN_NONE || dtype > TN_F16)
        fail(std::string("truenorm: ") + name + " must be float64, float32, bfloat16 or float16");
}

Tensor contiguous(const Tensor &tensor, const char *name)
{
    AtenTensorHandle again = nullptr;
    check(aoti_torch_new_tensor_handle(tensor.owned.get(), &again), "new_tensor_handle");
    torch::stable::Tensor copy = torch::stable::contiguous(torch::stable::Tensor(again));
    check(aoti_torch_new_tensor_handle(copy.get(), &again), "new_tensor_handle");
    return Tensor(Owned(again), name);
}

static void give_back(void *data, void *size)
{
    truenorm_blocks::give({data, reinterpret_cast<size_t>(size)});
}

/* A large tensor over a block, which its storage gives back; none if there is no block. */
static Owned make_large(const int64_t *size, const int64_t *stride, int64_t dim, tn_dtype dtype,
                        size_t elements, void **data)
{
    if (!torch_from_blob || elements < truenorm_blocks::kLeast / 8) /* 8: the largest element */
        return Owned();
    truenorm_blocks::Block block = truenorm_blocks::take(elements * tn_dtype_size(dtype));
    if (!block.data)
        return Owned();
    AtenTensorHandle handle = nullptr;
    void *context = reinterpret_cast<void *>(block.size);
    if (torch_from_blob(block.data, dim, size, stride, 0, code_of_dtype(dtype), aoti_torch_device_type_cpu(),
                        -1, &handle, aoti_torch_layout_strided(), nullptr, 0, give_back,
                        context) != TORCH_SUCCESS) {
        truenorm_blocks::give(block);
        return Owned();
    }
    *data = block.data;
    return Owned(handle);
}

Owned make_tensor(const int64_t *size, int64_t dim, tn_dtype dtype, void **data)
{
    int64_t stride[kMostAxes], step = 1;
    bool none = false;
    for (int64_t i = dim; i-- > 0;) {
        stride[i] = step;
        step *= size[i] > 1 ? size[i] : 1;
        none = none || size[i] == 0;
    }
    if (Owned large = make_large(size, stride, dim, dtype, none ? 0 : static_cast<size_t>(step), data))
        return large;
    AtenTensorHandle handle = nullptr;
    check(aoti_torch_empty_strided(dim, size, stride, code_of_dtype(dtype), aoti_torch_device_type_cpu(), 0,
                                   &handle),
          "empty_strided");
    Owned owned(handle);
    check(torch_get_mutable_data_ptr(handle, data), "data_ptr");
    return owned;
}

Owned undefined_tensor()
{
    AtenTensorHandle handle = nullptr;
    check(aoti_torch_new_uninitialized_tensor(&handle), "new_uninitialized_tensor");
    return Owned(handle);
}

/* ---- arguments ---- */

/* The value that an optional argument points to, freed as the stable ABI of torch 2.10 asks. */
static std::optional<StableIValue> take_optional(StableIValue argument)
{
    StableIValue *pointer = torch::stable::detail::to<StableIValue *>(argument);
    if (!pointer)
        return std::nullopt;
    StableIValue value = *pointer;
    delete pointer;
    return value;
}

Owned Args::maybe_tensor()
{
    std::optional<StableIValue> value = take_optional(*next_++);
    if (!value)
        return Owned();
    Owned owned(torch::stable::detail::to<AtenTensorHandle>(*value));
    bool defined = false;
    check(aoti_torch_is_defined(owned.get(), &defined), "is_defined");
    return defined ? std::move(owned) : Owned();
}

tn_dtype Args::maybe_dtype()
{
    std::optional<StableIValue> value = take_optional(*next_++);
    if (!value)
        return TN_NONE;
    tn_dtype dtype = dtype_of_code(torch::stable::detail::to<int32_t>(*value));
    return dtype == TN_NONE ? static_cast<tn_dtype>(-1) : dtype;
}

uint64_t Args::mask()
{
    StableListHandle list = torch::stable::detail::to<StableListHandle>(*next_++);
    size_t count = 0;
    uint64_t bits = 0;
    AOTITorchError code = torch_list_size(list, &count);
    for (size_t i = 0; i < count && i < 64 && code == TORCH_SUCCESS; i++) {
        StableIValue item = 0;
        code = torch_list_get_item(list, i, &item);
        if (torch::stable::detail::to<bool>(item))
            bits |= uint64_t{1} << i;
    }
    torch_delete_list(list);
    check(code, "bool[]");
    return bits;
}

/* ---- threads ---- */

namespace
{
struct Loop {
    void (*task)(void *, size_t);
    void *arg;
};

void run_range(int64_t begin, int64_t end, void *ctx)
{
    const Loop *loop = static_cast<const Loop *>(ctx);
    for (int64_t i = begin; i < end; i++)
        loop->task(loop->arg, static_cast<size_t>(i));
}

/* at::parallel_for, by its stable name. The caller is C and cannot be unwound: if torch refuses, run all here (tasks
 * may be repeated). */
void torch_for(void *, size_t tasks, void (*task)(void *, size_t), void *arg)
{
    Loop loop = {task, arg};
    if (torch_parallel_for(0, static_cast<int64_t>(tasks), 1, run_range, &loop) != TORCH_SUCCESS)
        run_range(0, static_cast<int64_t>(tasks), &loop);
}
} // namespace

const tn_executor torch_executor = {torch_for, nullptr};

} // namespace truenorm_torch
