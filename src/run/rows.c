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
           small_dtype(&p->bias) && small_dtype(&p->y) && small_dtype(&p->sum) && !p->gate.data &&
           !p->quantised && !p->mod_scale.data && !p->mod_shift.data && p->positions == 1 &&
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
};
#define KEY(k, xt, wt, yt, centred, algo, round_h, offset) {xt, wt, yt, centred, algo, round_h, offset},
static const struct fused_key fused_keys[TN_FUSED_COUNT] = {TN_FUSED_LIST(KEY)};
#undef KEY

/* Index of the fused kernel for a narrow plan, or TN_FUSED_COUNT. */
static size_t fused_index(const struct tn_plan *p)
{
    size_t k = TN_FUSED_COUNT;
    bool simple =
        p->source != TN_STATS_MOMENTS && p->y.data && !p->residual.data && p->counted == p->group &&
        contiguous_row(&p->x) && contiguous_row(&p->y) && (p->offset == 0.0 || p->offset == 1.0) &&
        (!p->weight.data || contiguous_row(&p->weight)) &&
        (!p->bias.data || (p->weight.data && p->bias.dtype == p->weight.dtype && contiguous_row(&p->bias)));
    if (!simple)
        return k;
    tn_dtype w = p->weight.data ? p->weight.dtype : TN_NONE;
    for (k = 0; k < TN_FUSED_COUNT; k++) {
        const struct fused_key *f = &fused_keys[k];
        if (f->x == p->x.dtype && f->w == w && f->y == p->y.dtype && f->centred == p->centred &&
            f->algo == p->algo && f->round_h == p->round_h && f->offset == (p->offset == 1.0))
            break;
    }
    return k;
}

static tn_rows_fn *choose_kernel(const struct tn_plan *p)
{
    const struct tn_kernels *kernels = tn_active_kernels();
    if (!is_narrow(p))
        return kernels->wide;
    size_t k = fused_index(p);
    return k < TN_FUSED_COUNT ? kernels->fused[k] : kernels->narrow[p->centred][p->algo];
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

void tn_run_rows(const struct tn_plan *p, const tn_executor *executor)
{
    struct row_tasks t = {p, choose_kernel(p), p->rows[0] * p->rows[1], 0};
    size_t n = p->groups * p->group;
    size_t row_bytes = n * (tn_element_size(p->x.dtype) + (p->y.data ? tn_element_size(p->y.dtype) : 0));
    if (t.rows == 0 || n == 0)
        return;
    if (!executor || t.rows == 1 || row_bytes < TN_SERIAL_BYTES / t.rows) {
        t.fn(p, 0, t.rows);
        return;
    }
    t.step = row_bytes >= TASK_BYTES ? 1 : TASK_BYTES / row_bytes;
    executor->parallel_for(executor->ctx, (t.rows + t.step - 1) / t.step, run_task, &t);
}
