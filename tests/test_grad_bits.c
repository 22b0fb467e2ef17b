/* test_grad_bits.c - one 64-bit hash per group of backward cases over every output bit, the same everywhere.
 *
 *     test_grad_bits [--isa NAME] [--quick] [--check golden_grad.txt]
 *
 * prints "name hash" lines, or only those that differ from the file. Needs nothing but the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bits.h"
#include "grad_case.h"

static const tn_dtype floats[] = {TN_F32, TN_BF16, TN_F16, TN_F64};
static const char *const kinds[] = {"rms", "layer", "l2"};

/* ---- hashing -------------------------------------------------------------------------------------- */

static uint64_t hash_case(uint64_t h, const struct grad_spec *s)
{
    struct grad_case c;
    grad_case_make(&c, s);
    tn_status status = grad_case_run(&c, NULL);
    const char *trespass = grad_case_trespass(&c);
    if (status != TN_OK || trespass) {
        fprintf(stderr, "%s\n  %s\n", trespass ? trespass : tn_status_text(status), grad_case_describe(s));
        exit(2);
    }
    for (int op = GR_DX; op < GR_COUNT; op++) {
        const tn_out *v = grad_output(&c.g, (enum grad_operand)op);
        /* an axis of stride 0 is one sum */
        const size_t rows[2] = {v->stride[0] ? s->f.d.rows[0] : 1, v->stride[1] ? s->f.d.rows[1] : 1};
        if (v->data)
            h = bits_hash_view(h, v, rows, grad_columns_of(&s->f.d, (enum grad_operand)op));
    }
    grad_case_free(&c);
    return h;
}

/* ---- groups of cases ------------------------------------------------------------------------------ */

typedef uint64_t group_fn(uint64_t h, int a, int b);

struct group {
    struct bits_group is;
    group_fn *run;
    int a, b;
};

/* Case number i: everything that is not the group's own rotates. */
static struct grad_spec base(tn_kind kind, tn_dtype dtype, size_t n, size_t i)
{
    static const double eps[] = {1e-6, 1e-5, 0, 1e-12, 0.25};
    struct grad_spec s = grad_spec_make(kind, dtype, 1 + i % 3, n, i % 4 != 1, i % 3 == 1);
    s.f.seed = i + 1;
    s.f.d.eps = eps[i % 5];
    s.f.d.rows[1] = i % 5 == 4 ? 2 : 1;
    s.f.gen[OP_X] = (enum gen)(i % GEN_COUNT);
    s.gen[0] = dtype == TN_F64 ? GEN_NORMAL : (enum gen)(i / 2 % GEN_FINITE_COUNT);
    s.dtype[GR_DSUM] = i % 4 == 3 ? dtype : TN_NONE;
    s.f.layout[OP_X] = i % 4 == 2 ? (enum layout)(i / 4 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.layout[GR_DX] = i % 4 == 3 ? (enum layout)(i / 4 % LAY_OUTPUT_COUNT) : LAY_DENSE;
    s.f.misalign[OP_X] = (unsigned char)(i % 3 ? 0 : i / 3 % 16);
    s.misalign[GR_DX] = (unsigned char)(i % 2 ? 0 : i / 2 % 16);
    return s;
}

static size_t next_length(size_t n)
{
    static const size_t more[] = {127, 128, 129, 255, 256, 257, 511, 513, 768, 1000, 4096, 0};
    if (n < 70)
        return n + 1;
    for (size_t i = 0; more[i]; i++)
        if (more[i] > n)
            return more[i];
    return 0;
}

static uint64_t lengths(uint64_t h, int kind, int dtype)
{
    size_t i = 0;
    for (size_t n = 1; n; n = next_length(n))
        for (size_t turn = 0; turn < 4; turn++, i++) {
            struct grad_spec s = base((tn_kind)kind, (tn_dtype)dtype, n, i);
            h = hash_case(h, &s);
        }
    return h;
}

static uint64_t long_rows(uint64_t h, int kind, int dtype)
{
    for (size_t i = 0; i < 3; i++) {
        struct grad_spec s = grad_spec_make((tn_kind)kind, (tn_dtype)dtype, 1, 16387, true, i % 2);
        s.f.gen[OP_X] = (enum gen)(i * 3 % GEN_FINITE_COUNT);
        h = hash_case(h, &s);
    }
    return h;
}

/* Row counts around the borders of blocks. */
static uint64_t rows(uint64_t h, int kind, int dtype)
{
    static const size_t counts[] = {7, 8, 9, 64, 65, 511, 512, 513, 1500};
    for (size_t i = 0; i < 18; i++) {
        struct grad_spec s = base((tn_kind)kind, (tn_dtype)dtype, 1 + i * 3, i);
        s.f.gen[OP_X] = i % 2 ? GEN_NORMAL : GEN_OUTLIER;
        s.f.d.rows[0] = counts[i % 9];
        s.dtype[GR_DWEIGHT] = TN_F64; /* every bit of the sums */
        s.dtype[GR_DBIAS] = i % 2 ? TN_F64 : TN_F32;
        s.accumulate = i % 4 == 3;
        s.layout[GR_DWEIGHT] = i % 3 ? LAY_SHARED : LAY_PER_SECOND;
        h = hash_case(h, &s);
    }
    return h;
}

static uint64_t mixtures(uint64_t h, int x, int dy)
{
    for (size_t i = 0; i < 5 * 4 * 3; i++) {
        struct grad_spec s = base((tn_kind)(i / 20), (tn_dtype)x, 1 + i * 17 % 150, i);
        s.f.dtype[OP_WEIGHT] = i % 5 ? floats[i % 5 - 1] : TN_NONE;
        s.dtype[GR_DWEIGHT] = floats[(i + 1) % 4];
        s.dtype[GR_DY] = (tn_dtype)dy;
        s.gen[0] = GEN_NORMAL;
        s.dtype[GR_DX] = floats[i / 5 % 4];
        h = hash_case(h, &s);
    }
    return h;
}

static uint64_t casts(uint64_t h, int x, int cast)
{
    for (size_t i = 0; i < 8 * 4 * 3; i++) {
        struct grad_spec s = base((tn_kind)(i / 32), (tn_dtype)x, 1 + i * 13 % 100, i);
        s.f.d.flags = (unsigned)(i % 8);
        s.f.d.cast = (tn_cast)cast;
        s.f.dtype[OP_WEIGHT] = s.dtype[GR_DWEIGHT] = floats[i / 8 % 4];
        s.f.d.weight_offset = i % 3 ? 0 : i % 2 ? 1 : 0.3;
        h = hash_case(h, &s);
    }
    return h;
}

static uint64_t statistics(uint64_t h, int x, int unused)
{
    (void)unused;
    for (size_t i = 0; i < 200; i++) {
        struct grad_spec s = base((tn_kind)(i % 3), (tn_dtype)x, 1, i);
        s.f.d.group = 1 + i * 7 % 70;
        s.f.d.n = s.f.d.group * (1 + i % 4);
        s.f.d.partial = i % 5 == 1 ? 1 + s.f.d.group / 2 : 0;
        s.f.d.divisor = i % 7 == 2 && s.f.d.kind != TN_L2 ? (double)s.f.d.n * 1.25 : 0;
        s.f.d.eps_mode = (tn_eps_mode)(i / 3 % 3);
        s.saved = i % 4 == 3 && s.f.gen[OP_X] == GEN_NORMAL;
        s.f.dtype[OP_RSTD] = s.saved ? TN_F32 : TN_NONE;
        s.f.dtype[OP_MEAN] = s.saved && s.f.d.kind == TN_LAYER ? TN_F64 : TN_NONE;
        h = hash_case(h, &s);
    }
    return h;
}

static uint64_t gates(uint64_t h, int x, int gate)
{
    for (size_t i = 0; i < 2 * 2 * 3 * 5; i++) {
        struct grad_spec s = base((tn_kind)(i / 4 % 3), (tn_dtype)x, 1 + i * 23 % 90, i);
        s.f.d.gate = i % 2 ? TN_GATE_AFTER : TN_GATE_BEFORE;
        s.f.d.act = (tn_act)(i / 2 % 2);
        s.f.dtype[OP_GATE] = (tn_dtype)gate;
        s.f.dtype[OP_RESIDUAL] = i % 3 ? TN_NONE : (tn_dtype)gate;
        s.f.dtype[OP_MOD_SCALE] = s.f.dtype[OP_MOD_SHIFT] = i % 5 ? TN_NONE : (tn_dtype)x;
        grad_spec_all(&s, i % 2 ? TN_F64 : TN_NONE);
        h = hash_case(h, &s);
    }
    return h;
}

/* A change of case_random.c or grad_case.c changes these. */
static uint64_t random_mix(uint64_t h, int seed, int unused)
{
    struct rng r = {(uint64_t)seed + 700};
    (void)unused;
    for (int i = 0; i < 300; i++) {
        struct grad_spec s = grad_spec_random(&r, 300);
        h = hash_case(h, &s);
    }
    return h;
}

static struct group groups[200];
static size_t group_count;

static void add(const char *op, const char *x, const char *y, group_fn *run, int a, int b, bool quick)
{
    struct group *g = &groups[group_count++];
    snprintf(g->is.name, sizeof g->is.name, "grad/%s/%s%s%s", op, x, *y ? "/" : "", y);
    g->run = run;
    g->a = a;
    g->b = b;
    g->is.quick = quick;
}

static void list_groups(void)
{
    static const char *const cast_names[] = {"once", "before_scale", "t5"};
    char name[16];
    for (int x = TN_F64; x <= TN_F16; x++) {
        const char *dtype = dtype_info((tn_dtype)x)->name;
        for (int kind = 0; kind < 3; kind++) {
            add(kinds[kind], dtype, "lengths", lengths, kind, x, kind < 2);
            add(kinds[kind], dtype, "long", long_rows, kind, x, false);
            add(kinds[kind], dtype, "rows", rows, kind, x, false);
        }
        for (int cast = 0; cast < 3; cast++)
            add("cast", dtype, cast_names[cast], casts, x, cast, false);
        for (int other = TN_F64; other <= TN_F16; other++) {
            add("dtypes", dtype, dtype_info((tn_dtype)other)->name, mixtures, x, other, false);
            add("gate", dtype, dtype_info((tn_dtype)other)->name, gates, x, other, other == TN_F32);
        }
        add("statistics", dtype, "", statistics, x, 0, true);
    }
    for (int i = 1; i <= 10; i++) {
        snprintf(name, sizeof name, "%d", i);
        add("random", name, "", random_mix, i, 0, i <= 2);
    }
}

static const struct bits_group *group_at(size_t i)
{
    return &groups[i].is;
}

static uint64_t group_hash(size_t i, uint64_t h)
{
    const struct group *g = &groups[i];
    return g->run(h, g->a, g->b);
}

int main(int argc, char **argv)
{
    list_groups();
    return bits_main(argc, argv, group_count, group_at, group_hash);
}
