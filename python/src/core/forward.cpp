// forward.cpp - forward, quantised and split calls.
#include "calls.hpp"

#include <cstring>

#include "norm_call.hpp"

namespace tn
{

namespace
{

Array result_array(const NormCall &call, const char *name, nb::handle given, tn_dtype dtype)
{
    if (!given.is_valid())
        return make_array(dtype, call.x.axes(), call.x.shape());
    Array a = take_output(given, name);
    const Array &x = call.x;
    if (a.axes() != x.axes() ||
        std::memcmp(a.shape(), x.shape(), sizeof(npy_intp) * static_cast<size_t>(x.axes())) != 0)
        throw_value(std::string(name) + ": shape " + shape_text(a.axes(), a.shape()) + " is not x's " +
                    shape_text(x.axes(), x.shape()));
    return a;
}

// What the user gets back for an output: the object that came in, or the new array.
nb::object returned(nb::handle given, const Array &made)
{
    return given.is_valid() ? nb::borrow(given) : made.owner;
}

void check_out_dtype(const NormCall &call, const Array &out)
{
    if (out.dtype >= TN_I8)
        throw_type("out: int8 and fp8 need a scale; use norm_quantized");
    if (call.kw.get(Key::out_dtype).is_valid() &&
        result_dtype(call.kw, call.desc, call.x.dtype, call.weight.dtype) != out.dtype)
        throw_type("out_dtype: is not the dtype of out");
}

// The second result of calls with a residual.
nb::object add_sum(NormCall &call, Layout &layout)
{
    nb::handle given = call.kw.get(Key::sum_out), asked = call.kw.get(Key::sum_dtype);
    if (!call.residual) {
        if (given.is_valid() || asked.is_valid())
            throw_value(std::string(given.is_valid() ? "sum_out" : "sum_dtype") + ": there is no residual");
        return {};
    }
    tn_dtype dtype = asked.is_valid() ? parse_dtype(asked, "sum_dtype") : call.x.dtype;
    Array sum = result_array(call, "sum_out", given, dtype);
    if (sum.dtype >= TN_I8 || (asked.is_valid() && sum.dtype != dtype))
        throw_type("sum_dtype: the sum is float64, float32, float16 or bfloat16, and of sum_out's dtype");
    layout.output("sum_out", sum, call.n(), &call.io.sum);
    return returned(given, sum);
}

// mean (or None) and rstd, if asked for.
void add_stats(NormCall &call, Layout &layout, nb::list &results)
{
    nb::handle asked = call.kw.get(Key::stats);
    if (!asked.is_valid())
        return;
    tn_dtype dtype = parse_dtype(asked, "stats");
    if (dtype != TN_F64 && dtype != TN_F32)
        throw_type("stats: float32 or float64");
    if (call.desc.kind == TN_LAYER) {
        Array mean = make_row_values(call, dtype, true);
        layout.output("mean", mean, call.statistic_width(), &call.io.mean);
        results.append(mean.owner);
    } else {
        results.append(nb::none());
    }
    Array rstd = make_row_values(call, dtype, true);
    layout.output("rstd", rstd, call.statistic_width(), &call.io.rstd);
    results.append(rstd.owner);
}

nb::object one_or_tuple(const nb::list &results)
{
    return results.size() == 1 ? nb::object(results[0]) : nb::object(nb::tuple(results));
}

nb::object run_norm(NormCall &call, RowsFunction function)
{
    Layout layout(call.leading(), call.x.shape());
    call.add_inputs(layout);
    nb::handle given = call.kw.get(Key::out);
    tn_dtype dtype =
        given.is_valid() ? TN_NONE : result_dtype(call.kw, call.desc, call.x.dtype, call.weight.dtype);
    Array y = result_array(call, "out", given, dtype);
    check_out_dtype(call, y);
    layout.output("out", y, call.n(), &call.io.y);
    nb::object sum = add_sum(call, layout);
    if (!sum.is_valid() && !call.kw.get(Key::stats).is_valid()) {
        run_rows(call, layout, function);
        return returned(given, y);
    }
    nb::list results;
    results.append(returned(given, y));
    if (sum.is_valid())
        results.append(sum);
    add_stats(call, layout, results);
    run_rows(call, layout, function);
    return one_or_tuple(results);
}

// A scale that was given: one number, or an array that broadcasts against the rows ([rows] or [rows, 1]).
Array given_scale(const NormCall &call, nb::handle scale)
{
    if (PyFloat_Check(scale.ptr()) || PyLong_Check(scale.ptr())) {
        Array one = make_array(TN_F64, 0, nullptr);
        double value = PyFloat_AsDouble(scale.ptr());
        std::memcpy(one.data(), &value, sizeof value);
        return one;
    }
    Array a = take_input(scale, "scale", Allowed::statistics);
    if (a.axes() == call.x.axes() && a.last() == 1)
        return make_view(a, a.data(), a.axes() - 1, a.shape(), a.strides(), false);
    return a;
}

} // namespace

nb::object forward(nb::handle x, nb::handle weight, nb::handle bias, const nb::kwargs &options)
{
    const Keywords kw("norm", options,
                      NORM_KEYS | key_set(Key::out, Key::out_dtype, Key::sum_out, Key::stats));
    NormCall call(kw, x, weight, bias);
    return run_norm(call, tn_norm_forward);
}

nb::object apply(nb::handle x, nb::handle weight, nb::handle bias, const nb::kwargs &options)
{
    const Keywords kw("norm_apply", options,
                      NORM_KEYS | key_set(Key::out, Key::out_dtype, Key::sum_out, Key::mean, Key::rstd));
    NormCall call(kw, x, weight, bias);
    if (!call.rstd_in)
        throw_type("rstd: expected an array, got None");
    if (!call.mean_in && call.desc.kind == TN_LAYER)
        throw_type("mean: kind 'layer' needs it");
    if (call.desc.kind != TN_LAYER)
        call.mean_in = Array();
    return run_norm(call, tn_norm_apply);
}

nb::object quantized(nb::handle x, nb::handle weight, nb::handle bias, const nb::kwargs &options)
{
    const Keywords kw("norm_quantized", options,
                      NORM_KEYS | key_set(Key::out, Key::sum_out, Key::dtype, Key::scale, Key::scale_dtype));
    NormCall call(kw, x, weight, bias);
    Layout layout(call.leading(), call.x.shape());
    call.add_inputs(layout);
    nb::handle out = kw.get(Key::out), named = kw.get(Key::dtype), scale = kw.get(Key::scale);
    Array q = result_array(call, "out", out, named.is_valid() ? parse_dtype(named, "dtype") : TN_I8);
    if (q.dtype < TN_I8 || (named.is_valid() && parse_dtype(named, "dtype") != q.dtype))
        throw_type("dtype: expected int8, float8_e4m3fn or float8_e5m2 (and out's, if there is one)");
    layout.output("out", q, call.n(), &call.io.y);
    nb::object scale_result;
    if (scale.is_valid()) {
        scale_result = nb::borrow(scale);
        layout.input("scale", given_scale(call, scale), Layout::per_row, &call.io.scale_in);
    } else {
        nb::handle asked = kw.get(Key::scale_dtype);
        tn_dtype dtype = asked.is_valid() ? parse_dtype(asked, "scale_dtype") : TN_F32;
        if (dtype != TN_F32 && dtype != TN_F64)
            throw_type("scale_dtype: float32 or float64");
        Array made = make_row_values(call, dtype, false);
        scale_result = made.owner;
        layout.output("scale", made, Layout::per_row, &call.io.scale_out);
    }
    nb::list results;
    results.append(returned(out, q));
    results.append(scale_result);
    nb::object sum = add_sum(call, layout);
    if (sum.is_valid())
        results.append(sum);
    run_rows(call, layout, tn_norm_forward);
    return nb::tuple(results);
}

// ---- rows in several parts ----

nb::object moments(nb::handle x, const nb::kwargs &options)
{
    const Keywords kw("moments", options,
                      key_set(Key::kind, Key::grade, Key::group, Key::partial, Key::residual, Key::sum,
                              Key::sum_dtype, Key::gate, Key::gate_order, Key::act, Key::threads));
    NormCall call(kw, x, nb::handle(), nb::handle());
    if (call.desc.gate == TN_GATE_AFTER)
        throw_value("gate_order: only a gate before the norm has a part in the moments");
    Layout layout(call.leading(), call.x.shape());
    call.add_inputs(layout);
    nb::handle asked = kw.get(Key::sum_dtype);
    if (asked.is_valid())
        call.io.sum.dtype = parse_dtype(asked, "sum_dtype");
    Array moment2 = make_row_values(call, TN_F64, true), mean;
    layout.output("moment2", moment2, call.statistic_width(), &call.io.moment2);
    if (call.desc.kind == TN_LAYER) {
        mean = make_row_values(call, TN_F64, true);
        layout.output("mean", mean, call.statistic_width(), &call.io.mean);
    }
    run_rows(call, layout, tn_norm_moments);
    const size_t group = call.desc.group ? call.desc.group : call.desc.n;
    const double count = static_cast<double>(call.desc.partial ? call.desc.partial : group);
    return nb::make_tuple(count, mean ? mean.owner : nb::object(nb::none()), moment2.owner);
}

namespace
{

// A C-ordered f64 copy that may be changed.
Array doubles(nb::handle object, const char *name)
{
    Array a = take_input(object, name, Allowed::statistics);
    if (!a)
        throw_type(std::string(name) + ": expected an array, got None");
    Array copy = make_array(TN_F64, a.axes(), a.shape());
    copy_into(copy, a);
    return copy;
}

double *values(const Array &a)
{
    return reinterpret_cast<double *>(a.data());
}

} // namespace

nb::object merge_moments(double count_a, nb::handle mean_a, nb::handle moment2_a, double count_b,
                         nb::handle mean_b, nb::handle moment2_b)
{
    const Array m2a = doubles(moment2_a, "moment2 of a"), m2b = doubles(moment2_b, "moment2 of b");
    const bool centred = !mean_a.is_none() || !mean_b.is_none();
    Array ma, mb;
    if (centred) {
        ma = doubles(mean_a, "mean of a");
        mb = doubles(mean_b, "mean of b");
    }
    const Array *const others[] = {&m2b, &ma, &mb};
    for (const Array *a : others)
        if (*a && shape_text(a->axes(), a->shape()) != shape_text(m2a.axes(), m2a.shape()))
            throw_value("moments: shapes " + shape_text(m2a.axes(), m2a.shape()) + " and " +
                        shape_text(a->axes(), a->shape()) + " differ");
    const npy_intp size = PyArray_SIZE(m2a.get());
    for (npy_intp i = 0; i < size; i++) {
        double count = count_a;
        if (centred)
            tn_moments_merge(&count, values(ma) + i, values(m2a) + i, count_b, values(mb)[i], values(m2b)[i]);
        else
            values(m2a)[i] += values(m2b)[i];
    }
    return nb::make_tuple(count_a + count_b, centred ? ma.owner : nb::object(nb::none()), m2a.owner);
}

nb::object rstd_from_moments(nb::handle moment2, double count, const nb::kwargs &options)
{
    const Keywords kw("rstd_from_moments", options,
                      key_set(Key::kind, Key::eps, Key::eps_mode, Key::divisor));
    const tn_norm_desc desc = parse_desc(kw, TN_F32);
    const Array rstd = doubles(moment2, "moment2");
    const npy_intp size = PyArray_SIZE(rstd.get());
    for (npy_intp i = 0; i < size; i++)
        values(rstd)[i] = tn_norm_rstd(&desc, values(rstd)[i], count);
    return rstd.owner;
}

} // namespace tn
