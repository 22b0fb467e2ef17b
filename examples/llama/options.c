#include "options.h"
#include "common.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum form { PATH, COUNT, NUMBER, NORM, PLACEMENT };

/* One option: what its value looks like, which field takes it, what --help says. */
struct rule {
    const char *name;
    enum form form;
    size_t field, least, most;
    const char *value, *help;
};

#define AT(field) offsetof(struct options, field)

static const struct rule rules[] = {
    {"--text", PATH, AT(text), 0, 0, "FILE", "bytes to train on"},
    {"--valid", PATH, AT(valid), 0, 0, "FILE", "bytes to measure the validation loss on"},
    {"--out", PATH, AT(out), 0, 0, "DIR", "gets metrics.jsonl and checkpoint-STEP"},
    {"--resume", PATH, AT(resume), 0, 0, "DIR", "go on with the run in DIR, and with its options"},
    {"--norm", NORM, AT(config.norm), 0, 0, "KIND",
     "none, layer, rms or prms:P (the first P of each row, 0 < P <= 1)"},
    {"--placement", PLACEMENT, AT(config.placement), 0, 0, "WHERE", "pre, post or sandwich"},
    {"--qk-norm", NORM, AT(config.qk_norm), 0, 0, "KIND", "of each head's queries and keys"},
    {"--eps", NUMBER, AT(config.eps), 0, 0, "X", "of the norms"},
    {"--layers", COUNT, AT(config.layers), 1, 1000, "N", "blocks of attention and feed-forward net"},
    {"--width", COUNT, AT(config.width), 2, 65536, "N", "of the residual stream"},
    {"--heads", COUNT, AT(config.heads), 1, 1024, "N", "of attention"},
    {"--hidden", COUNT, AT(config.hidden), 1, 1 << 20, "N", "of the feed-forward net"},
    {"--context", COUNT, AT(config.context), 1, 65536, "N", "bytes of a sequence"},
    {"--batch", COUNT, AT(batch), 1, 65536, "N", "sequences of a step"},
    {"--steps", COUNT, AT(steps), 1, 1000000000, "N", "of training"},
    {"--rate", NUMBER, AT(rate), 0, 0, "X",
     "the learning rate: rises over the warmup, then falls to a tenth (cosine)"},
    {"--warmup", COUNT, AT(warmup), 0, 1000000000, "N", "steps"},
    {"--decay", NUMBER, AT(decay), 0, 0, "X", "AdamW's, of the matrices"},
    {"--clip", NUMBER, AT(clip), 0, 0, "X", "longest gradient; 0: any"},
    {"--gain", NUMBER, AT(gain), 0, 0, "X", "times the usual deviation of the initial weights"},
    {"--seed", COUNT, AT(seed), 0, (size_t)1 << 53, "N", "of the initial weights and the order of the text"},
    {"--threads", COUNT, AT(threads), 1, 256, "N", "of the matrix products"},
    {"--text-bytes", COUNT, AT(text_bytes), 0, (size_t)1 << 53, "N", "of --text that are used; 0: all"},
    {"--valid-batches", COUNT, AT(valid_batches), 1, 1000000, "N", "of --valid that are measured"},
    {"--valid-every", COUNT, AT(valid_every), 0, 1000000000, "N", "steps; 0: at the end only"},
    {"--log-every", COUNT, AT(log_every), 1, 1000000000, "N", "steps: what each layer sees and its gradient"},
    {"--save-every", COUNT, AT(save_every), 0, 1000000000, "N", "steps; 0: at the end only"},
    {"--checkpoints", COUNT, AT(checkpoints), 0, 1, "N",
     "1, or 0: none are written, and the run cannot go on"},
};
enum { RULES = sizeof rules / sizeof *rules };

void options_init(struct options *o)
{
    const struct options defaults = {
        .config = {.layers = 4,
                   .width = 64,
                   .heads = 4,
                   .hidden = 176,
                   .context = 64,
                   .norm = {KIND_RMS, 1},
                   .qk_norm = {KIND_NONE, 1},
                   .placement = PRE,
                   .eps = 1e-6,
                   .rope_theta = 10000},
        .batch = 8,
        .steps = 400,
        .warmup = 20,
        .seed = 1,
        .threads = 1,
        .valid_batches = 8,
        .log_every = 10,
        .checkpoints = 1,
        .rate = 3e-3,
        .decay = 0.1,
        .gain = 1,
    };
    *o = defaults;
}

static void *field_of(struct options *o, const struct rule *r)
{
    return (char *)o + r->field;
}

void options_free(struct options *o)
{
    for (size_t i = 0; i < RULES; i++)
        if (rules[i].form == PATH)
            free(*(char **)field_of(o, &rules[i]));
}

/* ---- values --------------------------------------------------------------------------------------- */

size_t parse_count(const char *option, const char *text, size_t least, size_t most)
{
    size_t value = 0, digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits])
        fail("%s: '%s' is not a whole number", option, text);
    for (size_t i = 0; i < digits && value <= most; i++)
        value = value > (SIZE_MAX - 9) / 10 ? SIZE_MAX : value * 10 + (size_t)(text[i] - '0');
    if (value < least || value > most)
        fail("%s: %s is not between %zu and %zu", option, text, least, most);
    return value;
}

static double parse_number(const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        fail("%s: '%s' is not a number", option, text);
    if (value < 0)
        fail("%s: %s is less than 0", option, text);
    return value;
}

static enum placement parse_placement(const char *option, const char *text)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(text, placement_names[i]) == 0)
            return (enum placement)i;
    fail("%s: '%s' is none of pre, post, sandwich", option, text);
}

static void apply(struct options *o, const struct rule *r, const char *text)
{
    void *field = field_of(o, r);
    switch (r->form) {
    case PATH:
        free(*(char **)field);
        if (!(*(char **)field = strdup(text)))
            fail("out of memory");
        break;
    case COUNT:
        *(size_t *)field = parse_count(r->name, text, r->least, r->most);
        break;
    case NUMBER:
        *(double *)field = parse_number(r->name, text);
        break;
    case NORM:
        if (!norm_kind_parse(text, field))
            fail("%s: '%s' is none of none, layer, rms, prms:P (0 < P <= 1)", r->name, text);
        break;
    case PLACEMENT:
        *(enum placement *)field = parse_placement(r->name, text);
        break;
    }
}

static void format(const struct options *o, const struct rule *r, char *text, size_t capacity)
{
    const void *field = (const char *)o + r->field;
    switch (r->form) {
    case PATH:
        snprintf(text, capacity, "%s", *(char *const *)field ? *(char *const *)field : "");
        break;
    case COUNT:
        snprintf(text, capacity, "%zu", *(const size_t *)field);
        break;
    case NUMBER:
        snprintf(text, capacity, "%.17g", *(const double *)field);
        break;
    case NORM:
        norm_kind_format(*(const struct norm_kind *)field, text, capacity);
        break;
    case PLACEMENT:
        snprintf(text, capacity, "%s", placement_names[*(const enum placement *)field]);
        break;
    }
}

/* ---- the command line and checkpoints ------------------------------------------------------------- */

int options_parse(struct options *o, int argc, char **argv)
{
    struct option options[RULES + 2] = {{"help", no_argument, NULL, 'h'}};
    const int first = 256;
    const char *seen = NULL; /* an option other than --resume */
    int c;
    for (int i = 0; i < RULES; i++)
        options[1 + i] = (struct option){rules[i].name + 2, required_argument, NULL, first + i};
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 'h')
            return 1;
        if (c == '?')
            exit(2); /* getopt_long has said why */
        apply(o, &rules[c - first], optarg);
        if (strcmp(rules[c - first].name, "--resume") != 0)
            seen = rules[c - first].name;
    }
    if (optind < argc)
        fail("unexpected argument '%s'", argv[optind]);
    if (o->resume && seen)
        fail("--resume goes on with the run's own options; leave out %s", seen);
    const char *problem = config_problem(&o->config);
    if (problem)
        fail("%s", problem);
    return 0;
}

static bool stored(const struct rule *r)
{
    return r->field != AT(out) && r->field != AT(resume);
}

void options_save(const struct options *o, cJSON *object)
{
    char text[8192];
    for (size_t i = 0; i < RULES; i++) {
        if (!stored(&rules[i]))
            continue;
        format(o, &rules[i], text, sizeof text);
        cJSON_AddStringToObject(object, rules[i].name + 2, text);
    }
}

void options_load(struct options *o, const cJSON *object, const char *path)
{
    for (size_t i = 0; i < RULES; i++) {
        if (!stored(&rules[i]))
            continue;
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, rules[i].name + 2));
        if (!text)
            fail("%s: does not say %s", path, rules[i].name);
        if (rules[i].form != PATH || *text)
            apply(o, &rules[i], text);
    }
    const char *problem = config_problem(&o->config);
    if (problem)
        fail("%s: %s", path, problem);
}

void options_help(void)
{
    struct options defaults;
    options_init(&defaults);
    for (size_t i = 0; i < RULES; i++) {
        char name[32], text[64];
        snprintf(name, sizeof name, "%s %s", rules[i].name, rules[i].value);
        format(&defaults, &rules[i], text, sizeof text);
        if (rules[i].form == NUMBER)
            snprintf(text, sizeof text, "%g", *(const double *)field_of(&defaults, &rules[i]));
        printf("  %-20s %s%s%s%s\n", name, rules[i].help, *text ? " (" : "", text, *text ? ")" : "");
    }
}
