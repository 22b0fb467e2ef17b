/* options.h - the options of `llama train` and `llama gradcheck`; a checkpoint keeps them. */
#ifndef LLAMA_OPTIONS_H
#define LLAMA_OPTIONS_H

#include "model.h"

#include <cjson/cJSON.h>

struct options {
    struct config config;
    char *text, *valid, *out, *resume; /* resume: the folder of a run to go on with */
    size_t text_bytes;                 /* trains on so many bytes of the text; 0: all */
    size_t batch, steps, warmup, seed, threads, valid_batches;
    size_t log_every, valid_every, save_every; /* 0: at the end only */
    size_t checkpoints;                        /* 0: none are written, and the run cannot go on */
    double rate, decay, clip, gain;
};

void options_init(struct options *o);
void options_free(struct options *o);

/* Reads argv; a wrong option or value ends in fail(). Returns 1 if --help was asked for. */
int options_parse(struct options *o, int argc, char **argv);

/* All but --out and --resume as strings, and back; `path` is where they came from. */
void options_save(const struct options *o, cJSON *object);
void options_load(struct options *o, const cJSON *object, const char *path);

/* Prints the options and their defaults. */
void options_help(void);

/* A whole number from `least` to `most`, or fail(). */
size_t parse_count(const char *option, const char *text, size_t least, size_t most);

#endif
