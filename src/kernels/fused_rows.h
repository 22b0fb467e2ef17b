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
        for (size_t i = 0; i < n; i += TN_PIECE) {
            if (apply)
                apply_piece(k, &row, i, n, &f);
            if (ahead && p->far)
                fetch_ahead(k, &next, i, TN_PIECE);
            if (ahead && p->counted >= i + TN_PIECE)
                add_first(k, input_from(next.in, i), TN_PIECE, &sums);
            else if (ahead && p->counted > i)
                add_first(k, input_from(next.in, i), p->counted - i, &sums);
        }
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

/* s = x * act(gate) of a row to `s` (f32 or f64), its squares to sums; false: a gate is beyond the range of vf_act. */
TN_INLINE bool gate_row(const struct fused k, const struct input *in, size_t n, void *s, struct lanes *sums)
{
    vf margin = vf_set1(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        const bool tail = n - i < 16;
        vd v;
        if (k.v.algo != TN_A64) {
            vf t = input_f32(in, i, tail, n - i);
            vf gate = tail ? vf_load_n(in->dtype, in->gate, i, n - i) : vf_load(in->dtype, in->gate, i);
            margin = vf_min(tail ? last_margin(gate, t, n - i) : gated_margin(gate, t), margin);
            vf_store(TN_F32, s, i, t);
            v = vd_from_vf(t);
        } else {
            v = input_block(in, i, tail, n - i);
            vd_store((double *)s + i, v);
        }
        if (i & 16)
            sums->b = vd_fma(v, v, sums->b);
        else
            sums->a = vd_fma(v, v, sums->a);
    }
    return !vf_any_less(margin, 0.0f);
}

#endif
