/* truenorm.h - normalization layers for CPUs: right to the last bit, the same bits everywhere.
 *
 * This header is the whole public API. It is C99 and C++ clean.
 *
 * What is computed, for a row x of n elements (exact arithmetic; rounding only where a cast is named):
 *
 *     s = x (+ residual)                            residual in, sum out
 *     s = s * act(gate)                             gate before; or on the result: gate after
 *     m = mean(s) for layer norm, else 0            over the row, or over each contiguous group
 *     v = mean((s - m)^2), or the sum for L2        over the first `partial` elements if asked
 *     h = (s - m) / sqrt(v + eps)
 *     y = cast(w' * cast?(h) + b)                   w' = weight + weight_offset
 *     y = cast((w' * cast?(h) + b) * (1 + mod_scale) + mod_shift)                       adaptive modulation
 *
 * Sources: LayerNorm, Ba et al. 2016 (arXiv 1607.06450); RMSNorm and its partial form,
 * Zhang & Sennrich 2019 (arXiv 1910.07467). The accuracy of each result, and why every machine gives the same bits,
 * is in docs/numerics.md.
 *
 * Threads: every function may be called from many threads at once, on outputs that do not overlap.
 * Nothing is kept between calls, the forward side allocates nothing, no call prints, aborts or changes
 * the floating-point environment. The environment must round to nearest (the default).
 */
#ifndef TRUENORM_H
#define TRUENORM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_VERSION_MAJOR 0
#define TN_VERSION_MINOR 1
#define TN_VERSION_PATCH 0

#if defined(_WIN32)
#define TN_API
#elif defined(__GNUC__)
#define TN_API __attribute__((visibility("default")))
#else
#define TN_API
#endif

/* ---- statuses ------------------------------------------------------------------------------------- */

/* Every function that can be misused returns one. On any but TN_OK nothing was written. */
typedef enum tn_status {
    TN_OK = 0,
    TN_ERR_NULL = 1,        /* a required pointer is NULL */
    TN_ERR_DTYPE = 2,       /* a dtype is unknown, or not allowed for that operand */
    TN_ERR_VALUE = 3,       /* eps negative or NaN, bad enum, group that does not divide n, ... */
    TN_ERR_SIZE = 4,        /* sizes or strides overflow the address space */
    TN_ERR_OVERLAP = 5,     /* an output overlaps an input inexactly, another output, or itself */
    TN_ERR_STRUCT_SIZE = 6, /* struct_size unset, or a newer caller uses fields this build lacks */
    TN_ERR_ISA = 7,         /* no such instruction set here */
    TN_ERR_MEMORY = 8       /* a workspace could not be allocated */
} tn_status;

/* A sentence for a status, never NULL. */
TN_API const char *tn_status_text(tn_status status);

/* ---- operands ------------------------------------------------------------------------------------- */

typedef enum tn_dtype {
    TN_NONE = 0,
    TN_F64 = 1,
    TN_F32 = 2,
    TN_BF16 = 3, /* 1-8-7, 2 bytes */
    TN_F16 = 4,  /* IEEE 1-5-10, 2 bytes; overflow gives inf */
    TN_I8 = 5,   /* y only: saturates at -128 and 127, NaN gives 0 */
    TN_E4M3 = 6, /* y only: OCP fp8 e4m3fn, saturates at +-448 */
    TN_E5M2 = 7  /* y only: OCP fp8 e5m2, overflow gives inf */
} tn_dtype;

/* Bytes of one element; 0 for an unknown dtype. */
TN_API size_t tn_dtype_size(tn_dtype dtype);

/* A view of rows[0] x rows[1] x n elements. Element (i, j, k) lies at data + (i*stride[0] + j*stride[1] +
 * k*inner) elements; any alignment, any sign, inputs may repeat elements (stride 0: broadcast).
 * data == NULL means that the operand is absent. */
typedef struct tn_in {
    const void *data;
    tn_dtype dtype;
    ptrdiff_t stride[2];
    ptrdiff_t inner;
} tn_in;

typedef struct tn_out {
    void *data;
    tn_dtype dtype;
    ptrdiff_t stride[2];
    ptrdiff_t inner;
} tn_out;

/* ---- the descriptor ------------------------------------------------------------------------------- */

typedef enum tn_kind {
    TN_RMS = 0,   /* no mean; v = mean of squares */
    TN_LAYER = 1, /* mean removed; v = variance (divisor n) */
    TN_L2 = 2     /* no mean; v = sum of squares */
} tn_kind;

/* Where the normalised value is rounded before the weight. */
typedef enum tn_cast {
    TN_CAST_ONCE = 0,         /* only the result is rounded: torch, OLMo2, Gemma */
    TN_CAST_BEFORE_SCALE = 1, /* h to x's dtype, then times the weight: Llama and most of its kin */
    TN_CAST_T5 = 2            /* h to the weight's dtype if that is bf16 or f16, else as once */
} tn_cast;

typedef enum tn_grade {
    TN_EXACT = 0, /* f32 RMSNorm within 0.5001 ulp; see docs/numerics.md for all */
    TN_FAST = 1   /* f32 apply step: f32 RMSNorm within 2.5 ulp, LayerNorm within 4, gated within 12 */
} tn_grade;

typedef enum tn_gate { TN_GATE_NONE = 0, TN_GATE_BEFORE = 1, TN_GATE_AFTER = 2 } tn_gate;
typedef enum tn_act { TN_SILU = 0, TN_SIGMOID = 1 } tn_act;

/* What the norm sees of x + residual. */
typedef enum tn_sum {
    TN_SUM_ROUNDED = 0, /* the sum rounded to the dtype of `sum` (x's dtype where sum.dtype is TN_NONE) */
    TN_SUM_EXACT = 1    /* the unrounded sum (rounded to f64 only) */
} tn_sum;

/* Where results go. Past the caches (non-temporal stores) is faster for what leaves them anyway, and slower for what is
 * read soon. Never shows in the bits. */
typedef enum tn_store {
    TN_STORE_AUTO = 0,   /* past the caches from 10 MiB on */
    TN_STORE_CACHED = 1, /* y is read soon */
    TN_STORE_STREAM = 2  /* y is not: past the caches, where its rows are aligned to 64 bytes */
} tn_store;

typedef enum tn_eps_mode {
    TN_EPS_INSIDE = 0,  /* h = (s - m) / sqrt(v + eps) */
    TN_EPS_OUTSIDE = 1, /* h = (s - m) / (sqrt(v) + eps) */
    TN_EPS_CLAMP = 2    /* h = (s - m) / max(sqrt(v), eps), as torch.nn.functional.normalize */
} tn_eps_mode;

/* Further cast points and permissions (tn_norm_desc.flags). */
#define TN_ROUND_RSTD 1u    /* 1/sqrt(v + eps) is rounded to x's dtype */
#define TN_ROUND_OFFSET 2u  /* weight + weight_offset is rounded to the weight's dtype */
#define TN_ROUND_PRODUCT 4u /* w' * h is rounded to y's dtype before the bias and the gate after */
#define TN_NEGATIVE_EPS 8u  /* eps < 0 is not refused: v + eps < 0 gives NaN, as torch does */

/* One norm layer over one shape. Zero is the default of every field but struct_size; later versions only
 * append fields. Use tn_norm_init() or TN_NORM_DESC_INIT. */
typedef struct tn_norm_desc {
    size_t struct_size; /* sizeof(tn_norm_desc) */
    size_t rows[2];     /* outer sizes, e.g. tokens and heads; 0 rows are fine */
    size_t n;           /* hidden size: elements of a row; 0 is fine (then nothing at all is written) */
    tn_kind kind;
    tn_cast cast;
    tn_grade grade;
    unsigned flags; /* TN_ROUND_*, TN_NEGATIVE_EPS */
    double eps;
    tn_eps_mode eps_mode;
    double divisor;       /* replaces the element count in the means (the 1 of TN_L2); 0: the count */
    size_t group;         /* statistics over each group of that many elements; 0: n */
    size_t partial;       /* statistics from the first `partial` elements (of each group); 0: all */
    double weight_offset; /* w' = weight + weight_offset; 1 for Gemma */
    tn_gate gate;
    tn_act act;
    tn_sum sum;
    /* Each element of weight and bias serves that many consecutive elements of a row; 0: one. GroupNorm over
     * [N, C, P]: rows {N, groups}, n = C/groups*P, positions = P, weight strides {0, C/groups}. */
    size_t positions;
    tn_store store; /* where y goes; only speed depends on it */
} tn_norm_desc;

/* The operands of one call. `weight` and `bias` use the same row indices as x: strides {0, 0} for a [n]
 * weight, {0, n} for a [heads, n] one, x's own strides for one per row. `mean`, `rstd` and `moment2` hold one
 * element per row and group: their inner stride steps over groups. `scale` holds one per row. */
typedef struct tn_norm_io {
    size_t struct_size; /* sizeof(tn_norm_io) */
    tn_in x;            /* f64 f32 bf16 f16 */
    tn_in residual;
    tn_in gate;
    tn_in weight;
    tn_in bias;
    tn_out y;         /* any dtype; absent: only the statistics or the sum are wanted */
    tn_out sum;       /* x + residual, rounded to its dtype */
    tn_out mean;      /* f32 or f64 */
    tn_out rstd;      /* f32 or f64: 1/sqrt(v + eps); 0 for a zero row with eps = 0 */
    tn_in scale_in;   /* int8/fp8 y: q = y / scale, f32 or f64, one for all (strides 0) or one per row */
    tn_out scale_out; /* int8/fp8 y: max|y| of the row / 127, 448 or 57344; 1 if max|y| is 0 */
    tn_in mean_in;    /* tn_norm_apply only: f32 or f64 */
    tn_in rstd_in;    /* tn_norm_apply only */
    tn_out moment2;   /* tn_norm_moments only: sum of (s - m)^2; f64 or f32 */
    tn_in mod_scale;  /* adaptive modulation, per row (x's strides) or per batch (stride {n, 0}) */
    tn_in mod_shift;
} tn_norm_io;

#define TN_NORM_DESC_INIT                                                                                    \
    {                                                                                                        \
        sizeof(tn_norm_desc), {0, 1}, 0, TN_RMS, TN_CAST_ONCE, TN_EXACT, 0, 1e-6, TN_EPS_INSIDE, 0.0, 0, 0,  \
            0.0, TN_GATE_NONE, TN_SILU, TN_SUM_ROUNDED, 0, TN_STORE_AUTO                                     \
    }

/* A descriptor for `rows` rows of n elements, everything else at its default. */
static inline tn_norm_desc tn_norm_init(tn_kind kind, size_t rows, size_t n, double eps)
{
    tn_norm_desc d = TN_NORM_DESC_INIT;
    d.kind = kind;
    d.rows[0] = rows;
    d.n = n;
    d.eps = eps;
    return d;
}

/* An empty operand set: every operand absent. */
static inline tn_norm_io tn_io_init(void)
{
    tn_norm_io io;
    memset(&io, 0, sizeof io);
    io.struct_size = sizeof(tn_norm_io);
    return io;
}

/* Views of contiguous rows of n elements, of a [n] parameter, and of one value per row. */
static inline tn_in tn_in_rows(const void *data, tn_dtype dtype, size_t n)
{
    tn_in v = {data, dtype, {(ptrdiff_t)n, 0}, 1};
    return v;
}
static inline tn_out tn_out_rows(void *data, tn_dtype dtype, size_t n)
{
    tn_out v = {data, dtype, {(ptrdiff_t)n, 0}, 1};
    return v;
}
static inline tn_in tn_in_param(const void *data, tn_dtype dtype)
{
    tn_in v = {data, dtype, {0, 0}, 1};
    return v;
}

/* ---- threads -------------------------------------------------------------------------------------- */

/* The caller's parallel loop: run task(arg, i) once for each i in [0, tasks), in any order, on any threads,
 * and return when all are done. Which thread runs what never changes a bit of the result. */
typedef struct tn_executor {
    void (*parallel_for)(void *ctx, size_t tasks, void (*task)(void *arg, size_t i), void *arg);
    void *ctx;
} tn_executor;

#ifdef _OPENMP
/* An executor over the caller's own OpenMP runtime (compile the caller with -fopenmp). */
static inline void tn_openmp_for(void *ctx, size_t tasks, void (*task)(void *, size_t), void *arg)
{
    (void)ctx;
#pragma omp parallel for schedule(dynamic)
    for (ptrdiff_t i = 0; i < (ptrdiff_t)tasks; i++)
        task(arg, (size_t)i);
}
static inline tn_executor tn_openmp(void)
{
    tn_executor ex = {tn_openmp_for, 0};
    return ex;
}
#endif

/* ---- forward -------------------------------------------------------------------------------------- */

/* The common cases: contiguous x and y [rows, n], weight and bias [n] or NULL, all of one dtype (f64 f32 bf16
 * f16), rounded once, on the calling thread. y may be x.
 * y = w * x / sqrt(mean(x^2) + eps)           and           y = w * (x - mean) / sqrt(var + eps) + b */
TN_API tn_status tn_rmsnorm(tn_dtype dtype, size_t rows, size_t n, const void *x, const void *weight,
                            double eps, void *y);
TN_API tn_status tn_layernorm(tn_dtype dtype, size_t rows, size_t n, const void *x, const void *weight,
                              const void *bias, double eps, void *y);

/* Everything else. `executor` may be NULL (the calling thread); small work never leaves the calling thread.
 * Aliasing: y may be exactly x, residual or gate, and sum exactly x or residual (same data, strides, dtype);
 * any other overlap with an output is TN_ERR_OVERLAP. */
TN_API tn_status tn_norm_forward(const tn_norm_desc *desc, const tn_norm_io *io, const tn_executor *executor);

/* Rows that are split over several owners (sharded QK norm, tensor parallel hidden size), in two steps.
 * First, each owner: io->moment2 = the sum (not the mean) over its part of s^2, or for TN_LAYER of
 * (s - m)^2 with io->mean = its own mean m. `partial` counts within the part. eps and y are not used. */
TN_API tn_status tn_norm_moments(const tn_norm_desc *desc, const tn_norm_io *io, const tn_executor *executor);
/* Then everybody adds up: plain addition of moment2 for TN_RMS and TN_L2; for TN_LAYER this, pairwise, in one
 * agreed order (Chan, Golub & LeVeque 1979). Counts, means and moments of part b are merged into part a. */
TN_API void tn_moments_merge(double *count_a, double *mean_a, double *moment2_a, double count_b,
                             double mean_b, double moment2_b);
/* 1/sqrt(moment2 / count + eps) as the forward computes it (desc gives kind, divisor, eps and eps_mode). */
TN_API double tn_norm_rstd(const tn_norm_desc *desc, double moment2, double count);
/* Last, each owner: y from io->rstd_in (and io->mean_in for TN_LAYER) instead of its own statistics. With f64
 * statistics of whole f32, bf16 or f16 rows TN_RMS and TN_L2 give the bits of tn_norm_forward, but for rows with a gate
 * before and from 16 bits to 16 bits, where now and then a last bit differs (docs/numerics.md, sections 1 and 2). */
TN_API tn_status tn_norm_apply(const tn_norm_desc *desc, const tn_norm_io *io, const tn_executor *executor);

/* ---- backward ------------------------------------------------------------------------------------- */

/* The gradients of one call. Each output is optional, each has its own dtype (f64 f32 bf16 f16).
 *
 * With h the normalised value, G the gradient that reaches it and <.> the mean over the counted elements:
 *
 *     dx = rstd * (G - <G>[TN_LAYER] - h * <G h>) + dsum        dresidual = dx
 *     dweight = sum over rows of dy h,    dbias = sum over rows of dy      (times the gate and 1 + mod_scale)
 *
 * h is the value that the forward multiplied with the weight (rounded where the cast mode rounds it); a rounding has the
 * gradient of the identity. */
typedef struct tn_norm_grads {
    size_t struct_size; /* sizeof(tn_norm_grads) */
    tn_in dy;           /* any strides, 0 included */
    tn_in dsum; /* gradient of the sum output (the residual stream): added after the norm's Jacobian */
    tn_out dx;
    tn_out dresidual;
    tn_out dgate;
    tn_out dweight; /* a stride of 0 means: summed over that row axis. {0, 0}: [n]; {0, n}: [heads, n]; ... */
    tn_out dbias;
    tn_out dmod_scale;
    tn_out dmod_shift;
    unsigned accumulate; /* nonzero: dweight, dbias, dmod_* are added to */
    void *workspace;     /* aligned to 8; NULL: allocated and freed inside, TN_ERR_MEMORY if that fails */
    size_t workspace_size;
} tn_norm_grads;

static inline tn_norm_grads tn_grads_init(void)
{
    tn_norm_grads g;
    memset(&g, 0, sizeof g);
    g.struct_size = sizeof(tn_norm_grads);
    return g;
}
static inline tn_out tn_out_param(void *data, tn_dtype dtype)
{
    tn_out v = {data, dtype, {0, 0}, 1};
    return v;
}

/* `forward` names the inputs of the forward call; its outputs are ignored but for the dtypes of sum and y. Statistics are
 * taken from mean_in and rstd_in if rstd_in is given (what the forward stored in mean and rstd: 4 or 8 bytes a row,
 * nothing per element), else they are computed again, which is the more accurate choice.
 * Aliasing: dx, dresidual and dgate may each be exactly dy, dsum, x, residual or gate (same strides and dtype).
 * Column sums are f64 over blocks of rows that depend on the shape only, combined in order: the same bits for any
 * executor. Splitting rows over several calls with accumulate rounds in between. */
TN_API tn_status tn_norm_backward(const tn_norm_desc *desc, const tn_norm_io *forward,
                                  const tn_norm_grads *grads, const tn_executor *executor);

/* Bytes that `workspace` must hold for these gradients; 0 if none are needed or the arguments are wrong. */
TN_API size_t tn_norm_backward_workspace(const tn_norm_desc *desc, const tn_norm_io *forward,
                                         const tn_norm_grads *grads);

/* ---- the build and the machine -------------------------------------------------------------------- */

TN_API const char *tn_version(void); /* "0.1.0" */

/* Instruction sets: "scalar" always, then what this build and this CPU have of "avx2" (with FMA and F16C),
 * "avx512" (F, BW, DQ, VL), "avx512bf16" (and BF16), "neon". The best one is taken at first use, or the one that the environment variable TN_ISA
 * names if it is usable. All give the same bits. */
TN_API const char *tn_isa_name(void);
/* Writes up to `capacity` names, worst first, and returns how many there are. */
TN_API size_t tn_isa_list(const char **names, size_t capacity);
/* Use this one from now on, in the whole process; TN_ERR_ISA if it is not usable here. */
TN_API tn_status tn_isa_set(const char *name);

#ifdef __cplusplus
}
#endif
#endif /* TRUENORM_H */
