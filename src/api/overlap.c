/* overlap.c - interval and mixed-radix tests on strided views. */
#include "api/overlap.h"

static ptrdiff_t magnitude(ptrdiff_t v)
{
    return v < 0 ? -v : v;
}

bool tn_extent_init(struct tn_extent *e, const void *data, size_t size, const size_t count[3],
                    const ptrdiff_t stride[3])
{
    *e = (struct tn_extent){.data = data, .size = size, .high = (ptrdiff_t)size};
    for (int k = 0; k < 3; k++) {
        ptrdiff_t span;
        if (count[k] == 1)
            continue;
        if (count[k] - 1 > PTRDIFF_MAX || stride[k] == PTRDIFF_MIN ||
            __builtin_mul_overflow((ptrdiff_t)(count[k] - 1), stride[k], &span) ||
            __builtin_add_overflow(span < 0 ? e->low : e->high, span, span < 0 ? &e->low : &e->high))
            return false;
        int at = e->axes++;
        for (; at > 0 && magnitude(e->stride[at - 1]) < magnitude(stride[k]); at--) {
            e->stride[at] = e->stride[at - 1];
            e->count[at] = e->count[at - 1];
            e->axis[at] = e->axis[at - 1];
        }
        e->stride[at] = stride[k];
        e->count[at] = count[k];
        e->axis[at] = k;
    }
    /* addresses must not wrap; pointers are compared as integers */
    uintptr_t base = (uintptr_t)data;
    return base >= (uintptr_t)-e->low && base <= UINTPTR_MAX - (uintptr_t)e->high;
}

bool tn_extent_overlaps_itself(const struct tn_extent *e)
{
    ptrdiff_t inner = (ptrdiff_t)e->size;
    for (int k = e->axes - 1; k >= 0; k--) {
        if (magnitude(e->stride[k]) < inner)
            return true;
        inner += (ptrdiff_t)(e->count[k] - 1) * magnitude(e->stride[k]);
    }
    return false;
}

static bool same_layout(const struct tn_extent *a, const struct tn_extent *b)
{
    if (a->size != b->size || a->axes != b->axes)
        return false;
    for (int k = 0; k < a->axes; k++)
        if (a->stride[k] != b->stride[k] || a->count[k] != b->count[k])
            return false;
    return true;
}

bool tn_extents_equal(const struct tn_extent *a, const struct tn_extent *b)
{
    if (a->data != b->data || !same_layout(a, b))
        return false;
    for (int k = 0; k < a->axes; k++) /* a transposed view has the same strides, on other axes */
        if (a->axis[k] != b->axis[k])
            return false;
    return true;
}

/* Can `distance` bytes be made of steps |d_k| < count[k] on axes k.., leaving less than one item? The axes nest, so
 * only the two multiples around the distance can. */
static bool reachable(const struct tn_extent *e, int k, ptrdiff_t distance)
{
    if (k >= e->axes || k >= 3)
        return magnitude(distance) < (ptrdiff_t)e->size;
    ptrdiff_t step = magnitude(e->stride[k]), limit = (ptrdiff_t)e->count[k] - 1;
    ptrdiff_t below = distance / step - (distance % step < 0);
    for (ptrdiff_t d = below; d <= below + 1; d++) {
        ptrdiff_t inside = d > limit ? limit : d < -limit ? -limit : d;
        if (reachable(e, k + 1, distance - inside * step))
            return true;
    }
    return false;
}

bool tn_extents_overlap(const struct tn_extent *a, const struct tn_extent *b)
{
    uintptr_t a0 = (uintptr_t)a->data + (uintptr_t)a->low, a1 = (uintptr_t)a->data + (uintptr_t)a->high;
    uintptr_t b0 = (uintptr_t)b->data + (uintptr_t)b->low, b1 = (uintptr_t)b->data + (uintptr_t)b->high;
    if (a1 <= b0 || b1 <= a0)
        return false;
    if (!same_layout(a, b) || tn_extent_overlaps_itself(a))
        return true;
    return reachable(a, 0, (ptrdiff_t)((uintptr_t)b->data - (uintptr_t)a->data));
}
