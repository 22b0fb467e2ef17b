#include "model.h"
#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const placement_names[3] = {"pre", "post", "sandwich"};

/* Where the norms are, and their names: Llama's, OLMo 2's and Gemma 2's. */
static const char *const site_names[3][SUBLAYERS][SITES] = {
    [PRE] = {{[BEFORE] = "input_layernorm"}, {[BEFORE] = "post_attention_layernorm"}},
    [POST] = {{[ON_SUM] = "post_attention_layernorm"}, {[ON_SUM] = "post_feedforward_layernorm"}},
    [SANDWICH] = {{[BEFORE] = "input_layernorm", [AFTER] = "post_attention_layernorm"},
                  {[BEFORE] = "pre_feedforward_layernorm", [AFTER] = "post_feedforward_layernorm"}},
};

bool norm_kind_parse(const char *text, struct norm_kind *kind)
{
    static const char *const names[] = {"none", "layer", "rms"};
    kind->part = 1;
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            kind->kind = (enum kind)i;
            return true;
        }
    }
    char *end;
    if (strncmp(text, "prms:", 5) != 0)
        return false;
    kind->kind = KIND_PARTIAL;
    kind->part = strtod(text + 5, &end);
    return end > text + 5 && !*end && kind->part > 0 && kind->part <= 1;
}

void norm_kind_format(struct norm_kind kind, char *text, size_t capacity)
{
    static const char *const names[] = {"none", "layer", "rms"};
    if (kind.kind == KIND_PARTIAL)
        snprintf(text, capacity, "prms:%.17g", kind.part);
    else
        snprintf(text, capacity, "%s", names[kind.kind]);
}

const char *config_problem(const struct config *c)
{
    if (c->width % c->heads != 0)
        return "the width is no multiple of the heads";
    if (c->width / c->heads % 2 != 0)
        return "width / heads is odd, and rotations need pairs";
    if (!(c->eps >= 0 && isfinite(c->eps)))
        return "eps is negative or not finite";
    return NULL;
}

const char *config_model_type(const struct config *c)
{
    if (c->placement != PRE)
        return NULL;
    if (c->norm.kind == KIND_RMS && c->qk_norm.kind == KIND_NONE)
        return "llama";
    if (c->norm.kind == KIND_RMS && c->qk_norm.kind == KIND_RMS)
        return "qwen3";
    if (c->norm.kind == KIND_LAYER && c->qk_norm.kind == KIND_NONE)
        return "stablelm";
    return NULL;
}

/* ---- the layout ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 5, 6))) static struct tensor *add(struct layout *l, size_t rows, size_t cols,
                                                                double deviation, const char *name, ...)
{
    struct tensor *t = &l->tensors[l->tensor_count++];
    va_list args;
    va_start(args, name);
    vsnprintf(t->name, sizeof t->name, name, args);
    va_end(args);
    t->rows = rows;
    t->cols = cols;
    t->count = rows * (cols ? cols : 1);
    t->offset = l->size;
    t->deviation = deviation;
    l->size += t->count;
    return t;
}

static struct gain add_gain(struct layout *l, struct norm_kind kind, size_t n, const char *name)
{
    struct gain gain = {ABSENT, ABSENT};
    if (kind.kind == KIND_NONE)
        return gain;
    struct tensor *weight = add(l, n, 0, 0, "%s.weight", name);
    weight->constant = 1;
    gain.weight = weight->offset;
    if (kind.kind == KIND_LAYER)
        gain.bias = add(l, n, 0, 0, "%s.bias", name)->offset;
    return gain;
}

static void add_norms(struct layout *l, const struct config *c, size_t layer, struct block *b)
{
    char name[64];
    for (int sublayer = 0; sublayer < SUBLAYERS; sublayer++) {
        for (int site = 0; site < SITES; site++) {
            const char *known = site_names[c->placement][sublayer][site];
            struct norm_kind kind = {known ? c->norm.kind : KIND_NONE, c->norm.part};
            snprintf(name, sizeof name, "model.layers.%zu.%s", layer, known ? known : "");
            b->norm[sublayer][site] = add_gain(l, kind, c->width, name);
        }
    }
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.q_norm", layer);
    b->q_norm = add_gain(l, c->qk_norm, c->width / c->heads, name);
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.k_norm", layer);
    b->k_norm = add_gain(l, c->qk_norm, c->width / c->heads, name);
}

static void add_block(struct layout *l, const struct config *c, size_t i, struct block *b)
{
    size_t width = c->width, hidden = c->hidden;
    double in = 1 / sqrt((double)width), out = in / sqrt(2 * (double)c->layers);
    double down = 1 / sqrt((double)hidden * 2 * (double)c->layers);
    b->first = l->size;
    b->q = add(l, width, width, in, "model.layers.%zu.self_attn.q_proj.weight", i)->offset;
    b->k = add(l, width, width, in, "model.layers.%zu.self_attn.k_proj.weight", i)->offset;
    b->v = add(l, width, width, in, "model.layers.%zu.self_attn.v_proj.weight", i)->offset;
    b->o = add(l, width, width, out, "model.layers.%zu.self_attn.o_proj.weight", i)->offset;
    b->gate = add(l, hidden, width, in, "model.layers.%zu.mlp.gate_proj.weight", i)->offset;
    b->up = add(l, hidden, width, in, "model.layers.%zu.mlp.up_proj.weight", i)->offset;
    b->down = add(l, width, hidden, down, "model.layers.%zu.mlp.down_proj.weight", i)->offset;
    add_norms(l, c, i, b);
    b->end = l->size;
}

struct layout layout_make(const struct config *c)
{
    struct layout l = {0};
    struct norm_kind last = {c->placement == POST ? KIND_NONE : c->norm.kind, c->norm.part};
    size_t most = 7 + 2 * (SUBLAYERS * SITES + 2); /* tensors of a block */
    l.tensors = allocate(c->layers * most + 3, sizeof *l.tensors);
    l.blocks = allocate(c->layers, sizeof *l.blocks);
    l.embedding =
        add(&l, VOCABULARY, c->width, 1 / sqrt((double)c->width), "model.embed_tokens.weight")->offset;
    for (size_t i = 0; i < c->layers; i++)
        add_block(&l, c, i, &l.blocks[i]);
    l.last_norm = add_gain(&l, last, c->width, "model.norm");
    return l;
}

void layout_free(struct layout *layout)
{
    free(layout->blocks);
    free(layout->tensors);
}

void parameters_init(const struct layout *layout, double gain, uint64_t seed, real *parameters)
{
    for (size_t t = 0; t < layout->tensor_count; t++) {
        const struct tensor *tensor = &layout->tensors[t];
        for (size_t i = 0; i < tensor->count; i++)
            parameters[tensor->offset + i] =
                (real)(tensor->deviation > 0 ? gain * tensor->deviation * random_normal(seed, t, i)
                                             : tensor->constant);
    }
}
