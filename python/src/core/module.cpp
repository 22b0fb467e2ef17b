// module.cpp - truenorm._core. The Python side and its types are in _core.pyi.
#define TN_LOAD_NUMPY
#include "calls.hpp"

#include <nanobind/stl/vector.h>

#include "array.hpp"
#include "blocks.h"
#include "call.hpp"
#include "pool.hpp"

namespace
{

std::vector<std::string> isa_list()
{
    const char *names[16];
    size_t count = tn_isa_list(names, 16);
    return std::vector<std::string>(names, names + (count < 16 ? count : 16));
}

void set_isa(const std::string &name)
{
    if (tn_isa_set(name.c_str()) == TN_OK)
        return;
    std::string list;
    for (const std::string &usable : isa_list())
        list += (list.empty() ? "" : ", ") + usable;
    tn::throw_value("'" + name + "' is not usable here; these are: " + list);
}

void set_num_threads(Py_ssize_t threads)
{
    if (threads < 1)
        tn::throw_value("threads: must be at least 1, got " + std::to_string(threads));
    tn::set_default_threads(static_cast<size_t>(threads));
}

// What the functions here see of an object: for Python code that reshapes first.
nb::object asarray(nb::handle object, const std::string &name, bool writable)
{
    tn::Array a = writable ? tn::take_output(object, name.c_str()) : tn::take_input(object, name.c_str());
    return a ? a.owner : nb::object(nb::none());
}

bool load_numpy()
{
    return _import_array() >= 0;
}

} // namespace

NB_MODULE(_core, m)
{
    using namespace nb::literals;
    if (!load_numpy())
        throw nb::python_error();
    tn::load_dtypes();
    tn::load_keywords();
    m.def("forward", &tn::forward, "x"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(), "options"_a);
    m.def("quantized", &tn::quantized, "x"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(),
          "options"_a);
    m.def("apply", &tn::apply, "x"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(), "options"_a);
    m.def("backward", &tn::backward, "dy"_a.none(), "x"_a.none(), "weight"_a = nb::none(),
          "bias"_a = nb::none(), "options"_a);
    m.def("moments", &tn::moments, "x"_a.none(), "options"_a);
    m.def("merge_moments", &tn::merge_moments, "count_a"_a, "mean_a"_a.none(), "moment2_a"_a.none(),
          "count_b"_a, "mean_b"_a.none(), "moment2_b"_a.none());
    m.def("rstd_from_moments", &tn::rstd_from_moments, "moment2"_a.none(), "count"_a, "options"_a);
    m.def("asarray", &asarray, "object"_a.none(), "name"_a, "writable"_a = false);
    m.def("isa_name", [] { return std::string(tn_isa_name()); });
    m.def("isa_list", &isa_list);
    m.def("set_isa", &set_isa, "name"_a);
    m.def("num_threads", [] { return tn::default_threads(); });
    m.def("set_num_threads", &set_num_threads, "threads"_a);
    m.def("held_memory", &truenorm_blocks::held);
    m.def("release_memory", &truenorm_blocks::release);
    m.def("memory_limit", &truenorm_blocks::limit);
    m.def("set_memory_limit", &truenorm_blocks::set_limit, "bytes"_a);
    m.def("version", [] { return std::string(tn_version()); });
}
