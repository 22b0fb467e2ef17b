// norm_call.cpp - see norm_call.hpp.
#include "norm_call.hpp"

#include <cstring>

namespace tn
{

namespace
{

void check_divides(const char *name, size_t part, npy_intp n)
{
    if (part && static_cast<size_t>(n) % part)
        throw_value(std::string(name) + ": " + std::to_string(part) + " does not divide the row of " +
                    std::to_string(n));
}

} // namespace

NormCall::NormCall(const Keywords &keywords, nb::handle x_, nb::handle weight_, nb::handle bias_)
    : kw(keywords)
{
    x = take_input(x_, "x");
    if (!x)
        throw_type("x: expected an array, got None");
    if (x.axes() < 1)
        throw_value("x: needs at least one axis, the one that is normalised");
    weight = take_input(weight_, "weight");
    bias = take_input(bias_, "bias");
    residual = take_input(kw.get(Key::residual), "residual");
    gate = take_input(kw.get(Key::gate), "gate");
    mod_scale = take_input(kw.get(Key::mod_scale), "mod_scale");
    mod_shift = take_input(kw.get(Key::mod_shift), "mod_shift");
    mean_in = take_input(kw.get(Key::mean), "mean", Allowed::statistics);
    rstd_in = take_input(kw.get(Key::rstd), "rstd", Allowed::statistics);
    desc = parse_desc(kw, x.dtype);
    desc.n = static_cast<size_t>(n());
    check_divides("group", desc.group, n());
    check_divides("positions", desc.positions, n());
    size_t group = desc.group ? desc.group : desc.n;
    if (desc.partial > group && desc.n)
        throw_value("partial: " + std::to_string(desc.partial) + " of " + std::to_string(group) +
                    " elements");
    groups = group ? static_cast<npy_intp>(desc.n / group) : 0;
}

void NormCall::add_inputs(Layout &layout)
{
    layout.input("x", x, n(), &io.x);
    layout.input("residual", residual, n(), &io.residual);
    layout.input("gate", gate, n(), &io.gate);
    layout.input("weight", weight, params(), &io.weight);
    layout.input("bias", bias, params(), &io.bias);
    layout.input("mod_scale", mod_scale, n(), &io.mod_scale);
    layout.input("mod_shift", mod_shift, n(), &io.mod_shift);
    layout.input("mean", mean_in, statistic_width(), &io.mean_in);
    layout.input("rstd", rstd_in, statistic_width(), &io.rstd_in);
}

int NormCall::row_shape(npy_intp shape[MOST_AXES + 1]) const
{
    int axes = 0;
    for (; axes < leading(); axes++)
        shape[axes] = x.shape()[axes];
    if (statistic_width() != Layout::per_row)
        shape[axes++] = groups;
    return axes;
}

Array make_row_values(const NormCall &call, tn_dtype dtype, bool per_group)
{
    npy_intp shape[MOST_AXES + 1];
    int axes = call.row_shape(shape);
    Array a = make_array(dtype, per_group ? axes : call.leading(), shape);
    if (call.n() == 0)
        std::memset(a.data(), 0, static_cast<size_t>(PyArray_NBYTES(a.get())));
    return a;
}

void run_rows(NormCall &call, Layout &layout, RowsFunction function)
{
    layout.merge();
    layout.check_overlap();
    Executor executor(thread_count(call.kw));
    tn_status status = TN_OK;
    auto run = [&] {
        for (size_t i = 0, calls = layout.calls(); i < calls && status == TN_OK; i++) {
            layout.place(i, call.desc);
            status = function(&call.desc, &call.io, executor.get());
        }
    };
    if (layout.bytes() >= RELEASE_BYTES) {
        nb::gil_scoped_release release;
        run();
    } else {
        run();
    }
    layout.check(status);
    layout.finish();
}

} // namespace tn
