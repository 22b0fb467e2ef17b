/* grad.h - backward sweeps: which rows a task takes, and how the column sums of tasks are joined. */
#ifndef TN_RUN_GRAD_H
#define TN_RUN_GRAD_H

#include "kernels/kernels.h"

/* Rows of one column sum: `reduced` steps of `slots` rows each, for each of `outer` sums; cut in `blocks` blocks
 * of `block` steps. All of it follows from the shape, nothing from the executor. */
struct tn_reduction {
    size_t outer, slots, reduced, block, blocks;
    size_t slot_size; /* doubles per slot */
    size_t batch;     /* outer sums that are in the workspace at a time */
};

/* The reduction for column outputs that are summed over rows[k] where sum_axis[k]. */
struct tn_reduction tn_plan_reduction(const struct tn_grad_plan *plan, const bool sum_axis[2]);

/* Doubles that the sums of a reduction take. */
size_t tn_reduction_size(const struct tn_reduction *r);

/* Where the column sums go: one operand and its number of columns for each output; data NULL: not wanted. */
struct tn_columns {
    struct tn_operand out[TN_COLUMN_OUTPUTS];
    size_t width[TN_COLUMN_OUTPUTS];
    bool accumulate;
};

/* Runs the rows of a sweep and writes its column sums; sums is the workspace. */
void tn_run_grad_sweep(struct tn_grad_plan *plan, const struct tn_reduction *r,
                       const struct tn_columns *columns, double *sums, const tn_executor *executor);

/* Writes (or, with accumulate, leaves) what no rows sum to: zeros. */
void tn_write_no_columns(const struct tn_columns *columns, const size_t rows[2]);

#endif
