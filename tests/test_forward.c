/* test_forward.c - every length, every generator, the main dtypes: error of every element in ulp. */
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

static int finish(void **state)
{
    (void)state;
    oracle_free();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_f32),         cmocka_unit_test(rms_bf16),        cmocka_unit_test(rms_f16),
        cmocka_unit_test(rms_f64),         cmocka_unit_test(layer_f32),       cmocka_unit_test(layer_bf16),
        cmocka_unit_test(layer_f16),       cmocka_unit_test(layer_f64),       cmocka_unit_test(l2_f32),
        cmocka_unit_test(l2_f64),          cmocka_unit_test(fast_rms_f32),    cmocka_unit_test(fast_rms_bf16),
        cmocka_unit_test(fast_layer_f32),  cmocka_unit_test(fast_layer_f16),  cmocka_unit_test(fast_l2_f32),
        cmocka_unit_test(rms_f32_million), cmocka_unit_test(million_columns),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
