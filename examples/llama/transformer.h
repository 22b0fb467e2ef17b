/* transformer.h - the net: what it computes from bytes, and the gradients of all its parameters. */
#ifndef LLAMA_TRANSFORMER_H
#define LLAMA_TRANSFORMER_H

#include "model.h"
#include "ops.h"

/* One sublayer's arrays, [tokens, width]. Where there is no norm, its result is its input. */
struct sublayer_pass {
    real *stream;         /* the residual stream that comes in */
    real *in, *raw, *out; /* what f sees, what f gives, what is added */
    real *sum;            /* stream + out */
    double *stats[SITES]; /* of each norm's rows */
};

struct block_pass {
    struct sublayer_pass sublayer[SUBLAYERS];
    real *q_raw, *k_raw, *q, *k, *v, *weights, *mixed;
    double *q_stats, *k_stats;
    real *gate, *up, *active;
};

/* A model with room for one batch on its way forward and back. */
struct transformer {
    struct config config;
    struct layout layout;
    struct heads heads; /* batch and length are those of the room */
    size_t tokens;      /* batch * length */
    real *parameters, *gradients;

    struct block_pass *blocks;
    real *last, *normed; /* the stream after the last block, and what the output matrix sees */
    double *last_stats;
    real *logits;
    real *cosine, *sine;
    real *d, *d_in, *d_out;           /* gradients: of the stream, of f's input and output */
    real *dq, *dk, *dv, *dmixed, *dw; /* of attention */
    real *dgate, *dactive;            /* of the feed-forward net */
    void **owned;                     /* every array above */
    size_t owned_count;
};

/* The parameters are not set; parameters_init() or a checkpoint does that. */
struct transformer *transformer_new(const struct config *config, size_t batch, size_t length);
void transformer_free(struct transformer *t);

/* Logits of the byte after each byte of `inputs` [batch, length]. */
void transformer_forward(struct transformer *t, const uint8_t *inputs);

/* After transformer_forward: the loss in nats per byte. */
double transformer_loss(struct transformer *t, const uint8_t *targets);

/* After transformer_forward: the loss, and all gradients. */
double transformer_backward(struct transformer *t, const uint8_t *inputs, const uint8_t *targets);

#endif
