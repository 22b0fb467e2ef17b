/* gradcheck.c - `llama gradcheck`: the gradient of every parameter array against differences of the loss. */
#include "commands.h"
#include "common.h"
#include "options.h"
#include "transformer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The step and the bound of the relative error: differences of a float loss are that coarse. */
#ifdef LLAMA_F64
#define STEP 1e-3
#define BOUND 1e-7
#else
#define STEP 3e-2
#define BOUND 5e-3
#endif
#define DIRECTIONS 4
#define STREAM_OF_TEXT 1000000
#define STREAM_OF_GAINS 2000000
#define STREAM_OF_DIRECTIONS 3000000

static const char help[] =
    "Usage: llama gradcheck [OPTION]...\n"
    "Compare the gradients of a tiny model (the options of 'llama train') with central differences of\n"
    "its loss, along random directions in each parameter array. Exit status 1 if they differ.\n";

struct check {
    struct transformer *net;
    uint8_t *inputs, *targets;
    real *start, *slope; /* the parameters, and the gradients there */
    uint64_t seed;
};

static struct check check_new(const struct options *o)
{
    struct check c = {.net = transformer_new(&o->config, o->batch, o->config.context), .seed = o->seed};
    const struct layout *l = &c.net->layout;
    c.inputs = allocate(c.net->tokens, 1);
    c.targets = allocate(c.net->tokens, 1);
    c.start = allocate(l->size, sizeof(real));
    c.slope = allocate(l->size, sizeof(real));
    for (size_t i = 0; i < c.net->tokens; i++) {
        c.inputs[i] = (uint8_t)random_bits(c.seed, STREAM_OF_TEXT, 2 * i);
        c.targets[i] = (uint8_t)random_bits(c.seed, STREAM_OF_TEXT, 2 * i + 1);
    }
    parameters_init(l, o->gain, c.seed, c.net->parameters);
    for (size_t t = 0; t < l->tensor_count; t++) /* weights of 1 and biases of 0 would hide mistakes */
        for (size_t i = 0; i < l->tensors[t].count && l->tensors[t].deviation == 0; i++)
            c.net->parameters[l->tensors[t].offset + i] +=
                (real)(0.3 * random_normal(c.seed, STREAM_OF_GAINS + t, i));
    memcpy(c.start, c.net->parameters, l->size * sizeof(real));
    transformer_forward(c.net, c.inputs);
    transformer_backward(c.net, c.inputs, c.targets);
    memcpy(c.slope, c.net->gradients, l->size * sizeof(real));
    return c;
}

static void check_free(struct check *c)
{
    transformer_free(c->net);
    free(c->inputs);
    free(c->targets);
    free(c->start);
    free(c->slope);
}

static double loss_at(struct check *c, const struct tensor *t, const double *direction, double step)
{
    real *p = c->net->parameters;
    for (size_t i = 0; i < t->count; i++)
        p[t->offset + i] = (real)((double)c->start[t->offset + i] + step * direction[i]);
    transformer_forward(c->net, c->inputs);
    double loss = transformer_loss(c->net, c->targets);
    memcpy(p + t->offset, c->start + t->offset, t->count * sizeof(real));
    return loss;
}

/* How far the slope along a direction of length 1 is from differences of fourth order. */
static double slope_error(struct check *c, size_t t, size_t index, double *analytic)
{
    const struct tensor *tensor = &c->net->layout.tensors[t];
    double *direction = allocate(tensor->count, sizeof *direction), length = 0;
    for (size_t i = 0; i < tensor->count; i++) {
        direction[i] = random_normal(c->seed, STREAM_OF_DIRECTIONS + t, index * tensor->count + i);
        length += direction[i] * direction[i];
    }
    *analytic = 0;
    for (size_t i = 0; i < tensor->count; i++) {
        direction[i] /= sqrt(length);
        *analytic += direction[i] * (double)c->slope[tensor->offset + i];
    }
    double near = loss_at(c, tensor, direction, STEP) - loss_at(c, tensor, direction, -STEP);
    double far = loss_at(c, tensor, direction, 2 * STEP) - loss_at(c, tensor, direction, -2 * STEP);
    double numeric = (8 * near - far) / (12 * STEP);
    free(direction);
    return fabs(numeric - *analytic);
}

/* The largest error over a few directions, in terms of the largest slope. */
static double check_tensor(struct check *c, size_t t)
{
    double worst = 0, largest = 0, analytic;
    for (size_t i = 0; i < DIRECTIONS; i++) {
        worst = fmax(worst, slope_error(c, t, i, &analytic));
        largest = fmax(largest, fabs(analytic));
    }
    printf("%-55s slope %.3e  off by %.1e of it\n", c->net->layout.tensors[t].name, largest, worst / largest);
    return worst / largest;
}

int cmd_gradcheck(int argc, char **argv)
{
    struct options o;
    options_init(&o);
    o.config.layers = 2;
    o.config.width = 16;
    o.config.heads = 2;
    o.config.hidden = 24;
    o.config.context = 7;
    o.batch = 3;
    if (options_parse(&o, argc, argv))
        return fputs(help, stdout), 0;
    blas_start(o.threads);
    struct check c = check_new(&o);
    bool broken = false;
    for (size_t t = 0; t < c.net->layout.tensor_count; t++)
        if (!(check_tensor(&c, t) <= BOUND))
            broken = true;
    printf("%s: the bound is %g\n", broken ? "gradients DIFFER" : "gradients agree", BOUND);
    check_free(&c);
    options_free(&o);
    return broken;
}
