/* test_known_failures.c - public bug reports about norms elsewhere, as small inputs with the right value.
 * A: cancellation, B: range. C and D (eps, dtypes, casts): test_known_semantics.c; F to I: test_known_layouts.c. */
#include "known.h"

#include <math.h>
#include <string.h>

#define MANY 32768

/* A constant row of any value under any norm that must be `want` throughout. */
static void constant(tn_kind kind, tn_dtype dtype, size_t n, double v, double eps, double want)
{
    static double x[MANY], y[MANY];
    fill_row(x, n, v);
    norm(kind, dtype, n, eps, x, y);
    assert_all(y, n, want);
}

/* mean + sigma * N(0,1): checked by the oracle; mean and variance of y as a plain cross-check. */
static void noisy(tn_dtype dtype, size_t n, double mean, double sigma, double eps)
{
    static double x[MANY], y[MANY];
    struct rng r = {n};
    double sum = 0, squares = 0;
    for (size_t k = 0; k < n; k++)
        x[k] = mean + sigma * rng_normal(&r);
    norm(TN_LAYER, dtype, n, eps, x, y);
    for (size_t k = 0; k < n; k++) {
        sum += y[k];
        squares += y[k] * y[k];
    }
    assert_near(sum / (double)n, 0, 1e-5);
    assert_near(squares / (double)n, 1, 0.2); /* eps is up to a tenth of the variance */
}

/* ---- A. cancellation ------------------------------------------------------------------------------ */

static void A1_finite_row_is_nan(void **state)
{
    const double x[] = {40000, 40001, 40002, 40003};
    double y[4];
    (void)state;
    norm(TN_LAYER, TN_F32, 4, 1e-5, x, y);
    assert_near(y[0], -1.3416354, 1e-7);
    assert_near(y[1], -0.4472118, 1e-7);
    assert_near(y[2], 0.4472118, 1e-7);
    assert_near(y[3], 1.3416354, 1e-7);
}

static void A2_constant_row_is_nan(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F32, 256, 1234, 1e-5, 0);
}

static void A3_variance_at_mean_2000(void **state)
{
    (void)state;
    noisy(TN_F32, 4, 2000, 1, 1e-5);
}

static void A4_constant_row_not_zero(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F32, 2, 14, 1e-6, 0);
}

static void A6_one_element_huge_weight(void **state)
{
    const double x = -3, w = 1e17, b = -1;
    struct spec s = spec_make(TN_LAYER, TN_F64, 1, 1, true, true);
    double y;
    (void)state;
    s.d.eps = 0.1;
    run_row(&s, &x, &w, &b, &y);
    assert_all(&y, 1, -1);
}

static void A7_small_variance_lost(void **state)
{
    (void)state;
    noisy(TN_F32, MANY, 100, 0.01, 1e-12);
}

static void A8_sixteen_values_near_1449(void **state)
{
    (void)state;
    noisy(TN_F32, 16, 1449.5, 0.5, 1e-5);
}

static void A9_negative_variance(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F32, 3, -11, 1e-5, 0);
    constant(TN_LAYER, TN_F32, 3, -11, 0, 0);
}

static void A11_two_pass_at_1e15(void **state)
{
    const double x[] = {1e15, 1e15 + 1, 1e15 + 2, 1e15 + 3, 1e15 + 4};
    double y[5];
    (void)state;
    norm(TN_LAYER, TN_F32, 5, 1e-5, x, y);
    assert_all(y, 5, 0);
}

/* Constant rows of 16-bit dtypes, where x*r - m*r does not cancel. */
static void A12_constant_rows_16_bit(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F16, 768, 65504, 1e-5, 0);
    constant(TN_LAYER, TN_F16, 768, 100, 1e-5, 0);
    constant(TN_LAYER, TN_BF16, 768, 1e8, 1e-5, 0);
    constant(TN_LAYER, TN_F32, 5000, 123456.7, 1e-12, 0);
    constant(TN_LAYER, TN_F32, 4096, 1e8, 1e-12, 0);
}

/* ---- B. overflow and underflow -------------------------------------------------------------------- */

static void B1_squares_overflow(void **state)
{
    (void)state;
    constant(TN_RMS, TN_F32, 64, 1e20, 1e-6, 1);
    constant(TN_RMS, TN_F32, 64, 1e19, 1e-6, 1);
    constant(TN_RMS, TN_BF16, 64, 3e38, 1e-6, 1);
    constant(TN_RMS, TN_F64, 64, 1e200, 1e-6, 1);
    constant(TN_RMS, TN_F64, 64, 1.7e308, 1e-6, 1);
}

static void B2_layer_variance_overflows(void **state)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_F32, TN_BF16, TN_F64, TN_F64};
    static const double sizes[] = {2e19, 3e38, 3e38, 1e200, 1.7e308};
    double x[64], y[64];
    (void)state;
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 64; k++)
            x[k] = k % 2 ? -sizes[i] : sizes[i];
        norm(TN_LAYER, dtypes[i], 64, 1e-5, x, y);
        for (int k = 0; k < 64; k++)
            assert_near(y[k], k % 2 ? -1 : 1, 0);
        constant(TN_LAYER, dtypes[i], 64, sizes[i], 1e-5, 0);
    }
}

static void B4_tiny_vector_has_norm_zero(void **state)
{
    (void)state;
    constant(TN_RMS, TN_F32, 64, 1e-25, 0, 1);
    constant(TN_RMS, TN_F32, 64, 1e-40, 0, 1);
    constant(TN_RMS, TN_BF16, 64, 1e-39, 0, 1);
    constant(TN_RMS, TN_F16, 64, 6e-8, 0, 1);
    constant(TN_RMS, TN_F64, 64, 1e-200, 0, 1);
    constant(TN_RMS, TN_F64, 64, 5e-324, 0, 1);
    constant(TN_L2, TN_F32, 64, 1e-25, 0, 0.125);
}

static void signs(double *x, size_t n, double v)
{
    for (size_t k = 0; k < n; k++)
        x[k] = k % 2 ? -v : v;
}

static void B5_f16_rows_all_zero(void **state)
{
    static double x[4096], y[4096];
    (void)state;
    signs(x, 4096, 7600);
    norm(TN_RMS, TN_F16, 4096, 1e-5, x, y);
    for (size_t k = 0; k < 4096; k++)
        assert_near(y[k], k % 2 ? -1 : 1, 0);
}

static void B6_f16_layer_large_variance(void **state)
{
    static const double part[] = {-700, 700, -300, 300};
    double x[64], y[64];
    (void)state;
    for (int k = 0; k < 64; k++)
        x[k] = part[k % 4];
    norm(TN_LAYER, TN_F16, 64, 1e-5, x, y);
    for (int k = 0; k < 64; k++)
        assert_near(y[k], copysign(k % 4 < 2 ? 1.2999 : 0.5571, x[k]), 1e-3);
}

static void B7_f16_squares_before_widening(void **state)
{
    const double two[] = {256, 256};
    double x[64], y[64];
    (void)state;
    signs(x, 64, 300);
    norm(TN_RMS, TN_F16, 64, 1e-5, x, y);
    for (int k = 0; k < 64; k++)
        assert_near(y[k], k % 2 ? -1 : 1, 0);
    norm(TN_RMS, TN_F16, 2, 1e-5, two, y);
    assert_all(y, 2, 1);
}

static void B8_f16_row_becomes_the_bias(void **state)
{
    static double x[769], y[769];
    (void)state;
    memset(x, 0, sizeof x);
    x[500] = 795;
    norm(TN_LAYER, TN_F16, 769, 1e-5, x, y);
    for (int k = 0; k < 769; k++)
        assert_near(y[k], k == 500 ? 27.71 : -0.03608, k == 500 ? 0.01 : 2e-5);
}

static void B9_f16_zero_row(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F16, 10, 0, 1e-12, 0);
    constant(TN_RMS, TN_F16, 10, 0, 1e-12, 0);
}

static void B10_f16_constant_row(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F16, 64, 3.14, 1e-12, 0);
}

static void B11_eps_that_f16_cannot_hold(void **state)
{
    (void)state;
    constant(TN_LAYER, TN_F16, 10, 0, 1e-8, 0);
    constant(TN_RMS, TN_F16, 10, 0, 1e-8, 0);
}

static void B12_f16_l2_of_small_values(void **state)
{
    (void)state;
    constant(TN_L2, TN_F16, 4, 0.01, 0, 0.5);
}

static void B13_f16_layer_all_nan(void **state)
{
    static double x[768], y[768];
    struct rng r = {13};
    (void)state;
    for (int k = 0; k < 768; k++)
        x[k] = 0.02 * (2 * rng_unit(&r) - 1);
    norm(TN_LAYER, TN_F16, 768, 1e-5, x, y); /* the oracle checks each */
}

static int finish(void **state)
{
    (void)state;
    oracle_free();
    return 0;
}

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(A1_finite_row_is_nan),           T(A2_constant_row_is_nan),       T(A3_variance_at_mean_2000),
        T(A4_constant_row_not_zero),       T(A6_one_element_huge_weight),   T(A7_small_variance_lost),
        T(A8_sixteen_values_near_1449),    T(A9_negative_variance),         T(A11_two_pass_at_1e15),
        T(A12_constant_rows_16_bit),       T(B1_squares_overflow),          T(B2_layer_variance_overflows),
        T(B4_tiny_vector_has_norm_zero),   T(B5_f16_rows_all_zero),         T(B6_f16_layer_large_variance),
        T(B7_f16_squares_before_widening), T(B8_f16_row_becomes_the_bias),  T(B9_f16_zero_row),
        T(B10_f16_constant_row),           T(B11_eps_that_f16_cannot_hold), T(B12_f16_l2_of_small_values),
        T(B13_f16_layer_all_nan),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
