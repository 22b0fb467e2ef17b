/* test_overlap.c - which operands may share memory: exact in-place and disjoint views yes, all else refused. */
#include "check.h"

#include <string.h>

#define COUNT 4096

static unsigned char memory[COUNT * 4], copy[COUNT * 4];
static tn_norm_desc desc;
static tn_norm_io io;

static tn_in in(size_t at, tn_dtype dtype, ptrdiff_t s0, ptrdiff_t s1, ptrdiff_t inner)
{
    tn_in v = {memory + at * dtype_info(dtype)->size, dtype, {s0, s1}, inner};
    return v;
}

static tn_out out(size_t at, tn_dtype dtype, ptrdiff_t s0, ptrdiff_t s1, ptrdiff_t inner)
{
    tn_out v = {memory + at * dtype_info(dtype)->size, dtype, {s0, s1}, inner};
    return v;
}

static void start(size_t rows0, size_t rows1, size_t n)
{
    static bool filled;
    struct rng r = {3};
    for (size_t k = 0; k < COUNT && !filled; k++)
        dtype_put(copy, TN_F32, (ptrdiff_t)k, rng_normal(&r));
    filled = true;
    memcpy(memory, copy, sizeof copy);
    desc = tn_norm_init(TN_RMS, rows0, n, 1e-6);
    desc.rows[1] = rows1;
    io = tn_io_init();
}

static void refused(void)
{
    assert_int_equal(tn_norm_forward(&desc, &io, NULL), TN_ERR_OVERLAP);
    assert_memory_equal(memory, copy, sizeof copy);
}

/* Accepted, and with the same result as into a separate y. */
static void accepted(void)
{
    static float apart[COUNT];
    tn_norm_io other = io;
    size_t where[3];
    other.y = (tn_out){apart, TN_F32, {(ptrdiff_t)(desc.rows[1] * desc.n), (ptrdiff_t)desc.n}, 1};
    other.sum = (tn_out){NULL, io.sum.dtype, {0, 0}, 0};
    if (io.y.dtype == TN_F32)
        assert_int_equal(tn_norm_forward(&desc, &other, NULL), TN_OK);
    assert_int_equal(tn_norm_forward(&desc, &io, NULL), TN_OK);
    if (io.y.dtype == TN_F32)
        assert_true(views_equal(&io.y, &other.y, desc.rows, desc.n, where));
}

static void exact_in_place(void **state)
{
    (void)state;
    start(4, 2, 16);
    io.x = in(100, TN_F32, 40, 20, 1);
    io.y = out(100, TN_F32, 40, 20, 1);
    accepted();
    start(4, 2, 16); /* negative strides, inner stride 2 */
    io.x = in(1000, TN_F32, -80, 40, -2);
    io.y = out(1000, TN_F32, -80, 40, -2);
    accepted();
    start(4, 1, 16);
    io.x = in(0, TN_F32, 16, 0, 1);
    io.gate = in(100, TN_F32, 16, 0, 1);
    io.y = out(100, TN_F32, 16, 0, 1);
    desc.gate = TN_GATE_AFTER;
    accepted();
    start(4, 1, 16); /* sum over x, y over the residual */
    io.x = in(0, TN_F32, 16, 0, 1);
    io.residual = in(100, TN_F32, 16, 0, 1);
    io.sum = out(0, TN_F32, 16, 0, 1);
    io.y = out(100, TN_F32, 16, 0, 1);
    accepted();
    start(1, 1, 16); /* strides of single rows do not matter */
    io.x = in(0, TN_F32, 16, 0, 1);
    io.y = out(0, TN_F32, 999, -7, 1);
    accepted();
}

static void inexact_in_place(void **state)
{
    (void)state;
    start(4, 1, 16);
    io.x = in(0, TN_F32, 16, 0, 1);
    io.y = out(1, TN_F32, 16, 0, 1);
    refused();
    io.y = out(63, TN_F32, 16, 0, 1); /* the last element of x, the first of y */
    refused();
    io.y = out(0, TN_F32, 20, 0, 1);
    refused();
    io.y = out(15, TN_F32, 16, 0, -1);
    refused();
    io.y = out(48, TN_F32, -16, 0, 1); /* rows in the opposite order */
    refused();
    io.x = in(0, TN_F16, 16, 0, 1); /* f32 y over f16 x */
    io.y = out(0, TN_F32, 16, 0, 1);
    refused();
    io.y = out(0, TN_BF16, 16, 0, 1); /* the same size, another dtype */
    refused();
    io.y = out(0, TN_I8, 16, 0, 1);
    io.scale_out = out(500, TN_F32, 1, 0, 1);
    refused();
    start(4, 1, 16); /* one byte of overlap at odd addresses */
    io.x = in(0, TN_F32, 16, 0, 1);
    io.y = out(0, TN_F32, 16, 0, 1);
    io.y.data = memory + 255;
    refused();
}

static void outputs_over_the_wrong_operand(void **state)
{
    (void)state;
    start(4, 1, 16);
    io.x = in(0, TN_F32, 16, 0, 1);
    io.weight = in(200, TN_F32, 0, 0, 1);
    io.bias = in(300, TN_F32, 0, 0, 1);
    io.residual = in(400, TN_F32, 16, 0, 1);
    io.gate = in(500, TN_F32, 16, 0, 1);
    desc.gate = TN_GATE_AFTER;
    const tn_norm_io fine = io;
    for (int i = 0; i < 8; i++) {
        io = fine;
        io.y = out(600, TN_F32, 16, 0, 1);
        switch (i) {
        case 0:
            io.y = out(200, TN_F32, 16, 0, 1);
            break;
        case 1:
            io.y = out(290, TN_F32, 16, 0, 1);
            break;
        case 2:
            io.sum = out(500, TN_F32, 16, 0, 1);
            break; /* the gate is read after the sum is written */
        case 3:
            io.sum = out(600, TN_F32, 16, 0, 1);
            break;
        case 4:
            io.rstd = out(610, TN_F32, 1, 0, 1);
            break;
        case 5:
            io.rstd = out(3, TN_F32, 1, 0, 1);
            break;
        case 6:
            io.mean = out(403, TN_F32, 1, 0, 1);
            break;
        case 7:
            io.mean = out(700, TN_F64, 1, 0, 1);
            io.rstd = out(1401, TN_F32, 1, 0, 1);
            break;
        }
        refused();
    }
}

static void outputs_over_themselves(void **state)
{
    (void)state;
    start(4, 3, 16);
    io.x = in(0, TN_F32, 48, 16, 1);
    const ptrdiff_t bad[][3] = {{0, 16, 1},  {48, 0, 1},  {48, 16, 0},  {48, 15, 1}, {47, 16, 1},
                                {16, 16, 1}, {48, 16, 8}, {-32, 16, 1}, {5, 3, 15}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        io.y = out(1000, TN_F32, bad[i][0], bad[i][1], bad[i][2]);
        refused();
    }
    io.y = out(1000, TN_F32, 48, 16, 1);
    io.rstd = out(2000, TN_F32, 1, 1, 1);
    refused();
}

/* Views whose ranges overlap but which share no element. */
static void interleaved(void **state)
{
    const ptrdiff_t heads = 3, dim = 16, token = 3 * heads * dim;
    (void)state;
    start(5, (size_t)heads, (size_t)dim); /* packed q, k, v: normalise q into where v was */
    io.x = in(0, TN_F32, token, dim, 1);
    io.y = out((size_t)(2 * heads * dim), TN_F32, token, dim, 1);
    accepted();
    start(5, (size_t)heads, (size_t)dim); /* q in place */
    io.x = in(0, TN_F32, token, dim, 1);
    io.y = out(0, TN_F32, token, dim, 1);
    accepted();
    start(5, 2, 16); /* even elements to odd ones */
    io.x = in(0, TN_F32, 64, 32, 2);
    io.y = out(1, TN_F32, 64, 32, 2);
    accepted();
    start(8, 1, 16); /* channels first, neighbouring columns */
    io.x = in(0, TN_F32, 2, 0, 16);
    io.y = out(1, TN_F32, 2, 0, 16);
    accepted();
    start(5, (size_t)heads, (size_t)dim); /* one element into the next part */
    io.x = in(0, TN_F32, token, dim, 1);
    io.y = out((size_t)(heads * dim - 1), TN_F32, token, dim, 1);
    refused();
}

/* Inputs may overlap as they like. */
static void inputs_share(void **state)
{
    (void)state;
    start(4, 1, 16);
    io.x = in(0, TN_F32, 3, 0, 1);
    io.weight = in(1, TN_F32, 0, 0, 1);
    io.bias = in(2, TN_F32, 1, 0, 2);
    io.residual = in(0, TN_F32, 0, 0, 0);
    io.y = out(1000, TN_F32, 16, 0, 1);
    accepted();
}

/* ---- random views against a brute-force verdict ---------------------------------------------------- */

static ptrdiff_t byte_of(const ptrdiff_t stride[3], size_t i, size_t j, size_t k)
{
    return 4 * ((ptrdiff_t)i * stride[0] + (ptrdiff_t)j * stride[1] + (ptrdiff_t)k * stride[2]);
}

/* Marks the bytes of a view; true if it meets a mark (of its own, or set before). */
static bool mark(unsigned char *marks, const size_t n[3], ptrdiff_t at, const ptrdiff_t stride[3],
                 unsigned char bit)
{
    bool met = false;
    for (size_t i = 0; i < n[0]; i++)
        for (size_t j = 0; j < n[1]; j++)
            for (size_t k = 0; k < n[2]; k++)
                for (int byte = 0; byte < 4; byte++) {
                    unsigned char *m = marks + at + byte_of(stride, i, j, k) + byte;
                    met |= *m & bit ? true : bit == 2 && (*m & 1);
                    *m |= bit;
                }
    return met;
}

static void random_strides(struct rng *r, const size_t n[3], ptrdiff_t stride[3])
{
    ptrdiff_t next = 1 + (ptrdiff_t)rng_below(r, 3);
    size_t order = rng_below(r, 3);
    for (size_t a = 0; a < 3; a++) { /* nested in some order, sometimes spoilt */
        size_t axis = (a + order) % 3;
        stride[axis] = rng_below(r, 2) ? next : -next;
        next *= (ptrdiff_t)n[axis];
        next += (ptrdiff_t)rng_below(r, 3);
        if (rng_below(r, 6) == 0)
            stride[axis] = (ptrdiff_t)rng_below(r, 9) - 4;
    }
}

/* Bytes from the lowest to one past the highest, relative to element 0. */
static void span(const size_t n[3], const ptrdiff_t stride[3], ptrdiff_t *low, ptrdiff_t *high)
{
    *low = 0;
    *high = 4;
    for (int a = 0; a < 3; a++) {
        ptrdiff_t reach = 4 * (ptrdiff_t)(n[a] - 1) * stride[a];
        *(reach < 0 ? low : high) += reach;
    }
}

static void random_views(void **state)
{
    static unsigned char marks[sizeof memory];
    struct rng r = {77};
    size_t verdicts[2] = {0, 0};
    (void)state;
    for (int trial = 0; trial < 60000; trial++) {
        size_t n[3] = {1 + rng_below(&r, 4), 1 + rng_below(&r, 3), 1 + rng_below(&r, 5)};
        ptrdiff_t sx[3], sy[3], lx, hx, ly, hy;
        bool same_strides = rng_below(&r, 2);
        random_strides(&r, n, sx);
        random_strides(&r, n, sy);
        memcpy(sy, same_strides ? sx : sy, sizeof sy);
        span(n, sx, &lx, &hx);
        span(n, sy, &ly, &hy);
        ptrdiff_t x = 4000 - lx, y = x + (ptrdiff_t)rng_below(&r, (size_t)(hx - lx + 64)) + (lx - hy) / 2;
        y = rng_below(&r, 3) ? y / 4 * 4 : y;
        memset(marks, 0, sizeof marks);
        bool own_x = mark(marks, n, x, sx, 1), met = mark(marks, n, y, sy, 2);
        start(n[0], n[1], n[2]);
        io.x = (tn_in){memory + x, TN_F32, {sx[0], sx[1]}, sx[2]};
        io.y = (tn_out){memory + y, TN_F32, {sy[0], sy[1]}, sy[2]};
        bool exact = x == y && !own_x;
        for (int a = 0; a < 3; a++)
            exact = exact && (sx[a] == sy[a] || n[a] == 1);
        tn_status got = tn_norm_forward(&desc, &io, NULL);
        if (met && !exact && got != TN_ERR_OVERLAP) {
            print_error("rows %zux%zu n %zu, x strides %td %td %td, y %td bytes after x, strides %td %td "
                        "%td: accepted\n",
                        n[0], n[1], n[2], sx[0], sx[1], sx[2], y - x, sy[0], sy[1], sy[2]);
            fail();
        }
        assert_true(got == TN_OK || got == TN_ERR_OVERLAP); /* it may be careful with tangled strides */
        verdicts[got == TN_OK]++;
        for (size_t b = 2000; b < 8000; b++)
            if (memory[b] != copy[b])
                assert_true(got == TN_OK && (marks[b] & 2));
    }
    print_message("  random views: %zu refused, %zu accepted\n", verdicts[0], verdicts[1]);
    assert_true(verdicts[0] > 10000 && verdicts[1] > 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_in_place),
        cmocka_unit_test(inexact_in_place),
        cmocka_unit_test(outputs_over_the_wrong_operand),
        cmocka_unit_test(outputs_over_themselves),
        cmocka_unit_test(interleaved),
        cmocka_unit_test(inputs_share),
        cmocka_unit_test(random_views),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
