/* test_bits.c - one 64-bit hash per group of cases over every output bit; the same on every machine.
 *
 *     test_bits [--isa NAME] [--quick] [--check golden.txt]
 *
 * prints "name hash" lines, or only those that differ from the file. Needs nothing but the library, so that it
 * cross-compiles: no libm function that rounds differently elsewhere, NaNs hashed as one pattern. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bits.h"
#include "case.h"

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
static const char *const kinds[] = {"rms", "layer", "l2"};

/* ---- hashing -------------------------------------------------------------------------------------- */

static void die(const struct spec *s, const char *why)
{
    fprintf(stderr, "%s\n  %s\n", why, case_describe(s));
    exit(2);
}

static uint64_t hash_case(uint64_t h, const struct spec *s, forward_fn *call)
{
    struct test_case c;
    case_make(&c, s);
    tn_status status = call(&s->d, &c.io, NULL);
    const char *trespass = case_trespass(&c);
    if (status != TN_OK || trespass)
        die(s, trespass ? trespass : tn_status_text(status));
    const struct {
        const tn_out *v;
        size_t n;
    } outputs[] = {{&c.io.y, s->d.n},
                   {&c.io.sum, s->d.n},
                   {&c.io.mean, c.b[OP_MEAN].n},
                   {&c.io.rstd, c.b[OP_RSTD].n},
                   {&c.io.scale_out, 1},
                   {&c.io.moment2, c.b[OP_MOMENT2].n}};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (outputs[i].v->data)
            h = bits_hash_view(h, outputs[i].v, s->d.rows, outputs[i].n);
    case_free(&c);
    return h;
}

/* ---- groups of cases ------------------------------------------------------------------------------ */

typedef uint64_t group_fn(uint64_t h, int a, int b, int c);

struct group {
    struct bits_group is;
    group_fn *run;
    int a, b, c;
};

/* Case number i: everything that is not the group's own rotates. */
static struct spec base(tn_kind kind, tn_dtype dtype, size_t n, size_t i)
{
    static const double eps[] = {1e-6, 1e-5, 0, 1e-12, 0.25};
    struct spec s = spec_make(kind, dtype, 1 + i % 3, n, i % 4 != 1, i % 3 == 1);
    s.seed = i + 1;
    s.d.eps = eps[i % 5];
    s.d.rows[1] = i % 5 == 4 ? 2 : 1;
    s.gen[OP_X] = (enum gen)(i % GEN_COUNT);
    s.layout[OP_X] = i % 4 == 2 ? (enum layout)(i / 4 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.layout[OP_Y] = i % 4 == 3 ? (enum layout)(i / 4 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.misalign[OP_X] = (unsigned char)(i % 3 ? 0 : i / 3 % 16);
    s.misalign[OP_Y] = (unsigned char)(i % 2 ? 0 : i / 2 % 16);
    return s;
}

static size_t next_length(size_t n)
{
    static const size_t more[] = {127, 128, 129, 255, 256, 257, 384, 768, 1000, 1024, 4096, 0};
    if (n < 70)
        return n + 1;
    for (size_t i = 0; more[i]; i++)
        if (more[i] > n)
            return more[i];
    return 0;
}

static uint64_t lengths(uint64_t h, int kind, int dtype, int grade)
{
    size_t i = 0;
    for (size_t n = 1; n; n = next_length(n))
        for (size_t turn = 0; turn < 5; turn++, i++) {
            struct spec s = base((tn_kind)kind, (tn_dtype)dtype, n, i);
            s.d.grade = (tn_grade)grade;
            h = hash_case(h, &s, tn_norm_forward);
        }
    return h;
}

static uint64_t long_rows(uint64_t h, int kind, int dtype, int grade)
{
    static const size_t sizes[] = {16387, 1000003};
    for (size_t i = 0; i < 4; i++) {
        struct spec s = spec_make((tn_kind)kind, (tn_dtype)dtype, 1, sizes[i % 4 == 3], true, i % 2);
        s.gen[OP_X] = i == 3 ? GEN_MIXED : (enum gen)(i * 3 % GEN_FINITE_COUNT);
        s.d.grade = (tn_grade)grade;
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static void quantise(struct spec *s, size_t i)
{
    if (dtype_is_float(s->dtype[OP_Y]))
        return;
    s->dtype[i % 3 ? OP_SCALE_OUT : OP_SCALE_IN] = i % 2 ? TN_F32 : TN_F64;
    s->layout[OP_SCALE_IN] = i % 6 ? LAY_SHARED : LAY_DENSE;
}

static uint64_t triples(uint64_t h, int x, int y, int unused)
{
    (void)unused;
    for (size_t i = 0; i < 5 * 4 * 2 * 3; i++) {
        struct spec s = base((tn_kind)(i / 40), (tn_dtype)x, 1 + i * 17 % 150, i);
        s.dtype[OP_Y] = (tn_dtype)y;
        s.dtype[OP_WEIGHT] = i % 5 ? floats[i % 5 - 1] : TN_NONE;
        s.dtype[OP_BIAS] = i % 3 ? TN_NONE : floats[i / 5 % 4];
        s.d.grade = (tn_grade)(i / 20 % 2);
        quantise(&s, i);
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static uint64_t casts(uint64_t h, int x, int cast, int unused)
{
    (void)unused;
    for (size_t i = 0; i < 8 * 4 * 3 * 2; i++) {
        struct spec s = base((tn_kind)(i / 32 % 3), (tn_dtype)x, 1 + i * 13 % 100, i);
        s.d.flags = (unsigned)(i % 8);
        s.d.cast = (tn_cast)cast;
        s.d.grade = (tn_grade)(i / 96);
        s.dtype[OP_WEIGHT] = floats[i / 8 % 4];
        s.dtype[OP_Y] = floats[i / 3 % 4];
        s.d.weight_offset = i % 3 ? 0 : i % 2 ? 1 : 0.3;
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static uint64_t statistics(uint64_t h, int x, int unused, int unused2)
{
    (void)unused;
    (void)unused2;
    for (size_t i = 0; i < 300; i++) {
        struct spec s = base((tn_kind)(i % 3), (tn_dtype)x, 1, i);
        s.d.group = 1 + i * 7 % 70;
        s.d.n = s.d.group * (1 + i % 4);
        s.d.group = i % 4 == 0 && i % 3 ? 0 : s.d.group;
        s.d.partial = i % 5 == 1 ? 1 + (s.d.group ? s.d.group : s.d.n) / 2 : 0;
        s.d.divisor = i % 7 == 2 && s.d.kind != TN_L2 ? (double)s.d.n * 1.25 : 0;
        s.d.eps_mode = (tn_eps_mode)(i / 3 % 3);
        s.d.flags = i % 11 == 0 ? TN_NEGATIVE_EPS : 0;
        s.d.eps = i % 11 == 0 ? -1e-3 : s.d.eps;
        s.dtype[OP_MEAN] = i % 2 ? TN_F32 : TN_F64;
        s.dtype[OP_RSTD] = i % 3 ? TN_F64 : TN_F32;
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static uint64_t residuals(uint64_t h, int x, int res, int unused)
{
    (void)unused;
    for (size_t i = 0; i < 5 * 2 * 3 * 2 * 2; i++) {
        struct spec s = base((tn_kind)(i / 10 % 3), (tn_dtype)x, 1 + i * 19 % 120, i);
        s.dtype[OP_RESIDUAL] = (tn_dtype)res;
        s.gen[OP_RESIDUAL] = i % 3 ? GEN_NORMAL : s.gen[OP_X];
        s.dtype[OP_SUM] = i % 5 ? floats[i % 5 - 1] : TN_NONE;
        s.d.sum = (tn_sum)(i / 5 % 2);
        s.d.grade = (tn_grade)(i / 30 % 2);
        if (i % 7 == 3)
            spec_y_over(&s, OP_RESIDUAL);
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static uint64_t gates(uint64_t h, int x, int gate, int unused)
{
    (void)unused;
    for (size_t i = 0; i < 2 * 2 * 3 * 2 * 5; i++) {
        struct spec s = base((tn_kind)(i / 4 % 3), (tn_dtype)x, 1 + i * 23 % 90, i);
        s.d.gate = i % 2 ? TN_GATE_AFTER : TN_GATE_BEFORE;
        s.d.act = (tn_act)(i / 2 % 2);
        s.dtype[OP_GATE] = (tn_dtype)gate;
        s.d.grade = (tn_grade)(i / 12 % 2);
        s.d.flags = i % 5 == 0 ? TN_ROUND_PRODUCT : 0;
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static uint64_t modulations(uint64_t h, int x, int mod, int unused)
{
    (void)unused;
    for (size_t i = 0; i < 90; i++) {
        struct spec s = base((tn_kind)(i % 3), (tn_dtype)x, 1 + i * 11 % 90, i);
        s.dtype[OP_MOD_SCALE] = i % 4 ? (tn_dtype)mod : TN_NONE;
        s.dtype[OP_MOD_SHIFT] = i % 5 ? (tn_dtype)mod : TN_NONE;
        s.layout[OP_MOD_SCALE] = i % 2 ? LAY_SHARED : LAY_DENSE;
        s.d.positions = i % 3 ? 0 : 1 + i % 5;
        s.d.n *= i % 3 ? 1 : s.d.positions;
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static uint64_t steps(uint64_t h, int x, int unused, int unused2)
{
    (void)unused;
    (void)unused2;
    for (size_t i = 0; i < 200; i++) {
        struct spec s = base((tn_kind)(i % 3), (tn_dtype)x, 1 + i * 29 % 300, i);
        s.dtype[OP_Y] = TN_NONE;
        s.dtype[OP_MOMENT2] = i % 4 ? TN_F64 : TN_F32;
        s.dtype[OP_MEAN] = i % 5 ? TN_F64 : TN_F32;
        h = hash_case(h, &s, tn_norm_moments);
        s.dtype[OP_Y] = i % 3 ? (tn_dtype)x : floats[i / 3 % 4];
        s.dtype[OP_MOMENT2] = s.dtype[OP_MEAN] = TN_NONE;
        s.dtype[OP_RSTD_IN] = i % 4 ? TN_F64 : TN_F32;
        s.dtype[OP_MEAN_IN] = i % 3 == 1 ? TN_F64 : TN_NONE;
        s.d.grade = (tn_grade)(i / 6 % 2);
        h = hash_case(h, &s, tn_norm_apply);
    }
    return h;
}

/* A change of case_random.c changes these. */
static uint64_t random_mix(uint64_t h, int seed, int unused, int unused2)
{
    struct rng r = {(uint64_t)seed};
    (void)unused;
    (void)unused2;
    for (int i = 0; i < 500; i++) {
        struct spec s = spec_random(&r, 300);
        h = hash_case(h, &s, tn_norm_forward);
    }
    return h;
}

static struct group groups[400];
static size_t group_count;

static void add(const char *op, const char *x, const char *y, group_fn *run, int a, int b, int c, bool quick)
{
    struct group *g = &groups[group_count++];
    snprintf(g->is.name, sizeof g->is.name, "%s/%s%s%s", op, x, *y ? "/" : "", y);
    g->run = run;
    g->a = a;
    g->b = b;
    g->c = c;
    g->is.quick = quick;
}

static void list_groups(void)
{
    static const char *const cast_names[] = {"once", "before_scale", "t5"};
    char name[16];
    for (int x = TN_F64; x <= TN_F16; x++) {
        const char *dtype = dtype_info((tn_dtype)x)->name;
        for (int kind = 0; kind < 3; kind++) {
            add(kinds[kind], dtype, "exact", lengths, kind, x, TN_EXACT, kind < 2);
            add(kinds[kind], dtype, "fast", lengths, kind, x, TN_FAST, false);
            add(kinds[kind], dtype, "long", long_rows, kind, x, TN_EXACT, false);
        }
        for (int y = TN_F64; y <= TN_E5M2; y++)
            add("dtypes", dtype, dtype_info((tn_dtype)y)->name, triples, x, y, 0, false);
        for (int cast = 0; cast < 3; cast++)
            add("cast", dtype, cast_names[cast], casts, x, cast, 0, false);
        for (int other = TN_F64; other <= TN_F16; other++) {
            const char *second = dtype_info((tn_dtype)other)->name;
            add("residual", dtype, second, residuals, x, other, 0, false);
            add("gate", dtype, second, gates, x, other, 0, other == TN_F32);
            add("modulation", dtype, second, modulations, x, other, 0, false);
        }
        add("statistics", dtype, "", statistics, x, 0, 0, true);
        add("steps", dtype, "", steps, x, 0, 0, false);
    }
    for (int i = 1; i <= 10; i++) {
        snprintf(name, sizeof name, "%d", i);
        add("random", name, "", random_mix, i, 0, 0, i <= 2);
    }
}

static const struct bits_group *group_at(size_t i)
{
    return &groups[i].is;
}

static uint64_t group_hash(size_t i, uint64_t h)
{
    const struct group *g = &groups[i];
    return g->run(h, g->a, g->b, g->c);
}

int main(int argc, char **argv)
{
    list_groups();
    return bits_main(argc, argv, group_count, group_at, group_hash);
}
