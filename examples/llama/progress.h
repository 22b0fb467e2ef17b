/* progress.h - a bar on stderr if that is a terminal; a line for each logged step on stdout if that is none. */
#ifndef LLAMA_PROGRESS_H
#define LLAMA_PROGRESS_H

#include <stddef.h>

struct progress {
    size_t step, steps;
    double loss, valid; /* valid: the last validation loss, NaN before the first */
    double tokens_per_second;
};

void progress_bar(const struct progress *p);
void progress_line(const struct progress *p);

/* Takes the bar off the screen, if it is there. */
void progress_clear(void);

#endif
