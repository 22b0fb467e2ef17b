/* fused_rows.h - the loops over long contiguous rows. */
#ifndef TN_FUSED_ROWS_H
#define TN_FUSED_ROWS_H

#include "kernels/fused.h"

/* In step `done` row done is summed and row done - 1 applied. */
TN_INLINE void fused_rows(const struct fused k, const struct tn_plan *p, size_t r0, size_t r1)
{
    const size_t n = p->group, count = (r1 - r0) * p->groups;
    const bool own = p->source == TN_STATS_OWN;
    struct group_ref at = {p, r0 / p->rows[1], r0 % p->rows[1], 0};
    struct first_sums sums = no_sums();
    for (size_t done = 0; done <= count; done++) {
        struct group_ref behind = at;
        struct fused_row row = {0}, next = {0};
        struct fused_apply f = {0};
        bool apply = false;
        const bool ahead = own && done < count;
        if (done > 0) {
            struct tn_stat st;
            row = fused_row_at(k, &behind);
            fused_finish(k, &behind, &row.in, &sums, &st);
            apply = fused_start(k, &behind, &st, true, &f);
            if (k.extra == TN_INT8)
                f.q = fused_quantiser(
                    &behind, p->dynamic_scale ? fused_largest(k, &row, n, &f.a, vd_set1(0.0)) : vd_set1(0.0));
            next_group(&at);
            sums = no_sums();
        }
        if (done < count)
            next = fused_row_at(k, &at);
        size_t i = 0;
        for (; apply && ahead && i + TN_PIECE <= p->counted; i += TN_PIECE) {
            apply_piece(k, &row, i, &f);
            if (p->far)
                fetch_ahead(k, &next, i, TN_PIECE);
            add_first(k, input_from(next.in, i), TN_PIECE, &sums);
        }
        if (apply)
            apply_row(k, &row, i, n, &f);
        if (ahead)
            add_first(k, input_from(next.in, i), p->counted - i, &sums);
    }
    if (p->stream)
        vf_stream_end();
}

/* ---- gate before ---- */

/* What x * act(gate) is kept as. */
TN_INLINE tn_dtype gated_dtype(const struct fused k)
{
    return k.v.algo == TN_A64 ? TN_F64 : TN_F32;
}

/* A row of those, with room for the last 16. */
TN_INLINE size_t gated_row_bytes(const struct fused k, size_t n)
{
    return round_up16(n) * tn_element_size(gated_dtype(k));
}

TN_INLINE void add_gated(vd v, size_t i, struct lanes *sums)
{
    if (i & 16)
        sums->b = vd_fma(v, v, sums->b);
    else
        sums->a = vd_fma(v, v, sums->a);
}

/* s = x * act(gate) of m blocks from i. The margin: gates in the range of vf_act. */
TN_INLINE vf gate_blocks(const struct fused k, const struct input *in, size_t i, size_t m, void *s,
                         struct lanes *sums, vf margin)
{
    vf x[TN_ACTS], gate[TN_ACTS];
    vd act[TN_ACTS];
    if (k.v.algo == TN_A64) {
        for (size_t j = 0; j < m; j++)
            act[j] = vd_widen(in->dtype, in->gate, i + 16 * j);
        vd_acts(TN_SILU, m, act, act);
        for (size_t j = 0; j < m; j++) {
            vd v = vd_mul(vd_widen(in->dtype, in->x, i + 16 * j), act[j]);
            vd_store((double *)s + i + 16 * j, v);
            add_gated(v, i + 16 * j, sums);
        }
        return margin;
    }
    for (size_t j = 0; j < m; j++) {
        x[j] = vf_load(in->dtype, in->x, i + 16 * j);
        gate[j] = vf_load(in->dtype, in->gate, i + 16 * j);
    }
    vf_gate(TN_SILU, in->dtype == TN_F16, m, x, gate, x);
    for (size_t j = 0; j < m; j++) {
        margin = vf_min(gated_margin(gate[j], x[j]), margin);
        vf_store(TN_F32, s, i + 16 * j, x[j]);
        add_gated(vd_from_vf(x[j]), i + 16 * j, sums);
    }
    return margin;
}

/* s = x * act(gate) of a row to `s` (f32 or f64), its squares to sums; false: a gate is beyond the range of vf_act. */
TN_INLINE bool gate_row(const struct fused k, const struct input *in, size_t n, void *s, struct lanes *sums)
{
    const size_t m = k.v.algo == TN_A64 ? TN_ACTS_F64 : TN_ACTS_F32;
    vf margin = vf_set1(1.0f);
    size_t i = 0;
    for (; i + 16 * m <= n; i += 16 * m)
        margin = gate_blocks(k, in, i, m, s, sums, margin);
    for (; m > 1 && i + 16 <= n; i += 16)
        margin = gate_blocks(k, in, i, 1, s, sums, margin);
    if (i < n) {
        vd v;
        if (k.v.algo != TN_A64) {
            vf t = input_f32(in, i, true, n - i);
            margin = vf_min(last_margin(vf_load_n(in->dtype, in->gate, i, n - i), t, n - i), margin);
            vf_store(TN_F32, s, i, t);
            v = vd_from_vf(t);
        } else {
            v = input_block(in, i, true, n - i);
            vd_store((double *)s + i, v);
        }
        add_gated(v, i, sums);
    }
    return !vf_any_less(margin, 0.0f);
}

#endif
