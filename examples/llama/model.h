/* model.h - the shape of a model: its sizes, where it normalises, and where each parameter lies.
 *
 * All parameters are one array of numbers; a parameter is named by its offset. So are their gradients and the optimiser's
 * two averages: the same offset names all four. */
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include "real.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCABULARY 256 /* a token is a byte */
#define ABSENT SIZE_MAX

enum kind { KIND_NONE, KIND_LAYER, KIND_RMS, KIND_PARTIAL };
struct norm_kind {
    enum kind kind;
    double part; /* KIND_PARTIAL: the share of a row whose squares are averaged, from its start */
};

/* With f attention or the feed-forward net:
 *     PRE       x + f(norm(x))           Llama
 *     POST      norm(x + f(x))           Vaswani et al. 2017
 *     SANDWICH  x + norm(f(norm(x)))     Ding et al. 2021, Gemma 2 */
enum placement { PRE, POST, SANDWICH };
enum sublayer { ATTENTION, FEED_FORWARD, SUBLAYERS };
enum site { BEFORE, AFTER, ON_SUM, SITES }; /* before f, after f, after the addition */

struct config {
    size_t layers, width, heads, hidden, context;
    struct norm_kind norm, qk_norm; /* qk_norm: of each head's queries and keys, before the rotation */
    enum placement placement;
    double eps, rope_theta;
};

/* "none", "layer", "rms" or "prms:P"; false if the text is none of them. */
bool norm_kind_parse(const char *text, struct norm_kind *kind);
void norm_kind_format(struct norm_kind kind, char *text, size_t capacity);
extern const char *const placement_names[3];

/* Why there is no such model, or NULL. */
const char *config_problem(const struct config *config);

/* What Transformers calls this model ("llama", "qwen3", "stablelm"), or NULL if it has none like it. */
const char *config_model_type(const struct config *config);

struct tensor {
    char name[80];     /* Llama's name in Transformers, or that of the model which has such a norm */
    size_t rows, cols; /* cols is 0 for a vector */
    size_t offset, count;
    double deviation; /* drawn from a normal distribution; 0: starts at `constant` */
    double constant;
};

struct gain {
    size_t weight, bias; /* ABSENT: that norm has none, or there is no such norm */
};

struct block {
    size_t first, end; /* its parameters */
    size_t q, k, v, o, gate, up, down;
    struct gain q_norm, k_norm, norm[SUBLAYERS][SITES];
};

struct layout {
    size_t size;      /* parameters in all */
    size_t embedding; /* also the output matrix: tied */
    struct block *blocks;
    struct gain last_norm;
    struct tensor *tensors;
    size_t tensor_count;
};

struct layout layout_make(const struct config *config);
void layout_free(struct layout *layout);

/* Normal with deviation gain / sqrt(inputs); what adds to the residual stream starts 1 / sqrt(2 layers) smaller. */
void parameters_init(const struct layout *layout, double gain, uint64_t seed, real *parameters);

#endif
