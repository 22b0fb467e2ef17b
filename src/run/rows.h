/* rows.h - which kernel serves a plan, and how its rows are spread over an executor. */
#ifndef TN_ROWS_H
#define TN_ROWS_H

#include "kernels/kernels.h"

/* Below this many bytes of operands a second thread costs more than it brings. */
#define TN_SERIAL_BYTES ((size_t)192 * 1024)

/* Runs the rows of a checked plan. */
void tn_run_rows(struct tn_plan *plan, const tn_executor *executor);

/* Do results go past the caches? */
bool tn_should_stream(const struct tn_plan *plan, const struct tn_operand *result);

/* Has x that many bytes, and do its rows follow one another? */
bool tn_is_far(const struct tn_plan *plan, size_t bytes);

#endif
