// array.cpp - see array.hpp.
#include "array.hpp"

#include <nanobind/ndarray.h>

#include <cstring>

#include "blocks.h"

namespace tn
{

namespace
{

struct Known {
    tn_dtype dtype;
    const char *name;
    int number;           // NumPy's type number
    PyArray_Descr *descr; // owned, never freed
};

Known known[] = {
    {TN_F64, "float64", NPY_DOUBLE, nullptr}, {TN_F32, "float32", NPY_FLOAT, nullptr},
    {TN_BF16, "bfloat16", -1, nullptr},       {TN_F16, "float16", NPY_HALF, nullptr},
    {TN_I8, "int8", NPY_BYTE, nullptr},       {TN_E4M3, "float8_e4m3fn", -1, nullptr},
    {TN_E5M2, "float8_e5m2", -1, nullptr},
};

const Known &entry(tn_dtype dtype)
{
    return known[dtype - TN_F64];
}

tn_dtype dtype_of(int number)
{
    for (const Known &k : known)
        if (k.number == number)
            return k.dtype;
    return TN_NONE;
}

std::string type_text(nb::handle object)
{
    return nb::cast<std::string>(
        nb::handle(reinterpret_cast<PyObject *>(Py_TYPE(object.ptr()))).attr("__name__"));
}

std::string describe(const Array &a)
{
    nb::handle descr(reinterpret_cast<PyObject *>(PyArray_DESCR(a.get())));
    return "dtype " + nb::cast<std::string>(nb::str(descr));
}

// ---- DLPack ----

tn_dtype dtype_of_dlpack(const nb::dlpack::dtype &d)
{
    const auto code = static_cast<nb::dlpack::dtype_code>(d.code);
    if (d.lanes != 1)
        return TN_NONE;
    if (code == nb::dlpack::dtype_code::Float)
        return d.bits == 64 ? TN_F64 : d.bits == 32 ? TN_F32 : d.bits == 16 ? TN_F16 : TN_NONE;
    if (code == nb::dlpack::dtype_code::Bfloat && d.bits == 16)
        return TN_BF16;
    if (code == nb::dlpack::dtype_code::Int && d.bits == 8)
        return TN_I8;
    if (code == nb::dlpack::dtype_code::Float8_E4M3FN)
        return TN_E4M3;
    return code == nb::dlpack::dtype_code::Float8_E5M2 ? TN_E5M2 : TN_NONE;
}

// Why an exporter did not give its memory: ask it again and listen.
[[noreturn]] void throw_refused(nb::handle object, const char *name, bool writable)
{
    std::string why = writable ? "it is not writable" : "its memory is not accessible";
    try {
        nb::object capsule = object.attr("__dlpack__")();
    } catch (nb::python_error &e) {
        why = nb::cast<std::string>(nb::str(e.value()));
    }
    throw_type(std::string(name) + ": the " + type_text(object) + " cannot be used through DLPack: " + why);
}

template <typename View> Array wrap(nb::handle object, const char *name, bool writable)
{
    View view;
    if (!nb::try_cast<View>(object, view))
        throw_refused(object, name, writable);
    constexpr int cpu = 1, pinned = 3;
    if (view.device_type() != cpu && view.device_type() != pinned)
        throw_type(std::string(name) + ": the " + type_text(object) + " is not in CPU memory");
    tn_dtype dtype = dtype_of_dlpack(view.dtype());
    if (dtype == TN_NONE)
        throw_type(std::string(name) + ": the " + type_text(object) +
                   "'s dtype is not one of float64, float32, float16, bfloat16");
    if (view.ndim() > static_cast<size_t>(MOST_AXES) + 1)
        throw_value(std::string(name) + ": too many axes");
    const auto axes = static_cast<int>(view.ndim());
    npy_intp shape[MOST_AXES + 1], strides[MOST_AXES + 1];
    for (int k = 0; k < axes; k++) {
        shape[k] = static_cast<npy_intp>(view.shape(static_cast<size_t>(k)));
        strides[k] = static_cast<npy_intp>(view.stride(static_cast<size_t>(k))) *
                     static_cast<npy_intp>(tn_dtype_size(dtype));
    }
    char *data = static_cast<char *>(const_cast<void *>(static_cast<const void *>(view.data())));
    auto *keep = new View(std::move(view));
    nb::capsule base(keep, [](void *p) noexcept { delete static_cast<View *>(p); });
    Array owner;
    owner.owner = base;
    owner.dtype = dtype;
    return make_view(owner, data, axes, shape, strides, writable);
}

// ---- NumPy ----

Array take_numpy(nb::handle object, const char *name)
{
    Array a;
    a.owner = nb::borrow(object);
    if (!PyArray_CheckExact(object.ptr()) && nb::hasattr(object, "mask"))
        throw_type(std::string(name) + ": masked arrays are not taken; fill them first");
    a.dtype = dtype_of(PyArray_TYPE(a.get()));
    if (a.dtype != TN_NONE && PyArray_ISBYTESWAPPED(a.get()))
        throw_type(std::string(name) + ": " + describe(a) + " is not in this machine's byte order");
    if (a.axes() > MOST_AXES + 1)
        throw_value(std::string(name) + ": too many axes");
    return a;
}

Array take(nb::handle object, const char *name, bool writable)
{
    if (PyArray_Check(object.ptr()))
        return take_numpy(object, name);
    if (!nb::hasattr(object, "__dlpack__"))
        throw_type(std::string(name) + ": expected a NumPy array or an object with __dlpack__, got " +
                   type_text(object));
    if (nb::cast<bool>(nb::bool_(nb::getattr(object, "requires_grad", nb::bool_(false)))))
        throw_type(std::string(name) + ": the " + type_text(object) +
                   " requires a gradient, which would be lost; use truenorm.torch, or pass x.detach()");
    return writable ? wrap<nb::ndarray<>>(object, name, true)
                    : wrap<nb::ndarray<nb::ro>>(object, name, false);
}

} // namespace

void throw_type(const std::string &message)
{
    throw nb::type_error(message.c_str());
}

void throw_value(const std::string &message)
{
    throw nb::value_error(message.c_str());
}

void load_dtypes()
{
    nb::module_ extra = nb::module_::import_("ml_dtypes"), numpy = nb::module_::import_("numpy");
    for (Known &k : known) {
        if (k.number < 0) {
            nb::object descr = numpy.attr("dtype")(extra.attr(k.name));
            k.descr = reinterpret_cast<PyArray_Descr *>(descr.release().ptr());
            k.number = k.descr->type_num;
        } else {
            k.descr = PyArray_DescrFromType(k.number);
        }
    }
}

Array take_input(nb::handle object, const char *name, Allowed allowed)
{
    if (!object.is_valid() || object.is_none())
        return {};
    Array a = take(object, name, false);
    bool fine = a.dtype == TN_F64 || a.dtype == TN_F32 ||
                (allowed == Allowed::floats && (a.dtype == TN_BF16 || a.dtype == TN_F16));
    if (!fine)
        throw_type(std::string(name) + ": " + describe(a) + " is not one of float64, float32" +
                   (allowed == Allowed::floats ? ", float16, bfloat16" : ""));
    return a;
}

Array take_output(nb::handle object, const char *name)
{
    if (!object.is_valid() || object.is_none())
        return {};
    Array a = take(object, name, true);
    if (a.dtype == TN_NONE)
        throw_type(std::string(name) + ": " + describe(a) + " cannot be written");
    if (!PyArray_ISWRITEABLE(a.get()))
        throw_value(std::string(name) + ": the array is read-only");
    return a;
}

Array make_view(const Array &base, char *data, int axes, const npy_intp *shape, const npy_intp *strides,
                bool writable)
{
    PyArray_Descr *descr = entry(base.dtype).descr;
    Py_INCREF(reinterpret_cast<PyObject *>(descr));
    PyObject *made = PyArray_NewFromDescr(&PyArray_Type, descr, axes, const_cast<npy_intp *>(shape),
                                          const_cast<npy_intp *>(strides), data,
                                          writable ? NPY_ARRAY_WRITEABLE : 0, nullptr);
    if (!made)
        throw nb::python_error();
    Array view;
    view.owner = nb::steal(made);
    view.dtype = base.dtype;
    nb::object keep = base.owner;
    if (PyArray_SetBaseObject(view.get(), keep.release().ptr()) != 0)
        throw nb::python_error();
    return view;
}

// A large array over a block, to which its base object gives it back; none if there is no block.
static Array make_large(tn_dtype dtype, int axes, const npy_intp *shape)
{
    size_t bytes = tn_dtype_size(dtype);
    for (int k = 0; k < axes; k++)
        if (__builtin_mul_overflow(bytes, static_cast<size_t>(shape[k]), &bytes))
            return {}; // NumPy has the words for it
    truenorm_blocks::Block block = truenorm_blocks::take(bytes);
    if (!block.data)
        return {};
    auto *keep = new truenorm_blocks::Block(block);
    Array base;
    base.dtype = dtype;
    base.owner = nb::capsule(keep, [](void *p) noexcept {
        auto *kept = static_cast<truenorm_blocks::Block *>(p);
        truenorm_blocks::give(*kept);
        delete kept;
    });
    return make_view(base, static_cast<char *>(block.data), axes, shape, nullptr, true);
}

Array make_array(tn_dtype dtype, int axes, const npy_intp *shape)
{
    if (Array large = make_large(dtype, axes, shape))
        return large;
    PyArray_Descr *descr = entry(dtype).descr;
    Py_INCREF(reinterpret_cast<PyObject *>(descr));
    PyObject *made = PyArray_NewFromDescr(&PyArray_Type, descr, axes, const_cast<npy_intp *>(shape), nullptr,
                                          nullptr, 0, nullptr);
    if (!made)
        throw nb::python_error();
    Array a;
    a.owner = nb::steal(made);
    a.dtype = dtype;
    return a;
}

Array contiguous_copy(const Array &a)
{
    Array copy;
    copy.owner = nb::steal(PyArray_NewCopy(a.get(), NPY_CORDER));
    if (!copy.owner.is_valid())
        throw nb::python_error();
    copy.dtype = a.dtype;
    return copy;
}

void copy_into(const Array &to, const Array &from)
{
    if (PyArray_CopyInto(to.get(), from.get()) != 0)
        throw nb::python_error();
}

const char *dtype_name(tn_dtype dtype)
{
    return entry(dtype).name;
}

tn_dtype parse_dtype(nb::handle object, const char *name)
{
    if (PyUnicode_Check(object.ptr()))
        for (const Known &k : known)
            if (PyUnicode_CompareWithASCIIString(object.ptr(), k.name) == 0)
                return k.dtype;
    PyArray_Descr *descr = nullptr;
    if (PyArray_DescrConverter(object.ptr(), &descr) != NPY_SUCCEED) {
        PyErr_Clear();
        throw_type(std::string(name) + ": " + nb::cast<std::string>(nb::repr(object)) + " is not a dtype");
    }
    nb::object keep = nb::steal(reinterpret_cast<PyObject *>(descr));
    tn_dtype dtype = dtype_of(descr->type_num);
    if (dtype == TN_NONE || !PyArray_ISNBO(descr->byteorder))
        throw_type(std::string(name) + ": dtype " + nb::cast<std::string>(nb::str(keep)) +
                   " is not supported");
    return dtype;
}

tn_dtype promote(tn_dtype a, tn_dtype b)
{
    if (a == b || b == TN_NONE)
        return a;
    if (a == TN_F64 || b == TN_F64)
        return TN_F64;
    return TN_F32;
}

std::string shape_text(int axes, const npy_intp *shape)
{
    std::string text = "(";
    for (int k = 0; k < axes; k++)
        text += (k ? ", " : "") + std::to_string(shape[k]);
    return text + (axes == 1 ? ",)" : ")");
}

} // namespace tn
