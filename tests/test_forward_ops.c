/* test_forward_ops.c - every option of the descriptor against the oracle. */
#include "check.h"

#include <math.h>

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
static const tn_dtype results[] = {TN_F32, TN_BF16, TN_F16, TN_F64, TN_I8, TN_E4M3, TN_E5M2};

/* A fresh case on each call: length, generator, seed, alignment rotate. */
static struct spec next_case(tn_kind kind, tn_dtype dtype, bool weight, bool bias)
{
    static size_t i;
    static const size_t lengths[] = {1,  2,  3,  7,  15, 16,  17,  31,  32,  33,
                                     40, 63, 64, 65, 96, 127, 128, 129, 160, 200};
    i++;
    struct spec s = spec_make(kind, dtype, 2, lengths[i % 20], weight, bias);
    s.seed = i;
    s.gen[OP_X] = (enum gen)(i * 7 % GEN_FINITE_COUNT);
    s.misalign[OP_X] = (unsigned char)(i % 16);
    s.misalign[OP_Y] = (unsigned char)(i / 2 % 16);
    return s;
}

static void quantise(struct spec *s, tn_dtype y, bool dynamic)
{
    s->dtype[OP_Y] = y;
    if (dtype_is_float(y))
        return;
    s->dtype[OP_SCALE_IN] = dynamic ? TN_NONE : TN_F32;
    s->dtype[OP_SCALE_OUT] = dynamic ? TN_F32 : TN_NONE;
}

static void dtype_triple(tn_kind kind, tn_dtype x, tn_dtype y, struct oracle_report *r)
{
    for (int w = -1; w < 4; w++)
        for (int variant = 0; variant < 8; variant++) {
            struct spec s = next_case(kind, x, w >= 0, variant % 2);
            s.dtype[OP_WEIGHT] = w >= 0 ? floats[w] : TN_NONE;
            if (variant % 2)
                s.dtype[OP_BIAS] = floats[(variant / 2 + w + 1) % 4];
            s.d.grade = variant < 4 ? TN_EXACT : TN_FAST;
            quantise(&s, y, variant % 4 < 2);
            check_forward_all_isas(&s, r);
        }
}

static void dtype_triples(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int x = 0; x < 4; x++)
            for (int y = 0; y < 7; y++)
                dtype_triple((tn_kind)kind, floats[x], results[y], &r);
    report_print("dtype triples", &r);
}

static void cast_modes(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 3 * 4 * 4 * 2 * 8; i++) {
        int cast = i % 3, kind = i / 3 % 3, x = i / 9 % 4, w = i / 36 % 4, grade = i / 144 % 2,
            flags = i / 288;
        struct spec s = next_case((tn_kind)kind, floats[x], true, i % 2);
        s.dtype[OP_WEIGHT] = floats[w];
        s.dtype[OP_Y] = i % 5 ? floats[x] : floats[(x + i / 5) % 4];
        s.d.cast = (tn_cast)cast;
        s.d.grade = (tn_grade)grade;
        s.d.flags = (unsigned)flags;
        s.d.weight_offset = i % 4 == 3 ? 1 : flags & TN_ROUND_OFFSET ? 0.75 : 0;
        check_forward_all_isas(&s, &r);
    }
    report_print("cast modes and flags", &r);
}

static void eps_modes(void **state)
{
    static const double eps[] = {0, 1e-6, 1e-12, 1e-40, 1e-300, 0.5, 1e10};
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 3 * 4 * 7 * GEN_FINITE_COUNT; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 9 % 4], i % 2, i % 5 == 0);
        s.d.eps_mode = (tn_eps_mode)(i / 3 % 3);
        s.d.eps = eps[i / 36 % 7];
        s.gen[OP_X] = (enum gen)(i / 252);
        s.d.grade = i / 7 % 3 == 0 ? TN_FAST : TN_EXACT;
        check_forward(&s, &r);
    }
    report_print("eps modes", &r);
}

static void groups_and_parts(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 1200; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 3 == 0);
        size_t group = 1 + (size_t)i % 37, groups = 1 + (size_t)i % 5;
        s.d.n = group * groups;
        s.d.group = group;
        s.d.partial = i % 4 == 1 ? 1 + (size_t)i % group : 0;
        s.d.divisor = i % 3 == 1 && s.d.kind != TN_L2 ? (double)group * 1.5 : 0;
        s.d.grade = i % 7 == 0 ? TN_FAST : TN_EXACT;
        s.d.weight_offset = i % 2 && i % 5 == 0 ? 1 : 0;
        s.dtype[OP_MEAN] = i % 2 ? TN_F32 : TN_F64;
        s.dtype[OP_RSTD] = i % 3 ? TN_F64 : TN_F32;
        s.layout[OP_MEAN] = (enum layout)(i % LAY_OUTPUT_COUNT);
        s.layout[OP_RSTD] = (enum layout)(i / 2 % LAY_OUTPUT_COUNT);
        check_forward_all_isas(&s, &r);
    }
    report_print("groups, parts, divisors", &r);
}

static void residuals(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 4 * 4 * 5 * 2 * 2; i++) {
        int x = i / 3 % 4, res = i / 12 % 4, sum = i / 48 % 5;
        struct spec s = next_case((tn_kind)(i % 3), floats[x], i % 2, false);
        s.dtype[OP_RESIDUAL] = floats[res];
        s.dtype[OP_SUM] = sum < 4 ? floats[sum] : TN_NONE;
        s.d.sum = (tn_sum)(i / 240 % 2);
        s.d.grade = (tn_grade)(i / 480 % 2);
        s.gen[OP_RESIDUAL] = i % 5 == 0 ? s.gen[OP_X] : GEN_NORMAL;
        s.layout[OP_RESIDUAL] = (enum layout)(i % LAY_OUTPUT_COUNT);
        if (i % 7 == 1)
            spec_y_over(&s, OP_X);
        if (i % 7 == 2)
            spec_y_over(&s, OP_RESIDUAL);
        if (sum < 4 && i % 7 < 4 && i % 7 > 0) { /* sum over the other one */
            s.sum_over = i % 7 == 2 ? OP_X : OP_RESIDUAL;
            s.dtype[OP_SUM] = s.dtype[s.sum_over];
        }
        check_forward_all_isas(&s, &r);
    }
    report_print("residuals", &r);
}

static void gates(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 2 * 2 * 4 * 4 * 4; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 12 % 4], i % 4 != 0, i % 5 == 0);
        s.d.gate = i / 3 % 2 ? TN_GATE_BEFORE : TN_GATE_AFTER;
        s.d.act = (tn_act)(i / 6 % 2);
        s.dtype[OP_GATE] = floats[i / 48 % 4];
        s.layout[OP_GATE] = (enum layout)(i % LAY_OUTPUT_COUNT);
        s.d.grade = i / 192 % 2 ? TN_FAST : TN_EXACT;
        s.d.cast = (tn_cast)(i / 192 % 3);
        s.d.flags = i % 3 == 0 ? TN_ROUND_PRODUCT : 0;
        if (i % 6 == 1)
            spec_y_over(&s, OP_GATE);
        check_forward_all_isas(&s, &r);
    }
    report_print("gates", &r);
}

/* Rows with zeros among x and the gates, one with a gate beyond f32's range, one with a product that f32 would lose: what
 * leaves f32 does not depend on the kernel, of dense or of strided rows. */
static void gates_with_zeros(void **state)
{
    enum { ROWS = 6, MOST = 200 };
    static const size_t lengths[] = {1, 15, 16, 33, 64, 150, MOST};
    static unsigned char x[ROWS * MOST * 8], gate[ROWS * MOST * 8], wide_x[ROWS * MOST * 8], weight[MOST * 8],
        y[2][ROWS * MOST * 8];
    struct rng rng = {11};
    (void)state;
    for (size_t i = 0; i < 7 * 3 * 2 * 2 * 2; i++) {
        const size_t n = lengths[i % 7], size = tn_dtype_size(floats[i / 7 % 3]);
        const tn_dtype dtype = floats[i / 7 % 3];
        tn_norm_desc d = tn_norm_init(TN_RMS, ROWS, n, 1e-6);
        tn_norm_io io = tn_io_init();
        d.gate = i / 21 % 2 ? TN_GATE_BEFORE : TN_GATE_AFTER;
        d.grade = i / 42 % 2 ? TN_FAST : TN_EXACT;
        d.cast = i / 84 % 2 ? TN_CAST_BEFORE_SCALE : TN_CAST_ONCE;
        for (size_t k = 0; k < n; k++)
            dtype_put(weight, dtype, (ptrdiff_t)k, rng_normal(&rng));
        for (size_t k = 0; k < ROWS * n; k++) {
            double v = rng_normal(&rng), z = 2.0 * rng_normal(&rng);
            dtype_put(x, dtype, (ptrdiff_t)k, k % 3 == 0 ? 0.0 : v);
            dtype_put(gate, dtype, (ptrdiff_t)k,
                      k == 4 * n   ? 85.0
                      : k == 5 * n ? -75.0
                      : k % 5 == 0 ? -0.0
                                   : z);
            memcpy(wide_x + 2 * k * size, x + k * size, size);
        }
        io.x = tn_in_rows(x, dtype, n);
        io.gate = tn_in_rows(gate, dtype, n);
        io.weight = tn_in_param(weight, dtype);
        io.y = tn_out_rows(y[0], dtype, n);
        assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
        io.x = (tn_in){wide_x, dtype, {(ptrdiff_t)(2 * n), 0}, 2};
        io.y.data = y[1];
        assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
        assert_memory_equal(y[0], y[1], ROWS * n * size);
    }
}

/* silu and sigmoid themselves, over their whole range: x = 1 and eps 0 make h = 1, so y is the activation. */
static void activations(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct spec s = spec_make(TN_RMS, floats[i % 4], 1, 2000, false, false);
        struct test_case c;
        s.d.eps = 0;
        s.d.gate = TN_GATE_AFTER;
        s.d.act = (tn_act)(i / 4 % 2);
        s.d.grade = (tn_grade)(i / 8);
        s.dtype[OP_GATE] = i % 2 ? s.dtype[OP_X] : TN_F32;
        case_make(&c, &s);
        for (size_t k = 0; k < 2000; k++) {
            buffer_put(&c.b[OP_X], 0, 0, k, 1);
            buffer_put(&c.b[OP_GATE], 0, 0, k, ((double)k - 1000) * (k % 3 ? 0.09 : k % 2 ? 1e-3 : 0.7));
        }
        buffer_snapshot(&c.b[OP_X]);
        buffer_snapshot(&c.b[OP_GATE]);
        assert_int_equal(tn_norm_forward(&s.d, &c.io, NULL), TN_OK);
        r.text[0] = 0;
        if (oracle_check(&s.d, &c.before, ORACLE_FORWARD, &r))
            check_fail(&s, r.text);
        case_free(&c);
    }
    report_print("activations", &r);
}

/* (w h + b) (1 + scale) + shift, and parameters that serve several positions each (group norm). */
static void modulation(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 4 * 4 * 4 * 3; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 5 == 0);
        s.dtype[OP_MOD_SCALE] = i % 4 ? floats[i / 12 % 4] : TN_NONE;
        s.dtype[OP_MOD_SHIFT] = i % 7 ? floats[i / 48 % 4] : TN_NONE;
        s.layout[OP_MOD_SCALE] = (enum layout)(i % 8);
        s.layout[OP_MOD_SHIFT] = (enum layout)(i / 3 % 8);
        s.d.grade = i % 6 == 5 ? TN_FAST : TN_EXACT;
        s.d.cast = (tn_cast)(i / 5 % 3);
        check_forward_all_isas(&s, &r);
        s.dtype[OP_WEIGHT] = s.dtype[OP_BIAS] = floats[i / 7 % 4];
        s.d.positions = 1 + (size_t)i % 21;
        s.d.n = s.d.positions * (1 + (size_t)i % 9);
        s.d.group = i % 2 && s.d.n % 3 == 0 ? s.d.n / 3 : 0;
        s.dtype[OP_MOD_SCALE] = s.dtype[OP_MOD_SHIFT] = TN_NONE;
        check_forward_all_isas(&s, &r);
    }
    report_print("modulation and positions", &r);
}

static void layouts(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 8 * 6 * 8 * 4; i++) {
        struct spec s = next_case((tn_kind)(i % 2), floats[i / 2 % 4], true, i % 3 == 0);
        s.d.rows[0] = 1 + (size_t)i % 3;
        s.d.rows[1] = 1 + (size_t)(i / 3) % 4;
        s.d.n = 1 + (size_t)(i * 11) % 70;
        s.layout[OP_X] = (enum layout)(i % 8);
        s.layout[OP_Y] = (enum layout)(i / 8 % 6);
        s.layout[OP_WEIGHT] = (enum layout)(i / 48 % 8);
        s.layout[OP_BIAS] = (enum layout)(i / 16 % 8);
        s.gen2 = (int)(i % GEN_COUNT);
        if (i % 9 == 0 && i % 8 < 6)
            spec_y_over(&s, OP_X);
        check_forward(&s, &r);
    }
    report_print("layouts", &r);
}

static void quantised(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 4 * 3 * 2 * 12; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 5 == 0);
        quantise(&s, results[4 + i / 12 % 3], i / 36 % 2);
        tn_dtype *scale = &s.dtype[s.dtype[OP_SCALE_IN] != TN_NONE ? OP_SCALE_IN : OP_SCALE_OUT];
        *scale = i % 4 ? TN_F32 : TN_F64;
        s.layout[OP_SCALE_IN] = i % 3 ? LAY_SHARED : LAY_PADDED;
        s.layout[OP_SCALE_OUT] = (enum layout)(i / 5 % LAY_OUTPUT_COUNT);
        s.layout[OP_Y] = (enum layout)(i / 7 % LAY_OUTPUT_COUNT);
        s.d.grade = i % 5 == 1 ? TN_FAST : TN_EXACT;
        s.d.group = s.d.n % 2 == 0 && i % 3 == 0 ? s.d.n / 2 : 0;
        s.gen2 = i % 6 == 0 ? (int)(GEN_ZERO + i / 6 % 3) : -1;
        if (i % 7 == 0) {
            s.d.gate = TN_GATE_AFTER;
            s.dtype[OP_GATE] = s.dtype[OP_X];
        }
        check_forward_all_isas(&s, &r);
    }
    report_print("quantised", &r);
}

static void moments(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 900; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], false, false);
        s.dtype[OP_Y] = TN_NONE;
        s.dtype[OP_MOMENT2] = i % 4 ? TN_F64 : TN_F32;
        s.dtype[OP_MEAN] = i % 3 == 1 ? (i % 2 ? TN_F64 : TN_F32) : TN_NONE;
        s.d.partial = i % 5 == 0 ? 1 + (size_t)i % s.d.n : 0;
        if (i % 4 == 0) {
            s.d.n *= 3;
            s.d.group = s.d.n / 3;
        }
        check_step(&s, ORACLE_MOMENTS, &r);
    }
}

static void applied(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 900; i++) {
        struct spec s = next_case((tn_kind)(i % 3), floats[i / 3 % 4], i % 2, i % 5 == 0);
        s.dtype[OP_RSTD_IN] = i % 4 ? TN_F64 : TN_F32;
        s.dtype[OP_MEAN_IN] = i % 3 == 1 ? (i % 5 ? TN_F64 : TN_F32) : TN_NONE;
        s.d.grade = i % 7 == 0 ? TN_FAST : TN_EXACT;
        s.d.cast = (tn_cast)(i % 11 % 3);
        if (i % 4 == 0) {
            s.d.n *= 3;
            s.d.group = s.d.n / 3;
        }
        check_step(&s, ORACLE_APPLY, &r);
    }
    report_print("apply", &r);
}

/* Everything with everything. */
static void random_cases(void **state)
{
    struct oracle_report r = {0};
    struct rng g = {20240607};
    (void)state;
    for (int i = 0; i < 12000; i++) {
        struct spec s = spec_random(&g, 260);
        check_forward_all_isas(&s, &r);
    }
    report_print("random cases", &r);
}

static int finish(void **state)
{
    (void)state;
    oracle_free();
    return 0;
}

/* Elements past a partial row's counted ones: infinite ones meet a cast point, huge ones a row that is scaled up. */
static void partial_rows_with_extreme_rests(void **state)
{
    double x[3] = {1, 2, INFINITY}, z[3] = {1e-200, -1e-200, 1e250}, y[3];
    uint16_t w[3] = {0x3c00, 0x3c00, 0x3c00};
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 3, 1e-6);
    tn_norm_io io = tn_io_init();
    (void)state;
    d.partial = 2;
    d.cast = TN_CAST_T5;
    io.x = tn_in_rows(x, TN_F64, 3);
    io.weight = tn_in_param(w, TN_F16);
    io.y = tn_out_rows(y, TN_F64, 3);
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    assert_true(y[2] == (double)INFINITY && y[0] > 0.6 && y[1] < 1.3);

    d = tn_norm_init(TN_LAYER, 1, 3, 0.25);
    d.partial = 2;
    io.x.data = z;
    io.weight.data = NULL;
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
    assert_true(y[0] == 2e-200 && y[1] == -2e-200 && y[2] == 2e250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partial_rows_with_extreme_rests),
        cmocka_unit_test(dtype_triples),
        cmocka_unit_test(cast_modes),
        cmocka_unit_test(eps_modes),
        cmocka_unit_test(groups_and_parts),
        cmocka_unit_test(residuals),
        cmocka_unit_test(gates),
        cmocka_unit_test(gates_with_zeros),
        cmocka_unit_test(activations),
        cmocka_unit_test(layouts),
        cmocka_unit_test(modulation),
        cmocka_unit_test(quantised),
        cmocka_unit_test(moments),
        cmocka_unit_test(applied),
        cmocka_unit_test(random_cases),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
