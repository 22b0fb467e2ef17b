// layout.hpp - operands of a call as the rows of truenorm.h: two outer strides and one inner one.
//
// The axes in front of the last are merged where all operands allow it. Where more than two remain, forward calls run
// once for each index of the others, on moved pointers: nothing is copied. Only a stride that is not a whole number of
// elements cannot be said: that operand is copied, or written through a temporary. Backward calls sum over rows in an
// order that must not depend on strides, so there operands that do not fit are copied (fold).
#pragma once

#include <utility>
#include <vector>

#include "array.hpp"

namespace tn
{

// One operand: an array over the axes of x, those in front of the last one broadcast (stride 0).
struct Slot {
    const char *name = "";
    Array array; // keeps the memory that the call works on
    bool output = false;
    bool sums = false;        // an output that is summed over the axes where its stride is 0
    npy_intp axis[MOST_AXES]; // bytes, one for each axis of the layout
    npy_intp width = 1;       // elements of the last axis
    npy_intp inner = 0;       // bytes
    char *data = nullptr;
    tn_in *in = nullptr; // where the view goes: io.x, grads.dy, ...
    tn_out *out = nullptr;
};

struct Axes {
    int count = 0;
    npy_intp size[MOST_AXES];
};

// The operands of a call over an x of shape [*leading, n].
class Layout
{
  public:
    Layout(int leading, const npy_intp *shape);

    // Adds an operand of shape [..., width], or [...] if width is per_row (one element for each row), broadcast against
    // the leading axes. ValueError if it does not fit. An invalid array adds nothing.
    static constexpr npy_intp per_row = -1;
    void input(const char *name, const Array &array, npy_intp width, tn_in *in);
    void output(const char *name, const Array &array, npy_intp width, tn_out *out);
    // The same for a result that is summed over the axes that it lacks or has at size 1 (backward).
    void sums(const char *name, const Array &array, npy_intp width, tn_out *out, bool keep_old);

    // Merges axes so that few calls remain. Rows are independent, so their order is free.
    void merge();
    // Takes the axes in this order and merges the first `split` of them into one and the rest into another, with copies
    // of the operands whose strides do not allow it.
    void fold(const std::vector<int> &order, int split, bool keep_old);

    // How many operands fold() would copy for a split of the axes as they are.
    size_t misfits(int split) const;

    // Sets rows and the views of all operands for the call with that index, of calls().
    size_t calls() const;
    void place(size_t call, tn_norm_desc &desc) const;

    // ValueError if an output overlaps itself or something else in a way that single calls do not see.
    void check_overlap() const;
    // check_status, with the names of the operands where they overlap.
    void check(tn_status status) const;
    // Copies temporaries to their places.
    void finish() const;

    // Axes longer than 1 (or empty), and which of them an operand of that shape is summed over: a bit for each.
    const Axes &axes() const
    {
        return axes_;
    }
    unsigned summed(const Array &array, npy_intp width) const;
    // Bytes of x and of the outputs as large as it: what decides whether other Python threads run meanwhile.
    size_t bytes() const;

  private:
    void add(Slot slot, npy_intp width);
    void make_whole(Slot &slot, bool keep_old);
    void replace(Slot &slot, int axes, const npy_intp *shape, const npy_intp *strides, bool keep_old);
    void permute(const std::vector<int> &order);
    bool mergeable(const Slot &slot, int first, int last) const;
    bool overlaps_itself(const Slot &slot) const;
    bool same_view(const Slot &a, const Slot &b) const;
    std::string overlapping(bool only_partly) const;
    void merge_adjacent();
    void merge_run(int first, int last);

    int leading_;
    npy_intp shape_[MOST_AXES]; // of all leading axes
    Axes axes_;                 // without those of size 1
    std::vector<Slot> slots_;
    std::vector<std::pair<Array, Array>> temporaries_; // destination, source; copied in reverse order
};

} // namespace tn
