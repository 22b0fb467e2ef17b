/* bits.h - hashing of results, and the program around a list of hashed groups (test_bits, test_grad_bits). */
#ifndef BITS_H
#define BITS_H

#include "support.h"

/* Of the rows[0] x rows[1] x n elements of a view. fp8 and int8 codes as they are; other NaNs as one. */
uint64_t bits_hash_view(uint64_t h, const tn_out *v, const size_t rows[2], size_t n);

struct bits_group {
    char name[64];
    bool quick; /* part of --quick */
};

/* PROGRAM [--isa NAME] [--quick] [--check FILE]: prints "name hash" lines, or only those that differ from the file.
 * group(i) is the i-th of `count` groups, hash(i, h) its hash from the start value h. */
int bits_main(int argc, char **argv, size_t count, const struct bits_group *(*group)(size_t i),
              uint64_t (*hash)(size_t i, uint64_t h));

#endif
