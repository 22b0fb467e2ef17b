/* grad_check.h - run one backward case and hold every gradient against the oracle (cmocka). */
#ifndef TN_TEST_GRAD_CHECK_H
#define TN_TEST_GRAD_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "grad_case.h"

void grad_fail(const struct grad_spec *s, const char *why) __attribute__((noreturn));
/* Status, guards, const inputs, every output against the oracle. */
void grad_check(const struct grad_spec *s, struct grad_report *r);
/* The same, and all instruction sets give the same bits. */
void grad_check_all_isas(const struct grad_spec *s, struct grad_report *r);
void grad_report_print(const char *name, const struct grad_report *r);
/* Two calls of which every output that both have must have the same bits. */
void grad_check_same(const struct grad_case *a, const struct grad_case *b, const char *why);
/* Runs a case and checks status and guards. */
void grad_run(struct grad_case *c, const tn_executor *executor);

#endif
