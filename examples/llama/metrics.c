#include "metrics.h"
#include "adamw.h"
#include "common.h"
#include "files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct metrics {
    char path[PATH_CAPACITY];
    FILE *file;
};

struct metrics *metrics_open(const char *run, size_t bytes)
{
    struct metrics *m = allocate(1, sizeof *m);
    path_join(m->path, run, "metrics.jsonl");
    m->file = fopen(m->path, "ab");
    if (!m->file)
        fail("%s: %s", m->path, strerror(errno));
    if (ftell(m->file) < (long)bytes)
        fail("%s: is shorter than when the checkpoint was written", m->path);
    if (ftruncate(fileno(m->file), (off_t)bytes) != 0)
        fail("%s: %s", m->path, strerror(errno));
    return m;
}

static void put(FILE *f, const char *before, double value)
{
    if (isfinite(value))
        fprintf(f, "%s%.9g", before, value);
    else
        fprintf(f, "%snull", before);
}

/* ---- what the layers see -------------------------------------------------------------------------- */

enum quantity { IN_MEAN, IN_VARIANCE, STREAM_MEAN, STREAM_VARIANCE, QUANTITIES };

static void mean_and_variance(const real *x, size_t count, double *mean, double *variance)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i];
    *mean = sum / (double)count;
    for (size_t i = 0; i < count; i++)
        squares += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    *variance = squares / (double)count;
}

static void put_layers(FILE *f, const struct transformer *net)
{
    static const char *const names[QUANTITIES] = {"in_mean", "in_variance", "stream_mean", "stream_variance"};
    size_t count = net->tokens * net->config.width, sublayers = net->config.layers * SUBLAYERS;
    double *values[QUANTITIES];
    for (int q = 0; q < QUANTITIES; q++)
        values[q] = allocate(sublayers, sizeof(double));
    for (size_t i = 0; i < sublayers; i++) {
        const struct sublayer_pass *s = &net->blocks[i / SUBLAYERS].sublayer[i % SUBLAYERS];
        mean_and_variance(s->in, count, &values[IN_MEAN][i], &values[IN_VARIANCE][i]);
        mean_and_variance(s->stream, count, &values[STREAM_MEAN][i], &values[STREAM_VARIANCE][i]);
    }
    for (int q = 0; q < QUANTITIES; q++) {
        fprintf(f, ",\"%s\":", names[q]);
        for (size_t i = 0; i < sublayers; i++)
            put(f, i ? "," : "[", values[q][i]);
        fputc(']', f);
        free(values[q]);
    }
    fputs(",\"layer_gradient\":", f);
    for (size_t i = 0; i < net->config.layers; i++) {
        const struct block *block = &net->layout.blocks[i];
        put(f, i ? "," : "[", gradient_length(net->gradients, block->first, block->end));
    }
    fputc(']', f);
}

/* ---- lines ---------------------------------------------------------------------------------------- */

void metrics_start(struct metrics *metrics, const struct transformer *net, size_t threads)
{
    fprintf(metrics->file, "{\"parameters\":%zu,\"threads\":%zu,\"openblas\":\"%s\",\"isa\":\"%s\"}\n",
            net->layout.size, threads, openblas_get_corename(), tn_isa_name());
}

void metrics_step(struct metrics *metrics, const struct measured *m, const struct transformer *net,
                  int layers)
{
    FILE *f = metrics->file;
    fprintf(f, "{\"step\":%zu", m->step);
    put(f, ",\"loss\":", m->loss);
    put(f, ",\"rate\":", m->rate);
    put(f, ",\"gradient\":", m->gradient);
    put(f, ",\"step_s\":", m->step_seconds);
    put(f, ",\"norm_s\":", m->norm_seconds);
    put(f, ",\"tokens_per_s\":", m->tokens_per_second);
    if (layers)
        put_layers(f, net);
    fputs("}\n", f);
}

void metrics_valid(struct metrics *metrics, size_t step, double loss)
{
    fprintf(metrics->file, "{\"step\":%zu", step);
    put(metrics->file, ",\"valid\":", loss);
    fputs("}\n", metrics->file);
}

void metrics_end(struct metrics *metrics, const char *how, size_t step)
{
    fprintf(metrics->file, "{\"end\":\"%s\",\"step\":%zu}\n", how, step);
}

size_t metrics_flush(struct metrics *metrics)
{
    if (fflush(metrics->file) != 0 || fsync(fileno(metrics->file)) != 0)
        fail("%s: %s", metrics->path, strerror(errno));
    return (size_t)ftell(metrics->file);
}

void metrics_close(struct metrics *metrics)
{
    file_close(metrics->file, metrics->path);
    free(metrics);
}
