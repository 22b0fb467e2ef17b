/* train.c - the training loop: batches, steps, measurements, checkpoints. */
#include "adamw.h"
#include "checkpoint.h"
#include "commands.h"
#include "common.h"
#include "files.h"
#include "metrics.h"
#include "norm.h"
#include "progress.h"
#include "text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] = "Usage: llama train --text FILE --out DIR [OPTION]...\n"
                           "       llama train --resume DIR\n"
                           "Train a model on the bytes of a file. Ctrl-C writes a checkpoint and stops.\n"
                           "\n";

struct run {
    struct training training;
    const char *folder;
    struct text text, valid;
    struct metrics *metrics;
    uint8_t *inputs, *targets;
    size_t saved; /* the step of the last checkpoint */
    struct progress progress;
};

/* ---- Ctrl-C --------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

/* The second signal acts as if there were no handler. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, old;
    const int numbers[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < 2; i++) {
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN)
            continue; /* as under nohup */
        sigaction(numbers[i], &action, NULL);
    }
}

/* ---- a new run, or one that goes on --------------------------------------------------------------- */

static void check_new(const struct options *o)
{
    char path[PATH_CAPACITY];
    struct stat st;
    if (!o->text)
        fail("--text is missing: a file to train on");
    if (!o->out)
        fail("--out is missing: a folder for metrics and checkpoints");
    path_join(path, o->out, "metrics.jsonl");
    if (stat(path, &st) == 0 || checkpoint_exists(o->out))
        fail("%s: holds a run already; go on with it by --resume, or remove it", o->out);
}

/* So that the run can go on from another folder. */
static void make_absolute(char **path)
{
    char *absolute = *path ? realpath(*path, NULL) : NULL;
    if (*path && !absolute)
        fail("%s: %s", *path, strerror(errno));
    free(*path);
    *path = absolute;
}

static void start(struct run *r)
{
    struct training *t = &r->training;
    struct options *o = &t->options;
    r->folder = o->resume ? o->resume : o->out;
    if (o->resume) {
        checkpoint_options(o->resume, t);
    } else {
        check_new(o);
        make_absolute(&o->text);
        make_absolute(&o->valid);
    }
    r->text = text_open(o->text, o->text_bytes, o->config.context);
    if (o->valid)
        r->valid = text_open(o->valid, 0, o->config.context);
    blas_start(o->threads);

    t->net = transformer_new(&o->config, o->batch, o->config.context);
    t->m = allocate(t->net->layout.size, sizeof(real));
    t->v = allocate(t->net->layout.size, sizeof(real));
    r->inputs = allocate(t->net->tokens, 1);
    r->targets = allocate(t->net->tokens, 1);
    if (o->resume)
        checkpoint_numbers(o->resume, t);
    else
        parameters_init(&t->net->layout, o->gain, o->seed, t->net->parameters);
    if (!o->resume)
        folder_make(r->folder);
    if (!o->resume && o->checkpoints)
        checkpoint_write(r->folder, t); /* of step 0: whatever comes, --resume works */
    r->saved = t->step;
    r->metrics = metrics_open(r->folder, t->metrics_bytes);
    if (t->metrics_bytes == 0)
        metrics_start(r->metrics, t->net, o->threads);
    r->progress = (struct progress){t->step, o->steps, NAN, NAN, 0};
}

static void finish(struct run *r)
{
    metrics_close(r->metrics);
    text_close(&r->text);
    text_close(&r->valid);
    transformer_free(r->training.net);
    free(r->training.m);
    free(r->training.v);
    free(r->inputs);
    free(r->targets);
}

/* ---- one step ------------------------------------------------------------------------------------- */

static double rate_of(const struct options *o, size_t step)
{
    if (step <= o->warmup)
        return o->rate * (double)step / (double)o->warmup;
    double done = (double)(step - o->warmup) / (double)(o->steps > o->warmup ? o->steps - o->warmup : 1);
    return o->rate * (0.55 + 0.45 * cos(3.141592653589793 * done));
}

static double valid_loss(struct run *r)
{
    const struct options *o = &r->training.options;
    double sum = 0;
    for (size_t i = 0; i < o->valid_batches; i++) {
        text_part(&r->valid, i, o->valid_batches, o->batch, o->config.context, r->inputs, r->targets);
        transformer_forward(r->training.net, r->inputs);
        sum += transformer_loss(r->training.net, r->targets);
    }
    return sum / (double)o->valid_batches;
}

/* Forward, backward, and the update unless the loss is no number. */
static struct measured train_step(struct run *r)
{
    struct training *t = &r->training;
    struct transformer *net = t->net;
    const struct options *o = &t->options;
    struct measured m = {.step = t->step + 1, .rate = rate_of(o, t->step + 1)};
    double started = seconds(), norms = norm_seconds();
    text_batch(&r->text, o->seed, m.step, o->batch, o->config.context, r->inputs, r->targets);
    transformer_forward(net, r->inputs);
    m.loss = transformer_backward(net, r->inputs, r->targets);
    m.gradient = gradient_length(net->gradients, 0, net->layout.size);
    double scale = o->clip > 0 && m.gradient > o->clip ? o->clip / m.gradient : 1;
    if (isfinite(m.loss))
        adamw(&net->layout, m.step, m.rate, o->decay, scale, net->gradients, t->m, t->v, net->parameters);
    m.step_seconds = seconds() - started;
    m.norm_seconds = norm_seconds() - norms;
    m.tokens_per_second = (double)net->tokens / m.step_seconds;
    return m;
}

static bool due(size_t step, size_t every, size_t last)
{
    return step == last || (every > 0 && step % every == 0);
}

static void record(struct run *r, const struct measured *m)
{
    const struct options *o = &r->training.options;
    struct progress *p = &r->progress;
    bool log = m->step == 1 || due(m->step, o->log_every, o->steps) || !isfinite(m->loss);
    metrics_step(r->metrics, m, r->training.net, log);
    p->step = m->step;
    p->loss = m->loss;
    p->tokens_per_second = m->tokens_per_second;
    if (o->valid && isfinite(m->loss) && due(m->step, o->valid_every, o->steps)) {
        p->valid = valid_loss(r); /* after metrics_step: it overwrites what the layers saw */
        metrics_valid(r->metrics, m->step, p->valid);
    }
    progress_bar(p);
    if (log)
        progress_line(p);
}

static void save(struct run *r)
{
    struct training *t = &r->training;
    if (r->saved == t->step || !t->options.checkpoints)
        return;
    t->metrics_bytes = metrics_flush(r->metrics);
    checkpoint_write(r->folder, t);
    r->saved = t->step;
}

/* Returns how the run ended. */
static const char *loop(struct run *r)
{
    struct training *t = &r->training;
    while (t->step < t->options.steps) {
        struct measured m = train_step(r);
        record(r, &m);
        if (!isfinite(m.loss))
            return "diverged";
        t->step = m.step;
        if (stop_signal)
            return "interrupted";
        if (t->options.save_every && t->step % t->options.save_every == 0)
            save(r);
    }
    return "finished";
}

int cmd_train(int argc, char **argv)
{
    struct run r = {.saved = 0};
    struct training *t = &r.training;
    options_init(&t->options);
    if (options_parse(&t->options, argc, argv)) {
        fputs(help, stdout);
        options_help();
        fputs("\nExit status: 0; 3 if the loss became infinite or no number; 2 with one line on standard "
              "error.\n",
              stdout);
        return 0;
    }
    start(&r);
    catch_signals();
    const char *end = loop(&r);
    size_t step = t->step;
    bool diverged = strcmp(end, "diverged") == 0;
    if (!diverged)
        save(&r); /* a checkpoint of NaN would be of no use */
    metrics_end(r.metrics, end, step);
    finish(&r);
    progress_clear();
    if (stop_signal && !diverged && step < t->options.steps) {
        char rest[PATH_CAPACITY + 64] = ", with no checkpoint";
        if (t->options.checkpoints)
            snprintf(rest, sizeof rest, "; 'llama train --resume %s' goes on", r.folder);
        fprintf(stderr, "llama: interrupted after step %zu%s\n", step, rest);
        raise(stop_signal); /* its handler is gone: the shell sees what ended the program */
    }
    if (diverged)
        printf("diverged in step %zu: the loss is not finite\n", step + 1);
    options_free(&t->options);
    return diverged ? 3 : 0;
}
