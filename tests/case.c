/* case.c - from a spec to buffers and back to words. */
#include "case.h"

#include <stdarg.h>
#include <string.h>

static const char *const operand_names[OP_COUNT] = {
    "x",         "residual",  "gate", "weight", "bias", "scale_in", "mean_in",   "rstd_in",
    "mod_scale", "mod_shift", "y",    "sum",    "mean", "rstd",     "scale_out", "moment2",
};

struct spec spec_make(tn_kind kind, tn_dtype dtype, size_t rows, size_t n, bool weight, bool bias)
{
    struct spec s;
    memset(&s, 0, sizeof s);
    s.d = tn_norm_init(kind, rows, n, 1e-6);
    s.seed = 1;
    s.dtype[OP_X] = s.dtype[OP_Y] = dtype;
    s.dtype[OP_WEIGHT] = weight ? dtype : TN_NONE;
    s.dtype[OP_BIAS] = bias ? dtype : TN_NONE;
    s.gen[OP_GATE] = GEN_GATE;
    s.gen[OP_WEIGHT] = GEN_WEIGHT;
    s.layout[OP_WEIGHT] = s.layout[OP_BIAS] = LAY_SHARED;
    s.gen2 = -1;
    s.y_over = OP_Y;
    s.sum_over = OP_SUM;
    return s;
}

void spec_y_over(struct spec *s, enum operand input)
{
    s->y_over = input;
    s->dtype[OP_Y] = s->dtype[input];
}

static size_t columns(const struct spec *s, int op)
{
    const tn_norm_desc *d = &s->d;
    if (op == OP_SCALE_IN || op == OP_SCALE_OUT)
        return 1;
    if (op == OP_MEAN_IN || op == OP_RSTD_IN || op == OP_MEAN || op == OP_RSTD || op == OP_MOMENT2)
        return d->group && d->n ? d->n / d->group : 1;
    if ((op == OP_WEIGHT || op == OP_BIAS) && d->positions)
        return d->n / d->positions;
    return d->n;
}

static void fill(struct test_case *c, int op)
{
    struct rng r = {c->spec.seed * 977 + (uint64_t)op * 7919};
    buffer_fill(&c->b[op], &r, c->spec.gen[op], op == OP_X ? c->spec.gen2 : -1);
    if (op != OP_SCALE_IN && op != OP_RSTD_IN)
        return;
    for (size_t i = 0; i < c->b[op].rows[0] * (c->b[op].dtype != TN_NONE); i++) /* these are positive */
        for (size_t j = 0; j < c->b[op].rows[1]; j++)
            for (size_t k = 0; k < c->b[op].n; k++)
                buffer_put(&c->b[op], i, j, k, 0.01 + 0.02 * rng_unit(&r));
    buffer_snapshot(&c->b[op]);
}

static void set_io(struct test_case *c, tn_norm_io *io, tn_in (*view)(const struct buffer *))
{
    const struct buffer *b = c->b;
    *io = tn_io_init();
    io->x = view(&b[OP_X]);
    io->residual = view(&b[OP_RESIDUAL]);
    io->gate = view(&b[OP_GATE]);
    io->weight = view(&b[OP_WEIGHT]);
    io->bias = view(&b[OP_BIAS]);
    io->scale_in = view(&b[OP_SCALE_IN]);
    io->mean_in = view(&b[OP_MEAN_IN]);
    io->rstd_in = view(&b[OP_RSTD_IN]);
    io->mod_scale = view(&b[OP_MOD_SCALE]);
    io->mod_shift = view(&b[OP_MOD_SHIFT]);
    io->y = buffer_out(&b[c->spec.y_over]);
    io->sum = buffer_out(&b[c->spec.sum_over]);
    io->mean = buffer_out(&b[OP_MEAN]);
    io->rstd = buffer_out(&b[OP_RSTD]);
    io->scale_out = buffer_out(&b[OP_SCALE_OUT]);
    io->moment2 = buffer_out(&b[OP_MOMENT2]);
}

void case_make(struct test_case *c, const struct spec *s)
{
    memset(c, 0, sizeof *c);
    c->spec = *s;
    for (int op = 0; op < OP_COUNT; op++) {
        bool elsewhere = (op == OP_Y && s->y_over != OP_Y) || (op == OP_SUM && s->sum_over != OP_SUM);
        buffer_make(&c->b[op], elsewhere ? TN_NONE : s->dtype[op], s->d.rows[0], s->d.rows[1], columns(s, op),
                    s->layout[op], s->misalign[op]);
        if (op < OP_Y)
            fill(c, op);
    }
    set_io(c, &c->io, buffer_in);
    set_io(c, &c->before, buffer_before);
}

void case_free(struct test_case *c)
{
    for (int op = 0; op < OP_COUNT; op++)
        buffer_free(&c->b[op]);
}

void case_reset(struct test_case *c)
{
    for (int op = 0; op < OP_COUNT; op++)
        if (c->b[op].dtype != TN_NONE)
            memcpy(c->b[op].raw, c->b[op].snapshot, c->b[op].raw_bytes);
}

const char *case_trespass(const struct test_case *c)
{
    static char text[128];
    for (int op = 0; op < OP_COUNT; op++) {
        bool output = op >= OP_Y || op == (int)c->spec.y_over || op == (int)c->spec.sum_over;
        ptrdiff_t at = buffer_changed(&c->b[op], !output);
        if (at < 0)
            continue;
        snprintf(text, sizeof text, "%s: byte %td changed, counted from element (0, 0, 0) of %s",
                 output ? "written outside of the elements" : "an input changed", at - c->b[op].first,
                 operand_names[op]);
        return text;
    }
    return NULL;
}

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

const char *case_describe(const struct spec *s)
{
    static char text[2048];
    const tn_norm_desc *d = &s->d;
    text[0] = 0;
    append(text, sizeof text, "[isa %s] kind %d rows %zux%zu n %zu cast %d grade %d flags %u eps %g mode %d",
           tn_isa_name(), d->kind, d->rows[0], d->rows[1], d->n, d->cast, d->grade, d->flags, d->eps,
           d->eps_mode);
    append(text, sizeof text,
           " divisor %g group %zu partial %zu positions %zu offset %g gate %d act %d sum %d seed %llu;",
           d->divisor, d->group, d->partial, d->positions, d->weight_offset, d->gate, d->act, d->sum,
           (unsigned long long)s->seed);
    for (int op = 0; op < OP_COUNT; op++) {
        if (s->dtype[op] == TN_NONE)
            continue;
        append(text, sizeof text, " %s %s %s +%u", operand_names[op], dtype_info(s->dtype[op])->name,
               layout_name(s->layout[op]), s->misalign[op]);
        if (op < OP_Y)
            append(text, sizeof text, " %s", gen_name(s->gen[op]));
    }
    if (s->gen2 >= 0)
        append(text, sizeof text, " (every third row %s)", gen_name((enum gen)s->gen2));
    if (s->y_over != OP_Y)
        append(text, sizeof text, " y over %s", operand_names[s->y_over]);
    if (s->sum_over != OP_SUM)
        append(text, sizeof text, " sum over %s", operand_names[s->sum_over]);
    return text;
}
