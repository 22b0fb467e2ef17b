/* fuzz_grad.c - libFuzzer target: any backward call over any operands in one small arena.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... fuzz_grad.c grad_operands.c support.c, the library
 *     fuzz_grad tests/corpus/grad
 *
 * With fuzz_main.c it runs the files named as arguments. The arena is exactly as large as
 * the views may reach, so that the address sanitizer sees a step outside; what may be written is checked here. */
#include "fuzz.h"
#include "grad_operands.h"

enum {
    V_X,
    V_RESIDUAL,
    V_GATE,
    V_WEIGHT,
    V_BIAS,
    V_MEAN_IN,
    V_RSTD_IN,
    V_MOD_SCALE,
    V_MOD_SHIFT,
    V_DY,
    V_DSUM,
    V_DX, /* outputs from here */
    V_DRESIDUAL,
    V_DGATE,
    V_DWEIGHT,
    V_DBIAS,
    V_DMOD_SCALE,
    V_DMOD_SHIFT,
    V_COUNT
};

struct fuzz_call {
    tn_norm_desc d;
    struct view v[V_COUNT];
    struct arena arena;
    tn_dtype y, sum; /* their dtypes count, their data does not */
    unsigned accumulate, workspace;
    bool must_fail; /* the sizes overflow: the views reach beyond the arena */
};

static void read_desc(struct input *in, tn_norm_desc *d)
{
    *d = tn_norm_init((tn_kind)choice(in, 3), byte(in) % 12, byte(in) % 70, number(in));
    d->rows[1] = byte(in) % 4;
    d->cast = (tn_cast)choice(in, 3);
    read_options(in, d);
}

static bool is_parameter(int i)
{
    return i == V_WEIGHT || i == V_BIAS || i == V_DWEIGHT || i == V_DBIAS;
}

static size_t columns(const tn_norm_desc *d, int i)
{
    if (i == V_MEAN_IN || i == V_RSTD_IN)
        return group_columns(d);
    if (is_parameter(i))
        return parameter_columns(d);
    return d->n;
}

/* Present more or less often; for the rest see place(). */
static void read_view(struct input *in, struct fuzz_call *f, int i)
{
    static const unsigned char present[V_COUNT] = {255, 60, 128, 160, 60, 30,  30,  50, 50,
                                                   250, 70, 235, 60,  90, 160, 120, 60, 60};
    struct view *v = &f->v[i];
    memset(v, 0, sizeof *v);
    v->dtype = (tn_dtype)(i == V_MEAN_IN || i == V_RSTD_IN ? 1 + choice(in, 2) : 1 + choice(in, 4));
    if (byte(in) > present[i])
        return;
    v->columns = columns(&f->d, i);
    v->inner = stride(in, 1);
    unsigned axes =
        is_parameter(i) || i >= V_DWEIGHT ? byte(in) % 8 : 3; /* parameters: mostly summed over rows */
    v->stride[1] = axes & 1 ? stride(in, v->columns) : 0;
    v->stride[0] = axes == 2 || axes == 3 ? stride(in, v->columns * (axes & 1 ? f->d.rows[1] : 1)) : 0;
    place(in, v, f->d.rows, &f->arena, f->must_fail);
}

static void read_call(struct input *in, struct fuzz_call *f)
{
    read_desc(in, &f->d);
    f->must_fail = limit_sizes(&f->d);
    for (int i = 0; i < V_COUNT; i++)
        read_view(in, f, i);
    f->y = (tn_dtype)choice(in, 5);
    f->sum = (tn_dtype)choice(in, 5);
    f->accumulate = byte(in) % 4 == 0;
    f->workspace = byte(in) % 8;
    if (byte(in) % 4 == 0) { /* in place */
        static const int inputs[] = {V_X, V_RESIDUAL, V_GATE, V_DY, V_DSUM};
        struct view *to = &f->v[V_DX + byte(in) % 3], *from = &f->v[inputs[byte(in) % 5]];
        if (from->data && to->data)
            *to = *from;
    }
}

static void operands(const struct fuzz_call *f, tn_norm_io *io, tn_norm_grads *g)
{
    *io = tn_io_init();
    *g = tn_grads_init();
    tn_in *const inputs[] = {&io->x,         &io->residual, &io->gate,    &io->weight,
                             &io->bias,      &io->mean_in,  &io->rstd_in, &io->mod_scale,
                             &io->mod_shift, &g->dy,        &g->dsum};
    for (int i = 0; i < V_DX; i++)
        *inputs[i] = as_in(&f->v[i]);
    for (int i = V_DX; i < V_COUNT; i++)
        *grad_output(g, (enum grad_operand)(GR_DX + i - V_DX)) = as_out(&f->v[i]);
    io->y.dtype = f->y;
    io->sum.dtype = f->sum;
    g->accumulate = f->accumulate;
}

/* With a workspace of the library's own, or of exactly the size that it asks for, a byte less, or misplaced. */
static tn_status call(const struct fuzz_call *f)
{
    tn_norm_io io;
    tn_norm_grads g;
    operands(f, &io, &g);
    size_t bytes = tn_norm_backward_workspace(&f->d, &io, &g);
    if (f->workspace < 5 || bytes == 0)
        return tn_norm_backward(&f->d, &io, &g, NULL);
    char *space = allocate(bytes + (f->workspace == 7 ? 8 : 0));
    g.workspace = f->workspace == 7 ? space + 4 : space;
    g.workspace_size = f->workspace == 6 ? bytes - 1 : bytes;
    tn_status status = tn_norm_backward(&f->d, &io, &g, NULL);
    free(space);
    if (status == TN_OK && f->workspace > 5)
        broken("an unfit workspace was accepted");
    return status;
}

/* Calls under one instruction set on a fresh copy; every changed byte must belong to an output. */
static tn_status run(const struct fuzz_call *f, const char *isa, const unsigned char *before, bool *mine)
{
    tn_isa_set(isa);
    memcpy(f->arena.data, before, f->arena.size);
    tn_status status = call(f);
    if (f->must_fail && status == TN_OK)
        broken("sizes that overflow were accepted");
    memset(mine, 0, f->arena.size * sizeof *mine);
    for (int i = V_DX; i < V_COUNT && status == TN_OK; i++) {
        const struct view *v = &f->v[i];
        ptrdiff_t size = (ptrdiff_t)dtype_info(v->dtype)->size;
        size_t count = f->d.rows[0] *
                       f->d.rows[1]; /* of no rows a sum is still written, where it has an axis of its own */
        size_t rows1 = f->d.rows[1] ? f->d.rows[1] : 1;
        for (size_t r = 0; v->data && r < (count || i < V_DWEIGHT ? count : f->d.rows[0] + rows1); r++)
            for (size_t k = 0; k < v->columns; k++) {
                size_t i0 = r / rows1, i1 = r % rows1;
                if ((f->d.rows[0] == 0 && v->stride[0] && i0) || (i0 >= f->d.rows[0] && i0 > 0))
                    continue;
                ptrdiff_t index =
                    (ptrdiff_t)i0 * v->stride[0] + (ptrdiff_t)i1 * v->stride[1] + (ptrdiff_t)k * v->inner;
                memset(mine + (v->data - f->arena.data) + index * size, 1, (size_t)size);
            }
    }
    check_changes(&f->arena, before, mine, status);
    return status;
}

static void compare_outputs(const struct fuzz_call *f, unsigned char *first)
{
    for (int i = V_DX; i < V_COUNT; i++) {
        size_t where[3];
        tn_out a = as_out(&f->v[i]), b = a;
        if (!a.data)
            continue;
        b.data = first + (f->v[i].data - f->arena.data);
        if (!views_equal(&a, &b, f->d.rows, f->v[i].columns, where))
            broken("instruction sets disagree");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size, 0};
    struct fuzz_call f;
    const char *isas[8];
    size_t count = tn_isa_list(isas, 8), arena_size = 1 + (byte(&in) | byte(&in) << 8) % 6000;
    unsigned char *arena = allocate(arena_size), *before = allocate(arena_size),
                  *first = allocate(arena_size);
    bool *mine = allocate(arena_size * sizeof *mine);
    memset(&f, 0, sizeof f);
    f.arena = (struct arena){arena, arena_size};
    read_call(&in, &f);
    struct rng r = {byte(&in)};
    for (size_t i = 0; i < arena_size; i++) /* small floats of every dtype, or random bits */
        before[i] = (unsigned char)(r.state % 2 ? rng_next(&r) : 0x3c + (i * 7 & 3));
    tn_status status = run(&f, isas[0], before, mine);
    memcpy(first, arena, arena_size);
    for (size_t i = 1; i < count && i < 8; i++) {
        if (run(&f, isas[i], before, mine) != status)
            broken("another status under another instruction set");
        if (status == TN_OK)
            compare_outputs(&f, first);
    }
    free(arena);
    free(before);
    free(first);
    free(mine);
    return 0;
}
