/* batch.h - contiguous rows several at a time. Their statistics share lane sums, square roots and divisions (one lane a
 * row). In f64 arithmetic the rows also share the parameters, widened to f64 a panel of columns at a time: conversions
 * are what limits it. The arithmetic of every row is that of fused_rows. */
#ifndef TN_BATCH_H
#define TN_BATCH_H

#include "kernels/fused_rows.h"

#define TN_BATCH 16
#define TN_BATCH_BYTES ((size_t)16 * 1024)  /* of x, so that the rows are still in L1 when they are applied */
#define TN_BATCH_LEAST 8                    /* rows; longer ones are better off in fused_rows */
#define TN_PANEL_BYTES ((size_t)128 * 1024) /* the same for L2, where the panels pay for it */
#define TN_PANEL 256                        /* columns */
#define TN_PANEL_ROW 1024 /* rows up to that length are one panel, filled once for all batches */

/* The parameters of a panel. */
struct panel {
    _Alignas(64) double w[TN_PANEL_ROW], b[TN_PANEL_ROW];
};

TN_INLINE bool has_panels(const struct fused k, const struct tn_plan *p)
{
    const struct tn_operand *w = &p->weight, *b = &p->bias;
    return k.v.algo == TN_A64 && k.v.has_w && k.extra != TN_GATED_BEFORE && p->groups == 1 &&
           w->stride[0] == 0 && w->stride[1] == 0 && b->stride[0] == 0 && b->stride[1] == 0;
}

/* Rows of a batch; 1: not worth one. */
TN_INLINE size_t batch_rows(const struct fused k, const struct tn_plan *p, size_t rows)
{
    const size_t row = p->group * tn_element_size(k.v.x);
    if (p->source != TN_STATS_OWN || p->eps_mode != TN_EPS_INSIDE || rows * p->groups < 4)
        return 1;
    if (k.extra == TN_GATED_BEFORE) {
        size_t m = sizeof(double) * TN_GATED_MAX / gated_row_bytes(k, p->group);
        return m < TN_BATCH ? m : TN_BATCH;
    }
    if (k.v.algo != TN_A64 || (has_panels(k, p) && p->group <= TN_PANEL_ROW)) {
        size_t m = TN_BATCH_BYTES / row, least = k.v.algo == TN_A64 ? 4 : TN_BATCH_LEAST;
        return m < least ? 1 : m < TN_BATCH ? m : TN_BATCH;
    }
    if (!has_panels(k, p) || row > 2 * TN_PANEL_BYTES)
        return 1;
    size_t m = row > TN_PANEL_BYTES / 2 ? 2 : TN_PANEL_BYTES / row;
    return m < TN_BATCH ? m : TN_BATCH;
}

struct batch {
    struct group_ref first;
    size_t m;
    /* where the rows are; of a gated one, x is its buffer */
    const char *x[TN_BATCH], *w[TN_BATCH], *b[TN_BATCH], *residual[TN_BATCH], *gate[TN_BATCH];
    char *sum[TN_BATCH], *y[TN_BATCH];
    /* their statistics, and as many more as one vector may write too much */
    double mh[2 * TN_BATCH], ml[2 * TN_BATCH], v[2 * TN_BATCH], rh[2 * TN_BATCH];
    /* what they are applied with (struct apply) */
    double c[TN_BATCH];
    float mh32[TN_BATCH], ml32[TN_BATCH], rh32[TN_BATCH], rl32[TN_BATCH];
    bool gates_fit[TN_BATCH];
};

TN_INLINE void keep_row(const struct fused k, const struct fused_row *row, struct batch *b, size_t j)
{
    b->x[j] = row->in.x;
    b->y[j] = row->y;
    b->w[j] = row->w;
    b->b[j] = row->b;
    if (k.extra == TN_ADDS) {
        b->residual[j] = row->in.residual;
        b->sum[j] = row->in.sum;
    }
    if (k.extra == TN_GATED_AFTER)
        b->gate[j] = row->gate;
}

TN_INLINE struct fused_row batch_row(const struct fused k, const struct batch *b, size_t j)
{
    struct fused_row row = {.in = input_of(k.v.x, b->x[j])};
    row.y = b->y[j];
    row.w = k.v.has_w ? b->w[j] : NULL;
    row.b = k.v.has_w && k.v.centred ? b->b[j] : NULL;
    if (k.extra == TN_ADDS) {
        row.in.adds = true;
        row.in.residual = b->residual[j];
        row.in.sum = b->sum[j];
    }
    if (k.extra == TN_GATED_AFTER)
        row.gate = b->gate[j];
    return row;
}

/* ---- statistics ---- */

/* Lane j: what `first_sums` of the j-th of m rows from `at` on add up to; squares only of FIRST_RAW. The rows are those
 * from j0 on of b. */
TN_INLINE vd batch_first(const struct fused k, struct group_ref *at, size_t m, size_t j0, struct batch *b,
                         char *buffer, vd *squares)
{
    const struct tn_plan *p = b->first.p;
    vd sums[TN_BATCH], other[TN_BATCH];
    struct fused_row row = fused_row_at(k, at);
    for (size_t j = 0; j < m; j++) {
        struct first_sums f = no_sums();
        keep_row(k, &row, b, j0 + j);
        if (p->far)
            fetch_ahead(k, &row, 0, p->group);
        if (k.extra == TN_GATED_BEFORE) {
            char *room = buffer + j * gated_row_bytes(k, p->group);
            b->gates_fit[j0 + j] = gate_row(k, &row.in, p->group, room, &f.s);
            b->x[j0 + j] = room;
        } else {
            add_first(k, row.in, p->counted, &f);
        }
        sums[j] = vd_add(f.s.a, f.s.b);
        if (k.first == FIRST_RAW)
            other[j] = vd_add(f.q.a, f.q.b);
        next_row(k, at, &row);
    }
    for (size_t j = m; j < TN_BATCH; j++)
        sums[j] = other[j] = vd_set1(0.0);
    if (k.first == FIRST_RAW)
        *squares = vd_sum_rows(other);
    return vd_sum_rows(sums);
}

/* Of m rows from `at` on, which is moved behind them. */
TN_INLINE void batch_statistics(const struct fused k, struct group_ref *at, size_t m, size_t j0,
                                struct batch *b, char *buffer)
{
    const struct tn_plan *p = b->first.p;
    const vd count = vd_set1(p->count), zero = vd_set1(0.0);
    vd squares = zero, sum = batch_first(k, at, m, j0, b, buffer, &squares), v = vd_div(sum, count);
    if (k.v.centred) {
        vd mh = v; /* stat_raw_moments */
        v = vd_div(vd_fma(vd_sub(zero, sum), mh, squares), count);
        vd_store(b->mh + j0, mh);
        vd_store(b->ml + j0, vd_div(vd_fma(vd_sub(zero, mh), count, sum), count));
    }
    vd_store(b->v + j0, v);
    vd_store(b->rh + j0, vd_div(vd_set1(1.0), vd_sqrt(vd_add(v, vd_set1(p->eps)))));
}

/* ---- the common case: all rows as they should be ---- */

/* Below 0 where a row is: its statistics hold, its arithmetic is the kernel's. A NaN or 0 says nothing. */
TN_INLINE vd batch_margin(const struct fused k, const struct tn_plan *p, vd mh, vd v, vd rh)
{
    const bool f32 = k.v.algo != TN_A64;
    vd worst = vd_sub(rh, vd_set1(f32 ? TN_R32_MAX : 0x1p500));
    if (f32)
        worst = vd_max(vd_sub(vd_set1(k.v.centred ? 0x1p-60 : TN_R32_MIN), rh), worst);
    if (k.first == FIRST_SHORT) {
        worst = vd_max(vd_sub(vd_set1(TN_SHORT_MIN), v), worst);
        worst = vd_max(vd_sub(v, vd_set1(TN_SHORT_MAX)), worst);
    }
    if (k.v.centred) {
        vd far = vd_mul(vd_abs(mh), rh);
        worst = vd_max(vd_sub(far, vd_set1(f32 ? TN_MEAN32_MAX : TN_FOLD_LIMIT)), worst);
        worst = vd_max(vd_sub(vd_set1(p->eps), v), worst);
        worst = vd_max(vd_sub(vd_mul(mh, mh), vd_mul(v, vd_set1(p->raw_limit))), worst);
    }
    return worst;
}

/* apply_setup of all rows; false: one of them is not common. */
TN_INLINE bool batch_setup(const struct fused k, struct batch *b)
{
    const struct tn_plan *p = b->first.p;
    const vd zero = vd_set1(0.0);
    vd v = vd_load(b->v), rh = vd_load(b->rh), mh = zero, ml = zero;
    if (k.v.centred) {
        mh = vd_load(b->mh);
        ml = vd_load(b->ml);
    }
    vd good = vd_select_neg(batch_margin(k, p, mh, v, rh), vd_set1(1.0), zero);
    if (vd_sum(vd_first(good, b->m)) != (double)b->m || (k.first != FIRST_SHORT && stores_better_stats(p)) ||
        p->eps_mode != TN_EPS_INSIDE)
        return false;
    for (size_t j = 0; k.extra == TN_GATED_BEFORE && j < b->m; j++)
        if (!b->gates_fit[j])
            return false;
    vf rh32 = vd_to_vf(rh);
    vf_store(TN_F32, b->rh32, 0, rh32);
    vf_store(TN_F32, b->rl32, 0, vd_to_vf(vd_sub(rh, vd_from_vf(rh32))));
    if (k.v.centred) {
        vf mh32 = vd_to_vf(mh);
        vf_store(TN_F32, b->mh32, 0, mh32);
        vf_store(TN_F32, b->ml32, 0, vd_to_vf(vd_add(vd_sub(mh, vd_from_vf(mh32)), ml)));
        vd c = vd_mul(mh, rh), minus_c = vd_sub(zero, c);
        c = vd_add(c, vd_add(vd_fma(mh, rh, minus_c), vd_mul(ml, rh)));
        vd_store(b->c, vd_sub(zero, c));
    }
    return true;
}

/* mean and rstd of all rows, where they are wanted. */
TN_INLINE void batch_write_stats(const struct fused k, const struct batch *b)
{
    struct group_ref at = b->first;
    if (TN_LIKELY(!at.p->mean.data && !at.p->rstd.data))
        return;
    for (size_t j = 0; j < b->m; j++, next_group(&at)) {
        if (k.first == FIRST_SHORT) {
            store_full_stats(k.v.x, k.extra == TN_ADDS, &at);
            continue;
        }
        struct tn_stat st = {k.v.centred ? b->mh[j] : 0, k.v.centred ? b->ml[j] : 0, b->rh[j], 0, 1.0, false};
        write_stats(&at, &st);
    }
}

/* ---- one row, common or not ---- */

/* By itself, where the shortcut of the whole batch failed it. */
TN_INLINE void redo_row(const struct fused k, const struct batch *b, size_t j, const struct group_ref *at,
                        struct tn_stat *st)
{
    struct first_sums f = no_sums();
    struct fused_row row = batch_row(k, b, j);
    row.in = stored_input(&row.in);
    add_first(k, row.in, at->p->group, &f);
    fused_finish(k, at, &row.in, &f, st);
}

/* The statistics of row j, as fused_finish would have them. */
TN_INLINE void batch_stat(const struct fused k, const struct group_ref *at, const struct batch *b, size_t j,
                          struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    *st = (struct tn_stat){0, 0, b->rh[j], 0, 1.0, false};
    if (k.first == FIRST_SHORT && TN_UNLIKELY(!short_mean_holds(b->v[j]))) {
        redo_row(k, b, j, at, st);
        return;
    }
    if (k.v.centred) {
        if (TN_UNLIKELY(!raw_moments_hold(p, b->mh[j], b->v[j]))) {
            redo_row(k, b, j, at, st);
            return;
        }
        st->mh = b->mh[j];
        st->ml = b->ml[j];
        st->fold = stat_may_fold(p, st->mh, b->v[j], st->rh);
    }
    if (TN_UNLIKELY(p->eps_mode != TN_EPS_INSIDE || b->v[j] + p->eps == 0.0))
        stat_rstd(p, b->v[j], st);
}

/* fused_start of row j; `at` is its place. */
TN_INLINE bool batch_start(const struct fused k, bool common, const struct batch *b, size_t j,
                           const struct group_ref *at, struct fused_apply *f)
{
    if (TN_LIKELY(common)) {
        f->a.r = b->rh[j];
        f->a.rh32 = b->rh32[j];
        f->a.rl32 = b->rl32[j];
        if (k.v.centred) {
            f->a.mh = b->mh[j];
            f->a.ml = b->ml[j];
            f->a.c = b->c[j];
            f->a.mh32 = b->mh32[j];
            f->a.ml32 = b->ml32[j];
        }
        f->fold = true;
        f->stream = at->p->stream;
        return true;
    }
    struct tn_stat st;
    batch_stat(k, at, b, j, &st);
    const bool fits = k.extra != TN_GATED_BEFORE || b->gates_fit[j] || gates_fit(at);
    return fused_start(k, at, &st, fits, f);
}

/* ---- apply ---- */

/* Row by row. */
TN_INLINE void batch_apply(const struct fused k, bool common, const struct batch *b)
{
    const size_t n = b->first.p->group;
    struct fused buffered = k;
    if (k.extra == TN_GATED_BEFORE)
        buffered.v.x = gated_dtype(k);
    struct group_ref at = b->first;
    for (size_t j = 0; j < b->m; j++) {
        struct fused_apply f = {0};
        if (batch_start(k, common, b, j, &at, &f)) {
            struct fused_row row = batch_row(buffered, b, j);
            apply_row(buffered, &row, 0, n, &f);
        }
        if (!common)
            next_group(&at);
    }
}

/* Elements c.. of row j, with the parameters of a panel. */
TN_INLINE struct fused_row panel_row(const struct fused k, const struct batch *b, size_t j, size_t c,
                                     const struct panel *panel, bool has_b)
{
    struct fused_row row = batch_row(k, b, j);
    row.in = input_from(stored_input(&row.in), c);
    row.w = (const char *)panel->w;
    row.b = has_b ? (const char *)panel->b : NULL;
    row.y += c * tn_element_size(k.v.y);
    if (k.extra == TN_GATED_AFTER)
        row.gate += c * tn_element_size(k.v.x);
    return row;
}

TN_INLINE void fill_panel(const struct fused k, const struct tn_plan *p, size_t c, size_t n,
                          struct panel *panel)
{
    const size_t size = tn_element_size(k.v.w);
    widen_f64(k.v.w, p->weight.data + c * size, n, panel->w);
    if (k.v.centred && p->bias.data)
        widen_f64(k.v.w, p->bias.data + c * size, n, panel->b);
}

/* Panel by panel; int8 in two sweeps, the first for the scales. A panel of whole rows is `filled`. */
TN_INLINE void batch_panels(const struct fused k, bool common, const struct batch *b, bool filled,
                            struct panel *panel)
{
    const struct tn_plan *p = b->first.p;
    const bool has_b = k.v.centred && p->bias.data, scales = k.extra == TN_INT8 && p->dynamic_scale;
    struct fused wide = k;
    struct fused_apply each[TN_BATCH]; /* unless they are common */
    struct quantiser q[TN_BATCH];
    vd top[TN_BATCH];
    struct group_ref at = b->first;
    wide.v.w = TN_F64;
    for (size_t j = 0; !common && j < b->m; j++, next_group(&at))
        (void)batch_start(k, false, b, j, &at, &each[j]);
    for (size_t j = 0; scales && j < b->m; j++)
        top[j] = vd_set1(0.0);
    for (int sweep = scales ? 0 : 1; sweep < 2; sweep++) {
        if (sweep == 1 && k.extra == TN_INT8) {
            at = b->first;
            for (size_t j = 0; j < b->m; j++, next_group(&at))
                q[j] = fused_quantiser(&at, scales ? top[j] : vd_set1(0.0));
        }
        const size_t width = filled ? p->group : TN_PANEL;
        for (size_t c = 0; c < p->group; c += width) {
            const size_t n = p->group - c < width ? p->group - c : width;
            if (!filled)
                fill_panel(k, p, c, n, panel);
            for (size_t j = 0; j < b->m; j++) {
                struct fused_row row = panel_row(k, b, j, c, panel, has_b);
                if (p->far && !filled) /* the same of the next batch */
                    fetch((const char *)row.in.x + b->m * p->group * tn_element_size(k.v.x),
                          n * tn_element_size(k.v.x));
                struct fused_apply f;
                if (TN_LIKELY(common))
                    (void)batch_start(k, true, b, j, &at, &f);
                else
                    f = each[j];
                if (sweep == 0) {
                    top[j] = fused_largest(wide, &row, n, &f.a, top[j]);
                    continue;
                }
                if (k.extra == TN_INT8)
                    f.q = q[j];
                apply_row(wide, &row, 0, n, &f);
            }
        }
    }
}

/* ---- rows ---- */

/* buffer: the products with a gate before, else not used. */
TN_INLINE void batches(const struct fused k, const struct tn_plan *p, size_t r0, size_t r1, size_t batch,
                       char *buffer)
{
    const size_t count = (r1 - r0) * p->groups, row = p->group * tn_element_size(k.v.x);
    const size_t in_l1 = k.extra == TN_GATED_BEFORE || batch * row <= TN_BATCH_BYTES ? batch
                         : row >= TN_BATCH_BYTES                                     ? 1
                                                                                     : TN_BATCH_BYTES / row;
    struct group_ref at = {p, r0 / p->rows[1], r0 % p->rows[1], 0};
    struct batch b;
    struct panel panel;
    const bool panels = k.v.algo == TN_A64 && k.extra != TN_GATED_BEFORE,
               filled = panels && p->group <= TN_PANEL_ROW;
    if (filled)
        fill_panel(k, p, 0, p->group, &panel);
    for (size_t j = 0; j < 2 * TN_BATCH; j++) /* rows that are not there */
        b.mh[j] = b.ml[j] = b.v[j] = b.rh[j] = 0.0;
    for (size_t done = 0; done < count; done += b.m) {
        b.first = at;
        b.m = count - done < batch ? count - done : batch;
        for (size_t j = 0, some; j < b.m; j += some) {
            some = b.m - j < in_l1 ? b.m - j : in_l1;
            batch_statistics(k, &at, some, j, &b, buffer);
        }
        const bool common = batch_setup(k, &b);
        if (common)
            batch_write_stats(k, &b);
        if (panels)
            batch_panels(k, common, &b, filled, &panel);
        else
            batch_apply(k, common, &b);
    }
    if (p->stream)
        vf_stream_end();
}

TN_INLINE void batched_rows(const struct fused k, const struct tn_plan *p, size_t r0, size_t r1, size_t batch)
{
    if (k.extra == TN_GATED_BEFORE) {
        _Alignas(64) char buffer[sizeof(double) * TN_GATED_MAX];
        batches(k, p, r0, r1, batch, buffer);
    } else {
        batches(k, p, r0, r1, batch, NULL);
    }
}

#endif
