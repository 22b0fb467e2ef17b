/* adamw.h - Loshchilov & Hutter 2019, with the decay on matrices only. */
#ifndef LLAMA_ADAMW_H
#define LLAMA_ADAMW_H

#include "model.h"

/* The length of the gradient of parameters first ... end - 1. */
double gradient_length(const real *gradients, size_t first, size_t end);

/* One step, the first being number 1. `scale` multiplies the gradients; m and v are the two running averages. */
void adamw(const struct layout *layout, size_t step, double rate, double decay, double scale,
           const real *gradients, real *m, real *v, real *parameters);

#endif
