#include "progress.h"
#include "common.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 30

static bool shown;
static double drawn;

static void loss_text(const struct progress *p, char *text, size_t capacity)
{
    int used = snprintf(text, capacity, "loss %.4f", p->loss);
    if (!isnan(p->valid))
        snprintf(text + used, capacity - (size_t)used, "  valid %.4f", p->valid);
}

void progress_bar(const struct progress *p)
{
    double now = seconds();
    if (!isatty(STDERR_FILENO) || now - drawn < 0.1)
        return;
    drawn = now;
    shown = true;
    size_t filled = p->step * WIDTH / p->steps;
    char bar[WIDTH + 1] = "", loss[64];
    memset(bar, '#', filled);
    memset(bar + filled, '-', WIDTH - filled);
    loss_text(p, loss, sizeof loss);
    fprintf(stderr, "\r[%s] %zu/%zu  %s  %.0f tokens/s\x1b[K", bar, p->step, p->steps, loss,
            p->tokens_per_second);
    fflush(stderr);
}

void progress_line(const struct progress *p)
{
    if (isatty(STDOUT_FILENO))
        return;
    char loss[64];
    loss_text(p, loss, sizeof loss);
    printf("step %zu/%zu  %s  %.0f tokens/s\n", p->step, p->steps, loss, p->tokens_per_second);
    fflush(stdout);
}

void progress_clear(void)
{
    if (shown)
        fputs("\r\x1b[K", stderr);
    shown = false;
}
