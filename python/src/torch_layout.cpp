/* torch_layout.cpp - see torch_layout.h. */
#include "torch_layout.h"

namespace truenorm_torch
{

static bool more_than_one(uint64_t bits)
{
    return (bits & (bits - 1)) != 0;
}

Layout::Layout(const Tensor &x)
{
    if (x.dim == 0)
        fail("truenorm: expected an input with at least 1 dimension, but got 0");
    x_size_ = x.size;
    leading_ = x.dim - 1;
    n_ = x.last_size();
    for (int64_t i = 0; i < leading_; i++)
        if (x.size[i] != 1) {
            size_[axes_] = x.size[i];
            axis_[axes_++] = i;
        }
}

void Layout::element_strides(const Tensor &t, Strides out) const
{
    for (int k = 0; k < axes_; k++)
        out[k] = t.stride[axis_[k]];
}

/* `stride`: of the parameter's own axes; 0 over the axes that it lacks. */
void Layout::param_strides(const Tensor &t, const int64_t *stride, Strides out) const
{
    int64_t skip = leading_ + 1 - t.dim;
    for (int k = 0; k < axes_; k++) {
        int64_t own = axis_[k] - skip;
        out[k] = own < 0 || t.size[own] == 1 ? 0 : stride[own];
    }
}

uint64_t Layout::cuts_of(const Strides stride) const
{
    uint64_t cuts = 0;
    for (int k = 1; k < axes_; k++)
        if (stride[k - 1] != stride[k] * size_[k])
            cuts |= uint64_t{1} << k;
    return cuts;
}

static void contiguous_strides(const Tensor &t, int64_t stride[kMostAxes])
{
    int64_t step = 1;
    for (int64_t i = t.dim; i-- > 0;) {
        stride[i] = step;
        step *= t.size[i];
    }
}

bool Layout::param_shape_fits(const Tensor &param, int64_t width) const
{
    if (param.dim < 1 || param.dim > leading_ + 1 || param.last_size() != width)
        return false;
    for (int64_t i = 0; i < param.dim - 1; i++)
        if (param.size[i] != 1 && param.size[i] != x_size_[i + leading_ + 1 - param.dim])
            return false;
    return true;
}

void Layout::add_param(Tensor &param, int64_t width, bool reduced, const char *name)
{
    if (!param)
        return;
    if (!param_shape_fits(param, width)) {
        std::string got = shape_text(param.size, param.dim), text = std::string("Expected ") + name;
        if (param.dim == 1 && width == n_) /* torch's own words */
            fail(text + " to be of same shape as normalized_shape, but got " + name + " of shape " + got +
                 " and normalized_shape = " + shape_text(&width, 1));
        fail(text + " to end in " + std::to_string(width) +
             " elements and to broadcast over an input of shape " + shape_text(x_size_, leading_ + 1) +
             ", but got " + name + " of shape " + got);
    }
    if (axes_ < 2 || param.dim == 1)
        return;
    Strides stride;
    int64_t dense[kMostAxes];
    contiguous_strides(param, dense);
    param_strides(param, dense, stride);
    uint64_t shape_cuts = cuts_of(stride), cuts;
    param_strides(param, param.stride, stride);
    cuts = cuts_of(stride);
    if (more_than_one(cuts_ | shape_cuts))
        fail(std::string("truenorm: the shape of ") + name + ", " + shape_text(param.size, param.dim) +
             ", needs more than two row strides over an input of shape " + shape_text(x_size_, leading_ + 1));
    if (more_than_one(cuts_ | cuts | (reduced ? shape_cuts : 0))) {
        param = contiguous(param, name);
        cuts = shape_cuts;
    }
    cuts_ |= cuts | (reduced ? shape_cuts : 0);
}

void Layout::add_element(Tensor &t, const char *name, int64_t width)
{
    if (!t)
        return;
    bool fits = t.dim == leading_ + 1 && t.last_size() == (width < 0 ? n_ : width);
    for (int64_t i = 0; i < leading_ && fits; i++)
        fits = t.size[i] == x_size_[i];
    if (!fits)
        fail(std::string("truenorm: expected ") + name + " of the shape of the input, " +
             shape_text(x_size_, leading_ + 1) + ", but got " + shape_text(t.size, t.dim));
    if (axes_ < 2)
        return;
    Strides stride;
    element_strides(t, stride);
    uint64_t cuts = cuts_of(stride);
    if (!more_than_one(cuts_ | cuts)) {
        cuts_ |= cuts;
        return;
    }
    t = contiguous(t, name);
}

void Layout::rows(size_t rows[2]) const
{
    rows[0] = rows[1] = 1;
    int cut = cuts_ ? __builtin_ctzll(cuts_) : axes_;
    for (int k = 0; k < axes_; k++)
        rows[k >= cut] *= static_cast<size_t>(size_[k]);
}

void Layout::pair(const Strides stride, ptrdiff_t out[2]) const
{
    int cut = cuts_ ? __builtin_ctzll(cuts_) : axes_;
    out[0] = cut > 0 ? stride[cut - 1] : 0;
    out[1] = cut < axes_ ? stride[axes_ - 1] : 0;
}

tn_in Layout::element(const Tensor &t) const
{
    tn_in in = {};
    if (!t)
        return in;
    Strides stride;
    element_strides(t, stride);
    in.data = t.data;
    in.dtype = t.dtype;
    in.inner = t.last_stride();
    pair(stride, in.stride);
    return in;
}

tn_in Layout::param(const Tensor &t) const
{
    tn_in in = {};
    if (!t)
        return in;
    Strides stride;
    param_strides(t, t.stride, stride);
    in.data = t.data;
    in.dtype = t.dtype;
    in.inner = t.last_stride();
    pair(stride, in.stride);
    return in;
}

tn_out Layout::output(void *data, tn_dtype dtype, int64_t width) const
{
    size_t count[2];
    rows(count);
    tn_out out = {data, dtype, {width, 0}, 1};
    if (cuts_) {
        out.stride[0] = static_cast<ptrdiff_t>(count[1]) * width;
        out.stride[1] = width;
    }
    return out;
}

tn_out Layout::param_output(void *data, tn_dtype dtype, const Tensor &param) const
{
    Strides stride;
    int64_t dense[kMostAxes];
    contiguous_strides(param, dense);
    param_strides(param, dense, stride);
    tn_out out = {data, dtype, {0, 0}, 1};
    pair(stride, out.stride);
    return out;
}

} // namespace truenorm_torch
