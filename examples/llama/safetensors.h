/* safetensors.h - files of named arrays: eight bytes of length, a JSON header, then the numbers, little-endian.
 * Only arrays of `real` are written and read. Anything wrong with a file ends in fail(). */
#ifndef LLAMA_SAFETENSORS_H
#define LLAMA_SAFETENSORS_H

#include "real.h"

#include <cjson/cJSON.h>

struct named_array {
    const char *name;
    size_t rows, cols; /* cols 0: a vector */
    const real *data;
};

/* Writes and flushes to the disk. `metadata` is an object of strings, and stays the caller's. */
void safetensors_write(const char *path, const cJSON *metadata, const struct named_array *arrays,
                       size_t count);

struct safetensors;
struct safetensors *safetensors_open(const char *path);
void safetensors_close(struct safetensors *file);

/* The object of strings, or NULL. */
const cJSON *safetensors_metadata(const struct safetensors *file);

/* Copies the array of that name, which must have that shape. */
void safetensors_read(const struct safetensors *file, const char *name, size_t rows, size_t cols, real *data);

#endif
