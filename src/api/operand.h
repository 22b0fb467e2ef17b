/* operand.h - from the caller's views to byte-strided operands, and who may share memory with whom. */
#ifndef TN_OPERAND_H
#define TN_OPERAND_H

#include "kernels/kernels.h"

enum tn_allowed { TN_FLOATS, TN_STATISTIC, TN_ANY_DTYPE };

static inline bool tn_in_range(int value, int last)
{
    return value >= 0 && value <= last;
}

bool tn_dtype_allowed(tn_dtype dt, enum tn_allowed allowed);

/* Fills *o with byte strides; an absent operand (data NULL) is left alone. */
tn_status tn_set_operand(struct tn_operand *o, const void *data, tn_dtype dt, const ptrdiff_t stride[2],
                         ptrdiff_t inner, enum tn_allowed allowed);

/* How a call uses an operand of rows[0] x rows[1] x inner elements (axes of stride 0 of an output count once). */
struct tn_use {
    const struct tn_operand *operand;
    size_t inner;
    unsigned id; /* a bit, for inputs that an output may be */
    bool output;
    unsigned in_place; /* ids of the inputs that this output may be exactly */
    bool reduced;      /* an output whose axes of stride 0 are sums */
};

/* TN_ERR_OVERLAP where an output shares bytes with itself or with anything it may not. */
tn_status tn_check_uses(const struct tn_use *uses, size_t count, const size_t rows[2]);

#endif
