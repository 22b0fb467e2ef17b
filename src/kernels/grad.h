/* grad.h - the backward of a row, in f64: the general kernel, chunk by chunk, and the arithmetic it shares with the
 * fused one.
 *
 *     G = w' dL/d(w'h + b);   dx = r ((G - <G>) - h <G h> phi)
 *
 * <.> is the mean over the counted elements, <G> only where the mean was removed, phi the derivative of 1/sqrt for the
 * eps mode (1 for eps inside the root). Derivation: docs/backward.md. */
#ifndef TN_GRAD_H
#define TN_GRAD_H

#include "kernels/grad_fold.h"

/* Per group: c0 = <G>, c1 = <G h> phi. */
struct grad_stat {
    struct tn_stat st;
    double r_unrounded; /* r before TN_ROUND_RSTD: the derivative is that of the unrounded value */
    double c0, c1;
    struct grad_fold fold;
};

/* The three row sums. sum(h) takes the rounding of h's mean out of <G h>, so that a constant G cancels. */
struct grad_sums {
    struct lanes gh, g, h;
};

TN_INLINE void grad_step(bool centred, vd g, vd h, vd counted_h, vd *gh, vd *sum_g, vd *sum_h)
{
    *gh = vd_add(*gh, vd_mul(g, h));
    if (centred) {
        *sum_g = vd_add(*sum_g, g);
        *sum_h = vd_add(*sum_h, counted_h);
    }
}

TN_INLINE vd grad_x(bool centred, vd g, vd h, vd c0, vd c1, vd r)
{
    vd t = centred ? vd_sub(g, c0) : g;
    return vd_mul(vd_sub(t, vd_mul(h, c1)), r);
}

TN_INLINE void grad_finish(const struct tn_plan *p, const struct grad_sums *s, bool centred,
                           struct grad_stat *gs)
{
    double gh = lanes_sum(s->gh), g = 0.0, h = 0.0;
    if (centred) {
        g = lanes_sum(s->g);
        h = lanes_sum(s->h);
    }
    gs->c0 = g / p->count;
    /* with all elements counted the h sum to nothing but rounding; a partial mean leaves a true sum */
    if (centred && p->counted == p->group && p->count == (double)p->group)
        gh -= gs->c0 * h;
    gs->c1 = gh / p->count;
    if (TN_UNLIKELY(p->eps_mode != TN_EPS_INSIDE || gs->r_unrounded != gs->st.rh)) {
        double ratio = gs->st.rh != 0.0 ? gs->r_unrounded / gs->st.rh : 1.0;
        gs->c1 *= grad_phi(p, gs->r_unrounded, gs->st.scale) * ratio * ratio * ratio;
    }
    if (centred &&
        p->count != (double)p->counted) /* a divisor of the caller's: the counted h do not sum to 0 */
        gs->c0 -= gs->c1 * h / p->count;
}

/* ---- the general kernel ---- */

struct grad_buffers {
    struct wide_buffers wide;
    double d[TN_CHUNK];     /* folded: the input less the shift */
    double h[TN_CHUNK];     /* normalised, unrounded */
    double g[TN_CHUNK];     /* G */
    double e[TN_CHUNK];     /* dL / d(w'h + b) */
    double hr[TN_CHUNK];    /* h as it met the weight */
    double z[TN_CHUNK];     /* (w'h + b), then modulated */
    double act[TN_CHUNK];   /* act(gate) */
    double slope[TN_CHUNK]; /* act'(gate), times what it multiplies */
    double shift[TN_CHUNK]; /* dL / d(mod_shift) */
    double scale[TN_CHUNK]; /* dL / d(mod_scale) */
};

/* act and its derivative: silu' = s (1 + x (1 - s)), sigmoid' = s (1 - s). */
TN_INLINE void act_and_slope(tn_act act, vd x, vd *value, vd *slope)
{
    vd one = vd_set1(1.0), s = vd_sigmoid(x);
    /* 1 - s would cancel where s is near 1; it is the sigmoid of -x */
    vd rest = vd_sigmoid(vd_sub(vd_set1(0.0), x));
    *value = act == TN_SILU ? vd_mul(x, s) : s;
    *slope = act == TN_SILU ? vd_mul(s, vd_add(one, vd_mul(x, rest))) : vd_mul(s, rest);
}

static TN_NOINLINE void grad_gate(const struct tn_grad_plan *gp, const struct group_ref *at, size_t i,
                                  size_t n, struct grad_buffers *b)
{
    const struct tn_plan *p = at->p;
    stage_f64(&p->gate, group_row(at, &p->gate), i, n, b->wide.t, b->wide.raw);
    for (size_t k = 0; k < n; k += 16) {
        vd value, slope, x = vd_load(b->wide.t + k);
        if (gp->folds)
            fold_act(p->act, x, fold_small(x), &value, &slope);
        else
            act_and_slope(p->act, x, &value, &slope);
        vd_store(b->act + k, value);
        vd_store(b->slope + k, slope);
    }
}

/* h of elements [i, i+n) of the staged input, folded with d. */
static TN_NOINLINE void grad_h(const struct tn_grad_plan *gp, const struct grad_stat *gs, size_t n,
                               struct grad_buffers *b)
{
    const bool centred = gp->forward.centred;
    const vd r = vd_set1(gp->folds ? gs->fold.r : gs->st.rh), shift = vd_set1(gs->fold.shift),
             hc = vd_set1(gs->fold.hc), mh = vd_set1(gs->st.mh), ml = vd_set1(gs->st.ml);
    for (size_t k = 0; k < n; k += 16) {
        vd d = vd_load(b->wide.s + k), h;
        if (gp->folds) {
            d = centred ? vd_sub(d, shift) : d;
            h = fold_h(centred, d, r, hc);
        } else {
            d = centred ? vd_sub(vd_sub(d, mh), ml) : d;
            h = vd_mul(d, r);
        }
        vd_store(b->d + k, d);
        vd_store(b->h + k, h);
        vd_store(b->hr + k, round_f64_to(gp->forward.round_h, h));
    }
}

/* h, hr of elements [i, i+n); with a gate before, act and slope * (ungated s). */
static TN_NOINLINE void grad_normalised(const struct tn_grad_plan *gp, const struct group_ref *at,
                                        const struct grad_stat *gs, size_t i, size_t n,
                                        struct grad_buffers *b)
{
    const struct tn_plan *p = at->p;
    const bool before = p->gate_place == TN_GATE_BEFORE;
    if (before) {
        struct tn_plan ungated = *p;
        struct group_ref plain = {&ungated, at->i0, at->i1, at->g};
        ungated.gate_place = TN_GATE_NONE;
        wide_input(&plain, i, n, 1.0, false, &b->wide);
        grad_gate(gp, at, i, n, b);
        for (size_t k = 0; k < n; k += 16) {
            vd s = vd_load(b->wide.s + k);
            vd_store(b->slope + k, vd_mul(vd_load(b->slope + k), s));
            if (gp->folds)
                vd_store(b->wide.s + k, vd_mul(s, vd_load(b->act + k)));
        }
    }
    if (!before || !gp->folds)
        wide_input(at, i, n, gs->st.scale, false, &b->wide);
    grad_h(gp, gs, n, b);
}

/* w' of elements [i, i+n), ones where there is no weight, into b->wide.t. */
static TN_NOINLINE void grad_weight(const struct group_ref *at, size_t i, size_t n, struct grad_buffers *b)
{
    const struct tn_plan *p = at->p;
    if (!p->weight.data) {
        for (size_t k = 0; k < n; k += 16)
            vd_store(b->wide.t + k, vd_set1(1.0));
        return;
    }
    stage_param(at, &p->weight, i, n, b->wide.t, b->wide.raw);
    if (p->offset != 0.0)
        for (size_t k = 0; k < n; k += 16)
            vd_store(b->wide.t + k,
                     round_f64_to(p->round_w, vd_add(vd_load(b->wide.t + k), vd_set1(p->offset))));
}

/* z = w'hr + b as the forward had it; b->wide.t holds w'. */
static TN_NOINLINE void grad_affine(const struct group_ref *at, size_t i, size_t n, struct grad_buffers *b)
{
    const struct tn_plan *p = at->p;
    for (size_t k = 0; k < n; k += 16)
        vd_store(b->z + k, round_f64_to(p->round_p, vd_mul(vd_load(b->hr + k), vd_load(b->wide.t + k))));
    if (!p->bias.data)
        return;
    stage_param(at, &p->bias, i, n, b->wide.s, b->wide.raw);
    for (size_t k = 0; k < n; k += 16)
        vd_store(b->z + k, vd_add(vd_load(b->z + k), vd_load(b->wide.s + k)));
}

/* From dy back through the gate after and the modulation: b->e = dL/d(w'h + b), and what they themselves receive. */
static TN_NOINLINE void grad_outer(const struct tn_grad_plan *gp, const struct group_ref *at, size_t i,
                                   size_t n, struct grad_buffers *b)
{
    const struct tn_plan *p = at->p;
    bool gated = p->gate_place == TN_GATE_AFTER, modulated = p->mod_scale.data || p->mod_shift.data;
    if (gated || modulated)
        grad_affine(at, i, n, b);
    stage_f64(&gp->dy, group_row(at, &gp->dy), i, n, b->e, b->wide.raw);
    if (gated) {
        grad_gate(gp, at, i, n, b);
        grad_weight(at, i, n, b); /* grad_gate used the buffer of w' */
    }
    double *w = b->wide.t, *mod = b->wide.s;
    if (p->mod_scale.data)
        stage_f64(&p->mod_scale, group_row(at, &p->mod_scale), i, n, mod, b->wide.raw);
    else if (gated || modulated)
        memset(mod, 0, sizeof b->wide.s);
    for (size_t k = 0; k < n && (gated || modulated); k += 16) {
        vd e = vd_load(b->e + k), z = vd_load(b->z + k), factor = vd_add(vd_load(mod + k), vd_set1(1.0));
        vd inner = z;
        if (p->mod_scale.data)
            z = vd_mul(z, factor);
        vd_store(b->z + k, z);
        if (gated) {
            vd slope = vd_mul(vd_load(b->slope + k), e);
            vd_store(b->slope + k, slope);
            e = vd_mul(e, vd_load(b->act + k));
        }
        vd_store(b->shift + k, e);
        vd_store(b->scale + k, vd_mul(e, inner));
        vd_store(b->e + k, p->mod_scale.data ? vd_mul(e, factor) : e);
    }
    if (gated && p->mod_shift.data) {
        stage_f64(&p->mod_shift, group_row(at, &p->mod_shift), i, n, mod, b->wide.raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(b->z + k, vd_add(vd_load(b->z + k), vd_load(mod + k)));
    }
    if (gated)
        for (size_t k = 0; k < n; k += 16)
            vd_store(b->slope + k, vd_mul(vd_load(b->slope + k), vd_load(b->z + k)));
    for (size_t k = 0; k < n; k += 16)
        vd_store(b->g + k, p->weight.data ? vd_mul(vd_load(b->e + k), vd_load(w + k)) : vd_load(b->e + k));
    if (n % 16)
        vd_store(b->g + n / 16 * 16, vd_first(vd_load(b->g + n / 16 * 16), n % 16));
}

/* All of elements [i, i+n) that the sums and the gradients need. */
TN_INLINE void grad_chunk(const struct tn_grad_plan *gp, const struct group_ref *at,
                          const struct grad_stat *gs, size_t i, size_t n, struct grad_buffers *b)
{
    grad_normalised(gp, at, gs, i, n, b);
    grad_weight(at, i, n, b);
    grad_outer(gp, at, i, n, b);
}

static TN_NOINLINE void grad_row_sums(const struct tn_grad_plan *gp, const struct group_ref *at,
                                      struct grad_buffers *b, struct grad_stat *gs)
{
    const struct tn_plan *p = at->p;
    struct grad_sums s = {lanes_zero(), lanes_zero(), lanes_zero()};
    for (size_t i = 0; i < p->group; i += TN_CHUNK) {
        size_t n = chunk_of(i, p->group);
        grad_chunk(gp, at, gs, i, n, b);
        for (size_t k = 0; k < n; k += 16) {
            vd g = vd_load(b->g + k), h = vd_load(b->h + k);
            if (n - k < 16)
                h = vd_first(h, n - k);
            vd counted = counted_lanes(p, i + k, h);
            if (k & 16)
                grad_step(p->centred, g, h, counted, &s.gh.b, &s.g.b, &s.h.b);
            else
                grad_step(p->centred, g, h, counted, &s.gh.a, &s.g.a, &s.h.a);
        }
    }
    grad_finish(p, &s, p->centred, gs);
}

/* One pass over a group, folded. */
static TN_NOINLINE void grad_fold_pass(const struct tn_grad_plan *gp, const struct group_ref *at,
                                       struct grad_buffers *b, struct grad_stat *gs, struct fold_lanes *sums)
{
    const struct tn_plan *p = at->p;
    struct fold_lanes s = fold_zero();
    for (size_t i = 0; i < p->group; i += TN_CHUNK) {
        size_t n = chunk_of(i, p->group);
        grad_chunk(gp, at, gs, i, n, b);
        for (size_t k = 0; k < n; k += 16) {
            vd g = vd_load(b->g + k), d = vd_load(b->d + k);
            if (n - k < 16)
                d = vd_first(d, n - k);
            vd counted = counted_lanes(p, i + k, d);
            if (k & 16)
                fold_step(p->centred, d, counted, g, &s.d.b, &s.dd.b, &s.g.b, &s.gd.b);
            else
                fold_step(p->centred, d, counted, g, &s.d.a, &s.dd.a, &s.g.a, &s.gd.a);
        }
    }
    *sums = s;
}

static TN_NOINLINE void grad_fold_row(const struct tn_grad_plan *gp, const struct group_ref *at,
                                      struct grad_buffers *b, struct grad_stat *gs)
{
    struct fold_lanes sums;
    *gs = (struct grad_stat){.st = {.scale = 1.0}};
    grad_fold_pass(gp, at, b, gs, &sums);
    struct fold_sums joined;
    fold_join(at->p->centred, &sums, 0, &joined);
    if (!fold_finish(at, at->p->centred, false, &joined, 0, &gs->fold)) {
        grad_fold_pass(gp, at, b, gs, &sums);
        fold_join(at->p->centred, &sums, 0, &joined);
        fold_finish(at, at->p->centred, true, &joined, 0, &gs->fold);
    }
}

/* ---- the column sums ---- */

TN_INLINE void add_products(double *sums, const double *v, const double *w, size_t n)
{
    size_t k = 0;
    for (; k + 16 <= n; k += 16)
        vd_store(sums + k, vd_fma(vd_load(v + k), vd_load(w + k), vd_load(sums + k)));
    for (; k < n; k++)
        sums[k] = fma(v[k], w[k], sums[k]);
}

TN_INLINE void add_columns(double *sums, const double *v, size_t n)
{
    size_t k = 0;
    for (; k + 16 <= n; k += 16)
        vd_store(sums + k, vd_add(vd_load(sums + k), vd_load(v + k)));
    for (; k < n; k++)
        sums[k] += v[k];
}

/* Elements [first, first+n) of a row, each column taking `positions` of them: a lane sum per run. */
static TN_NOINLINE void add_runs(double *sums, const double *v, size_t first, size_t n, size_t positions)
{
    for (size_t k = 0; k < n;) {
        size_t column = (first + k) / positions, left = positions - (first + k) % positions;
        size_t run = left < n - k ? left : n - k;
        double total = 0.0;
        for (; run >= 16; run -= 16, k += 16)
            total += vd_sum(vd_load(v + k));
        for (; run; run--, k++)
            total += v[k];
        sums[column] += total;
    }
}

static TN_NOINLINE void grad_columns(const struct tn_grad_plan *gp, const struct group_ref *at, size_t i,
                                     size_t n, struct grad_buffers *b, double *sums)
{
    const struct tn_plan *p = at->p;
    size_t width = p->groups * p->group, params = width / p->positions, column = at->g * p->group + i;
    const double *source[TN_COLUMN_OUTPUTS] = {b->hr, b->e, b->scale, b->shift};
    if (gp->columns[TN_DWEIGHT] && p->positions > 1)
        for (size_t k = 0; k < n; k += 16)
            vd_store(b->hr + k, vd_mul(vd_load(b->e + k), vd_load(b->hr + k)));
    for (int out = 0; out < TN_COLUMN_OUTPUTS; out++) {
        bool param = out == TN_DWEIGHT || out == TN_DBIAS;
        if (!gp->columns[out])
            continue;
        if (param && p->positions > 1)
            add_runs(sums, source[out], column, n, p->positions);
        else if (out == TN_DWEIGHT)
            add_products(sums + column, b->e, b->hr, n);
        else
            add_columns(sums + column, source[out], n);
        sums += param ? params : width;
    }
}

/* dx, dresidual, dgate of elements [i, i+n). */
static TN_NOINLINE void grad_elements(const struct tn_grad_plan *gp, const struct group_ref *at,
                                      const struct grad_stat *gs, size_t i, size_t n, struct grad_buffers *b)
{
    const struct tn_plan *p = at->p;
    const vd r = vd_set1(gp->folds ? gs->fold.r : gs->st.rh), scale = vd_set1(gs->st.scale),
             minus_k = vd_set1(gs->fold.minus_k), c = vd_set1(gs->fold.c);
    for (size_t k = 0; k < n; k += 16) {
        vd g = vd_load(b->g + k), h = vd_load(b->h + k);
        vd dx = gp->folds ? fold_dx(p->centred, vd_load(b->d + k), g, r, minus_k, c)
                          : grad_x(p->centred, g, h, vd_set1(gs->c0), vd_set1(gs->c1), r);
        dx = past_counted(p, i + k, dx, vd_mul(g, r));
        if (gs->st.scale != 1.0)
            dx = vd_mul(dx, scale);
        vd_store(b->h + k, dx);
    }
    if (p->gate_place == TN_GATE_BEFORE)
        for (size_t k = 0; k < n; k += 16) {
            vd du = vd_load(b->h + k);
            vd_store(b->slope + k, vd_mul(du, vd_load(b->slope + k)));
            vd_store(b->h + k, vd_mul(du, vd_load(b->act + k)));
        }
    if (gp->dsum.data) {
        stage_f64(&gp->dsum, group_row(at, &gp->dsum), i, n, b->wide.t, b->wide.raw);
        for (size_t k = 0; k < n; k += 16)
            vd_store(b->h + k, vd_add(vd_load(b->h + k), vd_load(b->wide.t + k)));
    }
    if (gp->dx.data)
        unstage_f64(&gp->dx, group_row(at, &gp->dx), i, n, b->h, b->wide.raw);
    if (gp->dresidual.data)
        unstage_f64(&gp->dresidual, group_row(at, &gp->dresidual), i, n, b->h, b->wide.raw);
    if (gp->dgate.data)
        unstage_f64(&gp->dgate, group_row(at, &gp->dgate), i, n, b->slope, b->wide.raw);
}

/* 1/sqrt(v + eps) before TN_ROUND_RSTD, which f64 rows, the only ones that are rescaled, do not have. */
static TN_NOINLINE double unrounded_rstd(const struct group_ref *at, struct wide_buffers *buf)
{
    struct tn_plan exact = *at->p;
    struct group_ref same = {&exact, at->i0, at->i1, at->g};
    struct tn_stat st;
    exact.round_r = TN_NONE;
    wide_group_stat(&same, buf, &st);
    return st.rh;
}

/* The statistics of a group, and the sums that `elements` need. */
static TN_NOINLINE void grad_statistics(const struct tn_grad_plan *gp, const struct group_ref *at,
                                        bool needs_sums, struct grad_buffers *b, struct grad_stat *gs)
{
    const struct tn_plan *p = at->p;
    *gs = (struct grad_stat){.c0 = 0.0};
    if (gp->folds) {
        grad_fold_row(gp, at, b, gs);
        return;
    }
    wide_group_stat(at, &b->wide, &gs->st);
    gs->r_unrounded = gs->st.rh;
    if (p->round_r != TN_NONE && p->source == TN_STATS_OWN)
        gs->r_unrounded = unrounded_rstd(at, &b->wide);
    if (needs_sums)
        grad_row_sums(gp, at, b, gs);
}

static void grad_wide_rows(const struct tn_grad_plan *gp, size_t r0, size_t r1, double *sums)
{
    const struct tn_plan *p = &gp->forward;
    struct grad_buffers b;
    size_t slot_size = tn_slot_size(gp);
    bool needs_sums = gp->elements && (gp->dx.data || gp->dresidual.data ||
                                       (gp->dgate.data && p->gate_place == TN_GATE_BEFORE));
    if (slot_size)
        memset(sums, 0, gp->slots * slot_size * sizeof *sums);
    for (size_t r = r0; r < r1; r++) {
        struct group_ref at = {p, r / p->rows[1], r % p->rows[1], 0};
        double *slot = slot_size ? sums + (r - r0) % gp->slots * slot_size : NULL;
        for (at.g = 0; at.g < p->groups; at.g++) {
            struct grad_stat gs;
            grad_statistics(gp, &at, needs_sums, &b, &gs);
            for (size_t i = 0; i < p->group; i += TN_CHUNK) {
                size_t n = chunk_of(i, p->group);
                if (gp->folds || !needs_sums || p->group > TN_CHUNK) /* else the row sums left it there */
                    grad_chunk(gp, &at, &gs, i, n, &b);
                if (slot_size)
                    grad_columns(gp, &at, i, n, &b, slot);
                if (gp->elements)
                    grad_elements(gp, &at, &gs, i, n, &b);
            }
        }
    }
}

#endif
