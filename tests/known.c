/* known.c - helpers of the tests of public bug reports. */
#include "known.h"

#include <math.h>

/* One row through spec `s`, with x (and gate, weight, bias where present) given; y comes back as doubles. */
void run_row(struct spec *s, const double *x, const double *weight, const double *bias, double *y)
{
    struct test_case c;
    struct oracle_report r = {0};
    case_make(&c, s);
    for (size_t k = 0; k < s->d.n; k++) {
        buffer_put(&c.b[OP_X], 0, 0, k, x[k]);
        if (weight)
            buffer_put(&c.b[OP_WEIGHT], 0, 0, k, weight[k]);
        if (bias)
            buffer_put(&c.b[OP_BIAS], 0, 0, k, bias[k]);
    }
    for (int op = 0; op < OP_Y; op++)
        buffer_snapshot(&c.b[op]);
    assert_int_equal(tn_norm_forward(&s->d, &c.io, NULL), TN_OK);
    assert_null(case_trespass(&c));
    if (oracle_check(&s->d, &c.before, ORACLE_FORWARD, &r))
        check_fail(s, r.text);
    for (size_t k = 0; k < s->d.n; k++)
        y[k] = buffer_get(&c.b[OP_Y], 0, 0, k);
    case_free(&c);
}

void norm(tn_kind kind, tn_dtype dtype, size_t n, double eps, const double *x, double *y)
{
    struct spec s = spec_make(kind, dtype, 1, n, false, false);
    s.d.eps = eps;
    run_row(&s, x, NULL, NULL, y);
}

void fill_row(double *x, size_t n, double v)
{
    for (size_t k = 0; k < n; k++)
        x[k] = v;
}

void assert_all(const double *y, size_t n, double want)
{
    for (size_t k = 0; k < n; k++)
        if (y[k] != want) {
            print_error("element %zu: got %.17g, want %.17g\n", k, y[k], want);
            fail();
        }
}

void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        print_error("got %.17g, want %.17g\n", got, want);
        fail();
    }
}
