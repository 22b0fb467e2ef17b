/* grad_case.c - from a spec to the buffers of a backward call and back to words. */
#include "grad_case.h"

#include <stdlib.h>
#include <string.h>

static const enum operand over_operand[] = {OP_COUNT, OP_COUNT, OP_COUNT, OP_X, OP_RESIDUAL, OP_GATE};

struct grad_spec grad_spec_make(tn_kind kind, tn_dtype dtype, size_t rows, size_t n, bool weight, bool bias)
{
    struct grad_spec s;
    memset(&s, 0, sizeof s);
    s.f = spec_make(kind, dtype, rows, n, weight, bias);
    s.dtype[GR_DY] = s.dtype[GR_DX] = dtype;
    s.dtype[GR_DWEIGHT] = weight ? dtype : TN_NONE;
    s.dtype[GR_DBIAS] = bias ? dtype : TN_NONE;
    s.gen[0] = s.gen[1] = GEN_NORMAL;
    for (int op = GR_DWEIGHT; op < GR_COUNT; op++)
        s.layout[op] = LAY_SHARED;
    return s;
}

void grad_spec_all(struct grad_spec *s, tn_dtype dtype)
{
    static const struct {
        enum grad_operand out;
        enum operand in;
    } pairs[] = {{GR_DX, OP_X},
                 {GR_DSUM, OP_RESIDUAL},
                 {GR_DRESIDUAL, OP_RESIDUAL},
                 {GR_DGATE, OP_GATE},
                 {GR_DWEIGHT, OP_WEIGHT},
                 {GR_DBIAS, OP_BIAS},
                 {GR_DMOD_SCALE, OP_MOD_SCALE},
                 {GR_DMOD_SHIFT, OP_MOD_SHIFT}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        tn_dtype own = s->f.dtype[pairs[i].in];
        s->dtype[pairs[i].out] = own == TN_NONE || dtype == TN_NONE ? own : dtype;
    }
}

/* ---- random calls --------------------------------------------------------------------------------- */

static bool one_in(struct rng *r, size_t n)
{
    return rng_below(r, n) == 0;
}

static tn_dtype random_dtype(struct rng *r, tn_dtype usual)
{
    static const tn_dtype all[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
    return one_in(r, 2) ? usual : all[rng_below(r, 4)];
}

/* f64 gradients of 1e308 or 1e-308 meet factors that leave f64: no promise there. */
static enum gen random_gradient(struct rng *r, tn_dtype dtype)
{
    static const enum gen tame[] = {GEN_NORMAL, GEN_MEAN_1E4, GEN_CONSTANT, GEN_OUTLIER, GEN_LOGNORMAL};
    return dtype == TN_F64 ? tame[rng_below(r, 5)] : (enum gen)rng_below(r, GEN_FINITE_COUNT + 1);
}

static void random_forward(struct rng *r, struct spec *f, size_t limit)
{
    *f = spec_random(r, limit);
    f->y_over = OP_Y;
    f->sum_over = OP_SUM;
    if (!dtype_is_float(f->dtype[OP_Y]))
        f->dtype[OP_Y] = f->dtype[OP_X];
    f->dtype[OP_SCALE_IN] = f->dtype[OP_SCALE_OUT] = f->dtype[OP_MEAN] = f->dtype[OP_RSTD] = TN_NONE;
    if (f->d.kind == TN_L2)
        f->d.divisor = 0;
    if (f->gen2 >= GEN_FINITE_COUNT)
        f->gen2 = GEN_ZERO;
    if (f->d.partial && f->dtype[OP_X] == TN_F64) /* rescaled rows: elements that do not count may overflow */
        f->gen[OP_X] = f->gen[OP_RESIDUAL] = GEN_NORMAL;
    /* f64 rows at the ends of its range times act(gate) leave it: no promise there either */
    bool end = f->gen[OP_X] >= GEN_HUGE && f->gen[OP_X] <= GEN_MIXED;
    if (f->d.gate == TN_GATE_BEFORE && f->dtype[OP_X] == TN_F64 && end)
        f->gen[OP_X] = GEN_NORMAL;
    if (f->d.gate == TN_GATE_BEFORE && f->dtype[OP_RESIDUAL] == TN_F64 && f->gen[OP_RESIDUAL] >= GEN_HUGE)
        f->gen[OP_RESIDUAL] = GEN_NORMAL;
    if ((f->d.gate == TN_GATE_BEFORE || f->d.partial) && f->gen2 >= GEN_HUGE && f->gen2 <= GEN_MIXED)
        f->gen2 = GEN_NORMAL;
}

static void random_outputs(struct rng *r, struct grad_spec *s)
{
    for (int op = GR_DX; op < GR_COUNT; op++) {
        s->dtype[op] = s->dtype[op] == TN_NONE || one_in(r, 6) ? TN_NONE : random_dtype(r, s->dtype[op]);
        s->layout[op] = (enum layout)(one_in(r, 2) ? rng_below(r, LAY_OUTPUT_COUNT) : LAY_DENSE);
        if (op >= GR_DWEIGHT && !one_in(r, 3)) {
            s->layout[op] = one_in(r, 3) ? LAY_PER_SECOND : LAY_SHARED;
            if (one_in(r, 4)) {
                s->layout[op] = LAY_DENSE;
                s->per_first[op] = true;
            }
        }
        s->misalign[op] = (unsigned char)(one_in(r, 2) ? rng_below(r, 16) : 0);
    }
    bool any = false;
    for (int op = GR_DX; op < GR_COUNT; op++)
        any = any || s->dtype[op] != TN_NONE;
    if (!any)
        s->dtype[GR_DX] = s->f.dtype[OP_X];
    s->accumulate = one_in(r, 4);
    s->workspace = one_in(r, 2);
}

static void random_over(struct rng *r, struct grad_spec *s)
{
    bool taken[OVER_GATE + 1] = {true};
    for (int op = GR_DX; op <= GR_DGATE; op++) {
        enum over over = (enum over)(1 + rng_below(r, OVER_GATE));
        enum operand in = over_operand[over];
        tn_dtype dtype = in == OP_COUNT ? s->dtype[over - OVER_DY] : s->f.dtype[in];
        enum layout layout = in == OP_COUNT ? s->layout[over - OVER_DY] : s->f.layout[in];
        if (s->dtype[op] == TN_NONE || dtype == TN_NONE || layout > LAY_SWAPPED || taken[over] ||
            one_in(r, 2))
            continue;
        taken[over] = true;
        s->over[op] = over;
        s->dtype[op] = dtype;
    }
}

struct grad_spec grad_spec_random(struct rng *r, size_t limit)
{
    struct grad_spec s = grad_spec_make(TN_RMS, TN_F32, 1, 1, false, false);
    random_forward(r, &s.f, limit);
    grad_spec_all(&s, TN_NONE);
    s.dtype[GR_DY] = random_dtype(r, s.f.dtype[OP_X]);
    if (s.dtype[GR_DSUM] != TN_NONE)
        s.dtype[GR_DSUM] = one_in(r, 3) ? TN_NONE : random_dtype(r, s.f.dtype[OP_X]);
    for (int op = GR_DY; op <= GR_DSUM; op++) {
        s.gen[op] = random_gradient(r, s.dtype[op]);
        s.layout[op] = (enum layout)(one_in(r, 2) ? rng_below(r, LAY_PER_SECOND + 1) : LAY_DENSE);
        s.misalign[op] = (unsigned char)(one_in(r, 2) ? rng_below(r, 16) : 0);
    }
    random_outputs(r, &s);
    random_over(r, &s);
    return s;
}

/* ---- buffers -------------------------------------------------------------------------------------- */

static struct buffer *over_buffer(struct grad_case *c, enum over over)
{
    return over == OVER_NONE ? NULL : over <= OVER_DSUM ? &c->b[over - OVER_DY] : &c->f.b[over_operand[over]];
}

static void set_views(struct grad_case *c, tn_norm_grads *g, tn_in (*view)(const struct buffer *))
{
    *g = tn_grads_init();
    g->dy = view(&c->b[GR_DY]);
    g->dsum = view(&c->b[GR_DSUM]);
    for (int op = GR_DX; op < GR_COUNT; op++) {
        struct buffer *at = over_buffer(c, c->spec.over[op]);
        tn_in v = view(at ? at : &c->b[op]);
        tn_out out = {(void *)(uintptr_t)v.data, v.dtype, {v.stride[0], v.stride[1]}, v.inner};
        *grad_output(g, (enum grad_operand)op) = out;
    }
    g->accumulate = c->spec.accumulate;
}

static void make_buffer(struct grad_case *c, int op)
{
    const struct grad_spec *s = &c->spec;
    const tn_norm_desc *d = &s->f.d;
    struct buffer *b = &c->b[op];
    bool sum = op >= GR_DWEIGHT;
    struct rng r = {s->f.seed * 31337 + (uint64_t)op};
    buffer_make(b, s->over[op] == OVER_NONE ? s->dtype[op] : TN_NONE, d->rows[0],
                s->per_first[op] ? 1 : d->rows[1], grad_columns_of(d, (enum grad_operand)op), s->layout[op],
                s->misalign[op]);
    if (op <= GR_DSUM)
        buffer_fill(b, &r, s->gen[op], -1);
    else if (sum && s->accumulate)
        buffer_fill(b, &r, GEN_NORMAL, -1);
    if (s->per_first[op]) {
        b->rows[1] = d->rows[1];
        b->stride[1] = 0;
    }
}

static void save_statistics(struct grad_case *c)
{
    tn_status status = tn_norm_forward(&c->spec.f.d, &c->f.io, NULL);
    if (status != TN_OK) {
        fprintf(stderr, "forward: %s\n  %s\n", tn_status_text(status), case_describe(&c->spec.f));
        exit(2);
    }
    buffer_snapshot(&c->f.b[OP_MEAN]);
    buffer_snapshot(&c->f.b[OP_RSTD]);
    buffer_snapshot(&c->f.b[OP_Y]);
    buffer_snapshot(&c->f.b[OP_SUM]);
    c->io.rstd_in = buffer_in(&c->f.b[OP_RSTD]);
    if (c->f.b[OP_MEAN].dtype != TN_NONE)
        c->io.mean_in = buffer_in(&c->f.b[OP_MEAN]);
}

void grad_case_make(struct grad_case *c, const struct grad_spec *s)
{
    memset(c, 0, sizeof *c);
    c->spec = *s;
    case_make(&c->f, &s->f);
    for (int op = 0; op < GR_COUNT; op++)
        make_buffer(c, op);
    c->io = c->f.io;
    c->io_before = c->f.before;
    if (s->saved)
        save_statistics(c);
    set_views(c, &c->g, buffer_in);
    set_views(c, &c->before, buffer_before);
    size_t bytes = s->workspace ? tn_norm_backward_workspace(&s->f.d, &c->io, &c->g) : 0;
    if (bytes) {
        c->g.workspace = c->workspace = must_malloc(bytes); /* to the byte, for the address sanitizer */
        c->g.workspace_size = bytes;
        memset(c->workspace, 0xA5, bytes);
    }
}

void grad_case_free(struct grad_case *c)
{
    case_free(&c->f);
    for (int op = 0; op < GR_COUNT; op++)
        buffer_free(&c->b[op]);
    free(c->workspace);
    c->workspace = NULL;
}

void grad_case_reset(struct grad_case *c)
{
    case_reset(&c->f);
    for (int op = 0; op < GR_COUNT; op++)
        if (c->b[op].dtype != TN_NONE)
            memcpy(c->b[op].raw, c->b[op].snapshot, c->b[op].raw_bytes);
}

const char *grad_case_trespass(const struct grad_case *c)
{
    static char text[96];
    bool written[OVER_GATE + 1] = {false};
    for (int op = GR_DX; op < GR_COUNT; op++)
        written[c->spec.over[op]] = true;
    for (int op = 0; op < OP_COUNT; op++) {
        bool mine = (op == OP_X && written[OVER_X]) || (op == OP_RESIDUAL && written[OVER_RESIDUAL]) ||
                    (op == OP_GATE && written[OVER_GATE]);
        if (buffer_changed(&c->f.b[op], !mine) < 0)
            continue;
        snprintf(text, sizeof text, "operand %d of the forward changed", op);
        return text;
    }
    for (int op = 0; op < GR_COUNT; op++) {
        bool mine = op >= GR_DX || written[op == GR_DY ? OVER_DY : OVER_DSUM];
        if (buffer_changed(&c->b[op], !mine) < 0)
            continue;
        snprintf(text, sizeof text, "%s: written where nothing may be",
                 grad_operand_name((enum grad_operand)op));
        return text;
    }
    return NULL;
}

tn_status grad_case_run(struct grad_case *c, const tn_executor *executor)
{
    return tn_norm_backward(&c->spec.f.d, &c->io, &c->g, executor);
}

tn_norm_grads grad_case_after(const struct grad_case *c)
{
    tn_norm_grads g = c->g;
    g.dy = c->before.dy;
    g.dsum = c->before.dsum;
    return g;
}

const char *grad_case_differ(const struct grad_case *a, const struct grad_case *b, size_t where[3])
{
    tn_norm_grads ga = a->g, gb = b->g;
    for (int op = GR_DX; op < GR_COUNT; op++) {
        const tn_out *va = grad_output(&ga, (enum grad_operand)op);
        const tn_out *vb = grad_output(&gb, (enum grad_operand)op);
        if (va->data && vb->data &&
            !views_equal(va, vb, a->spec.f.d.rows, grad_columns_of(&a->spec.f.d, (enum grad_operand)op),
                         where))
            return grad_operand_name((enum grad_operand)op);
    }
    return NULL;
}

const char *grad_case_describe(const struct grad_spec *s)
{
    static char text[3072];
    static const char *const overs[] = {"",        " over dy",       " over dsum",
                                        " over x", " over residual", " over gate"};
    size_t used = (size_t)snprintf(text, sizeof text, "%s;%s%s%s", case_describe(&s->f),
                                   s->saved ? " saved statistics" : "", s->accumulate ? " accumulate" : "",
                                   s->workspace ? " workspace" : "");
    for (int op = 0; op < GR_COUNT; op++) {
        if (s->dtype[op] == TN_NONE)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, " | %s %s %s%s +%u%s %s",
                                 grad_operand_name((enum grad_operand)op), dtype_info(s->dtype[op])->name,
                                 layout_name(s->layout[op]), s->per_first[op] ? " per first" : "",
                                 s->misalign[op], overs[s->over[op]], op < GR_DX ? gen_name(s->gen[op]) : "");
    }
    return text;
}
