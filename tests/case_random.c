/* case_random.c - random lawful cases: every option against every other. */
#include "case.h"

static bool one_in(struct rng *r, size_t n)
{
    return rng_below(r, n) == 0;
}

static tn_dtype any_float(struct rng *r)
{
    static const tn_dtype all[] = {TN_F32, TN_BF16, TN_F16, TN_F32, TN_BF16, TN_F16, TN_F64};
    return all[rng_below(r, 7)];
}

static void random_shape(struct rng *r, tn_norm_desc *d, size_t limit)
{
    size_t groups = one_in(r, 4) ? 1 + rng_below(r, 4) : 1;
    size_t n = 1 + rng_below(r, one_in(r, 3) ? limit : limit < 40 ? limit : 40);
    size_t group = (n + groups - 1) / groups;
    d->rows[0] = 1 + rng_below(r, 4);
    d->rows[1] = one_in(r, 2) ? 1 : 1 + rng_below(r, 3);
    d->n = group * groups;
    d->group = groups > 1 || one_in(r, 8) ? group : 0;
    if (one_in(r, 6)) /* a divisor of n */
        d->positions = one_in(r, 3) ? d->n : group % 3 == 0 ? 3 : group % 2 == 0 ? 2 : groups;
    d->partial = one_in(r, 5) ? 1 + rng_below(r, group) : 0;
    d->divisor = one_in(r, 6) && d->kind != TN_L2 ? (double)(1 + rng_below(r, 2 * group)) : 0;
}

static void random_options(struct rng *r, struct spec *s)
{
    static const double eps[] = {1e-6, 1e-5, 1e-12, 0, 0.25, 1e-30};
    tn_norm_desc *d = &s->d;
    d->kind = (tn_kind)rng_below(r, 3);
    random_shape(r, d, 0 + (size_t)s->d.n);
    d->cast = (tn_cast)(one_in(r, 2) ? rng_below(r, 3) : 0);
    d->grade = one_in(r, 3) ? TN_FAST : TN_EXACT;
    d->eps = eps[rng_below(r, 6)];
    d->eps_mode = (tn_eps_mode)(one_in(r, 3) ? rng_below(r, 3) : 0);
    d->flags = one_in(r, 3) ? (unsigned)rng_below(r, 8) : 0;
    d->gate = (tn_gate)(one_in(r, 3) ? rng_below(r, 3) : 0);
    d->act = (tn_act)rng_below(r, 2);
    d->sum = (tn_sum)rng_below(r, 2);
}

static void random_dtypes(struct rng *r, struct spec *s)
{
    tn_dtype x = any_float(r);
    bool same = one_in(r, 2);
    for (int op = 0; op < OP_COUNT; op++)
        s->dtype[op] = TN_NONE;
    s->dtype[OP_X] = x;
    s->dtype[OP_Y] = same ? x : any_float(r);
    if (!one_in(r, 4))
        s->dtype[OP_WEIGHT] = same ? x : any_float(r);
    if (one_in(r, 3))
        s->dtype[OP_BIAS] = same ? x : any_float(r);
    if (s->d.gate != TN_GATE_NONE)
        s->dtype[OP_GATE] = same ? x : any_float(r);
    if (one_in(r, 3)) {
        s->dtype[OP_RESIDUAL] = same ? x : any_float(r);
        s->dtype[OP_SUM] = one_in(r, 2) ? TN_NONE : same ? x : any_float(r);
    }
    if (one_in(r, 8))
        s->dtype[OP_MOD_SCALE] = same ? x : any_float(r);
    if (one_in(r, 8))
        s->dtype[OP_MOD_SHIFT] = same ? x : any_float(r);
    if (one_in(r, 4))
        s->dtype[OP_MEAN] = one_in(r, 2) ? TN_F32 : TN_F64;
    if (one_in(r, 4) && !(s->d.flags & TN_ROUND_RSTD))
        s->dtype[OP_RSTD] = one_in(r, 2) ? TN_F32 : TN_F64;
    if (s->dtype[OP_WEIGHT] != TN_NONE && one_in(r, 3))
        s->d.weight_offset = one_in(r, 4) ? -0.3 : 1;
    if (one_in(r, 6)) { /* quantised */
        s->dtype[OP_Y] = (tn_dtype)(TN_I8 + rng_below(r, 3));
        enum operand scale = one_in(r, 2) ? OP_SCALE_IN : OP_SCALE_OUT;
        s->dtype[scale] = one_in(r, 3) ? TN_F64 : TN_F32;
        s->d.flags &= ~TN_ROUND_PRODUCT;
    }
}

static void random_layouts(struct rng *r, struct spec *s)
{
    bool dense = one_in(r, 3);
    for (int op = 0; op < OP_COUNT; op++) {
        bool parameter =
            op == OP_WEIGHT || op == OP_BIAS || op == OP_SCALE_IN || op == OP_MOD_SCALE || op == OP_MOD_SHIFT;
        s->layout[op] = dense ? LAY_DENSE : (enum layout)rng_below(r, LAY_OUTPUT_COUNT);
        if (parameter && !one_in(r, 3))
            s->layout[op] = one_in(r, 3) ? LAY_PER_SECOND : LAY_SHARED;
        if ((op == OP_X || op == OP_GATE || op == OP_RESIDUAL) && one_in(r, 12))
            s->layout[op] = LAY_SHARED;
        s->misalign[op] = (unsigned char)(one_in(r, 2) ? rng_below(r, 16) : 0);
    }
    s->gen[OP_X] = (enum gen)rng_below(r, GEN_FINITE_COUNT);
    s->gen[OP_RESIDUAL] = one_in(r, 2) ? s->gen[OP_X] : GEN_NORMAL;
    s->gen2 = one_in(r, 4) ? (int)rng_below(r, GEN_COUNT) : -1;
}

/* y over x, residual or gate and sum over x or residual, where dtypes allow it. */
static void random_aliases(struct rng *r, struct spec *s)
{
    static const enum operand inputs[] = {OP_X, OP_RESIDUAL, OP_GATE};
    enum operand y = inputs[rng_below(r, 3)], sum = inputs[rng_below(r, 2)];
    if (one_in(r, 3) && dtype_is_float(s->dtype[OP_Y]) && s->dtype[y] != TN_NONE &&
        s->layout[y] != LAY_SHARED)
        spec_y_over(s, y);
    if (one_in(r, 2) && s->dtype[OP_SUM] != TN_NONE && s->layout[sum] != LAY_SHARED && s->y_over != sum) {
        s->sum_over = sum;
        s->dtype[OP_SUM] = s->dtype[sum];
    }
}

struct spec spec_random(struct rng *r, size_t limit)
{
    struct spec s = spec_make(TN_RMS, TN_F32, 1, limit, false, false);
    s.seed = rng_next(r) >> 40;
    random_options(r, &s);
    random_dtypes(r, &s);
    random_layouts(r, &s);
    random_aliases(r, &s);
    return s;
}
