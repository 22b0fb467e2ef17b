/* narrow.h - rows whose values are f32, bf16 or f16: any of the three per operand, any strides, chunk by chunk.
 *
 * The fused kernels (fused.h) do the same arithmetic on each element, so which one runs never shows in the bits. */
#ifndef TN_NARROW_H
#define TN_NARROW_H

#include "kernels/apply.h"
#include "kernels/stage.h"

/* One group of one row, and its L1 buffers. */
struct group_ref {
    const struct tn_plan *p;
    size_t i0, i1, g;
};

/* The next row; the group stays. */
TN_INLINE void next_row_of(struct group_ref *at)
{
    if (++at->i1 == at->p->rows[1]) {
        at->i1 = 0;
        at->i0++;
    }
}

struct narrow_buffers {
    float s[TN_CHUNK], w[TN_CHUNK], b[TN_CHUNK], gate[TN_CHUNK], raw[TN_CHUNK];
    vf margin; /* of the gates before */
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

TN_INLINE size_t chunk_of(size_t i, size_t n)
{
    return n - i < TN_CHUNK ? n - i : TN_CHUNK;
}

TN_INLINE bool gate_product_is_exact(const struct tn_plan *p)
{
    return p->x.dtype == TN_F16 && p->gate.dtype == TN_F16;
}

/* Elements [i, i+n) of s = x (+ residual, rounded to the sum's dtype), or x * act(gate), as f32. */
TN_INLINE const float *narrow_input(const struct group_ref *at, size_t i, size_t n,
                                    struct narrow_buffers *buf)
{
    const struct tn_plan *p = at->p;
    const float *x = stage_f32(&p->x, group_row(at, &p->x), i, n, buf->s, buf->raw);
    if (p->gate_place == TN_GATE_BEFORE) {
        const float *gate = stage_f32(&p->gate, group_row(at, &p->gate), i, n, buf->gate, buf->raw);
        const bool exact = gate_product_is_exact(p);
        for (size_t k = 0; k < n; k += 16) {
            vf z = load_left(gate, k, n - k), s = vf_gated(p->act, exact, load_left(x, k, n - k), z);
            if (n - k >= 16) /* not the zeros past the end */
                buf->margin = vf_min(gated_margin(z, s), buf->margin);
            else
                buf->margin = vf_min(last_margin(z, s, n - k), buf->margin);
            vf_store(TN_F32, buf->s, k, s);
        }
        return buf->s;
    }
    if (!p->residual.data)
        return x;
    const float *r = stage_f32(&p->residual, group_row(at, &p->residual), i, n, buf->w, buf->raw);
    for (size_t k = 0; k < n; k += 16) {
        vf sum = vf_add(load_left(x, k, n - k), load_left(r, k, n - k));
        vf_store(TN_F32, buf->s, k, round_to(p->sum_dtype, sum));
    }
    return buf->s;
}

/* One gate in the range of vf_act, with a product that is 0 for good or far from underflow. */
TN_INLINE bool gate_fits(tn_act act, float x, float gate, float s)
{
    bool zero = x == 0.0f || (act == TN_SILU && gate == 0.0f);
    return !(fabsf(gate) > TN_ACT32_MAX) && (zero || !(fabsf(s) < TN_H32_TINY)); /* a NaN fits */
}

/* All gates of a row. What its margins say no to is looked at again: it may be but a zero. */
static TN_NOINLINE bool gates_fit(const struct group_ref *at)
{
    const struct tn_plan *p = at->p;
    const bool exact = gate_product_is_exact(p);
    float buf[TN_CHUNK], gate_buf[TN_CHUNK], raw[TN_CHUNK];
    for (size_t i = 0; i < p->group; i += TN_CHUNK) {
        const size_t n = chunk_of(i, p->group);
        const float *x = stage_f32(&p->x, group_row(at, &p->x), i, n, buf, raw);
        const float *gate = stage_f32(&p->gate, group_row(at, &p->gate), i, n, gate_buf, raw);
        for (size_t k = 0; k < n; k += 16) {
            const vf vx = load_left(x, k, n - k), vz = load_left(gate, k, n - k);
            float block[3][16]; /* x may stand at any byte */
            vf_store(TN_F32, block[0], 0, vx);
            vf_store(TN_F32, block[1], 0, vz);
            vf_store(TN_F32, block[2], 0, vf_gated(p->act, exact, vx, vz));
            for (size_t j = 0; j < 16 && k + j < n; j++)
                if (!gate_fits(p->act, block[0][j], block[1][j], block[2][j]))
                    return false;
        }
    }
    return true;
}

static TN_NOINLINE struct lanes narrow_squares(const struct group_ref *at, struct narrow_buffers *buf)
{
    const size_t n = at->p->counted;
    struct lanes s = lanes_zero();
    for (size_t i = 0; i < n; i += TN_CHUNK) {
        struct input in = input_of(TN_F32, narrow_input(at, i, chunk_of(i, n), buf));
        sum_squares(&in, chunk_of(i, n), &s);
    }
    return s;
}

/* From st->mh: the variance, and st->ml. */
static TN_NOINLINE double narrow_variance(const struct group_ref *at, struct narrow_buffers *buf,
                                          struct tn_stat *st)
{
    const size_t n = at->p->counted;
    struct lanes s = lanes_zero(), q = lanes_zero();
    for (size_t i = 0; i < n; i += TN_CHUNK) {
        struct input in = input_of(TN_F32, narrow_input(at, i, chunk_of(i, n), buf));
        sum_centred(&in, chunk_of(i, n), st->mh, &s, &q);
    }
    double d1 = lanes_sum(s), d2 = lanes_sum(q);
    return stat_variance(at->p, d1, d2, &st->ml);
}

static TN_NOINLINE void narrow_statistics(const struct group_ref *at, struct narrow_buffers *buf,
                                          struct tn_stat *st, double *moment2)
{
    const struct tn_plan *p = at->p;
    size_t n = p->counted;
    struct lanes s = lanes_zero(), q = lanes_zero();
    if (!p->centred) {
        for (size_t i = 0; i < n; i += TN_CHUNK) {
            struct input in = input_of(TN_F32, narrow_input(at, i, chunk_of(i, n), buf));
            if (p->short_squares)
                sum_short_squares(&in, chunk_of(i, n), &q);
            else
                sum_squares(&in, chunk_of(i, n), &s);
        }
        if (p->short_squares && short_mean_holds(lanes_sum(q) / p->count))
            s = q;
        else if (p->short_squares)
            s = narrow_squares(at, buf);
        st->mh = st->ml = 0.0;
        *moment2 = lanes_sum(s);
        stat_rstd(p, *moment2 / p->count, st);
        return;
    }
    for (size_t i = 0; i < n; i += TN_CHUNK) {
        struct input in = input_of(TN_F32, narrow_input(at, i, chunk_of(i, n), buf));
        if (p->raw_limit > 0.0)
            sum_both(&in, chunk_of(i, n), &s, &q);
        else
            sum_values(&in, chunk_of(i, n), &s);
    }
    double sum = lanes_sum(s), v;
    if (p->raw_limit <= 0.0 || !stat_raw_moments(p, sum, lanes_sum(q), st, &v)) {
        st->mh = sum / p->count;
        v = narrow_variance(at, buf, st);
    }
    *moment2 = v * p->count;
    stat_rstd(p, v, st);
}

TN_INLINE void narrow_apply(enum tn_algo algo, bool centred, const struct group_ref *at,
                            struct narrow_buffers *buf, const struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    struct apply a = apply_setup(st);
    const bool has_w = p->weight.data, has_b = p->bias.data;
    const struct variant k = {TN_F32,    TN_F32, TN_F32, centred,  algo, p->round_h,
                              p->offset, has_w,  has_b,  st->fold, true, p->gate_place == TN_GATE_AFTER,
                              p->act};
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
        const float *z = x;
        if (k.gated)
            z = stage_f32(&p->gate, group_row(at, &p->gate), i, n, buf->gate, buf->raw);
        for (size_t j = 0; j < n; j += 16) {
            vf vx = load_left(x, j, n - j), vw = load_left(w, j, n - j), vb = load_left(b, j, n - j);
            vf_store(TN_F32, buf->s, j, apply_block(k, vx, vw, vb, load_left(z, j, n - j), &a));
        }
        unstage_f32(&p->y, group_row(at, &p->y), i, n, buf->s, buf->raw);
    }
}

static void wide_group(const struct group_ref *at);   /* wide.h: all in f64 */
static void better_stats(const struct group_ref *at); /* the statistics to be stored, in full precision */

TN_INLINE void narrow_group(enum tn_algo algo, bool centred, const struct group_ref *at)
{
    const struct tn_plan *p = at->p;
    struct narrow_buffers buf;
    buf.margin = vf_set1(1.0f);
    struct tn_stat st = {0, 0, 0, 0, 1.0, false};
    double moment2 = 0.0;
    if (p->source == TN_STATS_GIVEN) {
        read_given(at, &st);
    } else {
        narrow_statistics(at, &buf, &st, &moment2);
    }
    if (TN_UNLIKELY(stores_better_stats(p)) && p->source == TN_STATS_OWN)
        better_stats(at);
    else
        write_stats(at, &st);
    bool gated = algo != TN_A64 && p->gate_place != TN_GATE_NONE;
    if (gated && (apply_needs_f64(centred, &st) || (vf_any_less(buf.margin, 0.0f) && !gates_fit(at))))
        wide_group(at);
    else if (p->source == TN_STATS_MOMENTS)
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
                next_row_of(&at);                                                                            \
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

#endif
