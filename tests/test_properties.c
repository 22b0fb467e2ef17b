/* test_properties.c - the same bits: whatever the batch, position, threads, layout, alignment or scale. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "executor.h"

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};

static void run(struct test_case *c)
{
    tn_status status = tn_norm_forward(&c->spec.d, &c->io, NULL);
    const char *trespass = case_trespass(c);
    if (status != TN_OK || trespass)
        check_fail(&c->spec, trespass ? trespass : tn_status_text(status));
}

/* Copies the values of an input, element by element, whatever the layouts. */
static void copy_values(struct buffer *to, const struct buffer *from)
{
    for (size_t i = 0; i < to->rows[0] * (to->dtype != TN_NONE); i++)
        for (size_t j = 0; j < to->rows[1]; j++)
            for (size_t k = 0; k < to->n; k++)
                buffer_put(to, i, j, k, buffer_get(from, i, j, k));
    buffer_snapshot(to);
}

/* ---- scale ---------------------------------------------------------------------------------------- */

static void scaled(const struct spec *s, int power, double eps)
{
    struct test_case a, b;
    struct spec t = *s;
    t.d.eps = eps;
    case_make(&a, s);
    case_make(&b, &t);
    for (size_t i = 0; i < s->d.rows[0]; i++)
        for (size_t k = 0; k < s->d.n; k++)
            buffer_put(&b.b[OP_X], i, 0, k, ldexp(buffer_get(&a.b[OP_X], i, 0, k), power));
    buffer_snapshot(&b.b[OP_X]);
    run(&a);
    run(&b);
    check_same_output(&a, &b, OP_Y, "x scaled by a power of two");
    case_free(&a);
    case_free(&b);
}

static void scale_invariance(void **state)
{
    static const int powers[] = {-40, -7, -1, 1, 13, 50};
    (void)state;
    for (size_t i = 0; i < 6 * 4 * 3 * 2 * 6; i++) {
        tn_dtype dtype = floats[i / 6 % 4];
        int power = dtype == TN_F16 ? (int)(i % 6) - 3 : powers[i % 6] * (dtype == TN_F64 ? 7 : 1);
        struct spec s = spec_make((tn_kind)(i / 24 % 3), dtype, 2, 1 + i * 13 % 200, true, i % 4 == 0);
        s.seed = i;
        s.d.grade = i / 72 % 2 ? TN_FAST : TN_EXACT;
        s.d.cast = (tn_cast)(i % 3);
        s.gen[OP_X] = dtype == TN_F16 ? GEN_LOGNORMAL : i % 2 ? GEN_NORMAL : GEN_OUTLIER;
        s.d.eps = 0;
        scaled(&s, power, 0);
        s.d.eps = 1e-5;
        scaled(&s, power, ldexp(1e-5, 2 * power));
        s.d.eps_mode = TN_EPS_OUTSIDE;
        scaled(&s, power, ldexp(1e-5, power));
    }
}

/* ---- order of the elements ------------------------------------------------------------------------ */

static void permutation(void **state)
{
    (void)state;
    for (size_t trial = 0; trial < 120; trial++) {
        struct spec s = spec_make((tn_kind)(trial % 3), floats[trial / 3 % 4], 1, 2 + trial * 7, true, false);
        struct test_case a, b;
        struct oracle_report report = {0};
        struct rng r = {trial};
        size_t *order = must_malloc(s.d.n * sizeof *order);
        case_make(&a, &s);
        case_make(&b, &s);
        for (size_t i = 0; i < s.d.n; i++) {
            size_t j = rng_below(&r, i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (size_t k = 0; k < s.d.n; k++) {
            buffer_put(&b.b[OP_X], 0, 0, k, buffer_get(&a.b[OP_X], 0, 0, order[k]));
            buffer_put(&b.b[OP_WEIGHT], 0, 0, k, buffer_get(&a.b[OP_WEIGHT], 0, 0, order[k]));
        }
        buffer_snapshot(&b.b[OP_X]);
        buffer_snapshot(&b.b[OP_WEIGHT]);
        run(&a);
        run(&b);
        double tol =
            ldexp(8, 1 - dtype_info(s.dtype[OP_X])->precision); /* an ulp of the largest y, about 4 */
        for (size_t k = 0; k < s.d.n; k++) {
            double difference = buffer_get(&b.b[OP_Y], 0, 0, k) - buffer_get(&a.b[OP_Y], 0, 0, order[k]);
            if (!(fabs(difference) <= tol))
                check_fail(&s, "a permuted row differs by more than an ulp");
        }
        if (oracle_check(&s.d, &b.before, ORACLE_FORWARD, &report))
            check_fail(&s, report.text);
        free(order);
        case_free(&a);
        case_free(&b);
    }
}

/* ---- batch, threads ------------------------------------------------------------------------------- */

static void *shifted(const void *data, tn_dtype dtype, const ptrdiff_t stride[2], size_t i, size_t j)
{
    if (!data)
        return NULL;
    ptrdiff_t elements = (ptrdiff_t)i * stride[0] + (ptrdiff_t)j * stride[1];
    return (char *)(uintptr_t)data + elements * (ptrdiff_t)dtype_info(dtype)->size;
}

/* The operands of the rows from (i, j). */
static tn_norm_io io_at(const tn_norm_io *io, size_t i, size_t j)
{
    tn_norm_io r = *io;
#define SHIFT(v) r.v.data = shifted(r.v.data, r.v.dtype, r.v.stride, i, j)
    SHIFT(x);
    SHIFT(residual);
    SHIFT(gate);
    SHIFT(weight);
    SHIFT(bias);
    SHIFT(mod_scale);
    SHIFT(mod_shift);
    SHIFT(y);
    SHIFT(sum);
    SHIFT(mean);
    SHIFT(rstd);
    SHIFT(scale_in);
    SHIFT(scale_out);
    return r;
}

/* A batch against its rows one by one, and in blocks of two. */
static void rows_alone(const struct spec *s)
{
    struct test_case all, alone, pairs;
    case_make(&all, s);
    case_make(&alone, s);
    case_make(&pairs, s);
    run(&all);
    tn_norm_desc one = s->d, two = s->d;
    one.rows[0] = one.rows[1] = 1;
    for (size_t i = s->d.rows[0]; i-- > 0;)
        for (size_t j = 0; j < s->d.rows[1]; j++) {
            tn_norm_io io = io_at(&alone.io, i, j);
            assert_int_equal(tn_norm_forward(&one, &io, NULL), TN_OK);
        }
    for (size_t i = 0; i < s->d.rows[0]; i += 2) {
        tn_norm_io io = io_at(&pairs.io, i, 0);
        two.rows[0] = s->d.rows[0] - i < 2 ? 1 : 2;
        assert_int_equal(tn_norm_forward(&two, &io, NULL), TN_OK);
    }
    check_same_outputs(&all, &alone, "rows alone");
    check_same_outputs(&all, &pairs, "rows in pairs");
    case_free(&all);
    case_free(&alone);
    case_free(&pairs);
}

static void batch_independence(void **state)
{
    struct rng r = {555};
    (void)state;
    for (int i = 0; i < 2500; i++) {
        struct spec s = spec_random(&r, 200);
        rows_alone(&s);
    }
    for (size_t i = 0; i < 4 * 2 * 12; i++) {
        struct spec s =
            spec_make((tn_kind)(i % 2), floats[i / 2 % 4], 37, 1 + i * 11, i % 3 != 0, i % 5 == 0);
        s.d.grade = i / 8 % 3 == 0 ? TN_FAST : TN_EXACT;
        s.gen2 = (int)(i % GEN_COUNT);
        rows_alone(&s);
    }
}

static void threaded(const struct spec *s, bool must_split)
{
    static const size_t counts[] = {1, 2, 3, 8};
    struct test_case a, b;
    struct test_executor e;
    case_make(&a, s);
    case_make(&b, s);
    run(&a);
    for (int t = 0; t < 4; t++) {
        tn_executor ex = executor_make(&e, counts[t]);
        case_reset(&b);
        if (tn_norm_forward(&s->d, &b.io, &ex) != TN_OK || case_trespass(&b))
            check_fail(s, "failed with an executor");
        check_same_outputs(&a, &b, "threads");
        if (must_split && e.tasks < 2)
            check_fail(s, "large work was not offered to the executor");
        if (e.calls > 1)
            check_fail(s, "more than one parallel loop for a forward call");
    }
    case_free(&a);
    case_free(&b);
}

static void thread_independence(void **state)
{
    struct rng r = {808};
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct spec s = spec_random(&r, 50);
        s.d.rows[0] = 400 + rng_below(&r, 300);
        threaded(&s, false);
    }
    for (size_t i = 0; i < 16; i++) {
        struct spec s = spec_make((tn_kind)(i % 2), floats[i / 2 % 4], i % 3 ? 700 : 97, i % 3 ? 768 : 6000,
                                  true, i % 4 == 3);
        s.d.grade = i / 8 ? TN_FAST : TN_EXACT;
        threaded(&s, true);
    }
}

static void small_work_stays(void **state)
{
    struct spec s = spec_make(TN_RMS, TN_F32, 4, 64, true, false);
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct test_case c;
        struct test_executor e;
        tn_executor ex = executor_make(&e, 4);
        s.d.rows[0] = i ? 100 : 4; /* 2 KB and 50 KB of x and y */
        case_make(&c, &s);
        assert_int_equal(tn_norm_forward(&s.d, &c.io, &ex), TN_OK);
        assert_int_equal(e.calls, 0);
        case_free(&c);
    }
}

/* ---- layout, place -------------------------------------------------------------------------------- */

static void layout_independence(void **state)
{
    struct rng r = {4711};
    (void)state;
    for (int trial = 0; trial < 3000; trial++) {
        struct spec s = spec_random(&r, 150), t = s;
        struct test_case a, b;
        for (int op = 0; op < OP_COUNT; op++) {
            bool repeats = s.layout[op] >= LAY_SHARED;
            t.layout[op] = repeats ? s.layout[op] : (enum layout)rng_below(&r, LAY_OUTPUT_COUNT);
            t.misalign[op] = (unsigned char)rng_below(&r, 16);
        }
        case_make(&a, &s);
        case_make(&b, &t);
        for (int op = 0; op < OP_Y; op++)
            copy_values(&b.b[op], &a.b[op]);
        run(&a);
        run(&b);
        check_same_outputs(&a, &b, "another layout");
        case_free(&a);
        case_free(&b);
    }
}

static void in_place(void **state)
{
    struct rng r = {99};
    (void)state;
    for (int trial = 0; trial < 2000; trial++) {
        struct spec s = spec_random(&r, 150), t;
        struct test_case a, b;
        if (s.y_over == OP_Y && s.sum_over == OP_SUM)
            continue;
        t = s;
        t.y_over = OP_Y;
        t.sum_over = OP_SUM;
        case_make(&a, &s);
        case_make(&b, &t);
        run(&a);
        run(&b);
        check_same_outputs(&a, &b, "in place");
        case_free(&a);
        case_free(&b);
    }
}

/* ---- rows that must not matter -------------------------------------------------------------------- */

static void neighbours_of_special_rows(void **state)
{
    static const double specials[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t trial = 0; trial < 4 * 3 * 12; trial++) {
        struct spec s =
            spec_make((tn_kind)(trial / 4 % 3), floats[trial % 4], 5, 1 + trial * 5 % 70, true, false);
        struct test_case a, b;
        size_t where[3];
        case_make(&a, &s);
        case_make(&b, &s);
        for (size_t i = 1; i < 5; i += 2)
            buffer_put(&b.b[OP_X], i, 0, trial % s.d.n, specials[trial % 3]);
        buffer_snapshot(&b.b[OP_X]);
        run(&a);
        run(&b);
        for (size_t i = 0; i < 5; i += 2) {
            const size_t rows[2] = {1, 1};
            tn_out ya = a.io.y, yb = b.io.y;
            ya.data = shifted(ya.data, ya.dtype, ya.stride, i, 0);
            yb.data = shifted(yb.data, yb.dtype, yb.stride, i, 0);
            if (!views_equal(&ya, &yb, rows, s.d.n, where))
                check_fail(&s, "a NaN or inf in one row changed another");
        }
        case_free(&a);
        case_free(&b);
    }
}

/* LayerNorm of a constant row is the bias exactly, whatever the value, length and weight. */
static void constant_rows(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 300; n++)
        for (size_t t = 0; t < 4; t++) {
            struct spec s = spec_make(TN_LAYER, floats[t], 2, n, true, n % 3 != 0);
            struct test_case c;
            s.seed = n;
            s.gen[OP_X] = GEN_CONSTANT;
            s.d.eps = n % 5 ? 1e-5 : 0;
            s.d.grade = n % 2 ? TN_EXACT : TN_FAST;
            case_make(&c, &s);
            run(&c);
            for (size_t k = 0; k < 2 * n; k++) {
                double want = s.dtype[OP_BIAS] == TN_NONE ? 0 : buffer_get(&c.b[OP_BIAS], 0, 0, k % n);
                if (buffer_get(&c.b[OP_Y], k / n, 0, k % n) != want)
                    check_fail(&s, "a constant row does not give the bias");
            }
            case_free(&c);
        }
}

/* y of one call whose rows are aligned, as non-temporal stores need them. */
static void store_as(tn_kind kind, tn_dtype dtype, size_t rows, size_t n, tn_store store, const void *x,
                     void *y)
{
    tn_norm_desc d = tn_norm_init(kind, rows, n, 1e-6);
    tn_norm_io io = tn_io_init();
    d.store = store;
    io.x = tn_in_rows(x, dtype, n);
    io.weight = tn_in_param(x, dtype);
    io.y = tn_out_rows(y, dtype, n);
    assert_int_equal(tn_norm_forward(&d, &io, NULL), TN_OK);
}

/* Where the results go does not show: past the caches or not, asked for or by size. */
static void stores(void **state)
{
    static const struct {
        size_t rows, n;
    } shapes[] = {{40, 64}, {5, 1024}, {3, 5120}, {24, 131072}};
    (void)state;
    for (size_t i = 0; i < 3 * 2 * 4; i++) {
        const tn_dtype dtype = floats[i % 3];
        const size_t rows = shapes[i / 6].rows, n = shapes[i / 6].n, bytes = rows * n * tn_dtype_size(dtype);
        char *x = aligned_alloc(64, bytes), *y[3];
        for (size_t k = 0; k < rows * n; k++)
            if (dtype == TN_F32)
                ((float *)(void *)x)[k] = (float)(k * 37 % 1009) / 256 - 1;
            else
                ((uint16_t *)(void *)x)[k] = (uint16_t)(0x3c00 + k * 37 % 1009);
        for (int store = TN_STORE_AUTO; store <= TN_STORE_STREAM; store++) {
            y[store] = aligned_alloc(64, bytes);
            store_as(i / 3 % 2 ? TN_LAYER : TN_RMS, dtype, rows, n, (tn_store)store, x, y[store]);
        }
        assert_memory_equal(y[TN_STORE_AUTO], y[TN_STORE_CACHED], bytes);
        assert_memory_equal(y[TN_STORE_STREAM], y[TN_STORE_CACHED], bytes);
        for (int store = 0; store < 3; store++)
            free(y[store]);
        free(x);
    }
}

static void simple_calls(void **state)
{
    (void)state;
    for (size_t trial = 0; trial < 4 * 4 * 20; trial++) {
        bool weight = trial / 4 % 2, bias = trial / 8 % 2;
        tn_dtype dtype = floats[trial % 4];
        struct spec s = spec_make(TN_RMS, dtype, 3, 1 + trial * 3 % 400, weight, false);
        for (int kind = 0; kind < 2; kind++) {
            struct test_case a, b;
            s.d.kind = (tn_kind)kind;
            s.dtype[OP_BIAS] = kind && bias ? dtype : TN_NONE;
            case_make(&a, &s);
            case_make(&b, &s);
            run(&a);
            const void *x = b.io.x.data, *w = b.io.weight.data;
            if (kind)
                assert_int_equal(tn_layernorm(dtype, 3, s.d.n, x, w, b.io.bias.data, s.d.eps, b.io.y.data),
                                 TN_OK);
            else
                assert_int_equal(tn_rmsnorm(dtype, 3, s.d.n, x, w, s.d.eps, b.io.y.data), TN_OK);
            assert_null(case_trespass(&b));
            check_same_outputs(&a, &b, "the simple call");
            case_free(&a);
            case_free(&b);
        }
    }
}

static int finish(void **state)
{
    (void)state;
    oracle_free();
    return 0;
}

/* Every test under every instruction set, unless TN_ISA chose one. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_invariance),
        cmocka_unit_test(permutation),
        cmocka_unit_test(batch_independence),
        cmocka_unit_test(thread_independence),
        cmocka_unit_test(small_work_stays),
        cmocka_unit_test(layout_independence),
        cmocka_unit_test(in_place),
        cmocka_unit_test(neighbours_of_special_rows),
        cmocka_unit_test(constant_rows),
        cmocka_unit_test(simple_calls),
        cmocka_unit_test(stores),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
