/* test_forward.c - every length, every generator, the main dtypes: error of every element in ulp. */
#include <math.h>
#include <stdlib.h>

#include "check.h"

static const size_t long_rows[] = {384,  511,  512,  513,  768,  1000, 1024, 1025,
                                   2047, 2048, 4095, 4096, 4097, 5120, 8192, 16384};
#define LONG_COUNT (sizeof long_rows / sizeof *long_rows)

static const double eps_values[] = {1e-6, 1e-5, 0, 1e-12, 1e-3};

/* Case number i of a sweep: generator, eps, parameters, layout and alignment all rotate, at different periods. */
static struct spec sweep_case(tn_kind kind, tn_dtype dtype, tn_grade grade, size_t rows, size_t n, size_t i)
{
    struct spec s = spec_make(kind, dtype, rows, n, i % 4 != 1, i % 3 == 1 && i % 4 != 0);
    s.seed = i * 31 + n;
    s.d.grade = grade;
    s.d.eps = eps_values[i % 5];
    s.gen[OP_X] = (enum gen)(i % GEN_FINITE_COUNT);
    s.gen2 = i % 7 == 3 ? (int)(GEN_FINITE_COUNT + i % 3) : -1;
    s.layout[OP_X] = i % 5 == 2 ? (enum layout)(i / 5 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.layout[OP_Y] = i % 5 == 4 ? (enum layout)(i / 5 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.misalign[OP_X] = i % 2 ? (unsigned char)(i / 2 % 16) : 0;
    s.misalign[OP_Y] = i % 3 ? (unsigned char)(i / 3 % 16) : 0;
    s.misalign[OP_WEIGHT] = i % 5 ? (unsigned char)(i / 5 % 16) : 0;
    return s;
}

static void sweep(const char *name, tn_kind kind, tn_dtype dtype, tn_grade grade)
{
    struct oracle_report r = {0};
    size_t i = 0;
    for (size_t n = 1; n <= 300; n++)
        for (size_t turn = 0; turn < 2; turn++, i++) {
            struct spec s = sweep_case(kind, dtype, grade, n < 80 ? 4 : 2, n, i);
            if (i % 8 == 0)
                check_forward_all_isas(&s, &r);
            else
                check_forward(&s, &r);
        }
    for (size_t l = 0; l < LONG_COUNT; l++, i++) {
        struct spec s = sweep_case(kind, dtype, grade, 1, long_rows[l], i);
        check_forward(&s, &r);
    }
    for (size_t g = 0; g < GEN_FINITE_COUNT * 6; g++) { /* each generator at each of three lengths */
        static const size_t lengths[] = {64, 200, 768};
        struct spec s = sweep_case(kind, dtype, grade, 1, lengths[g % 3], g);
        s.gen[OP_X] = (enum gen)(g / 6);
        s.dtype[OP_BIAS] = g % 2 && g % 6 > 2 ? dtype : TN_NONE;
        check_forward_all_isas(&s, &r);
    }
    report_print(name, &r);
}

#define SWEEP(name, kind, dtype, grade)                                                                      \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        (void)state;                                                                                         \
        sweep(#name, kind, dtype, grade);                                                                    \
    }

SWEEP(rms_f32, TN_RMS, TN_F32, TN_EXACT)
SWEEP(rms_bf16, TN_RMS, TN_BF16, TN_EXACT)
SWEEP(rms_f16, TN_RMS, TN_F16, TN_EXACT)
SWEEP(rms_f64, TN_RMS, TN_F64, TN_EXACT)
SWEEP(layer_f32, TN_LAYER, TN_F32, TN_EXACT)
SWEEP(layer_bf16, TN_LAYER, TN_BF16, TN_EXACT)
SWEEP(layer_f16, TN_LAYER, TN_F16, TN_EXACT)
SWEEP(layer_f64, TN_LAYER, TN_F64, TN_EXACT)
SWEEP(l2_f32, TN_L2, TN_F32, TN_EXACT)
SWEEP(l2_f64, TN_L2, TN_F64, TN_EXACT)
SWEEP(fast_rms_f32, TN_RMS, TN_F32, TN_FAST)
SWEEP(fast_rms_bf16, TN_RMS, TN_BF16, TN_FAST)
SWEEP(fast_layer_f32, TN_LAYER, TN_F32, TN_FAST)
SWEEP(fast_layer_f16, TN_LAYER, TN_F16, TN_FAST)
SWEEP(fast_l2_f32, TN_L2, TN_F32, TN_FAST)

/* A million f32 elements of RMSNorm in rows of the sizes that models use: 0.5001 ulp, every one. */
static void rms_f32_million(void **state)
{
    static const size_t sizes[] = {64, 128, 768, 1024, 4096, 5120, 8192};
    struct oracle_report r = {0};
    (void)state;
    for (size_t i = 0; r.elements < 1000000; i++) {
        struct spec s = spec_make(TN_RMS, TN_F32, 1, sizes[i % 7], i % 3 != 0, false);
        s.seed = i + 100;
        s.gen[OP_X] = i % 2 ? GEN_NORMAL : (enum gen)(i / 2 % GEN_FINITE_COUNT);
        s.d.eps = eps_values[i % 5];
        check_forward(&s, &r);
    }
    report_print("rms_f32_million", &r);
    assert_true(r.worst_ulp <= 0.5001);
}

static void one_long_row(tn_kind kind, tn_dtype dtype, enum gen g, struct oracle_report *r)
{
    struct spec s = spec_make(kind, dtype, 1, 1000000, true, kind == TN_LAYER);
    s.gen[OP_X] = g;
    s.seed = 5 + (uint64_t)g;
    check_forward(&s, r);
}

static void million_columns(void **state)
{
    struct oracle_report rms = {0}, layer = {0}, half = {0}, wide = {0};
    (void)state;
    one_long_row(TN_RMS, TN_F32, GEN_NORMAL, &rms);
    one_long_row(TN_RMS, TN_F32, GEN_LOGNORMAL, &rms);
    one_long_row(TN_RMS, TN_F32, GEN_CONSTANT, &rms);
    one_long_row(TN_LAYER, TN_F32, GEN_MEAN_1E6, &layer);
    one_long_row(TN_LAYER, TN_F32, GEN_OUTLIER, &layer);
    one_long_row(TN_LAYER, TN_BF16, GEN_NORMAL, &half);
    one_long_row(TN_RMS, TN_F64, GEN_NORMAL, &wide);
    one_long_row(TN_LAYER, TN_F64, GEN_MEAN_1E7, &wide);
    report_print("n = 1e6, rms f32", &rms);
    report_print("n = 1e6, layer f32", &layer);
    report_print("n = 1e6, layer bf16", &half);
    report_print("n = 1e6, f64", &wide);
}

/* w h + b where the bias leaves next to nothing, so that the statistics' own error shows; means to both sides of where
 * one pass over the row serves. In long double. */
static void cancelling_row(struct rng *rng, size_t n, double mean, double *worst)
{
    float *x = malloc(n * sizeof *x), *w = malloc(n * sizeof *w), *b = malloc(n * sizeof *b);
    float *y = malloc(n * sizeof *y);
    long double sum = 0, squares = 0;
    assert_true(x && w && b && y);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(mean + rng_normal(rng));
        w[i] = (float)(0.5 + rng_unit(rng));
        sum += (long double)x[i];
    }
    const long double m = sum / (long double)n;
    for (size_t i = 0; i < n; i++)
        squares += ((long double)x[i] - m) * ((long double)x[i] - m);
    const long double r = 1 / sqrtl(squares / (long double)n + 1e-5L);
    for (size_t i = 0; i < n; i++)
        b[i] = (float)(-(long double)w[i] * ((long double)x[i] - m) * r);
    tn_norm_desc d = tn_norm_init(TN_LAYER, 1, n, 1e-5);
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(x, TN_F32, n);
    io.weight = tn_in_param(w, TN_F32);
    io.bias = tn_in_param(b, TN_F32);
    io.y = tn_out_rows(y, TN_F32, n);
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    for (size_t i = 0; i < n; i++) {
        const long double h = ((long double)x[i] - m) * r, want = (long double)w[i] * h + (long double)b[i];
        const double half_ulp = want == 0 ? 0.0 : ldexp(1.0, ilogbl(want) - 24);
        const double terms = w[i] * fmax(1.0, (double)fabsl(h)) + fabs((double)b[i]);
        const double lost = ((double)fabsl((long double)y[i] - want) - half_ulp) / (0x1p-53 * terms);
        *worst = fmax(*worst, lost / ((double)n / 64 + 16));
    }
    free(x), free(w), free(b), free(y);
}

static void layer_f32_cancelling(void **state)
{
    static const double means[] = {0, 1, 1.9, 2.1, 30, 1000};
    struct rng rng = {7};
    (void)state;
    for (size_t k = 0; k < sizeof means / sizeof *means; k++) {
        double worst = 0;
        for (int turn = 0; turn < 20; turn++)
            cancelling_row(&rng, 1000, means[k], &worst);
        cancelling_row(&rng, 100000, means[k], &worst);
        printf("  mean %-26g worst %.4f of the bound\n", means[k], worst);
        assert_true(worst <= 1);
    }
}

static int finish(void **state)
{
    (void)state;
    oracle_free();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_f32),         cmocka_unit_test(rms_bf16),
        cmocka_unit_test(rms_f16),         cmocka_unit_test(rms_f64),
        cmocka_unit_test(layer_f32),       cmocka_unit_test(layer_bf16),
        cmocka_unit_test(layer_f16),       cmocka_unit_test(layer_f64),
        cmocka_unit_test(l2_f32),          cmocka_unit_test(l2_f64),
        cmocka_unit_test(fast_rms_f32),    cmocka_unit_test(fast_rms_bf16),
        cmocka_unit_test(fast_layer_f32),  cmocka_unit_test(fast_layer_f16),
        cmocka_unit_test(fast_l2_f32),     cmocka_unit_test(rms_f32_million),
        cmocka_unit_test(million_columns), cmocka_unit_test(layer_f32_cancelling),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
