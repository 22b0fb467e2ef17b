/* train_mlp.c - a small net with a trainable norm, fitted to 8 x 8 images of digits.
 *
 *     train_mlp [rms | layer | none] [DIGITS] [EPOCHS]
 *
 *     hidden = images W1 + b1;    normed = norm(hidden) * gain + bias;    scores = relu(normed) W2 + b2
 *
 * DIGITS is examples/data/digits.npy. Prints the loss of every epoch, the accuracy on images it was not shown, and
 * what became of the gain. Same text for any instruction set and number of threads: every sum has one order, here as
 * in the library. With OpenMP the norm runs on its threads. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <truenorm.h>

enum {
    PIXELS = 64,
    HIDDEN = 384,
    CLASSES = 10,
    BATCH = 128,
    IMAGES = 1797,
    TRAINED_ON = 1413,
    NPY_HEAD = 128
};
enum { UNITS = BATCH * HIDDEN };

struct net {
    float w1[HIDDEN * PIXELS], b1[HIDDEN], gain[HIDDEN], bias[HIDDEN]; /* w[out][in] */
    float w2[CLASSES * HIDDEN], b2[CLASSES];
};

/* One batch on its way through the net, and its gradients on their way back. */
struct pass {
    float x[BATCH * PIXELS], hidden[UNITS], normed[UNITS], active[UNITS], scores[BATCH * CLASSES];
    float dhidden[UNITS], dnormed[UNITS], dscores[BATCH * CLASSES];
    uint8_t digit[BATCH];
};

/* ---- the norm: all that truenorm is called for ---------------------------------------------------- */

struct norm {
    tn_norm_desc desc;
    const tn_executor *executor; /* NULL: the calling thread */
    int on;
};

static void norm_forward(const struct norm *norm, const struct net *net, struct pass *p)
{
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(p->hidden, TN_F32, HIDDEN);
    io.weight = tn_in_param(net->gain, TN_F32);
    io.bias = tn_in_param(net->bias, TN_F32);
    io.y = tn_out_rows(p->normed, TN_F32, HIDDEN);
    if (!norm->on)
        memcpy(p->normed, p->hidden, sizeof p->normed);
    else if (tn_norm_forward(&norm->desc, &io, norm->executor) != TN_OK)
        exit(2);
}

static void norm_backward(const struct norm *norm, const struct net *net, struct pass *p, struct net *d)
{
    tn_norm_io io = tn_io_init();
    tn_norm_grads g = tn_grads_init();
    io.x = tn_in_rows(p->hidden, TN_F32, HIDDEN);
    io.weight = tn_in_param(net->gain, TN_F32);
    io.bias = tn_in_param(net->bias, TN_F32);
    g.dy = tn_in_rows(p->dnormed, TN_F32, HIDDEN);
    g.dx = tn_out_rows(p->dhidden, TN_F32, HIDDEN);
    g.dweight = tn_out_param(d->gain, TN_F32);
    g.dbias = tn_out_param(d->bias, TN_F32);
    if (!norm->on)
        memcpy(p->dhidden, p->dnormed, sizeof p->dhidden);
    else if (tn_norm_backward(&norm->desc, &io, &g, norm->executor) != TN_OK)
        exit(2);
}

/* ---- the rest of the net -------------------------------------------------------------------------- */

static void linear_forward(const float *w, const float *b, const float *x, float *y, int in, int out)
{
    for (int row = 0; row < BATCH; row++)
        for (int o = 0; o < out; o++) {
            double sum = (double)b[o];
            for (int i = 0; i < in; i++)
                sum += (double)w[o * in + i] * (double)x[row * in + i];
            y[row * out + o] = (float)sum;
        }
}

/* dx may be NULL. */
static void linear_backward(const float *w, float *dw, float *db, const float *x, const float *dy, float *dx,
                            int in, int out)
{
    double sum[HIDDEN];
    for (int row = 0; row < BATCH && dx; row++) {
        memset(sum, 0, sizeof sum);
        for (int o = 0; o < out; o++)
            for (int i = 0; i < in; i++)
                sum[i] += (double)dy[row * out + o] * (double)w[o * in + i];
        for (int i = 0; i < in; i++)
            dx[row * in + i] = (float)sum[i];
    }
    for (int o = 0; o < out; o++) {
        double bias = 0;
        memset(sum, 0, sizeof sum);
        for (int row = 0; row < BATCH; row++) {
            bias += (double)dy[row * out + o];
            for (int i = 0; i < in; i++)
                sum[i] += (double)dy[row * out + o] * (double)x[row * in + i];
        }
        db[o] = (float)bias;
        for (int i = 0; i < in; i++)
            dw[o * in + i] = (float)sum[i];
    }
}

static void forward(const struct norm *norm, const struct net *net, struct pass *p)
{
    linear_forward(net->w1, net->b1, p->x, p->hidden, PIXELS, HIDDEN);
    norm_forward(norm, net, p);
    for (int i = 0; i < UNITS; i++)
        p->active[i] = p->normed[i] > 0 ? p->normed[i] : 0;
    linear_forward(net->w2, net->b2, p->active, p->scores, HIDDEN, CLASSES);
}

/* Cross-entropy of the softmax, the mean over the batch, and its gradient. */
static double loss_of(struct pass *p)
{
    double loss = 0;
    for (int row = 0; row < BATCH; row++) {
        const float *score = p->scores + row * CLASSES;
        double sum = 0, digit = (double)score[p->digit[row]];
        for (int c = 0; c < CLASSES; c++)
            sum += exp((double)score[c] - digit);
        for (int c = 0; c < CLASSES; c++)
            p->dscores[row * CLASSES + c] =
                (float)((exp((double)score[c] - digit) / sum - (c == p->digit[row])) / BATCH);
        loss += log(sum) / BATCH;
    }
    return loss;
}

static void train_step(const struct norm *norm, struct net *net, struct pass *p, double rate)
{
    static struct net d;
    linear_backward(net->w2, d.w2, d.b2, p->active, p->dscores, p->dnormed, HIDDEN, CLASSES);
    for (int i = 0; i < UNITS; i++)
        p->dnormed[i] = p->normed[i] > 0 ? p->dnormed[i] : 0;
    norm_backward(norm, net, p, &d);
    linear_backward(net->w1, d.w1, d.b1, p->x, p->dhidden, NULL, PIXELS, HIDDEN);
    float *value = (float *)net;
    const float *slope = (const float *)&d; /* both are one block of floats */
    for (size_t i = 0; i < sizeof d / sizeof(float); i++)
        value[i] = (float)((double)value[i] - rate * (double)slope[i]);
}

/* ---- data, and the loop --------------------------------------------------------------------------- */

static uint8_t images[IMAGES][PIXELS + 1]; /* pixels 0 ... 16, then the digit */
static int order[IMAGES];

static uint32_t random_below(uint32_t limit)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 32) * limit >> 32);
}

static void fetch(struct pass *p, int first)
{
    for (int row = 0; row < BATCH; row++) {
        for (int i = 0; i < PIXELS; i++)
            p->x[row * PIXELS + i] = (float)images[order[first + row]][i] / 16;
        p->digit[row] = images[order[first + row]][PIXELS];
    }
}

static void start(struct net *net, const char *path)
{
    char head[NPY_HEAD];
    FILE *f = fopen(path, "rb");
    if (!f || fread(head, 1, NPY_HEAD, f) != NPY_HEAD || fread(images, PIXELS + 1, IMAGES, f) != IMAGES) {
        fprintf(stderr, "train_mlp: %s cannot be read\n", path);
        exit(2);
    }
    fclose(f);
    for (int i = 0; i < HIDDEN * PIXELS; i++)
        net->w1[i] = ((float)random_below(1 << 16) - 32768) / (32768 * 8);
    for (int i = 0; i < HIDDEN * CLASSES; i++)
        net->w2[i] = ((float)random_below(1 << 16) - 32768) / (32768 * 20);
    for (int i = 0; i < HIDDEN; i++)
        net->gain[i] = 1;
    for (int i = 0; i < IMAGES; i++)
        order[i] = i;
}

static double train_epoch(const struct norm *norm, struct net *net, struct pass *p)
{
    double loss = 0;
    for (int i = TRAINED_ON - 1; i > 0; i--) { /* the images after these are for the test */
        int j = (int)random_below((uint32_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int at = 0; at + BATCH <= TRAINED_ON; at += BATCH) {
        fetch(p, at);
        forward(norm, net, p);
        loss += loss_of(p) / (TRAINED_ON / BATCH);
        train_step(norm, net, p, 0.25);
    }
    return loss;
}

static double accuracy(const struct norm *norm, const struct net *net, struct pass *p)
{
    int right = 0;
    for (int at = TRAINED_ON; at + BATCH <= IMAGES; at += BATCH) {
        fetch(p, at);
        forward(norm, net, p);
        for (int row = 0; row < BATCH; row++) {
            const float *score = p->scores + row * CLASSES;
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                best = score[c] > score[best] ? c : best;
            right += best == p->digit[row];
        }
    }
    return (double)right / (IMAGES - TRAINED_ON);
}

int main(int argc, char **argv)
{
    static struct net net;
    static struct pass pass;
    const char *kind = argc > 1 ? argv[1] : "rms";
    struct norm norm = {.on = strcmp(kind, "none") != 0};
    norm.desc = tn_norm_init(strcmp(kind, "layer") == 0 ? TN_LAYER : TN_RMS, BATCH, HIDDEN, 1e-6);
#ifdef _OPENMP
    const tn_executor openmp = tn_openmp();
    norm.executor = &openmp;
#endif
    start(&net, argc > 2 ? argv[2] : "examples/data/digits.npy");
    for (int epoch = 1; epoch <= (argc > 3 ? atoi(argv[3]) : 15); epoch++)
        printf("epoch %2d  loss %.9f\n", epoch, train_epoch(&norm, &net, &pass));
    double low = 9, high = -9, mean = 0;
    for (int i = 0; i < HIDDEN; i++) {
        low = fmin(low, (double)net.gain[i]);
        high = fmax(high, (double)net.gain[i]);
        mean += (double)net.gain[i] / HIDDEN;
    }
    printf("accuracy %.4f on %d images it was not shown\n", accuracy(&norm, &net, &pass),
           IMAGES - TRAINED_ON);
    printf("gain: min %.9f, mean %.9f, max %.9f\n", low, mean, high);
    return 0;
}
