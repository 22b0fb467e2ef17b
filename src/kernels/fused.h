/* fused.h - the forward of contiguous rows with constant dtypes: the arithmetic of narrow.h (and, gated in f64 or
 * quantised, of wide.h) without their buffers. This file has the steps of one row; the loops over rows:
 *
 *   fused_rows (fused_rows.h)   while a row is applied the next one is summed, so that the memory never waits
 *   batched_rows (batch.h)      several rows share their lane sums, square roots and widened parameters; a gate before
 *                               is computed once, into a buffer */
#ifndef TN_FUSED_H
#define TN_FUSED_H

#include "kernels/wide.h"

#define TN_PIECE 64 /* elements applied, then summed, in turn */

/* One row (a group of one). */
struct fused_row {
    struct input in;
    const char *w, *b, *gate;
    char *y;
};

/* The `left` (at most 16) elements from i by f32 arithmetic: a block whose range test failed, or a tail. */
typedef void careful_block(const struct fused_row *row, size_t i, size_t left, const struct apply *a);

/* What the first pass over a row adds up. */
enum first_pass {
    FIRST_SQUARES,
    FIRST_SHORT, /* squares of 16-bit values, partly in f32 */
    FIRST_RAW    /* values and squares */
};

/* What a fused kernel is: all constant. */
struct fused {
    struct variant v;
    enum tn_extra extra;
    enum first_pass first;
    careful_block *careful; /* for what the quick code leaves; once for each kernel, out of line */
};

TN_INLINE struct fused_row fused_row_at(const struct fused k, const struct group_ref *at)
{
    const struct tn_plan *p = at->p;
    struct fused_row row = {.in = input_of(k.v.x, group_row(at, &p->x))};
    row.y = group_row(at, &p->y);
    row.w = k.v.has_w ? group_row(at, &p->weight) : NULL;
    row.b = k.v.has_w && k.v.centred && p->bias.data ? group_row(at, &p->bias) : NULL;
    if (k.extra == TN_ADDS) {
        row.in.adds = true;
        row.in.residual = group_row(at, &p->residual);
        row.in.sum = group_row(at, &p->sum);
    }
    if (k.extra == TN_GATED_BEFORE) {
        row.in.gated = true;
        row.in.act32 = k.v.algo != TN_A64;
        row.in.gate = group_row(at, &p->gate);
    }
    if (k.extra == TN_GATED_AFTER)
        row.gate = group_row(at, &p->gate);
    return row;
}

/* The input of all passes but the first, which stored the sum. */
TN_INLINE struct input stored_input(const struct input *in)
{
    return in->adds ? input_of(in->dtype, in->sum) : *in;
}

/* ---- statistics ---- */

struct first_sums {
    struct lanes s, q;
};

TN_INLINE struct first_sums no_sums(void)
{
    return (struct first_sums){lanes_zero(), lanes_zero()};
}

/* Of n elements. A sum with a residual is stored as well. */
TN_INLINE void add_first(const struct fused k, struct input in, size_t n, struct first_sums *f)
{
    if (k.first == FIRST_RAW)
        sum_both(&in, n, &f->s, &f->q);
    else if (k.first == FIRST_SQUARES)
        sum_squares(&in, n, &f->s);
    else
        sum_short_squares(&in, n, &f->s);
}

/* From st->mh: LayerNorm's variance, and st->ml. */
TN_INLINE double centred_variance(const struct tn_plan *p, const struct input *in, struct tn_stat *st)
{
    struct lanes d1 = lanes_zero(), d2 = lanes_zero();
    sum_centred(in, p->group, st->mh, &d1, &d2);
    double sum1 = lanes_sum(d1), sum2 = lanes_sum(d2);
    return stat_variance(p, sum1, sum2, &st->ml);
}

/* The sum of squares of a 16-bit row as f64 has it. */
static TN_NOINLINE double full_squares(tn_dtype dtype, const void *x, size_t n)
{
    struct lanes s = lanes_zero();
    const struct input bf16 = input_of(TN_BF16, x), f16 = input_of(TN_F16, x);
    if (dtype == TN_BF16)
        sum_squares(&bf16, n, &s);
    else
        sum_squares(&f16, n, &s);
    return lanes_sum(s);
}

/* From the first sums of a group to its statistics. */
TN_INLINE void fused_finish(const struct fused k, const struct group_ref *at, const struct input *first,
                            const struct first_sums *f, struct tn_stat *st)
{
    const struct tn_plan *p = at->p;
    *st = (struct tn_stat){0, 0, 0, 0, 1.0, false};
    if (p->source == TN_STATS_GIVEN) {
        read_given(at, st);
        return;
    }
    double sum = lanes_sum(f->s), v = sum / p->count;
    if (k.first == FIRST_SHORT && TN_UNLIKELY(!short_mean_holds(v)))
        v = full_squares(k.v.x, stored_input(first).x, p->group) / p->count;
    if (k.first == FIRST_RAW && TN_UNLIKELY(!stat_raw_moments(p, sum, lanes_sum(f->q), st, &v))) {
        struct input in = stored_input(first);
        v = centred_variance(p, &in, st);
    }
    stat_rstd(p, v, st);
}

/* ---- apply ---- */

/* What one row is applied with. */
struct fused_apply {
    struct apply a;
    struct quantiser q;
    bool fold, stream;
};

/* The results of TN_VEC_GROUP blocks. */
TN_INLINE void store_group(const struct fused k, const struct fused_row *row, bool stream, size_t i,
                           const vf *y)
{
    if (stream)
        vf_put(true, k.v.y, row->y, i, y, TN_VEC_GROUP);
    else
        vf_put(false, k.v.y, row->y, i, y, TN_VEC_GROUP);
}

TN_INLINE vd wide_param(tn_dtype dt, const char *param, size_t i, bool tail, size_t left)
{
    if (dt == TN_F64) /* a panel (batch.h), padded to 16 */
        return vd_load((const double *)(const void *)param + i);
    return tail ? vd_from_vf(vf_load_n(dt, param, i, left)) : vd_widen(dt, param, i);
}

/* y in f64 of the 16 elements from i, `left` of them, before the gate. */
TN_INLINE vd wide_ungated(const struct fused k, const struct fused_row *row, size_t i, bool tail, size_t left,
                          const struct apply *a)
{
    const struct input in = stored_input(&row->in);
    vd x = input_block(&in, i, tail, left), w = x, b = x;
    if (k.v.has_w)
        w = wide_param(k.v.w, row->w, i, tail, left);
    if (k.v.has_b)
        b = wide_param(k.v.w, row->b, i, tail, left);
    return apply_wide(k.v, x, w, b, a);
}

TN_INLINE vd wide_block(const struct fused k, const struct fused_row *row, size_t i, bool tail, size_t left,
                        const struct apply *a)
{
    vd y = wide_ungated(k, row, i, tail, left, a);
    if (k.extra == TN_GATED_AFTER)
        y = vd_mul(y, vd_act(TN_SILU, true, wide_param(k.v.x, row->gate, i, tail, left)));
    return y;
}

/* One block in f64, stored. */
TN_INLINE void apply_wide_block(const struct fused k, const struct fused_row *row, size_t i, bool tail,
                                size_t left, const struct fused_apply *f)
{
    vd y = wide_block(k, row, i, tail, left, &f->a);
    if (k.extra != TN_INT8) {
        if (tail)
            vf_store_n(k.v.y, row->y, i, vd_to_vf(y), left);
        else
            vf_store(k.v.y, row->y, i, vd_to_vf(y));
        return;
    }
    char q[16];
    vd_store_i8(tail ? q : row->y + i, quantise(&f->q, y));
    if (tail)
        memcpy(row->y + i, q, left);
}

/* The body of a careful_block. */
TN_INLINE void apply_carefully(struct variant v, const struct fused_row *row, size_t i, size_t left,
                               const struct apply *a)
{
    const struct input in = stored_input(&row->in);
    const tn_dtype wt = v.has_w ? v.w : TN_F32;
    const bool tail = left < 16;
    vf x = tail ? vf_load_n(v.x, in.x, i, left) : vf_load(v.x, in.x, i), w = x, b = x, gate = x;
    v.has_b = v.has_w && v.centred && row->b;
    if (v.has_w)
        w = tail ? vf_load_n(wt, row->w, i, left) : vf_load(wt, row->w, i);
    if (v.has_b)
        b = tail ? vf_load_n(wt, row->b, i, left) : vf_load(wt, row->b, i);
    if (v.gated)
        gate = tail ? vf_load_n(v.x, row->gate, i, left) : vf_load(v.x, row->gate, i);
    vf y = apply_block(v, x, w, b, gate, a);
    if (tail)
        vf_store_n(v.y, row->y, i, y, left);
    else
        vf_store(v.y, row->y, i, y);
}

TN_INLINE void careful(const struct fused k, const struct fused_row *row, size_t i, size_t left,
                       const struct apply *a)
{
    struct fused_row copy = *row; /* so that the row itself may stay in registers */
    copy.in = stored_input(&row->in);
    struct apply constants = *a;
    k.careful(&copy, i, left, &constants);
}

/* TN_VEC_GROUP blocks by f32 arithmetic, with one range test. */
TN_INLINE void apply_group(const struct fused k, const struct fused_row *row, size_t i,
                           const struct fused_apply *f)
{
    const struct input in = stored_input(&row->in);
    const tn_dtype wt = k.v.has_w ? k.v.w : TN_F32;
    const float limit = tiny_limit(k.v.algo);
    vf y[TN_VEC_GROUP], gate[TN_VEC_GROUP], margin = vf_set1(1.0f);
    vt tiny = vt_none();
    for (size_t j = 0; j < TN_VEC_GROUP; j++) {
        vf x = vf_load(k.v.x, in.x, i + 16 * j);
        vf w = k.v.has_w ? vf_load(wt, row->w, i + 16 * j) : x;
        vf b = k.v.has_b ? vf_load(wt, row->b, i + 16 * j) : x;
        vf t = apply_scaled(k.v, x, &f->a);
        y[j] = apply_f32(k.v, x, t, w, b, &f->a);
        if (k.v.gated)
            gate[j] = vf_load(k.v.x, row->gate, i + 16 * j);
        if (k.v.may_be_tiny)
            tiny = vt_tiny(tiny, t, limit);
    }
    if (k.v.gated) {
        for (size_t j = 0; j < TN_VEC_GROUP; j += TN_ACTS_F32)
            vf_gate(TN_SILU, false, TN_ACTS_F32, y + j, gate + j, y + j);
        for (size_t j = 0; j < TN_VEC_GROUP; j++)
            margin = vf_min(gate_margin(gate[j]), margin);
    }
    if (TN_UNLIKELY((k.v.may_be_tiny && vt_any(tiny, limit)) || (k.v.gated && vf_any_less(margin, 0.0f)))) {
        for (size_t j = 0; j < TN_VEC_GROUP; j++)
            careful(k, row, i + 16 * j, 16, &f->a);
        return;
    }
    store_group(k, row, f->stream, i, y);
}

/* The same in f64. */
TN_INLINE void apply_wide_group(const struct fused k, const struct fused_row *row, size_t i,
                                const struct fused_apply *f)
{
    vf y[TN_VEC_GROUP];
    vd act[TN_VEC_GROUP];
    for (size_t j = 0; k.extra == TN_GATED_AFTER && j < TN_VEC_GROUP; j++)
        act[j] = vd_widen(k.v.x, row->gate, i + 16 * j);
    for (size_t j = 0; k.extra == TN_GATED_AFTER && j < TN_VEC_GROUP; j += TN_ACTS_F64)
        vd_acts(TN_SILU, TN_ACTS_F64, act + j, act + j);
    for (size_t j = 0; j < TN_VEC_GROUP; j++) {
        vd wide = wide_ungated(k, row, i + 16 * j, false, 16, &f->a);
        y[j] = vd_to_vf(k.extra == TN_GATED_AFTER ? vd_mul(wide, act[j]) : wide);
    }
    store_group(k, row, f->stream, i, y);
}

/* As many blocks as are worked on at once. */
TN_INLINE void apply_blocks(const struct fused k, const struct fused_row *row, size_t i,
                            const struct fused_apply *f)
{
    if (k.v.algo != TN_A64)
        apply_group(k, row, i, f);
    else if (k.extra != TN_INT8)
        apply_wide_group(k, row, i, f);
    else
        for (size_t j = 0; j < 16 * TN_VEC_GROUP; j += 16)
            apply_wide_block(k, row, i + j, false, 16, f);
}

/* Elements [i, n). */
TN_INLINE void apply_elements(const struct fused k, const struct fused_row *row, size_t i, size_t n,
                              const struct fused_apply *f)
{
    for (; i + 16 * TN_VEC_GROUP <= n; i += 16 * TN_VEC_GROUP)
        apply_blocks(k, row, i, f);
    for (; TN_VEC_GROUP > 1 && i + 16 <= n; i += 16) {
        if (k.v.algo == TN_A64)
            apply_wide_block(k, row, i, false, 16, f);
        else
            careful(k, row, i, 16, &f->a);
    }
    if (i < n) {
        if (k.v.algo == TN_A64)
            apply_wide_block(k, row, i, true, n - i, f);
        else
            careful(k, row, i, n - i, &f->a);
    }
}

/* What of a kernel is a row's own. */
TN_INLINE struct fused kind_of_row(struct fused k, const struct fused_row *row, const struct fused_apply *f)
{
    k.v.has_b = k.v.has_w && k.v.centred && row->b;
    k.v.fold = false;
    if (k.v.centred && k.v.algo == TN_A64 && TN_LIKELY(f->fold))
        k.v.fold = true;
    return k;
}

TN_INLINE void apply_row(const struct fused k, const struct fused_row *row, size_t i, size_t n,
                         const struct fused_apply *f)
{
    apply_elements(kind_of_row(k, row, f), row, i, n, f);
}

/* TN_PIECE elements. */
TN_INLINE void apply_piece(const struct fused k, const struct fused_row *row, size_t i,
                           const struct fused_apply *f)
{
    const struct fused own = kind_of_row(k, row, f);
    for (size_t j = 0; j < TN_PIECE; j += 16 * TN_VEC_GROUP)
        apply_blocks(own, row, i + j, f);
}

/* ---- int8 ---- */

/* Largest |y| of n elements, and of `top`; NaNs do not enter. */
TN_INLINE vd fused_largest(const struct fused k, const struct fused_row *row, size_t n, const struct apply *a,
                           vd top)
{
    vd other = top;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        top = vd_max(vd_abs(wide_block(k, row, i, false, 16, a)), top);
        other = vd_max(vd_abs(wide_block(k, row, i + 16, false, 16, a)), other);
    }
    for (; i < n; i += 16) {
        bool tail = n - i < 16;
        vd y = wide_block(k, row, i, tail, n - i, a);
        top = vd_max(vd_abs(tail ? vd_first(y, n - i) : y), top);
    }
    return vd_max(top, other);
}

/* From the largest |y| to the row's scale; a static one is only read. */
TN_INLINE struct quantiser fused_quantiser(const struct group_ref *at, vd largest)
{
    const struct tn_plan *p = at->p;
    if (!p->dynamic_scale)
        return quantiser_of(read_stat(&p->scale_in, at->i0, at->i1, 0));
    double scale = scale_of(p, vd_hmax(largest));
    write_stat(&p->scale_out, at->i0, at->i1, 0, scale);
    return quantiser_of(scale);
}

/* ---- groups ---- */

static inline void next_group(struct group_ref *at)
{
    if (++at->g < at->p->groups)
        return;
    at->g = 0;
    next_row_of(at);
}

/* Bytes from an operand's group to the next one of the same rows[0]: `wraps`, where that is in the next row. */
TN_INLINE ptrdiff_t group_step(const struct tn_plan *p, const struct tn_operand *o, bool wraps)
{
    const ptrdiff_t group = (ptrdiff_t)p->group * o->inner;
    return !wraps ? group : o->stride[1] - (ptrdiff_t)(p->groups - 1) * group;
}

/* next_group, and fused_row_at of that. */
TN_INLINE void next_row(const struct fused k, struct group_ref *at, struct fused_row *row)
{
    const struct tn_plan *p = at->p;
    const size_t i0 = at->i0;
    next_group(at);
    if (TN_UNLIKELY(at->i0 != i0)) {
        if (at->i0 < p->rows[0])
            *row = fused_row_at(k, at);
        return;
    }
    const bool wraps = at->g == 0;
    row->in.x = (const char *)row->in.x + group_step(p, &p->x, wraps);
    row->y += group_step(p, &p->y, wraps);
    if (k.v.has_w)
        row->w += group_step(p, &p->weight, wraps);
    if (k.v.has_w && k.v.centred && row->b)
        row->b += group_step(p, &p->bias, wraps);
    if (k.extra == TN_ADDS) {
        row->in.residual = (const char *)row->in.residual + group_step(p, &p->residual, wraps);
        row->in.sum = (char *)row->in.sum + group_step(p, &p->sum, wraps);
    }
    if (k.extra == TN_GATED_BEFORE)
        row->in.gate = (const char *)row->in.gate + group_step(p, &p->gate, wraps);
    if (k.extra == TN_GATED_AFTER)
        row->gate += group_step(p, &p->gate, wraps);
}

/* The plan of a group whose first pass has stored the sum. */
TN_INLINE struct tn_plan after_first_pass(const struct tn_plan *p)
{
    struct tn_plan stored = *p;
    if (stored.residual.data) {
        stored.x = stored.sum;
        stored.residual.data = NULL;
        stored.sum.data = NULL;
    }
    return stored;
}

static TN_NOINLINE void store_better_stats(const struct group_ref *at)
{
    struct tn_plan stored = after_first_pass(at->p);
    struct group_ref again = {&stored, at->i0, at->i1, at->g};
    better_stats(&again);
}

/* The rstd of a 16-bit row from full_squares, which is what better_stats has. `added`: of the stored sum. */
static TN_NOINLINE void store_full_stats(tn_dtype dtype, bool added, const struct group_ref *at)
{
    const struct tn_plan *p = at->p;
    struct tn_stat st = {0, 0, 0, 0, 1.0, false};
    const char *x = group_row(at, added ? &p->sum : &p->x);
    stat_rstd(p, full_squares(dtype, x, p->group) / p->count, &st);
    write_stats(at, &st);
}

/* A group that leaves f32's range: all again in f64. */
static TN_NOINLINE void rescue_group(const struct group_ref *at)
{
    struct tn_plan stored = after_first_pass(at->p);
    struct group_ref again = {&stored, at->i0, at->i1, at->g};
    if (stored.gate_place != TN_GATE_NONE)
        wide_group(&again);
    else
        narrow_group_f64(&again);
}

/* Are the statistics such that the kernel's arithmetic holds? Else the group was rescued. */
TN_INLINE bool fused_start(const struct fused k, const struct group_ref *at, const struct tn_stat *st,
                           bool in_range, struct fused_apply *f)
{
    if (k.v.algo != TN_A64 && TN_UNLIKELY(!in_range || apply_needs_f64(k.v.centred, st))) {
        rescue_group(at);
        return false;
    }
    if (TN_LIKELY(!stores_better_stats(at->p)) || at->p->source != TN_STATS_OWN)
        write_stats(at, st);
    else if (k.first == FIRST_SHORT)
        store_full_stats(k.v.x, k.extra == TN_ADDS, at);
    else
        store_better_stats(at);
    f->a = apply_setup(st);
    f->fold = st->fold;
    f->stream = at->p->stream;
    return true;
}

/* ---- prefetch ---- */

#define TN_AHEAD 8192 /* bytes: what the memory needs to keep up (docs/performance.md) */

TN_INLINE void fetch(const void *at, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const char *)at + line);
}

/* What a row will need TN_AHEAD bytes later, elements [i, i+n); rows follow one another. */
TN_INLINE void fetch_ahead(const struct fused k, const struct fused_row *row, size_t i, size_t n)
{
    const size_t size = k.v.x == TN_F32 ? 4 : 2;
    fetch((const char *)row->in.x + i * size + TN_AHEAD, n * size);
    if (k.extra == TN_ADDS)
        fetch((const char *)row->in.residual + i * size + TN_AHEAD, n * size);
    if (k.extra == TN_GATED_BEFORE)
        fetch((const char *)row->in.gate + i * size + TN_AHEAD, n * size);
    if (k.extra == TN_GATED_AFTER)
        fetch(row->gate + i * size + TN_AHEAD, n * size);
}

#endif
