/* fuzz_grad.c - libFuzzer target: any backward call over any operands in one small arena.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... fuzz_grad.c grad_operands.c support.c, the library
 *     fuzz_grad tests/corpus/grad
 *
 * With TN_FUZZ_STANDALONE it has a main() that runs the files named as arguments. The arena is exactly as large as
 * the views may reach, so that the address sanitizer sees a step outside; what may be written is checked here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

struct input {
    const uint8_t *data;
    size_t size, at;
};

struct view {
    unsigned char *data;
    tn_dtype dtype;
    ptrdiff_t stride[2], inner;
    size_t columns;
};

struct fuzz_call {
    tn_norm_desc d;
    struct view v[V_COUNT];
    unsigned char *arena;
    size_t size;
    tn_dtype y, sum; /* their dtypes count, their data does not */
    unsigned accumulate, workspace;
    bool must_fail; /* the sizes overflow: the views reach beyond the arena */
};

static void broken(const char *why)
{
    fprintf(stderr, "fuzz_grad: %s\n", why);
    abort();
}

static unsigned byte(struct input *in)
{
    return in->at < in->size ? in->data[in->at++] : 0;
}

/* Mostly one of `count` lawful values, now and then one above. */
static int choice(struct input *in, int count)
{
    unsigned b = byte(in);
    return b >= 0xf8 ? count + (int)(b & 7) - 4 : (int)(b % (unsigned)count);
}

static double number(struct input *in)
{
    static const double some[] = {0,    1e-6,  1,      2,        0.5, 1e-30, 1e30, -1,
                                  -0.0, 1e300, 5e-324, INFINITY, NAN, 3,     17,   1e-12};
    return some[byte(in) % 16];
}

static void read_desc(struct input *in, tn_norm_desc *d)
{
    *d = tn_norm_init((tn_kind)choice(in, 3), byte(in) % 12, byte(in) % 70, number(in));
    d->rows[1] = byte(in) % 4;
    d->cast = (tn_cast)choice(in, 3);
    d->flags = byte(in) % 17;
    d->eps_mode = (tn_eps_mode)choice(in, 3);
    d->divisor = byte(in) % 4 ? 0 : number(in);
    d->group = byte(in) % 3 ? 0 : byte(in) % 20;
    d->partial = byte(in) % 3 ? 0 : byte(in) % 20;
    d->weight_offset = byte(in) % 3 ? 0 : number(in);
    d->gate = (tn_gate)choice(in, 3);
    d->act = (tn_act)choice(in, 2);
    d->sum = (tn_sum)choice(in, 2);
    d->positions = byte(in) % 4 ? 0 : byte(in) % 8;
    if (byte(in) == 0xff)
        d->rows[byte(in) % 2] = (size_t)PTRDIFF_MAX - byte(in);
    if (byte(in) == 0xff)
        d->n = (size_t)-1 - byte(in);
}

static bool is_parameter(int i)
{
    return i == V_WEIGHT || i == V_BIAS || i == V_DWEIGHT || i == V_DBIAS;
}

static size_t columns(const tn_norm_desc *d, int i)
{
    if (i == V_MEAN_IN || i == V_RSTD_IN)
        return d->group && d->n % d->group == 0 ? d->n / d->group : d->group ? d->n : 1;
    if (is_parameter(i))
        return d->positions && d->n % d->positions == 0 ? d->n / d->positions : d->n;
    return d->n;
}

/* Bytes below and above element 0, or false if they are out of all proportion. */
static bool reach(const struct fuzz_call *f, const struct view *v, ptrdiff_t *low, ptrdiff_t *high)
{
    const size_t count[3] = {f->d.rows[0], f->d.rows[1], v->columns};
    const ptrdiff_t stride[3] = {v->stride[0], v->stride[1], v->inner};
    const ptrdiff_t size = (ptrdiff_t)dtype_info(v->dtype)->size;
    *low = 0;
    *high = size;
    if (count[0] > 1000 || count[1] > 1000 || count[2] > 1000)
        return false;
    for (int a = 0; a < 3; a++) {
        ptrdiff_t span = (ptrdiff_t)(count[a] ? count[a] - 1 : 0) * stride[a] * size;
        *(span < 0 ? low : high) += span;
    }
    return true;
}

static ptrdiff_t stride(struct input *in, size_t usual)
{
    unsigned b = byte(in);
    return b < 0xc0 ? (ptrdiff_t)usual : b < 0xe0 ? -(ptrdiff_t)usual : (ptrdiff_t)(int8_t)byte(in);
}

/* A view somewhere in the arena; absent where it cannot fit (in a call that must fail: anywhere). */
static void read_view(struct input *in, struct fuzz_call *f, int i)
{
    static const unsigned char present[V_COUNT] = {255, 60, 128, 160, 60, 30,  30,  50, 50,
                                                   250, 70, 235, 60,  90, 160, 120, 60, 60};
    struct view *v = &f->v[i];
    ptrdiff_t low, high;
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
    size_t offset = byte(in) | byte(in) << 8;
    if (f->must_fail)
        v->data = f->arena + offset % f->size;
    else if (reach(f, v, &low, &high) && high - low <= (ptrdiff_t)f->size)
        v->data = f->arena + (-low) + (ptrdiff_t)(offset % (f->size - (size_t)(high - low) + 1));
}

static void read_call(struct input *in, struct fuzz_call *f, unsigned char *arena, size_t size)
{
    f->arena = arena;
    f->size = size;
    read_desc(in, &f->d);
    double elements = (double)f->d.rows[0] * (double)f->d.rows[1] * (double)f->d.n;
    f->must_fail = elements > 0x1p61;
    if (!f->must_fail && elements > 1e6)
        f->d.rows[0] = f->d.rows[1] = f->d.n = 3;
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

static tn_in as_in(const struct view *v)
{
    tn_in in = {v->data, v->dtype, {v->stride[0], v->stride[1]}, v->inner};
    return in;
}

static tn_out as_out(const struct view *v)
{
    tn_out out = {v->data, v->dtype, {v->stride[0], v->stride[1]}, v->inner};
    return out;
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
    char *space = must_malloc(bytes + (f->workspace == 7 ? 8 : 0));
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
    memcpy(f->arena, before, f->size);
    tn_status status = call(f);
    if (f->must_fail && status == TN_OK)
        broken("sizes that overflow were accepted");
    memset(mine, 0, f->size * sizeof *mine);
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
                memset(mine + (v->data - f->arena) + index * size, 1, (size_t)size);
            }
    }
    for (size_t i = 0; i < f->size; i++)
        if (f->arena[i] != before[i] && !mine[i])
            broken(status == TN_OK ? "wrote outside of its outputs" : "wrote despite an error");
    return status;
}

static void compare_outputs(const struct fuzz_call *f, unsigned char *first)
{
    for (int i = V_DX; i < V_COUNT; i++) {
        size_t where[3];
        tn_out a = as_out(&f->v[i]), b = a;
        if (!a.data)
            continue;
        b.data = first + (f->v[i].data - f->arena);
        if (!views_equal(&a, &b, f->d.rows, f->v[i].columns, where))
            broken("instruction sets disagree");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size, 0};
    struct fuzz_call f;
    const char *isas[8];
    size_t count = tn_isa_list(isas, 8), arena_size = 1 + (byte(&in) | byte(&in) << 8) % 6000;
    unsigned char *arena = must_malloc(arena_size), *before = must_malloc(arena_size),
                  *first = must_malloc(arena_size);
    bool *mine = must_malloc(arena_size * sizeof *mine);
    memset(&f, 0, sizeof f);
    read_call(&in, &f, arena, arena_size);
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

#ifdef TN_FUZZ_STANDALONE
int main(int argc, char **argv)
{
    static uint8_t data[4096];
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) {
            perror(argv[i]);
            return 2;
        }
        size_t size = fread(data, 1, sizeof data, f);
        fclose(f);
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%d files\n", argc - 1);
    return 0;
}
#endif
