/* minilm.c - LayerNorm on the activations of a real model, against what torch made of them and against double.
 *
 *     minilm FOLDER [OUTPUTS]
 *
 * FOLDER holds index.txt and the arrays that tools/make_minilm_data.py keeps. OUTPUTS, if given, holds NAME.npy as
 * `truenorm norm` wrote it: it must have the bits that tn_layernorm gives here. Exits 1 if a bound is broken. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <truenorm.h>

/* From torch, in ulp of the row's largest output: torch scales in f32. */
#define TORCH_BOUND 4.0

static void fail(const char *path, const char *what)
{
    fprintf(stderr, "minilm: %s: %s\n", path, what);
    exit(2);
}

/* The `count` little-endian floats of DIR/NAME.npy (format 1.0, C order). Only what that script writes is read: the
 * program has a reader for the rest. */
static float *load(const char *dir, const char *name, const char *part, size_t count)
{
    char path[4096], head[65536];
    snprintf(path, sizeof path, "%s/%s%s.npy", dir, name, part);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail(path, strerror(errno));
    unsigned char start[10];
    if (fread(start, 1, 10, f) != 10 || memcmp(start, "\x93NUMPY\1\0", 8) != 0)
        fail(path, "not a .npy file of format 1.0");
    size_t length = (size_t)start[8] | (size_t)start[9] << 8;
    if (fread(head, 1, length, f) != length)
        fail(path, "ends in its header");
    head[length] = '\0';
    if (!strstr(head, "'<f4'") || !strstr(head, "'fortran_order': False"))
        fail(path, "not little-endian f32 in C order");
    float *data = malloc(count * sizeof *data);
    if (!data)
        fail(path, "out of memory");
    if (fread(data, sizeof *data, count, f) != count || fgetc(f) != EOF)
        fail(path, "not the number of elements that index.txt says");
    fclose(f);
    return data;
}

/* The distance from |v| to the next float. */
static double ulp(double v)
{
    int e = v == 0 ? -126 : ilogb(v);
    return ldexp(1.0, (e < -126 ? -126 : e) - 23);
}

struct worst {
    double torch_ulp, torch_abs; /* from torch: ulp of the row's largest output, and plain */
    double exact_ulp;            /* from the formula in double: ulp of the element */
    int broken;
};

/* One row of y against torch's row and against the formula in double. */
static void compare_row(struct worst *worst, size_t n, double eps, const float *x, const float *weight,
                        const float *bias, const float *torch, const float *y)
{
    double sum = 0, squares = 0, rest = 0, largest = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - mean;
        rest += d;
        squares += d * d;
        largest = fmax(largest, fabs((double)torch[i]));
    }
    double deviation = sqrt(squares / (double)n + eps);
    mean += rest / (double)n; /* what the rounding of the first mean left */
    for (size_t i = 0; i < n; i++) {
        double h = ((double)x[i] - mean) / deviation;
        double exact = h * (double)weight[i] + (double)bias[i];
        double off = fabs((double)y[i] - exact), apart = fabs((double)y[i] - (double)torch[i]);
        /* Half an ulp, and what n operations in double may lose before it, here and in the library. */
        double slack =
            ((double)n + 32) * 0x1p-53 * (fabs((double)weight[i]) * fmax(1, fabs(h)) + fabs((double)bias[i]));
        if (!(off <= 0.5 * ulp(exact) + slack) || !(apart <= TORCH_BOUND * ulp(largest)))
            worst->broken = 1;
        worst->exact_ulp = fmax(worst->exact_ulp, off / ulp(exact));
        worst->torch_ulp = fmax(worst->torch_ulp, apart / ulp(largest));
        worst->torch_abs = fmax(worst->torch_abs, apart);
    }
}

static int check(const char *dir, const char *outputs, const char *name, size_t rows, size_t n, double eps)
{
    float *x = load(dir, name, ".x", rows * n), *torch = load(dir, name, ".y", rows * n);
    float *weight = load(dir, name, ".weight", n), *bias = load(dir, name, ".bias", n);
    float *y = malloc(rows * n * sizeof *y);
    if (!y)
        fail(name, "out of memory");
    tn_status status = tn_layernorm(TN_F32, rows, n, x, weight, bias, eps, y);
    if (status != TN_OK)
        fail(name, tn_status_text(status));

    struct worst worst = {0, 0, 0, 0};
    for (size_t r = 0; r < rows; r++)
        compare_row(&worst, n, eps, x + r * n, weight, bias, torch + r * n, y + r * n);
    printf("  %-12s %4zu x %-5zu eps %-7g  %.2f ulp, %.1e       %.4f ulp", name, rows, n, eps,
           worst.torch_ulp, worst.torch_abs, worst.exact_ulp);
    if (outputs) {
        float *written = load(outputs, name, "", rows * n);
        int same = memcmp(written, y, rows * n * sizeof *y) == 0;
        printf("     %s", same ? "same bits" : "OTHER BITS");
        worst.broken |= !same;
        free(written);
    }
    puts(worst.broken ? "  BROKEN" : "");
    free(x);
    free(torch);
    free(weight);
    free(bias);
    free(y);
    return worst.broken;
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fputs("usage: minilm FOLDER [OUTPUTS]\n", stderr);
        return 2;
    }
    const char *outputs = argc == 3 ? argv[2] : NULL;
    char path[4096], line[256], name[64];
    snprintf(path, sizeof path, "%s/index.txt", argv[1]);
    FILE *f = fopen(path, "r");
    if (!f)
        fail(path, strerror(errno));
    printf("LayerNorms of a trained MiniLM on four sentences, f32:\n"
           "  %-12s %-12s %-11s  %-21s  %-14s %s\n",
           "norm", "rows x n", "", "from torch (1)", "from exact (2)", outputs ? " truenorm norm" : "");
    int broken = 0, norms = 0;
    while (fgets(line, sizeof line, f)) {
        size_t rows, n;
        double eps;
        if (line[0] == '#')
            continue;
        if (sscanf(line, "%63s %zu %zu %lf", name, &rows, &n, &eps) != 4 || rows == 0 || n == 0 ||
            rows > 1u << 20 || n > 1u << 20)
            fail(path, "a line is not `name rows n eps`");
        broken |= check(argv[1], outputs, name, rows, n, eps);
        norms++;
    }
    fclose(f);
    if (norms == 0)
        fail(path, "names no norm");
    printf(
        "  (1) largest difference from torch's output: in ulp of the row's largest element (bound %g), "
        "absolute\n"
        "  (2) largest error against the formula in double: in ulp of the element (bound 0.5, and the slack\n"
        "      that n operations in double need)\n",
        TORCH_BOUND);
    return broken;
}
