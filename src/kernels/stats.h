/* stats.h - the statistics of one group of a row: sums in 32 lanes in a fixed order, then mean and 1/sqrt.
 *
 * Element i is added to lane i mod 32 (two vd); lanes are joined by lane j + lane j+16, then the tree of vd_sum.
 * Squares of f32, bf16 and f16 values are exact in f64. */
#ifndef TN_STATS_H
#define TN_STATS_H

#include "kernels/act.h"
#include "kernels/kernels.h"

/* mean = mh + ml, 1/sqrt(v + eps) = rh + rl, of s * scale (scale is a power of two, 1 but for extreme f64 rows). */
struct tn_stat {
    double mh, ml, rh, rl, scale;
    bool fold; /* the mean is small against sigma, so (x - m) r = x r - m r loses nothing that is promised */
};

struct lanes {
    vd a, b;
};

TN_INLINE struct lanes lanes_zero(void)
{
    return (struct lanes){vd_set1(0.0), vd_set1(0.0)};
}
TN_INLINE double lanes_sum(struct lanes s)
{
    return vd_sum(vd_add(s.a, s.b));
}

/* Elements of a row as the norm sees them: x, the rounded sum x + residual (which is stored), or x * act(gate).
 * All but the pointers is constant in a fused kernel. */
struct input {
    tn_dtype dtype; /* of x, residual, sum and gate */
    bool adds, gated;
    bool act32; /* x * act(gate) in f32 */
    tn_act act;
    const void *x, *residual, *gate;
    void *sum;
};

TN_INLINE struct input input_of(tn_dtype dtype, const void *x)
{
    return (struct input){.dtype = dtype, .x = x};
}

/* The same from element i on. */
TN_INLINE struct input input_from(struct input in, size_t i)
{
    const size_t bytes = i * (in.dtype == TN_F64 ? 8 : in.dtype == TN_F32 ? 4 : 2);
    in.x = (const char *)in.x + bytes;
    in.residual = in.adds ? (const char *)in.residual + bytes : NULL;
    in.sum = in.adds ? (char *)in.sum + bytes : NULL;
    in.gate = in.gated ? (const char *)in.gate + bytes : NULL;
    return in;
}

/* The 16 elements from i, of which `left` exist where tail is set; zeros above. Those that f32 holds: */
TN_INLINE vf input_f32(const struct input *in, size_t i, bool tail, size_t left)
{
    const tn_dtype dt = in->dtype;
    vf x = tail ? vf_load_n(dt, in->x, i, left) : vf_load(dt, in->x, i);
    if (in->adds) {
        x = vf_add(x, tail ? vf_load_n(dt, in->residual, i, left) : vf_load(dt, in->residual, i));
        tail ? vf_store_n(dt, in->sum, i, x, left) : vf_store(dt, in->sum, i, x);
        if (dt != TN_F32) /* rounded */
            x = tail ? vf_load_n(dt, in->sum, i, left) : vf_load(dt, in->sum, i);
    }
    if (in->gated)
        x = vf_gated(in->act, dt == TN_F16, x,
                     tail ? vf_load_n(dt, in->gate, i, left) : vf_load(dt, in->gate, i));
    return x;
}

/* The sums of 64 elements from i, stored at once. */
TN_INLINE void store_sums4(const struct input *in, size_t i)
{
    const tn_dtype dt = in->dtype;
    vf x[4];
    for (size_t j = 0; j < 4; j++)
        x[j] = vf_add(vf_load(dt, in->x, i + 16 * j), vf_load(dt, in->residual, i + 16 * j));
    vf_put(false, dt, in->sum, i, x, 4);
}

/* And all of them: */
TN_INLINE vd input_block(const struct input *in, size_t i, bool tail, size_t left)
{
    const tn_dtype dt = in->dtype;
    if (dt == TN_F64) /* a buffer, padded to 16 */
        return vd_load((const double *)in->x + i);
    if (in->adds || (in->gated && in->act32))
        return vd_from_vf(input_f32(in, i, tail, left));
    vd x = tail ? vd_from_vf(vf_load_n(dt, in->x, i, left)) : vd_widen(dt, in->x, i);
    if (!in->gated)
        return x;
    vd gate = tail ? vd_from_vf(vf_load_n(dt, in->gate, i, left)) : vd_widen(dt, in->gate, i);
    return vd_mul(x, vd_act(in->act, true, gate));
}

/* Calls STEP(half, block, valid) for each 16 of n elements: the halves .a and .b of the lanes take turns. */
#define TN_FOR_BLOCKS(in, n, STEP)                                                                           \
    do {                                                                                                     \
        size_t at = 0;                                                                                       \
        TN_NO_UNROLL                                                                                         \
        for (; at + 32 <= (n); at += 32) {                                                                   \
            STEP(a, input_block(in, at, false, 16), 16);                                                     \
            STEP(b, input_block(in, at + 16, false, 16), 16);                                                \
        }                                                                                                    \
        if (at + 16 <= (n)) {                                                                                \
            STEP(a, input_block(in, at, false, 16), 16);                                                     \
            at += 16;                                                                                        \
            if (at < (n))                                                                                    \
                STEP(b, input_block(in, at, true, (n)-at), (n)-at);                                          \
        } else if (at < (n)) {                                                                               \
            STEP(a, input_block(in, at, true, (n)-at), (n)-at);                                              \
        }                                                                                                    \
    } while (0)

/* The row reductions over n elements, added to acc; but for the last call n is a multiple of 32. */
TN_INLINE void sum_squares(const struct input *in, size_t n, struct lanes *acc)
{
    struct lanes s = *acc;
#define STEP(half, block, valid)                                                                             \
    do {                                                                                                     \
        vd t = (block);                                                                                      \
        s.half = vd_fma(t, t, s.half);                                                                       \
    } while (0)
    TN_FOR_BLOCKS(in, n, STEP);
#undef STEP
    *acc = s;
}

/* The same of 16-bit elements, 64 at a time: four squares are added in f32, which rounds three times. But for the last
 * call n is a multiple of 64. */
TN_INLINE void sum_short_squares(const struct input *in, size_t n, struct lanes *acc)
{
    vd s = acc->a;
    size_t i = 0;
    TN_NO_UNROLL
    for (; i + 64 <= n; i += 64) {
        struct input stored = *in;
        if (in->adds) {
            store_sums4(in, i);
            stored = input_of(in->dtype, in->sum);
        }
        vf x = input_f32(&stored, i, false, 16), q = vf_mul(x, x);
        for (size_t j = 16; j < 64; j += 16) {
            x = input_f32(&stored, i + j, false, 16);
            q = vf_fma(x, x, q);
        }
        s = vd_add(s, vd_from_vf(q));
    }
    if (i < n) {
        vf q = vf_set1(0.0f);
        for (; i < n; i += 16) {
            vf x = input_f32(in, i, n - i < 16, n - i);
            q = vf_fma(x, x, q);
        }
        s = vd_add(s, vd_from_vf(q));
    }
    acc->a = s;
}

/* Is their mean free of overflow and underflow in f32? Else the squares are added in f64. */
#define TN_SHORT_MIN 0x1p-96
#define TN_SHORT_MAX 0x1p130

TN_INLINE bool short_mean_holds(double v)
{
    return v >= TN_SHORT_MIN && v <= TN_SHORT_MAX;
}

TN_INLINE void sum_values(const struct input *in, size_t n, struct lanes *acc)
{
    struct lanes s = *acc;
#define STEP(half, block, valid) s.half = vd_add(s.half, block)
    TN_FOR_BLOCKS(in, n, STEP);
#undef STEP
    *acc = s;
}

/* Sums of the values and of their squares. */
TN_INLINE void sum_both(const struct input *in, size_t n, struct lanes *values, struct lanes *squares)
{
    struct lanes s = *values, q = *squares;
#define STEP(half, block, valid)                                                                             \
    do {                                                                                                     \
        vd t = (block);                                                                                      \
        s.half = vd_plus(t, s.half);                                                                         \
        q.half = vd_fma(t, t, q.half);                                                                       \
    } while (0)
    TN_FOR_BLOCKS(in, n, STEP);
#undef STEP
    *values = s;
    *squares = q;
}

/* Sums of d = x - mean and of d^2; lanes past the end add nothing. */
TN_INLINE void sum_centred(const struct input *in, size_t n, double mean, struct lanes *d1, struct lanes *d2)
{
    struct lanes s = *d1, q = *d2;
    vd m = vd_set1(-mean);
#define STEP(half, block, valid)                                                                             \
    do {                                                                                                     \
        vd d = vd_plus(block, m);                                                                            \
        if ((valid) < 16)                                                                                    \
            d = vd_first(d, valid);                                                                          \
        s.half = vd_add(s.half, d);                                                                          \
        q.half = vd_fma(d, d, q.half);                                                                       \
    } while (0)
    TN_FOR_BLOCKS(in, n, STEP);
#undef STEP
    *d1 = s;
    *d2 = q;
}

/* 1/sqrt(v + eps), v = vh + vl >= 0, in two parts, for every eps mode. A zero row with eps = 0 gives 0. */
static TN_NOINLINE void rstd_two_part(const struct tn_plan *p, double vh, double vl, double scale,
                                      struct tn_stat *st)
{
    double eps = p->eps_mode == TN_EPS_INSIDE ? p->eps * scale * scale : p->eps * scale;
    double qh, ql; /* the divisor */
    st->rl = 0.0;
    if (vh == 0.0 && p->eps >= 0.0) { /* eps * scale^2 may have underflowed */
        double root = p->eps_mode == TN_EPS_INSIDE ? sqrt(p->eps) : p->eps;
        st->rh = root > 0.0 ? 1.0 / root / scale : 0.0;
        return;
    }
    if (p->eps_mode == TN_EPS_INSIDE) {
        double ah = vh + eps, bb = ah - vh;
        double al = (vh - (ah - bb)) + (eps - bb) + vl;
        qh = sqrt(ah);
        ql = (fma(-qh, qh, ah) + al) / (2.0 * qh);
    } else {
        double sh = sqrt(vh);
        double sl = sh > 0.0 ? (fma(-sh, sh, vh) + vl) / (2.0 * sh) : 0.0;
        if (p->eps_mode == TN_EPS_OUTSIDE) {
            qh = sh + eps;
            double bb = qh - sh;
            ql = (sh - (qh - bb)) + (eps - bb) + sl;
        } else {
            qh = sh >= eps || sh != sh ? sh : eps;
            ql = sh >= eps ? sl : 0.0;
        }
    }
    st->rh = 1.0 / qh;
    double low = st->rh * (fma(-qh, st->rh, 1.0) - ql * st->rh);
    if (low - low == 0.0)
        st->rl = low;
}

/* |mean| / sigma up to which the product m r may be rounded once for the whole row (docs/numerics.md). */
#define TN_FOLD_LIMIT 4.0

TN_INLINE bool stat_may_fold(const struct tn_plan *p, double mean, double v, double r)
{
    return p->centred && v > p->eps && fabs(mean) * r <= TN_FOLD_LIMIT;
}

/* From the variance to st->rh; the common case in line. */
TN_INLINE void stat_rstd(const struct tn_plan *p, double v, struct tn_stat *st)
{
    double a = v + p->eps;
    if (TN_LIKELY(p->eps_mode == TN_EPS_INSIDE && a != 0.0)) {
        st->rh = 1.0 / sqrt(a);
        st->rl = 0.0;
    } else {
        rstd_two_part(p, v, 0.0, 1.0, st);
        st->rl = 0.0;
    }
    st->fold = stat_may_fold(p, st->mh, v, st->rh);
}

/* From the sums of d = s - mh and d^2: the variance, and the part ml of the mean that the rounding of mh lost. */
TN_INLINE double stat_variance(const struct tn_plan *p, double d1, double d2, double *ml)
{
    bool is_mean = p->count == (double)p->counted; /* not with a divisor of the caller's */
    *ml = is_mean ? d1 / p->count : 0.0;
    double v = (d2 - d1 * *ml) / p->count;
    return v < 0.0 ? 0.0 : v;
}

/* Is enough left of a variance that is the difference of the raw moments? A NaN says no. */
TN_INLINE bool raw_moments_hold(const struct tn_plan *p, double mean, double v)
{
    return v * p->raw_limit >= mean * mean;
}

/* Mean and variance from the sums of the values and their squares; false where too little would be left. */
TN_INLINE bool stat_raw_moments(const struct tn_plan *p, double sum, double squares, struct tn_stat *st,
                                double *v)
{
    st->mh = sum / p->count;
    st->ml = fma(-st->mh, p->count, sum) / p->count;
    *v = fma(-sum, st->mh, squares) / p->count;
    return raw_moments_hold(p, st->mh, *v);
}

/* The mean to store; where it is infinite the low part is a NaN. */
TN_INLINE double stat_mean(const struct tn_stat *st)
{
    return st->mh + (st->ml - st->ml == 0.0 ? st->ml : 0.0);
}

/* Do the statistics that y needs fall short of what the statistics to be stored promise? */
TN_INLINE bool stores_better_stats(const struct tn_plan *p)
{
    const bool f64 = (p->mean.data && p->mean.dtype == TN_F64) || (p->rstd.data && p->rstd.dtype == TN_F64);
    if (p->gate_place == TN_GATE_BEFORE)
        return p->brief_act && (f64 || (p->algo != TN_A64 && (p->mean.data || p->rstd.data)));
    return (p->raw_limit > TN_RAW_32 && f64) || (p->short_squares && (p->mean.data || p->rstd.data));
}

TN_INLINE double read_stat(const struct tn_operand *o, size_t i0, size_t i1, size_t g)
{
    const char *at =
        o->data + (ptrdiff_t)i0 * o->stride[0] + (ptrdiff_t)i1 * o->stride[1] + (ptrdiff_t)g * o->inner;
    if (o->dtype == TN_F64) {
        double d;
        memcpy(&d, at, 8);
        return d;
    }
    float f;
    memcpy(&f, at, 4);
    return (double)f;
}

TN_INLINE void write_stat(const struct tn_operand *o, size_t i0, size_t i1, size_t g, double value)
{
    if (!o->data)
        return;
    char *at =
        o->data + (ptrdiff_t)i0 * o->stride[0] + (ptrdiff_t)i1 * o->stride[1] + (ptrdiff_t)g * o->inner;
    float f = (float)value;
    if (o->dtype == TN_F64)
        memcpy(at, &value, 8);
    else
        memcpy(at, &f, 4);
}

#endif
