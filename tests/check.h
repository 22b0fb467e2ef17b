/* check.h - run one case and hold every output against the oracle (cmocka). */
#ifndef TN_TEST_CHECK_H
#define TN_TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "case.h"
#include "oracle.h"

/* Fails the cmocka test with the case's description. */
void check_fail(const struct spec *s, const char *why) __attribute__((noreturn));
/* tn_norm_forward on the case: status, guards, const inputs, every output against the oracle. */
void check_forward(const struct spec *s, struct oracle_report *r);
/* The same, and all instruction sets must give the same bits. */
void check_forward_all_isas(const struct spec *s, struct oracle_report *r);
void check_step(const struct spec *s, enum oracle_step step, struct oracle_report *r);
/* Every output of two cases with the same shape: the same bits. */
void check_same_outputs(const struct test_case *a, const struct test_case *b, const char *why);
void check_same_output(const struct test_case *a, const struct test_case *b, enum operand op,
                       const char *why);
tn_out case_output(const struct test_case *c, enum operand op);
size_t case_output_columns(const struct test_case *c, enum operand op);
void report_print(const char *name, const struct oracle_report *r);

#endif
