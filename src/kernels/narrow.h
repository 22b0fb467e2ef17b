/* narrow.h - rows whose values are f32, bf16 or f16: the fused kernels and the general one beside them.
 *
 * Both do the same arithmetic on each element, so which one runs never shows in the bits. */
#ifndef TN_NARROW_H
#define TN_NARROW_H

#include "kernels/apply.h"
#include "kernels/stage.h"

/* ---- the general kernel: any of the three dtypes per operand, any strides, chunk by chunk ---- */

/* One group of one row, and its L1 buffers. */
struct group_ref {
    const struct tn_plan *p;
    size_t i0, i1, g;
};
struct narrow_buffers {
    float s[TN_CHUNK], w[TN_CHUNK], b[TN_CHUNK], raw[TN_CHUNK];
};

TN_INLINE char *group_row(const struct group_ref *at, const struct tn_operand *o)
{
    return operand_at(o, at->i0, at->i1) + (ptrdiff_t)(at->g * at->p->group) * o->inner;
}

/* mean_in and rstd_in of a group. */
TN_INLINE void read_given(const struct group_ref *at, struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    st->mh = p->mean_in.data ? read_stat(&p->mean_in, at->i0, at->i1, at->g) : 0.0;
    st->rh = read_stat(&p->rstd_in, at->i0, at->i1, at->g);
}

/* mean and rstd of a group, where they are wanted. */
TN_INLINE void write_stats(const struct group_ref *at, const struct tn_stat *st)
{
    write_stat(&at->p->mean, at->i0, at->i1, at->g, stat_mean(st) / st->scale);
    write_stat(&at->p->rstd, at->i0, at->i1, at->g, st->rh * st->scale);
}

/* Elements k.. of a staged chunk of which `left` remain: an operand in place ends exactly there. */
TN_INLINE vf load_left(const float *p, size_t k, size_t left)
{
    return left >= 16 ? vf_load(TN_F32, p, k) : vf_load_n(TN_F32, p, k, left);
}

/* Elements [i, i+n) of s = x (+ residual, rounded to the sum's dtype) as f32. */
TN_INLINE const float *narrow_input(const struct group_ref *at, size_t i, size_t n,
                                    struct narrow_buffers *buf)
{
    const struct tn_plan *p = at->p;
    const float *x = stage_f32(&p->x, group_row(at, &p->x), i, n, buf->s, buf->raw);
    if (!p->residual.data)
        return x;
    const float *r = stage_f32(&p->residual, group_row(at, &p->residual), i, n, buf->w, buf->raw);
    for (size_t k = 0; k < n; k += 16) {
        vf sum = vf_add(load_left(x, k, n - k), load_left(r, k, n - k));
        vf_store(TN_F32, buf->s, k, round_to(p->sum_dtype, sum));
    }
    return buf->s;
}

TN_INLINE size_t chunk_of(size_t i, size_t n)
{
    return n - i < TN_CHUNK ? n - i : TN_CHUNK;
}

static TN_NOINLINE void narrow_statistics(const struct group_ref *at, struct narrow_buffers *buf,
                                          struct tn_stat *st, double *moment2)
{
    const struct tn_plan *p = at->p;
    size_t n = p->counted;
    struct lanes s = lanes_zero(), q = lanes_zero();
    if (!p->centred) {
        for (size_t i = 0; i < n; i += TN_CHUNK)
            sum_squares(TN_F32, narrow_input(at, i, chunk_of(i, n), buf), chunk_of(i, n), &s);
        st->mh = st->ml = 0.0;
        *moment2 = lanes_sum(s);
        stat_rstd(p, *moment2 / p->count, st);
        return;
    }
    for (size_t i = 0; i < n; i += TN_CHUNK)
        sum_values(TN_F32, narrow_input(at, i, chunk_of(i, n), buf), chunk_of(i, n), &s);
    st->mh = lanes_sum(s) / p->count;
    s = lanes_zero();
    for (size_t i = 0; i < n; i += TN_CHUNK)
        sum_centred(TN_F32, narrow_input(at, i, chunk_of(i, n), buf), chunk_of(i, n), st->mh, &s, &q);
    double d1 = lanes_sum(s), d2 = lanes_sum(q);
    double v = stat_variance(p, d1, d2, &st->ml);
    *moment2 = v * p->count;
    stat_rstd(p, v, st);
}

TN_INLINE void narrow_apply(enum tn_algo algo, bool centred, const struct group_ref *at,
                            struct narrow_buffers *buf, const struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    struct apply a = apply_setup(st);
    bool has_w = p->weight.data, has_b = p->bias.data;
    if (!p->y.data && !p->sum.data)
        return;
    for (size_t i = 0; i < p->group; i += TN_CHUNK) {
        size_t n = chunk_of(i, p->group);
        const float *x = narrow_input(at, i, n, buf), *w = x, *b = x;
        if (p->sum.data) {
            float *out = x == buf->s ? buf->s : memcpy(buf->s, x, n * sizeof *x);
            unstage_f32(&p->sum, group_row(at, &p->sum), i, n, out, buf->raw);
            x = out;
        }
        if (has_w)
            w = stage_f32(&p->weight, group_row(at, &p->weight), i, n, buf->w, buf->raw);
        if (has_b)
            b = stage_f32(&p->bias, group_row(at, &p->bias), i, n, buf->b, buf->raw);
        if (!p->y.data)
            continue;
        for (size_t k = 0; k < n; k += 16) {
            vf vx = load_left(x, k, n - k), vw = load_left(w, k, n - k), vb = load_left(b, k, n - k);
            vf_store(TN_F32, buf->s, k,
                     apply_block(algo, centred, p->round_h, p->offset, has_w, has_b, true, vx, vw, vb, &a));
        }
        unstage_f32(&p->y, group_row(at, &p->y), i, n, buf->s, buf->raw);
    }
}

TN_INLINE void narrow_group(enum tn_algo algo, bool centred, const struct group_ref *at)
{
    const struct tn_plan *p = at->p;
    struct narrow_buffers buf;
    struct tn_stat st = {0, 0, 0, 0, 1.0};
    double moment2 = 0.0;
    if (p->source == TN_STATS_GIVEN) {
        read_given(at, &st);
    } else {
        narrow_statistics(at, &buf, &st, &moment2);
    }
    write_stats(at, &st);
    if (p->source == TN_STATS_MOMENTS)
        write_stat(&p->moment2, at->i0, at->i1, at->g, moment2);
    else if (algo != TN_A64 && apply_needs_f64(centred, &st))
        narrow_apply(TN_A64, centred, at, &buf, &st);
    else
        narrow_apply(algo, centred, at, &buf, &st);
}

/* Calls BODY for each group of each of the rows [r0, r1), with `at` naming it. */
#define TN_FOR_GROUPS(p, r0, r1, BODY)                                                                       \
    do {                                                                                                     \
        if (r0 < r1) {                                                                                       \
            struct group_ref at = {p, (r0) / (p)->rows[1], (r0) % (p)->rows[1], 0};                          \
            for (size_t r = (r0); r < (r1); r++) {                                                           \
                for (at.g = 0; at.g < (p)->groups; at.g++)                                                   \
                    BODY;                                                                                    \
                if (++at.i1 == (p)->rows[1]) {                                                               \
                    at.i1 = 0;                                                                               \
                    at.i0++;                                                                                 \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

#define TN_NARROW_ROWS(name, algo, centred)                                                                  \
    static void name(const struct tn_plan *p, size_t r0, size_t r1)                                          \
    {                                                                                                        \
        TN_FOR_GROUPS(p, r0, r1, narrow_group(algo, centred, &at));                                          \
    }
TN_NARROW_ROWS(narrow_rms_a32, TN_A32, false)
TN_NARROW_ROWS(narrow_rms_a2p, TN_A2P, false)
TN_NARROW_ROWS(narrow_rms_a64, TN_A64, false)
TN_NARROW_ROWS(narrow_layer_a32, TN_A32, true)
TN_NARROW_ROWS(narrow_layer_a64, TN_A64, true)

static TN_NOINLINE void narrow_group_f64(const struct group_ref *at)
{
    if (at->p->centred)
        narrow_group(TN_A64, true, at);
    else
        narrow_group(TN_A64, false, at);
}

/* ---- the fused kernels: contiguous operands, constant dtypes ---- */

TN_INLINE void fused_statistics(tn_dtype xt, bool centred, const struct group_ref *at, const char *x,
                                struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    size_t n = p->group;
    struct lanes s = lanes_zero(), q = lanes_zero();
    *st = (struct tn_stat){0, 0, 0, 0, 1.0};
    if (p->source == TN_STATS_GIVEN) {
        read_given(at, st);
    } else if (!centred) {
        sum_squares(xt, x, n, &s);
        stat_rstd(p, lanes_sum(s) / p->count, st);
    } else {
        sum_values(xt, x, n, &s);
        st->mh = lanes_sum(s) / p->count;
        s = lanes_zero();
        sum_centred(xt, x, n, st->mh, &s, &q);
        double d1 = lanes_sum(s), d2 = lanes_sum(q);
        stat_rstd(p, stat_variance(p, d1, d2, &st->ml), st);
    }
}

TN_INLINE void fused_apply(tn_dtype xt, tn_dtype wt, tn_dtype yt, enum tn_algo algo, bool centred,
                           tn_dtype round_h, double offset, bool has_b, size_t n, const char *x,
                           const char *w, const char *b, char *y, const struct apply *a)
{
    const bool has_w = wt != TN_NONE, tiny = centred || xt != TN_F16;
    const tn_dtype pt = has_w ? wt : TN_F32;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf vx = vf_load(xt, x, i), vw = has_w ? vf_load(pt, w, i) : vx, vb = has_b ? vf_load(pt, b, i) : vx;
        vf_store(yt, y, i, apply_block(algo, centred, round_h, offset, has_w, has_b, tiny, vx, vw, vb, a));
    }
    if (i < n) {
        size_t k = n - i;
        vf vx = vf_load_n(xt, x, i, k);
        vf vw = has_w ? vf_load_n(pt, w, i, k) : vx, vb = has_b ? vf_load_n(pt, b, i, k) : vx;
        vf_store_n(yt, y, i, apply_block(algo, centred, round_h, offset, has_w, has_b, tiny, vx, vw, vb, a),
                   k);
    }
}

TN_INLINE void fused_group(tn_dtype xt, tn_dtype wt, tn_dtype yt, bool centred, enum tn_algo algo,
                           tn_dtype round_h, double offset, const struct group_ref *at)
{
    const struct tn_plan *p = at->p;
    const char *x = group_row(at, &p->x);
    struct tn_stat st;
    fused_statistics(xt, centred, at, x, &st);
    if (algo != TN_A64 && TN_UNLIKELY(apply_needs_f64(centred, &st))) {
        narrow_group_f64(at);
        return;
    }
    write_stats(at, &st);
    struct apply a = apply_setup(&st);
    const char *w = wt != TN_NONE ? group_row(at, &p->weight) : x;
    char *y = group_row(at, &p->y);
    if (wt != TN_NONE && p->bias.data)
        fused_apply(xt, wt, yt, algo, centred, round_h, offset, true, p->group, x, w, group_row(at, &p->bias),
                    y, &a);
    else
        fused_apply(xt, wt, yt, algo, centred, round_h, offset, false, p->group, x, w, x, y, &a);
}

#endif
