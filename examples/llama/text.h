/* text.h - bytes to train on and to measure with. */
#ifndef LLAMA_TEXT_H
#define LLAMA_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct text {
    uint8_t *bytes;
    size_t size;
};

/* At most `limit` bytes of a file (0: all); it must hold more than `context` ones. */
struct text text_open(const char *path, size_t limit, size_t context);
void text_close(struct text *text);

/* The sequences of a step, drawn at random: a function of seed and step alone. inputs and targets: [batch, context]. */
void text_batch(const struct text *text, uint64_t seed, size_t step, size_t batch, size_t context,
                uint8_t *inputs, uint8_t *targets);

/* Batch `index` of `count` whose sequences are spread evenly over the text. */
void text_part(const struct text *text, size_t index, size_t count, size_t batch, size_t context,
               uint8_t *inputs, uint8_t *targets);

#endif
