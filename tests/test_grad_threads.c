/* test_grad_threads.c - backward: the same bits for any executor, thread count and order of tasks, any instruction
 * set, any layout, a row alone or in a batch; sums over very many rows. Clean under the thread sanitizer
 * (scripts/tsan.sh). */
#include "grad_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "executor.h"
#include "grad_openmp.h"

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};

/* ---- executors ------------------------------------------------------------------------------------ */

/* Work enough to leave the calling thread: 192 KiB of x. */
static struct grad_spec large_case(size_t i)
{
    static const size_t shapes[][3] = {{2000, 1, 128}, {130, 1, 1024}, {100, 8, 160},
                                       {8, 300, 83},   {19, 1, 8000},  {3, 700, 80}};
    const size_t *shape = shapes[i % 6];
    struct grad_spec s = grad_spec_make((tn_kind)(i % 3), floats[i / 6 % 4], shape[0], shape[2], true, true);
    s.f.d.rows[1] = shape[1];
    s.f.seed = i + 1;
    s.f.layout[OP_WEIGHT] = i % 2 ? LAY_PER_SECOND : LAY_SHARED;
    s.layout[GR_DWEIGHT] = i % 4 == 1 ? LAY_PER_SECOND : LAY_SHARED;
    if (i % 5 == 3)
        s.per_first[GR_DBIAS] = true, s.layout[GR_DBIAS] = LAY_DENSE;
    if (i % 7 == 2) { /* the general kernel, with everything */
        s.f.d.gate = TN_GATE_BEFORE;
        s.f.dtype[OP_GATE] = s.f.dtype[OP_RESIDUAL] = s.f.dtype[OP_MOD_SCALE] = s.f.dtype[OP_MOD_SHIFT] =
            TN_F32;
        s.f.layout[OP_MOD_SCALE] = s.f.layout[OP_MOD_SHIFT] = LAY_SHARED;
        grad_spec_all(&s, TN_F32);
    }
    if (i % 3 == 1)
        s.over[GR_DX] = i % 2 ? OVER_X : OVER_DY;
    s.accumulate = i % 4 == 2;
    s.workspace = i % 2;
    return s;
}

static void executors(void **state)
{
    static const size_t threads[] = {1, 2, 3, 8};
    size_t used = 0;
    (void)state;
    for (size_t i = 0; i < 24; i++) {
        struct grad_spec s = large_case(i);
        struct grad_case serial, parallel;
        grad_case_make(&serial, &s);
        grad_case_make(&parallel, &s);
        grad_run(&serial, NULL);
        for (size_t t = 0; t < 4; t++) {
            struct test_executor e;
            tn_executor executor = executor_make(&e, threads[t]);
            grad_case_reset(&parallel);
            grad_run(&parallel, &executor);
            grad_check_same(&parallel, &serial, "threads");
            used += e.tasks > 1;
        }
        grad_case_free(&serial);
        grad_case_free(&parallel);
    }
    print_message("  %zu of 96 calls used the executor\n", used);
    assert_true(used > 80); /* it was not all on the calling thread */
}

static void openmp(void **state)
{
    tn_executor executor;
    (void)state;
    if (!grad_openmp(&executor)) {
        skip();
        return;
    }
    for (size_t i = 0; i < 24; i++) {
        struct grad_spec s = large_case(i);
        struct grad_case serial, parallel;
        grad_case_make(&serial, &s);
        grad_case_make(&parallel, &s);
        grad_run(&serial, NULL);
        grad_run(&parallel, &executor);
        grad_check_same(&parallel, &serial, "OpenMP");
        grad_case_free(&serial);
        grad_case_free(&parallel);
    }
}

static void small_work_stays(void **state)
{
    struct grad_spec s = grad_spec_make(TN_RMS, TN_F32, 20, 64, true, false);
    struct test_executor e;
    tn_executor executor = executor_make(&e, 2);
    struct grad_case c;
    (void)state;
    grad_case_make(&c, &s);
    grad_run(&c, &executor);
    assert_int_equal(e.calls, 0);
    grad_case_free(&c);
}

/* ---- instruction sets, layouts, batches ----------------------------------------------------------- */

static void instruction_sets(void **state)
{
    const char *names[8], *now = tn_isa_name();
    size_t count = tn_isa_list(names, 8);
    struct rng r = {5};
    (void)state;
    for (int i = 0; i < 1500; i++) {
        struct grad_spec s = grad_spec_random(&r, 700);
        struct grad_case a, b;
        if (i % 4 == 0)
            s.f.gen2 = i % 8 ? GEN_ONE_NAN : GEN_ONE_INF;
        grad_case_make(&a, &s);
        grad_case_make(&b, &s);
        tn_isa_set(names[0]);
        grad_run(&a, NULL);
        for (size_t k = 1; k < count; k++) {
            grad_case_reset(&b);
            tn_isa_set(names[k]);
            grad_run(&b, NULL);
            grad_check_same(&b, &a, names[k]);
        }
        tn_isa_set(now);
        grad_case_free(&a);
        grad_case_free(&b);
    }
}

static void copy_values(struct buffer *to, const struct buffer *from, size_t i0, size_t i1)
{
    for (size_t i = 0; i < to->rows[0] * (to->dtype != TN_NONE); i++)
        for (size_t j = 0; j < to->rows[1]; j++)
            for (size_t k = 0; k < to->n; k++)
                buffer_put(to, i, j, k, buffer_get(from, i0 + i, i1 + j, k));
    buffer_snapshot(to);
}

static void copy_inputs(struct grad_case *to, const struct grad_case *from, size_t i0, size_t i1)
{
    for (int op = 0; op < OP_Y; op++)
        copy_values(&to->f.b[op], &from->f.b[op], i0, i1);
    for (int op = 0; op <= GR_DSUM; op++)
        copy_values(&to->b[op], &from->b[op], i0, i1);
    for (int op = GR_DWEIGHT; op < GR_COUNT && to->spec.accumulate; op++)
        copy_values(&to->b[op], &from->b[op], 0, 0);
}

/* The fused kernels over contiguous rows, the general one over the rest: bits must not tell. */
static void layouts(void **state)
{
    struct rng r = {6};
    (void)state;
    for (int i = 0; i < 1200; i++) {
        struct grad_spec s = grad_spec_random(&r, 300), dense;
        struct grad_case a, b;
        if (i % 2) { /* what the fused kernels take */
            s = grad_spec_make((tn_kind)(i / 2 % 3), floats[i / 6 % 3], 1 + (size_t)i % 20,
                               1 + (size_t)i % 150, i % 5 != 1, i % 5 == 3);
            s.f.seed = (uint64_t)i;
            s.f.d.cast = (tn_cast)(i / 18 % 3);
            s.f.d.weight_offset = i % 5 != 1 && i % 7 == 1 ? 1 : 0;
            s.dtype[GR_DSUM] = i % 3 ? TN_NONE : s.dtype[GR_DX];
            s.f.gen[OP_X] = (enum gen)(i / 2 % GEN_FINITE_COUNT);
            if (s.f.dtype[OP_WEIGHT] != TN_NONE && i / 2 % 2)
                s.f.dtype[OP_WEIGHT] = s.dtype[GR_DWEIGHT] = TN_F32;
        }
        memset(s.over, 0, sizeof s.over);
        dense = s;
        for (int op = 0; op < OP_COUNT; op++)
            dense.f.layout[op] = dense.f.misalign[op] = 0;
        for (int op = 0; op <= GR_DGATE; op++)
            dense.layout[op] = dense.misalign[op] = 0;
        if (i % 2) /* strides for the other one */
            for (int op = 0; op <= GR_DX; op++)
                s.layout[op] = s.f.layout[OP_X] = (enum layout)(1 + i / 2 % (LAY_OUTPUT_COUNT - 1));
        grad_case_make(&a, &s);
        grad_case_make(&b, &dense);
        copy_inputs(&b, &a, 0, 0);
        grad_run(&a, NULL);
        grad_run(&b, NULL);
        grad_check_same(&a, &b, "layout");
        grad_case_free(&a);
        grad_case_free(&b);
    }
}

/* dx, dresidual and dgate of a row do not depend on what is beside it, be that NaN. */
static void row_alone(void **state)
{
    struct rng r = {8};
    (void)state;
    for (int i = 0; i < 500; i++) {
        struct grad_spec s = grad_spec_random(&r, 150), single;
        struct grad_case all, one;
        s.f.gen2 = i % 2 ? GEN_ONE_NAN : GEN_ONE_INF; /* every third row */
        memset(s.over, 0, sizeof s.over);
        for (int op = GR_DWEIGHT; op < GR_COUNT; op++)
            s.dtype[op] = TN_NONE;
        if (s.dtype[GR_DX] == TN_NONE && s.dtype[GR_DRESIDUAL] == TN_NONE && s.dtype[GR_DGATE] == TN_NONE)
            s.dtype[GR_DX] = s.f.dtype[OP_X];
        s.workspace = s.accumulate = false;
        grad_case_make(&all, &s);
        grad_run(&all, NULL);
        size_t i0 = rng_below(&r, s.f.d.rows[0]), i1 = rng_below(&r, s.f.d.rows[1]);
        single = s;
        single.f.d.rows[0] = single.f.d.rows[1] = 1;
        grad_case_make(&one, &single);
        copy_inputs(&one, &all, i0, i1);
        grad_run(&one, NULL);
        tn_norm_grads in_batch = all.g;
        for (int op = GR_DX; op <= GR_DGATE; op++) {
            tn_out *v = grad_output(&in_batch, (enum grad_operand)op);
            if (v->data)
                v->data = (char *)v->data + ((ptrdiff_t)i0 * v->stride[0] + (ptrdiff_t)i1 * v->stride[1]) *
                                                (ptrdiff_t)dtype_info(v->dtype)->size;
        }
        tn_norm_grads kept = all.g;
        all.g = in_batch;
        grad_check_same(&one, &all, "a row alone");
        all.g = kept;
        grad_case_free(&all);
        grad_case_free(&one);
    }
}

static void nan_rows(void **state)
{
    const float x[3][4] = {{1, 2, 3, 4}, {1, NAN, 3, 4}, {4, 3, 2, -1}},
                dy[3][4] = {{1, 0, 0, 2}, {1, 1, 1, 2}, {1, 0, 1, 0}};
    (void)state;
    for (int kind = TN_RMS; kind <= TN_L2; kind++) {
        float dx[3][4];
        tn_norm_desc d = tn_norm_init((tn_kind)kind, 3, 4, 1e-5);
        tn_norm_io io = tn_io_init();
        tn_norm_grads g = tn_grads_init();
        io.x = tn_in_rows(x, TN_F32, 4);
        g.dy = tn_in_rows(dy, TN_F32, 4);
        g.dx = tn_out_rows(dx, TN_F32, 4);
        assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
        for (int k = 0; k < 4; k++) {
            assert_true(isfinite(dx[0][k]) && isfinite(dx[2][k]));
            assert_true(isnan(dx[1][k]));
        }
    }
}

/* ---- sums over very many rows --------------------------------------------------------------------- */

/* 2^20 rows of 0.1f: a running f32 sum would be off by a percent. */
static void million_rows(void **state)
{
    enum { ROWS = 1 << 20, N = 2 };
    static const float value = 0.1f;
    float *x = must_malloc(sizeof(float) * ROWS * N), db[N], dw[N], again[N];
    struct test_executor e;
    tn_executor executor = executor_make(&e, 3);
    (void)state;
    for (size_t i = 0; i < (size_t)ROWS * N; i++)
        x[i] = i % 2 ? -1 : 1;
    tn_norm_desc d = tn_norm_init(TN_RMS, ROWS, N, 0);
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = tn_in_rows(x, TN_F32, N);
    g.dy = (tn_in){&value, TN_F32, {0, 0}, 0};
    g.dbias = tn_out_param(db, TN_F32);
    g.dweight = tn_out_param(dw, TN_F32);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
    for (int k = 0; k < N; k++) {
        double ulp = 0x1p-7; /* of 104857.6016 in f32 */
        assert_true(fabs((double)db[k] - (double)value * ROWS) <= 2 * ulp);
        assert_true(fabs((double)dw[k] - (k ? -1 : 1) * (double)value * ROWS) <= 2 * ulp);
    }
    g.dbias = tn_out_param(again, TN_F32);
    assert_int_equal(tn_norm_backward(&d, &io, &g, &executor), TN_OK);
    assert_memory_equal(db, again, sizeof db);
    assert_true(e.tasks > 1);
    free(x);
}

static void bf16_ones(void **state)
{
    enum { ROWS = 16384, N = 24 };
    static const uint16_t one = 0x3f80;
    uint16_t *x = must_malloc(sizeof *x * ROWS * N), db[N];
    (void)state;
    for (size_t i = 0; i < (size_t)ROWS * N; i++)
        dtype_put(x, TN_BF16, (ptrdiff_t)i, i % 3 ? -1 : 1);
    tn_norm_desc d = tn_norm_init(TN_LAYER, ROWS, N, 1e-5);
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = tn_in_rows(x, TN_BF16, N);
    g.dy = (tn_in){&one, TN_BF16, {0, 0}, 0};
    g.dbias = tn_out_param(db, TN_BF16);
    assert_int_equal(tn_norm_backward(&d, &io, &g, NULL), TN_OK);
    for (int k = 0; k < N; k++)
        assert_true(dtype_get(db, TN_BF16, k) == 16384);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executors), cmocka_unit_test(openmp),       cmocka_unit_test(small_work_stays),
        cmocka_unit_test(layouts),   cmocka_unit_test(row_alone),    cmocka_unit_test(instruction_sets),
        cmocka_unit_test(nan_rows),  cmocka_unit_test(million_rows), cmocka_unit_test(bf16_ones),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
