/* test_grad_api.c - backward: statuses, workspace, a failing malloc, aliasing, empty shapes, outputs alone.
 * Linked with -Wl,--wrap=malloc. */
#include "grad_check.h"

#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
static bool malloc_fails;
static size_t mallocs;

void *__wrap_malloc(size_t size)
{
    mallocs++;
    return malloc_fails ? NULL : __real_malloc(size);
}

/* A lawful call with every output, to be broken in one place. */
struct call {
    tn_norm_desc d;
    tn_norm_io io;
    tn_norm_grads g;
    tn_executor *executor;
    float x[12], residual[12], gate[12], weight[4], bias[4], scale[12], shift[12], dy[12], dsum[12];
    float dx[12], dresidual[12], dgate[12], dweight[4], dbias[4], dscale[4], dshift[4];
    double rstd[3], workspace[256];
};

static void call_make(struct call *c)
{
    memset(c, 0, sizeof *c);
    for (int k = 0; k < 12; k++) {
        c->x[k] = (float)(k % 5) - 1.5f;
        c->residual[k] = 0.5f;
        c->gate[k] = 1;
        c->dy[k] = (float)k;
    }
    c->d = tn_norm_init(TN_LAYER, 3, 4, 1e-5);
    c->d.gate = TN_GATE_AFTER;
    c->io = tn_io_init();
    c->io.x = tn_in_rows(c->x, TN_F32, 4);
    c->io.residual = tn_in_rows(c->residual, TN_F32, 4);
    c->io.gate = tn_in_rows(c->gate, TN_F32, 4);
    c->io.weight = tn_in_param(c->weight, TN_F32);
    c->io.bias = tn_in_param(c->bias, TN_F32);
    c->io.mod_scale = tn_in_rows(c->scale, TN_F32, 4);
    c->io.mod_shift = tn_in_rows(c->shift, TN_F32, 4);
    c->g = tn_grads_init();
    c->g.dy = tn_in_rows(c->dy, TN_F32, 4);
    c->g.dsum = tn_in_rows(c->dsum, TN_F32, 4);
    c->g.dx = tn_out_rows(c->dx, TN_F32, 4);
    c->g.dresidual = tn_out_rows(c->dresidual, TN_F32, 4);
    c->g.dgate = tn_out_rows(c->dgate, TN_F32, 4);
    c->g.dweight = tn_out_param(c->dweight, TN_F32);
    c->g.dbias = tn_out_param(c->dbias, TN_F32);
    c->g.dmod_scale = tn_out_param(c->dscale, TN_F32);
    c->g.dmod_shift = tn_out_param(c->dshift, TN_F32);
}

/* The call must give `status` and, unless that is TN_OK, write nothing. */
static void expect(struct call *c, tn_status status, int line)
{
    struct call *before = must_malloc(sizeof *before);
    memcpy(before, c, sizeof *c);
    tn_status got = tn_norm_backward(&c->d, &c->io, &c->g, c->executor);
    if (got != status)
        print_error("line %d: %s, not %s\n", line, tn_status_text(got), tn_status_text(status));
    assert_int_equal(got, status);
    if (status != TN_OK)
        assert_memory_equal(before, c, sizeof *c);
    free(before);
}

#define BROKEN(status, change)                                                                               \
    do {                                                                                                     \
        struct call c;                                                                                       \
        call_make(&c);                                                                                       \
        change;                                                                                              \
        expect(&c, status, __LINE__);                                                                        \
    } while (0)

static void statuses(void **state)
{
    static tn_executor none;
    (void)state;
    BROKEN(TN_OK, (void)0);
    BROKEN(TN_ERR_NULL, c.g.dy.data = NULL);
    BROKEN(TN_ERR_NULL, c.io.x.data = NULL);
    BROKEN(TN_ERR_NULL, c.io.gate.data = NULL);
    BROKEN(TN_ERR_NULL, c.executor = &none);
    BROKEN(TN_ERR_NULL, (c.d.gate = TN_GATE_NONE, c.io.gate.data = NULL)); /* dgate without a gate */
    BROKEN(TN_ERR_NULL, c.io.rstd_in = tn_in_rows(c.rstd, TN_F64, 1));     /* rstd_in without mean_in */
    BROKEN(TN_ERR_VALUE, c.d.gate = TN_GATE_NONE);
    BROKEN(TN_ERR_VALUE, c.d.eps = -1);
    BROKEN(TN_ERR_VALUE, c.d.kind = (tn_kind)7);
    BROKEN(TN_ERR_VALUE, c.d.group = 3);
    BROKEN(TN_ERR_VALUE, c.d.positions = 3);
    BROKEN(TN_ERR_VALUE, c.d.flags = 1u << 20);
    BROKEN(TN_ERR_DTYPE, c.g.dy.dtype = TN_NONE);
    BROKEN(TN_ERR_DTYPE, c.g.dy.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.g.dsum.dtype = TN_E4M3);
    BROKEN(TN_ERR_DTYPE, c.g.dx.dtype = TN_E5M2);
    BROKEN(TN_ERR_DTYPE, c.g.dresidual.dtype = (tn_dtype)99);
    BROKEN(TN_ERR_DTYPE, c.g.dgate.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.g.dweight.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.g.dbias.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.g.dmod_scale.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.g.dmod_shift.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.io.x.dtype = TN_I8);
    BROKEN(TN_ERR_DTYPE, c.io.sum.dtype = TN_I8);
    BROKEN(TN_ERR_STRUCT_SIZE, c.g.struct_size = 0);
    BROKEN(TN_ERR_STRUCT_SIZE, c.io.struct_size = 0);
    BROKEN(TN_ERR_STRUCT_SIZE, c.d.struct_size = 0);
    BROKEN(TN_ERR_SIZE, c.d.rows[0] = SIZE_MAX / 2);
    BROKEN(TN_ERR_SIZE, c.g.dx.stride[0] = PTRDIFF_MAX / 2);
    BROKEN(TN_ERR_SIZE, c.g.dweight.inner = PTRDIFF_MIN);
    BROKEN(TN_ERR_NULL, c.g.dx.data = c.g.dresidual.data = c.g.dgate.data = c.g.dweight.data =
                            c.g.dbias.data = c.g.dmod_scale.data = c.g.dmod_shift.data = NULL);
    struct call c;
    call_make(&c);
    assert_int_equal(tn_norm_backward(NULL, &c.io, &c.g, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_backward(&c.d, NULL, &c.g, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_backward(&c.d, &c.io, NULL, NULL), TN_ERR_NULL);
    assert_true(tn_norm_backward_workspace(&c.d, &c.io, &c.g) > 0);
    assert_true(tn_norm_backward_workspace(NULL, NULL, NULL) == 0);
    c.g.dy.dtype = TN_I8;
    assert_true(tn_norm_backward_workspace(&c.d, &c.io, &c.g) == 0);
}

/* The gradient of a modulation that the forward did not have: that of a modulation by 0, or it is refused. */
static void modulation_gradient_alone(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct call c, with;
        (void)state;
        call_make(&c);
        call_make(&with);
        c.io.mod_scale.data = c.io.mod_shift.data = NULL;
        c.io.gate.data = with.io.gate.data = c.g.dgate.data = with.g.dgate.data = i ? c.g.dgate.data : NULL;
        if (i)
            c.io.gate.data = c.gate, with.io.gate.data = with.gate, with.g.dgate.data = with.dgate;
        c.d.gate = with.d.gate = i ? TN_GATE_AFTER : TN_GATE_NONE;
        for (int k = 0; k < 4; k++)
            c.dscale[k] = c.dshift[k] = 77;
        tn_status status = tn_norm_backward(&c.d, &c.io, &c.g, NULL);
        if (status != TN_OK)
            continue;
        assert_int_equal(tn_norm_backward(&with.d, &with.io, &with.g, NULL), TN_OK);
        assert_memory_equal(c.dscale, with.dscale, sizeof c.dscale);
        assert_memory_equal(c.dshift, with.dshift, sizeof c.dshift);
    }
}

static void overlaps(void **state)
{
    (void)state;
    BROKEN(TN_ERR_OVERLAP, c.g.dx.data = c.x + 1); /* not exactly x */
    BROKEN(TN_ERR_OVERLAP, c.g.dx.stride[0] = 3);  /* over itself */
    BROKEN(TN_ERR_OVERLAP, c.g.dx.stride[0] = 0);
    BROKEN(TN_ERR_OVERLAP, c.g.dresidual.data = c.dx);
    BROKEN(TN_ERR_OVERLAP, c.g.dgate.data = c.dx);
    BROKEN(TN_ERR_OVERLAP, c.g.dx.data = c.scale);
    BROKEN(TN_ERR_OVERLAP, c.g.dweight.data = c.weight);
    BROKEN(TN_ERR_OVERLAP, c.g.dweight.data = c.dx + 2);
    BROKEN(TN_ERR_OVERLAP, c.g.dbias.data = c.dweight);
    BROKEN(TN_ERR_OVERLAP, c.g.dbias.data = c.dy);
    BROKEN(TN_ERR_OVERLAP, c.g.dmod_shift.data = c.dscale);
    BROKEN(TN_ERR_OVERLAP, (c.g.dx.data = c.dy, c.g.dx.dtype = TN_BF16));
    BROKEN(TN_ERR_OVERLAP, (c.g.dy.stride[0] = 0, c.g.dx.data = c.dy));
    BROKEN(TN_ERR_OVERLAP, (c.g.workspace = c.dx, c.g.workspace_size = 4096));
    BROKEN(TN_ERR_OVERLAP, (c.g.workspace = c.x, c.g.workspace_size = 4096));
    BROKEN(TN_OK, c.g.dx.data = c.dy);
    BROKEN(TN_OK, c.g.dx.data = c.x);
    BROKEN(TN_OK, (c.g.dx.data = c.dsum, c.g.dresidual.data = c.residual, c.g.dgate.data = c.gate));
}

static void workspaces(void **state)
{
    struct call c, other;
    (void)state;
    call_make(&c);
    size_t bytes = tn_norm_backward_workspace(&c.d, &c.io, &c.g);
    assert_true(bytes > 0 && bytes < sizeof c.workspace);
    call_make(&other);
    expect(&other, TN_OK, __LINE__);
    c.g.workspace = c.workspace;
    c.g.workspace_size = bytes - 1;
    expect(&c, TN_ERR_SIZE, __LINE__);
    c.g.workspace = (char *)c.workspace + 4;
    c.g.workspace_size = bytes;
    expect(&c, TN_ERR_VALUE, __LINE__);
    c.g.workspace = c.workspace;
    memset(c.workspace, 0xFF, sizeof c.workspace);
    mallocs = 0;
    assert_int_equal(tn_norm_backward(&c.d, &c.io, &c.g, NULL), TN_OK);
    assert_int_equal(mallocs, 0);
    for (size_t i = bytes; i < sizeof c.workspace; i++)
        assert_int_equal(((unsigned char *)c.workspace)[i], 0xFF);
    assert_memory_equal(c.dx, other.dx, sizeof c.dx);
    assert_memory_equal(c.dweight, other.dweight, sizeof c.dweight);
    assert_memory_equal(c.dshift, other.dshift, sizeof c.dshift);
    /* without sums nothing is needed */
    c.g.dweight.data = c.g.dbias.data = c.g.dmod_scale.data = c.g.dmod_shift.data = NULL;
    c.g.workspace = NULL;
    assert_true(tn_norm_backward_workspace(&c.d, &c.io, &c.g) == 0);
    assert_int_equal(tn_norm_backward(&c.d, &c.io, &c.g, NULL), TN_OK);
    assert_int_equal(mallocs, 0);
}

static void out_of_memory(void **state)
{
    struct call c, before;
    (void)state;
    call_make(&c);
    before = c;
    malloc_fails = true;
    tn_status status = tn_norm_backward(&c.d, &c.io, &c.g, NULL);
    malloc_fails = false;
    assert_int_equal(status, TN_ERR_MEMORY);
    assert_memory_equal(&before, &c, sizeof c);
}

/* ---- each output alone ---------------------------------------------------------------------------- */

/* One output at a time: the same bits as with all. */
static void outputs_alone(void **state)
{
    struct rng r = {31};
    (void)state;
    for (int i = 0; i < 400; i++) {
        struct grad_spec s = grad_spec_random(&r, 80);
        struct grad_case all, one;
        memset(s.over, 0, sizeof s.over);
        grad_case_make(&all, &s);
        grad_run(&all, NULL);
        for (int op = GR_DX; op < GR_COUNT; op++) {
            struct grad_spec single = s;
            if (s.dtype[op] == TN_NONE)
                continue;
            for (int other = GR_DX; other < GR_COUNT; other++)
                single.dtype[other] = other == op ? s.dtype[op] : TN_NONE;
            grad_case_make(&one, &single);
            grad_run(&one, NULL);
            grad_check_same(&one, &all, "one output alone");
            grad_case_free(&one);
        }
        grad_case_free(&all);
    }
}

/* In place over every operand that may be: the bits of the call with outputs of its own. */
static void in_place(void **state)
{
    static const enum over overs[] = {OVER_DY, OVER_DSUM, OVER_X, OVER_RESIDUAL, OVER_GATE};
    (void)state;
    for (int i = 0; i < 5 * 3 * 3 * 3 * 4; i++) {
        struct grad_spec s =
            grad_spec_make((tn_kind)(i / 15 % 3), TN_F32, 3, 1 + (size_t)i * 7 % 90, true, true);
        struct grad_case apart, over;
        enum grad_operand op = (enum grad_operand)(GR_DX + i / 5 % 3);
        s.f.seed = (uint64_t)i + 1;
        s.f.d.gate = (tn_gate)(1 + i / 45 % 2);
        s.f.dtype[OP_GATE] = s.f.dtype[OP_RESIDUAL] = TN_F32;
        grad_spec_all(&s, TN_NONE);
        s.layout[GR_DY] = s.layout[GR_DSUM] = (enum layout)(i / 135 * 2 % LAY_OUTPUT_COUNT);
        s.f.layout[OP_X] = s.f.layout[OP_RESIDUAL] = s.f.layout[OP_GATE] = s.layout[GR_DY];
        if (i % 2) /* two sweeps: dweight and dbias over different axes; the second one may overwrite dy */
            s.layout[GR_DBIAS] = LAY_DENSE;
        grad_case_make(&apart, &s);
        s.over[op] = overs[i % 5];
        grad_case_make(&over, &s);
        grad_run(&apart, NULL);
        grad_run(&over, NULL);
        grad_check_same(&over, &apart, "in place");
        grad_case_free(&apart);
        grad_case_free(&over);
    }
}

/* ---- empty shapes --------------------------------------------------------------------------------- */

static void empty_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) { /* 0 rows: the sums are 0, or with accumulate unchanged */
        struct call c;
        call_make(&c);
        c.d.rows[i % 2] = 0;
        c.g.accumulate = i == 2;
        for (int k = 0; k < 4; k++)
            c.dweight[k] = c.dbias[k] = c.dscale[k] = c.dshift[k] = 5;
        c.dx[0] = 7;
        assert_int_equal(tn_norm_backward(&c.d, &c.io, &c.g, NULL), TN_OK);
        for (int k = 0; k < 4; k++) {
            float want = i == 2 ? 5 : 0;
            assert_true(c.dweight[k] == want && c.dbias[k] == want && c.dscale[k] == want &&
                        c.dshift[k] == want);
        }
        assert_true(c.dx[0] == 7);
    }
    struct call c; /* 0 columns: nothing is written */
    call_make(&c);
    c.d.n = 0;
    c.dweight[0] = c.dx[0] = 5;
    assert_int_equal(tn_norm_backward(&c.d, &c.io, &c.g, NULL), TN_OK);
    assert_true(c.dweight[0] == 5 && c.dx[0] == 5);
}

/* ---- sums ----------------------------------------------------------------------------------------- */

/* accumulate = the sum of two calls, rounded once more. */
static void accumulate_adds(void **state)
{
    struct call once, twice;
    (void)state;
    call_make(&once);
    call_make(&twice);
    assert_int_equal(tn_norm_backward(&once.d, &once.io, &once.g, NULL), TN_OK);
    twice.g.accumulate = 1;
    for (int i = 0; i < 2; i++)
        assert_int_equal(tn_norm_backward(&twice.d, &twice.io, &twice.g, NULL), TN_OK);
    for (int k = 0; k < 4; k++) {
        assert_true(twice.dweight[k] == 2 * once.dweight[k]); /* doubling is exact */
        assert_true(twice.dbias[k] == 2 * once.dbias[k]);
        assert_true(twice.dscale[k] == 2 * once.dscale[k]);
        assert_true(twice.dshift[k] == 2 * once.dshift[k]);
    }
}

/* The forward's outputs are ignored, whatever they point to, but for the dtypes of y and sum. */
static void forward_outputs_ignored(void **state)
{
    struct call c, plain;
    (void)state;
    call_make(&c);
    call_make(&plain);
    c.io.y = tn_out_rows(c.x, TN_F32, 4);
    c.io.sum = tn_out_rows(c.dx, TN_F32, 4);
    c.io.mean = tn_out_rows(c.dy, TN_F32, 1);
    assert_int_equal(tn_norm_backward(&c.d, &c.io, &c.g, NULL), TN_OK);
    assert_int_equal(tn_norm_backward(&plain.d, &plain.io, &plain.g, NULL), TN_OK);
    assert_memory_equal(c.dx, plain.dx, sizeof c.dx);
    assert_memory_equal(c.x, plain.x, sizeof c.x);
    assert_memory_equal(c.dy, plain.dy, sizeof c.dy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses),        cmocka_unit_test(modulation_gradient_alone),
        cmocka_unit_test(overlaps),        cmocka_unit_test(workspaces),
        cmocka_unit_test(out_of_memory),   cmocka_unit_test(outputs_alone),
        cmocka_unit_test(in_place),        cmocka_unit_test(empty_shapes),
        cmocka_unit_test(accumulate_adds), cmocka_unit_test(forward_outputs_ignored),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
