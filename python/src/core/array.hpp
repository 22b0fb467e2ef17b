// array.hpp - arrays of NumPy and of anything with DLPack as plain views; allocation of results.
#pragma once

#include <string>

#include "numpy_api.hpp"

namespace tn
{

// More axes than this in front of the last one are refused.
constexpr int MOST_AXES = 32;

// A NumPy array (or none), its memory and the dtype of truenorm.h.
struct Array {
    nb::object owner;
    tn_dtype dtype = TN_NONE;

    explicit operator bool() const
    {
        return owner.is_valid();
    }
    PyArrayObject *get() const
    {
        return reinterpret_cast<PyArrayObject *>(owner.ptr());
    }
    char *data() const
    {
        return PyArray_BYTES(get());
    }
    int axes() const
    {
        return PyArray_NDIM(get());
    }
    const npy_intp *shape() const
    {
        return PyArray_DIMS(get());
    }
    const npy_intp *strides() const
    {
        return PyArray_STRIDES(get());
    } // bytes
    npy_intp last() const
    {
        return shape()[axes() - 1];
    }
};

// Which dtypes an operand may have.
enum class Allowed { floats, statistics };

// Finds ml_dtypes' types; once, before anything else here.
void load_dtypes();

// What a user passed as operand `name`: a NumPy array as it is, a DLPack exporter as a view of its memory, or none for
// None. TypeError for anything else, for a dtype that is not allowed and for memory that is not the CPU's.
Array take_input(nb::handle object, const char *name, Allowed allowed = Allowed::floats);
// The same for an array that is written to.
Array take_output(nb::handle object, const char *name);

// A new array in C order.
Array make_array(tn_dtype dtype, int axes, const npy_intp *shape);
// A view of `base`'s memory with any shape and strides (in bytes; NULL: C order).
Array make_view(const Array &base, char *data, int axes, const npy_intp *shape, const npy_intp *strides,
                bool writable);
// A copy in C order.
Array contiguous_copy(const Array &a);
// NumPy's assignment, without a change of dtype.
void copy_into(const Array &to, const Array &from);

// A dtype that a user named: a string, a NumPy dtype or a scalar type.
tn_dtype parse_dtype(nb::handle object, const char *name);
const char *dtype_name(tn_dtype dtype);
// The smallest float type that holds both, as torch and ml_dtypes have it: bf16 with f16 is f32.
tn_dtype promote(tn_dtype a, tn_dtype b);

// "(2, 3)"
std::string shape_text(int axes, const npy_intp *shape);

[[noreturn]] void throw_type(const std::string &message);
[[noreturn]] void throw_value(const std::string &message);

} // namespace tn
