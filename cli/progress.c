#include "progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 30

static bool terminal, shown;
static double started, drawn;
static size_t total;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_start(size_t total_bytes)
{
    terminal = isatty(STDERR_FILENO);
    total = total_bytes;
    started = now();
    drawn = started + 0.4; /* the first bar comes 0.1 s after it */
}

void progress_update(size_t done_bytes)
{
    if (!terminal || total == 0)
        return;
    double t = now();
    if (t - drawn < 0.1)
        return;
    drawn = t;
    shown = true;
    double part = (double)done_bytes / (double)total;
    int filled = (int)(part * WIDTH);
    char bar[WIDTH + 1] = "";
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '-', (size_t)(WIDTH - filled));
    fprintf(stderr, "\r[%s] %3d%%  %.2f GB/s", bar, (int)(part * 100),
            1e-9 * (double)done_bytes / (t - started));
    fflush(stderr);
}

void progress_clear(void)
{
    if (shown)
        fputs("\r\x1b[K", stderr);
    shown = false;
}
