/* commands.h - the commands of the program. Each gets argv from its own name on and returns the exit status. */
#ifndef LLAMA_COMMANDS_H
#define LLAMA_COMMANDS_H

#include <stddef.h>

int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_gradcheck(int argc, char **argv);

/* Sets the threads of OpenBLAS, and checks one product: an old build may compute wrong ones on a new processor. */
void blas_start(size_t threads);

#endif
