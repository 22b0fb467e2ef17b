/* plan.c - argument checks, and the choice of arithmetic that the promises of docs/numerics.md rest on. */
#include "api/plan.h"

#include <math.h>

#include "api/operand.h"
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

tn_status tn_plan_desc(const tn_norm_desc *d, struct tn_plan *p)
{
    const unsigned all_flags = TN_ROUND_RSTD | TN_ROUND_OFFSET | TN_ROUND_PRODUCT | TN_NEGATIVE_EPS;
    if (!tn_in_range((int)d->kind, TN_L2) || !tn_in_range((int)d->cast, TN_CAST_T5) ||
        !tn_in_range((int)d->grade, TN_FAST) || !tn_in_range((int)d->eps_mode, TN_EPS_CLAMP) ||
        !tn_in_range((int)d->gate, TN_GATE_AFTER) || !tn_in_range((int)d->act, TN_SIGMOID) ||
        !tn_in_range((int)d->sum, TN_SUM_EXACT) || !tn_in_range((int)d->store, TN_STORE_STREAM) ||
        (d->flags & ~all_flags))
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
    p->store = d->store;
    p->offset = d->weight_offset;
    p->positions = d->positions ? d->positions : 1;
    if (d->n % p->positions)
        return TN_ERR_VALUE;
    return TN_OK;
}

/* ---- operands ---- */

#define SET(field, allowed)                                                                                  \
    if (status == TN_OK)                                                                                     \
    status = tn_set_operand(&p->field, io->field.data, io->field.dtype, io->field.stride, io->field.inner,   \
                            allowed)

static tn_status set_inputs(struct tn_plan *p, const tn_norm_io *io)
{
    tn_status status = TN_OK;
    SET(x, TN_FLOATS);
    SET(residual, TN_FLOATS);
    SET(gate, TN_FLOATS);
    SET(weight, TN_FLOATS);
    SET(bias, TN_FLOATS);
    SET(mod_scale, TN_FLOATS);
    SET(mod_shift, TN_FLOATS);
    SET(mean_in, TN_STATISTIC);
    SET(rstd_in, TN_STATISTIC);
    return status;
}

static tn_status set_outputs(struct tn_plan *p, const tn_norm_io *io)
{
    tn_status status = TN_OK;
    SET(y, TN_ANY_DTYPE);
    SET(sum, TN_FLOATS);
    SET(mean, TN_STATISTIC);
    SET(rstd, TN_STATISTIC);
    SET(scale_in, TN_STATISTIC);
    SET(scale_out, TN_STATISTIC);
    SET(moment2, TN_STATISTIC);
    p->quantised = p->y.data && p->y.dtype >= TN_I8;
    p->dynamic_scale = p->quantised && p->scale_out.data;
    return status;
}

/* Which operands go together. */
static tn_status check_inputs(const struct tn_plan *p)
{
    if (!p->x.data || (p->gate_place && !p->gate.data))
        return TN_ERR_NULL;
    if (p->source == TN_STATS_GIVEN && (!p->rstd_in.data || (p->centred && !p->mean_in.data)))
        return TN_ERR_NULL;
    return !p->gate_place && p->gate.data ? TN_ERR_VALUE : TN_OK;
}

static tn_status check_outputs(const struct tn_plan *p)
{
    bool output = p->y.data || p->sum.data || p->mean.data || p->rstd.data;
    if (p->source == TN_STATS_MOMENTS)
        output = p->moment2.data && (!p->centred || p->mean.data);
    if (!output || (p->sum.data && !p->residual.data))
        return TN_ERR_NULL;
    if (p->quantised && !p->scale_in.data && !p->scale_out.data)
        return TN_ERR_NULL;
    if (p->quantised ? p->scale_in.data && p->scale_out.data : p->scale_in.data || p->scale_out.data)
        return TN_ERR_VALUE;
    return TN_OK;
}

static tn_status check_overlap(const struct tn_plan *p)
{
    enum { X = 1, RESIDUAL = 2, GATE = 4 };
    size_t n = p->groups * p->group, params = n / p->positions;
    const struct tn_use uses[] = {
        {&p->x, n, X, false, 0, false},
        {&p->residual, n, RESIDUAL, false, 0, false},
        {&p->gate, n, GATE, false, 0, false},
        {&p->weight, params, 0, false, 0, false},
        {&p->bias, params, 0, false, 0, false},
        {&p->mod_scale, n, 0, false, 0, false},
        {&p->mod_shift, n, 0, false, 0, false},
        {&p->scale_in, 1, 0, false, 0, false},
        {&p->mean_in, p->groups, 0, false, 0, false},
        {&p->rstd_in, p->groups, 0, false, 0, false},
        {&p->y, n, 0, true, X | RESIDUAL | GATE, false},
        {&p->sum, n, 0, true, X | RESIDUAL, false},
        {&p->mean, p->groups, 0, true, 0, false},
        {&p->rstd, p->groups, 0, true, 0, false},
        {&p->scale_out, 1, 0, true, 0, false},
        {&p->moment2, p->groups, 0, true, 0, false},
    };
    return tn_check_uses(uses, sizeof uses / sizeof *uses, p->rows);
}

/* ---- arithmetic ---- */

static bool is_half(tn_dtype dt)
{
    return dt == TN_BF16 || dt == TN_F16;
}

static tn_dtype rounding_of_h(const struct tn_plan *p, tn_cast cast)
{
    bool has_w = p->weight.data,
         has_more = p->bias.data || p->gate_place || p->mod_scale.data || p->mod_shift.data;
    if (cast == TN_CAST_T5)
        return has_w && is_half(p->weight.dtype) ? p->weight.dtype : TN_NONE;
    if (cast == TN_CAST_ONCE || p->x.dtype == TN_F64)
        return TN_NONE;
    /* without an affine part the result is that cast already */
    return !has_w && !has_more && p->y.dtype == p->x.dtype ? TN_NONE : p->x.dtype;
}

static bool is_f32_or_less(const struct tn_operand *o)
{
    return !o->data || o->dtype == TN_F32 || is_half(o->dtype);
}

/* May a gated norm be f32 throughout? To f16 with a gate before only if x act(gate) is rounded once (vf_gated). */
static bool gate_fits_f32(const struct tn_plan *p, tn_grade grade)
{
    bool plain = p->source == TN_STATS_OWN && !p->centred && !p->bias.data && !p->residual.data &&
                 !p->mod_scale.data && !p->mod_shift.data && p->positions == 1 && p->round_r == TN_NONE &&
                 p->round_w == TN_NONE && p->round_p == TN_NONE && (p->round_h != TN_F32 || grade == TN_FAST);
    bool f16 = p->x.dtype == TN_F16 && p->gate.dtype == TN_F16;
    bool exact_enough =
        p->y.dtype == TN_BF16 || (p->y.dtype == TN_F16 && (p->gate_place == TN_GATE_AFTER || f16));
    return plain && is_f32_or_less(&p->x) && is_f32_or_less(&p->gate) && is_f32_or_less(&p->weight) &&
           is_f32_or_less(&p->y) && (exact_enough || grade == TN_FAST);
}

/* The cheapest arithmetic that keeps the promise (docs/numerics.md, "The apply step"). */
static enum tn_algo choose_algo(const struct tn_plan *p, tn_grade grade, bool unusual_count)
{
    bool has_offset = p->weight.data && p->offset != 0.0, f32_out = p->y.dtype == TN_F32;
    if ((p->gate_place && !gate_fits_f32(p, grade)) || p->quantised || unusual_count ||
        (p->offset != 0.0 && p->offset != 1.0) || (has_offset && f32_out))
        return TN_A64;
    if (grade != TN_FAST && p->gate_place == TN_GATE_BEFORE && p->y.dtype == TN_F16 && p->round_h == TN_NONE)
        return has_offset ? TN_A64 : TN_A2P; /* fewer roundings: those of a gate before count twice */
    if (grade == TN_FAST || p->gate_place)
        return TN_A32;
    if (p->bias.data || (p->centred && (!is_half(p->y.dtype) || p->round_h == TN_F32)))
        return TN_A64;
    if (p->round_h == TN_F32 || (p->round_h == TN_NONE && f32_out))
        return has_offset ? TN_A64 : TN_A2P;
    return TN_A32;
}

static void choose_arithmetic(const tn_norm_desc *d, const tn_norm_io *io, struct tn_plan *p)
{
    p->round_h = rounding_of_h(p, d->cast);
    p->round_r = d->flags & TN_ROUND_RSTD && p->x.dtype != TN_F64 ? p->x.dtype : TN_NONE;
    p->round_w = d->flags & TN_ROUND_OFFSET && p->weight.data && p->offset != 0.0 ? p->weight.dtype : TN_NONE;
    p->round_p = d->flags & TN_ROUND_PRODUCT && is_half(p->y.dtype)    ? p->y.dtype
                 : d->flags & TN_ROUND_PRODUCT && p->y.dtype == TN_F32 ? TN_F32
                                                                       : TN_NONE;
    if (p->residual.data && d->sum == TN_SUM_ROUNDED)
        p->sum_dtype = io->sum.dtype ? io->sum.dtype : p->x.dtype;
    p->wide_sums = p->x.dtype == TN_F64 || (p->residual.data && p->residual.dtype == TN_F64) ||
                   (p->gate_place == TN_GATE_BEFORE && p->gate.dtype == TN_F64);
    bool own_count = d->divisor > 0 || d->partial;
    tn_dtype s = p->residual.data ? p->sum_dtype : p->x.dtype;
    p->algo = choose_algo(p, d->grade, own_count);
    p->short_squares = !p->centred && is_half(s) && p->algo == TN_A32 && is_half(p->y.dtype) &&
                       !p->gate_place && p->source == TN_STATS_OWN;
    p->brief_act = !p->wide_sums && (p->y.dtype == TN_F32 || is_half(p->y.dtype));
    p->raw_limit = !p->centred || own_count || (s != TN_F32 && !is_half(s)) ? 0.0
                   : is_half(s) && is_half(p->y.dtype)                      ? TN_RAW_16
                                                                            : TN_RAW_32;
}

tn_status tn_make_plan(const tn_norm_desc *desc, const tn_norm_io *io, enum tn_call call, struct tn_plan *p,
                       bool *empty)
{
    tn_norm_desc d;
    tn_norm_io operands;
    tn_status status = tn_copy_struct(&d, sizeof d, desc);
    if (status == TN_OK)
        status = tn_copy_struct(&operands, sizeof operands, io);
    if (status == TN_OK)
        status = tn_plan_desc(&d, p);
    if (status == TN_OK)
        status = set_inputs(p, &operands);
    if (status == TN_OK && call != TN_BACKWARD)
        status = set_outputs(p, &operands);
    if (status == TN_OK && operands.sum.dtype && !tn_dtype_allowed(operands.sum.dtype, TN_FLOATS))
        status = TN_ERR_DTYPE;
    if (status != TN_OK)
        return status;
    if (call == TN_BACKWARD)
        p->y.dtype = operands.y.dtype ? operands.y.dtype : p->x.dtype;
    bool given = call == TN_APPLY || (call == TN_BACKWARD && p->rstd_in.data);
    p->source = given ? TN_STATS_GIVEN : call == TN_MOMENTS ? TN_STATS_MOMENTS : TN_STATS_OWN;
    *empty = d.rows[0] == 0 || d.rows[1] == 0 || d.n == 0;
    if (*empty)
        return TN_OK;
    status = check_inputs(p);
    if (status == TN_OK && call != TN_BACKWARD)
        status = check_outputs(p);
    if (status == TN_OK && call != TN_BACKWARD)
        status = check_overlap(p);
    if (status == TN_OK)
        choose_arithmetic(&d, &operands, p);
    if (call == TN_BACKWARD) /* of which the results are the gradients */
        p->brief_act = p->short_squares = false;
    return status;
}
