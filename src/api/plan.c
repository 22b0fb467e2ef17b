/* plan.c - argument checks, and the choice of arithmetic that the promises of docs/numerics.md rest on. */
#include "api/plan.h"

#include <math.h>

#include "api/overlap.h"
#include "base/half.h"

tn_status tn_copy_struct(void *to, size_t size, const void *from)
{
    size_t given;
    if (!from)
        return TN_ERR_NULL;
    memcpy(&given, from, sizeof given);
    if (given < sizeof given)
        return TN_ERR_STRUCT_SIZE;
    for (size_t i = size; i < given; i++) /* a newer caller: fine as long as it asks for nothing new */
        if (((const char *)from)[i] != 0)
            return TN_ERR_STRUCT_SIZE;
    memset(to, 0, size);
    memcpy(to, from, given < size ? given : size);
    return TN_OK;
}

static bool in_range(int value, int last)
{
    return value >= 0 && value <= last;
}

tn_status tn_plan_desc(const tn_norm_desc *d, struct tn_plan *p)
{
    const unsigned all_flags = TN_ROUND_RSTD | TN_ROUND_OFFSET | TN_ROUND_PRODUCT | TN_NEGATIVE_EPS;
    if (!in_range((int)d->kind, TN_L2) || !in_range((int)d->cast, TN_CAST_T5) || !in_range((int)d->grade, TN_FAST) ||
        !in_range((int)d->eps_mode, TN_EPS_CLAMP) || !in_range((int)d->gate, TN_GATE_AFTER) ||
        !in_range((int)d->act, TN_SIGMOID) || !in_range((int)d->sum, TN_SUM_EXACT) || (d->flags & ~all_flags))
        return TN_ERR_VALUE;
    if (d->eps != d->eps || (d->eps < 0 && !(d->flags & TN_NEGATIVE_EPS)))
        return TN_ERR_VALUE;
    if (!(d->divisor >= 0 && d->divisor - d->divisor == 0.0) || !(d->weight_offset - d->weight_offset == 0.0))
        return TN_ERR_VALUE;
    if (d->group && d->n % d->group)
        return TN_ERR_VALUE;
    size_t rows, elements, bytes;
    if (!tn_size_mul(d->rows[0], d->rows[1], &rows) || !tn_size_mul(rows, d->n, &elements) ||
        !tn_size_mul(elements, 8, &bytes) || bytes > PTRDIFF_MAX || rows > PTRDIFF_MAX)
        return TN_ERR_SIZE;
    *p = (struct tn_plan){.rows = {d->rows[0], d->rows[1]}, .eps = d->eps, .eps_mode = d->eps_mode};
    p->group = d->group ? d->group : d->n;
    p->groups = p->group ? d->n / p->group : 0;
    p->counted = d->partial ? d->partial : p->group;
    if (p->counted > p->group)
        return TN_ERR_VALUE;
    p->count = d->divisor > 0 ? d->divisor : d->kind == TN_L2 ? 1.0 : (double)p->counted;
    p->centred = d->kind == TN_LAYER;
    p->gate_place = d->gate;
    p->act = d->act;
    p->offset = d->weight_offset;
    return TN_OK;
}

/* ---- operands ---- */

enum allowed { FLOATS, STATISTIC, ANY };

static bool dtype_allowed(tn_dtype dt, enum allowed allowed)
{
    if (allowed == STATISTIC)
        return dt == TN_F64 || dt == TN_F32;
    return in_range((int)dt - TN_F64, (allowed == ANY ? TN_E5M2 : TN_F16) - TN_F64);
}

/* Byte strides; absent operands stay all zero. */
static tn_status set_operand(struct tn_operand *o, const void *data, tn_dtype dt, const ptrdiff_t stride[2],
                             ptrdiff_t inner, enum allowed allowed)
{
    if (!data)
        return TN_OK;
    if (!dtype_allowed(dt, allowed))
        return TN_ERR_DTYPE;
    ptrdiff_t size = (ptrdiff_t)tn_element_size(dt);
    o->data = (char *)(uintptr_t)data;
    o->dtype = dt;
    if (__builtin_mul_overflow(stride[0], size, &o->stride[0]) || __builtin_mul_overflow(stride[1], size, &o->stride[1]) ||
        __builtin_mul_overflow(inner, size, &o->inner))
        return TN_ERR_SIZE;
    return TN_OK;
}

#define SET(field, allowed)                                                                                  \
    if (status == TN_OK)                                                                                     \
    status = set_operand(&p->field, io->field.data, io->field.dtype, io->field.stride, io->field.inner, allowed)

static tn_status set_operands(struct tn_plan *p, const tn_norm_io *io)
{
    tn_status status = TN_OK;
    SET(x, FLOATS);
    SET(residual, FLOATS);
    SET(gate, FLOATS);
    SET(weight, FLOATS);
    SET(bias, FLOATS);
    SET(y, ANY);
    SET(sum, FLOATS);
    SET(mean, STATISTIC);
    SET(rstd, STATISTIC);
    SET(scale_in, STATISTIC);
    SET(scale_out, STATISTIC);
    SET(mean_in, STATISTIC);
    SET(rstd_in, STATISTIC);
    SET(moment2, STATISTIC);
    return status;
}

/* Which operands go together. */
static tn_status check_presence(const struct tn_plan *p)
{
    bool output = p->y.data || p->sum.data || p->mean.data || p->rstd.data;
    if (p->source == TN_STATS_MOMENTS)
        output = p->moment2.data && (!p->centred || p->mean.data);
    if (!p->x.data || !output || (p->sum.data && !p->residual.data) || (p->gate_place && !p->gate.data))
        return TN_ERR_NULL;
    if (p->source == TN_STATS_GIVEN && (!p->rstd_in.data || (p->centred && !p->mean_in.data)))
        return TN_ERR_NULL;
    if (p->quantised && !p->scale_in.data && !p->scale_out.data)
        return TN_ERR_NULL;
    if (!p->gate_place && p->gate.data)
        return TN_ERR_VALUE;
    if (p->quantised ? p->scale_in.data && p->scale_out.data : p->scale_in.data || p->scale_out.data)
        return TN_ERR_VALUE;
    return TN_OK;
}

/* ---- overlap ---- */

enum shape { ROW_SHAPE, GROUP_SHAPE, ONE_SHAPE };

static bool extent_of(const struct tn_plan *p, const struct tn_operand *o, enum shape shape, struct tn_extent *e)
{
    size_t inner = shape == ROW_SHAPE ? p->groups * p->group : shape == GROUP_SHAPE ? p->groups : 1;
    const size_t count[3] = {p->rows[0], p->rows[1], inner};
    const ptrdiff_t stride[3] = {o->stride[0], o->stride[1], o->inner};
    return tn_extent_init(e, o->data, tn_element_size(o->dtype), count, stride);
}

static tn_status check_overlap(const struct tn_plan *p)
{
    const struct {
        const struct tn_operand *o;
        enum shape shape;
        bool output;
    } all[] = {
        {&p->x, ROW_SHAPE, false},           {&p->residual, ROW_SHAPE, false},   {&p->gate, ROW_SHAPE, false},
        {&p->weight, ROW_SHAPE, false},      {&p->bias, ROW_SHAPE, false},       {&p->scale_in, ONE_SHAPE, false},
        {&p->mean_in, GROUP_SHAPE, false},   {&p->rstd_in, GROUP_SHAPE, false},  {&p->y, ROW_SHAPE, true},
        {&p->sum, ROW_SHAPE, true},          {&p->mean, GROUP_SHAPE, true},      {&p->rstd, GROUP_SHAPE, true},
        {&p->scale_out, ONE_SHAPE, true},    {&p->moment2, GROUP_SHAPE, true},
    };
    enum { COUNT = sizeof all / sizeof *all };
    struct tn_extent e[COUNT];
    for (int i = 0; i < COUNT; i++)
        if (all[i].o->data && !extent_of(p, all[i].o, all[i].shape, &e[i]))
            return TN_ERR_SIZE;
    for (int i = 0; i < COUNT; i++) {
        if (!all[i].o->data || !all[i].output)
            continue;
        if (tn_extent_overlaps_itself(&e[i]))
            return TN_ERR_OVERLAP;
        for (int j = 0; j < COUNT; j++) {
            if (j == i || !all[j].o->data || !tn_extents_overlap(&e[i], &e[j]))
                continue;
            bool in_place = (all[j].o == &p->x || all[j].o == &p->residual ||
                             (all[j].o == &p->gate && all[i].o == &p->y)) &&
                            (all[i].o == &p->y || all[i].o == &p->sum) && all[i].o->dtype == all[j].o->dtype;
            if (!in_place || !tn_extents_equal(&e[i], &e[j]))
                return TN_ERR_OVERLAP;
        }
    }
    return TN_OK;
}

/* ---- arithmetic ---- */

static bool is_half(tn_dtype dt)
{
    return dt == TN_BF16 || dt == TN_F16;
}

static tn_dtype rounding_of_h(const struct tn_plan *p, tn_cast cast)
{
    bool has_w = p->weight.data;
    if (cast == TN_CAST_T5)
        return has_w && is_half(p->weight.dtype) ? p->weight.dtype : TN_NONE;
    if (cast == TN_CAST_ONCE || p->x.dtype == TN_F64)
        return TN_NONE;
    /* without an affine part the result is that cast already */
    return !has_w && !p->bias.data && p->y.dtype == p->x.dtype && !p->gate_place ? TN_NONE : p->x.dtype;
}

/* The cheapest arithmetic that keeps the promise (docs/numerics.md, "The apply step"). */
static enum tn_algo choose_algo(const struct tn_plan *p, tn_grade grade, bool unusual_count)
{
    bool has_offset = p->weight.data && p->offset != 0.0, f32_out = p->y.dtype == TN_F32;
    if (unusual_count || (p->offset != 0.0 && p->offset != 1.0) || (has_offset && f32_out))
        return TN_A64;
    if (grade == TN_FAST)
        return TN_A32;
    if (p->centred || p->bias.data)
        return TN_A64;
    if (p->round_h == TN_F32 || (p->round_h == TN_NONE && f32_out))
        return has_offset ? TN_A64 : TN_A2P;
    return TN_A32;
}

static void choose_arithmetic(const tn_norm_desc *d, const tn_norm_io *io, struct tn_plan *p)
{
    p->round_h = rounding_of_h(p, d->cast);
    p->round_r = d->flags & TN_ROUND_RSTD ? p->x.dtype : TN_NONE;
    p->round_w = d->flags & TN_ROUND_OFFSET && p->weight.data && p->offset != 0.0 ? p->weight.dtype : TN_NONE;
    p->round_p = d->flags & TN_ROUND_PRODUCT && is_half(p->y.dtype) ? p->y.dtype
                 : d->flags & TN_ROUND_PRODUCT && p->y.dtype == TN_F32 ? TN_F32
                                                                      : TN_NONE;
    if (p->residual.data && d->sum == TN_SUM_ROUNDED)
        p->sum_dtype = p->sum.data ? p->sum.dtype : io->sum.dtype ? io->sum.dtype : p->x.dtype;
    p->wide_sums = p->x.dtype == TN_F64 || (p->residual.data && p->residual.dtype == TN_F64) ||
                   (p->gate_place == TN_GATE_BEFORE && p->gate.dtype == TN_F64);
    p->algo = choose_algo(p, d->grade, d->divisor > 0 || d->partial);
}

tn_status tn_make_plan(const tn_norm_desc *desc, const tn_norm_io *io, enum tn_stat_source source,
                       struct tn_plan *plan, bool *empty)
{
    tn_norm_desc d;
    tn_norm_io operands;
    tn_status status = tn_copy_struct(&d, sizeof d, desc);
    if (status == TN_OK)
        status = tn_copy_struct(&operands, sizeof operands, io);
    if (status == TN_OK)
        status = tn_plan_desc(&d, plan);
    if (status == TN_OK)
        status = set_operands(plan, &operands);
    if (status == TN_OK && operands.sum.dtype && !dtype_allowed(operands.sum.dtype, FLOATS))
        status = TN_ERR_DTYPE;
    if (status != TN_OK)
        return status;
    plan->source = source;
    plan->quantised = plan->y.data && plan->y.dtype >= TN_I8;
    plan->dynamic_scale = plan->quantised && plan->scale_out.data;
    *empty = d.rows[0] == 0 || d.rows[1] == 0 || d.n == 0;
    if (*empty)
        return TN_OK;
    status = check_presence(plan);
    if (status == TN_OK)
        status = check_overlap(plan);
    if (status == TN_OK)
        choose_arithmetic(&d, &operands, plan);
    return status;
}
