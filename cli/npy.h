/* The .npy file header (format 1.0, 2.0 and 3.0), parsed strictly from memory. */
#ifndef TRUENORM_CLI_NPY_H
#define TRUENORM_CLI_NPY_H

#include <stdbool.h>
#include <stddef.h>

#define NPY_MAX_RANK 64
#define NPY_HEADER_MAX 2048 /* enough for npy_write_header at any rank */

struct npy_header {
    char descr[16]; /* as in the file, e.g. "<f4" */
    char kind;      /* 'f', 'u', 'i', 'V', ... */
    size_t item;    /* bytes of one element */
    bool fortran_order;
    unsigned rank;
    size_t shape[NPY_MAX_RANK];
    size_t count; /* elements; count * item does not overflow */
    size_t data_offset;
};

/* Parses the whole file `buf`. True when the header is sound and exactly count * item bytes follow it; else
 * `err` holds a sentence without the file's name. */
bool npy_parse(const unsigned char *buf, size_t len, struct npy_header *out, char *err, size_t errlen);

/* Writes a format 1.0 header, padded to a multiple of 64 bytes, and returns its length; 0 when it does not
 * fit. */
size_t npy_write_header(unsigned char *buf, size_t capacity, const char *descr, bool fortran_order,
                        unsigned rank, const size_t *shape);

/* The product of `rank` sizes and `item`, which must fit ptrdiff_t even with zero sizes left out, as in
 * NumPy. */
bool npy_count(const size_t *shape, unsigned rank, size_t item, size_t *count);

/* "(3, 4)", cut to fit, for messages. */
void npy_shape_text(char *buf, size_t capacity, const size_t *shape, unsigned rank);

#endif
