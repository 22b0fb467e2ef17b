/* test_known_semantics.c - public bug reports about norms elsewhere: C: eps, D: dtypes, casts, the weight offset. */
#include "known.h"

#include <math.h>

/* ---- C. eps --------------------------------------------------------------------------------------- */

static void eps_row(double v, size_t n, double eps, tn_eps_mode mode, double want)
{
    struct spec s = spec_make(TN_RMS, TN_F32, 1, n, false, false);
    double x[8], y[8];
    s.d.eps = eps;
    s.d.eps_mode = mode;
    fill_row(x, n, v);
    run_row(&s, x, NULL, NULL, y);
    for (size_t k = 0; k < n; k++)
        assert_near(y[k], want, 6e-6);
}

static void C1_eps_hard_coded(void **state)
{
    (void)state;
    eps_row(1e-3, 4, 1e-6, TN_EPS_INSIDE, 0.70711);
    eps_row(1e-3, 4, 1e-5, TN_EPS_INSIDE, 0.30151);
}

static void C2_eps_outside_the_root(void **state)
{
    (void)state;
    eps_row(1e-3, 4, 1e-5, TN_EPS_INSIDE, 0.30151);
    eps_row(1e-3, 4, 1e-5, TN_EPS_OUTSIDE, 0.99010);
    eps_row(1e-3, 4, 1e-2, TN_EPS_CLAMP, 0.1);
}

static void C3_two_square_roots(void **state)
{
    (void)state;
    eps_row(4, 4, 0, TN_EPS_INSIDE, 1);
}

static void C4_eps_of_the_wrong_dtype(void **state)
{
    struct spec s = spec_make(TN_RMS, TN_BF16, 1, 64, false, false);
    double x[64], y[64], v = dtype_round(TN_BF16, 0.05);
    (void)state;
    s.d.eps = 0x1p-23;
    s.dtype[OP_Y] = TN_F32;
    fill_row(x, 64, v);
    run_row(&s, x, NULL, NULL, y);
    for (int k = 0; k < 64; k++)
        assert_near(y[k], 0.99998, 1e-5);
}

static void C5_bf16_small_sigma(void **state)
{
    double x[32], y[32], squares = 0;
    struct rng r = {5};
    (void)state;
    for (int k = 0; k < 32; k++) {
        x[k] = dtype_round(TN_BF16, 0.058 * rng_normal(&r));
        squares += x[k] * x[k];
    }
    norm(TN_RMS, TN_BF16, 32, 0x1p-23, x, y);
    for (int k = 0; k < 32; k++)
        assert_near(y[k], x[k] / sqrt(squares / 32 + 0x1p-23), fabs(y[k]) * 0x1p-8);
}

static void C7_one_element_follows_the_formula(void **state)
{
    (void)state;
    eps_row(0, 1, 1e-5, TN_EPS_INSIDE, 0);
    eps_row(1e-3, 1, 1e-5, TN_EPS_INSIDE, 0.30151);
}

static void C8_zero_row_without_eps(void **state)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind < 3; kind++)
            for (int mode = 0; mode < 3; mode++) {
                struct spec s = spec_make((tn_kind)kind, dtypes[i], 1, 8, true, true);
                double x[8] = {0}, w[8], b[8], y[8];
                s.d.eps = 0;
                s.d.eps_mode = (tn_eps_mode)mode;
                s.dtype[OP_RSTD] = TN_F64;
                fill_row(w, 8, 2);
                fill_row(b, 8, -0.75);
                run_row(&s, x, w, b, y);
                assert_all(y, 8, -0.75);
            }
}

static void C9_one_formula(void **state)
{
    C2_eps_outside_the_root(state);
}

/* ---- D. dtypes, casts, offset --------------------------------------------------------------------- */

static void D1_result_dtype_is_stated(void **state)
{
    struct spec s = spec_make(TN_RMS, TN_BF16, 1, 2, true, false);
    const double x[] = {1, 3}, w[] = {1 + 0x1p-20, 1};
    double y[2];
    (void)state;
    s.d.eps = 0;
    s.dtype[OP_WEIGHT] = TN_F32;
    run_row(&s, x, w, NULL, y);
    assert_near(y[0], dtype_round(TN_BF16, 1 / sqrt(5)), 0);
    s.dtype[OP_Y] = TN_F32;
    run_row(&s, x, w, NULL, y);
    assert_near(y[0], (1 + 0x1p-20) / sqrt(5), 0x1p-25);
}

static void D2_D3_mixed_weight_dtype(void **state)
{
    static const tn_dtype all[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
    const double x[] = {1, -2, 3, -4}, w[] = {1, 1, 1, 1};
    double y[4], plain[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            struct spec s = spec_make(TN_RMS, all[i], 1, 4, true, false);
            s.dtype[OP_WEIGHT] = all[j];
            run_row(&s, x, w, NULL, y);
            norm(TN_RMS, all[i], 4, 1e-6, x, plain);
            for (int k = 0; k < 4; k++)
                assert_near(y[k], plain[k], 0);
        }
}

static void D4_cast_before_or_after_the_weight(void **state)
{
    enum { N = 4096 };
    static double x[N], w[N], once[N], before[N];
    struct spec s = spec_make(TN_RMS, TN_BF16, 1, N, true, false);
    struct rng r = {4};
    size_t differ = 0;
    (void)state;
    for (int k = 0; k < N; k++) {
        x[k] = rng_normal(&r);
        w[k] = 0.9 + 0.2 * rng_unit(&r);
    }
    run_row(&s, x, w, NULL, once);
    s.d.cast = TN_CAST_BEFORE_SCALE;
    run_row(&s, x, w, NULL, before);
    for (int k = 0; k < N; k++)
        differ += once[k] != before[k];
    assert_in_range(differ, N / 5, N * 2 / 5); /* about a third */
}

static void offset_row(double w, unsigned flags, double want)
{
    struct spec s = spec_make(TN_RMS, TN_BF16, 1, 1, true, false);
    const double x = 2;
    double y;
    s.d.eps = 0;
    s.d.weight_offset = 1;
    s.d.flags = flags;
    s.dtype[OP_Y] = TN_F32;
    run_row(&s, &x, &w, NULL, &y);
    assert_near(y, want, 0);
}

static void D5_one_plus_weight_rounds(void **state)
{
    (void)state;
    offset_row(15.8125, 0, 16.8125);
    offset_row(0.00390625, 0, 1.00390625);
    offset_row(15.8125, TN_ROUND_OFFSET, 16.75);
    offset_row(0.00390625, TN_ROUND_OFFSET, 1);
}

static void D6_offset_with_zero_weight(void **state)
{
    (void)state;
    offset_row(0, 0, 1);
}

static void D7_D14_offset_only_on_request(void **state)
{
    struct spec s = spec_make(TN_RMS, TN_F32, 1, 4, true, false);
    const double x[] = {2, 2, 2, 2}, small[] = {0.011, 0.011, 0.011, 0.011}, one[] = {1, 1, 1, 1};
    double y[4];
    (void)state;
    s.d.eps = 0;
    run_row(&s, x, small, NULL, y);
    assert_all(y, 4, (double)0.011f);
    run_row(&s, x, one, NULL, y);
    assert_all(y, 4, 1);
}

static void D9_bits_of_the_stated_mode(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int cast = 0; cast < 3; cast++) {
        struct spec s = spec_make(TN_RMS, TN_BF16, 3, 4096, true, false);
        s.d.cast = (tn_cast)cast;
        check_forward(&s, &r);
    }
}

static void D10_bf16_layer_without_eps(void **state)
{
    struct spec s = spec_make(TN_LAYER, TN_BF16, 2, 12, false, false);
    struct oracle_report r = {0};
    (void)state;
    s.d.eps = 0;
    check_forward(&s, &r);
    assert_true(r.worst_ulp <= 0.501);
}

static void D11_row_scale_error(void **state)
{
    struct spec s = spec_make(TN_RMS, TN_BF16, 1, 1024, false, false);
    struct oracle_report r = {0};
    (void)state;
    s.dtype[OP_Y] = TN_F32;
    s.dtype[OP_RSTD] = TN_F32;
    check_forward(&s, &r);
    assert_true(r.worst_ulp <= 0.5001);
}

static void D12_D13_variance_instead_of_squares(void **state)
{
    const double x[] = {1, 3};
    double y[2];
    (void)state;
    norm(TN_RMS, TN_F32, 2, 0, x, y);
    assert_near(y[0], 0.44721, 1e-5);
    assert_near(y[1], 1.34164, 1e-5);
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
        T(C1_eps_hard_coded),
        T(C2_eps_outside_the_root),
        T(C3_two_square_roots),
        T(C4_eps_of_the_wrong_dtype),
        T(C5_bf16_small_sigma),
        T(C7_one_element_follows_the_formula),
        T(C8_zero_row_without_eps),
        T(C9_one_formula),
        T(D1_result_dtype_is_stated),
        T(D2_D3_mixed_weight_dtype),
        T(D4_cast_before_or_after_the_weight),
        T(D5_one_plus_weight_rounds),
        T(D6_offset_with_zero_weight),
        T(D7_D14_offset_only_on_request),
        T(D9_bits_of_the_stated_mode),
        T(D10_bf16_layer_without_eps),
        T(D11_row_scale_error),
        T(D12_D13_variance_instead_of_squares),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
