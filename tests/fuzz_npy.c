/* Fuzzes the .npy header parser. libFuzzer:
 *     clang -g -fsanitize=fuzzer,address,undefined -Icli tests/fuzz_npy.c cli/npy.c -o fuzz_npy
 *     ./fuzz_npy tests/corpus/npy
 * With fuzz_main.c it runs the files named as arguments. */
#include "npy.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok)
{
    if (!ok)
        abort();
}

/* What the parser accepts must be within the file, and come back the same when written anew. */
static void check_accepted(const struct npy_header *h, size_t size)
{
    unsigned char header[NPY_HEADER_MAX];
    struct npy_header again;
    char err[160] = "";
    size_t count;

    require(h->rank <= NPY_MAX_RANK && h->item > 0);
    require(npy_count(h->shape, h->rank, h->item, &count) && count == h->count);
    require(h->data_offset <= size && size - h->data_offset == h->count * h->item);
    size_t length = npy_write_header(header, sizeof header, h->descr, h->fortran_order, h->rank, h->shape);
    require(length > 0 && length % 64 == 0);
    int whole = npy_parse(header, length, &again, err, sizeof err);
    require(whole ? h->count == 0 : strncmp(err, "the header asks for", 19) == 0);
    require(again.rank == h->rank && again.item == h->item && again.kind == h->kind);
    require(again.fortran_order == h->fortran_order && again.count == h->count);
    require(memcmp(again.shape, h->shape, sizeof h->shape) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct npy_header h;
    char err[160] = "";
    if (npy_parse(data, size, &h, err, sizeof err))
        check_accepted(&h, size);
    else
        require(err[0] != 0 && memchr(err, '\n', sizeof err) == NULL);
    return 0;
}
