/* Times the forward pass next to memcpy of the same bytes. */
#include "cli.h"

#include <truenorm.h>

#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ROUNDS 21
#define EPS 1e-6

struct shape {
    size_t rows[2], n;
    size_t stride0; /* elements from one rows[0] to the next; rows[1] lie n apart */
};

/* The last one is the query part of a QKV buffer: 128 tokens of 32 heads, with 8 key and 8 value heads. */
static const struct shape shapes[] = {
    {{1, 1}, 4096, 4096}, {{256, 1}, 128, 128},    {{32, 1}, 4096, 4096},
    {{512, 1}, 768, 768}, {{2048, 1}, 4096, 4096}, {{128, 32}, 128, 48 * 128},
};
static const struct choice kinds[] = {{"rms", TN_RMS}, {"layer", TN_LAYER}};
static const struct choice dtypes[] = {{"f32", TN_F32}, {"bf16", TN_BF16}, {"f16", TN_F16}};
static const struct choice grades[] = {{"exact", TN_EXACT}, {"fast", TN_FAST}};
#define COUNT(a) (sizeof(a) / sizeof *(a))

struct options {
    int threads, rounds;
    double sample; /* seconds that one timing lasts at least */
    bool json;
};

/* One shape, dtype and kind: the arrays, and the calls that are timed in turn. */
struct work {
    const struct shape *shape;
    tn_norm_desc desc;
    tn_norm_io io;
    tn_executor executor;
    const tn_executor *threads; /* NULL: one thread */
    size_t bytes;               /* of the rows in one array */
    void *x, *w, *y;
};

enum { COPY = COUNT(grades), CALLS };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double decode(const void *data, tn_dtype dtype, size_t i)
{
    uint16_t bits;
    float f;
    if (dtype == TN_F32)
        return (double)((const float *)data)[i];
    memcpy(&bits, (const char *)data + 2 * i, 2);
    if (dtype == TN_BF16) {
        uint32_t wide = (uint32_t)bits << 16;
        memcpy(&f, &wide, 4);
        return (double)f;
    }
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

/* Random signs and fractions, sizes from 1/4 to 4. */
static void fill(void *data, tn_dtype dtype, size_t count)
{
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t bits = (uint32_t)(state >> 32);
        uint32_t sign = bits >> 31, exponent = bits >> 29 & 3, fraction = bits & 0x7fffff;
        uint32_t single = sign << 31 | (125 + exponent) << 23 | fraction;
        uint16_t narrow = (uint16_t)(single >> 16);
        if (dtype == TN_F16)
            narrow = (uint16_t)(sign << 15 | (13 + exponent) << 10 | fraction >> 13);
        if (dtype == TN_F32)
            memcpy((char *)data + 4 * i, &single, 4);
        else
            memcpy((char *)data + 2 * i, &narrow, 2);
    }
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        fail("bench: out of memory");
    memset(p, 0, bytes);
    return p;
}

static void prepare(struct work *w, const struct shape *shape, tn_dtype dtype, tn_kind kind, int threads)
{
    size_t rows = shape->rows[0] * shape->rows[1], size = tn_dtype_size(dtype);
    size_t extent = shape->rows[0] * shape->stride0;
    ptrdiff_t n = (ptrdiff_t)shape->n;

    w->shape = shape;
    w->bytes = rows * shape->n * size;
    w->x = allocate(extent * size);
    w->y = allocate(w->bytes);
    w->w = allocate(shape->n * size);
    fill(w->x, dtype, extent);
    fill(w->w, dtype, shape->n);
    w->desc = tn_norm_init(kind, shape->rows[0], shape->n, EPS);
    w->desc.rows[1] = shape->rows[1];
    w->io = tn_io_init();
    w->io.x = tn_in_rows(w->x, dtype, shape->n);
    w->io.x.stride[0] = (ptrdiff_t)shape->stride0;
    w->io.x.stride[1] = n;
    w->io.weight = tn_in_param(w->w, dtype);
    w->io.y = tn_out_rows(w->y, dtype, shape->n);
    w->io.y.stride[0] = n * (ptrdiff_t)shape->rows[1];
    w->io.y.stride[1] = n;
    w->executor = tn_openmp();
    w->threads = threads > 1 ? &w->executor : NULL;
}

#define COPY_BLOCK ((size_t)1 << 18)

static void copy_block(void *arg, size_t i)
{
    const struct work *w = arg;
    size_t at = i * COPY_BLOCK, left = w->bytes - at;
    memcpy((char *)w->y + at, (const char *)w->x + at, left < COPY_BLOCK ? left : COPY_BLOCK);
}

static void call(struct work *w, size_t which)
{
    size_t blocks = (w->bytes + COPY_BLOCK - 1) / COPY_BLOCK;
    if (which == COPY) {
        if (w->threads && blocks > 1)
            w->threads->parallel_for(w->threads->ctx, blocks, copy_block, w);
        else
            memcpy(w->y, w->x, w->bytes);
        return;
    }
    w->desc.grade = (tn_grade)grades[which].value;
    tn_status status = tn_norm_forward(&w->desc, &w->io, w->threads);
    if (status != TN_OK)
        fail("bench: %s", tn_status_text(status));
}

/* A time is worth nothing if the result is wrong: some rows against the formula in f64. */
static void check(struct work *w, size_t which)
{
    size_t rows = w->shape->rows[0] * w->shape->rows[1], n = w->shape->n, samples[] = {0, rows / 2, rows - 1};
    tn_dtype dtype = w->io.x.dtype;
    double tolerance = dtype == TN_F32 ? 1e-5 : dtype == TN_F16 ? 1e-3 : 1e-2;

    memset(w->y, 0, w->bytes);
    call(w, which);
    for (size_t s = 0; s < COUNT(samples); s++) {
        size_t row = samples[s],
               in = row / w->shape->rows[1] * w->shape->stride0 + row % w->shape->rows[1] * n;
        double mean = 0, square = 0;
        for (size_t k = 0; w->desc.kind == TN_LAYER && k < n; k++)
            mean += decode(w->x, dtype, in + k) / (double)n;
        for (size_t k = 0; k < n; k++)
            square += pow(decode(w->x, dtype, in + k) - mean, 2) / (double)n;
        for (size_t k = 0; k < n; k++) {
            double want = decode(w->w, dtype, k) * (decode(w->x, dtype, in + k) - mean) / sqrt(square + EPS);
            double got = decode(w->y, dtype, row * n + k);
            if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
                fail("bench: wrong result: row %zu, column %zu is %g instead of %g", row, k, got, want);
        }
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of each call; the calls take turns, so that a change of clock or load meets all alike. */
static void measure(struct work *w, const struct options *o, double seconds[CALLS])
{
    double times[CALLS][MAX_ROUNDS];
    size_t repeats[CALLS];
    for (size_t c = 0; c < CALLS; c++) {
        call(w, c);
        double start = now();
        call(w, c);
        double once = now() - start;
        repeats[c] = once > o->sample ? 1 : (size_t)(o->sample / (once + 1e-7)) + 1;
    }
    for (int round = 0; round < o->rounds; round++) {
        for (size_t c = 0; c < CALLS; c++) {
            double start = now();
            for (size_t i = 0; i < repeats[c]; i++)
                call(w, c);
            times[c][round] = (now() - start) / (double)repeats[c];
        }
    }
    for (size_t c = 0; c < CALLS; c++) {
        qsort(times[c], (size_t)o->rounds, sizeof **times, ascending);
        seconds[c] = times[c][o->rounds / 2];
    }
}

static void print_result(const struct work *w, const struct options *o, const char *kind, const char *dtype,
                         const double seconds[CALLS])
{
    static bool comma;
    char shape[64];
    size_t rows = w->shape->rows[0] * w->shape->rows[1];
    bool strided = w->shape->stride0 != w->shape->rows[1] * w->shape->n;
    snprintf(shape, sizeof shape, "%zux%zu%s", rows, w->shape->n, strided ? " view" : "");
    for (size_t g = 0; g < COUNT(grades); g++) {
        double us = 1e6 * seconds[g], rate = 2e-9 * (double)w->bytes / seconds[g],
               ratio = seconds[g] / seconds[COPY];
        if (o->json)
            printf(
                "%s\n  {\"kind\": \"%s\", \"dtype\": \"%s\", \"rows\": %zu, \"n\": %zu, \"strided\": %s, "
                "\"grade\": \"%s\", \"us\": %.3f, \"gb_per_s\": %.3f, \"memcpy_us\": %.3f, \"ratio\": %.3f}",
                comma ? "," : "", kind, dtype, rows, w->shape->n, strided ? "true" : "false", grades[g].name,
                us, rate, 1e6 * seconds[COPY], ratio);
        else
            printf("%-6s %-5s %-14s %-6s %10.2f %8.2f %9.2f\n", kind, dtype, shape, grades[g].name, us, rate,
                   ratio);
        comma = true;
    }
    fflush(stdout);
}

static void bench(const struct options *o)
{
    char model[256];
    double seconds[CALLS];
    cpu_model(model, sizeof model);
    for (char *p = model; *p; p++)
        if (*p == '"' || *p == '\\' || *p < ' ')
            *p = '?'; /* for JSON */
    printf(o->json ? "{\"version\": \"%s\", \"cpu\": \"%s\", \"isa\": \"%s\", \"threads\": %d, \"results\": ["
                   : "truenorm %s, %s, %s, threads: %d\n",
           tn_version(), model, tn_isa_name(), o->threads);
    if (!o->json)
        printf("%-6s %-5s %-14s %-6s %10s %8s %9s\n", "norm", "dtype", "shape", "grade", "us", "GB/s",
               "x memcpy");
    for (size_t k = 0; k < COUNT(kinds); k++) {
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            for (size_t s = 0; s < COUNT(shapes); s++) {
                struct work w;
                prepare(&w, &shapes[s], (tn_dtype)dtypes[d].value, (tn_kind)kinds[k].value, o->threads);
                for (size_t g = 0; g < COUNT(grades); g++)
                    check(&w, g);
                measure(&w, o, seconds);
                print_result(&w, o, kinds[k].name, dtypes[d].name, seconds);
                free(w.x);
                free(w.y);
                free(w.w);
            }
        }
    }
    fputs(o->json ? "\n]}\n" : "", stdout);
}

static const char help[] = "Usage: truenorm bench [--threads N] [--json] [--quick]\n"
                           "Time RMSNorm and LayerNorm next to memcpy of the same bytes. Each figure is the\n"
                           "median of interleaved repeats; GB/s counts bytes read and bytes written.\n"
                           "\n"
                           "  --threads N  default 1\n"
                           "  --json       print JSON instead of a table\n"
                           "  --quick      fewer and shorter repeats: a try-out, no measurement\n";

int cmd_bench(int argc, char **argv)
{
    static const struct option options[] = {{"threads", required_argument, NULL, 't'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct options o = {1, MAX_ROUNDS, 2e-3, false};
    int c;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (c) {
        case 't':
            o.threads = parse_threads(optarg);
            break;
        case 'j':
            o.json = true;
            break;
        case 'q':
            o.rounds = 3;
            o.sample = 1e-4;
            break;
        case 'h':
            return fputs(help, stdout), 0;
        default:
            return 2;
        }
    }
    if (optind < argc)
        fail("bench: unexpected argument '%s'", argv[optind]);
    bench(&o);
    return 0;
}
