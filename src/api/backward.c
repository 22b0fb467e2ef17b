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

/* The next sweep: the outputs not yet done that share the row axes of the first of them. False when none is left.
 * The last sweep also makes the element gradients, which may overwrite dy. */
static bool next_sweep(const struct backward *b, bool done[TN_COLUMN_OUTPUTS], struct tn_grad_plan *plan,
                       struct tn_reduction *r)
{
    bool axes[2] = {true, true}, more = false, any = false;
    *plan = b->plan;
    for (int out = 0; out < TN_COLUMN_OUTPUTS; out++) {
        plan->columns[out] = false;
        if (!b->columns.out[out].data || done[out])
            continue;
        bool these[2] = {reduces(b, out, 0), reduces(b, out, 1)};
        if (!any)
            memcpy(axes, these, sizeof axes);
        any = true;
        if (axes[0] == these[0] && axes[1] == these[1])
            done[out] = plan->columns[out] = true;
        else
            more = true;
    }
    plan->elements = !more && (b->plan.dx.data || b->plan.dresidual.data || b->plan.dgate.data);
    *r = tn_plan_reduction(plan, axes);
    plan->slots = r->slots;
    return any || plan->elements;
}

static size_t workspace_bytes(const struct backward *b)
{
    bool done[TN_COLUMN_OUTPUTS] = {false};
    struct tn_grad_plan plan;
    struct tn_reduction r;
    size_t most = 0;
    do {
        if (!next_sweep(b, done, &plan, &r))
            break;
        size_t size = tn_reduction_size(&r) * sizeof(double);
        most = size > most ? size : most;
    } while (!plan.elements);
    return most;
}

static void run_sweeps(const struct backward *b, double *sums, const tn_executor *executor)
{
    bool done[TN_COLUMN_OUTPUTS] = {false};
    struct tn_grad_plan plan;
    struct tn_reduction r;
    do {
        if (!next_sweep(b, done, &plan, &r))
            break;
        tn_run_grad_sweep(&plan, &r, &b->columns, sums, executor);
    } while (!plan.elements);
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
    return workspace_bytes(&b);
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
    size_t bytes = workspace_bytes(&b);
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
    run_sweeps(&b, space, executor);
    if (space != g.workspace)
        free(space);
    return TN_OK;
}
