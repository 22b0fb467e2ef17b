/* known.h - helpers of the tests of public bug reports. */
#ifndef TN_TEST_KNOWN_H
#define TN_TEST_KNOWN_H

#include "check.h"

/* One row through spec `s`, with x (and weight, bias where present) given, checked by the oracle; y as doubles. */
void run_row(struct spec *s, const double *x, const double *weight, const double *bias, double *y);
void norm(tn_kind kind, tn_dtype dtype, size_t n, double eps, const double *x, double *y);
void fill_row(double *x, size_t n, double v);
void assert_all(const double *y, size_t n, double want);
void assert_near(double got, double want, double tolerance);

#endif
