/* evaluate.c - `llama eval` and `llama logits`: what a checkpoint makes of a text. */
#include "checkpoint.h"
#include "commands.h"
#include "common.h"
#include "files.h"
#include "safetensors.h"
#include "text.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 16

static const char eval_help[] =
    "Usage: llama eval CHECKPOINT --text FILE\n"
    "Print the mean loss over the text, cut into sequences of the model's context.\n";

static const char logits_help[] =
    "Usage: llama logits CHECKPOINT --text FILE -o OUT.safetensors\n"
    "Write the array `logits` [bytes, 256] of a text no longer than the context.\n";

struct arguments {
    const char *checkpoint, *text, *output;
};

/* Returns 1 if --help was asked for. */
static int parse(struct arguments *a, int argc, char **argv)
{
    static const struct option options[] = {{"text", required_argument, NULL, 't'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "ho:", options, NULL)) != -1) {
        if (c == 'h')
            return 1;
        if (c == '?')
            exit(2); /* getopt_long has said why */
        *(c == 't' ? &a->text : &a->output) = optarg;
    }
    if (optind < argc)
        a->checkpoint = argv[optind++];
    if (optind < argc)
        fail("unexpected argument '%s'", argv[optind]);
    if (!a->checkpoint)
        fail("no checkpoint given: a folder checkpoint-STEP");
    if (!a->text)
        fail("--text is missing");
    return 0;
}

int cmd_eval(int argc, char **argv)
{
    struct arguments a = {NULL, NULL, NULL};
    if (parse(&a, argc, argv))
        return fputs(eval_help, stdout), 0;
    if (a.output)
        fail("eval writes no file; leave out --output");
    struct config config = checkpoint_config(a.checkpoint);
    struct text text = text_open(a.text, 0, config.context);
    size_t sequences = (text.size - 1) / config.context, batch = sequences < BATCH ? sequences : BATCH;
    size_t count = sequences / batch;
    blas_start(1);
    struct transformer *net = checkpoint_model(a.checkpoint, batch, 0);
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *inputs = text.bytes + i * net->tokens; /* sequences lie one after the other */
        transformer_forward(net, inputs);
        sum += transformer_loss(net, inputs + 1);
    }
    double loss = sum / (double)count;
    printf("loss %.9g nats per byte, %.4f bits per byte, over %zu of %zu bytes\n", loss, loss / log(2),
           count * net->tokens, text.size);
    transformer_free(net);
    text_close(&text);
    return 0;
}

/* Beside the place, then renamed. */
static void write_logits(const char *output, const struct transformer *net)
{
    char partial[PATH_CAPACITY];
    const struct named_array array = {"logits", net->tokens, VOCABULARY, net->logits};
    cJSON *metadata = cJSON_CreateObject();
    if (snprintf(partial, sizeof partial, "%s.partial", output) >= PATH_CAPACITY)
        fail("%.64s...: the name is too long", output);
    safetensors_write(partial, metadata, &array, 1);
    cJSON_Delete(metadata);
    if (rename(partial, output) != 0) {
        remove(partial);
        fail("%s: cannot be written", output);
    }
}

int cmd_logits(int argc, char **argv)
{
    struct arguments a = {NULL, NULL, NULL};
    if (parse(&a, argc, argv))
        return fputs(logits_help, stdout), 0;
    if (!a.output)
        fail("no output file given: -o FILE is missing");
    struct config config = checkpoint_config(a.checkpoint);
    struct text text = text_open(a.text, 0, 0);
    if (text.size > config.context)
        fail("%s: %zu bytes are more than the context of %zu", a.text, text.size, config.context);
    blas_start(1);
    struct transformer *net = checkpoint_model(a.checkpoint, 1, text.size);
    transformer_forward(net, text.bytes);
    write_logits(a.output, net);
    transformer_free(net);
    text_close(&text);
    return 0;
}
