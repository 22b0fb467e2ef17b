#include "cli.h"
#include "output.h"
#include "progress.h"

#include <truenorm.h>

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fail(const char *format, ...)
{
    char text[2 * PATH_MAX + 512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?'; /* a file name may hold a line break */
    progress_clear();
    output_discard();
    fprintf(stderr, "truenorm: %s\n", text);
    exit(2);
}

double parse_real(const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || isnan(value))
        fail("%s: '%s' is not a number", option, text);
    return value;
}

size_t parse_count(const char *option, const char *text, size_t least, size_t most)
{
    size_t value = 0, digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits])
        fail("%s: '%s' is not a whole number", option, text);
    for (size_t i = 0; i < digits; i++) {
        size_t digit = (size_t)(text[i] - '0');
        if (value > (SIZE_MAX - digit) / 10)
            fail("%s: %s is too large", option, text);
        value = value * 10 + digit;
    }
    if (value < least || value > most)
        fail("%s: %s is not between %zu and %zu", option, text, least, most);
    return value;
}

int parse_choice(const char *option, const char *text, const struct choice *choices, size_t count)
{
    char names[256] = "";
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, choices[i].name) == 0)
            return choices[i].value;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", choices[i].name);
    }
    fail("%s: '%s' is none of %s", option, text, names);
}

int parse_threads(const char *text)
{
    int threads = (int)parse_count("--threads", text, 1, 4096);
    omp_set_num_threads(threads);
    return threads;
}

static const char help[] = "Usage: truenorm COMMAND [OPTION]...\n"
                           "Normalization layers (RMSNorm, LayerNorm, L2) on the CPU.\n"
                           "\n"
                           "Commands:\n"
                           "  norm       normalise the last axis of an array in a .npy file\n"
                           "  simplenet  run the small network of a Linear and a Llama RMSNorm layer\n"
                           "  bench      time the layers next to memcpy\n"
                           "  info       show the version, the processor and the instruction sets\n"
                           "\n"
                           "  --help     print this; 'truenorm COMMAND --help' has a command's options\n"
                           "  --version  print the version\n"
                           "\n"
                           "Exit status: 0, or 2 with one line on standard error.\n"
                           "The environment variable TN_ISA chooses the instruction set.\n";

static int run(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*command)(int, char **);
    } commands[] = {
        {"norm", cmd_norm}, {"simplenet", cmd_simplenet}, {"bench", cmd_bench}, {"info", cmd_info}};
    const char *word = argc > 1 ? argv[1] : NULL;

    if (!word)
        fail("no command given; see 'truenorm --help'");
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return fputs(help, stdout), 0;
    if (strcmp(word, "--version") == 0)
        return printf("truenorm %s\n", tn_version()), 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(word, commands[i].name) == 0) {
            argv[1] = argv[0];
            return commands[i].command(argc - 1, argv + 1);
        }
    }
    fail("unknown %s '%s'; see 'truenorm --help'", word[0] == '-' ? "option" : "command", word);
}

int main(int argc, char **argv)
{
    static char name[] = "truenorm"; /* getopt_long starts its messages with it, whatever the path was */
    if (argc > 0)
        argv[0] = name;
    int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        fail("standard output cannot be written");
    return status;
}
