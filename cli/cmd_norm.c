#include "cli.h"
#include "norm.h"

#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: truenorm norm --kind KIND [OPTION]... X.npy -o Y.npy\n"
    "Normalise the last axis of the array in X.npy (f64, f32, f16 or bf16).\n"
    "Files may be larger than memory. An output replaces an existing file only\n"
    "when all went well.\n"
    "\n"
    "  --kind rms|layer|l2   x / sqrt(mean(x^2) + eps); the same with the mean\n"
    "                        removed; with the sum instead of the mean of squares\n"
    "  --eps EPS             default 1e-6\n"
    "  --eps-mode MODE       inside (default): sqrt(v + eps), outside: sqrt(v) + eps,\n"
    "                        clamp: max(sqrt(v), eps)\n"
    "  --weight FILE         gain, shape (n,) or (heads, n)\n"
    "  --weight-offset D     added to the weight: 0 (default) or 1\n"
    "  --bias FILE           added to the result, shape as a weight\n"
    "  --residual FILE       added to x first, shape as x\n"
    "  --sum FILE            output: x + residual\n"
    "  --gate FILE           multiplies by act(gate), shape as x\n"
    "  --gate-order ORDER    before or after the norm; needed with --gate\n"
    "  --act silu|sigmoid    default silu\n"
    "  --group G             statistics over each G elements instead of all\n"
    "  --partial K           statistics from the first K elements (of each group)\n"
    "  --divisor D           replaces the element count in the means\n"
    "  --cast CAST           once (default): only the result is rounded\n"
    "                        before_scale: also before the weight, to x's dtype (Llama)\n"
    "                        t5: also before the weight, to its dtype if 16 bits wide\n"
    "  --grade exact|fast    default exact\n"
    "  --out-dtype DTYPE     f64, f32, bf16, f16, int8, e4m3 or e5m2. Default: x's dtype;\n"
    "                        with before_scale that of x * weight; with t5 the weight's\n"
    "                        if 16 bits wide, else f32\n"
    "  --scale S             int8, e4m3, e5m2: the output is y / S\n"
    "  --scale-out FILE      int8, e4m3, e5m2: output: a scale for each row, f32, shape\n"
    "                        as x with a last axis of 1\n"
    "  --bf16                files of dtype u2, i2 or V2 hold bf16; a bf16 output always\n"
    "                        has dtype u2\n"
    "  --threads N           default: all cores\n"
    "  -o, --output FILE     the result\n";

static const struct choice kinds[] = {{"rms", TN_RMS}, {"layer", TN_LAYER}, {"l2", TN_L2}};
static const struct choice eps_modes[] = {
    {"inside", TN_EPS_INSIDE}, {"outside", TN_EPS_OUTSIDE}, {"clamp", TN_EPS_CLAMP}};
static const struct choice gate_orders[] = {{"before", TN_GATE_BEFORE}, {"after", TN_GATE_AFTER}};
static const struct choice acts[] = {{"silu", TN_SILU}, {"sigmoid", TN_SIGMOID}};
static const struct choice casts[] = {
    {"once", TN_CAST_ONCE}, {"before_scale", TN_CAST_BEFORE_SCALE}, {"t5", TN_CAST_T5}};
static const struct choice grades[] = {{"exact", TN_EXACT}, {"fast", TN_FAST}};
static const struct choice dtypes[] = {{"f64", TN_F64}, {"f32", TN_F32},   {"bf16", TN_BF16}, {"f16", TN_F16},
                                       {"int8", TN_I8}, {"e4m3", TN_E4M3}, {"e5m2", TN_E5M2}};

enum form { PATH, REAL, NOT_NEGATIVE, POSITIVE, SIZE, THREADS, FLAG, CHOICE };

/* One option: what its argument looks like, and which field takes it. */
struct rule {
    const char *name;
    enum form form;
    size_t field;
    const struct choice *choices;
    size_t count;
};

#define RULE(name, form, field)                                                                              \
    {                                                                                                        \
        name, form, offsetof(struct norm_options, field), NULL, 0                                            \
    }
#define CHOOSE(name, list, field)                                                                            \
    {                                                                                                        \
        name, CHOICE, offsetof(struct norm_options, field), list, sizeof(list) / sizeof *(list)              \
    }

static const struct rule rules[] = {
    CHOOSE("--kind", kinds, desc.kind),
    RULE("--eps", NOT_NEGATIVE, desc.eps),
    CHOOSE("--eps-mode", eps_modes, desc.eps_mode),
    RULE("--weight", PATH, weight),
    RULE("--weight-offset", REAL, desc.weight_offset),
    RULE("--bias", PATH, bias),
    RULE("--residual", PATH, residual),
    RULE("--sum", PATH, sum),
    RULE("--gate", PATH, gate),
    CHOOSE("--gate-order", gate_orders, desc.gate),
    CHOOSE("--act", acts, desc.act),
    RULE("--group", SIZE, desc.group),
    RULE("--partial", SIZE, desc.partial),
    RULE("--divisor", POSITIVE, desc.divisor),
    CHOOSE("--cast", casts, desc.cast),
    CHOOSE("--grade", grades, desc.grade),
    CHOOSE("--out-dtype", dtypes, out_dtype),
    RULE("--scale", POSITIVE, scale),
    RULE("--scale-out", PATH, scale_out),
    RULE("--bf16", FLAG, bf16),
    RULE("--threads", THREADS, threads),
    RULE("--output", PATH, y),
};
enum { RULES = sizeof rules / sizeof *rules };

static double parse_finite(const struct rule *r, const char *text)
{
    double value = parse_real(r->name, text);
    if (isinf(value))
        fail("%s: %s is not finite", r->name, text);
    if (r->form == NOT_NEGATIVE && value < 0)
        fail("%s: %s is less than 0", r->name, text);
    if (r->form == POSITIVE && value <= 0)
        fail("%s: %s is not above 0", r->name, text);
    return value;
}

_Static_assert(sizeof(tn_kind) == sizeof(int) && sizeof(tn_dtype) == sizeof(int),
               "apply() sets enums as ints");

static void apply(const struct rule *r, struct norm_options *o, const char *text)
{
    char *field = (char *)o + r->field;
    const bool yes = true;
    double real;
    size_t size;
    int number;
    switch (r->form) {
    case PATH:
        memcpy(field, &text, sizeof text);
        break;
    case REAL:
    case NOT_NEGATIVE:
    case POSITIVE:
        real = parse_finite(r, text);
        memcpy(field, &real, sizeof real);
        break;
    case SIZE:
        size = parse_count(r->name, text, 1, PTRDIFF_MAX);
        memcpy(field, &size, sizeof size);
        break;
    case THREADS:
        number = parse_threads(text);
        memcpy(field, &number, sizeof number);
        break;
    case FLAG:
        memcpy(field, &yes, sizeof yes);
        break;
    case CHOICE:
        number = parse_choice(r->name, text, r->choices, r->count);
        memcpy(field, &number, sizeof number);
        break;
    }
}

static bool given(const bool *seen, const char *name)
{
    for (size_t i = 0; i < RULES; i++)
        if (strcmp(rules[i].name, name) == 0)
            return seen[i];
    return false;
}

/* Options that only make sense together. */
static void check_options(const struct norm_options *o, const bool *seen)
{
    bool quantised = tn_dtype_size(o->out_dtype) == 1;
    if (!given(seen, "--kind"))
        fail("--kind is missing: rms, layer or l2");
    if (!o->x)
        fail("no input file given; see 'truenorm norm --help'");
    if (!o->y)
        fail("no output file given: -o FILE is missing");
    if (o->gate && !given(seen, "--gate-order"))
        fail("--gate needs --gate-order before or after");
    if (!o->gate && (given(seen, "--gate-order") || given(seen, "--act")))
        fail("--gate-order and --act need --gate");
    if (o->sum && !o->residual)
        fail("--sum needs --residual");
    if (!o->weight && given(seen, "--weight-offset"))
        fail("--weight-offset needs --weight");
    if (!quantised && (o->scale > 0 || o->scale_out))
        fail("--scale and --scale-out need --out-dtype int8, e4m3 or e5m2");
    if (quantised && (o->scale > 0) == (o->scale_out != NULL))
        fail("--out-dtype int8, e4m3 and e5m2 need either --scale or --scale-out");
}

int cmd_norm(int argc, char **argv)
{
    struct norm_options o = {.desc = TN_NORM_DESC_INIT};
    struct option options[RULES + 2] = {{"help", no_argument, NULL, 'h'}};
    bool seen[RULES] = {false};
    int c, first = 256;

    for (int i = 0; i < RULES; i++) {
        struct option option = {rules[i].name + 2, rules[i].form != FLAG, NULL, first + i};
        options[1 + i] = option;
    }
    while ((c = getopt_long(argc, argv, "ho:", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(help, stdout), 0;
        if (c == '?')
            return 2;
        int i = c == 'o' ? RULES - 1 : c - first;
        apply(&rules[i], &o, optarg);
        seen[i] = true;
    }
    if (optind < argc)
        o.x = argv[optind++];
    if (optind < argc)
        fail("%s: unexpected argument after %s", argv[optind], o.x);
    check_options(&o, seen);
    norm_files(&o);
    return 0;
}
