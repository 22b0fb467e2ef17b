/* torch_layout.h - tensors of any rank as the two outer strides of tn_in and tn_out.
 *
 * The leading axes of x are merged, for all operands together, into at most two. Nothing is copied as long as two
 * suffice; else elementwise operands are made contiguous, one by one. Parameters (weight, bias, modulation) are
 * broadcast, so their shapes alone may need both axes; more than that is refused.
 *
 * Neither the merging nor a copy can change a bit of a result: rows are independent, and the column sums of the
 * backward go over the rows in order, however they are cut into two axes. */
#ifndef TRUENORM_TORCH_LAYOUT_H
#define TRUENORM_TORCH_LAYOUT_H

#include "torch_shim.h"

namespace truenorm_torch
{

class Layout
{
  public:
    explicit Layout(const Tensor &x);

    int64_t n() const
    {
        return n_;
    }

    /* A parameter of `width` elements in its last axis that broadcasts over the leading axes of x. `reduced`: its
     * gradient will be summed over the axes that its shape lacks. */
    void add_param(Tensor &param, int64_t width, bool reduced, const char *name);
    /* A tensor of exactly x's shape; or, with `width`, of x's shape but for the last axis. */
    void add_element(Tensor &tensor, const char *name, int64_t width = -1);

    /* After all operands were added: */
    void rows(size_t rows[2]) const;
    tn_in element(const Tensor &tensor) const;
    tn_in param(const Tensor &param) const;
    /* Contiguous outputs: of x's leading axes with `width` in the last; of a parameter's shape. */
    tn_out output(void *data, tn_dtype dtype, int64_t width) const;
    tn_out param_output(void *data, tn_dtype dtype, const Tensor &param) const;

  private:
    using Strides = int64_t[kMostAxes];
    void element_strides(const Tensor &t, Strides out) const;
    void param_strides(const Tensor &t, const int64_t *stride, Strides out) const;
    uint64_t cuts_of(const Strides stride) const;
    void pair(const Strides stride, ptrdiff_t out[2]) const;
    bool param_shape_fits(const Tensor &param, int64_t width) const;

    const int64_t *x_size_;
    int64_t leading_, n_;
    int axes_ = 0;            /* leading axes of more or less than one element */
    int64_t size_[kMostAxes]; /* their sizes */
    int64_t axis_[kMostAxes]; /* and their places in x */
    uint64_t cuts_ = 0;       /* bit i: axes i - 1 and i cannot be one */
};

} // namespace truenorm_torch
#endif
