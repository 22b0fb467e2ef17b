/* common.h - what every file of this example uses. */
#ifndef LLAMA_COMMON_H
#define LLAMA_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* Prints one line "llama: ..." on stderr and exits with status 2. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

/* Zeroed memory, or fail(). */
void *allocate(size_t count, size_t size);

/* Seconds on a clock that only goes forward. */
double seconds(void);

/* Random numbers without a state: a function of seed, stream and index. Training can go on from a step number. */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);
double random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
