/* torch_shim.h - what the operators use of LibTorch's stable C interface: owned handles, tensor views, arguments.
 *
 * Kernels are boxed by hand. torch::stable::Tensor and TORCH_BOX would cost two allocations and a few copies of
 * shared pointers an operand, and torch::stable::detail::to<std::string> leaks its string (torch 2.13), so no operator
 * takes a string. */
#ifndef TRUENORM_TORCH_SHIM_H
#define TRUENORM_TORCH_SHIM_H

#ifndef TORCH_TARGET_VERSION
#define TORCH_TARGET_VERSION 0x020a000000000000 /* the stable interface as of torch 2.10 */
#endif
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "truenorm.h"

namespace truenorm_torch
{

constexpr int kMostAxes = 64; /* torch's own limit */

/* Throws the RuntimeError that Python sees. */
[[noreturn]] void fail(const std::string &message);
/* "[2, 3]" */
std::string shape_text(const int64_t *size, int64_t dim);

inline void check(AOTITorchError code, const char *what)
{
    if (code != TORCH_SUCCESS)
        fail(std::string("truenorm: ") + what + " failed");
}

/* A tensor handle that is deleted at the end of its scope; null for an absent operand. */
class Owned
{
  public:
    Owned() = default;
    explicit Owned(AtenTensorHandle handle) : handle_(handle) {}
    Owned(Owned &&other) noexcept : handle_(other.release()) {}
    Owned &operator=(Owned &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;
    ~Owned()
    {
        if (handle_)
            aoti_torch_delete_tensor_object(handle_);
    }
    AtenTensorHandle get() const
    {
        return handle_;
    }
    AtenTensorHandle release()
    {
        return std::exchange(handle_, nullptr);
    }
    explicit operator bool() const
    {
        return handle_ != nullptr;
    }

  private:
    AtenTensorHandle handle_ = nullptr;
};

/* The dtypes of the library under torch's codes, which are known at run time only. */
tn_dtype dtype_of_code(int32_t code); /* TN_NONE for any other */
int32_t code_of_dtype(tn_dtype dtype);
const char *dtype_name(tn_dtype dtype);

/* An operand: the tensor and what is asked of it often. */
struct Tensor {
    Owned owned;
    const void *data = nullptr;
    tn_dtype dtype = TN_NONE;
    int64_t dim = 0;
    const int64_t *size = nullptr;
    const int64_t *stride = nullptr;

    Tensor() = default;
    explicit Tensor(Owned handle, const char *name); /* `name` is for the message about a wrong dtype */
    explicit operator bool() const
    {
        return static_cast<bool>(owned);
    }
    int64_t last_size() const
    {
        return size[dim - 1];
    }
    int64_t last_stride() const
    {
        return stride[dim - 1];
    }
};

/* A contiguous copy. */
Tensor contiguous(const Tensor &tensor, const char *name);

/* A new contiguous tensor; `data` is where it lies. */
Owned make_tensor(const int64_t *size, int64_t dim, tn_dtype dtype, void **data);
Owned undefined_tensor(); /* None in Python */

/* The arguments of one call, in order. Take all of them before anything can throw: what is not taken leaks. */
class Args
{
  public:
    explicit Args(StableIValue *stack) : next_(stack) {}
    Owned tensor()
    {
        return Owned(torch::stable::detail::to<AtenTensorHandle>(*next_++));
    }
    Owned maybe_tensor();
    int64_t integer()
    {
        return torch::stable::detail::to<int64_t>(*next_++);
    }
    double real()
    {
        return torch::stable::detail::to<double>(*next_++);
    }
    tn_dtype maybe_dtype(); /* TN_NONE for None; a dtype that the library lacks is refused by `checked` */
    uint64_t mask();        /* bool[]: element i is bit i */

  private:
    StableIValue *next_;
};

/* The results of one call. */
class Results
{
  public:
    explicit Results(StableIValue *stack) : next_(stack) {}
    void add(Owned tensor)
    {
        *next_++ = torch::stable::detail::from(tensor.release());
    }

  private:
    StableIValue *next_;
};

/* torch's own thread pool. */
extern const tn_executor torch_executor;

} // namespace truenorm_torch
#endif
