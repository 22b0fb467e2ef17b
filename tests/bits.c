/* bits.c - hashes of views, and a command line that prints or checks them. */
#include "bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_bytes(uint64_t h, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

uint64_t bits_hash_view(uint64_t h, const tn_out *v, const size_t rows[2], size_t n)
{
    size_t size = dtype_info(v->dtype)->size;
    for (size_t i = 0; i < rows[0]; i++)
        for (size_t j = 0; j < rows[1]; j++)
            for (size_t k = 0; k < n; k++) {
                ptrdiff_t index =
                    (ptrdiff_t)i * v->stride[0] + (ptrdiff_t)j * v->stride[1] + (ptrdiff_t)k * v->inner;
                const unsigned char *p = (const unsigned char *)v->data + index * (ptrdiff_t)size;
                static const unsigned char nan_bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
                if (dtype_is_float(v->dtype) && isnan(dtype_get(p, v->dtype, 0)))
                    p = nan_bytes;
                h = hash_bytes(h, p, size);
            }
    return h;
}

/* The hash of `name` in the file; false if it has none. */
static bool golden(FILE *f, const char *name, unsigned long long *hash)
{
    char line[128], found[64];
    rewind(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %llx", found, hash) == 2 && strcmp(found, name) == 0)
            return true;
    return false;
}

static int run_groups(bool quick, FILE *check, size_t count, const struct bits_group *(*group)(size_t i),
                      uint64_t (*hash)(size_t i, uint64_t h))
{
    int differ = 0, run = 0;
    for (size_t i = 0; i < count; i++) {
        const struct bits_group *g = group(i);
        if (quick && !g->quick)
            continue;
        unsigned long long want = 0, got = hash(i, 0xcbf29ce484222325ull);
        run++;
        if (!check) {
            printf("%s %016llx\n", g->name, got);
        } else if (!golden(check, g->name, &want) || want != got) {
            printf("%s %016llx, not %016llx\n", g->name, got, want);
            differ++;
        }
    }
    if (check)
        printf("%s: %d of %d hashes differ\n", tn_isa_name(), differ, run);
    return differ ? 1 : 0;
}

int bits_main(int argc, char **argv, size_t count, const struct bits_group *(*group)(size_t i),
              uint64_t (*hash)(size_t i, uint64_t h))
{
    const char *isa = NULL, *file = NULL;
    bool quick = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            isa = argv[++i];
        else if (strcmp(argv[i], "--check") == 0 && i + 1 < argc)
            file = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--isa NAME] [--quick] [--check FILE]\n", argv[0]);
            return 2;
        }
    }
    if (isa && tn_isa_set(isa) != TN_OK) {
        printf("skipped: %s is not usable here\n", isa);
        return 77;
    }
    FILE *check = file ? fopen(file, "r") : NULL;
    if (file && !check) {
        perror(file);
        return 2;
    }
    int status = run_groups(quick, check, count, group, hash);
    if (check)
        fclose(check);
    return status;
}
