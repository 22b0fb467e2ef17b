/* norm.h - the norm layers: all that truenorm is called for. */
#ifndef LLAMA_NORM_H
#define LLAMA_NORM_H

#include "model.h"

struct norm {
    struct norm_kind kind;
    size_t rows, n;
    double eps;
    const real *weight, *bias; /* bias: NULL where the kind has none */
};

/* y = norm(x). Of each row the mean and 1/deviation are kept in stats, [2][rows], for the way back. */
void norm_forward(const struct norm *norm, const real *x, real *y, double *stats);

/* dx = the gradient of x, plus dsum (NULL: nothing). dx may be dy or dsum. */
void norm_backward(const struct norm *norm, const real *x, const double *stats, const real *dy,
                   const real *dsum, real *dx, real *dweight, real *dbias);

/* Seconds spent in both so far. */
double norm_seconds(void);

#endif
