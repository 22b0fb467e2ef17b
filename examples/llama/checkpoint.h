/* checkpoint.h - RUN/checkpoint-STEP: model.safetensors and config.json as Transformers writes them, and
 * optimizer.safetensors with the rest that training needs. The folder is written beside and renamed, then the one
 * before it is removed: whenever the program is killed, a whole one is there. */
#ifndef LLAMA_CHECKPOINT_H
#define LLAMA_CHECKPOINT_H

#include "options.h"
#include "transformer.h"

/* What a run of training is, between two steps. */
struct training {
    struct options options;
    struct transformer *net;
    real *m, *v;          /* AdamW's averages */
    size_t step;          /* steps done */
    size_t metrics_bytes; /* length of metrics.jsonl then */
};

void checkpoint_write(const char *run, const struct training *training);

/* Whether the folder is there and holds one. */
bool checkpoint_exists(const char *run);

/* The last checkpoint of a run: its options, then (once there is a net) its numbers. fail() if there is none. */
void checkpoint_options(const char *run, struct training *training);
void checkpoint_numbers(const char *run, struct training *training);

/* The model alone from such a folder, with room for `batch` sequences of `length` bytes (0: its context). */
struct transformer *checkpoint_model(const char *folder, size_t batch, size_t length);
struct config checkpoint_config(const char *folder);

#endif
