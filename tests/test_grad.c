/* test_grad.c - backward: every length, every generator, the main dtypes, every gradient against the oracle; and
 * the oracle, and the library, against central differences. */
#include "grad_check.h"

#include <math.h>

static const size_t long_rows[] = {255, 256, 257, 384, 512, 768, 1024, 4096};
static const double eps_values[] = {1e-6, 1e-5, 0, 1e-12, 1e-3};

/* Case number i of a sweep: generators, eps, parameters, layout and alignment rotate at different periods. */
static struct grad_spec sweep_case(tn_kind kind, tn_dtype dtype, tn_dtype parameters, size_t rows, size_t n,
                                   size_t i)
{
    struct grad_spec s = grad_spec_make(kind, dtype, rows, n, i % 4 != 1, i % 3 == 1);
    s.f.seed = i * 31 + n;
    s.f.d.eps = eps_values[i % 5];
    s.f.gen[OP_X] = (enum gen)(i % (GEN_FINITE_COUNT + 1));
    s.f.gen2 = i % 7 == 3 ? GEN_ZERO : -1;
    s.gen[0] =
        dtype == TN_F64 ? (i % 2 ? GEN_NORMAL : GEN_LOGNORMAL) : (enum gen)(i / 3 % (GEN_FINITE_COUNT + 1));
    s.dtype[GR_DSUM] = i % 3 == 2 ? dtype : TN_NONE;
    for (enum operand op = OP_WEIGHT; op <= OP_BIAS; op++)
        s.f.dtype[op] = s.f.dtype[op] == TN_NONE ? TN_NONE : parameters;
    s.dtype[GR_DWEIGHT] = parameters; /* with or without a weight */
    s.dtype[GR_DBIAS] = i % 2 ? parameters : TN_NONE;
    s.dtype[GR_DRESIDUAL] = i % 6 == 5 ? dtype : TN_NONE;
    s.f.layout[OP_X] = i % 5 == 2 ? (enum layout)(i / 5 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.layout[GR_DY] = i % 5 == 3 ? (enum layout)(i / 5 % (LAY_OUTPUT_COUNT + 2)) : LAY_DENSE;
    s.layout[GR_DX] = i % 5 == 4 ? (enum layout)(i / 5 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.f.misalign[OP_X] = i % 2 ? (unsigned char)(i / 2 % 16) : 0;
    s.misalign[GR_DY] = i % 3 ? (unsigned char)(i / 3 % 16) : 0;
    s.misalign[GR_DX] = i % 5 ? (unsigned char)(i / 5 % 16) : 0;
    return s;
}

/* The two promises in the words of docs/backward.md; grad_check itself is stricter. */
static void assert_figures(const struct grad_report *r, tn_dtype dtype)
{
    double most = dtype == TN_F32 ? 0.5001 : dtype == TN_F64 ? 1.5 : 0.501;
    assert_true(r->of[GR_DX][dtype].worst_ulp <= most);
    assert_int_equal(r->failures, 0);
}

static void sweep(const char *name, tn_kind kind, tn_dtype dtype, tn_dtype parameters)
{
    struct grad_report r = {0};
    size_t i = 0;
    for (size_t n = 1; n <= 130; n++)
        for (size_t turn = 0; turn < 3; turn++, i++) {
            struct grad_spec s = sweep_case(kind, dtype, parameters, 3 + i % 2, n, i);
            if (i % 8 == 0)
                grad_check_all_isas(&s, &r);
            else
                grad_check(&s, &r);
        }
    for (size_t l = 0; l < sizeof long_rows / sizeof *long_rows; l++)
        for (size_t turn = 0; turn < 3; turn++, i++) {
            struct grad_spec s = sweep_case(kind, dtype, parameters, 1 + (l < 4), long_rows[l], i);
            grad_check_all_isas(&s, &r);
        }
    for (size_t g = 0; g < (GEN_FINITE_COUNT + 1) * 4;
         g++) { /* each generator of x with each of four of dy */
        static const enum gen gradients[] = {GEN_NORMAL, GEN_CONSTANT, GEN_OUTLIER, GEN_MEAN_1E4};
        struct grad_spec s = sweep_case(kind, dtype, parameters, 2, 64 + g, i + g);
        s.f.gen[OP_X] = (enum gen)(g / 4);
        s.gen[0] = gradients[g % 4];
        grad_check_all_isas(&s, &r);
    }
    grad_report_print(name, &r);
    assert_figures(&r, dtype);
}

#define SWEEP(name, kind, dtype, parameters)                                                                 \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        (void)state;                                                                                         \
        sweep(#name, kind, dtype, parameters);                                                               \
    }

SWEEP(rms_f32, TN_RMS, TN_F32, TN_F32)
SWEEP(rms_bf16, TN_RMS, TN_BF16, TN_BF16)
SWEEP(rms_bf16_f32, TN_RMS, TN_BF16, TN_F32)
SWEEP(rms_f16, TN_RMS, TN_F16, TN_F16)
SWEEP(rms_f64, TN_RMS, TN_F64, TN_F64)
SWEEP(layer_f32, TN_LAYER, TN_F32, TN_F32)
SWEEP(layer_bf16, TN_LAYER, TN_BF16, TN_BF16)
SWEEP(layer_bf16_f32, TN_LAYER, TN_BF16, TN_F32)
SWEEP(layer_f16, TN_LAYER, TN_F16, TN_F16)
SWEEP(layer_f16_f32, TN_LAYER, TN_F16, TN_F32)
SWEEP(layer_f64, TN_LAYER, TN_F64, TN_F64)
SWEEP(l2_f32, TN_L2, TN_F32, TN_F32)
SWEEP(l2_f64, TN_L2, TN_F64, TN_F64)

static void one_long_row(tn_kind kind, tn_dtype dtype, enum gen g, size_t n, struct grad_report *r)
{
    struct grad_spec s = grad_spec_make(kind, dtype, 1, n, true, kind == TN_LAYER);
    s.f.gen[OP_X] = g;
    s.f.seed = 5 + (uint64_t)g;
    grad_check(&s, r);
}

static void long_rows_of_all(void **state)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
    static const enum gen gens[] = {GEN_NORMAL, GEN_MEAN_1E4, GEN_LOGNORMAL, GEN_OUTLIER, GEN_CONSTANT};
    struct grad_report r = {0};
    (void)state;
    for (size_t i = 0; i < 12; i++)
        one_long_row((tn_kind)(i % 3), dtypes[i / 3], gens[i % 5], 16387, &r);
    one_long_row(TN_RMS, TN_F32, GEN_NORMAL, 100003, &r);
    one_long_row(TN_LAYER, TN_F32, GEN_MEAN_1E6, 100003, &r);
    one_long_row(TN_LAYER, TN_F64, GEN_NORMAL, 100003, &r);
    grad_report_print("n = 16387 and 100003", &r);
}

/* ---- dtypes of every operand ---------------------------------------------------------------------- */

static void mixed_dtypes(void **state)
{
    static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
    struct grad_report r = {0};
    (void)state;
    for (size_t i = 0; i < 4 * 4 * 4 * 4 * 3; i++) {
        struct grad_spec s = sweep_case((tn_kind)(i % 3), floats[i / 3 % 4], TN_F32, 3, 1 + i * 7 % 90, i);
        s.dtype[GR_DY] = floats[i / 12 % 4];
        s.gen[0] = i % 2 ? GEN_NORMAL : GEN_OUTLIER;
        s.dtype[GR_DX] = floats[i / 48 % 4];
        s.dtype[GR_DWEIGHT] = floats[i / 192 % 4];
        s.f.dtype[OP_WEIGHT] = i % 5 ? floats[i % 5 - 1] : TN_NONE;
        s.dtype[GR_DSUM] = i % 3 ? floats[i / 2 % 4] : TN_NONE;
        s.dtype[GR_DBIAS] = floats[(i + i / 12) % 4];
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("mixed dtypes", &r);
}

/* ---- sums over rows ------------------------------------------------------------------------------- */

/* dweight and dbias in f32 within 0.51 ulp, for row counts around the borders of blocks. */
static void many_rows(void **state)
{
    static const size_t rows[] = {1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000, 5000};
    struct grad_report r = {0};
    (void)state;
    for (size_t i = 0; i < 12 * 6; i++) {
        struct grad_spec s = sweep_case((tn_kind)(i % 2), i / 12 % 2 ? TN_BF16 : TN_F32, TN_F32, rows[i % 12],
                                        i % 12 < 10 ? 1 + i * 5 % 40 : 3, i);
        s.f.gen[OP_X] = i % 3 ? GEN_NORMAL : GEN_OUTLIER;
        s.gen[0] = i / 12 % 3 ? GEN_NORMAL : GEN_MEAN_1E4;
        s.accumulate = i / 24 % 2;
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("many rows", &r);
    assert_true(r.of[GR_DWEIGHT][TN_F32].worst_ulp <= 0.51 && r.of[GR_DBIAS][TN_F32].worst_ulp <= 0.51);
}

/* ---- central differences -------------------------------------------------------------------------- */

/* No roundings inside, and nowhere where the formula has a corner. */
static struct grad_spec smooth_case(struct rng *r)
{
    static const double eps[] = {0.25, 1e-3, 1e-6};
    struct grad_spec s = grad_spec_random(r, 7);
    s.f.d.cast = TN_CAST_ONCE;
    s.f.d.flags = 0;
    s.f.d.eps = eps[rng_below(r, 3)];
    s.f.gen2 = -1;
    for (int op = 0; op < OP_COUNT; op++)
        if (op != OP_WEIGHT && op != OP_GATE)
            s.f.gen[op] = GEN_NORMAL;
    s.gen[0] = s.gen[1] = GEN_NORMAL;
    size_t counted = s.f.d.partial ? s.f.d.partial : s.f.d.group ? s.f.d.group : s.f.d.n;
    if (s.f.d.kind == TN_LAYER && counted == 1)
        s.f.d.eps_mode = TN_EPS_INSIDE;
    return s;
}

static void central_differences(void **state)
{
    struct grad_report r = {.differences = true};
    struct rng rng = {2024};
    (void)state;
    for (int i = 0; i < 700; i++) {
        struct grad_spec s = smooth_case(&rng);
        grad_check(&s, &r);
    }
    grad_report_print("against central differences", &r);
    print_message("  analytic against central differences: %.3g\n", r.worst_difference);
    assert_true(r.worst_difference < 0x1p-90);
}

static int finish(void **state)
{
    (void)state;
    grad_oracle_free();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(central_differences),
        cmocka_unit_test(rms_f32),
        cmocka_unit_test(rms_bf16),
        cmocka_unit_test(rms_bf16_f32),
        cmocka_unit_test(rms_f16),
        cmocka_unit_test(rms_f64),
        cmocka_unit_test(layer_f32),
        cmocka_unit_test(layer_bf16),
        cmocka_unit_test(layer_bf16_f32),
        cmocka_unit_test(layer_f16),
        cmocka_unit_test(layer_f16_f32),
        cmocka_unit_test(layer_f64),
        cmocka_unit_test(l2_f32),
        cmocka_unit_test(l2_f64),
        cmocka_unit_test(long_rows_of_all),
        cmocka_unit_test(mixed_dtypes),
        cmocka_unit_test(many_rows),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
