/* grad_check.c - run one backward case and hold every gradient against the oracle. */
#include "grad_check.h"

#include <stdlib.h>
#include <string.h>

void grad_fail(const struct grad_spec *s, const char *why)
{
    print_error("%s\n  %s\n", why, grad_case_describe(s));
    fail();
    abort(); /* not reached: fail() jumps */
}

void grad_run(struct grad_case *c, const tn_executor *executor)
{
    tn_status status = grad_case_run(c, executor);
    const char *trespass = grad_case_trespass(c);
    if (status != TN_OK || trespass)
        grad_fail(&c->spec, trespass ? trespass : tn_status_text(status));
}

void grad_check_same(const struct grad_case *a, const struct grad_case *b, const char *why)
{
    size_t where[3];
    char text[200];
    const char *output = grad_case_differ(a, b, where);
    if (!output)
        return;
    snprintf(text, sizeof text, "%s: bits of %s differ at row (%zu, %zu), element %zu", why, output, where[0],
             where[1], where[2]);
    grad_fail(&a->spec, text);
}

static void check_isas(const struct grad_case *c)
{
    const char *names[8], *now = tn_isa_name();
    size_t count = tn_isa_list(names, 8);
    struct grad_case other;
    grad_case_make(&other, &c->spec);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], now) == 0)
            continue;
        grad_case_reset(&other);
        tn_isa_set(names[i]);
        grad_run(&other, NULL);
        tn_isa_set(now);
        grad_check_same(c, &other, names[i]);
    }
    grad_case_free(&other);
}

static void check(const struct grad_spec *s, struct grad_report *r, bool isas)
{
    struct grad_case c;
    grad_case_make(&c, s);
    grad_run(&c, NULL);
    tn_norm_grads after = grad_case_after(&c);
    r->text[0] = 0;
    if (grad_oracle_check(&s->f.d, &c.io_before, &after, &c.before, r))
        grad_fail(s, r->text);
    if (isas)
        check_isas(&c);
    grad_case_free(&c);
}

void grad_check(const struct grad_spec *s, struct grad_report *r)
{
    check(s, r, false);
}

void grad_check_all_isas(const struct grad_spec *s, struct grad_report *r)
{
    check(s, r, true);
}

void grad_report_print(const char *name, const struct grad_report *r)
{
    print_message("  %s\n", name);
    for (int op = GR_DX; op < GR_COUNT; op++)
        for (int dtype = TN_F64; dtype <= TN_F16; dtype++) {
            const struct grad_figures *f = &r->of[op][dtype];
            if (f->elements)
                print_message("    %-10s %-4s %9zu elements, %8.6f ulp, %6.3f units, %.4f of the bound\n",
                              grad_operand_name((enum grad_operand)op), dtype_info((tn_dtype)dtype)->name,
                              f->elements, f->worst_ulp, f->worst_units, f->worst_part);
        }
}
