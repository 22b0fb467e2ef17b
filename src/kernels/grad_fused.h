/* grad_fused.h - the backward of contiguous rows with constant dtypes: the arithmetic of grad.h without its buffers. */
#ifndef TN_GRAD_FUSED_H
#define TN_GRAD_FUSED_H

#include "kernels/grad.h"

/* What stays the same over a row. */
struct grad_row {
    const char *x, *w, *dy, *dsum;
    char *dx, *dresidual;
    double *dw, *db; /* column sums of this group, or NULL */
    vd mh, ml, r;
};

/* h, dy and G of the `left` (at most 16) elements from i. */
TN_INLINE void fused_grad_load(tn_dtype xt, tn_dtype wt, bool centred, bool tail, const struct grad_row *row,
                               double offset, size_t i, size_t left, vd *h, vd *dy, vd *g)
{
    vd d = vd_from_vf(tail ? vf_load_n(xt, row->x, i, left) : vf_load(xt, row->x, i));
    if (centred)
        d = vd_sub(vd_sub(d, row->mh), row->ml);
    *h = vd_mul(d, row->r);
    *dy = vd_from_vf(tail ? vf_load_n(xt, row->dy, i, left) : vf_load(xt, row->dy, i));
    *g = *dy;
    if (wt != TN_NONE) {
        vd w = vd_from_vf(tail ? vf_load_n(wt, row->w, i, left) : vf_load(wt, row->w, i));
        if (offset != 0.0)
            w = vd_add(w, vd_set1(offset));
        *g = vd_mul(*dy, w);
    }
}

TN_INLINE void fused_grad_sums(tn_dtype xt, tn_dtype wt, bool centred, const struct tn_plan *p,
                               const struct grad_row *row, struct grad_sums *s)
{
    struct lanes gh = lanes_zero(), sg = lanes_zero(), sh = lanes_zero();
    size_t n = p->group, i = 0;
    vd h, dy, g;
    for (; i + 32 <= n; i += 32) {
        fused_grad_load(xt, wt, centred, false, row, p->offset, i, 16, &h, &dy, &g);
        grad_step(centred, g, h, h, &gh.a, &sg.a, &sh.a);
        fused_grad_load(xt, wt, centred, false, row, p->offset, i + 16, 16, &h, &dy, &g);
        grad_step(centred, g, h, h, &gh.b, &sg.b, &sh.b);
    }
    if (i + 16 <= n) {
        fused_grad_load(xt, wt, centred, false, row, p->offset, i, 16, &h, &dy, &g);
        grad_step(centred, g, h, h, &gh.a, &sg.a, &sh.a);
        i += 16;
        if (i < n) {
            fused_grad_load(xt, wt, centred, true, row, p->offset, i, n - i, &h, &dy, &g);
            grad_step(centred, g, h, vd_first(h, n - i), &gh.b, &sg.b, &sh.b);
        }
    } else if (i < n) {
        fused_grad_load(xt, wt, centred, true, row, p->offset, i, n - i, &h, &dy, &g);
        grad_step(centred, g, h, vd_first(h, n - i), &gh.a, &sg.a, &sh.a);
    }
    *s = (struct grad_sums){gh, sg, sh};
}

TN_INLINE void add_to_columns(bool tail, double *sums, size_t left, vd v)
{
    if (!tail) {
        vd_store(sums, vd_add(vd_load(sums), v));
        return;
    }
    double t[16];
    vd_store(t, v);
    for (size_t k = 0; k < left; k++)
        sums[k] += t[k];
}

TN_INLINE void fused_grad_block(tn_dtype xt, tn_dtype wt, bool centred, bool tail, const struct tn_plan *p,
                                const struct grad_row *row, const struct grad_stat *gs, size_t i, size_t left)
{
    vd h, dy, g;
    fused_grad_load(xt, wt, centred, tail, row, p->offset, i, left, &h, &dy, &g);
    if (row->dw) {
        vd hr = p->round_h == TN_NONE ? h : vd_from_vf(vf_round(xt, vd_to_vf(h)));
        add_to_columns(tail, row->dw + i, left, vd_mul(dy, hr));
    }
    if (row->db)
        add_to_columns(tail, row->db + i, left, dy);
    if (!row->dx && !row->dresidual)
        return;
    vd dx = grad_x(centred, g, h, vd_set1(gs->c0), vd_set1(gs->c1), row->r);
    if (row->dsum)
        dx = vd_add(dx, vd_from_vf(tail ? vf_load_n(xt, row->dsum, i, left) : vf_load(xt, row->dsum, i)));
    vf out = vd_to_vf(dx);
    if (row->dx)
        tail ? vf_store_n(xt, row->dx, i, out, left) : vf_store(xt, row->dx, i, out);
    if (row->dresidual)
        tail ? vf_store_n(xt, row->dresidual, i, out, left) : vf_store(xt, row->dresidual, i, out);
}

TN_INLINE void fused_grad_group(tn_dtype xt, tn_dtype wt, bool centred, const struct tn_grad_plan *gp,
                                const struct group_ref *at, double *slot)
{
    const struct tn_plan *p = at->p;
    const struct tn_operand none = {0};
    const struct tn_operand *dx = gp->elements ? &gp->dx : &none,
                            *dres = gp->elements ? &gp->dresidual : &none;
    size_t n = p->group, width = p->groups * n;
    struct grad_row row = {.x = group_row(at, &p->x), .dy = group_row(at, &gp->dy)};
    struct grad_stat gs = {.c0 = 0.0, .c1 = 0.0};
    row.w = wt != TN_NONE ? group_row(at, &p->weight) : NULL;
    row.dsum = gp->dsum.data ? group_row(at, &gp->dsum) : NULL;
    row.dx = dx->data ? group_row(at, dx) : NULL;
    row.dresidual = dres->data ? group_row(at, dres) : NULL;
    row.dw = gp->columns[TN_DWEIGHT] ? slot + at->g * n : NULL;
    row.db = gp->columns[TN_DBIAS] ? slot + (gp->columns[TN_DWEIGHT] ? width : 0) + at->g * n : NULL;
    fused_statistics(xt, centred, at, row.x, &gs.st);
    gs.r_unrounded = gs.st.rh;
    row.mh = vd_set1(gs.st.mh);
    row.ml = vd_set1(gs.st.ml);
    row.r = vd_set1(gs.st.rh);
    if (row.dx || row.dresidual) {
        struct grad_sums s;
        fused_grad_sums(xt, wt, centred, p, &row, &s);
        grad_finish(p, &s, centred, &gs);
    }
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        fused_grad_block(xt, wt, centred, false, p, &row, &gs, i, 16);
    if (i < n)
        fused_grad_block(xt, wt, centred, true, p, &row, &gs, i, n - i);
}

TN_INLINE void fused_grad_rows(tn_dtype xt, tn_dtype wt, bool centred, const struct tn_grad_plan *gp,
                               size_t r0, size_t r1, double *sums)
{
    const struct tn_plan *p = &gp->forward;
    size_t slot_size = tn_slot_size(gp);
    TN_FOR_GROUPS(p, r0, r1, {
        double *slot = slot_size ? sums + (r - r0) % gp->slots * slot_size : NULL;
        fused_grad_group(xt, wt, centred, gp, &at, slot);
    });
}

#endif
