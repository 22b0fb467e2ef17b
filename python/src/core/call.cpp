// call.cpp - see call.hpp.
#include "call.hpp"

#include <cfloat>
#include <cmath>
#include <new>

#include "pool.hpp"

namespace tn
{

namespace
{

constexpr const char *names[] = {
#define K(name) #name,
    TN_KEYWORDS(K)
#undef K
};
constexpr size_t key_count = static_cast<size_t>(Key::count);
PyObject *interned[key_count];

size_t find(PyObject *name)
{
    for (size_t k = 0; k < key_count; k++)
        if (interned[k] == name)
            return k;
    for (size_t k = 0; k < key_count; k++)
        if (PyUnicode_Compare(interned[k], name) == 0)
            return k;
    return key_count;
}

std::string quoted(nb::handle value)
{
    return nb::cast<std::string>(nb::repr(value));
}

} // namespace

const char *key_name(Key key)
{
    return names[static_cast<size_t>(key)];
}

void load_keywords()
{
    for (size_t k = 0; k < key_count; k++)
        interned[k] = PyUnicode_InternFromString(names[k]);
}

Keywords::Keywords(const char *function, const nb::kwargs &given, KeySet taken)
{
    static_assert(key_count <= 64, "KeySet is too small");
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &value);) {
        size_t k = find(name);
        if (k == key_count || !(taken >> k & 1))
            throw_type(std::string(function) + "() got an unexpected keyword argument " + quoted(name));
        values_[k] = value;
    }
}

bool Keywords::flag(Key key) const
{
    nb::handle h = get(key);
    if (!h.is_valid())
        return false;
    int truth = PyObject_IsTrue(h.ptr());
    if (truth < 0)
        throw nb::python_error();
    return truth != 0;
}

double Keywords::number(Key key, double otherwise) const
{
    nb::handle h = get(key);
    if (!h.is_valid())
        return otherwise;
    double value = PyFloat_AsDouble(h.ptr());
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        throw_type(std::string(key_name(key)) + ": expected a number, got " + quoted(h));
    }
    return value;
}

size_t Keywords::size(Key key) const
{
    nb::handle h = get(key);
    if (!h.is_valid())
        return 0;
    Py_ssize_t value = PyNumber_AsSsize_t(h.ptr(), PyExc_OverflowError);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw_type(std::string(key_name(key)) + ": expected an integer, got " + quoted(h));
    }
    if (value < 1)
        throw_value(std::string(key_name(key)) + ": must be at least 1, got " + std::to_string(value));
    return static_cast<size_t>(value);
}

int Keywords::choice(Key key, std::initializer_list<const char *> words) const
{
    nb::handle h = get(key);
    if (!h.is_valid())
        return 0;
    int index = 0;
    std::string list;
    for (const char *word : words) {
        if (PyUnicode_Check(h.ptr()) && PyUnicode_CompareWithASCIIString(h.ptr(), word) == 0)
            return index;
        list += (index++ ? ", '" : "'") + std::string(word) + "'";
    }
    std::string message = std::string(key_name(key)) + ": expected one of " + list + ", got " + quoted(h);
    if (PyUnicode_Check(h.ptr()))
        throw_value(message);
    throw_type(message);
}

tn_norm_desc parse_desc(const Keywords &kw, tn_dtype x)
{
    const tn_kind kind = static_cast<tn_kind>(kw.choice(Key::kind, {"rms", "layer", "l2"}));
    const double none = x == TN_F64 ? DBL_EPSILON : static_cast<double>(FLT_EPSILON);
    tn_norm_desc d = tn_norm_init(kind, 0, 0, kw.is_none(Key::eps) ? none : kw.number(Key::eps, 1e-6));
    if (std::isnan(d.eps))
        throw_value("eps: must be a number, got nan");
    d.flags = TN_NEGATIVE_EPS | (kw.flag(Key::round_rstd) ? TN_ROUND_RSTD : 0u) |
              (kw.flag(Key::round_offset) ? TN_ROUND_OFFSET : 0u) |
              (kw.flag(Key::round_product) ? TN_ROUND_PRODUCT : 0u);
    d.eps_mode = static_cast<tn_eps_mode>(kw.choice(Key::eps_mode, {"inside", "outside", "clamp"}));
    d.cast = static_cast<tn_cast>(kw.choice(Key::cast, {"once", "before_scale", "t5"}));
    d.grade = static_cast<tn_grade>(kw.choice(Key::grade, {"exact", "fast"}));
    d.weight_offset = kw.number(Key::weight_offset, 0.0);
    if (!std::isfinite(d.weight_offset))
        throw_value("weight_offset: must be finite");
    if (kw.get(Key::divisor).is_valid()) {
        d.divisor = kw.number(Key::divisor, 0.0);
        if (!(d.divisor > 0 && std::isfinite(d.divisor)))
            throw_value("divisor: must be positive and finite");
    }
    d.group = kw.size(Key::group);
    d.partial = kw.size(Key::partial);
    d.positions = kw.size(Key::positions);
    d.act = static_cast<tn_act>(kw.choice(Key::act, {"silu", "sigmoid"}));
    d.sum = static_cast<tn_sum>(kw.choice(Key::sum, {"rounded", "exact"}));
    const bool before = kw.choice(Key::gate_order, {"before", "after"}) == 0;
    if (kw.get(Key::gate).is_valid())
        d.gate = before ? TN_GATE_BEFORE : TN_GATE_AFTER;
    return d;
}

tn_dtype result_dtype(const Keywords &kw, const tn_norm_desc &desc, tn_dtype x, tn_dtype weight)
{
    nb::handle asked = kw.get(Key::out_dtype);
    if (asked.is_valid()) {
        tn_dtype dtype = parse_dtype(asked, "out_dtype");
        if (dtype >= TN_I8)
            throw_type("out_dtype: int8 and fp8 need a scale; use norm_quantized");
        return dtype;
    }
    if (desc.cast == TN_CAST_ONCE)
        return x;
    if (desc.cast == TN_CAST_BEFORE_SCALE)
        return promote(x, weight);
    if (weight == TN_BF16 || weight == TN_F16)
        return weight;
    return x == TN_F64 ? TN_F64 : TN_F32;
}

size_t thread_count(const Keywords &kw)
{
    size_t asked = kw.size(Key::threads);
    return asked ? asked : default_threads();
}

void check_status(tn_status status)
{
    const std::string text = tn_status_text(status);
    switch (status) {
    case TN_OK:
        return;
    case TN_ERR_DTYPE:
        throw_type(text);
    case TN_ERR_VALUE:
    case TN_ERR_SIZE:
    case TN_ERR_OVERLAP:
    case TN_ERR_NULL:
    case TN_ERR_ISA:
        throw_value(text);
    case TN_ERR_MEMORY:
        throw std::bad_alloc();
    default:
        PyErr_SetString(PyExc_RuntimeError, text.c_str());
        throw nb::python_error();
    }
}

} // namespace tn
