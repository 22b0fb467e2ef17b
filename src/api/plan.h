/* plan.h - from the caller's descriptor and operands to a checked plan. */
#ifndef TN_PLAN_H
#define TN_PLAN_H

#include "kernels/kernels.h"

enum tn_call { TN_FORWARD, TN_APPLY, TN_MOMENTS, TN_BACKWARD };

/* Checks everything and fills *plan; *empty: the call is right and there is nothing to compute.
 * For TN_BACKWARD the outputs of io are ignored, but for the dtypes of sum and y. */
tn_status tn_make_plan(const tn_norm_desc *desc, const tn_norm_io *io, enum tn_call call,
                       struct tn_plan *plan, bool *empty);

/* Copies a caller's struct of any version into this version's, absent fields zero. */
tn_status tn_copy_struct(void *to, size_t size, const void *from);

/* The descriptor part of a plan: sizes, statistics and cast points, no operands. */
tn_status tn_plan_desc(const tn_norm_desc *desc, struct tn_plan *plan);

#endif
