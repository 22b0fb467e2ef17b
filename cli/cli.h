/* What the commands share. */
#ifndef TRUENORM_CLI_H
#define TRUENORM_CLI_H

#include <stddef.h>

/* Prints one line "truenorm: ..." on stderr, removes unfinished output files and exits with status 2. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

struct choice {
    const char *name;
    int value;
};

/* The values of options; anything malformed ends in fail(). */
double parse_real(const char *option, const char *text);
size_t parse_count(const char *option, const char *text, size_t least, size_t most);
int parse_choice(const char *option, const char *text, const struct choice *choices, size_t count);
int parse_threads(const char *text);

/* The processor's model name, or what uname calls the machine. */
void cpu_model(char *buf, size_t capacity);

/* Each gets argv from its own name on and returns the exit status. */
int cmd_simplenet(int argc, char **argv);
int cmd_norm(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
