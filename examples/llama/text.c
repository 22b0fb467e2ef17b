#include "text.h"
#include "common.h"
#include "files.h"

#include <stdlib.h>
#include <string.h>

#define STREAM_OF_TEXT ((uint64_t)1 << 40) /* the initial weights use the tensors' numbers */

struct text text_open(const char *path, size_t limit, size_t context)
{
    struct text text;
    text.bytes = file_read(path, &text.size);
    if (limit && limit < text.size)
        text.size = limit;
    if (text.size <= context)
        fail("%s: %zu bytes are too few for a context of %zu", path, text.size, context);
    return text;
}

void text_close(struct text *text)
{
    free(text->bytes);
    text->bytes = NULL;
}

static void copy(const struct text *text, size_t start, size_t context, uint8_t *inputs, uint8_t *targets)
{
    memcpy(inputs, text->bytes + start, context);
    memcpy(targets, text->bytes + start + 1, context);
}

void text_batch(const struct text *text, uint64_t seed, size_t step, size_t batch, size_t context,
                uint8_t *inputs, uint8_t *targets)
{
    for (size_t i = 0; i < batch; i++) {
        size_t start = (size_t)(random_bits(seed, STREAM_OF_TEXT + step, i) % (text->size - context));
        copy(text, start, context, inputs + i * context, targets + i * context);
    }
}

void text_part(const struct text *text, size_t index, size_t count, size_t batch, size_t context,
               uint8_t *inputs, uint8_t *targets)
{
    size_t last = text->size - context - 1, parts = count * batch;
    for (size_t i = 0; i < batch; i++) {
        size_t start =
            parts > 1 ? (size_t)((double)last * (double)(index * batch + i) / (double)(parts - 1)) : 0;
        copy(text, start, context, inputs + i * context, targets + i * context);
    }
}
