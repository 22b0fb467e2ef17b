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
    TN_A32, /* f32 throughout: 16-bit results, and grade fast */
    TN_A2P, /* f32 with r, and the product x*r, in two parts: f32 RMSNorm of grade exact */
    TN_A64  /* f64 throughout: LayerNorm of grade exact */
};

/* Where the statistics come from. */
enum tn_stat_source {
    TN_STATS_OWN,     /* from the row */
    TN_STATS_GIVEN,   /* from mean_in, rstd_in */
    TN_STATS_MOMENTS, /* from the row, and only the moments are wanted */
};

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
    bool wide_sums;     /* an operand of the statistics is f64: double-double sums and rescaling */
    tn_gate gate_place;
    tn_act act;
    bool quantised, dynamic_scale;
    size_t positions; /* consecutive elements that share an element of weight and bias */

    struct tn_operand x, residual, gate, weight, bias, mod_scale, mod_shift;
    struct tn_operand y, sum, mean, rstd, moment2, scale_in, scale_out, mean_in, rstd_in;
};

/* Rows [r0, r1) of the rows[0] * rows[1] of a plan, in row-major order. Cannot fail. */
typedef void tn_rows_fn(const struct tn_plan *plan, size_t r0, size_t r1);

/* The fused instances: contiguous operands of the dtypes that models use most; bias like weight.
 * X(index, x dtype, weight dtype, y dtype, centred, algo, round_h, offset is 1)
 * Every other combination takes `narrow` (f32 values) or `wide` (f64 values). */
/* clang-format off */
#define TN_FUSED_LIST(X) \
    X(0, TN_F32, TN_F32, TN_F32, false, TN_A2P, TN_NONE, false) \
    X(1, TN_F32, TN_NONE, TN_F32, false, TN_A2P, TN_NONE, false) \
    X(2, TN_F32, TN_F32, TN_F32, false, TN_A2P, TN_F32, false) \
    X(3, TN_F32, TN_F32, TN_F32, false, TN_A32, TN_NONE, false) \
    X(4, TN_F32, TN_NONE, TN_F32, false, TN_A32, TN_NONE, false) \
    X(5, TN_F32, TN_F32, TN_F32, true, TN_A64, TN_NONE, false) \
    X(6, TN_F32, TN_NONE, TN_F32, true, TN_A64, TN_NONE, false) \
    X(7, TN_F32, TN_F32, TN_F32, true, TN_A32, TN_NONE, false) \
    X(8, TN_F32, TN_F32, TN_F32, false, TN_A64, TN_NONE, true) \
    X(9, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, false) \
    X(10, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, false) \
    X(11, TN_BF16, TN_NONE, TN_BF16, false, TN_A32, TN_NONE, false) \
    X(12, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_BF16, false) \
    X(13, TN_BF16, TN_BF16, TN_BF16, false, TN_A32, TN_NONE, true) \
    X(14, TN_BF16, TN_F32, TN_BF16, false, TN_A32, TN_NONE, true) \
    X(15, TN_BF16, TN_BF16, TN_BF16, true, TN_A64, TN_NONE, false) \
    X(16, TN_BF16, TN_F32, TN_BF16, true, TN_A64, TN_NONE, false) \
    X(17, TN_BF16, TN_NONE, TN_BF16, true, TN_A64, TN_NONE, false) \
    X(18, TN_BF16, TN_BF16, TN_BF16, true, TN_A32, TN_NONE, false) \
    X(19, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, false) \
    X(20, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, false) \
    X(21, TN_F16, TN_NONE, TN_F16, false, TN_A32, TN_NONE, false) \
    X(22, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_F16, false) \
    X(23, TN_F16, TN_F16, TN_F16, false, TN_A32, TN_NONE, true) \
    X(24, TN_F16, TN_F32, TN_F16, false, TN_A32, TN_NONE, true) \
    X(25, TN_F16, TN_F16, TN_F16, true, TN_A64, TN_NONE, false) \
    X(26, TN_F16, TN_F32, TN_F16, true, TN_A64, TN_NONE, false) \
    X(27, TN_F16, TN_NONE, TN_F16, true, TN_A64, TN_NONE, false) \
    X(28, TN_F16, TN_F16, TN_F16, true, TN_A32, TN_NONE, false)
/* clang-format on */
#define TN_FUSED_COUNT 29

/* The parameter gradients of one backward sweep. */
enum { TN_DWEIGHT, TN_DBIAS, TN_DSCALE, TN_DSHIFT, TN_COLUMN_OUTPUTS };

/* A backward plan: the forward's, and the gradients wanted. */
struct tn_grad_plan {
    struct tn_plan forward;
    struct tn_operand dy, dsum, dx, dresidual, dgate;
    bool columns[TN_COLUMN_OUTPUTS]; /* which column sums this sweep makes */
    size_t slots;                    /* rows r, r + slots, ... share a column sum */
    bool elements;                   /* dx, dresidual and dgate are due in this sweep */
};

/* Backward of rows [r0, r1); adds to sums[slot][output][column], where wanted, for slot = (r - r0) % slots. Columns are
 * n, or n / positions for dweight and dbias. */
typedef void tn_grad_fn(const struct tn_grad_plan *plan, size_t r0, size_t r1, double *sums);

/* Doubles of one slot of sums. */
static inline size_t tn_slot_size(const struct tn_grad_plan *g)
{
    size_t n = g->forward.groups * g->forward.group, params = n / g->forward.positions;
    return (g->columns[TN_DWEIGHT] ? params : 0) + (g->columns[TN_DBIAS] ? params : 0) +
           (g->columns[TN_DSCALE] ? n : 0) + (g->columns[TN_DSHIFT] ? n : 0);
}

/* Fused backward instances: contiguous, no gate, residual or modulation; dx of x's dtype, dy too.
 * X(index, x dtype, weight dtype, centred) */
/* clang-format off */
#define TN_GRAD_LIST(X) \
    X(0, TN_F32, TN_F32, false) \
    X(1, TN_F32, TN_NONE, false) \
    X(2, TN_F32, TN_F32, true) \
    X(3, TN_F32, TN_NONE, true) \
    X(4, TN_BF16, TN_BF16, false) \
    X(5, TN_BF16, TN_F32, false) \
    X(6, TN_BF16, TN_BF16, true) \
    X(7, TN_BF16, TN_F32, true) \
    X(8, TN_F16, TN_F16, false) \
    X(9, TN_F16, TN_F32, false) \
    X(10, TN_F16, TN_F16, true) \
    X(11, TN_F16, TN_F32, true)
/* clang-format on */
#define TN_GRAD_COUNT 12

struct tn_kernels {
    const char *name;
    tn_rows_fn *fused[TN_FUSED_COUNT];
    tn_rows_fn *narrow[2][3]; /* [centred][algo] */
    tn_rows_fn *wide;
    tn_grad_fn *grad_fused[TN_GRAD_COUNT];
    tn_grad_fn *grad_wide;
};

extern const struct tn_kernels tn_kernels_scalar;
#if TN_ARCH_X86_64
extern const struct tn_kernels tn_kernels_avx2;
extern const struct tn_kernels tn_kernels_avx512;
#endif
#if TN_ARCH_NEON
extern const struct tn_kernels tn_kernels_neon;
#endif

#endif
