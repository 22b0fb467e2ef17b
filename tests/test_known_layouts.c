/* test_known_layouts.c - public bug reports about norms elsewhere, second half: F groups, gates and shards,
 * G layout and sizes, H empty and special values, I dependence on the batch. */
#define _GNU_SOURCE /* mmap */
#include "known.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A row of f32 through tn_norm_forward. */
static void forward_f32(const tn_norm_desc *d, const float *x, const float *gate, float *y)
{
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(x, TN_F32, d->n);
    if (gate)
        io.gate = tn_in_rows(gate, TN_F32, d->n);
    io.y = tn_out_rows(y, TN_F32, d->n);
    assert_int_equal(tn_norm_forward(d, &io, NULL), TN_OK);
}

/* ---- F. groups, gates, shards --------------------------------------------------------------------- */

static void F1_gate_order(void **state)
{
    const float x[] = {1, 3}, gate[] = {2, -1};
    float y[2];
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 2, 0);
    (void)state;
    d.gate = TN_GATE_AFTER;
    forward_f32(&d, x, gate, y);
    assert_near(y[0], 0.78781, 1e-5);
    assert_near(y[1], -0.36082, 1e-5);
    d.gate = TN_GATE_BEFORE;
    forward_f32(&d, x, gate, y);
    assert_near(y[0], 1.28577, 1e-5);
    assert_near(y[1], -0.58889, 1e-5);
}

static void F2_groups(void **state)
{
    const float x[] = {1, 1, 3, 3};
    float y[4];
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 4, 0);
    (void)state;
    d.group = 2;
    forward_f32(&d, x, NULL, y);
    for (int k = 0; k < 4; k++)
        assert_near(y[k], 1, 0);
}

static void F3_F4_shards(void **state)
{
    const float x[2][2] = {{1, 1}, {3, 3}};
    double sums[2];
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 2, 0);
    (void)state;
    for (int shard = 0; shard < 2; shard++) {
        tn_norm_io io = tn_io_init();
        io.x = tn_in_rows(x[shard], TN_F32, 2);
        io.moment2 = tn_out_rows(&sums[shard], TN_F64, 1);
        assert_int_equal(tn_norm_moments(&d, &io, NULL), TN_OK);
    }
    assert_near(sums[0], 2, 0); /* the sum, not the mean */
    assert_near(sums[1], 18, 0);
    double rstd = tn_norm_rstd(&d, sums[0] + sums[1], 4);
    for (int shard = 0; shard < 2; shard++) {
        tn_norm_io io = tn_io_init();
        float y[2];
        io.x = tn_in_rows(x[shard], TN_F32, 2);
        io.rstd_in = tn_in_rows(&rstd, TN_F64, 1);
        io.y = tn_out_rows(y, TN_F32, 2);
        assert_int_equal(tn_norm_apply(&d, &io, NULL), TN_OK);
        assert_near(y[0], shard ? 1.34164 : 0.44721, 1e-5);
        assert_near(y[1], y[0], 0);
    }
}

static void F6_no_weight_any_length(void **state)
{
    struct spec s = spec_make(TN_RMS, TN_F32, 3, 72, false, false);
    struct oracle_report r = {0};
    (void)state;
    check_forward(&s, &r);
}

/* ---- G. layout and sizes -------------------------------------------------------------------------- */

static void G1_transposed_view(void **state)
{
    static float x[64 * 96], t[64 * 96], y[64 * 96], yt[64 * 96];
    struct rng r = {1};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tn_norm_desc d = tn_norm_init((tn_kind)kind, 96, 64, 1e-6);
        tn_norm_io io = tn_io_init();
        for (int i = 0; i < 64 * 96; i++)
            x[i] = (float)rng_normal(&r);
        for (int i = 0; i < 96; i++)
            for (int k = 0; k < 64; k++)
                t[i * 64 + k] = x[k * 96 + i];
        forward_f32(&d, t, NULL, yt);
        io.x = (tn_in){x, TN_F32, {1, 0}, 96};
        io.y = (tn_out){y, TN_F32, {1, 0}, 96};
        assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
        for (int i = 0; i < 96; i++)
            for (int k = 0; k < 64; k++)
                assert_memory_equal(&y[k * 96 + i], &yt[i * 64 + k], sizeof(float));
    }
}

static void G3_expanded_input(void **state)
{
    const float one = 0.75f;
    float y[4 * 256];
    tn_norm_desc d = tn_norm_init(TN_RMS, 4, 256, 1e-6);
    tn_norm_io io = tn_io_init();
    (void)state;
    io.x = (tn_in){&one, TN_F32, {0, 0}, 0};
    io.y = tn_out_rows(y, TN_F32, 256);
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    for (int k = 0; k < 4 * 256; k++)
        assert_near(y[k], 0.75 / sqrt(0.75 * 0.75 + 1e-6), 0x1p-24);
}

static void G4_next_row_overwritten(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int dtype = TN_F64; dtype <= TN_F16; dtype++)
        for (int kind = 0; kind < 2; kind++)
            for (size_t n = 767; n <= 770; n++) {
                struct spec s = spec_make((tn_kind)kind, (tn_dtype)dtype, 7, n, true, false);
                s.layout[OP_Y] = LAY_PADDED; /* canaries after each row */
                s.misalign[OP_Y] = (unsigned char)(n % 16);
                check_forward(&s, &r);
            }
}

/* More than 2^23 rows of odd lengths: x is one broadcast row, so every row of y is the same. */
static void G5_many_short_rows(void **state)
{
    const size_t rows = (1u << 23) + 5;
    unsigned char *y = must_malloc(rows * 7 * 2);
    const uint16_t x[] = {0x3f80, 0x4000, 0xc040, 0x3e80, 0x4100, 0x3f00, 0xbf80}; /* 1 2 -3 .25 8 .5 -1 */
    (void)state;
    for (size_t n = 3; n <= 7; n += 4) {
        tn_norm_desc d = tn_norm_init(TN_RMS, rows, n, 1e-6);
        tn_norm_io io = tn_io_init();
        memset(y, 0xA5, rows * n * 2);
        io.x = tn_in_param(x, TN_BF16);
        io.y = tn_out_rows(y, TN_BF16, n);
        assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
        size_t wrong = 0;
        for (size_t i = 1; i < rows; i++)
            wrong += memcmp(y, y + i * n * 2, n * 2) != 0;
        assert_int_equal(wrong, 0);
        assert_near(dtype_get(y, TN_BF16, 0) * 2, dtype_get(y, TN_BF16, 1), 0);
    }
    free(y);
}

static void G7_more_than_65536_rows(void **state)
{
    struct spec s = spec_make(TN_LAYER, TN_F32, 65537, 8, true, true);
    struct oracle_report r = {0};
    (void)state;
    check_forward(&s, &r);
    assert_int_equal(r.elements, 65537 * 8);
}

/* Rows 2^32 + 1 elements apart, in memory that is never touched in between. */
static void G8_beyond_32_bit(void **state)
{
    const size_t stride = ((size_t)1 << 32) + 1, bytes = 2 * (stride + 2048);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    unsigned char *x = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    unsigned char *y = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    tn_norm_desc d = tn_norm_init(TN_RMS, 2, 2048, 1e-6);
    tn_norm_io io = tn_io_init();
    (void)state;
    if (x == MAP_FAILED || y == MAP_FAILED)
        skip();
    for (ptrdiff_t k = 0; k < 2048; k++) {
        dtype_put(x, TN_BF16, k, 1 + (double)(k % 7));
        dtype_put(x, TN_BF16, (ptrdiff_t)stride + k, 1 + (double)(k % 7));
    }
    io.x = (tn_in){x, TN_BF16, {(ptrdiff_t)stride, 0}, 1};
    io.y = (tn_out){y, TN_BF16, {(ptrdiff_t)stride, 0}, 1};
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    assert_memory_equal(y, y + 2 * stride, 2 * 2048);
    assert_true(dtype_get(y, TN_BF16, 0) > 0.1);
    munmap(x, bytes);
    munmap(y, bytes);
}

/* A plain long double evaluation for rows too long for the oracle. */
static void long_row(tn_kind kind, size_t n)
{
    float *x = must_malloc(n * sizeof *x), *y = must_malloc(n * sizeof *y);
    struct rng r = {n};
    long double mean = 0, var = 0;
    double worst = 0;
    tn_norm_desc d = tn_norm_init(kind, 1, n, 1e-5);
    for (size_t k = 0; k < n; k++) {
        x[k] = (float)rng_normal(&r);
        mean += kind == TN_LAYER ? (long double)x[k] / (long double)n : 0;
    }
    for (size_t k = 0; k < n; k++)
        var += (x[k] - mean) * (x[k] - mean) / (long double)n;
    forward_f32(&d, x, NULL, y);
    for (size_t k = 0; k < n; k++)
        worst = fmax(worst, (double)fabsl(y[k] - (x[k] - mean) / sqrtl(var + 1e-5L)));
    assert_near(worst, 0, 3e-7); /* half an ulp of 4 to 6 */
    free(x);
    free(y);
}

static void G9_wide_rows(void **state)
{
    (void)state;
    long_row(TN_RMS, 1000000);
    long_row(TN_LAYER, 1000000);
}

static void G10_dispatch_borders(void **state)
{
    static const size_t lengths[] = {255, 256, 257, 383, 384, 385, 511, 512, 513};
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 9 * 4 * 2; i++) {
        struct spec s =
            spec_make((tn_kind)(i % 2), (tn_dtype)(TN_F64 + i / 2 % 4), 2, lengths[i / 8], true, false);
        check_forward_all_isas(&s, &r);
    }
}

static void G11_ten_million_columns(void **state)
{
    (void)state;
    long_row(TN_LAYER, 10000000);
}

/* ---- H. empty, special values, aliasing ----------------------------------------------------------- */

static tn_status empty(size_t rows0, size_t rows1, size_t n, tn_dtype x)
{
    const float in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float out[8] = {-7, -7, -7, -7, -7, -7, -7, -7};
    tn_norm_desc d = tn_norm_init(TN_LAYER, rows0, n, 1e-5);
    tn_norm_io io = tn_io_init();
    d.rows[1] = rows1;
    io.x = tn_in_rows(in, x, n);
    io.y = tn_out_rows(out, TN_F32, n);
    tn_status status = tn_norm_forward(&d, &io, NULL);
    for (int k = 0; k < 8; k++)
        assert_near(out[k], -7, 0);
    return status;
}

static void H1_H2_H3_empty(void **state)
{
    (void)state;
    assert_int_equal(empty(1, 0, 10, TN_F32), TN_OK);
    assert_int_equal(empty(0, 1, 8, TN_F32), TN_OK);
    assert_int_equal(empty(3, 1, 0, TN_F32), TN_OK);
}

static void H4_checks_come_before_early_return(void **state)
{
    (void)state;
    assert_int_equal(empty(0, 0, 8, (tn_dtype)99), TN_ERR_DTYPE);
    assert_int_equal(empty(0, 0, 8, TN_I8), TN_ERR_DTYPE);
}

static void H5_H6_input_unchanged(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int dtype = TN_F64; dtype <= TN_F16; dtype++) {
        struct spec s = spec_make(TN_RMS, (tn_dtype)dtype, 5, 100, true, true);
        s.dtype[OP_RESIDUAL] = (tn_dtype)dtype;
        check_forward(&s, &r); /* compares every input with its copy */
    }
}

static void H7_no_state_between_calls(void **state)
{
    enum { ROWS = 192, N = 197 };
    static uint16_t x[ROWS * N], y[3][ROWS * N];
    struct rng r = {7};
    (void)state;
    for (int i = 0; i < ROWS * N; i++)
        dtype_put(x, TN_F16, i, rng_normal(&r));
    for (int run = 0; run < 3; run++) {
        memcpy(y[run], x, sizeof x);
        for (int layer = 0; layer < 4; layer++)
            assert_int_equal(tn_layernorm(TN_F16, ROWS, N, y[run], NULL, NULL, 1e-5, y[run]), TN_OK);
        assert_memory_equal(y[run], y[0], sizeof x);
    }
}

static void H8_one_inf_or_nan(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * 3 * 4; i++) {
        tn_dtype dtype = (tn_dtype)(TN_F64 + i % 4);
        tn_kind kind = (tn_kind)(i / 4 % 3);
        bool nan = i / 12 % 2;
        struct spec s = spec_make(kind, dtype, 2, i / 24 ? 40 : 8, false, false);
        struct test_case c;
        struct oracle_report r = {0};
        case_make(&c, &s);
        for (size_t k = 0; k < s.d.n; k++) {
            buffer_put(&c.b[OP_X], 0, 0, k, k == 3 ? (nan ? NAN : INFINITY) : 1);
            buffer_put(&c.b[OP_X], 1, 0, k, kind == TN_LAYER && k % 2 ? -1 : 1);
        }
        buffer_snapshot(&c.b[OP_X]);
        assert_int_equal(tn_norm_forward(&s.d, &c.io, NULL), TN_OK);
        for (size_t k = 0; k < s.d.n; k++) {
            double y = buffer_get(&c.b[OP_Y], 0, 0, k);
            assert_true(nan || kind == TN_LAYER || k == 3 ? isnan(y) : y == 0);
        }
        if (oracle_check(&s.d, &c.before, ORACLE_FORWARD, &r))
            check_fail(&s, r.text);
        case_free(&c);
    }
}

static void H9_f16_overflow_is_inf(void **state)
{
    uint16_t x[4], w[4], y[4];
    (void)state;
    for (int k = 0; k < 4; k++) {
        dtype_put(x, TN_F16, k, k ? 0 : 4);
        dtype_put(w, TN_F16, k, 65504);
    }
    assert_int_equal(tn_rmsnorm(TN_F16, 1, 4, x, w, 1e-6, y), TN_OK);
    assert_int_equal(y[0], 0x7c00);
    assert_int_equal(y[1] & 0x7fff, 0);
}

/* ---- I. dependence on the batch ------------------------------------------------------------------- */

static void same_first_row(tn_kind kind, tn_dtype dtype, size_t n, size_t a, size_t b, bool residual)
{
    struct test_case c[2];
    size_t rows[2] = {1, 1}, where[3];
    for (int i = 0; i < 2; i++) {
        struct spec s = spec_make(kind, dtype, i ? b : a, n, true, false);
        s.dtype[OP_RESIDUAL] = residual ? dtype : TN_NONE;
        case_make(&c[i], &s); /* the same seed: the same first row */
        assert_int_equal(tn_norm_forward(&s.d, &c[i].io, NULL), TN_OK);
    }
    assert_memory_equal(buffer_data(&c[0].b[OP_X]), buffer_data(&c[1].b[OP_X]), n * dtype_info(dtype)->size);
    assert_true(views_equal(&c[0].io.y, &c[1].io.y, rows, n, where));
    case_free(&c[0]);
    case_free(&c[1]);
}

static void I1_I2_I3_number_of_rows(void **state)
{
    static const size_t counts[] = {1, 255, 256, 257};
    (void)state;
    for (int i = 1; i < 4; i++) {
        same_first_row(TN_RMS, TN_BF16, 768, counts[0], counts[i], false);
        same_first_row(TN_RMS, TN_BF16, 768, counts[0], counts[i], true);
        same_first_row(TN_LAYER, TN_F32, 500, counts[0], counts[i], false);
        same_first_row(TN_RMS, TN_F32, 64, counts[0], counts[i], false);
    }
    same_first_row(TN_LAYER, TN_F32, 768, 23, 24, false);
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
        T(F1_gate_order),
        T(F2_groups),
        T(F3_F4_shards),
        T(F6_no_weight_any_length),
        T(G1_transposed_view),
        T(G3_expanded_input),
        T(G4_next_row_overwritten),
        T(G5_many_short_rows),
        T(G7_more_than_65536_rows),
        T(G8_beyond_32_bit),
        T(G9_wide_rows),
        T(G10_dispatch_borders),
        T(G11_ten_million_columns),
        T(H1_H2_H3_empty),
        T(H4_checks_come_before_early_return),
        T(H5_H6_input_unchanged),
        T(H7_no_state_between_calls),
        T(H8_one_inf_or_nan),
        T(H9_f16_overflow_is_inf),
        T(I1_I2_I3_number_of_rows),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
