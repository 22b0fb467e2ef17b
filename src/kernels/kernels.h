/* kernels.h - what a kernel is told (struct tn_plan) and the table of kernels that each instruction set exports. */
#ifndef TN_KERNELS_H
#define TN_KERNELS_H

#include "base/base.h"
#include "truenorm.h"

/* An operand with its strides in bytes; data == NULL: absent. */
struct tn_operand {
    char *data;
    tn_dtype dtype;
    ptrdiff_t stride[2];
    ptrdiff_t inner;
};

/* The arithmetic of the apply step y = cast(w' * (s - m) * r + b). */
enum tn_algo {
    TN_A32, /* f32 throughout: 16-bit results without a bias, and grade fast */
    TN_A2P, /* f32 with r, and the product x*r, in two parts: f32 RMSNorm of grade exact */
    TN_A64  /* f64 throughout: LayerNorm and biases of grade exact */
};

/* Where the statistics come from. */
enum tn_stat_source {
    TN_STATS_OWN,     /* from the row */
    TN_STATS_GIVEN,   /* from mean_in, rstd_in */
    TN_STATS_MOMENTS, /* from the row, and only the moments are wanted */
};

/* What a fused kernel does besides the norm. */
enum tn_extra {
    TN_PLAIN,
    TN_ADDS,         /* s = x + residual, rounded to x's dtype and stored */
    TN_GATED_BEFORE, /* s = x * silu(gate) */
    TN_GATED_AFTER,  /* y = ... * silu(gate) */
    TN_INT8          /* y is int8 */
};

/* mean^2 / variance up to which one pass over a row makes both moments (docs/numerics.md). */
#define TN_RAW_16 256.0 /* from 16 bits to 16 bits */
#define TN_RAW_32 4.0   /* f32 on either side */

struct tn_plan {
    size_t rows[2];
    size_t groups, group; /* groups of `group` elements a row */
    size_t counted;       /* elements of a group that enter the statistics */
    double count;         /* what the sums are divided by */
    double eps;
    tn_eps_mode eps_mode;
    enum tn_stat_source source;
    bool centred;

    enum tn_algo algo;
    tn_dtype round_h;   /* dtype that h is rounded to, or TN_NONE */
    tn_dtype round_r;   /* dtype that 1/sqrt is rounded to, or TN_NONE */
    tn_dtype round_w;   /* dtype that weight + offset is rounded to, or TN_NONE */
    tn_dtype round_p;   /* dtype that w'*h is rounded to, or TN_NONE */
    tn_dtype sum_dtype; /* dtype that x + residual is rounded to, or TN_NONE */
    double offset;      /* added to the weight */
    double raw_limit;   /* LayerNorm: TN_RAW_*, or 0: the mean first, then the variance, always */
    bool short_squares; /* RMSNorm from 16 bits to 16 bits: sum_short_squares */
    bool
        brief_act; /* 2^-44 is enough for an activation: y is f32 or less, and so is what the statistics see */
    bool wide_sums; /* an operand of the statistics is f64: double-double sums and rescaling */
    tn_gate gate_place;
    tn_act act;
    bool quantised, dynamic_scale;
    tn_store store;   /* the caller's wish */
    bool far;         /* x is not in the caches and its rows follow one another: prefetch */
    bool stream;      /* y goes past the caches; its rows are aligned for that */
    size_t positions; /* consecutive elements that share an element of weight and bias */

    struct tn_operand x, residual, gate, weight, bias, mod_scale, mod_shift;
    struct tn_operand y, sum, mean, rstd, moment2, scale_in, scale_out, mean_in, rstd_in;
};

/* Rows [r0, r1) of the rows[0] * rows[1] of a plan, in row-major order. Cannot fail. */
typedef void tn_rows_fn(const struct tn_plan *plan, size_t r0, size_t r1);

/* Longest row that a fused kernel gates before the norm: 32 KB of f64 on its stack. */
#define TN_GATED_MAX 4096

/* The fused instances: contiguous operands of the dtypes that models use most; bias (LayerNorm only) like weight,
 * residual, sum and gate like x.
 * X(index, x dtype, weight dtype, y dtype, centred, algo, round_h, offset is 1, extra)
 * Every other combination takes `narrow` (f32 values) or `wide` (f64 values). */
/* clang-format off */
#define TN_FUSED_LIST(X) \
    X(0, TN_F32, TN_F32, TN_F32, false, TN_A2P, TN_NONE, false, TN_PLAIN) \
    X(1, TN_F32, TN_NONE, TN_F32, false, TN_A2P, TN_NONE, false, TN_PLAIN) \
    X(2, TN_F32, TN_F32, TN_F32, false, TN_A2P, TN_F32, false, TN_PLAIN) \
    X(3, TN_F32, TN_F32, TN_F32, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(4, TN_F32, TN_NONE, TN_F32, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(5, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_NONE, true, TN_PLAIN) \
    X(6, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(7, TN_F32, TN_F32, TN_F32, true, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(8, TN_F32, TN_NONE, TN_F32, true, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(9, TN_F32, TN_F32, TN_F32, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(10, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(11, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(12, TN_BF16, TN_NONE, TN_BF16, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(13, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_BF16, false, TN_PLAIN) \
    X(14, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, true, TN_PLAIN) \
    X(15, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, true, TN_PLAIN) \
    X(16, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_BF16, false, TN_PLAIN) \
    X(17, TN_BF16, TN_BF16, TN_BF16, false, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(18, TN_BF16, TN_BF16, TN_BF16, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(19, TN_BF16, TN_F32, TN_BF16, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(20, TN_BF16, TN_NONE, TN_BF16, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(21, TN_BF16, TN_BF16, TN_BF16, true, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(22, TN_BF16, TN_F32, TN_BF16, true, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(23, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(24, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(25, TN_F16, TN_NONE, TN_F16, false, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(26, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_F16, false, TN_PLAIN) \
    X(27, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, true, TN_PLAIN) \
    X(28, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, true, TN_PLAIN) \
    X(29, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_F16, false, TN_PLAIN) \
    X(30, TN_F16, TN_F16, TN_F16, false, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(31, TN_F16, TN_F16, TN_F16, true, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(32, TN_F16, TN_F32, TN_F16, true, TN_A64, TN_NONE, false, TN_PLAIN) \
    X(33, TN_F16, TN_F16, TN_F16, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(34, TN_F16, TN_F32, TN_F16, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(35, TN_F16, TN_NONE, TN_F16, true, TN_A32, TN_NONE, false, TN_PLAIN) \
    X(36, TN_F32, TN_F32, TN_F32, false, TN_A2P, TN_NONE, false, TN_ADDS) \
    X(37, TN_F32, TN_F32, TN_F32, false, TN_A2P, TN_F32, false, TN_ADDS) \
    X(38, TN_F32, TN_F32, TN_F32, false, TN_A32, TN_NONE, false, TN_ADDS) \
    X(39, TN_F32, TN_F32, TN_F32, true, TN_A64, TN_NONE, false, TN_ADDS) \
    X(40, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, false, TN_ADDS) \
    X(41, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_BF16, false, TN_ADDS) \
    X(42, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, true, TN_ADDS) \
    X(43, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, false, TN_ADDS) \
    X(44, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_BF16, false, TN_ADDS) \
    X(45, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, true, TN_ADDS) \
    X(46, TN_BF16, TN_BF16, TN_BF16, true, TN_A32, TN_NONE, false, TN_ADDS) \
    X(47, TN_BF16, TN_F32, TN_BF16, true, TN_A32, TN_NONE, false, TN_ADDS) \
    X(48, TN_BF16, TN_BF16, TN_BF16, true, TN_A64, TN_NONE, false, TN_ADDS) \
    X(49, TN_BF16, TN_F32, TN_BF16, true, TN_A64, TN_NONE, false, TN_ADDS) \
    X(50, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, false, TN_ADDS) \
    X(51, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_F16, false, TN_ADDS) \
    X(52, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, true, TN_ADDS) \
    X(53, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, false, TN_ADDS) \
    X(54, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_F16, false, TN_ADDS) \
    X(55, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, true, TN_ADDS) \
    X(56, TN_F16, TN_F16, TN_F16, true, TN_A64, TN_NONE, false, TN_ADDS) \
    X(57, TN_F16, TN_F32, TN_F16, true, TN_A64, TN_NONE, false, TN_ADDS) \
    X(58, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_NONE, false, TN_GATED_BEFORE) \
    X(59, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_F32, false, TN_GATED_BEFORE) \
    X(60, TN_F32, TN_F32, TN_F32, false, TN_A32, TN_NONE, false, TN_GATED_BEFORE) \
    X(61, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, false, TN_GATED_BEFORE) \
    X(62, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_BF16, false, TN_GATED_BEFORE) \
    X(63, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, false, TN_GATED_BEFORE) \
    X(64, TN_F16, TN_F16, TN_F16, false, TN_A2P, TN_NONE, false, TN_GATED_BEFORE) \
    X(65, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_F16, false, TN_GATED_BEFORE) \
    X(66, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_NONE, false, TN_GATED_AFTER) \
    X(67, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_F32, false, TN_GATED_AFTER) \
    X(68, TN_F32, TN_F32, TN_F32, false, TN_A32, TN_NONE, false, TN_GATED_AFTER) \
    X(69, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, false, TN_GATED_AFTER) \
    X(70, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_BF16, false, TN_GATED_AFTER) \
    X(71, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, false, TN_GATED_AFTER) \
    X(72, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, false, TN_GATED_AFTER) \
    X(73, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_F16, false, TN_GATED_AFTER) \
    X(74, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, false, TN_GATED_AFTER) \
    X(75, TN_F32, TN_F32, TN_I8, false, TN_A64, TN_NONE, false, TN_INT8) \
    X(76, TN_F32, TN_F32, TN_I8, false, TN_A64, TN_F32, false, TN_INT8) \
    X(77, TN_BF16, TN_BF16, TN_I8, false, TN_A64, TN_NONE, false, TN_INT8) \
    X(78, TN_BF16, TN_BF16, TN_I8, false, TN_A64, TN_BF16, false, TN_INT8) \
    X(79, TN_F16, TN_F16, TN_I8, false, TN_A64, TN_NONE, false, TN_INT8) \
    X(80, TN_F16, TN_F16, TN_I8, false, TN_A64, TN_F16, false, TN_INT8)
/* clang-format on */
#define TN_FUSED_COUNT 81

/* The parameter gradients of one backward sweep. */
enum { TN_DWEIGHT, TN_DBIAS, TN_DSCALE, TN_DSHIFT, TN_COLUMN_OUTPUTS };

/* A backward plan: the forward's, and the gradients wanted. */
struct tn_grad_plan {
    struct tn_plan forward;
    struct tn_operand dy, dsum, dx, dresidual, dgate;
    bool columns[TN_COLUMN_OUTPUTS]; /* which column sums this sweep makes */
    size_t slots;                    /* rows r, r + slots, ... share a column sum */
    bool elements;                   /* dx, dresidual and dgate are due in this sweep */
    bool folds;                      /* the arithmetic of grad_fold.h */
    bool stream; /* dx, which is f32, goes past the caches; its rows are aligned for that */
};

/* Backward of rows [r0, r1), at least `slots` of them; sets sums[slot][output][column], where wanted, for slot = (r - r0)
 * % slots. Columns are n, or n / positions for dweight and dbias. */
typedef void tn_grad_fn(const struct tn_grad_plan *plan, size_t r0, size_t r1, double *sums);

/* Doubles of one slot of sums. */
static inline size_t tn_slot_size(const struct tn_grad_plan *g)
{
    size_t n = g->forward.groups * g->forward.group, params = n / g->forward.positions;
    return (g->columns[TN_DWEIGHT] ? params : 0) + (g->columns[TN_DBIAS] ? params : 0) +
           (g->columns[TN_DSCALE] ? n : 0) + (g->columns[TN_DSHIFT] ? n : 0);
}

/* Fused backward instances: contiguous operands, all of x's dtype but the weight; no modulation.
 * X(index, x dtype, weight dtype, centred, extra) */
/* clang-format off */
#define TN_GRAD_LIST(X) \
    X(0, TN_F32, TN_F32, false, TN_PLAIN) \
    X(1, TN_F32, TN_NONE, false, TN_PLAIN) \
    X(2, TN_F32, TN_F32, true, TN_PLAIN) \
    X(3, TN_F32, TN_NONE, true, TN_PLAIN) \
    X(4, TN_BF16, TN_BF16, false, TN_PLAIN) \
    X(5, TN_BF16, TN_F32, false, TN_PLAIN) \
    X(6, TN_BF16, TN_BF16, true, TN_PLAIN) \
    X(7, TN_BF16, TN_F32, true, TN_PLAIN) \
    X(8, TN_F16, TN_F16, false, TN_PLAIN) \
    X(9, TN_F16, TN_F32, false, TN_PLAIN) \
    X(10, TN_F16, TN_F16, true, TN_PLAIN) \
    X(11, TN_F16, TN_F32, true, TN_PLAIN) \
    X(12, TN_F32, TN_F32, false, TN_ADDS) \
    X(13, TN_F32, TN_F32, true, TN_ADDS) \
    X(14, TN_BF16, TN_BF16, false, TN_ADDS) \
    X(15, TN_BF16, TN_F32, false, TN_ADDS) \
    X(16, TN_BF16, TN_BF16, true, TN_ADDS) \
    X(17, TN_BF16, TN_F32, true, TN_ADDS) \
    X(18, TN_F16, TN_F16, false, TN_ADDS) \
    X(19, TN_F16, TN_F32, false, TN_ADDS) \
    X(20, TN_F16, TN_F16, true, TN_ADDS) \
    X(21, TN_F16, TN_F32, true, TN_ADDS) \
    X(22, TN_F32, TN_F32, false, TN_GATED_BEFORE) \
    X(23, TN_BF16, TN_BF16, false, TN_GATED_BEFORE) \
    X(24, TN_BF16, TN_F32, false, TN_GATED_BEFORE) \
    X(25, TN_F16, TN_F16, false, TN_GATED_BEFORE) \
    X(26, TN_F16, TN_F32, false, TN_GATED_BEFORE) \
    X(27, TN_F32, TN_F32, false, TN_GATED_AFTER) \
    X(28, TN_BF16, TN_BF16, false, TN_GATED_AFTER) \
    X(29, TN_BF16, TN_F32, false, TN_GATED_AFTER) \
    X(30, TN_F16, TN_F16, false, TN_GATED_AFTER) \
    X(31, TN_F16, TN_F32, false, TN_GATED_AFTER)
/* clang-format on */
#define TN_GRAD_COUNT 32

/* out[0..n) = sums[0][k] + sums[1][k] + ..., in this order, of `count` sums `stride` doubles apart; where it accumulates,
 * out + that. */
typedef void tn_columns_fn(const double *sums, size_t count, size_t stride, size_t n, tn_dtype dt, char *out,
                           bool accumulate);

/* n contiguous bf16 or f16 elements to f32. */
typedef void tn_widen_fn(tn_dtype dt, const void *src, size_t n, float *dst);

struct tn_kernels {
    const char *name;
    tn_widen_fn *widen;
    tn_rows_fn *fused[TN_FUSED_COUNT];
    tn_rows_fn *narrow[2][3]; /* [centred][algo] */
    tn_rows_fn *wide;
    tn_grad_fn *grad_fused[TN_GRAD_COUNT];
    tn_grad_fn *grad_wide;
    tn_columns_fn *write_columns;
};

extern const struct tn_kernels tn_kernels_scalar;
#if TN_ARCH_X86_64
extern const struct tn_kernels tn_kernels_avx2;
extern const struct tn_kernels tn_kernels_avx512;
extern const struct tn_kernels tn_kernels_avx512bf16;
#endif
#if TN_ARCH_NEON
extern const struct tn_kernels tn_kernels_neon;
#endif

#endif
