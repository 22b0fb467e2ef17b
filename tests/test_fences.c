/* test_fences.c - nothing outside of an operand is read or written: every operand ends, or begins, at a page that
 * may not be touched. */
#define _GNU_SOURCE /* mmap */
#include "check.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 32

struct fence {
    unsigned char *data; /* PAGES pages between two forbidden ones */
    size_t bytes;
};

static struct fence fences[OP_COUNT];

static int make_fences(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        unsigned char *p = mmap(NULL, (PAGES + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + page, PAGES * page, PROT_READ | PROT_WRITE))
            return -1;
        fences[op].data = p + page;
        fences[op].bytes = PAGES * page;
    }
    return 0;
}

/* Copies the elements of a buffer against the upper or lower fence; the address of its element (0, 0, 0), or NULL if
 * it does not fit. */
static unsigned char *against_fence(const struct buffer *b, struct fence *f, bool upper)
{
    size_t low = 0, high = b->raw_bytes;
    while (low < high && !b->owned[low])
        low++;
    while (high > low && !b->owned[high - 1])
        high--;
    if (high - low > f->bytes)
        return NULL;
    unsigned char *to = upper ? f->data + f->bytes - (high - low) : f->data;
    memcpy(to, b->raw + low, high - low);
    return to + (b->first - (ptrdiff_t)low);
}

/* Runs the case with all operands against fences; the outputs must have the bits of an ordinary run. */
static bool fenced(const struct spec *s, bool upper)
{
    struct test_case plain, other;
    case_make(&plain, s);
    case_make(&other, s);
    tn_in *const inputs[] = {&other.io.x,         &other.io.residual, &other.io.gate,    &other.io.weight,
                             &other.io.bias,      &other.io.scale_in, &other.io.mean_in, &other.io.rstd_in,
                             &other.io.mod_scale, &other.io.mod_shift};
    tn_out *const outputs[] = {&other.io.y,    &other.io.sum,       &other.io.mean,
                               &other.io.rstd, &other.io.scale_out, &other.io.moment2};
    unsigned char *at[OP_COUNT] = {0};
    bool fits = true;
    for (int op = 0; op < OP_COUNT; op++)
        if (other.b[op].dtype != TN_NONE) {
            at[op] = against_fence(&other.b[op], &fences[op], upper);
            fits = fits && at[op];
        }
    for (int op = 0; fits && op < OP_COUNT; op++) {
        if (op < OP_Y)
            inputs[op]->data = at[op];
        else
            outputs[op - OP_Y]->data = at[op];
    }
    if (fits && s->y_over != OP_Y)
        other.io.y.data = at[s->y_over];
    if (fits && s->sum_over != OP_SUM)
        other.io.sum.data = at[s->sum_over];
    if (fits) {
        assert_int_equal(tn_norm_forward(&s->d, &plain.io, NULL), TN_OK);
        assert_int_equal(tn_norm_forward(&s->d, &other.io, NULL), TN_OK);
        check_same_outputs(&plain, &other, "against a fence");
    }
    case_free(&plain);
    case_free(&other);
    return fits;
}

/* Lengths around every block size, the dtypes with kernels of their own. */
static void common_cases(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 140; n++)
        for (size_t i = 0; i < 4 * 2 * 3; i++) {
            struct spec s = spec_make((tn_kind)(i / 4 % 2), (tn_dtype)(TN_F64 + i % 4), 1 + n % 3, n,
                                      i / 8 > 0, i / 8 > 1);
            s.dtype[OP_WEIGHT] = i / 8 && n % 3 == 0 ? TN_F32 : s.dtype[OP_WEIGHT];
            s.dtype[OP_BIAS] = i / 8 > 1 ? s.dtype[OP_WEIGHT] : TN_NONE;
            s.d.grade = n % 5 == 0 ? TN_FAST : TN_EXACT;
            s.d.weight_offset = n % 7 == 0 ? 1 : 0;
            s.d.cast = n % 4 == 0 ? TN_CAST_BEFORE_SCALE : TN_CAST_ONCE;
            assert_true(fenced(&s, true));
            assert_true(fenced(&s, false));
        }
}

static void random_cases(void **state)
{
    struct rng r = {31337};
    size_t done = 0;
    (void)state;
    for (int i = 0; i < 3000; i++) {
        struct spec s = spec_random(&r, 130);
        done += fenced(&s, i % 2);
    }
    assert_in_range(done, 2500, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(common_cases), cmocka_unit_test(random_cases)};
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, make_fences, NULL);
}
