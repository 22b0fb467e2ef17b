/* main.c - llama: train and look at small Llamas on bytes. */
#include "commands.h"
#include "common.h"
#include "real.h"

#include <stdio.h>
#include <string.h>

static const char help[] = "Usage: llama COMMAND [OPTION]...\n"
                           "A small decoder-only Transformer on bytes, with truenorm's norm layers.\n"
                           "\n"
                           "Commands:\n"
                           "  train      train a model, or go on with it\n"
                           "  eval       print the loss of a checkpoint on a text\n"
                           "  logits     write the logits of a checkpoint on a short text\n"
                           "  gradcheck  compare gradients with finite differences\n"
                           "\n"
                           "'llama COMMAND --help' has a command's options.\n";

static double pattern(size_t i)
{
    return (double)((i * 7919) % 101) / 50 - 1;
}

void blas_start(size_t threads)
{
    enum { M = 70, N = 65, K = 33 };
    static real a[M * K], b[N * K], c[M * N];
    openblas_set_num_threads((int)threads);
    for (size_t i = 0; i < M * K; i++)
        a[i] = (real)pattern(i);
    for (size_t i = 0; i < N * K; i++)
        b[i] = (real)pattern(i + 13);
    real_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, b, K, 0, c, N);
    for (size_t i = 0; i < M * N; i++) {
        double sum = 0;
        for (size_t k = 0; k < K; k++)
            sum += (double)a[i / N * K + k] * (double)b[i % N * K + k];
        if (!(fabs(sum - (double)c[i]) < 1e-4))
            fail("OpenBLAS computes wrong products with its kernels for %s; set OPENBLAS_CORETYPE to another "
                 "processor",
                 openblas_get_corename());
    }
}

static int run(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*command)(int, char **);
    } commands[] = {
        {"train", cmd_train}, {"eval", cmd_eval}, {"logits", cmd_logits}, {"gradcheck", cmd_gradcheck}};
    const char *word = argc > 1 ? argv[1] : NULL;

    if (!word)
        fail("no command given; see 'llama --help'");
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return fputs(help, stdout), 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(word, commands[i].name) == 0) {
            argv[1] = argv[0];
            return commands[i].command(argc - 1, argv + 1);
        }
    }
    fail("unknown %s '%s'; see 'llama --help'", word[0] == '-' ? "option" : "command", word);
}

int main(int argc, char **argv)
{
    static char name[] = "llama"; /* getopt_long starts its messages with it, whatever the path was */
    if (argc > 0)
        argv[0] = name;
    int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        fail("standard output cannot be written");
    return status;
}
