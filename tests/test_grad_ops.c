/* test_grad_ops.c - backward: every option of the descriptor against the oracle; null spaces; ranges; saved
 * statistics. */
#include "grad_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};

/* A fresh case on each call: length, generators, seed, alignment rotate. */
static struct grad_spec next_case(tn_kind kind, tn_dtype dtype, bool weight, bool bias)
{
    static size_t i;
    static const size_t lengths[] = {1,  2,  3,  7,  15, 16,  17,  31,  32,  33,
                                     40, 63, 64, 65, 96, 127, 128, 129, 160, 200};
    i++;
    struct grad_spec s = grad_spec_make(kind, dtype, 2 + i % 3, lengths[i % 20], weight, bias);
    s.f.seed = i;
    s.f.d.eps = i % 5 ? 1e-6 : 0;
    s.f.gen[OP_X] = (enum gen)(i * 7 % (GEN_FINITE_COUNT + 1));
    s.f.misalign[OP_X] = (unsigned char)(i % 16);
    s.misalign[GR_DY] = (unsigned char)(i / 2 % 16);
    s.misalign[GR_DX] = (unsigned char)(i / 3 % 16);
    return s;
}

static void eps_modes(void **state)
{
    static const double eps[] = {0, 1e-6, 1e-12, 1e-40, 0.5, 1e10};
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 3 * 4 * 6 * (GEN_FINITE_COUNT + 1); i++) {
        struct grad_spec s = next_case((tn_kind)(i % 3), floats[i / 9 % 4], i % 2, i % 5 == 0);
        s.f.d.eps_mode = (tn_eps_mode)(i / 3 % 3);
        s.f.d.eps = eps[i / 36 % 6];
        s.f.gen[OP_X] = (enum gen)(i / 216);
        grad_check(&s, &r);
    }
    grad_report_print("eps modes", &r);
}

static void negative_eps(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct grad_spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, false);
        s.f.d.flags = TN_NEGATIVE_EPS;
        s.f.d.eps = -1e-3; /* v is about 1 */
        s.f.gen[OP_X] = GEN_NORMAL;
        s.f.d.n = 40;
        grad_check_all_isas(&s, &r);
    }
}

static void groups_and_parts(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 1500; i++) {
        struct grad_spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 3 == 0);
        size_t group = 1 + (size_t)i % 37, groups = 1 + (size_t)i % 5;
        s.f.d.n = group * groups;
        s.f.d.group = group;
        s.f.d.partial = i % 4 == 1 ? 1 + (size_t)i % group : 0;
        s.f.d.divisor = i % 3 == 1 && s.f.d.kind != TN_L2 ? (double)group * (i % 2 ? 1.5 : 1) : 0;
        if (s.f.d.partial && s.f.dtype[OP_X] == TN_F64) /* elements that do not count may leave f64 */
            s.f.gen[OP_X] = GEN_NORMAL;
        s.f.d.weight_offset = i % 2 && i % 5 == 0 ? 1 : 0;
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("groups, parts, divisors", &r);
}

/* A caller's divisor that happens to equal the length, with a partial mean. */
static void partial_with_divisor(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct grad_spec s = next_case(TN_LAYER, floats[i % 4], i % 2, false);
        s.f.gen[OP_X] = GEN_NORMAL;
        s.f.d.n = 2 + (size_t)i % 40;
        s.f.d.partial = 1 + s.f.d.n / 2;
        s.f.d.divisor = (double)s.f.d.n;
        grad_check_all_isas(&s, &r);
    }
}

static void residuals(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 4 * 4 * 5 * 2; i++) {
        struct grad_spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, false);
        s.f.dtype[OP_RESIDUAL] = floats[i / 12 % 4];
        s.f.gen[OP_RESIDUAL] = GEN_NORMAL;
        s.f.dtype[OP_SUM] = i / 48 % 5 ? floats[i / 48 % 5 - 1] : TN_NONE;
        s.f.d.sum = (tn_sum)(i / 240);
        grad_spec_all(&s, TN_NONE);
        s.dtype[GR_DSUM] = i % 3 ? floats[i / 5 % 4] : TN_NONE;
        s.gen[1] = i % 2 ? GEN_MEAN_1E4 : GEN_NORMAL;
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("residuals", &r);
}

static void gates(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 2 * 2 * 3 * 4 * 4 * 3; i++) {
        struct grad_spec s = next_case((tn_kind)(i / 4 % 3), floats[i / 12 % 4], i % 3 != 2, i % 5 == 0);
        s.f.d.gate = i % 2 ? TN_GATE_AFTER : TN_GATE_BEFORE;
        s.f.d.act = (tn_act)(i / 2 % 2);
        s.f.dtype[OP_GATE] = floats[i / 48 % 4];
        s.f.dtype[OP_RESIDUAL] = i % 4 == 3 ? floats[i / 48 % 4] : TN_NONE;
        if (s.f.dtype[OP_X] == TN_F64 || s.f.dtype[OP_RESIDUAL] == TN_F64)
            s.f.gen[OP_X] = i % 7 ? GEN_NORMAL : GEN_MEAN_1E4;
        s.f.d.flags = i % 5 == 0 ? TN_ROUND_PRODUCT : 0;
        grad_spec_all(&s, i % 3 ? TN_NONE : floats[i / 7 % 4]);
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("gates", &r);
}

static void cast_modes(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 3 * 4 * 4 * 8; i++) {
        struct grad_spec s = next_case((tn_kind)(i / 3 % 3), floats[i / 9 % 4], true, i % 2);
        s.f.dtype[OP_WEIGHT] = floats[i / 36 % 4];
        s.f.dtype[OP_Y] = i % 5 ? floats[i / 9 % 4] : floats[i / 5 % 4];
        s.f.d.cast = (tn_cast)(i % 3);
        s.f.d.flags = (unsigned)(i / 144);
        s.f.d.weight_offset = i % 4 == 3 ? 1 : s.f.d.flags & TN_ROUND_OFFSET ? 0.75 : 0;
        s.f.d.eps_mode = (tn_eps_mode)(i % 7 == 0 ? i / 7 % 3 : 0);
        grad_spec_all(&s, i % 2 ? TN_NONE : TN_F32);
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("cast modes and flags", &r);
}

static void modulations(void **state)
{
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 900; i++) {
        struct grad_spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 5 == 0);
        s.f.d.rows[1] = 1 + (size_t)i % 3;
        s.f.dtype[OP_MOD_SCALE] = i % 4 ? floats[i / 12 % 4] : TN_NONE;
        s.f.dtype[OP_MOD_SHIFT] = i % 3 || !(i % 4) ? floats[i / 12 % 4] : TN_NONE;
        s.f.layout[OP_MOD_SCALE] = s.f.layout[OP_MOD_SHIFT] = i % 2 ? LAY_PER_SECOND : LAY_DENSE;
        s.f.d.cast = (tn_cast)(i / 5 % 3);
        s.f.d.gate = (tn_gate)(i % 5 == 4 ? TN_GATE_AFTER : TN_GATE_NONE);
        s.f.dtype[OP_GATE] = s.f.d.gate ? s.f.dtype[OP_X] : TN_NONE;
        grad_spec_all(&s, i % 3 ? TN_NONE : TN_F32);
        s.layout[GR_DMOD_SCALE] = i % 2 ? LAY_PER_SECOND : i % 3 ? LAY_SHARED : LAY_DENSE;
        s.layout[GR_DMOD_SHIFT] = i % 3 ? LAY_PER_SECOND : LAY_DENSE;
        s.per_first[GR_DMOD_SHIFT] = i % 6 == 0;
        s.f.d.positions = i % 4 == 1 ? 3 : 0;
        s.f.d.n *= i % 4 == 1 ? 3 : 1;
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("modulations", &r);
}

/* Weights per head, per batch and per row, and gradients summed over any of the two axes. */
static void parameter_axes(void **state)
{
    static const enum layout layouts[] = {LAY_SHARED, LAY_PER_SECOND, LAY_DENSE, LAY_INNER, LAY_NEGATIVE};
    struct grad_report r = {0};
    (void)state;
    for (int i = 0; i < 5 * 6 * 6 * 4; i++) {
        struct grad_spec s = next_case((tn_kind)(i % 2), floats[i / 2 % 4], true, true);
        s.f.d.rows[0] = 1 + (size_t)i % 11;
        s.f.d.rows[1] = 1 + (size_t)i / 11 % 5;
        s.f.layout[OP_WEIGHT] = s.f.layout[OP_BIAS] = layouts[i % 5];
        s.layout[GR_DWEIGHT] = layouts[i / 5 % 6 % 5];
        s.per_first[GR_DWEIGHT] = i / 5 % 6 == 5;
        s.layout[GR_DBIAS] = layouts[i / 30 % 6 % 5];
        s.per_first[GR_DBIAS] = i / 30 % 6 == 5;
        for (int op = GR_DWEIGHT; op <= GR_DBIAS; op++)
            if (s.per_first[op])
                s.layout[op] = LAY_DENSE;
        s.accumulate = i % 3 == 0;
        s.workspace = i % 2;
        grad_check_all_isas(&s, &r);
    }
    grad_report_print("parameter axes", &r);
}

static void random_calls(void **state)
{
    struct grad_report r = {0};
    struct rng rng = {99};
    (void)state;
    for (int i = 0; i < 12000; i++) {
        struct grad_spec s = grad_spec_random(&rng, 200);
        if (i % 6 == 0)
            grad_check_all_isas(&s, &r);
        else
            grad_check(&s, &r);
    }
    grad_report_print("random calls", &r);
}

/* ---- saved statistics ----------------------------------------------------------------------------- */

static void saved_statistics(void **state)
{
    static const enum gen gens[] = {GEN_NORMAL,  GEN_MEAN_1E4,  GEN_MEAN_1E6,
                                    GEN_OUTLIER, GEN_LOGNORMAL, GEN_CONSTANT};
    (void)state;
    for (int saved = 0; saved < 2; saved++) {
        struct grad_report r = {.stat_error = saved ? 0x1p-24 : 0x1p-53};
        for (int i = 0; i < 600; i++) {
            struct grad_spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 5 == 0);
            s.saved = true;
            s.f.dtype[OP_RSTD] = saved ? TN_F32 : TN_F64;
            s.f.dtype[OP_MEAN] = s.f.d.kind == TN_LAYER ? s.f.dtype[OP_RSTD] : TN_NONE;
            s.f.gen[OP_X] = gens[i % (s.f.d.kind == TN_LAYER ? 6 : 5)]; /* 1 / 3e38 is no normal f32 */
            s.f.d.eps = i % 4 ? 1e-6 : 0.1;
            s.f.d.eps_mode = (tn_eps_mode)(i % 11 == 0 ? i / 11 % 3 : 0);
            s.f.d.group = i % 5 == 2 && s.f.d.n % 3 == 0 ? s.f.d.n / 3 : 0;
            s.dtype[GR_DX] = i % 2 ? TN_F64 : s.dtype[GR_DX];
            grad_check_all_isas(&s, &r);
        }
        grad_report_print(saved ? "f32 statistics" : "f64 statistics", &r);
    }
}

/* f64 statistics of f32, bf16 and f16 rows without a mean are all that the backward computes itself. */
static void saved_f64_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct grad_spec s = next_case(i % 2 ? TN_RMS : TN_L2, floats[i / 2 % 3], i % 3, false);
        struct grad_case own, given;
        grad_case_make(&own, &s);
        s.saved = true;
        s.f.dtype[OP_RSTD] = TN_F64;
        grad_case_make(&given, &s);
        grad_run(&own, NULL);
        grad_run(&given, NULL);
        grad_check_same(&own, &given, "saved f64 statistics");
        grad_case_free(&own);
        grad_case_free(&given);
    }
}

/* ---- null spaces ---------------------------------------------------------------------------------- */

static void put_row(struct grad_case *c, enum grad_operand op, const double *v)
{
    for (size_t i = 0; i < c->spec.f.d.rows[0]; i++)
        for (size_t k = 0; k < c->spec.f.d.n; k++)
            buffer_put(&c->b[op], i, 0, k, v[k]);
    buffer_snapshot(&c->b[op]);
}

static double largest_dx(const struct grad_case *c)
{
    double most = 0;
    for (size_t i = 0; i < c->spec.f.d.rows[0]; i++)
        for (size_t k = 0; k < c->spec.f.d.n; k++)
            most = fmax(most, fabs(buffer_get(&c->b[GR_DX], i, 0, k))); /* NaN must not hide */
    for (size_t k = 0; k < c->spec.f.d.n; k++)
        if (isnan(buffer_get(&c->b[GR_DX], 0, 0, k)))
            return NAN;
    return most;
}

/* LayerNorm, no weight: a constant dy moves the mean only. */
static void layer_norm_constant_dy(void **state)
{
    double dy[400];
    (void)state;
    for (int i = 0; i < 4 * GEN_FINITE_COUNT * 12; i++) {
        static const size_t lengths[] = {1, 2, 3, 15, 16, 17, 32, 33, 65, 128, 257, 400};
        struct grad_spec s = grad_spec_make(TN_LAYER, floats[i % 4], 3, lengths[i / 4 % 12], false, false);
        struct grad_case c;
        s.f.gen[OP_X] = (enum gen)(i / 48);
        s.f.seed = (uint64_t)i + 1;
        s.f.d.eps = i % 3 ? 1e-5 : 0;
        grad_case_make(&c, &s);
        for (size_t k = 0; k < s.f.d.n; k++)
            dy[k] = i % 5 ? 1 : -0.25;
        put_row(&c, GR_DY, dy);
        grad_run(&c, NULL);
        if (largest_dx(&c) != 0) /* exactly */
            grad_fail(&s, "dx of a constant dy is not 0");
        grad_case_free(&c);
    }
}

/* RMSNorm and L2 with eps 0: dy along x does nothing. What is left of |r G| is rounding. */
static void rms_norm_parallel_dy(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * 60; i++) {
        struct grad_spec s = grad_spec_make(i % 2 ? TN_RMS : TN_L2, floats[i / 2 % 4], 1,
                                            1 + (size_t)i * 3 % 300, false, false);
        struct grad_case c;
        s.f.d.eps = 0;
        s.f.seed = (uint64_t)i + 1;
        s.dtype[GR_DX] = TN_F64;
        grad_case_make(&c, &s);
        double squares = 0, largest = 0, *x = must_malloc(s.f.d.n * sizeof *x);
        for (size_t k = 0; k < s.f.d.n; k++) {
            x[k] = buffer_get(&c.f.b[OP_X], 0, 0, k);
            squares += x[k] * x[k];
            largest = fmax(largest, fabs(x[k]));
        }
        put_row(&c, GR_DY, x);
        grad_run(&c, NULL);
        double r = 1 / sqrt(squares / (s.f.d.kind == TN_L2 ? 1 : (double)s.f.d.n));
        if (!(largest_dx(&c) <= 16 * 0x1p-53 * r * largest))
            grad_fail(&s, "dx of dy = x is not 0 within 16 units");
        free(x);
        grad_case_free(&c);
    }
}

/* ---- single values -------------------------------------------------------------------------------- */

static void backward_f32(tn_kind kind, size_t n, double eps, const float *x, const float *w, const float *dy,
                         float *dx)
{
    tn_norm_desc d = tn_norm_init(kind, 1, n, eps);
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = tn_in_rows(x, TN_F32, n);
    if (w)
        io.weight = tn_in_param(w, TN_F32);
    g.dy = tn_in_rows(dy, TN_F32, n);
    g.dx = tn_out_rows(dx, TN_F32, n);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
}

/* dx = dy w eps r^3, which f32 arithmetic loses. */
static void one_element(void **state)
{
    const float x = 7.3f, w = 500, dy = 1;
    float dx;
    (void)state;
    backward_f32(TN_RMS, 1, 1e-6, &x, &w, &dy, &dx);
    assert_true(fabs((double)dx / 1.2853e-6 - 1) < 1e-4);
    backward_f32(TN_LAYER, 1, 1e-6, &x, &w, &dy, &dx);
    assert_true(dx == 0);
}

static void huge_and_tiny(void **state)
{
    static const double shape[4] = {1, -1, 2, 3};
    const float dy[4] = {1, 2, 3, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        double v = i ? 1e-25 : 1e20, r = 0, gx = 0;
        float x[4], dx[4];
        for (int k = 0; k < 4; k++) {
            x[k] = (float)(shape[k] * v);
            r += (double)x[k] * (double)x[k] / 4;
            gx += (double)x[k] * (double)dy[k] / 4;
        }
        r = 1 / sqrt(r);
        backward_f32(TN_RMS, 4, 0, x, NULL, dy, dx);
        for (int k = 0; k < 4; k++) {
            double want = r * ((double)dy[k] - (double)x[k] * r * (gx * r));
            assert_true(fabs((double)dx[k] - want) <= 1e-7 * fabs(want) + 0x1p-149);
        }
    }
}

/* The padding of the last 16 elements must not enter: (0 - mean) * rstd would overflow here. */
static void padding_does_not_enter(void **state)
{
    const double x[2] = {1e250, 1e250}, dy[2] = {1, 3};
    double dx[2];
    tn_norm_desc d = tn_norm_init(TN_LAYER, 1, 2, 1e-120);
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    (void)state;
    io.x = tn_in_rows(x, TN_F64, 2);
    g.dy = tn_in_rows(dy, TN_F64, 2);
    g.dx = tn_out_rows(dx, TN_F64, 2);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
    assert_true(fabs(dx[0] / -1e60 - 1) < 1e-15 && fabs(dx[1] / 1e60 - 1) < 1e-15);
}

/* A constant row at the top of f64: y = 0 and dx = (G - <G>) / sqrt(eps), as for any other constant. */
static void constant_f64_rows(void **state)
{
    static const double values[] = {1, 1e100, 1e200, 1e300, 1.7e308, -1.7e308, 1e-300};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const double x[2] = {values[i], values[i]}, dy[2] = {1, 3};
        double dx[2];
        tn_norm_desc d = tn_norm_init(TN_LAYER, 1, 2, 1e-4);
        tn_norm_io io = tn_io_init();
        tn_norm_grads g = tn_grads_init();
        io.x = tn_in_rows(x, TN_F64, 2);
        g.dy = tn_in_rows(dy, TN_F64, 2);
        g.dx = tn_out_rows(dx, TN_F64, 2);
        assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
        assert_true(fabs(dx[0] + 100) < 1e-12 && fabs(dx[1] - 100) < 1e-12);
    }
}

static void zero_rows_without_eps(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * 4 * 2 * 3 * 4; i++) {
        struct grad_spec s =
            grad_spec_make((tn_kind)(i % 3), floats[i / 3 % 4], 3, 1 + (size_t)i * 5 % 70, true, true);
        struct grad_case c;
        s.f.gen[OP_X] = i / 12 % 2 ? GEN_ZERO : s.f.d.kind == TN_LAYER ? GEN_CONSTANT : GEN_ZERO;
        s.f.d.eps = 0;
        s.f.d.eps_mode = (tn_eps_mode)(i / 24 % 3);
        s.f.d.flags = i / 72 % 2 ? TN_ROUND_RSTD : 0;
        s.f.d.gate = i / 144 ? TN_GATE_BEFORE : TN_GATE_NONE;
        if (s.f.d.gate && s.f.gen[OP_X] == GEN_CONSTANT)
            continue;
        s.f.dtype[OP_GATE] = s.f.d.gate ? s.f.dtype[OP_X] : TN_NONE;
        grad_spec_all(&s, TN_NONE);
        grad_case_make(&c, &s);
        grad_run(&c, NULL);
        if (largest_dx(&c) != 0)
            grad_fail(&s, "dx of a zero row with eps 0 is not 0");
        for (size_t k = 0; k < s.f.d.n; k++)
            assert_true(buffer_get(&c.b[GR_DWEIGHT], 0, 0, k) == 0);
        grad_case_free(&c);
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
        cmocka_unit_test(eps_modes),
        cmocka_unit_test(negative_eps),
        cmocka_unit_test(groups_and_parts),
        cmocka_unit_test(partial_with_divisor),
        cmocka_unit_test(residuals),
        cmocka_unit_test(gates),
        cmocka_unit_test(cast_modes),
        cmocka_unit_test(modulations),
        cmocka_unit_test(parameter_axes),
        cmocka_unit_test(random_calls),
        cmocka_unit_test(saved_statistics),
        cmocka_unit_test(saved_f64_same_bits),
        cmocka_unit_test(layer_norm_constant_dy),
        cmocka_unit_test(rms_norm_parallel_dy),
        cmocka_unit_test(one_element),
        cmocka_unit_test(huge_and_tiny),
        cmocka_unit_test(padding_does_not_enter),
        cmocka_unit_test(constant_f64_rows),
        cmocka_unit_test(zero_rows_without_eps),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
