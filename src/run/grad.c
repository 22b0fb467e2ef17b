/* grad.c - column sums in f64 over blocks of rows, so that no thread count and no order of tasks can show. */
#include "run/grad.h"

#include "base/half.h"
#include "run/dispatch.h"
#include "run/rows.h"

/* At most this many partial sums (blocks times outer); 64 keeps 64 cores busy and the workspace small. */
#define MOST_BLOCKS 64
/* And no less than these rows each: sums of few short rows cost as much as the rows. */
#define LEAST_BLOCK 8
#define LEAST_SHORT_BLOCK 32
#define LEAST_ELEMENTS ((size_t)1 << 15)
#define BATCH_DOUBLES ((size_t)1 << 20)

/* From that size of x on the rows of the next tile are fetched ahead; below, it only costs (docs/performance.md). */
#define FAR_BYTES ((size_t)4 << 20)

static size_t least_block(size_t row)
{
    size_t rows = row ? LEAST_ELEMENTS / row : LEAST_SHORT_BLOCK;
    return rows < LEAST_BLOCK ? LEAST_BLOCK : rows < LEAST_SHORT_BLOCK ? rows : LEAST_SHORT_BLOCK;
}

struct tn_reduction tn_plan_reduction(const struct tn_grad_plan *g, const bool sum_axis[2])
{
    const size_t *rows = g->forward.rows;
    struct tn_reduction r = {.outer = sum_axis[0] ? 1 : rows[0], .slots = sum_axis[1] ? 1 : rows[1]};
    r.reduced = (sum_axis[0] ? rows[0] : 1) * (sum_axis[1] ? rows[1] : 1);
    size_t most = r.outer >= MOST_BLOCKS ? 1 : MOST_BLOCKS / r.outer;
    r.block = (r.reduced + most - 1) / most;
    const size_t least = least_block(g->forward.groups * g->forward.group);
    if (r.block < least)
        r.block = least;
    r.blocks = (r.reduced + r.block - 1) / r.block;
    r.slot_size = tn_slot_size(g);
    size_t one = r.blocks * r.slots * r.slot_size;
    r.batch = one == 0 ? r.outer : one >= BATCH_DOUBLES ? 1 : BATCH_DOUBLES / one;
    if (r.batch > r.outer)
        r.batch = r.outer;
    return r;
}

size_t tn_reduction_size(const struct tn_reduction *r)
{
    return r->batch * r->blocks * r->slots * r->slot_size;
}

static bool same_dtype(const struct tn_operand *o, tn_dtype dt)
{
    return !o->data || (o->dtype == dt && o->inner == (ptrdiff_t)tn_element_size(dt));
}

/* The fused kernel for a plan, or the general one. */
static tn_grad_fn *choose_kernel(const struct tn_grad_plan *g)
{
    static const struct {
        tn_dtype x, w;
        bool centred;
        enum tn_extra extra;
    } keys[TN_GRAD_COUNT] = {
#define KEY(k, xt, wt, centred, extra) {xt, wt, centred, extra},
        TN_GRAD_LIST(KEY)
#undef KEY
    };
    const struct tn_kernels *kernels = tn_active_kernels();
    const struct tn_plan *p = &g->forward;
    tn_dtype x = p->x.dtype, w = p->weight.data ? p->weight.dtype : TN_NONE;
    enum tn_extra extra = p->gate_place == TN_GATE_BEFORE  ? TN_GATED_BEFORE
                          : p->gate_place == TN_GATE_AFTER ? TN_GATED_AFTER
                          : p->residual.data               ? TN_ADDS
                                                           : TN_PLAIN;
    bool fits = extra == TN_PLAIN || (extra == TN_ADDS ? p->sum_dtype == x
                                                       : p->act == TN_SILU && !p->residual.data &&
                                                             !p->bias.data && p->round_p == TN_NONE);
    bool whole = p->counted == p->group || (extra == TN_PLAIN && !p->centred);
    bool simple = g->folds && whole && fits && same_dtype(&p->gate, x) && same_dtype(&g->dgate, x) &&
                  same_dtype(&p->x, x) && same_dtype(&g->dy, x) && same_dtype(&g->dsum, x) &&
                  same_dtype(&g->dx, x) && same_dtype(&g->dresidual, x) && same_dtype(&p->residual, x) &&
                  same_dtype(&p->weight, w) && !p->mod_scale.data && !p->mod_shift.data &&
                  p->positions == 1 && p->round_w == TN_NONE && (p->round_h == TN_NONE || p->round_h == x) &&
                  !g->columns[TN_DSCALE] && !g->columns[TN_DSHIFT];
    for (size_t k = 0; simple && k < TN_GRAD_COUNT; k++)
        if (keys[k].x == x && keys[k].w == w && keys[k].centred == p->centred && keys[k].extra == extra)
            return kernels->grad_fused[k];
    return kernels->grad_wide;
}

struct grad_tasks {
    const struct tn_grad_plan *plan;
    const struct tn_reduction *r;
    tn_grad_fn *fn;
    double *sums;
    size_t outer; /* the first of the batch */
};

static void run_task(void *arg, size_t i)
{
    const struct grad_tasks *t = arg;
    const struct tn_reduction *r = t->r;
    size_t first = i % r->blocks * r->block;
    size_t steps = r->reduced - first < r->block ? r->reduced - first : r->block;
    size_t base = (t->outer + i / r->blocks) * r->reduced * r->slots + first * r->slots;
    double *sums = r->slot_size ? t->sums + i * r->slots * r->slot_size : NULL;
    t->fn(t->plan, base, base + steps * r->slots, sums);
}

static double load_element(const char *at, tn_dtype dt)
{
    double d;
    float f;
    uint16_t h;
    if (dt == TN_F64)
        return memcpy(&d, at, 8), d;
    if (dt == TN_F32)
        return memcpy(&f, at, 4), (double)f;
    memcpy(&h, at, 2);
    return (double)(dt == TN_BF16 ? tn_bf16_to_f32(h) : tn_f16_to_f32(h));
}

static void store_element(char *at, tn_dtype dt, double d)
{
    float f = (float)d;
    if (dt == TN_F64) {
        memcpy(at, &d, 8);
    } else if (dt == TN_F32) {
        memcpy(at, &f, 4);
    } else {
        uint16_t h = dt == TN_BF16 ? tn_f32_to_bf16(f) : tn_f32_to_f16(f);
        memcpy(at, &h, 2);
    }
}

/* Adds the blocks of `outers` sums of one output up, in order, and writes them; `offset` doubles into each slot. */
static void write_columns(const struct tn_reduction *r, const double *sums, size_t outer, size_t outers,
                          size_t offset, size_t n, const struct tn_operand *out, bool accumulate)
{
    for (size_t o = 0; o < outers; o++)
        for (size_t slot = 0; slot < r->slots; slot++) {
            char *row =
                out->data + (ptrdiff_t)(outer + o) * out->stride[0] + (ptrdiff_t)slot * out->stride[1];
            const double *first = sums + (o * r->blocks * r->slots + slot) * r->slot_size + offset;
            if (r->blocks && out->inner == (ptrdiff_t)tn_element_size(out->dtype)) {
                tn_active_kernels()->write_columns(first, r->blocks, r->slots * r->slot_size, n, out->dtype,
                                                   row, accumulate);
                continue;
            }
            for (size_t k = 0; k < n; k++) {
                char *at = row + (ptrdiff_t)k * out->inner;
                double total = r->blocks ? first[k] : 0.0;
                for (size_t b = 1; b < r->blocks; b++)
                    total += first[b * r->slots * r->slot_size + k];
                store_element(at, out->dtype, accumulate ? load_element(at, out->dtype) + total : total);
            }
        }
}

void tn_write_no_columns(const struct tn_columns *columns, const size_t rows[2])
{
    for (int k = 0; k < TN_COLUMN_OUTPUTS; k++) {
        const struct tn_operand *out = &columns->out[k];
        struct tn_reduction r = {.slots = out->stride[1] ? rows[1] : 1};
        double nothing = 0.0;
        if (out->data && !columns->accumulate)
            write_columns(&r, &nothing, 0, out->stride[0] ? rows[0] : 1, 0, columns->width[k], out, false);
    }
}

void tn_run_grad_sweep(struct tn_grad_plan *plan, const struct tn_reduction *r,
                       const struct tn_columns *columns, double *sums, const tn_executor *executor)
{
    const struct tn_plan *p = &plan->forward;
    struct grad_tasks t = {plan, r, choose_kernel(plan), sums, 0};
    size_t bytes = p->rows[0] * p->rows[1] * p->groups * p->group * tn_element_size(p->x.dtype);
    plan->forward.far = bytes && tn_is_far(p, FAR_BYTES);
    plan->stream = bytes && tn_should_stream(p, &plan->dx);
    for (; t.outer < r->outer; t.outer += r->batch) {
        size_t outers = r->outer - t.outer < r->batch ? r->outer - t.outer : r->batch, offset = 0;
        if (executor && outers * r->blocks > 1 && bytes >= TN_SERIAL_BYTES)
            executor->parallel_for(executor->ctx, outers * r->blocks, run_task, &t);
        else
            for (size_t i = 0; i < outers * r->blocks; i++)
                run_task(&t, i);
        for (int k = 0; k < TN_COLUMN_OUTPUTS; k++) {
            if (!plan->columns[k])
                continue;
            write_columns(r, sums, t.outer, outers, offset, columns->width[k], &columns->out[k],
                          columns->accumulate);
            offset += columns->width[k];
        }
    }
}
