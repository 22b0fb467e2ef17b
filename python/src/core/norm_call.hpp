// norm_call.hpp - what forward, quantised, apply, moments and backward calls have in common.
#pragma once

#include "call.hpp"
#include "layout.hpp"
#include "pool.hpp"

namespace tn
{

// Smaller work keeps the interpreter's lock: letting it go and taking it again costs as much.
constexpr size_t RELEASE_BYTES = 64 * 1024;

// The inputs of a norm and its descriptor.
class NormCall
{
  public:
    NormCall(const Keywords &kw, nb::handle x, nb::handle weight, nb::handle bias);
    NormCall(const NormCall &) = delete;
    NormCall &operator=(const NormCall &) = delete;

    // All inputs, x first; statistics (mean, rstd) if the caller gave them.
    void add_inputs(Layout &layout);
    // Shape of one value for each row, or for each row and group if there are several.
    int row_shape(npy_intp shape[MOST_AXES + 1]) const;
    npy_intp statistic_width() const
    {
        return groups > 1 || desc.group ? groups : Layout::per_row;
    }

    int leading() const
    {
        return x.axes() - 1;
    }
    npy_intp n() const
    {
        return x.last();
    }
    npy_intp params() const
    {
        return n() / static_cast<npy_intp>(desc.positions ? desc.positions : 1);
    }
    bool empty() const
    {
        return PyArray_SIZE(x.get()) == 0;
    }

    const Keywords &kw;
    Array x, weight, bias, residual, gate, mod_scale, mod_shift, mean_in, rstd_in;
    tn_norm_desc desc;
    tn_norm_io io = tn_io_init();
    npy_intp groups = 1;
};

// A value of [rows] or [rows, groups], which nobody writes for empty rows: zeros then.
Array make_row_values(const NormCall &call, tn_dtype dtype, bool per_group);

using RowsFunction = tn_status (*)(const tn_norm_desc *, const tn_norm_io *, const tn_executor *);
// Merges the axes and calls the function, without the interpreter's lock on large work.
void run_rows(NormCall &call, Layout &layout, RowsFunction function);

} // namespace tn
