/* rows.c - kernel choice by operand dtypes and options only (never by data), and row tasks for threads. */
#include "run/rows.h"

#include "base/half.h"
#include "run/dispatch.h"

#define TASK_BYTES ((size_t)64 * 1024)

static bool small_dtype(const struct tn_operand *o)
{
    return !o->data || o->dtype == TN_F32 || o->dtype == TN_BF16 || o->dtype == TN_F16;
}

static bool is_narrow(const struct tn_plan *p)
{
    return small_dtype(&p->x) && small_dtype(&p->residual) && small_dtype(&p->weight) &&
           small_dtype(&p->bias) && small_dtype(&p->y) && small_dtype(&p->sum) &&
           (!p->gate.data || p->algo != TN_A64) && !p->quantised && !p->mod_scale.data &&
           !p->mod_shift.data && p->positions == 1 &&
           (!p->residual.data || p->sum_dtype == TN_F32 || p->sum_dtype == TN_BF16 ||
            p->sum_dtype == TN_F16) &&
           p->round_h != TN_F64 && p->round_r == TN_NONE && p->round_w == TN_NONE && p->round_p == TN_NONE;
}

static bool contiguous_row(const struct tn_operand *o)
{
    return o->inner == (ptrdiff_t)tn_element_size(o->dtype);
}

struct fused_key {
    tn_dtype x, w, y;
    bool centred;
    enum tn_algo algo;
    tn_dtype round_h;
    bool offset;
    enum tn_extra extra;
};
#define KEY(k, xt, wt, yt, centred, algo, round_h, offset, extra)                                            \
    {xt, wt, yt, centred, algo, round_h, offset, extra},
static const struct fused_key fused_keys[TN_FUSED_COUNT] = {TN_FUSED_LIST(KEY)};
#undef KEY

static enum tn_extra extra_of(const struct tn_plan *p)
{
    return p->quantised                      ? TN_INT8
           : p->gate_place == TN_GATE_BEFORE ? TN_GATED_BEFORE
           : p->gate_place == TN_GATE_AFTER  ? TN_GATED_AFTER
           : p->residual.data                ? TN_ADDS
                                             : TN_PLAIN;
}

static bool like_x(const struct tn_plan *p, const struct tn_operand *o)
{
    return !o->data || (o->dtype == p->x.dtype && contiguous_row(o));
}

/* Operands in rows without gaps, of the dtypes that go together. */
static bool operands_fit(const struct tn_plan *p)
{
    const struct tn_operand *w = &p->weight, *b = &p->bias;
    bool bias_fits = p->centred && w->data && b->dtype == w->dtype && contiguous_row(b);
    return p->y.data && contiguous_row(&p->x) && contiguous_row(&p->y) && (!w->data || contiguous_row(w)) &&
           (!b->data || bias_fits) && like_x(p, &p->residual) && like_x(p, &p->sum) && like_x(p, &p->gate) &&
           !p->mod_scale.data && !p->mod_shift.data && p->positions == 1;
}

/* What the fused kernels of each kind take for granted. */
static bool extra_fits(const struct tn_plan *p, enum tn_extra extra)
{
    const bool own = p->source == TN_STATS_OWN, whole = p->counted == p->group;
    switch (extra) {
    case TN_PLAIN:
        return whole || !p->centred;
    case TN_ADDS:
        return whole && own && p->sum.data && p->sum_dtype == p->x.dtype;
    case TN_GATED_BEFORE:
        return whole && own && p->act == TN_SILU && !p->residual.data && p->group <= TN_GATED_MAX;
    case TN_GATED_AFTER:
        return whole && p->act == TN_SILU && !p->residual.data;
    default:
        return whole && !p->gate.data && !p->residual.data && p->groups == 1;
    }
}

static bool is_simple(const struct tn_plan *p, enum tn_extra extra)
{
    return p->source != TN_STATS_MOMENTS && operands_fit(p) && extra_fits(p, extra) &&
           (p->offset == 0.0 || p->offset == 1.0) &&
           (!p->centred || p->raw_limit > 0.0 || p->source == TN_STATS_GIVEN) && p->round_r == TN_NONE &&
           p->round_w == TN_NONE && p->round_p == TN_NONE;
}

/* Index of the fused kernel for a plan, or TN_FUSED_COUNT. */
static size_t fused_index(const struct tn_plan *p)
{
    const enum tn_extra extra = extra_of(p);
    const tn_dtype w = p->weight.data ? p->weight.dtype : TN_NONE;
    size_t k = TN_FUSED_COUNT;
    if (!is_simple(p, extra))
        return k;
    for (k = 0; k < TN_FUSED_COUNT; k++) {
        const struct fused_key *f = &fused_keys[k];
        if (f->x == p->x.dtype && f->w == w && f->y == p->y.dtype && f->centred == p->centred &&
            f->algo == p->algo && f->round_h == p->round_h && f->offset == (p->offset == 1.0) &&
            f->extra == extra)
            break;
    }
    return k;
}

static tn_rows_fn *choose_kernel(const struct tn_plan *p)
{
    const struct tn_kernels *kernels = tn_active_kernels();
    size_t k = fused_index(p);
    if (k < TN_FUSED_COUNT)
        return kernels->fused[k];
    return is_narrow(p) ? kernels->narrow[p->centred][p->algo] : kernels->wide;
}

/* Results of at least that many bytes go past the caches, unless the caller says otherwise (docs/performance.md). */
#define STREAM_BYTES ((size_t)10 << 20)
#define LINE 64

static bool aligned_rows(const struct tn_operand *o, size_t row_bytes)
{
    return (uintptr_t)o->data % LINE == 0 && o->stride[0] % LINE == 0 && o->stride[1] % LINE == 0 &&
           row_bytes % LINE == 0;
}

bool tn_should_stream(const struct tn_plan *p, const struct tn_operand *o)
{
    if (!o->data || p->quantised || p->store == TN_STORE_CACHED)
        return false;
    size_t bytes = p->groups * p->group * tn_element_size(o->dtype);
    bool large = p->store == TN_STORE_STREAM || bytes >= STREAM_BYTES / (p->rows[0] * p->rows[1]);
    return large && aligned_rows(o, p->group * tn_element_size(o->dtype));
}

bool tn_is_far(const struct tn_plan *p, size_t bytes)
{
    const size_t row = p->groups * p->group * tn_element_size(p->x.dtype);
    const ptrdiff_t pitch = p->rows[1] > 1 ? p->x.stride[1] : p->x.stride[0];
    return row >= bytes / (p->rows[0] * p->rows[1]) && pitch == (ptrdiff_t)row;
}

/* From that size on x is fetched ahead: it has left L2. */
#define FAR_BYTES ((size_t)1 << 20)

/* 16-bit parameters that all rows share are widened once, if they fit. */
#define PARAM_MAX 4096
#define PARAM_ROWS 4

struct params {
    _Alignas(LINE) float w[PARAM_MAX], b[PARAM_MAX];
};

static bool shared_16bit(const struct tn_operand *o)
{
    return (o->dtype == TN_BF16 || o->dtype == TN_F16) && o->stride[0] == 0 && o->stride[1] == 0;
}

static void widen_param(struct tn_operand *o, size_t n, float *to)
{
    tn_active_kernels()->widen(o->dtype, o->data, n, to);
    o->data = (char *)to;
    o->dtype = TN_F32;
    o->inner = sizeof *to;
}

/* The plan with f32 parameters in `params`, where a fused kernel takes those; false: as it was. */
static bool widen_params(struct tn_plan *p, struct params *params)
{
    const struct tn_plan before = *p;
    const size_t n = p->groups * p->group;
    if (!p->weight.data || n > PARAM_MAX || p->rows[0] * p->rows[1] < PARAM_ROWS ||
        !shared_16bit(&p->weight) || (p->bias.data && !shared_16bit(&p->bias)) ||
        fused_index(p) == TN_FUSED_COUNT)
        return false;
    p->weight.dtype = TN_F32;
    p->weight.inner = sizeof(float);
    p->bias.dtype = p->bias.data ? TN_F32 : TN_NONE;
    p->bias.inner = sizeof(float);
    const bool exists = fused_index(p) < TN_FUSED_COUNT;
    *p = before;
    if (!exists)
        return false;
    widen_param(&p->weight, n, params->w);
    if (p->bias.data)
        widen_param(&p->bias, n, params->b);
    return true;
}

struct row_tasks {
    const struct tn_plan *plan;
    tn_rows_fn *fn;
    size_t rows, step;
};

static void run_task(void *arg, size_t i)
{
    const struct row_tasks *t = arg;
    size_t r0 = i * t->step, r1 = t->rows - r0 < t->step ? t->rows : r0 + t->step;
    t->fn(t->plan, r0, r1);
}

static void run_rows(const struct tn_plan *p, const tn_executor *executor)
{
    struct row_tasks t = {p, choose_kernel(p), p->rows[0] * p->rows[1], 0};
    size_t n = p->groups * p->group;
    size_t row_bytes = n * (tn_element_size(p->x.dtype) + (p->y.data ? tn_element_size(p->y.dtype) : 0));
    if (!executor || t.rows == 1 || row_bytes < TN_SERIAL_BYTES / t.rows) {
        t.fn(p, 0, t.rows);
        return;
    }
    t.step = row_bytes >= TASK_BYTES ? 1 : TASK_BYTES / row_bytes;
    executor->parallel_for(executor->ctx, (t.rows + t.step - 1) / t.step, run_task, &t);
}

/* Apart, for the 32 KB on the stack. */
static TN_NOINLINE bool run_rows_widened(const struct tn_plan *p, const tn_executor *executor)
{
    struct tn_plan wide = *p;
    struct params params;
    if (!widen_params(&wide, &params))
        return false;
    run_rows(&wide, executor);
    return true;
}

void tn_run_rows(struct tn_plan *p, const tn_executor *executor)
{
    if (p->rows[0] * p->rows[1] == 0 || p->groups * p->group == 0)
        return;
    p->stream = tn_should_stream(p, &p->y);
    p->far = tn_is_far(p, FAR_BYTES);
    bool half = p->weight.dtype == TN_BF16 || p->weight.dtype == TN_F16;
    if (!(half && p->weight.data && run_rows_widened(p, executor)))
        run_rows(p, executor);
}
