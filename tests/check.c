/* check.c - run one case and hold every output against the oracle. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

void check_fail(const struct spec *s, const char *why)
{
    print_error("%s\n  %s\n", why, case_describe(s));
    fail();
    abort(); /* not reached: fail() jumps */
}

static tn_status call(const struct test_case *c, enum oracle_step step)
{
    switch (step) {
    case ORACLE_MOMENTS:
        return tn_norm_moments(&c->spec.d, &c->io, NULL);
    case ORACLE_APPLY:
        return tn_norm_apply(&c->spec.d, &c->io, NULL);
    default:
        return tn_norm_forward(&c->spec.d, &c->io, NULL);
    }
}

tn_out case_output(const struct test_case *c, enum operand op)
{
    switch (op) {
    case OP_Y:
        return c->io.y;
    case OP_SUM:
        return c->io.sum;
    case OP_MEAN:
        return c->io.mean;
    case OP_RSTD:
        return c->io.rstd;
    case OP_SCALE_OUT:
        return c->io.scale_out;
    default:
        return c->io.moment2;
    }
}

size_t case_output_columns(const struct test_case *c, enum operand op)
{
    return op == OP_Y || op == OP_SUM ? c->spec.d.n : c->b[op].n;
}

void check_same_output(const struct test_case *a, const struct test_case *b, enum operand op, const char *why)
{
    tn_out va = case_output(a, op), vb = case_output(b, op);
    size_t where[3];
    char text[160];
    if (!va.data || views_equal(&va, &vb, a->spec.d.rows, case_output_columns(a, op), where))
        return;
    snprintf(text, sizeof text, "%s: bits of output %d differ at row (%zu, %zu), element %zu", why, (int)op,
             where[0], where[1], where[2]);
    check_fail(&a->spec, text);
}

void check_same_outputs(const struct test_case *a, const struct test_case *b, const char *why)
{
    for (int op = OP_Y; op < OP_COUNT; op++)
        check_same_output(a, b, (enum operand)op, why);
}

static void check_isas(const struct test_case *c, enum oracle_step step)
{
    const char *names[8], *now = tn_isa_name();
    size_t count = tn_isa_list(names, 8);
    struct test_case other;
    case_make(&other, &c->spec);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], now) == 0)
            continue;
        case_reset(&other);
        tn_isa_set(names[i]);
        tn_status status = call(&other, step);
        tn_isa_set(now);
        const char *trespass = case_trespass(&other);
        if (status != TN_OK || trespass)
            check_fail(&c->spec, trespass ? trespass : tn_status_text(status));
        check_same_outputs(c, &other, names[i]);
    }
    case_free(&other);
}

static void check_case(const struct spec *s, enum oracle_step step, struct oracle_report *r, bool isas)
{
    struct test_case c;
    case_make(&c, s);
    tn_status status = call(&c, step);
    if (status != TN_OK)
        check_fail(s, tn_status_text(status));
    const char *trespass = case_trespass(&c);
    if (trespass)
        check_fail(s, trespass);
    r->text[0] = 0;
    if (oracle_check(&s->d, &c.before, step, r))
        check_fail(s, r->text);
    if (isas)
        check_isas(&c, step);
    case_free(&c);
}

void check_forward(const struct spec *s, struct oracle_report *r)
{
    check_case(s, ORACLE_FORWARD, r, false);
}

void check_forward_all_isas(const struct spec *s, struct oracle_report *r)
{
    check_case(s, ORACLE_FORWARD, r, true);
}

void check_step(const struct spec *s, enum oracle_step step, struct oracle_report *r)
{
    check_case(s, step, r, step != ORACLE_FORWARD);
}

void report_print(const char *name, const struct oracle_report *r)
{
    print_message("  %-28s %9zu elements, worst %.6g ulp, %.4f of the bound, %zu not nearest\n", name,
                  r->elements, r->worst_ulp, r->worst_part, r->misrounded);
}
