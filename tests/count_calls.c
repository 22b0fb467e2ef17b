/* count_calls.c - one fixed call, for a counter of instructions: count_calls CASE, or without arguments the cases.
 *
 * tools/instructions.py runs it under callgrind, which collects inside of the library's function only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "truenorm.h"

enum extra { PLAIN, RESIDUAL, GATE, INT8, BACKWARD };

struct call {
    const char *name;
    tn_kind kind;
    tn_dtype dtype;
    tn_grade grade;
    size_t rows, n;
    enum extra extra;
};

static const struct call calls[] = {
    {"rms-f32-1x16", TN_RMS, TN_F32, TN_EXACT, 1, 16, PLAIN},
    {"rms-f32-256x128", TN_RMS, TN_F32, TN_EXACT, 256, 128, PLAIN},
    {"rms-f32-32x4096", TN_RMS, TN_F32, TN_EXACT, 32, 4096, PLAIN},
    {"rms-f32-fast-32x4096", TN_RMS, TN_F32, TN_FAST, 32, 4096, PLAIN},
    {"rms-bf16-32x4096", TN_RMS, TN_BF16, TN_EXACT, 32, 4096, PLAIN},
    {"rms-f16-32x4096", TN_RMS, TN_F16, TN_EXACT, 32, 4096, PLAIN},
    {"rms-f64-32x1024", TN_RMS, TN_F64, TN_EXACT, 32, 1024, PLAIN},
    {"layer-f32-32x4096", TN_LAYER, TN_F32, TN_EXACT, 32, 4096, PLAIN},
    {"layer-bf16-32x4096", TN_LAYER, TN_BF16, TN_EXACT, 32, 4096, PLAIN},
    {"add-rms-f32-32x4096", TN_RMS, TN_F32, TN_EXACT, 32, 4096, RESIDUAL},
    {"gated-bf16-32x1024", TN_RMS, TN_BF16, TN_EXACT, 32, 1024, GATE},
    {"int8-f32-32x1024", TN_RMS, TN_F32, TN_EXACT, 32, 1024, INT8},
    {"rms-f32-backward-32x768", TN_RMS, TN_F32, TN_EXACT, 32, 768, BACKWARD},
    {"layer-f32-backward-32x768", TN_LAYER, TN_F32, TN_EXACT, 32, 768, BACKWARD},
};

static void fill(void *data, tn_dtype dtype, size_t n)
{
    static const unsigned short half[2][4] = {{0x3f80, 0xbf40, 0x4010, 0x3e80},
                                              {0x3c00, 0xba00, 0x4080, 0x3400}};
    for (size_t i = 0; i < n; i++) {
        double v = (double)(i * 7 % 31) / 8 - 1.7;
        float f = (float)v;
        if (dtype == TN_F64)
            memcpy((char *)data + 8 * i, &v, 8);
        else if (dtype == TN_F32)
            memcpy((char *)data + 4 * i, &f, 4);
        else
            memcpy((char *)data + 2 * i, &half[dtype == TN_F16][i % 4], 2);
    }
}

static void *buffer(tn_dtype dtype, size_t n)
{
    void *data = aligned_alloc(64, (n * 8 + 63) / 64 * 64);
    if (!data)
        exit(2);
    fill(data, dtype, n);
    return data;
}

static tn_status run(const struct call *c)
{
    const size_t all = c->rows * c->n;
    tn_norm_desc d = tn_norm_init(c->kind, c->rows, c->n, 1e-6);
    tn_norm_io io = tn_io_init();
    d.grade = c->grade;
    io.x = tn_in_rows(buffer(c->dtype, all), c->dtype, c->n);
    io.weight = tn_in_param(buffer(c->dtype, c->n), c->dtype);
    if (c->kind == TN_LAYER)
        io.bias = tn_in_param(buffer(c->dtype, c->n), c->dtype);
    if (c->extra == BACKWARD) {
        tn_norm_grads g = tn_grads_init();
        g.dy = tn_in_rows(buffer(c->dtype, all), c->dtype, c->n);
        g.dx = tn_out_rows(buffer(c->dtype, all), c->dtype, c->n);
        g.dweight = tn_out_param(buffer(c->dtype, c->n), c->dtype);
        if (c->kind == TN_LAYER)
            g.dbias = tn_out_param(buffer(c->dtype, c->n), c->dtype);
        return tn_norm_backward(&d, &io, &g, NULL);
    }
    io.y = tn_out_rows(buffer(c->dtype, all), c->extra == INT8 ? TN_I8 : c->dtype, c->n);
    if (c->extra == RESIDUAL) {
        io.residual = tn_in_rows(buffer(c->dtype, all), c->dtype, c->n);
        io.sum = tn_out_rows(buffer(c->dtype, all), c->dtype, c->n);
    }
    if (c->extra == GATE) {
        d.gate = TN_GATE_AFTER;
        io.gate = tn_in_rows(buffer(c->dtype, all), c->dtype, c->n);
    }
    if (c->extra == INT8) {
        const tn_out scale = {buffer(TN_F32, c->rows), TN_F32, {1, 0}, 1};
        io.scale_out = scale;
    }
    return tn_norm_forward(&d, &io, NULL);
}

int main(int argc, char **argv)
{
    (void)tn_isa_name(); /* the choice of kernels is not what is counted */
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        if (argc < 2)
            printf("%s\n", calls[k].name);
        else if (strcmp(argv[1], calls[k].name) == 0)
            return run(&calls[k]) == TN_OK ? 0 : 1;
    }
    return argc < 2 ? 0 : 2;
}
