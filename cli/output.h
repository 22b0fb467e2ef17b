/* Output files: written beside the final name as a temporary file, renamed when all is well. */
#ifndef TRUENORM_CLI_OUTPUT_H
#define TRUENORM_CLI_OUTPUT_H

#include <stddef.h>

/* Creates a temporary file of `size` (> 0) bytes in the directory of `path` and maps it for writing. From
 * here on SIGINT, SIGTERM, SIGHUP, SIGQUIT and a full disk remove it. At most OUTPUT_MAX at a time. */
#define OUTPUT_MAX 3
unsigned char *output_create(const char *path, size_t size);

/* Puts every created file under its final name. */
void output_commit(void);

/* Removes every file that is not committed. */
void output_discard(void);

#endif
