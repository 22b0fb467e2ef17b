/* test_api.c - every status code, with nothing written; sizes, structs of other versions, the machine. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- refusals ------------------------------------------------------------------------------------- */

typedef void change_fn(tn_norm_desc *d, tn_norm_io *io);

/* A valid call with every output that fits, then changed in one way, must give `want` and write nothing. */
static void refused_by(forward_fn *call, const struct spec *s, change_fn *change, tn_status want,
                       const char *what)
{
    struct test_case c;
    case_make(&c, s);
    tn_norm_desc d = c.spec.d;
    tn_norm_io io = c.io;
    assert_int_equal(call(&d, &io, NULL), TN_OK);
    case_reset(&c);
    change(&d, &io);
    tn_status got = call(&d, &io, NULL);
    if (got != want) {
        print_error("%s: got status %d (%s), want %d\n", what, (int)got, tn_status_text(got), (int)want);
        fail();
    }
    for (int op = 0; op < OP_COUNT; op++)
        assert_true(buffer_changed(&c.b[op], true) < 0);
    case_free(&c);
}

static struct spec full_spec(void)
{
    struct spec s = spec_make(TN_LAYER, TN_F32, 3, 8, true, true);
    s.d.gate = TN_GATE_AFTER;
    s.dtype[OP_GATE] = s.dtype[OP_RESIDUAL] = s.dtype[OP_SUM] = TN_F32;
    s.dtype[OP_MEAN] = s.dtype[OP_RSTD] = TN_F32;
    return s;
}

#define CHANGE(name, code)                                                                                   \
    static void name(tn_norm_desc *d, tn_norm_io *io)                                                        \
    {                                                                                                        \
        (void)d;                                                                                             \
        (void)io;                                                                                            \
        code;                                                                                                \
    }

CHANGE(no_x, io->x.data = NULL)
CHANGE(no_gate, io->gate.data = NULL)
CHANGE(no_output, io->y.data = io->sum.data = io->mean.data = io->rstd.data = NULL)
CHANGE(bad_x, io->x.dtype = TN_NONE)
CHANGE(i8_x, io->x.dtype = TN_I8)
CHANGE(unknown_x, io->x.dtype = (tn_dtype)77)
CHANGE(negative_x, io->x.dtype = (tn_dtype)-1)
CHANGE(fp8_weight, io->weight.dtype = TN_E4M3)
CHANGE(fp8_bias, io->bias.dtype = TN_E5M2)
CHANGE(bad_residual, io->residual.dtype = TN_I8)
CHANGE(bad_gate, io->gate.dtype = TN_NONE)
CHANGE(bad_y, io->y.dtype = (tn_dtype)8)
CHANGE(no_y_dtype, io->y.dtype = TN_NONE)
CHANGE(i8_sum, io->sum.dtype = TN_I8)
CHANGE(bf16_mean, io->mean.dtype = TN_BF16)
CHANGE(f16_rstd, io->rstd.dtype = TN_F16)
CHANGE(eps_negative, d->eps = -1e-6)
CHANGE(eps_nan, d->eps = NAN)
CHANGE(eps_nan_allowed, d->eps = NAN; d->flags = TN_NEGATIVE_EPS)
CHANGE(bad_kind, d->kind = (tn_kind)3)
CHANGE(negative_kind, d->kind = (tn_kind)-1)
CHANGE(bad_cast, d->cast = (tn_cast)3)
CHANGE(bad_grade, d->grade = (tn_grade)2)
CHANGE(bad_flags, d->flags = 16)
CHANGE(bad_eps_mode, d->eps_mode = (tn_eps_mode)3)
CHANGE(bad_place, d->gate = (tn_gate)3)
CHANGE(bad_act, d->act = (tn_act)2)
CHANGE(bad_sum, d->sum = (tn_sum)2)
CHANGE(bad_store, d->store = (tn_store)3)
CHANGE(bad_group, d->group = 3)
CHANGE(large_group, d->group = 16)
CHANGE(large_partial, d->partial = 9)
CHANGE(partial_over_group, d->group = 4; d->partial = 5)
CHANGE(negative_divisor, d->divisor = -2)
CHANGE(nan_divisor, d->divisor = NAN)
CHANGE(nan_offset, d->weight_offset = NAN)
CHANGE(many_rows, d->rows[0] = SIZE_MAX / 4)
CHANGE(many_rows_product, d->rows[0] = d->rows[1] = (size_t)1 << 33)
CHANGE(huge_n, d->n = SIZE_MAX / 2)
CHANGE(huge_stride, io->x.stride[0] = PTRDIFF_MAX / 4)
CHANGE(huge_negative_stride, io->y.stride[0] = PTRDIFF_MIN / 2)
CHANGE(huge_inner, io->y.inner = PTRDIFF_MAX / 8)
CHANGE(desc_unset, d->struct_size = 0)
CHANGE(io_unset, io->struct_size = 0)
CHANGE(desc_too_small, d->struct_size = 4)

static void forward_refusals(void **state)
{
    static const struct {
        change_fn *change;
        tn_status want;
        const char *what;
    } all[] = {
#define R(name, want) {name, want, #name}
        R(no_x, TN_ERR_NULL),
        R(no_gate, TN_ERR_NULL),
        R(no_output, TN_ERR_NULL),
        R(bad_x, TN_ERR_DTYPE),
        R(i8_x, TN_ERR_DTYPE),
        R(unknown_x, TN_ERR_DTYPE),
        R(negative_x, TN_ERR_DTYPE),
        R(fp8_weight, TN_ERR_DTYPE),
        R(fp8_bias, TN_ERR_DTYPE),
        R(bad_residual, TN_ERR_DTYPE),
        R(bad_gate, TN_ERR_DTYPE),
        R(bad_y, TN_ERR_DTYPE),
        R(no_y_dtype, TN_ERR_DTYPE),
        R(i8_sum, TN_ERR_DTYPE),
        R(bf16_mean, TN_ERR_DTYPE),
        R(f16_rstd, TN_ERR_DTYPE),
        R(eps_negative, TN_ERR_VALUE),
        R(eps_nan, TN_ERR_VALUE),
        R(eps_nan_allowed, TN_ERR_VALUE),
        R(bad_kind, TN_ERR_VALUE),
        R(negative_kind, TN_ERR_VALUE),
        R(bad_cast, TN_ERR_VALUE),
        R(bad_grade, TN_ERR_VALUE),
        R(bad_store, TN_ERR_VALUE),
        R(bad_flags, TN_ERR_VALUE),
        R(bad_eps_mode, TN_ERR_VALUE),
        R(bad_place, TN_ERR_VALUE),
        R(bad_act, TN_ERR_VALUE),
        R(bad_sum, TN_ERR_VALUE),
        R(bad_group, TN_ERR_VALUE),
        R(large_group, TN_ERR_VALUE),
        R(large_partial, TN_ERR_VALUE),
        R(partial_over_group, TN_ERR_VALUE),
        R(negative_divisor, TN_ERR_VALUE),
        R(nan_divisor, TN_ERR_VALUE),
        R(nan_offset, TN_ERR_VALUE),
        R(many_rows, TN_ERR_SIZE),
        R(many_rows_product, TN_ERR_SIZE),
        R(huge_n, TN_ERR_SIZE),
        R(huge_stride, TN_ERR_SIZE),
        R(huge_negative_stride, TN_ERR_SIZE),
        R(huge_inner, TN_ERR_SIZE),
        R(desc_unset, TN_ERR_STRUCT_SIZE),
        R(io_unset, TN_ERR_STRUCT_SIZE),
        R(desc_too_small, TN_ERR_STRUCT_SIZE),
    };
    struct spec s = full_spec();
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        refused_by(tn_norm_forward, &s, all[i].change, all[i].want, all[i].what);
}

CHANGE(no_moment, io->moment2.data = NULL)
CHANGE(no_mean, io->mean.data = NULL)
CHANGE(bf16_moment, io->moment2.dtype = TN_BF16)
CHANGE(no_rstd_in, io->rstd_in.data = NULL)
CHANGE(no_mean_in, io->mean_in.data = NULL)
CHANGE(f16_rstd_in, io->rstd_in.dtype = TN_F16)
CHANGE(i8_mean_in, io->mean_in.dtype = TN_I8)
CHANGE(no_scale, io->scale_out.data = NULL)
CHANGE(bf16_scale, io->scale_out.dtype = TN_BF16)

static void other_refusals(void **state)
{
    struct spec s = spec_make(TN_LAYER, TN_F32, 2, 8, false, false);
    (void)state;
    s.dtype[OP_SCALE_OUT] = TN_F32;
    s.dtype[OP_Y] = TN_I8;
    refused_by(tn_norm_forward, &s, no_scale, TN_ERR_NULL, "no_scale");
    refused_by(tn_norm_forward, &s, bf16_scale, TN_ERR_DTYPE, "bf16_scale");
    s = spec_make(TN_LAYER, TN_F32, 2, 8, false, false);
    s.dtype[OP_Y] = TN_NONE;
    s.dtype[OP_MEAN] = s.dtype[OP_MOMENT2] = TN_F64;
    refused_by(tn_norm_moments, &s, no_moment, TN_ERR_NULL, "no_moment");
    refused_by(tn_norm_moments, &s, no_mean, TN_ERR_NULL, "no_mean");
    refused_by(tn_norm_moments, &s, no_x, TN_ERR_NULL, "no_x");
    refused_by(tn_norm_moments, &s, bf16_moment, TN_ERR_DTYPE, "bf16_moment");
    s = spec_make(TN_LAYER, TN_F32, 2, 8, false, false);
    s.dtype[OP_MEAN_IN] = s.dtype[OP_RSTD_IN] = TN_F64;
    refused_by(tn_norm_apply, &s, no_rstd_in, TN_ERR_NULL, "no_rstd_in");
    refused_by(tn_norm_apply, &s, no_mean_in, TN_ERR_NULL, "no_mean_in");
    refused_by(tn_norm_apply, &s, f16_rstd_in, TN_ERR_DTYPE, "f16_rstd_in");
    refused_by(tn_norm_apply, &s, i8_mean_in, TN_ERR_DTYPE, "i8_mean_in");
}

static void null_arguments(void **state)
{
    tn_norm_desc d = tn_norm_init(TN_RMS, 1, 4, 1e-6);
    tn_norm_io io = tn_io_init();
    const tn_executor empty = {NULL, NULL};
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    (void)state;
    assert_int_equal(tn_norm_forward(NULL, &io, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_forward(&d, NULL, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_moments(NULL, &io, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_moments(&d, NULL, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_apply(NULL, &io, NULL), TN_ERR_NULL);
    assert_int_equal(tn_norm_apply(&d, NULL, NULL), TN_ERR_NULL);
    assert_true(isnan(tn_norm_rstd(NULL, 1, 1)));
    io.x = tn_in_rows(x, TN_F32, 4);
    io.y = tn_out_rows(y, TN_F32, 4);
    assert_int_equal(tn_norm_forward(&d, &io, &empty), TN_ERR_NULL);
    assert_true(y[0] == 0);
}

static void simple_refusals(void **state)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {0}, zero[8] = {0};
    (void)state;
    assert_int_equal(tn_rmsnorm(TN_F32, 2, 4, NULL, NULL, 1e-6, y), TN_ERR_NULL);
    assert_int_equal(tn_rmsnorm(TN_F32, 2, 4, x, NULL, 1e-6, NULL), TN_ERR_NULL);
    assert_int_equal(tn_layernorm(TN_F32, 2, 4, NULL, NULL, NULL, 1e-6, y), TN_ERR_NULL);
    assert_int_equal(tn_layernorm(TN_F32, 2, 4, x, NULL, NULL, 1e-6, NULL), TN_ERR_NULL);
    assert_int_equal(tn_rmsnorm(TN_I8, 2, 4, x, NULL, 1e-6, y), TN_ERR_DTYPE);
    assert_int_equal(tn_layernorm(TN_NONE, 2, 4, x, NULL, NULL, 1e-6, y), TN_ERR_DTYPE);
    assert_int_equal(tn_rmsnorm((tn_dtype)99, 2, 4, x, NULL, 1e-6, y), TN_ERR_DTYPE);
    assert_int_equal(tn_rmsnorm(TN_F32, 2, 4, x, NULL, -1, y), TN_ERR_VALUE);
    assert_int_equal(tn_layernorm(TN_F32, 2, 4, x, NULL, NULL, NAN, y), TN_ERR_VALUE);
    assert_int_equal(tn_rmsnorm(TN_F32, SIZE_MAX, 4, x, NULL, 1e-6, y), TN_ERR_SIZE);
    assert_int_equal(tn_layernorm(TN_F32, 2, SIZE_MAX, x, NULL, NULL, 1e-6, y), TN_ERR_SIZE);
    assert_int_equal(tn_rmsnorm(TN_F32, 1, 4, x, NULL, 1e-6, x + 1), TN_ERR_OVERLAP);
    assert_int_equal(tn_rmsnorm(TN_F32, 1, 4, x, y, 1e-6, y), TN_ERR_OVERLAP);
    assert_memory_equal(y, zero, sizeof y);
    assert_true(x[1] == 2);
}

/* eps < 0 on request: NaN where v + eps < 0, the formula elsewhere. */
static void negative_eps(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int dtype = TN_F64; dtype <= TN_F16; dtype++)
        for (int kind = 0; kind < 3; kind++) {
            struct spec s = spec_make((tn_kind)kind, (tn_dtype)dtype, 2, 50, true, false);
            s.d.flags = TN_NEGATIVE_EPS;
            s.d.eps = -1e-3;
            check_forward_all_isas(&s, &r);
            s.d.eps = -1e6;
            check_forward_all_isas(&s, &r);
        }
}

/* ---- structs of older and newer callers ----------------------------------------------------------- */

static void older_caller(void **state)
{
    struct {
        tn_norm_desc d;
    } desc;
    tn_norm_io io = tn_io_init();
    float x[4] = {1, 2, 3, 4}, y[4], want[4];
    (void)state;
    assert_int_equal(tn_rmsnorm(TN_F32, 1, 4, x, NULL, 1e-6, want), TN_OK);
    io.x = tn_in_rows(x, TN_F32, 4);
    io.y = tn_out_rows(y, TN_F32, 4);
    /* all fields from eps_mode, and from `sum`, did not exist yet: what lies there is not the caller's word */
    memset(&desc, 0xff, sizeof desc);
    const tn_norm_desc d = tn_norm_init(TN_RMS, 1, 4, 1e-6);
    memcpy(&desc, &d, offsetof(tn_norm_desc, eps_mode));
    desc.d.struct_size = offsetof(tn_norm_desc, eps_mode);
    memset((char *)&io + offsetof(tn_norm_io, sum), 0xff, sizeof io - offsetof(tn_norm_io, sum));
    io.struct_size = offsetof(tn_norm_io, sum);
    assert_int_equal(tn_norm_forward(&desc.d, &io, NULL), TN_OK);
    assert_memory_equal(y, want, sizeof y);
}

static void newer_caller(void **state)
{
    struct {
        tn_norm_desc d;
        char more[24];
    } desc = {tn_norm_init(TN_RMS, 1, 4, 1e-6), {0}};
    struct {
        tn_norm_io io;
        char more[40];
    } io = {tn_io_init(), {0}};
    float x[4] = {1, 2, 3, 4}, y[4] = {0}, want[4];
    (void)state;
    desc.d.struct_size = sizeof desc;
    io.io.struct_size = sizeof io;
    io.io.x = tn_in_rows(x, TN_F32, 4);
    io.io.y = tn_out_rows(y, TN_F32, 4);
    desc.more[23] = 1;
    assert_int_equal(tn_norm_forward(&desc.d, &io.io, NULL), TN_ERR_STRUCT_SIZE);
    desc.more[23] = 0;
    io.more[39] = 1;
    assert_int_equal(tn_norm_forward(&desc.d, &io.io, NULL), TN_ERR_STRUCT_SIZE);
    io.more[39] = 0;
    assert_true(y[0] == 0);
    assert_int_equal(tn_norm_forward(&desc.d, &io.io, NULL), TN_OK);
    assert_int_equal(tn_rmsnorm(TN_F32, 1, 4, x, NULL, 1e-6, want), TN_OK);
    assert_memory_equal(y, want, sizeof y);
}

/* ---- sizes ---------------------------------------------------------------------------------------- */

static void nothing_to_do(void **state)
{
    (void)state;
    assert_int_equal(tn_rmsnorm(TN_F32, 0, 4, NULL, NULL, 1e-6, NULL), TN_OK);
    assert_int_equal(tn_layernorm(TN_BF16, 0, 4, NULL, NULL, NULL, 1e-6, NULL), TN_OK);
    assert_int_equal(tn_layernorm(TN_F64, 5, 0, NULL, NULL, NULL, 1e-6, NULL), TN_OK);
    assert_int_equal(tn_rmsnorm(TN_F32, 0, 4, NULL, NULL, -1, NULL), TN_ERR_VALUE);
    for (int i = 0; i < 3; i++) {
        struct spec s = full_spec();
        struct test_case c;
        case_make(&c, &s);
        s.d.rows[0] = i == 0 ? 0 : 3;
        s.d.rows[1] = i == 1 ? 0 : 1;
        s.d.n = i == 2 ? 0 : 8;
        assert_int_equal(tn_norm_forward(&s.d, &c.io, NULL), TN_OK);
        for (int op = 0; op < OP_COUNT; op++)
            assert_true(buffer_changed(&c.b[op], true) < 0);
        case_free(&c);
    }
}

static void one_column(void **state)
{
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 4 * 3 * 2; i++) {
        struct spec s = spec_make((tn_kind)(i / 4 % 3), (tn_dtype)(TN_F64 + i % 4), 5, 1, i / 12, i / 12);
        check_forward_all_isas(&s, &r);
    }
}

/* Statistics, or the sum, without y. */
static void outputs_alone(void **state)
{
    static const enum operand wanted[] = {OP_MEAN, OP_RSTD, OP_SUM};
    struct oracle_report r = {0};
    (void)state;
    for (int i = 0; i < 3 * 4 * 3; i++) {
        tn_dtype dtype = (tn_dtype)(TN_F64 + i / 3 % 4);
        struct spec s = spec_make((tn_kind)(i / 12), dtype, 3, 50, true, false);
        s.dtype[OP_Y] = TN_NONE;
        s.dtype[wanted[i % 3]] = wanted[i % 3] == OP_SUM ? dtype : TN_F32;
        s.dtype[OP_RESIDUAL] = wanted[i % 3] == OP_SUM ? dtype : TN_NONE;
        check_forward_all_isas(&s, &r);
    }
}

/* ---- the build and the machine -------------------------------------------------------------------- */

static void instruction_sets(void **state)
{
    const char *names[8] = {0}, *first = tn_isa_name();
    size_t count = tn_isa_list(names, 8);
    (void)state;
    assert_in_range(count, 1, 8);
    assert_string_equal(names[0], "scalar");
    assert_int_equal(tn_isa_list(NULL, 0), count);
    const char *one[2] = {"untouched", "untouched"};
    assert_int_equal(tn_isa_list(one, 1), count);
    assert_string_equal(one[0], "scalar");
    assert_string_equal(one[1], "untouched");
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(tn_isa_set(names[i]), TN_OK);
        assert_string_equal(tn_isa_name(), names[i]);
    }
    assert_int_equal(tn_isa_set("sse9"), TN_ERR_ISA);
    assert_int_equal(tn_isa_set(""), TN_ERR_ISA);
    assert_true(tn_isa_set(NULL) != TN_OK);
    assert_string_equal(tn_isa_name(), names[count - 1]);
    assert_int_equal(tn_isa_set(first), TN_OK);
    if (!getenv("TN_ISA"))
        assert_string_equal(first, names[count - 1]); /* the best one by itself */
}

static void texts_and_sizes(void **state)
{
    char version[32];
    (void)state;
    snprintf(version, sizeof version, "%d.%d.%d", TN_VERSION_MAJOR, TN_VERSION_MINOR, TN_VERSION_PATCH);
    assert_string_equal(tn_version(), version);
    for (int i = 0; i <= TN_ERR_MEMORY; i++) {
        assert_non_null(tn_status_text((tn_status)i));
        assert_true(strlen(tn_status_text((tn_status)i)) > 1);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(tn_status_text((tn_status)i), tn_status_text((tn_status)j));
    }
    assert_non_null(tn_status_text((tn_status)-5));
    assert_non_null(tn_status_text((tn_status)1000));
    for (int dtype = TN_F64; dtype <= TN_E5M2; dtype++)
        assert_int_equal(tn_dtype_size((tn_dtype)dtype), dtype_info((tn_dtype)dtype)->size);
    assert_int_equal(tn_dtype_size(TN_NONE), 0);
    assert_int_equal(tn_dtype_size((tn_dtype)8), 0);
    assert_int_equal(tn_dtype_size((tn_dtype)-1), 0);
}

static void defaults(void **state)
{
    tn_norm_desc d = TN_NORM_DESC_INIT, e = tn_norm_init(TN_L2, 7, 9, 0.5);
    tn_norm_io io = tn_io_init();
    (void)state;
    assert_int_equal(d.struct_size, sizeof d);
    assert_true(d.eps == 1e-6 && d.rows[1] == 1 && d.n == 0 && d.kind == TN_RMS && d.sum == TN_SUM_ROUNDED);
    assert_true(e.kind == TN_L2 && e.rows[0] == 7 && e.rows[1] == 1 && e.n == 9 && e.eps == 0.5 &&
                e.flags == 0);
    assert_int_equal(io.struct_size, sizeof io);
    assert_null(io.x.data);
    assert_null(io.moment2.data);
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
        cmocka_unit_test(forward_refusals), cmocka_unit_test(other_refusals),
        cmocka_unit_test(null_arguments),   cmocka_unit_test(simple_refusals),
        cmocka_unit_test(negative_eps),     cmocka_unit_test(older_caller),
        cmocka_unit_test(newer_caller),     cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(one_column),       cmocka_unit_test(outputs_alone),
        cmocka_unit_test(instruction_sets), cmocka_unit_test(texts_and_sizes),
        cmocka_unit_test(defaults),
    };
    if (isa_unusable())
        return 77;
    return cmocka_run_group_tests(tests, NULL, finish);
}
