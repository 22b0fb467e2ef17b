/* fuzz_main.c - runs a fuzz target on the files named as arguments, where there is no libFuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(1 << 20);
    size_t size = f && data ? fread(data, 1, 1 << 20, f) : 0;
    uint8_t *exact =
        f ? malloc(size ? size : 1) : NULL; /* of the file's size: a checker sees reads past its end */
    if (exact) {
        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
    }
    if (f)
        fclose(f);
    else
        fprintf(stderr, "fuzz: %s cannot be read\n", path);
    int failed = !exact;
    free(exact);
    free(data);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    printf("%d files\n", argc - 1);
    return failed;
}
