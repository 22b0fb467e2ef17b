/* backward.c - tn_norm_backward: checks, workspace, and one sweep per pattern of column sums. */
#include <stdlib.h>

#include "api/operand.h"
#include "api/plan.h"
#include "base/half.h"
#include "run/grad.h"

/* A checked backward call. */
struct backward {
    struct tn_grad_plan plan;
    struct tn_columns columns;
};

static bool reduces(const struct backward *b, int out, int axis)
{
    return b->columns.out[out].stride[axis] == 0 || b->plan.forward.rows[axis] == 1;
}

#define SET(field, to)                                                                                       \
    if (status == TN_OK)                                                                                     \
    status = tn_set_operand(to, g->field.data, g->field.dtype, g->field.stride, g->field.inner, TN_FLOATS)

static tn_status set_operands(struct backward *b, const tn_norm_grads *g)
{
    tn_status status = TN_OK;
    SET(dy, &b->plan.dy);
    SET(dsum, &b->plan.dsum);
    SET(dx, &b->plan.dx);
    SET(dresidual, &b->plan.dresidual);
    SET(dgate, &b->plan.dgate);
    SET(dweight, &b->columns.out[TN_DWEIGHT]);
    SET(dbias, &b->columns.out[TN_DBIAS]);
    SET(dmod_scale, &b->columns.out[TN_DSCALE]);
    SET(dmod_shift, &b->columns.out[TN_DSHIFT]);
    size_t n = b->plan.forward.groups * b->plan.forward.group;
    for (int out = 0; out < TN_COLUMN_OUTPUTS; out++)
        b->columns.width[out] = out <= TN_DBIAS ? n / b->plan.forward.positions : n;
    b->columns.accumulate = g->accumulate != 0;
    return status;
}

/* Is the arithmetic that of grad_fold.h? */
static bool folds(const struct tn_grad_plan *g)
{
    const struct tn_plan *p = &g->forward;
    const struct tn_operand *in[] = {&g->dy,     &p->x,         &p->residual, &p->gate,
                                     &p->weight, &p->mod_scale, &p->mod_shift};
    for (size_t k = 0; k < sizeof in / sizeof *in; k++)
        if (in[k]->data && in[k]->dtype == TN_F64)
            return false;
    bool whole = p->counted == p->group;
    return (whole || !p->centred) && p->count == (double)p->counted && p->round_r == TN_NONE;
}

static bool wants_anything(const struct backward *b)
{
    bool any = b->plan.dx.data || b->plan.dresidual.data || b->plan.dgate.data;
    for (int out = 0; out < TN_COLUMN_OUTPUTS; out++)
        any = any || b->columns.out[out].data;
    return any;
}

static tn_status check_presence(const struct backward *b)
{
    const struct tn_plan *p = &b->plan.forward;
    bool orphan = (b->plan.dgate.data && !p->gate.data) ||
                  (b->columns.out[TN_DSCALE].data && !p->mod_scale.data) ||
                  (b->columns.out[TN_DSHIFT].data && !p->mod_shift.data);
    if (!b->plan.dy.data || !wants_anything(b) || orphan)
        return TN_ERR_NULL;
    return TN_OK;
}

static tn_status check_overlap(const struct backward *b, const tn_norm_grads *g, size_t workspace)
{
    enum { DY = 1, DSUM = 2, X = 4, RESIDUAL = 8, GATE = 16, ALL = 31 };
    const struct tn_plan *p = &b->plan.forward;
    const struct tn_grad_plan *q = &b->plan;
    size_t n = p->groups * p->group, params = n / p->positions;
    const struct tn_operand space = {g->workspace, TN_I8, {0, 0}, 1};
    const struct tn_use uses[] = {
        {&q->dy, n, DY, false, 0, false},
        {&q->dsum, n, DSUM, false, 0, false},
        {&p->x, n, X, false, 0, false},
        {&p->residual, n, RESIDUAL, false, 0, false},
        {&p->gate, n, GATE, false, 0, false},
        {&p->weight, params, 0, false, 0, false},
        {&p->bias, params, 0, false, 0, false},
        {&p->mod_scale, n, 0, false, 0, false},
        {&p->mod_shift, n, 0, false, 0, false},
        {&p->mean_in, p->groups, 0, false, 0, false},
        {&p->rstd_in, p->groups, 0, false, 0, false},
        {&q->dx, n, 0, true, ALL, false},
        {&q->dresidual, n, 0, true, ALL, false},
        {&q->dgate, n, 0, true, ALL, false},
        {&b->columns.out[TN_DWEIGHT], params, 0, true, 0, true},
        {&b->columns.out[TN_DBIAS], params, 0, true, 0, true},
        {&b->columns.out[TN_DSCALE], n, 0, true, 0, true},
        {&b->columns.out[TN_DSHIFT], n, 0, true, 0, true},
        {&space, workspace, 0, workspace > 0, 0, true},
    };
    return tn_check_uses(uses, sizeof uses / sizeof *uses - (g->workspace && workspace ? 0 : 1), p->rows);
}

/* The column outputs that are summed over the same row axes, and in the last sweep the element gradients. */
struct sweep {
    struct tn_grad_plan plan;
    struct tn_reduction reduction;
};

/* Groups the outputs into sweeps. Element gradients come last: they may overwrite dy. */
static int plan_sweeps(const struct backward *b, struct sweep sweeps[TN_COLUMN_OUTPUTS])
{
    bool elements = b->plan.dx.data || b->plan.dresidual.data || b->plan.dgate.data;
    int count = 0;
    for (int sums = 3; sums >= 0; sums--) { /* bit k: summed over row axis k */
        const bool axes[2] = {sums & 1, sums & 2};
        struct sweep *s = &sweeps[count];
        bool any = false;
        s->plan = b->plan;
        for (int out = 0; out < TN_COLUMN_OUTPUTS; out++) {
            bool same = reduces(b, out, 0) == axes[0] && reduces(b, out, 1) == axes[1];
            s->plan.columns[out] = b->columns.out[out].data && same;
            any = any || s->plan.columns[out];
        }
        if (!any && !(sums == 0 && count == 0 && elements))
            continue;
        /* without column sums, blocks of rows as for a sum over both axes */
        s->reduction = tn_plan_reduction(&s->plan, any ? axes : (const bool[2]){true, true});
        s->plan.slots = s->reduction.slots;
        count++;
    }
    if (count)
        sweeps[count - 1].plan.elements = elements;
    return count;
}

static size_t workspace_bytes(const struct sweep *sweeps, int count)
{
    size_t most = 0;
    for (int k = 0; k < count; k++) {
        size_t bytes = tn_reduction_size(&sweeps[k].reduction) * sizeof(double);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static tn_status make_backward(const tn_norm_desc *desc, const tn_norm_io *forward,
                               const tn_norm_grads *grads, struct backward *b, tn_norm_grads *g, bool *empty)
{
    memset(b, 0, sizeof *b);
    tn_status status = tn_copy_struct(g, sizeof *g, grads);
    if (status == TN_OK)
        status = tn_make_plan(desc, forward, TN_BACKWARD, &b->plan.forward, empty);
    if (status == TN_OK)
        status = set_operands(b, g);
    if (status == TN_OK && !*empty)
        status = check_presence(b);
    b->plan.folds = folds(&b->plan);
    return status;
}

size_t tn_norm_backward_workspace(const tn_norm_desc *desc, const tn_norm_io *forward,
                                  const tn_norm_grads *grads)
{
    struct backward b;
    tn_norm_grads g;
    bool empty;
    if (make_backward(desc, forward, grads, &b, &g, &empty) != TN_OK || empty)
        return 0;
    struct sweep sweeps[TN_COLUMN_OUTPUTS];
    return workspace_bytes(sweeps, plan_sweeps(&b, sweeps));
}

tn_status tn_norm_backward(const tn_norm_desc *desc, const tn_norm_io *forward, const tn_norm_grads *grads,
                           const tn_executor *executor)
{
    struct backward b;
    tn_norm_grads g;
    bool empty;
    if (executor && !executor->parallel_for)
        return TN_ERR_NULL;
    tn_status status = make_backward(desc, forward, grads, &b, &g, &empty);
    if (status != TN_OK)
        return status;
    if (empty) {
        tn_write_no_columns(&b.columns, b.plan.forward.rows);
        return TN_OK;
    }
    struct sweep sweeps[TN_COLUMN_OUTPUTS];
    int count = plan_sweeps(&b, sweeps);
    size_t bytes = workspace_bytes(sweeps, count);
    status = check_overlap(&b, &g, bytes);
    if (status != TN_OK)
        return status;
    if (g.workspace && g.workspace_size < bytes)
        return TN_ERR_SIZE;
    if (g.workspace && (uintptr_t)g.workspace % sizeof(double))
        return TN_ERR_VALUE;
    void *space = g.workspace;
    if (bytes && !space && !(space = malloc(bytes)))
        return TN_ERR_MEMORY;
    for (int k = 0; k < count; k++)
        tn_run_grad_sweep(&sweeps[k].plan, &sweeps[k].reduction, &b.columns, space, executor);
    if (space != g.workspace)
        free(space);
    return TN_OK;
}
