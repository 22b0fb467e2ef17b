/* A progress bar on stderr: only on a terminal, and only once the work has taken half a second. */
#ifndef TRUENORM_CLI_PROGRESS_H
#define TRUENORM_CLI_PROGRESS_H

#include <stddef.h>

void progress_start(size_t total_bytes);
void progress_update(size_t done_bytes);

/* Takes the bar off the screen, if it is there. */
void progress_clear(void);

#endif
