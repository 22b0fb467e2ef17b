/* SimpleNet: Linear 10 -> 5, then RMSNorm in Llama's order. */
#include "cli.h"

#include <truenorm.h>

#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>

enum { BATCH = 2, INPUTS = 10, HIDDEN = 5 };

/* splitmix64 (Steele, Lea & Flood 2014); the state is the seed. */
static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* In [0, 1), the top 53 bits. */
static double uniform(uint64_t *state)
{
    return (double)(next_bits(state) >> 11) * 0x1p-53;
}

/* True with probability exp(-p), p <= 1, by von Neumann's comparisons: no logarithm or cosine, whose last bit
 * would differ from one C library to another. */
static int exp_trial(uint64_t *state, double p)
{
    int even = 1;
    for (double u = uniform(state); u < p; u = uniform(state)) {
        p = u;
        even = !even;
    }
    return even;
}

/* |z| = k + x with density exp(-(k + x)^2 / 2): Karney 2016, algorithm N (doi 10.1145/2710016). */
static double standard_normal(uint64_t *state)
{
    for (;;) {
        int k = 0, ok = 1;
        while (exp_trial(state, 0.5))
            k++;
        for (int i = 0; ok && i < k * (k - 1); i++)
            ok = exp_trial(state, 0.5);
        if (!ok)
            continue;
        double x = uniform(state);
        for (int i = 0; ok && i <= k; i++)
            ok = exp_trial(state, x * (2 * k + x) / (2 * k + 2));
        if (ok)
            return next_bits(state) >> 63 ? -(k + x) : k + x;
    }
}

static void print_matrix(const char *name, const float *a, int columns)
{
    printf("%s, shape (%d, %d):\n", name, BATCH, columns);
    for (int i = 0; i < BATCH; i++) {
        printf("%s", i ? " [" : "[[");
        for (int j = 0; j < columns; j++)
            printf("%s% .6f", j ? ", " : "", (double)a[i * columns + j]);
        printf("%s\n", i + 1 < BATCH ? "]," : "]]");
    }
}

/* y = x A^T + b; sums in f64, in order, each rounded to f32 once. */
static void linear(const float *x, const float *a, const float *b, float *y)
{
    for (int i = 0; i < BATCH; i++) {
        for (int j = 0; j < HIDDEN; j++) {
            double sum = (double)b[j];
            for (int k = 0; k < INPUTS; k++)
                sum += (double)x[i * INPUTS + k] * (double)a[j * INPUTS + k];
            y[i * HIDDEN + j] = (float)sum;
        }
    }
}

static void simplenet(uint64_t state)
{
    float x[BATCH * INPUTS], a[HIDDEN * INPUTS], b[HIDDEN], gain[HIDDEN], z[BATCH * HIDDEN],
        y[BATCH * HIDDEN];
    double bound = 1 / sqrt(INPUTS); /* torch's init of a linear layer */

    for (int i = 0; i < HIDDEN * INPUTS; i++)
        a[i] = (float)(bound * (2 * uniform(&state) - 1));
    for (int i = 0; i < HIDDEN; i++) {
        b[i] = (float)(bound * (2 * uniform(&state) - 1));
        gain[i] = 1;
    }
    for (int i = 0; i < BATCH * INPUTS; i++)
        x[i] = (float)standard_normal(&state);

    linear(x, a, b, z);
    tn_norm_desc desc = tn_norm_init(TN_RMS, BATCH, HIDDEN, 1e-6);
    desc.cast = TN_CAST_BEFORE_SCALE;
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(z, TN_F32, HIDDEN);
    io.weight = tn_in_param(gain, TN_F32);
    io.y = tn_out_rows(y, TN_F32, HIDDEN);
    tn_status status = tn_norm_forward(&desc, &io, NULL);
    if (status != TN_OK)
        fail("simplenet: %s", tn_status_text(status));
    print_matrix("input", x, INPUTS);
    print_matrix("output", y, HIDDEN);
}

static const char help[] = "Usage: truenorm simplenet [--seed N]\n"
                           "Run Linear(10, 5) and RMSNorm(5, eps 1e-6, Llama's order) on a (2, 10) input\n"
                           "of standard normal numbers, and print input and output.\n"
                           "\n"
                           "  --seed N   of the generator, splitmix64; default 0. A seed prints the same\n"
                           "             numbers on every machine\n";

int cmd_simplenet(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    uint64_t seed = 0;
    int c;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(help, stdout), 0;
        if (c != 's')
            return 2;
        seed = parse_count("--seed", optarg, 0, SIZE_MAX);
    }
    if (optind < argc)
        fail("simplenet: unexpected argument '%s'", argv[optind]);
    simplenet(seed);
    return 0;
}
