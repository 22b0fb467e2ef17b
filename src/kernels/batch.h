/* batch.h - contiguous rows several at a time. Their statistics share lane sums, square roots and divisions (one lane a
 * row). In f64 arithmetic the rows also share the parameters, widened to f64 a panel of columns at a time: conversions
 * are what limits it. The arithmetic of every row is that of fused_rows. */
#ifndef TN_BATCH_H
#define TN_BATCH_H

#include "kernels/fused_rows.h"

#define TN_BATCH 16
#define TN_BATCH_BYTES ((size_t)16 * 1024)  /* of x, so that the rows are still in L1 when they are applied */
#define TN_PANEL_BYTES ((size_t)128 * 1024) /* the same for L2, where the panels pay for it */
#define TN_PANEL 256                        /* columns */

/* The parameters of a panel. */
struct panel {
    _Alignas(64) double w[TN_PANEL], b[TN_PANEL];
};

TN_INLINE bool has_panels(const struct fused k, const struct tn_plan *p)
{
    const struct tn_operand *w = &p->weight, *b = &p->bias;
    return k.v.algo == TN_A64 && k.v.has_w && k.extra != TN_GATED_BEFORE && p->groups == 1 &&
           w->stride[0] == 0 && w->stride[1] == 0 && b->stride[0] == 0 && b->stride[1] == 0;
}

/* Rows of a batch; 1: not worth one. */
TN_INLINE size_t batch_rows(const struct fused k, const struct tn_plan *p)
{
    const size_t row = p->group * tn_element_size(k.v.x);
    if (p->source != TN_STATS_OWN || p->eps_mode != TN_EPS_INSIDE || k.extra == TN_GATED_BEFORE)
        return 1;
    if (k.v.algo != TN_A64) {
        size_t m = TN_BATCH_BYTES / row;
        return m < 4 ? 1 : m < TN_BATCH ? m : TN_BATCH;
    }
    if (!has_panels(k, p) || row > 2 * TN_PANEL_BYTES)
        return 1;
    size_t m = row > TN_PANEL_BYTES / 2 ? 2 : TN_PANEL_BYTES / row;
    return m < TN_BATCH ? m : TN_BATCH;
}

/* ---- statistics ---- */

struct batch_stats {
    double mh[TN_BATCH], ml[TN_BATCH], v[TN_BATCH], rh[TN_BATCH];
};

/* Lane j: what `first_sums` of the j-th of m rows add up to; squares only of FIRST_RAW. */
TN_INLINE vd batch_first(const struct fused k, struct group_ref at, size_t m, vd *squares)
{
    const struct tn_plan *p = at.p;
    vd sums[TN_BATCH], other[TN_BATCH];
    for (size_t j = 0; j < TN_BATCH; j++) {
        sums[j] = other[j] = vd_set1(0.0);
        if (j >= m)
            continue;
        struct first_sums f = no_sums();
        struct fused_row row = fused_row_at(k, &at);
        if (p->far)
            fetch_ahead(k, &row, 0, p->group);
        add_first(k, row.in, p->counted, &f);
        sums[j] = k.first == FIRST_ROUGH ? rough_lanes(f.rough) : vd_add(f.s.a, f.s.b);
        if (k.first == FIRST_RAW)
            other[j] = vd_add(f.q.a, f.q.b);
        next_group(&at);
    }
    if (k.first == FIRST_RAW)
        *squares = vd_sum_rows(other);
    return vd_sum_rows(sums);
}

/* The second pass: from the means of m rows to their variances and low parts. */
TN_INLINE vd batch_centred(const struct fused k, struct group_ref at, size_t m, const double *mean, vd *low)
{
    const struct tn_plan *p = at.p;
    const vd count = vd_set1(p->count), zero = vd_set1(0.0);
    vd first[TN_BATCH], second[TN_BATCH];
    for (size_t j = 0; j < TN_BATCH; j++) {
        first[j] = second[j] = zero;
        if (j >= m)
            continue;
        struct lanes d1 = lanes_zero(), d2 = lanes_zero();
        struct fused_row row = fused_row_at(k, &at);
        struct input in = stored_input(&row.in);
        sum_centred(&in, p->group, mean[j], &d1, &d2);
        first[j] = vd_add(d1.a, d1.b);
        second[j] = vd_add(d2.a, d2.b);
        next_group(&at);
    }
    vd sum1 = vd_sum_rows(first), sum2 = vd_sum_rows(second);
    *low = p->count == (double)p->counted ? vd_div(sum1, count) : zero;
    return vd_max(zero, vd_div(vd_sub(sum2, vd_mul(sum1, *low)), count));
}

/* One row by itself, where the shortcut of the whole batch failed it. */
TN_INLINE void redo_row(const struct fused k, const struct group_ref *at, struct tn_stat *st)
{
    struct first_sums f = no_sums();
    struct fused_row row = fused_row_at(k, at);
    row.in = stored_input(&row.in);
    add_first(k, row.in, at->p->group, &f);
    fused_finish(k, at, &row.in, &f, st);
}

/* Rows j0.. (m of them) of b. */
TN_INLINE void batch_statistics(const struct fused k, const struct group_ref *first, size_t m, size_t j0,
                                struct batch_stats *b)
{
    const struct tn_plan *p = first->p;
    const vd count = vd_set1(p->count), zero = vd_set1(0.0);
    double mean[TN_BATCH], t[TN_BATCH];
    vd squares = zero, low = zero, sum = batch_first(k, *first, m, &squares), v = vd_div(sum, count);
    if (k.v.centred) {
        vd_store(mean, v);
        memcpy(b->mh + j0, mean, m * sizeof *mean);
        if (k.first == FIRST_RAW) { /* stat_raw_moments */
            vd mh = v;
            v = vd_div(vd_fma(vd_sub(zero, sum), mh, squares), count);
            low = vd_div(vd_fma(vd_sub(zero, mh), count, sum), count);
        } else {
            v = batch_centred(k, *first, m, mean, &low);
        }
        vd_store(t, low);
        memcpy(b->ml + j0, t, m * sizeof *t);
    }
    vd_store(t, v);
    memcpy(b->v + j0, t, m * sizeof *t);
    vd_store(t, vd_div(vd_set1(1.0), vd_sqrt(vd_add(v, vd_set1(p->eps)))));
    memcpy(b->rh + j0, t, m * sizeof *t);
}

/* The statistics of row j of a batch, as fused_finish would have them. */
TN_INLINE void batch_stat(const struct fused k, const struct group_ref *at, const struct batch_stats *b,
                          size_t j, struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    *st = (struct tn_stat){0, 0, b->rh[j], 0, 1.0, false};
    if (k.v.centred) {
        bool kept = k.first == FIRST_RAW
                        ? b->v[j] * TN_RAW_LIMIT >= b->mh[j] * b->mh[j]
                        : p->count == (double)p->counted && stat_rough_will_do(b->ml[j], b->v[j]);
        if (TN_UNLIKELY(!kept)) {
            redo_row(k, at, st);
            return;
        }
        st->mh = b->mh[j];
        st->ml = b->ml[j];
        st->fold = stat_may_fold(p, st->mh, b->v[j], st->rh);
    }
    if (TN_UNLIKELY(b->v[j] + p->eps == 0.0))
        stat_rstd(p, b->v[j], st);
}

/* ---- apply ---- */

/* Row by row. */
TN_INLINE void batch_apply(const struct fused k, struct group_ref at, size_t m, const struct batch_stats *b)
{
    const size_t n = at.p->group;
    for (size_t j = 0; j < m; j++, next_group(&at)) {
        struct tn_stat st;
        struct fused_apply f = {0};
        batch_stat(k, &at, b, j, &st);
        if (!fused_start(k, &at, &st, true, &f))
            continue;
        struct fused_row row = fused_row_at(k, &at);
        for (size_t i = 0; i < n; i += TN_PIECE)
            apply_piece(k, &row, i, n, &f);
    }
}

/* Elements c.. of a row, with the parameters of a panel. */
TN_INLINE struct fused_row panel_row(const struct fused k, const struct group_ref *at, size_t c,
                                     const struct panel *panel, bool has_b)
{
    struct fused_row row = fused_row_at(k, at);
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

/* Panel by panel; int8 in two sweeps, the first for the scales. */
TN_INLINE void batch_panels(const struct fused k, struct group_ref first, size_t m,
                            const struct batch_stats *b)
{
    const struct tn_plan *p = first.p;
    const bool has_b = k.v.centred && p->bias.data, scales = k.extra == TN_INT8 && p->dynamic_scale;
    struct fused wide = k;
    struct fused_apply f[TN_BATCH];
    struct panel panel;
    vd top[TN_BATCH];
    struct group_ref at = first;
    wide.v.w = TN_F64;
    for (size_t j = 0; j < m; j++, next_group(&at)) {
        struct tn_stat st;
        batch_stat(k, &at, b, j, &st);
        (void)fused_start(k, &at, &st, true, &f[j]);
        top[j] = vd_set1(0.0);
    }
    for (int sweep = scales ? 0 : 1; sweep < 2; sweep++) {
        if (sweep == 1 && k.extra == TN_INT8) {
            at = first;
            for (size_t j = 0; j < m; j++, next_group(&at))
                f[j].q = fused_quantiser(&at, top[j]);
        }
        for (size_t c = 0; c < p->group; c += TN_PANEL) {
            const size_t n = p->group - c < TN_PANEL ? p->group - c : TN_PANEL;
            fill_panel(k, p, c, n, &panel);
            at = first;
            for (size_t j = 0; j < m; j++, next_group(&at)) {
                struct fused_row row = panel_row(k, &at, c, &panel, has_b);
                if (sweep == 0)
                    top[j] = fused_largest(wide, &row, n, &f[j].a, top[j]);
                else
                    for (size_t i = 0; i < n; i += TN_PIECE)
                        apply_piece(wide, &row, i, n, &f[j]);
            }
        }
    }
}

/* ---- rows ---- */

TN_INLINE void batched_rows(const struct fused k, const struct tn_plan *p, size_t r0, size_t r1, size_t batch)
{
    const size_t count = (r1 - r0) * p->groups, row = p->group * tn_element_size(k.v.x);
    const size_t in_l1 = row >= TN_BATCH_BYTES ? 1 : TN_BATCH_BYTES / row;
    struct group_ref at = {p, r0 / p->rows[1], r0 % p->rows[1], 0};
    struct batch_stats b = {0};
    for (size_t done = 0; done < count; done += batch) {
        const size_t m = count - done < batch ? count - done : batch;
        struct group_ref next = at;
        for (size_t j = 0; j < m;) {
            size_t some = m - j < in_l1 ? m - j : in_l1;
            batch_statistics(k, &next, some, j, &b);
            for (; some; some--, j++)
                next_group(&next);
        }
        if (k.v.algo == TN_A64)
            batch_panels(k, at, m, &b);
        else
            batch_apply(k, at, m, &b);
        at = next;
    }
    if (p->stream)
        vf_stream_end();
}

#endif
