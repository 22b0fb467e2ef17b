/* ops.h - the other layers, forward and backward. Arrays are dense and row-major; a row is one token. */
#ifndef LLAMA_OPS_H
#define LLAMA_OPS_H

#include "real.h"

#include <stddef.h>
#include <stdint.h>

/* y[rows, out] = x[rows, in] w[out, in]^T */
void linear_forward(const real *x, const real *w, real *y, size_t rows, size_t in, size_t out);
/* dw = dy^T x;  dx = dy w, or dx += dy w */
void linear_backward(const real *x, const real *w, const real *dy, real *dx, real *dw, size_t rows, size_t in,
                     size_t out, int add_to_dx);

/* Sizes of attention: queries, keys and values are [batch * length, heads * size]. */
struct heads {
    size_t batch, length, heads, size;
};

/* cos and sin of position * theta^(-2 i / size), each [length, size / 2]. */
void rope_table(const struct heads *h, double theta, real *cosine, real *sine);
/* Turns element i of a head with element i + size / 2, as Llama in Transformers; direction -1 turns back. */
void rope(const struct heads *h, const real *cosine, const real *sine, int direction, real *x);

/* mixed = softmax(q k^T / sqrt(size), causal) v; weights: [batch, heads, length, length], kept for the way back. */
void attention_forward(const struct heads *h, const real *q, const real *k, const real *v, real *weights,
                       real *mixed);
/* scratch: [length, length] */
void attention_backward(const struct heads *h, const real *q, const real *k, const real *v,
                        const real *weights, const real *dmixed, real *dq, real *dk, real *dv, real *scratch);

/* active = silu(gate) * up */
void swiglu_forward(const real *gate, const real *up, real *active, size_t count);
/* dgate and dup from dactive; dup may be dactive. */
void swiglu_backward(const real *gate, const real *up, const real *dactive, real *dgate, real *dup,
                     size_t count);

/* The mean over rows of -log softmax(logits)[target]. The logits become their gradient if `gradient` is nonzero. */
double cross_entropy(real *logits, const uint8_t *targets, size_t rows, size_t classes, int gradient);

#endif
