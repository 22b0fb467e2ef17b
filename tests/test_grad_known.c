/* test_grad_known.c - public bug reports about backward passes elsewhere, as small inputs with the right value;
 * GroupNorm over [N, C, P] and adaptive modulation against formulas over plain tensors. */
#include "grad_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        print_error("got %.9g, want %.9g\n", got, want);
    assert_true(fabs(got - want) <= tolerance);
}

/* A backward call over contiguous rows of one dtype; any of the outputs may be NULL. */
struct plain {
    tn_norm_desc d;
    tn_dtype dtype;
    const void *x, *w, *dy;
    void *dx, *dw, *db;
};

static void run(const struct plain *p)
{
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = tn_in_rows(p->x, p->dtype, p->d.n);
    io.weight = tn_in_param(p->w, p->dtype);
    g.dy = tn_in_rows(p->dy, p->dtype, p->d.n);
    g.dx = tn_out_rows(p->dx, p->dtype, p->d.n);
    g.dweight = tn_out_param(p->dw, p->dtype);
    g.dbias = tn_out_param(p->db, p->dtype);
    assert_int_equal(tn_norm_backward(&p->d, &io, &g, NULL), TN_OK);
}

static void E1_dx_over_dy_and_over_x(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        float x[] = {1, 0, 0, 0}, dy[] = {1, 0, 0, 0};
        float *dx = i ? x : dy;
        struct plain p = {.d = tn_norm_init(TN_RMS, 1, 4, 1e-4), .dtype = TN_F32, .x = x, .dy = dy, .dx = dx};
        run(&p);
        assert_near((double)dx[0], 7.9952e-4, 1e-8); /* eps r^3 */
        for (int k = 1; k < 4; k++)
            assert_true(dx[k] == 0);
    }
}

static void E2_dy_is_kept(void **state)
{
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    float dy[] = {1, -1, 2, -2, 3, -3, 4, -4}, before[8], dx[8], dw[4];
    (void)state;
    memcpy(before, dy, sizeof dy);
    struct plain p = {
        .d = tn_norm_init(TN_LAYER, 2, 4, 1e-5), .dtype = TN_F32, .x = x, .dy = dy, .dx = dx, .dw = dw};
    run(&p);
    assert_memory_equal(dy, before, sizeof dy);
}

static void E4_mean_of_dy_subtracted_once(void **state)
{
    const float x[] = {0.3f, -1, 2, 7, 5}, w[] = {1, 1, 1, 1, 1}, dy[] = {1, 1, 1, 1, 1};
    float dx[5];
    (void)state;
    struct plain p = {
        .d = tn_norm_init(TN_LAYER, 1, 5, 1e-5), .dtype = TN_F32, .x = x, .w = w, .dy = dy, .dx = dx};
    run(&p);
    for (int k = 0; k < 5; k++)
        assert_true(dx[k] == 0);
}

/* A [3, 5, 7] tensor: dweight has 7 entries, sums over 15 rows, and nothing lies beyond. */
static void E5_three_axes(void **state)
{
    struct grad_report r = {0};
    struct grad_spec s = grad_spec_make(TN_LAYER, TN_F32, 3, 7, true, true);
    (void)state;
    s.f.d.rows[1] = 5;
    grad_check_all_isas(&s, &r);
    assert_int_equal(r.of[GR_DWEIGHT][TN_F32].elements, 7);
}

/* dweight from the dy that dx overwrites. */
static void E7_dweight_although_dx_overwrites_dy(void **state)
{
    const float x[] = {3, 4}, w[] = {2, 1};
    float dy[] = {1, 10}, dw[2];
    double r = 1 / sqrt(12.5);
    (void)state;
    struct plain p = {
        .d = tn_norm_init(TN_RMS, 1, 2, 0), .dtype = TN_F32, .x = x, .w = w, .dy = dy, .dx = dy, .dw = dw};
    run(&p);
    assert_near((double)dw[0], 3 * r, 1e-7);
    assert_near((double)dw[1], 40 * r, 1e-6);
}

static void E8_layer_norm_without_bias(void **state)
{
    struct grad_report r = {0};
    struct grad_spec s = grad_spec_make(TN_LAYER, TN_F32, 2, 8, true, false);
    (void)state;
    s.f.d.rows[1] = 4;
    s.dtype[GR_DX] = TN_NONE;
    grad_check_all_isas(&s, &r);
    assert_int_equal(r.of[GR_DWEIGHT][TN_F32].elements, 8);
}

/* dy = 1, h = +-1: a sum of T ones in a 16-bit dtype stops at 256 or 2048 if it is added up in that dtype. */
static void E9_sums_are_not_in_16_bits(void **state)
{
    static const size_t rows[] = {512, 1024, 4096, 16384};
    (void)state;
    for (size_t i = 0; i < 4 * 2 * 2; i++) {
        size_t t = rows[i % 4], n = 8;
        tn_dtype dtype = i / 4 % 2 ? TN_F16 : TN_BF16;
        uint16_t *x = must_malloc(t * n * 2), *dy = must_malloc(t * n * 2), dw[8], db[8];
        for (size_t k = 0; k < t * n; k++) {
            dtype_put(x, dtype, (ptrdiff_t)k, k % n % 2 ? -1 : 1);
            dtype_put(dy, dtype, (ptrdiff_t)k, 1);
        }
        struct plain p = {.d = tn_norm_init(i / 8 ? TN_LAYER : TN_RMS, t, n, 0),
                          .dtype = dtype,
                          .x = x,
                          .dy = dy,
                          .dw = dw,
                          .db = db};
        run(&p);
        for (size_t k = 0; k < n; k++) {
            assert_true(dtype_get(db, dtype, (ptrdiff_t)k) == (double)t);
            assert_true(dtype_get(dw, dtype, (ptrdiff_t)k) == (k % 2 ? -(double)t : (double)t));
        }
        free(x);
        free(dy);
    }
}

static void E10_bf16_weight_gradients(void **state)
{
    struct grad_report r = {0};
    struct grad_spec s = grad_spec_make(TN_RMS, TN_BF16, 1536, 24, true, false);
    (void)state;
    grad_check(&s, &r); /* half a bf16 ulp: far within the 2^-8 that the report asks for */
    assert_true(r.of[GR_DWEIGHT][TN_BF16].worst_ulp <= 0.501);
}

/* mean/sigma = 100 in bf16: statistics kept in 16 bits would move dweight by percents. */
static void E11_E12_statistics_are_not_in_16_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct grad_report r = {.stat_error = i ? 0x1p-24 : 0};
        struct grad_spec s = grad_spec_make(TN_LAYER, TN_BF16, 64, 96, true, true);
        s.f.gen[OP_X] = GEN_MEAN_1E4;
        s.saved = i == 1;
        s.f.dtype[OP_MEAN] = s.f.dtype[OP_RSTD] = i ? TN_F32 : TN_NONE;
        s.dtype[GR_DWEIGHT] = TN_F32;
        grad_check_all_isas(&s, &r);
    }
    tn_norm_io io = tn_io_init(); /* and 16-bit statistics are refused */
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 2, 1e-5);
    tn_norm_grads g = tn_grads_init();
    const float x[2] = {1, 2};
    const uint16_t rstd = 0x3f80;
    float dx[2];
    io.x = g.dy = tn_in_rows(x, TN_F32, 2);
    io.rstd_in = tn_in_rows(&rstd, TN_BF16, 1);
    g.dx = tn_out_rows(dx, TN_F32, 2);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_ERR_DTYPE);
}

static void E13_zero_row(void **state)
{
    const float x[4] = {0}, w[] = {1, 1, 1, 1}, dy[] = {1, 2, 3, 4};
    float dx[4], dw[4];
    (void)state;
    struct plain p = {
        .d = tn_norm_init(TN_RMS, 1, 4, 1e-5), .dtype = TN_F32, .x = x, .w = w, .dy = dy, .dx = dx, .dw = dw};
    run(&p);
    for (int k = 0; k < 4; k++) {
        assert_near((double)dx[k], (k + 1) / sqrt(1e-5), 1e-4);
        assert_true(dw[k] == 0);
    }
}

/* 57 345 short rows, no bias. */
static void E14_many_short_rows(void **state)
{
    enum { ROWS = 57345, N = 128 };
    float *x = must_malloc(sizeof(float) * ROWS * N), *dy = must_malloc(sizeof(float) * ROWS * N), dw[N];
    double want[N] = {0};
    struct rng r = {14};
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        double squares = 0;
        for (size_t k = 0; k < N; k++) {
            x[i * N + k] = (float)((double)rng_below(&r, 9) - 4);
            dy[i * N + k] = (float)((double)rng_below(&r, 5) - 2);
            squares += (double)x[i * N + k] * (double)x[i * N + k];
        }
        for (size_t k = 0; k < N; k++)
            want[k] += (double)dy[i * N + k] * (double)x[i * N + k] / sqrt(squares / N + 1e-6);
    }
    struct plain p = {.d = tn_norm_init(TN_RMS, ROWS, N, 1e-6), .dtype = TN_F32, .x = x, .dy = dy, .dw = dw};
    run(&p);
    for (size_t k = 0; k < N; k++)
        assert_near((double)dw[k], want[k], 1e-7 * fabs(want[k]) + 1e-9);
    free(x);
    free(dy);
}

/* Two groups: each is the backward of half a row. */
static void E16_groups(void **state)
{
    const float x[] = {1, 1.5f, 3, -3.5f}, dy[] = {1, 2, -1, 0.5f};
    float dx[4], half[4];
    (void)state;
    for (int kind = TN_RMS; kind <= TN_LAYER; kind++) {
        struct plain p = {
            .d = tn_norm_init((tn_kind)kind, 1, 4, 1e-5), .dtype = TN_F32, .x = x, .dy = dy, .dx = dx};
        p.d.group = 2;
        run(&p);
        p.d = tn_norm_init((tn_kind)kind, 2, 2, 1e-5);
        p.dx = half;
        run(&p);
        assert_memory_equal(dx, half, sizeof dx);
    }
}

/* One scalar expanded to [2, 64, 32] by strides of 0. */
static void G3_expanded_dy(void **state)
{
    struct grad_spec s = grad_spec_make(TN_LAYER, TN_F32, 2, 32, true, true);
    struct grad_case expanded, dense;
    (void)state;
    s.f.d.rows[1] = 64;
    grad_case_make(&expanded, &s);
    grad_case_make(&dense, &s);
    const float one = 0.37f;
    expanded.g.dy = (tn_in){&one, TN_F32, {0, 0}, 0};
    for (size_t i = 0; i < 2 * 64 * 32; i++)
        buffer_put(&dense.b[GR_DY], i / 2048, i / 32 % 64, i % 32, (double)one);
    buffer_snapshot(&dense.b[GR_DY]);
    grad_run(&expanded, NULL);
    grad_run(&dense, NULL);
    grad_check_same(&expanded, &dense, "expanded dy");
    grad_case_free(&expanded);
    grad_case_free(&dense);
}

static void H1_H2_no_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        float dw[8], db[8], some = 1;
        for (int k = 0; k < 8; k++)
            dw[k] = db[k] = 9;
        struct plain p = {.d = tn_norm_init(TN_LAYER, i ? 0 : 1, 8, 1e-5),
                          .dtype = TN_F32,
                          .x = &some,
                          .dy = &some,
                          .dw = dw,
                          .db = db};
        p.d.rows[1] = i ? 1 : 0;
        run(&p);
        for (int k = 0; k < 8; k++)
            assert_true(dw[k] == 0 && db[k] == 0);
    }
}

/* ---- GroupNorm ------------------------------------------------------------------------------------ */

/* y, dx of one group of [N, C, P], and its part of dweight and dbias, in the words of a tensor library. */
static void group_norm(const float *x, const float *w, const float *b, const float *dy, size_t c0,
                       size_t channels, size_t positions, double eps, double *y, double *dx, double *dw,
                       double *db)
{
    double count = (double)(channels * positions), mean = 0, var = 0, sum_g = 0, sum_gh = 0;
    for (size_t i = 0; i < channels * positions; i++)
        mean += (double)x[i] / count;
    for (size_t i = 0; i < channels * positions; i++)
        var += ((double)x[i] - mean) * ((double)x[i] - mean) / count;
    double r = 1 / sqrt(var + eps);
    for (size_t i = 0; i < channels * positions; i++) {
        size_t c = c0 + i / positions;
        double h = ((double)x[i] - mean) * r, g = (double)dy[i] * (double)w[c];
        y[i] = h * (double)w[c] + (double)b[c];
        dw[c] += (double)dy[i] * h;
        db[c] += (double)dy[i];
        sum_g += g / count;
        sum_gh += g * h / count;
    }
    for (size_t i = 0; i < channels * positions; i++) {
        double h = ((double)x[i] - mean) * r, g = (double)dy[i] * (double)w[c0 + i / positions];
        dx[i] = r * (g - sum_g - h * sum_gh);
    }
}

static void group_norm_shape(size_t batch, size_t channels, size_t positions, size_t groups)
{
    enum { MOST = 3000 };
    static float x[MOST], w[MOST], b[MOST], y[MOST], dy[MOST], dx[MOST], dw[MOST], db[MOST];
    static double want_y[MOST], want_dx[MOST], want_dw[MOST], want_db[MOST];
    size_t per = channels / groups;
    struct rng r = {channels};
    for (size_t i = 0; i < batch * channels * positions; i++) {
        x[i] = (float)(rng_normal(&r) + 3);
        dy[i] = (float)rng_normal(&r);
    }
    for (size_t c = 0; c < channels; c++) {
        w[c] = (float)rng_normal(&r);
        b[c] = (float)rng_normal(&r);
        want_dw[c] = want_db[c] = 0;
    }
    for (size_t i = 0; i < batch * groups; i++) {
        size_t at = i * per * positions;
        group_norm(x + at, w, b, dy + at, i % groups * per, per, positions, 1e-5, want_y + at, want_dx + at,
                   want_dw, want_db);
    }
    tn_norm_desc d = tn_norm_init(TN_LAYER, batch, per * positions, 1e-5);
    d.rows[1] = groups;
    d.positions = positions;
    const ptrdiff_t row = (ptrdiff_t)(per * positions), all = row * (ptrdiff_t)groups, step = (ptrdiff_t)per;
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = (tn_in){x, TN_F32, {all, row}, 1};
    io.weight = (tn_in){w, TN_F32, {0, step}, 1};
    io.bias = (tn_in){b, TN_F32, {0, step}, 1};
    io.y = (tn_out){y, TN_F32, {all, row}, 1};
    g.dy = (tn_in){dy, TN_F32, {all, row}, 1};
    g.dx = (tn_out){dx, TN_F32, {all, row}, 1};
    g.dweight = (tn_out){dw, TN_F32, {0, step}, 1};
    g.dbias = (tn_out){db, TN_F32, {0, step}, 1};
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
    for (size_t i = 0; i < batch * channels * positions; i++) {
        assert_near((double)y[i], want_y[i], 1e-6);
        assert_near((double)dx[i], want_dx[i], 1e-6);
    }
    for (size_t c = 0; c < channels; c++) {
        assert_near((double)dw[c], want_dw[c], 2e-7 * fabs(want_dw[c]) + 1e-12);
        assert_near((double)db[c], want_db[c], 2e-7 * fabs(want_db[c]) + 1e-12);
    }
}

static void group_norm_tensors(void **state)
{
    (void)state;
    group_norm_shape(3, 4, 4, 2);
    group_norm_shape(2, 6, 5, 3);
    group_norm_shape(2, 12, 49, 4);
    group_norm_shape(5, 8, 1, 8);
    group_norm_shape(1, 3, 1, 3);
    group_norm_shape(4, 6, 7, 1);
    group_norm_shape(3, 1, 600, 1);
}

/* ---- adaptive modulation -------------------------------------------------------------------------- */

/* AdaLN: [batch, tokens, n], scale and shift per batch by strides {n, 0}. */
static void adaptive_layer_norm(void **state)
{
    enum { B = 3, T = 5, N = 37 };
    float x[B][T][N], dy[B][T][N], dx[B][T][N], y[B][T][N], scale[B][N], shift[B][N], ds[B][N], dh[B][N];
    double want_ds[B][N] = {{0}}, want_dh[B][N] = {{0}};
    struct rng r = {3};
    (void)state;
    for (size_t i = 0; i < B * T * N; i++) {
        (&x[0][0][0])[i] = (float)(rng_normal(&r) - 1);
        (&dy[0][0][0])[i] = (float)rng_normal(&r);
        (&scale[0][0])[i % (B * N)] = (float)rng_normal(&r) / 2;
        (&shift[0][0])[i % (B * N)] = (float)rng_normal(&r);
    }
    tn_norm_desc d = tn_norm_init(TN_LAYER, B, N, 1e-6);
    d.rows[1] = T;
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = (tn_in){x, TN_F32, {T * N, N}, 1};
    io.y = (tn_out){y, TN_F32, {T * N, N}, 1};
    io.mod_scale = (tn_in){scale, TN_F32, {N, 0}, 1};
    io.mod_shift = (tn_in){shift, TN_F32, {N, 0}, 1};
    g.dy = (tn_in){dy, TN_F32, {T * N, N}, 1};
    g.dx = (tn_out){dx, TN_F32, {T * N, N}, 1};
    g.dmod_scale = (tn_out){ds, TN_F32, {N, 0}, 1};
    g.dmod_shift = (tn_out){dh, TN_F32, {N, 0}, 1};
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++) {
            double mean = 0, var = 0, sum_g = 0, sum_gh = 0, h[N], up[N];
            for (size_t k = 0; k < N; k++)
                mean += (double)x[b][t][k] / N;
            for (size_t k = 0; k < N; k++)
                var += pow((double)x[b][t][k] - mean, 2) / N;
            for (size_t k = 0; k < N; k++) {
                h[k] = ((double)x[b][t][k] - mean) / sqrt(var + 1e-6);
                up[k] = (double)dy[b][t][k] * (1 + (double)scale[b][k]);
                sum_g += up[k] / N;
                sum_gh += up[k] * h[k] / N;
                want_ds[b][k] += (double)dy[b][t][k] * h[k];
                want_dh[b][k] += (double)dy[b][t][k];
                assert_near((double)y[b][t][k], h[k] * (1 + (double)scale[b][k]) + (double)shift[b][k], 1e-6);
            }
            for (size_t k = 0; k < N; k++)
                assert_near((double)dx[b][t][k], (up[k] - sum_g - h[k] * sum_gh) / sqrt(var + 1e-6), 1e-6);
        }
    for (size_t i = 0; i < B * N; i++) {
        assert_near((double)(&ds[0][0])[i], (&want_ds[0][0])[i], 1e-6);
        assert_near((double)(&dh[0][0])[i], (&want_dh[0][0])[i], 1e-6);
    }
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
        cmocka_unit_test(E1_dx_over_dy_and_over_x),
        cmocka_unit_test(E2_dy_is_kept),
        cmocka_unit_test(E4_mean_of_dy_subtracted_once),
        cmocka_unit_test(E5_three_axes),
        cmocka_unit_test(E7_dweight_although_dx_overwrites_dy),
        cmocka_unit_test(E8_layer_norm_without_bias),
        cmocka_unit_test(E9_sums_are_not_in_16_bits),
        cmocka_unit_test(E10_bf16_weight_gradients),
        cmocka_unit_test(E11_E12_statistics_are_not_in_16_bits),
        cmocka_unit_test(E13_zero_row),
        cmocka_unit_test(E14_many_short_rows),
        cmocka_unit_test(E16_groups),
        cmocka_unit_test(G3_expanded_dy),
        cmocka_unit_test(H1_H2_no_rows),
        cmocka_unit_test(group_norm_tensors),
        cmocka_unit_test(adaptive_layer_norm),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
