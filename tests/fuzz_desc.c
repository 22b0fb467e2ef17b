/* fuzz_desc.c - libFuzzer target: any descriptor over any operands in one small arena.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... tests/fuzz_desc.c and the library's sources
 *     fuzz_desc tests/corpus/desc
 *
 * With fuzz_main.c it runs the files named as arguments. The arena is exactly as large as
 * the views may reach, so that the address sanitizer sees a step outside; what may be written is checked here. */
#include "fuzz.h"

#define VIEWS 16

struct fuzz_call {
    tn_norm_desc d;
    struct view
        v[VIEWS]; /* x residual gate weight bias scale_in mean_in rstd_in mod_scale mod_shift, then outputs */
    struct arena arena;
    int step;       /* forward, moments, apply */
    bool must_fail; /* the sizes overflow: the views reach beyond the arena */
};
enum {
    FIRST_OUTPUT = 10,
    PARAMETER = 3,
    ONE_VALUE = 5,
    GROUPED_INPUT = 6,
    MOD = 8,
    SUM_OUTPUT = 11,
    SCALE_OUTPUT = 14
};

static void read_desc(struct input *in, tn_norm_desc *d)
{
    *d = tn_norm_init((tn_kind)choice(in, 3), byte(in) % 5, byte(in) % 70, number(in));
    d->rows[1] = byte(in) % 4;
    d->cast = (tn_cast)choice(in, 3);
    d->grade = (tn_grade)choice(in, 2);
    read_options(in, d);
    if (byte(in) == 0xff) { /* an older caller: what it does not know is 0 */
        d->struct_size = byte(in);
        if (d->struct_size < sizeof *d)
            memset((char *)d + (d->struct_size < 8 ? 8 : d->struct_size), 0,
                   sizeof *d - (d->struct_size < 8 ? 8 : d->struct_size));
    }
}

static size_t columns(const tn_norm_desc *d, int i)
{
    if (i == ONE_VALUE || i == SCALE_OUTPUT)
        return 1;
    if (i == PARAMETER || i == PARAMETER + 1)
        return parameter_columns(d);
    return i == GROUPED_INPUT || i == GROUPED_INPUT + 1 || i > SUM_OUTPUT ? group_columns(d) : d->n;
}

/* Present more or less often; for the rest see place(). */
static void read_view(struct input *in, struct fuzz_call *f, int i)
{
    static const unsigned char present[VIEWS] = {255, 70, 128, 160, 90, 60, 40, 40,
                                                 50,  50, 235, 80,  60, 60, 60, 60};
    struct view *v = &f->v[i];
    memset(v, 0, sizeof *v);
    bool statistic = (i >= ONE_VALUE && i < MOD) || i > SUM_OUTPUT,
         quantised = i == FIRST_OUTPUT && byte(in) > 200;
    v->dtype = (tn_dtype)(statistic ? 1 + choice(in, 2) : quantised ? 5 + choice(in, 3) : 1 + choice(in, 4));
    if (byte(in) > present[i] && !(f->step == 1 && i == 15) && !(f->step == 2 && i == 7))
        return;
    v->columns = columns(&f->d, i);
    v->inner = stride(in, 1);
    v->stride[1] = stride(in, v->columns);
    v->stride[0] =
        i >= PARAMETER && i < GROUPED_INPUT ? stride(in, 0) : stride(in, v->columns * f->d.rows[1]);
    place(in, v, f->d.rows, &f->arena, f->must_fail);
}

static void read_call(struct input *in, struct fuzz_call *f)
{
    f->step = (int)(byte(in) % 3);
    read_desc(in, &f->d);
    f->must_fail = limit_sizes(&f->d);
    for (int i = 0; i < VIEWS; i++)
        read_view(in, f, i);
    if (byte(in) % 4 == 0) { /* in place */
        struct view *to = &f->v[FIRST_OUTPUT + byte(in) % 2], *from = &f->v[byte(in) % 3];
        if (from->data && to->data)
            *to = *from;
    }
}

static void describe(const struct fuzz_call *f)
{
    const tn_norm_desc *d = &f->d;
    fprintf(stderr,
            "step %d kind %d rows %zux%zu n %zu cast %d grade %d flags %u eps %g mode %d divisor %g\n",
            f->step, d->kind, d->rows[0], d->rows[1], d->n, d->cast, d->grade, d->flags, d->eps, d->eps_mode,
            d->divisor);
    fprintf(stderr, "group %zu partial %zu positions %zu offset %g gate %d act %d sum %d\n", d->group,
            d->partial, d->positions, d->weight_offset, d->gate, d->act, d->sum);
    for (int i = 0; i < VIEWS; i++)
        if (f->v[i].data)
            fprintf(stderr, "view %d at byte %td dtype %d strides %td %td %td\n", i,
                    f->v[i].data - f->arena.data, f->v[i].dtype, f->v[i].stride[0], f->v[i].stride[1],
                    f->v[i].inner);
}

static tn_status call(const struct fuzz_call *f)
{
    union {
        tn_norm_desc d;
        char newer[512]; /* as long as any struct_size says */
    } u;
    memset(&u, 0, sizeof u);
    u.d = f->d;
    tn_norm_io io = tn_io_init();
    tn_in *const inputs[] = {&io.x,        &io.residual, &io.gate,    &io.weight,    &io.bias,
                             &io.scale_in, &io.mean_in,  &io.rstd_in, &io.mod_scale, &io.mod_shift};
    tn_out *const outputs[] = {&io.y, &io.sum, &io.mean, &io.rstd, &io.scale_out, &io.moment2};
    for (int i = 0; i < FIRST_OUTPUT; i++)
        *inputs[i] = as_in(&f->v[i]);
    for (int i = FIRST_OUTPUT; i < VIEWS; i++)
        *outputs[i - FIRST_OUTPUT] = as_out(&f->v[i]);
    return f->step == 0   ? tn_norm_forward(&u.d, &io, NULL)
           : f->step == 1 ? tn_norm_moments(&u.d, &io, NULL)
                          : tn_norm_apply(&u.d, &io, NULL);
}

static unsigned char *element_at(const struct fuzz_call *f, const struct view *v, size_t r, size_t k)
{
    ptrdiff_t i0 = (ptrdiff_t)(r / f->d.rows[1]), i1 = (ptrdiff_t)(r % f->d.rows[1]);
    ptrdiff_t index = i0 * v->stride[0] + i1 * v->stride[1] + (ptrdiff_t)k * v->inner;
    return v->data + index * (ptrdiff_t)element_size(v->dtype);
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
    for (int i = FIRST_OUTPUT; i < VIEWS && status == TN_OK; i++) {
        const struct view *v = &f->v[i];
        for (size_t r = 0; v->data && r < f->d.rows[0] * f->d.rows[1]; r++)
            for (size_t k = 0; k < v->columns; k++)
                memset(mine + (element_at(f, v, r, k) - f->arena.data), 1, element_size(v->dtype));
    }
    check_changes(&f->arena, before, mine, status);
    return status;
}

static bool is_nan(const unsigned char *p, tn_dtype dtype)
{
    uint64_t u = 0;
    memcpy(&u, p, element_size(dtype)); /* little endian */
    switch (dtype) {
    case TN_F64:
        return (u & INT64_MAX) > 0x7ff0000000000000u;
    case TN_F32:
        return (u & INT32_MAX) > 0x7f800000u;
    case TN_BF16:
        return (u & INT16_MAX) > 0x7f80u;
    case TN_F16:
        return (u & INT16_MAX) > 0x7c00u;
    default:
        return false;
    }
}

static void compare_outputs(const struct fuzz_call *f, const unsigned char *first)
{
    for (int i = FIRST_OUTPUT; i < VIEWS; i++) {
        const struct view *v = &f->v[i];
        size_t size = element_size(v->dtype);
        for (size_t r = 0; v->data && r < f->d.rows[0] * f->d.rows[1]; r++)
            for (size_t k = 0; k < v->columns; k++) {
                const unsigned char *a = element_at(f, v, r, k), *b = first + (a - f->arena.data);
                if (memcmp(a, b, size) == 0 || (is_nan(a, v->dtype) && is_nan(b, v->dtype)))
                    continue;
                fprintf(stderr, "view %d row %zu element %zu\n", i, r, k);
                describe(f);
                broken("instruction sets disagree");
            }
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
    f.arena = (struct arena){arena, arena_size};
    read_call(&in, &f);
    uint64_t bits = byte(&in) & 3; /* 0: ordinary values */
    for (size_t i = 0; i < arena_size; i++) {
        bits = bits * 6364136223846793005u + (bits != 0);
        before[i] = (unsigned char)(bits ? bits >> 56 : 0x3c + (i * 7 & 3));
    }
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
