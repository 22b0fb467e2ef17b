#include "common.h"
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void fail(const char *format, ...)
{
    char text[8192 + 512]; /* two paths and a sentence */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?'; /* a file name may hold a line break */
    progress_clear();
    fprintf(stderr, "llama: %s\n", text);
    exit(2);
}

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        fail("out of memory: %zu numbers of %zu bytes", count, size);
    return memory;
}

double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The output function of SplitMix64 (Steele, Lea & Flood 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    return mix(mix(mix(seed + golden) + stream * golden) + index * golden);
}

/* Box and Muller 1958. */
double random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    double u = (double)((random_bits(seed, stream, 2 * index) >> 11) + 1) * 0x1p-53; /* (0, 1] */
    double v = (double)(random_bits(seed, stream, 2 * index + 1) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}
