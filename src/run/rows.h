/* rows.h - which kernel serves a plan, and how its rows are spread over an executor. */
#ifndef TN_ROWS_H
#define TN_ROWS_H

#include "kernels/kernels.h"

/* Runs the rows of a checked plan. */
void tn_run_rows(const struct tn_plan *plan, const tn_executor *executor);

#endif
