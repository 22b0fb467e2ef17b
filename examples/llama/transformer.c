#include "transformer.h"
#include "common.h"
#include "norm.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory --------------------------------------------------------------------------------------- */

static void *own(struct transformer *t, size_t count, size_t size)
{
    t->owned = realloc(t->owned, (t->owned_count + 1) * sizeof *t->owned);
    if (!t->owned)
        fail("out of memory");
    return t->owned[t->owned_count++] = allocate(count, size);
}

static real *reals(struct transformer *t, size_t count)
{
    return own(t, count, sizeof(real));
}

static real *reals_if(struct transformer *t, bool wanted, size_t count, real *otherwise)
{
    return wanted ? reals(t, count) : otherwise;
}

static void make_sublayer(struct transformer *t, const struct gain *norm, struct sublayer_pass *s,
                          real *stream, real *next)
{
    size_t count = t->tokens * t->config.width;
    s->stream = stream;
    s->in = reals_if(t, norm[BEFORE].weight != ABSENT, count, stream);
    s->raw = reals(t, count);
    s->out = reals_if(t, norm[AFTER].weight != ABSENT, count, s->raw);
    s->sum = reals_if(t, norm[ON_SUM].weight != ABSENT, count, next);
    for (int site = 0; site < SITES; site++)
        s->stats[site] = norm[site].weight == ABSENT ? NULL : own(t, 2 * t->tokens, sizeof(double));
}

/* Returns the stream after the block. */
static real *make_block(struct transformer *t, const struct block *block, struct block_pass *b, real *stream)
{
    size_t count = t->tokens * t->config.width, hidden = t->tokens * t->config.hidden;
    real *middle = reals(t, count), *end = reals(t, count);
    bool qk = block->q_norm.weight != ABSENT;
    make_sublayer(t, block->norm[ATTENTION], &b->sublayer[ATTENTION], stream, middle);
    make_sublayer(t, block->norm[FEED_FORWARD], &b->sublayer[FEED_FORWARD], middle, end);
    b->q = reals(t, count);
    b->k = reals(t, count);
    b->v = reals(t, count);
    b->q_raw = reals_if(t, qk, count, b->q);
    b->k_raw = reals_if(t, qk, count, b->k);
    b->q_stats = qk ? own(t, 2 * t->tokens * t->heads.heads, sizeof(double)) : NULL;
    b->k_stats = qk ? own(t, 2 * t->tokens * t->heads.heads, sizeof(double)) : NULL;
    b->weights = reals(t, t->tokens * t->heads.heads * t->heads.length);
    b->mixed = reals(t, count);
    b->gate = reals(t, hidden);
    b->up = reals(t, hidden);
    b->active = reals(t, hidden);
    return end;
}

static void make_gradients(struct transformer *t)
{
    size_t count = t->tokens * t->config.width, hidden = t->tokens * t->config.hidden;
    t->gradients = reals(t, t->layout.size);
    t->d = reals(t, count);
    t->d_in = reals(t, count);
    t->d_out = reals(t, count);
    t->dq = reals(t, count);
    t->dk = reals(t, count);
    t->dv = reals(t, count);
    t->dmixed = reals(t, count);
    t->dw = reals(t, t->heads.length * t->heads.length);
    t->dgate = reals(t, hidden);
    t->dactive = reals(t, hidden);
}

struct transformer *transformer_new(const struct config *c, size_t batch, size_t length)
{
    struct transformer *t = allocate(1, sizeof *t);
    t->config = *c;
    t->layout = layout_make(c);
    t->heads = (struct heads){batch, length, c->heads, c->width / c->heads};
    t->tokens = batch * length;
    t->parameters = reals(t, t->layout.size);
    t->blocks = own(t, c->layers, sizeof *t->blocks);
    real *stream = reals(t, t->tokens * c->width);
    for (size_t i = 0; i < c->layers; i++)
        stream = make_block(t, &t->layout.blocks[i], &t->blocks[i], stream);
    t->last = stream;
    t->normed = reals_if(t, t->layout.last_norm.weight != ABSENT, t->tokens * c->width, stream);
    t->last_stats = own(t, 2 * t->tokens, sizeof(double));
    t->logits = reals(t, t->tokens * VOCABULARY);
    t->cosine = reals(t, length * t->heads.size / 2);
    t->sine = reals(t, length * t->heads.size / 2);
    rope_table(&t->heads, c->rope_theta, t->cosine, t->sine);
    make_gradients(t);
    return t;
}

void transformer_free(struct transformer *t)
{
    for (size_t i = 0; i < t->owned_count; i++)
        free(t->owned[i]);
    free(t->owned);
    layout_free(&t->layout);
    free(t);
}

/* ---- norms ---------------------------------------------------------------------------------------- */

static struct norm norm_of(const struct transformer *t, struct norm_kind kind, struct gain gain, size_t rows,
                           size_t n)
{
    struct norm norm = {kind, rows, n, t->config.eps, t->parameters + gain.weight, NULL};
    if (gain.bias != ABSENT)
        norm.bias = t->parameters + gain.bias;
    return norm;
}

static void norm_gradient(const struct transformer *t, const struct norm *norm, struct gain gain,
                          const real *x, const double *stats, const real *dy, const real *dsum, real *dx)
{
    real *dbias = gain.bias != ABSENT ? t->gradients + gain.bias : NULL;
    norm_backward(norm, x, stats, dy, dsum, dx, t->gradients + gain.weight, dbias);
}

/* The norms of the residual stream, where there is one: x and y are the same array where there is none. */
static void stream_norm(const struct transformer *t, struct gain gain, const real *x, real *y, double *stats)
{
    if (gain.weight == ABSENT)
        return;
    struct norm norm = norm_of(t, t->config.norm, gain, t->tokens, t->config.width);
    norm_forward(&norm, x, y, stats);
}

static void stream_norm_backward(const struct transformer *t, struct gain gain, const real *x,
                                 const double *stats, const real *dy, const real *dsum, real *dx)
{
    struct norm norm = norm_of(t, t->config.norm, gain, t->tokens, t->config.width);
    norm_gradient(t, &norm, gain, x, stats, dy, dsum, dx);
}

/* The norms of queries and keys, whose rows are heads. */
static void head_norm(const struct transformer *t, struct gain gain, const real *x, real *y, double *stats)
{
    if (gain.weight == ABSENT)
        return;
    struct norm norm = norm_of(t, t->config.qk_norm, gain, t->tokens * t->heads.heads, t->heads.size);
    norm_forward(&norm, x, y, stats);
}

static void head_norm_backward(const struct transformer *t, struct gain gain, const real *x,
                               const double *stats, real *d)
{
    if (gain.weight == ABSENT)
        return;
    struct norm norm = norm_of(t, t->config.qk_norm, gain, t->tokens * t->heads.heads, t->heads.size);
    norm_gradient(t, &norm, gain, x, stats, d, NULL, d);
}

/* ---- forward -------------------------------------------------------------------------------------- */

static void attention(const struct transformer *t, const struct block *block, struct block_pass *b)
{
    const struct sublayer_pass *s = &b->sublayer[ATTENTION];
    size_t n = t->tokens, width = t->config.width;
    const real *p = t->parameters;
    linear_forward(s->in, p + block->q, b->q_raw, n, width, width);
    linear_forward(s->in, p + block->k, b->k_raw, n, width, width);
    linear_forward(s->in, p + block->v, b->v, n, width, width);
    head_norm(t, block->q_norm, b->q_raw, b->q, b->q_stats);
    head_norm(t, block->k_norm, b->k_raw, b->k, b->k_stats);
    rope(&t->heads, t->cosine, t->sine, 1, b->q);
    rope(&t->heads, t->cosine, t->sine, 1, b->k);
    attention_forward(&t->heads, b->q, b->k, b->v, b->weights, b->mixed);
    linear_forward(b->mixed, p + block->o, s->raw, n, width, width);
}

static void feed_forward(const struct transformer *t, const struct block *block, struct block_pass *b)
{
    const struct sublayer_pass *s = &b->sublayer[FEED_FORWARD];
    size_t n = t->tokens, width = t->config.width, hidden = t->config.hidden;
    linear_forward(s->in, t->parameters + block->gate, b->gate, n, width, hidden);
    linear_forward(s->in, t->parameters + block->up, b->up, n, width, hidden);
    swiglu_forward(b->gate, b->up, b->active, n * hidden);
    linear_forward(b->active, t->parameters + block->down, s->raw, n, hidden, width);
}

static void sublayer_forward(const struct transformer *t, size_t i, enum sublayer which, real *next)
{
    const struct block *block = &t->layout.blocks[i];
    struct sublayer_pass *s = &t->blocks[i].sublayer[which];
    const struct gain *norm = block->norm[which];
    stream_norm(t, norm[BEFORE], s->stream, s->in, s->stats[BEFORE]);
    if (which == ATTENTION)
        attention(t, block, &t->blocks[i]);
    else
        feed_forward(t, block, &t->blocks[i]);
    stream_norm(t, norm[AFTER], s->raw, s->out, s->stats[AFTER]);
    for (size_t k = 0; k < t->tokens * t->config.width; k++)
        s->sum[k] = s->stream[k] + s->out[k];
    stream_norm(t, norm[ON_SUM], s->sum, next, s->stats[ON_SUM]);
}

void transformer_forward(struct transformer *t, const uint8_t *inputs)
{
    size_t width = t->config.width, layers = t->config.layers;
    const real *embedding = t->parameters + t->layout.embedding;
    for (size_t k = 0; k < t->tokens; k++)
        memcpy(t->blocks[0].sublayer[ATTENTION].stream + k * width, embedding + inputs[k] * width,
               width * sizeof(real));
    for (size_t i = 0; i < layers; i++) {
        real *end = i + 1 < layers ? t->blocks[i + 1].sublayer[ATTENTION].stream : t->last;
        sublayer_forward(t, i, ATTENTION, t->blocks[i].sublayer[FEED_FORWARD].stream);
        sublayer_forward(t, i, FEED_FORWARD, end);
    }
    stream_norm(t, t->layout.last_norm, t->last, t->normed, t->last_stats);
    linear_forward(t->normed, embedding, t->logits, t->tokens, width, VOCABULARY);
}

double transformer_loss(struct transformer *t, const uint8_t *targets)
{
    return cross_entropy(t->logits, targets, t->tokens, VOCABULARY, 0);
}

/* ---- backward: d_out holds the gradient of f's output and d_in receives that of its input ---------- */

static void attention_gradient(const struct transformer *t, const struct block *block,
                               const struct block_pass *b, const real *d_out)
{
    const real *in = b->sublayer[ATTENTION].in, *p = t->parameters;
    size_t n = t->tokens, width = t->config.width;
    real *g = t->gradients;
    linear_backward(b->mixed, p + block->o, d_out, t->dmixed, g + block->o, n, width, width, 0);
    attention_backward(&t->heads, b->q, b->k, b->v, b->weights, t->dmixed, t->dq, t->dk, t->dv, t->dw);
    rope(&t->heads, t->cosine, t->sine, -1, t->dq);
    rope(&t->heads, t->cosine, t->sine, -1, t->dk);
    head_norm_backward(t, block->q_norm, b->q_raw, b->q_stats, t->dq);
    head_norm_backward(t, block->k_norm, b->k_raw, b->k_stats, t->dk);
    linear_backward(in, p + block->q, t->dq, t->d_in, g + block->q, n, width, width, 0);
    linear_backward(in, p + block->k, t->dk, t->d_in, g + block->k, n, width, width, 1);
    linear_backward(in, p + block->v, t->dv, t->d_in, g + block->v, n, width, width, 1);
}

static void feed_forward_gradient(const struct transformer *t, const struct block *block,
                                  const struct block_pass *b, const real *d_out)
{
    const real *in = b->sublayer[FEED_FORWARD].in, *p = t->parameters;
    size_t n = t->tokens, width = t->config.width, hidden = t->config.hidden;
    real *g = t->gradients, *dup = t->dactive;
    linear_backward(b->active, p + block->down, d_out, t->dactive, g + block->down, n, hidden, width, 0);
    swiglu_backward(b->gate, b->up, t->dactive, t->dgate, dup, n * hidden);
    linear_backward(in, p + block->gate, t->dgate, t->d_in, g + block->gate, n, width, hidden, 0);
    linear_backward(in, p + block->up, dup, t->d_in, g + block->up, n, width, hidden, 1);
}

/* t->d: the gradient of the stream after the sublayer, then of the one before it. */
static void sublayer_backward(const struct transformer *t, size_t i, enum sublayer which)
{
    const struct block *block = &t->layout.blocks[i];
    const struct sublayer_pass *s = &t->blocks[i].sublayer[which];
    const struct gain *norm = block->norm[which];
    const real *d_out = t->d;
    if (norm[ON_SUM].weight != ABSENT)
        stream_norm_backward(t, norm[ON_SUM], s->sum, s->stats[ON_SUM], t->d, NULL, t->d);
    if (norm[AFTER].weight != ABSENT) {
        stream_norm_backward(t, norm[AFTER], s->raw, s->stats[AFTER], t->d, NULL, t->d_out);
        d_out = t->d_out;
    }
    if (which == ATTENTION)
        attention_gradient(t, block, &t->blocks[i], d_out);
    else
        feed_forward_gradient(t, block, &t->blocks[i], d_out);
    if (norm[BEFORE].weight != ABSENT) {
        stream_norm_backward(t, norm[BEFORE], s->stream, s->stats[BEFORE], t->d_in, t->d, t->d);
        return;
    }
    for (size_t k = 0; k < t->tokens * t->config.width; k++)
        t->d[k] += t->d_in[k];
}

double transformer_backward(struct transformer *t, const uint8_t *inputs, const uint8_t *targets)
{
    size_t width = t->config.width;
    real *d_embedding = t->gradients + t->layout.embedding;
    double loss = cross_entropy(t->logits, targets, t->tokens, VOCABULARY, 1);
    linear_backward(t->normed, t->parameters + t->layout.embedding, t->logits, t->d, d_embedding, t->tokens,
                    width, VOCABULARY, 0);
    if (t->layout.last_norm.weight != ABSENT)
        stream_norm_backward(t, t->layout.last_norm, t->last, t->last_stats, t->d, NULL, t->d);
    for (size_t i = t->config.layers; i-- > 0;) {
        sublayer_backward(t, i, FEED_FORWARD);
        sublayer_backward(t, i, ATTENTION);
    }
    for (size_t k = 0; k < t->tokens; k++)
        for (size_t j = 0; j < width; j++)
            d_embedding[inputs[k] * width + j] += t->d[k * width + j];
    return loss;
}
