/* metrics.h - metrics.jsonl: a JSON object for each step.
 *
 *     step, loss (nats per byte), rate, gradient (its length), step_s, norm_s (seconds), tokens_per_s;  every so often
 *     layer_gradient             length of the gradient of each block's parameters
 *     in_mean, in_variance       of all that f sees, for attention and feed-forward net of each block in turn
 *     stream_mean, stream_variance    of the residual stream there
 *
 * The first object says what computed: {"parameters", "threads", "openblas", "isa"}. The validation loss after a step is
 * an object of its own: {"step": 100, "valid": 2.1}. A number that is not finite is null. The last object says how the
 * run ended: {"end": "finished", "step": 400}, or "interrupted", or "diverged". */
#ifndef LLAMA_METRICS_H
#define LLAMA_METRICS_H

#include "transformer.h"

#include <stdio.h>

struct measured {
    size_t step;
    double loss, rate, gradient, step_seconds, norm_seconds, tokens_per_second;
};

struct metrics;

/* Opens RUN/metrics.jsonl, cut to `bytes`: what was written after the checkpoint will be written again. */
struct metrics *metrics_open(const char *run, size_t bytes);

/* The first line of a new run. */
void metrics_start(struct metrics *metrics, const struct transformer *net, size_t threads);

/* layers: also what each layer saw in the last pass, and its gradient. */
void metrics_step(struct metrics *metrics, const struct measured *m, const struct transformer *net,
                  int layers);
void metrics_valid(struct metrics *metrics, size_t step, double loss);
void metrics_end(struct metrics *metrics, const char *how, size_t step);

/* Flushes to the disk and returns the length. */
size_t metrics_flush(struct metrics *metrics);
void metrics_close(struct metrics *metrics);

#endif
