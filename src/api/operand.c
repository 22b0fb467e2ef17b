/* operand.c - dtype, stride and overlap checks. */
#include "api/operand.h"

#include "api/overlap.h"
#include "base/half.h"

bool tn_dtype_allowed(tn_dtype dt, enum tn_allowed allowed)
{
    if (allowed == TN_STATISTIC)
        return dt == TN_F64 || dt == TN_F32;
    return tn_in_range((int)dt - TN_F64, (allowed == TN_ANY_DTYPE ? TN_E5M2 : TN_F16) - TN_F64);
}

tn_status tn_set_operand(struct tn_operand *o, const void *data, tn_dtype dt, const ptrdiff_t stride[2],
                         ptrdiff_t inner, enum tn_allowed allowed)
{
    if (!data)
        return TN_OK;
    if (!tn_dtype_allowed(dt, allowed))
        return TN_ERR_DTYPE;
    ptrdiff_t size = (ptrdiff_t)tn_element_size(dt);
    o->data = (char *)(uintptr_t)data;
    o->dtype = dt;
    if (__builtin_mul_overflow(stride[0], size, &o->stride[0]) ||
        __builtin_mul_overflow(stride[1], size, &o->stride[1]) ||
        __builtin_mul_overflow(inner, size, &o->inner))
        return TN_ERR_SIZE;
    return TN_OK;
}

static bool extent_of(const struct tn_use *use, const size_t rows[2], struct tn_extent *e)
{
    const struct tn_operand *o = use->operand;
    const size_t count[3] = {use->reduced && !o->stride[0] ? 1 : rows[0],
                             use->reduced && !o->stride[1] ? 1 : rows[1], use->inner};
    const ptrdiff_t stride[3] = {o->stride[0], o->stride[1], o->inner};
    return tn_extent_init(e, o->data, tn_element_size(o->dtype), count, stride);
}

static bool allowed_in_place(const struct tn_use *out, const struct tn_extent *out_extent,
                             const struct tn_use *in, const struct tn_extent *in_extent)
{
    return (out->in_place & in->id) && out->operand->dtype == in->operand->dtype &&
           tn_extents_equal(out_extent, in_extent);
}

tn_status tn_check_uses(const struct tn_use *uses, size_t count, const size_t rows[2])
{
    enum { MOST = 24 };
    struct tn_extent e[MOST];
    for (size_t i = 0; i < count && i < MOST; i++)
        if (uses[i].operand->data && !extent_of(&uses[i], rows, &e[i]))
            return TN_ERR_SIZE;
    for (size_t i = 0; i < count; i++) {
        if (!uses[i].operand->data || !uses[i].output)
            continue;
        if (tn_extent_overlaps_itself(&e[i]))
            return TN_ERR_OVERLAP;
        for (size_t j = 0; j < count; j++)
            if (j != i && uses[j].operand->data && tn_extents_overlap(&e[i], &e[j]) &&
                !allowed_in_place(&uses[i], &e[i], &uses[j], &e[j]))
                return TN_ERR_OVERLAP;
    }
    return TN_OK;
}
