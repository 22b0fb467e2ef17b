/* grad_fused.h - the backward of contiguous rows with constant dtypes: the folded arithmetic (grad_fold.h) without the
 * buffers of grad.h.
 *
 * A few rows at a time: one pass for the sums of each row, then one over the columns, in which 16 or 32 columns of
 * dweight and dbias stay in registers over those rows. */
#ifndef TN_GRAD_FUSED_H
#define TN_GRAD_FUSED_H

#include "kernels/grad.h"
#include "kernels/grad_columns.h"

#define TN_GRAD_ROWS TN_FOLD_ROWS                  /* at most, at a time */
#define TN_GRAD_TILE ((size_t)16384)               /* elements of x in those */
#define TN_GRAD_WEIGHTS ((size_t)1024)             /* elements of w that are kept in f64 */
#define TN_GRAD_GATES ((size_t)4096)               /* elements whose sigmoid is kept */
#define TN_GRAD_BLOCKS (TN_VEC_GROUP == 4 ? 2 : 1) /* columns at a time, by 16: a line of 16-bit dx */

/* What a kernel is: all constant. */
struct grad_kind {
    tn_dtype x, w; /* w: TN_NONE without a weight */
    bool centred;
    enum tn_extra extra;
};

struct grad_row {
    const struct tn_plan *p;
    const char *x, *dy, *dsum, *residual, *gate;
    char *dx, *dresidual, *dgate;
    double *small; /* fold_small of the gate, from element t->small_from on */
    struct grad_fold f;
};

/* The rows of a tile, and what they share. */
struct grad_tile {
    struct grad_row rows[TN_GRAD_ROWS];
    size_t count, n;
    const char *w;
    double *dw, *db; /* the column sums, or NULL */
    double offset;
    bool kept; /* `small` is of the whole row */
    size_t small_from;
    bool fresh; /* nothing in the column sums yet */
    bool stream;
    size_t ahead; /* bytes to the same row of the next tile, to fetch it; 0: do not */
    bool rounds;
    bool lean; /* dx, dweight and perhaps dbias are wanted and no more, of rows that count in full */
};

/* ---- loads ---- */

TN_INLINE size_t grad_size(const struct grad_kind k)
{
    return k.x == TN_F32 ? 4 : 2;
}

TN_INLINE bool grad_gated(const struct grad_kind k)
{
    return k.extra == TN_GATED_BEFORE || k.extra == TN_GATED_AFTER;
}

/* Kinds that may have to count a part of the row only. */
TN_INLINE bool grad_partial(const struct grad_kind k)
{
    return !k.centred && k.extra == TN_PLAIN;
}

TN_INLINE vd grad_widen(tn_dtype dt, bool tail, const void *p, size_t i, size_t left)
{
    return tail ? vd_from_vf(vf_load_n(dt, p, i, left)) : vd_widen(dt, p, i);
}

/* What the norm saw: x, or the rounded x + residual. */
TN_INLINE vd grad_input(const struct grad_kind k, bool tail, const struct grad_row *row, size_t i,
                        size_t left)
{
    if (k.extra != TN_ADDS)
        return grad_widen(k.x, tail, row->x, i, left);
    vf s = tail ? vf_add(vf_load_n(k.x, row->x, i, left), vf_load_n(k.x, row->residual, i, left))
                : vf_add(vf_load(k.x, row->x, i), vf_load(k.x, row->residual, i));
    return vd_from_vf(vf_round(k.x, s));
}

TN_INLINE vd grad_weights(const struct grad_kind k, bool tail, const struct grad_tile *t, size_t i,
                          size_t left)
{
    vd w = grad_widen(k.w == TN_NONE ? TN_F32 : k.w, tail, t->w, i, left);
    return TN_UNLIKELY(t->offset != 0.0) ? vd_add(w, vd_set1(t->offset)) : w;
}

/* ---- the sums of a row ---- */

/* Elements [i, i + 16), or `left` of them; w and fold_small from `wide` and `small`. */
TN_INLINE void fused_step(const struct grad_kind k, bool tail, const struct grad_row *row, const double *wide,
                          const double *small, size_t i, size_t left, vd *sum_d, vd *sum_dd, vd *sum_g,
                          vd *sum_gd)
{
    vd d = grad_input(k, tail, row, i, left), value = d, slope;
    if (grad_gated(k))
        fold_act(TN_SILU, grad_widen(k.x, tail, row->gate, i, left), vd_load(small), &value, &slope);
    if (k.extra == TN_GATED_BEFORE)
        d = vd_mul(d, value);
    if (k.centred)
        d = vd_sub(d, vd_set1(row->f.shift));
    if (k.centred && tail)
        d = vd_first(d, left);
    vd g = grad_widen(k.x, tail, row->dy, i, left);
    if (k.extra == TN_GATED_AFTER)
        g = vd_mul(g, value);
    if (k.w != TN_NONE)
        g = vd_mul(g, vd_load(wide));
    fold_step(k.centred, d, grad_partial(k) ? counted_lanes(row->p, i, d) : d, g, sum_d, sum_dd, sum_g,
              sum_gd);
}

/* Adds elements [i, end). */
TN_INLINE void fused_sums(const struct grad_kind k, const struct grad_row *row, const double *wide,
                          const double *small, size_t i, size_t end, struct fold_lanes *sums)
{
    struct lanes d = sums->d, dd = sums->dd, g = sums->g, gd = sums->gd;
#define STEP(half, tail, left)                                                                               \
    fused_step(k, tail, row, wide, small, i, left, &d.half, &dd.half, &g.half, &gd.half);                    \
    i += 16;                                                                                                 \
    wide += 16;                                                                                              \
    small += 16
    while (i + 32 <= end) {
        STEP(a, false, 16);
        STEP(b, false, 16);
    }
    if (i + 16 <= end) {
        STEP(a, false, 16);
        if (i < end) {
            STEP(b, true, end - i);
        }
    } else if (i < end) {
        STEP(a, true, end - i);
    }
#undef STEP
    sums->d = d;
    sums->dd = dd;
    sums->g = g;
    sums->gd = gd;
}

/* w of elements [i, end) in f64. */
TN_INLINE void fused_weights(const struct grad_kind k, const struct grad_tile *t, size_t i, size_t end,
                             double *wide)
{
    for (; k.w != TN_NONE && i + 16 <= end; i += 16, wide += 16)
        vd_store(wide, grad_weights(k, false, t, i, 16));
    if (k.w != TN_NONE && i < end)
        vd_store(wide, grad_weights(k, true, t, i, end - i));
}

/* Adds elements [i, end) of row r of a tile. `wide` holds the w of a row that is short enough, else from i on. */
TN_INLINE void fused_row_sums(const struct grad_kind k, const struct grad_tile *t, size_t r, size_t i,
                              size_t end, const double *wide, struct fold_lanes *sums)
{
    const struct grad_row *row = &t->rows[r];
    if (grad_gated(k) && !t->kept)
        fold_small_row(k.x, row->gate + i * grad_size(k), end - i, row->small);
    fused_sums(k, row, wide, row->small + (t->kept ? i : 0), i, end, sums);
}

/* Sums of rows [first, last) of a tile. */
TN_INLINE void fused_tile_sums(const struct grad_kind k, const struct grad_tile *t, size_t first, size_t last,
                               double *wide, struct fold_sums *joined)
{
    if (t->n <= TN_GRAD_WEIGHTS) {
        for (size_t r = first; r < last; r++) {
            struct fold_lanes sums = fold_zero();
            fused_row_sums(k, t, r, 0, t->n, wide, &sums);
            fold_join(k.centred, &sums, r, joined);
        }
        return;
    }
    struct fold_lanes sums[TN_GRAD_ROWS];
    for (size_t r = first; r < last; r++)
        sums[r] = fold_zero();
    for (size_t i = 0; i < t->n; i += TN_GRAD_WEIGHTS) {
        size_t end = t->n - i < TN_GRAD_WEIGHTS ? t->n : i + TN_GRAD_WEIGHTS;
        fused_weights(k, t, i, end, wide);
        for (size_t r = first; r < last; r++)
            fused_row_sums(k, t, r, i, end, wide, &sums[r]);
    }
    for (size_t r = first; r < last; r++)
        fold_join(k.centred, &sums[r], r, joined);
}

/* ---- columns ---- */

/* A gradient of `blocks` times 16 elements, or `left` of 16. */
TN_INLINE void store_gradient(const struct grad_kind k, bool tail, bool stream, char *to, size_t i,
                              size_t left, const vf *v, size_t blocks)
{
    if (tail)
        vf_store_n(k.x, to, i, v[0], left);
    else if (stream)
        vf_put(true, k.x, to, i, v, blocks);
    else
        vf_put(false, k.x, to, i, v, blocks);
}

TN_INLINE void store_dgate(const struct grad_kind k, bool tail, const struct grad_row *row, size_t i,
                           size_t left, vd dgate)
{
    vf v = vd_to_vf(dgate);
    if (row->dgate)
        store_gradient(k, tail, false, row->dgate, i, left, &v, 1);
}

/* The same elements of the next tile, to L2. */
TN_INLINE void fetch_next_tile(const struct grad_kind k, const struct grad_tile *t,
                               const struct grad_row *row, size_t i)
{
    const size_t at = i * grad_size(k) + t->ahead;
    if (k.x != TN_F32 && i % 32 != 0)
        return;
    __builtin_prefetch(row->x + at, 0, 2);
    __builtin_prefetch(row->dy + at, 0, 2);
    if (k.extra == TN_ADDS)
        __builtin_prefetch(row->residual + at, 0, 2);
}

/* dx of one row at columns [i, i + 16), or `left` of them, if any `elements` are wanted. */
TN_INLINE vd fused_grad_block(const struct grad_kind k, bool lean, bool tail, const struct grad_tile *t,
                              const struct grad_row *row, size_t i, size_t left, vd w, vd *dw, vd *db,
                              bool elements)
{
    const vd r = vd_set1(row->f.r);
    if (t->ahead)
        fetch_next_tile(k, t, row, i);
    vd d = grad_input(k, tail, row, i, left), e = grad_widen(k.x, tail, row->dy, i, left), value = e,
       slope = e;
    if (grad_gated(k))
        fold_act(TN_SILU, grad_widen(k.x, tail, row->gate, i, left),
                 vd_load(row->small + (i - t->small_from)), &value, &slope);
    if (k.extra == TN_GATED_AFTER) {
        slope = vd_mul(slope, e);
        e = vd_mul(e, value);
    }
    if (k.extra == TN_GATED_BEFORE) {
        slope = vd_mul(slope, d);
        d = vd_mul(d, value);
    }
    if (k.centred)
        d = vd_sub(d, vd_set1(row->f.shift));
    if (lean || t->dw || k.extra == TN_GATED_AFTER) {
        vd h = fold_h(k.centred, d, r, vd_set1(row->f.hc));
        if (!lean && t->rounds)
            h = vd_from_vf(vf_round(k.x, vd_to_vf(h)));
        *dw = vd_fma(e, h, *dw);
        if (k.extra == TN_GATED_AFTER)
            store_dgate(k, tail, row, i, left, vd_mul(slope, k.w != TN_NONE ? vd_mul(h, w) : h));
    }
    if (k.centred || t->db)
        *db = vd_add(*db, e);
    if (!elements)
        return e;
    vd g = k.w != TN_NONE ? vd_mul(e, w) : e;
    vd dx = fold_dx(k.centred, d, g, r, vd_set1(row->f.minus_k), vd_set1(row->f.c));
    if (!lean && grad_partial(k))
        dx = past_counted(row->p, i, dx, vd_mul(g, r));
    if (k.extra == TN_GATED_BEFORE) {
        store_dgate(k, tail, row, i, left, vd_mul(dx, slope));
        dx = vd_mul(dx, value);
    }
    return !lean && row->dsum ? vd_add(dx, grad_widen(k.x, tail, row->dsum, i, left)) : dx;
}

/* All rows at columns [i, i + 16 blocks), or `left` of 16. */
TN_INLINE void fused_grad_columns(const struct grad_kind k, bool lean, bool tail, size_t blocks,
                                  const struct grad_tile *t, size_t i, size_t left)
{
    vd dw[TN_GRAD_BLOCKS], db[TN_GRAD_BLOCKS], w[TN_GRAD_BLOCKS];
    for (size_t j = 0; j < blocks; j++) {
        const size_t at = i + 16 * j;
        w[j] = k.w != TN_NONE ? grad_weights(k, tail, t, at, left) : vd_set1(0.0);
        dw[j] = t->dw && !t->fresh ? load_sums(tail, t->dw + at, left) : vd_set1(0.0);
        db[j] = t->db && !t->fresh ? load_sums(tail, t->db + at, left) : vd_set1(0.0);
    }
    for (size_t r = 0; r < t->count; r++) {
        const struct grad_row *row = &t->rows[r];
        const bool elements = lean || row->dx || row->dresidual || (k.extra == TN_GATED_BEFORE && row->dgate);
        vf dx[TN_GRAD_BLOCKS];
        for (size_t j = 0; j < blocks; j++)
            dx[j] = vd_to_vf(
                fused_grad_block(k, lean, tail, t, row, i + 16 * j, left, w[j], &dw[j], &db[j], elements));
        if (lean || row->dx)
            store_gradient(k, tail, t->stream, row->dx, i, left, dx, blocks);
        if (!lean && row->dresidual)
            store_gradient(k, tail, false, row->dresidual, i, left, dx, blocks);
    }
    for (size_t j = 0; j < blocks; j++) {
        if (t->dw)
            store_sums(tail, t->dw + i + 16 * j, left, dw[j]);
        if (t->db)
            store_sums(tail, t->db + i + 16 * j, left, db[j]);
    }
}

/* fold_small of the gates from element i on, where there is no room for the whole rows. */
TN_INLINE void fused_gates(const struct grad_kind k, struct grad_tile *t, size_t i)
{
    size_t n = t->n - i < TN_GRAD_WEIGHTS ? t->n - i : TN_GRAD_WEIGHTS;
    t->small_from = i;
    for (size_t r = 0; r < t->count; r++)
        fold_small_row(k.x, t->rows[r].gate + i * grad_size(k), n, t->rows[r].small);
}

/* The second pass. */
TN_INLINE void fused_tile_columns(const struct grad_kind k, struct grad_tile *t)
{
    const size_t step = 16 * TN_GRAD_BLOCKS;
    size_t i = 0;
    t->small_from = 0;
    for (; i + step <= t->n; i += step) {
        if (grad_gated(k) && !t->kept && i % TN_GRAD_WEIGHTS == 0)
            fused_gates(k, t, i);
        if (k.extra == TN_PLAIN && k.w != TN_NONE && TN_LIKELY(t->lean))
            fused_grad_columns(k, true, false, TN_GRAD_BLOCKS, t, i, 16);
        else
            fused_grad_columns(k, false, false, TN_GRAD_BLOCKS, t, i, 16);
    }
    if (grad_gated(k) && !t->kept && i % TN_GRAD_WEIGHTS == 0)
        fused_gates(k, t, i);
    if (TN_GRAD_BLOCKS > 1 && i + 16 <= t->n) {
        fused_grad_columns(k, false, false, 1, t, i, 16);
        i += 16;
    }
    if (i < t->n)
        fused_grad_columns(k, false, true, 1, t, i, t->n - i);
}

/* ---- rows ---- */

TN_INLINE void fused_grad_tile(const struct grad_kind k, const struct group_ref *refs, struct grad_tile *t,
                               double *wide)
{
    struct fold_sums sums;
    struct fold_rows folded;
    for (size_t r = 0; grad_gated(k) && t->kept && r < t->count; r++)
        fold_small_row(k.x, t->rows[r].gate, t->n, t->rows[r].small);
    fused_tile_sums(k, t, 0, t->count, wide, &sums);
    const bool common = t->count > 2 && fold_finish_rows(refs, t->count, k.centred, &sums, &folded);
    for (size_t r = 0; r < t->count; r++) {
        struct grad_fold *f = &t->rows[r].f;
        if (common) {
            *f = (struct grad_fold){0.0, folded.r[r], folded.hc[r], folded.minus_k[r], folded.c[r]};
        } else if (!fold_finish(&refs[r], k.centred, false, &sums, r, f)) {
            fused_tile_sums(k, t, r, r + 1, wide, &sums);
            fold_finish(&refs[r], k.centred, true, &sums, r, f);
        }
    }
    fused_tile_columns(k, t);
}

/* The row after `from`, with the same rows[0]. */
static inline void grad_next_row(const struct grad_kind k, const struct tn_grad_plan *gp,
                                 const struct grad_row *from, struct grad_row *to)
{
    const struct tn_plan *p = &gp->forward;
    *to = *from;
    to->x += p->x.stride[1];
    to->dy += gp->dy.stride[1];
    if (k.extra == TN_ADDS)
        to->residual += p->residual.stride[1];
    if (grad_gated(k))
        to->gate += p->gate.stride[1];
    if (to->dsum)
        to->dsum += gp->dsum.stride[1];
    if (to->dgate)
        to->dgate += gp->dgate.stride[1];
    if (to->dx)
        to->dx += gp->dx.stride[1];
    if (to->dresidual)
        to->dresidual += gp->dresidual.stride[1];
}

static inline void grad_tile_row(const struct grad_kind k, const struct tn_grad_plan *gp,
                                 const struct group_ref *at, struct grad_row *row)
{
    const struct tn_plan *p = at->p;
    row->p = p;
    row->x = group_row(at, &p->x);
    row->dy = group_row(at, &gp->dy);
    row->residual = k.extra == TN_ADDS ? group_row(at, &p->residual) : NULL;
    row->dsum = gp->dsum.data ? group_row(at, &gp->dsum) : NULL;
    row->gate = grad_gated(k) ? group_row(at, &p->gate) : NULL;
    row->dgate = gp->elements && gp->dgate.data ? group_row(at, &gp->dgate) : NULL;
    row->dx = gp->elements && gp->dx.data ? group_row(at, &gp->dx) : NULL;
    row->dresidual = gp->elements && gp->dresidual.data ? group_row(at, &gp->dresidual) : NULL;
    row->f.shift = 0.0;
}

/* Rows that a tile may have: those that share weights and column sums, as many as stay in the caches. */
static inline size_t grad_tile_rows(const struct grad_kind k, const struct tn_grad_plan *gp)
{
    const struct tn_plan *p = &gp->forward;
    size_t fit = grad_gated(k) ? TN_GRAD_GATES / round_up16(p->group) : TN_GRAD_TILE / p->group,
           most = fit < 1              ? 1
                  : fit < TN_GRAD_ROWS ? fit
                                       : TN_GRAD_ROWS;
    bool shared = !p->weight.data || (p->weight.stride[0] == 0 && p->weight.stride[1] == 0);
    return gp->slots <= 1 && shared ? most : 1;
}

TN_INLINE void fused_grad_rows(const struct grad_kind k, const struct tn_grad_plan *gp, size_t r0, size_t r1,
                               double *sums)
{
    const struct tn_plan *p = &gp->forward;
    const size_t n = p->group, width = p->groups * n, most = grad_tile_rows(k, gp),
                 slot_size = tn_slot_size(gp);
    double wide[TN_GRAD_WEIGHTS], small[TN_GRAD_GATES];
    const char *kept = NULL; /* what `wide` holds */
    struct grad_tile t = {.n = n,
                          .offset = p->offset,
                          .rounds = p->round_h != TN_NONE,
                          .kept = round_up16(n) <= TN_GRAD_GATES,
                          .stream = gp->stream && (k.x == TN_F32 || TN_GRAD_BLOCKS > 1)};
    struct group_ref at = {p, r0 / p->rows[1], r0 % p->rows[1], 0};
    for (size_t r = r0; r < r1; r += t.count) {
        double *slot = slot_size ? sums + (r - r0) % gp->slots * slot_size : NULL;
        struct group_ref refs[TN_GRAD_ROWS];
        t.count = r1 - r < most ? r1 - r : most;
        t.fresh = r - r0 < gp->slots;
        t.ahead = p->far && p->groups == 1 ? t.count * n * grad_size(k) : 0;
        for (size_t j = 0; j < t.count; j++) {
            refs[j] = at;
            next_row_of(&at);
        }
        for (size_t g = 0; g < p->groups; g++) {
            for (size_t j = 0; j < t.count; j++) {
                refs[j].g = g;
                if (j > 0 && refs[j].i0 == refs[j - 1].i0)
                    grad_next_row(k, gp, &t.rows[j - 1], &t.rows[j]);
                else
                    grad_tile_row(k, gp, &refs[j], &t.rows[j]);
                t.rows[j].small = small + (t.kept ? j * round_up16(n) : 0);
            }
            t.w = k.w != TN_NONE ? group_row(&refs[0], &p->weight) : NULL;
            t.dw = gp->columns[TN_DWEIGHT] ? slot + g * n : NULL;
            t.lean = t.dw && t.rows[0].dx && !t.rows[0].dresidual && !t.rows[0].dsum && !t.rounds &&
                     p->counted == p->group;
            t.db = gp->columns[TN_DBIAS] ? slot + (gp->columns[TN_DWEIGHT] ? width : 0) + g * n : NULL;
            if (n <= TN_GRAD_WEIGHTS && t.w != kept)
                fused_weights(k, &t, 0, n, wide);
            kept = t.w;
            fused_grad_tile(k, refs, &t, wide);
        }
    }
    if (gp->stream)
        vf_stream_end();
}

#endif
