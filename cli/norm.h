/* `truenorm norm`: what the options say, and the work on the files. */
#ifndef TRUENORM_CLI_NORM_H
#define TRUENORM_CLI_NORM_H

#include <truenorm.h>

#include <stdbool.h>

struct norm_options {
    const char *x, *y, *weight, *bias, *residual, *sum, *gate, *scale_out; /* paths; NULL: not given */
    tn_norm_desc desc;                                                     /* all but the sizes */
    tn_dtype out_dtype; /* TN_NONE: by the cast and the inputs */
    double scale;       /* 0: not given */
    int threads;        /* 0: not given */
    bool bf16;          /* two-byte integers are bf16 */
};

/* Reads the inputs, writes the outputs; anything wrong ends in fail(). */
void norm_files(const struct norm_options *o);

#endif
