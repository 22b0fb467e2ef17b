/* overlap.h - do strided views share elements? */
#ifndef TN_OVERLAP_H
#define TN_OVERLAP_H

#include "base/base.h"

/* count[k] steps of stride[k] bytes over items of `size` bytes; axes of one element are left out. */
struct tn_extent {
    const char *data;
    size_t size;
    int axes;
    size_t count[3];
    ptrdiff_t stride[3]; /* by decreasing magnitude */
    int axis[3];         /* the view's axis that each is */
    ptrdiff_t low, high; /* the bytes touched are data + [low, high) */
};

/* False if the view leaves the address space. No count may be 0. */
bool tn_extent_init(struct tn_extent *e, const void *data, size_t size, const size_t count[3],
                    const ptrdiff_t stride[3]);

/* True if two index tuples of the view name overlapping bytes, or might: views that do not nest are refused. */
bool tn_extent_overlaps_itself(const struct tn_extent *e);

bool tn_extents_equal(const struct tn_extent *a, const struct tn_extent *b);

/* Exact for views of the same shape and strides that do not overlap themselves (packed Q, K, V); for others
 * true as soon as their address ranges meet. */
bool tn_extents_overlap(const struct tn_extent *a, const struct tn_extent *b);

#endif
