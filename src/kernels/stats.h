/* stats.h - the statistics of one group of a row: sums in 32 lanes in a fixed order, then mean and 1/sqrt.
 *
 * Element i is added to lane i mod 32 (two vd); lanes are joined by lane j + lane j+16, then the tree of vd_sum.
 * Squares of f32, bf16 and f16 are exact in f64; all other products are rounded before they are added. */
#ifndef TN_STATS_H
#define TN_STATS_H

#include "kernels/kernels.h"

/* mean = mh + ml, 1/sqrt(v + eps) = rh + rl, of s * scale (scale is a power of two, 1 but for extreme f64 rows). */
struct tn_stat {
    double mh, ml, rh, rl, scale;
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

/* Calls STEP(acc, block, valid) for each 16 elements of x: .a and .b of each accumulator take turns. */
#define TN_FOR_BLOCKS(LOAD, LOAD_N, STEP_A, STEP_B)                                                          \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
        for (; i + 32 <= n; i += 32) {                                                                       \
            STEP_A(LOAD(i), 16);                                                                             \
            STEP_B(LOAD(i + 16), 16);                                                                        \
        }                                                                                                    \
        if (i + 16 <= n) {                                                                                   \
            STEP_A(LOAD(i), 16);                                                                             \
            if (i + 16 < n)                                                                                  \
                STEP_B(LOAD_N(i + 16, n - i - 16), n - i - 16);                                              \
        } else if (i < n) {                                                                                  \
            STEP_A(LOAD_N(i, n - i), n - i);                                                                 \
        }                                                                                                    \
    } while (0)

/* The three row reductions over n contiguous elements of dtype dt (f32, bf16, f16), added to acc.
 * n is a multiple of 32 in all but the last call for a row. */
TN_INLINE void sum_squares(tn_dtype dt, const void *x, size_t n, struct lanes *acc)
{
    struct lanes s = *acc;
#define LOAD(i) vf_load(dt, x, i)
#define LOAD_N(i, k) vf_load_n(dt, x, i, k)
#define STEP_A(v, k)                                                                                         \
    do {                                                                                                     \
        vf t = (v);                                                                                          \
        s.a = vd_dot(s.a, t, t);                                                                             \
    } while (0)
#define STEP_B(v, k)                                                                                         \
    do {                                                                                                     \
        vf t = (v);                                                                                          \
        s.b = vd_dot(s.b, t, t);                                                                             \
    } while (0)
    TN_FOR_BLOCKS(LOAD, LOAD_N, STEP_A, STEP_B);
#undef STEP_A
#undef STEP_B
    *acc = s;
}

TN_INLINE void sum_values(tn_dtype dt, const void *x, size_t n, struct lanes *acc)
{
    struct lanes s = *acc;
#define STEP_A(v, k) s.a = vd_add(s.a, vd_from_vf(v))
#define STEP_B(v, k) s.b = vd_add(s.b, vd_from_vf(v))
    TN_FOR_BLOCKS(LOAD, LOAD_N, STEP_A, STEP_B);
#undef STEP_A
#undef STEP_B
    *acc = s;
}

/* Sums of d = x - mean and of d^2; lanes past the end add nothing. */
TN_INLINE void sum_centred(tn_dtype dt, const void *x, size_t n, double mean, struct lanes *d1,
                           struct lanes *d2)
{
    struct lanes s = *d1, q = *d2;
    vd m = vd_set1(mean);
#define STEP(half, v, k)                                                                                     \
    do {                                                                                                     \
        vd d = vd_sub(vd_from_vf(v), m);                                                                     \
        if ((k) < 16)                                                                                        \
            d = vd_first(d, k);                                                                              \
        s.half = vd_add(s.half, d);                                                                          \
        q.half = vd_add(q.half, vd_mul(d, d));                                                               \
    } while (0)
#define STEP_A(v, k) STEP(a, v, k)
#define STEP_B(v, k) STEP(b, v, k)
    TN_FOR_BLOCKS(LOAD, LOAD_N, STEP_A, STEP_B);
#undef STEP_A
#undef STEP_B
#undef STEP
#undef LOAD
#undef LOAD_N
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
}

/* From the sums of d = s - mh and d^2: the variance, and the part ml of the mean that the rounding of mh lost. */
TN_INLINE double stat_variance(const struct tn_plan *p, double d1, double d2, double *ml)
{
    bool is_mean = p->count == (double)p->counted; /* not with a divisor of the caller's */
    *ml = is_mean ? d1 / p->count : 0.0;
    double v = (d2 - d1 * *ml) / p->count;
    return v < 0.0 ? 0.0 : v;
}

/* The mean to store; where it is infinite the low part is a NaN. */
TN_INLINE double stat_mean(const struct tn_stat *st)
{
    return st->mh + (st->ml - st->ml == 0.0 ? st->ml : 0.0);
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
