// layout.cpp - see layout.hpp.
#include "layout.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "call.hpp"

namespace tn
{

namespace
{

npy_intp item_size(const Slot &slot)
{
    return static_cast<npy_intp>(tn_dtype_size(slot.array.dtype));
}

struct Range {
    const char *low, *high;
};

Range range_of(const Slot &slot, const Axes &axes)
{
    Range r{slot.data, slot.data + item_size(slot)};
    auto extend = [&r](npy_intp stride, npy_intp count) {
        npy_intp span = (count - 1) * stride;
        (span < 0 ? r.low : r.high) += span;
    };
    for (int k = 0; k < axes.count; k++)
        extend(slot.axis[k], axes.size[k]);
    extend(slot.inner, slot.width);
    return r;
}

} // namespace

Layout::Layout(int leading, const npy_intp *shape) : leading_(leading)
{
    slots_.reserve(20);
    for (int k = 0; k < leading; k++) {
        shape_[k] = shape[k];
        if (shape[k] != 1)
            axes_.size[axes_.count++] = shape[k];
    }
}

// Strides of the operand over the axes of the layout; ValueError if its shape does not fit.
void Layout::add(Slot slot, npy_intp width)
{
    const Array &a = slot.array;
    const bool row = width != per_row; // has a last axis
    const int own = a.axes() - (row ? 1 : 0), skip = leading_ - own;
    bool fits = own >= 0 && skip >= 0 && (!row || a.last() == width);
    int at = 0;
    for (int k = 0; fits && k < leading_; k++) {
        npy_intp size = k < skip ? 1 : a.shape()[k - skip];
        fits = size == shape_[k] || size == 1;
        if (shape_[k] != 1)
            slot.axis[at++] = size == 1 ? 0 : a.strides()[k - skip];
    }
    if (!fits) {
        std::vector<npy_intp> want(shape_, shape_ + leading_);
        if (row)
            want.push_back(width);
        throw_value(std::string(slot.name) + ": shape " + shape_text(a.axes(), a.shape()) + " does not fit " +
                    shape_text(static_cast<int>(want.size()), want.data()) +
                    (row ? " (the last axis has to be that long)" : ""));
    }
    slot.width = row ? width : 1;
    slot.inner = width > 1 ? a.strides()[own] : item_size(slot);
    slot.data = a.data();
    slots_.push_back(std::move(slot));
}

void Layout::input(const char *name, const Array &array, npy_intp width, tn_in *in)
{
    if (!array)
        return;
    Slot slot;
    slot.name = name;
    slot.array = array;
    slot.in = in;
    add(std::move(slot), width);
    make_whole(slots_.back(), false);
}

void Layout::output(const char *name, const Array &array, npy_intp width, tn_out *out)
{
    if (!array)
        return;
    Slot slot;
    slot.name = name;
    slot.array = array;
    slot.output = true;
    slot.out = out;
    add(std::move(slot), width);
    make_whole(slots_.back(), false);
}

void Layout::sums(const char *name, const Array &array, npy_intp width, tn_out *out, bool keep_old)
{
    if (!array)
        return;
    Slot slot;
    slot.name = name;
    slot.array = array;
    slot.output = slot.sums = true;
    slot.out = out;
    add(std::move(slot), width);
    make_whole(slots_.back(), keep_old);
}

unsigned Layout::summed(const Array &array, npy_intp width) const
{
    const int own = array.axes() - (width != per_row ? 1 : 0), skip = leading_ - own;
    unsigned bits = 0;
    int at = 0;
    for (int k = 0; k < leading_; k++)
        if (shape_[k] != 1) {
            if (k < skip || array.shape()[k - skip] == 1)
                bits |= 1u << at;
            at++;
        }
    return bits;
}

// Puts contiguous memory in the place of an operand: a copy of an input, a temporary of an output. The shape and strides
// are those of the view that the operand is over the layout's axes and its own last one.
void Layout::replace(Slot &slot, int axes, const npy_intp *shape, const npy_intp *strides, bool keep_old)
{
    Array view = make_view(slot.array, slot.data, axes, shape, strides, slot.output);
    if (!slot.output) {
        slot.array = contiguous_copy(view);
    } else {
        Array fresh = make_array(slot.array.dtype, axes, shape);
        if (keep_old)
            copy_into(fresh, view);
        temporaries_.emplace_back(view, fresh);
        slot.array = fresh;
    }
    slot.data = slot.array.data();
    slot.inner = item_size(slot);
    npy_intp step = slot.inner * slot.width;
    for (int k = axes_.count - 1; k >= 0; k--) {
        bool repeated = shape[k] == 1 && axes_.size[k] != 1;
        slot.axis[k] = repeated ? 0 : step;
        step *= repeated ? 1 : axes_.size[k];
    }
}

// Strides that are no multiple of the element, as fields of structured arrays have them.
void Layout::make_whole(Slot &slot, bool keep_old)
{
    const npy_intp item = item_size(slot);
    bool whole = slot.inner % item == 0;
    npy_intp shape[MOST_AXES + 1], strides[MOST_AXES + 1];
    for (int k = 0; k < axes_.count; k++) {
        whole = whole && slot.axis[k] % item == 0;
        shape[k] = slot.axis[k] ? axes_.size[k] : 1;
        strides[k] = slot.axis[k];
    }
    if (whole)
        return;
    shape[axes_.count] = slot.width;
    strides[axes_.count] = slot.inner;
    replace(slot, axes_.count + 1, shape, strides, keep_old);
}

// ---- axes ----

void Layout::permute(const std::vector<int> &order)
{
    const Axes old = axes_;
    for (int k = 0; k < old.count; k++)
        axes_.size[k] = old.size[order[static_cast<size_t>(k)]];
    for (Slot &slot : slots_) {
        npy_intp axis[MOST_AXES];
        std::copy(slot.axis, slot.axis + old.count, axis);
        for (int k = 0; k < old.count; k++)
            slot.axis[k] = axis[order[static_cast<size_t>(k)]];
    }
}

// Are the axes first to last (without it) one axis for this operand?
bool Layout::mergeable(const Slot &slot, int first, int last) const
{
    for (int k = first; k + 1 < last; k++)
        if (slot.axis[k] != slot.axis[k + 1] * axes_.size[k + 1])
            return false;
    return true;
}

void Layout::merge_run(int first, int last)
{
    if (last - first < 2)
        return;
    const int gone = last - first - 1;
    npy_intp size = 1;
    for (int k = first; k < last; k++)
        size *= axes_.size[k];
    for (Slot &slot : slots_)
        for (int k = first; k + gone < axes_.count; k++)
            slot.axis[k] = slot.axis[k + gone];
    for (int k = first; k + gone < axes_.count; k++)
        axes_.size[k] = axes_.size[k + gone];
    axes_.size[first] = size;
    axes_.count -= gone;
}

void Layout::merge_adjacent()
{
    for (int k = axes_.count - 2; k >= 0; k--)
        if (std::all_of(slots_.begin(), slots_.end(), [&](const Slot &s) { return mergeable(s, k, k + 2); }))
            merge_run(k, k + 2);
}

void Layout::merge()
{
    merge_adjacent();
    if (axes_.count <= 2 || slots_.empty())
        return;
    std::vector<int> order(static_cast<size_t>(axes_.count));
    std::iota(order.begin(), order.end(), 0);
    const Slot x = slots_.front();
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return std::abs(x.axis[a]) > std::abs(x.axis[b]); });
    permute(order);
    merge_adjacent();
    if (axes_.count <= 2)
        return;
    // The two longest become the rows of a call, in the order they have.
    order.resize(static_cast<size_t>(axes_.count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return axes_.size[a] < axes_.size[b]; });
    std::sort(order.end() - 2, order.end());
    permute(order);
}

void Layout::fold(const std::vector<int> &order, int split, bool keep_old)
{
    permute(order);
    for (Slot &slot : slots_) {
        if (mergeable(slot, 0, split) && mergeable(slot, split, axes_.count))
            continue;
        npy_intp shape[MOST_AXES + 1], strides[MOST_AXES + 1];
        for (int k = 0; k < axes_.count; k++) {
            // What an output sums over stays one element; an input is repeated, so that its strides are regular.
            shape[k] = slot.output && !slot.axis[k] ? 1 : axes_.size[k];
            strides[k] = slot.axis[k];
        }
        shape[axes_.count] = slot.width;
        strides[axes_.count] = slot.inner;
        replace(slot, axes_.count + 1, shape, strides, keep_old);
    }
    const int rest = axes_.count - split;
    merge_run(0, split);
    if (rest > 1)
        merge_run(axes_.count - rest, axes_.count);
}

size_t Layout::misfits(int split) const
{
    return static_cast<size_t>(std::count_if(slots_.begin(), slots_.end(), [&](const Slot &s) {
        return !mergeable(s, 0, split) || !mergeable(s, split, axes_.count);
    }));
}

// ---- calls ----

size_t Layout::calls() const
{
    size_t calls = 1;
    for (int k = 0; k < axes_.count - 2; k++)
        calls *= static_cast<size_t>(axes_.size[k]);
    return calls;
}

void Layout::place(size_t call, tn_norm_desc &desc) const
{
    const int count = axes_.count, loops = std::max(count - 2, 0);
    size_t index[MOST_AXES];
    for (int k = loops - 1; k >= 0; k--) {
        index[k] = call % static_cast<size_t>(axes_.size[k]);
        call /= static_cast<size_t>(axes_.size[k]);
    }
    desc.rows[0] = count ? static_cast<size_t>(axes_.size[loops]) : 1;
    desc.rows[1] = count > 1 ? static_cast<size_t>(axes_.size[loops + 1]) : 1;
    for (const Slot &slot : slots_) {
        const npy_intp item = item_size(slot);
        char *data = slot.data;
        for (int k = 0; k < loops; k++)
            data += static_cast<npy_intp>(index[k]) * slot.axis[k];
        const ptrdiff_t s0 = count ? slot.axis[loops] / item : 0,
                        s1 = count > 1 ? slot.axis[loops + 1] / item : 0;
        if (slot.in)
            *slot.in = tn_in{data, slot.array.dtype, {s0, s1}, slot.inner / item};
        else
            *slot.out = tn_out{data, slot.array.dtype, {s0, s1}, slot.inner / item};
    }
}

void Layout::finish() const
{
    for (auto t = temporaries_.rbegin(); t != temporaries_.rend(); ++t)
        copy_into(t->first, t->second);
}

size_t Layout::bytes() const
{
    size_t rows = 1, bytes = 0;
    for (int k = 0; k < axes_.count; k++)
        rows *= static_cast<size_t>(axes_.size[k]);
    for (const Slot &slot : slots_)
        if (&slot == &slots_.front() || slot.output)
            bytes += rows * static_cast<size_t>(slot.width * item_size(slot));
    return bytes;
}

// ---- overlap ----

bool Layout::overlaps_itself(const Slot &slot) const
{
    std::vector<std::pair<npy_intp, npy_intp>> axes; // stride, size
    for (int k = 0; k < axes_.count; k++)
        if (slot.axis[k] || !slot.sums)
            axes.emplace_back(std::abs(slot.axis[k]), axes_.size[k]);
    if (slot.width > 1)
        axes.emplace_back(std::abs(slot.inner), slot.width);
    std::sort(axes.begin(), axes.end());
    npy_intp span = item_size(slot);
    for (const auto &[stride, size] : axes) {
        if (stride < span)
            return true;
        span += (size - 1) * stride;
    }
    return false;
}

bool Layout::same_view(const Slot &a, const Slot &b) const
{
    return a.data == b.data && a.array.dtype == b.array.dtype && a.width == b.width && a.inner == b.inner &&
           std::equal(a.axis, a.axis + axes_.count, b.axis);
}

// Pairs that share memory, at least by their bounds; nothing if there are none.
std::string Layout::overlapping(bool only_partly) const
{
    std::string text;
    for (const Slot &a : slots_) {
        const Range ra = range_of(a, axes_);
        for (const Slot &b : slots_) {
            if (!a.output || &a == &b || (b.output && &b < &a) || (only_partly && same_view(a, b)))
                continue;
            const Range rb = range_of(b, axes_);
            if (ra.low < rb.high && rb.low < ra.high)
                text += std::string(text.empty() ? "" : "; ") + a.name + " overlaps " + b.name;
        }
    }
    return text;
}

void Layout::check_overlap() const
{
    if (calls() < 2)
        return;
    for (const Slot &slot : slots_)
        if (slot.output && overlaps_itself(slot))
            throw_value(std::string(slot.name) + ": elements of the array overlap each other");
    const std::string text = overlapping(true);
    if (!text.empty())
        throw_value(text + " (arrays of this layout may not even interleave)");
}

void Layout::check(tn_status status) const
{
    if (status != TN_ERR_OVERLAP)
        return check_status(status);
    for (const Slot &slot : slots_)
        if (slot.output && overlaps_itself(slot))
            throw_value(std::string(slot.name) + ": elements of the array overlap each other");
    const std::string partly = overlapping(true), text = partly.empty() ? overlapping(false) : partly;
    throw_value((text.empty() ? std::string(tn_status_text(status)) : text) +
                " (in place is fine only for exactly the same array of the same dtype: out over x, residual "
                "or gate, sum_out "
                "over x or residual, gradients over dy, dsum, x, residual or gate)");
}

} // namespace tn
