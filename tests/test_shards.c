/* test_shards.c - tn_norm_moments, tn_moments_merge, tn_norm_rstd, tn_norm_apply: whole rows and rows in parts. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16}; /* f64 rows have statistics in two parts */

/* Moments, rstd and apply on whole rows, y into c's own y. */
static void by_steps(struct test_case *c)
{
    const tn_norm_desc *d = &c->spec.d;
    size_t rows = d->rows[0] * d->rows[1], groups = d->group ? d->n / d->group : 1;
    double *m2 = must_malloc(rows * groups * sizeof *m2), *mean = must_malloc(rows * groups * sizeof *mean);
    const ptrdiff_t s0 = (ptrdiff_t)(d->rows[1] * groups), s1 = (ptrdiff_t)groups;
    double count = (double)(d->partial ? d->partial : d->n / groups);
    tn_norm_io io = c->io;
    io.y.data = NULL;
    io.moment2 = (tn_out){m2, TN_F64, {s0, s1}, 1};
    io.mean = (tn_out){mean, TN_F64, {s0, s1}, 1};
    assert_int_equal(tn_norm_moments(d, &io, NULL), TN_OK);
    for (size_t i = 0; i < rows * groups; i++)
        m2[i] = tn_norm_rstd(d, m2[i], count);
    io = c->io;
    io.rstd_in = (tn_in){m2, TN_F64, {s0, s1}, 1};
    if (d->kind == TN_LAYER)
        io.mean_in = (tn_in){mean, TN_F64, {s0, s1}, 1};
    assert_int_equal(tn_norm_apply(d, &io, NULL), TN_OK);
    free(m2);
    free(mean);
}

static struct spec step_spec(size_t i)
{
    static const double eps[] = {1e-6, 0, 1e-5, 0.5};
    struct spec s =
        spec_make(i % 2 ? TN_RMS : TN_L2, floats[i / 2 % 3], 3, 1 + i * 7 % 300, i % 3 != 0, i % 7 == 0);
    s.seed = i;
    s.gen[OP_X] = (enum gen)(i / 8 % GEN_FINITE_COUNT);
    s.d.eps = eps[i / 3 % 4];
    s.d.eps_mode = (tn_eps_mode)(i / 5 % 3);
    s.d.grade = i % 11 == 0 ? TN_FAST : TN_EXACT;
    s.d.cast = (tn_cast)(i / 4 % 3);
    if (i % 6 == 0) {
        s.d.n *= 2;
        s.d.group = s.d.n / 2;
    }
    s.d.divisor = i % 10 == 3 && s.d.kind == TN_RMS ? (double)s.d.n + 1 : 0;
    s.d.partial = i % 9 == 0 ? 1 + s.d.n / 3 % (s.d.group ? s.d.group : s.d.n) : 0;
    if (i % 12 < 6)
        s.dtype[OP_Y] = TN_F32;
    return s;
}

/* The forward adds their squares in f32 by fours. */
static bool is_16bit(const struct spec *s)
{
    return s->dtype[OP_X] != TN_F32 && s->dtype[OP_Y] != TN_F32;
}

static void whole_rows_same_bits(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (size_t i = 0; i < 1500; i++) {
        struct spec s = step_spec(i);
        struct test_case a, b;
        case_make(&a, &s);
        case_make(&b, &s);
        assert_int_equal(tn_norm_forward(&s.d, &a.io, NULL), TN_OK);
        by_steps(&b);
        assert_null(case_trespass(&b));
        if (!is_16bit(&s))
            check_same_output(&a, &b, OP_Y, "moments + rstd + apply");
        else if (oracle_check(&s.d, &b.before, ORACLE_FORWARD, &r))
            check_fail(&s, r.text);
        case_free(&a);
        case_free(&b);
    }
}

static void layer_in_steps(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (size_t i = 0; i < 200; i++) {
        struct spec s = spec_make(TN_LAYER, floats[i % 3], 2, 1 + i * 5, true, i % 3 == 0);
        struct test_case c;
        s.gen[OP_X] = i % 2 ? GEN_NORMAL : GEN_OUTLIER; /* one f64 holds their means well enough */
        case_make(&c, &s);
        by_steps(&c);
        r.text[0] = 0;
        if (oracle_check(&s.d, &c.before, ORACLE_FORWARD, &r))
            check_fail(&s, r.text);
        case_free(&c);
    }
    report_print("layer norm in steps", &r);
}

struct shard {
    size_t from, n;
    double mean, moment2;
};

static void shard_moments(struct test_case *c, struct shard *part)
{
    tn_norm_desc d = c->spec.d;
    tn_norm_io io = tn_io_init();
    d.n = part->n;
    io.x = c->io.x;
    io.x.data = (const char *)io.x.data + part->from * dtype_info(io.x.dtype)->size;
    io.moment2 = tn_out_rows(&part->moment2, TN_F64, 1);
    if (d.kind == TN_LAYER)
        io.mean = tn_out_rows(&part->mean, TN_F64, 1);
    assert_int_equal(tn_norm_moments(&d, &io, NULL), TN_OK);
}

static void shard_apply(struct test_case *c, const struct shard *part, const double *mean, const double *rstd)
{
    size_t size = dtype_info(c->io.x.dtype)->size;
    tn_norm_desc d = c->spec.d;
    tn_norm_io io = c->io;
    d.n = part->n;
    io.x.data = (const char *)io.x.data + part->from * size;
    io.y.data = (char *)io.y.data + part->from * size;
    io.weight.data = (const char *)io.weight.data + part->from * size;
    io.rstd_in = tn_in_rows(rstd, TN_F64, 1);
    if (d.kind == TN_LAYER)
        io.mean_in = tn_in_rows(mean, TN_F64, 1);
    assert_int_equal(tn_norm_apply(&d, &io, NULL), TN_OK);
}

/* One row over three owners; the oracle judges it as one row. */
static void three_owners(const struct spec *s, struct oracle_report *r)
{
    struct test_case c;
    size_t n = s->d.n;
    struct shard part[3] = {{0, n / 2, 0, 0}, {n / 2, n / 3, 0, 0}, {n / 2 + n / 3, n - n / 2 - n / 3, 0, 0}};
    case_make(&c, s);
    double count = 0, mean = 0, moment2 = 0;
    for (int i = 0; i < 3; i++) {
        shard_moments(&c, &part[i]);
        if (s->d.kind == TN_LAYER)
            tn_moments_merge(&count, &mean, &moment2, (double)part[i].n, part[i].mean, part[i].moment2);
        else
            moment2 += part[i].moment2;
    }
    if (s->d.kind == TN_LAYER)
        assert_true(count == (double)n);
    double rstd = tn_norm_rstd(&s->d, moment2, (double)n);
    for (int i = 0; i < 3; i++)
        shard_apply(&c, &part[i], &mean, &rstd);
    assert_null(case_trespass(&c));
    if (oracle_check(&s->d, &c.before, ORACLE_FORWARD, r))
        check_fail(s, r->text);
    case_free(&c);
}

static void sharded_rows(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (size_t i = 0; i < 400; i++) {
        struct spec s = spec_make((tn_kind)(i % 3), floats[i / 3 % 3], 1, 6 + i * 5, true, false);
        s.gen[OP_X] = i % 2 ? GEN_NORMAL : GEN_LOGNORMAL;
        three_owners(&s, &r);
    }
    report_print("rows over three owners", &r);
}

static void close_to(double got, double want)
{
    assert_true(fabs(got - want) <= 1e-15 * fabs(want));
}

static void merging(void **state)
{
    double count = 0, mean = 0, moment2 = 0;
    (void)state;
    tn_moments_merge(&count, &mean, &moment2, 0, 0, 0); /* nothing and nothing */
    assert_true(count == 0 && mean == 0 && moment2 == 0);
    tn_moments_merge(&count, &mean, &moment2, 2, 1.5, 0.5); /* 1, 2 */
    assert_true(count == 2 && mean == 1.5 && moment2 == 0.5);
    tn_moments_merge(&count, &mean, &moment2, 0, 99, 0); /* an empty part changes nothing */
    assert_true(count == 2 && mean == 1.5 && moment2 == 0.5);
    tn_moments_merge(&count, &mean, &moment2, 3, 4, 2); /* 3, 4, 5 */
    assert_true(count == 5);
    close_to(mean, 3);
    close_to(moment2, 10);
}

static void rstd_formula(void **state)
{
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 4, 0.25);
    (void)state;
    close_to(tn_norm_rstd(&d, 8, 4), 1 / sqrt(2.25));
    d.eps_mode = TN_EPS_OUTSIDE;
    close_to(tn_norm_rstd(&d, 8, 2), 1 / 2.25);
    d.eps_mode = TN_EPS_CLAMP;
    close_to(tn_norm_rstd(&d, 8, 2), 0.5);
    close_to(tn_norm_rstd(&d, 1e-9, 2), 4);
    d.eps_mode = TN_EPS_INSIDE;
    d.divisor = 32;
    close_to(tn_norm_rstd(&d, 8, 4), 1 / sqrt(0.5));
    d.divisor = 0;
    d.kind = TN_L2;
    close_to(tn_norm_rstd(&d, 8, 4), 1 / sqrt(8.25));
    d.eps = 0;
    assert_true(tn_norm_rstd(&d, 0, 4) == 0); /* the policy for zero rows */
    d.struct_size = 0;
    assert_true(isnan(tn_norm_rstd(&d, 1, 1)));
}

static int finish(void **state)
{
    (void)state;
    oracle_free();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_rows_same_bits), cmocka_unit_test(layer_in_steps),
        cmocka_unit_test(sharded_rows),         cmocka_unit_test(merging),
        cmocka_unit_test(rstd_formula),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
