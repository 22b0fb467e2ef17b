#include "ops.h"

/* c = alpha a b + beta c over row-major views; `ta` and `tb` say which are transposed. */
static void product(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k, real alpha,
                    const real *a, size_t lda, const real *b, size_t ldb, real beta, real *c, size_t ldc)
{
    real_gemm(CblasRowMajor, ta, tb, (blasint)m, (blasint)n, (blasint)k, alpha, a, (blasint)lda, b,
              (blasint)ldb, beta, c, (blasint)ldc);
}

void linear_forward(const real *x, const real *w, real *y, size_t rows, size_t in, size_t out)
{
    product(CblasNoTrans, CblasTrans, rows, out, in, 1, x, in, w, in, 0, y, out);
}

void linear_backward(const real *x, const real *w, const real *dy, real *dx, real *dw, size_t rows, size_t in,
                     size_t out, int add_to_dx)
{
    product(CblasNoTrans, CblasNoTrans, rows, in, out, 1, dy, out, w, in, add_to_dx ? 1 : 0, dx, in);
    product(CblasTrans, CblasNoTrans, out, in, rows, 1, dy, out, x, in, 0, dw, in);
}

/* ---- rotary positions ----------------------------------------------------------------------------- */

void rope_table(const struct heads *h, double theta, real *cosine, real *sine)
{
    size_t half = h->size / 2;
    for (size_t t = 0; t < h->length; t++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)t * pow(theta, -2 * (double)i / (double)h->size);
            cosine[t * half + i] = (real)cos(angle);
            sine[t * half + i] = (real)sin(angle);
        }
    }
}

void rope(const struct heads *h, const real *cosine, const real *sine, int direction, real *x)
{
    size_t half = h->size / 2;
    real sign = (real)direction;
    for (size_t row = 0; row < h->batch * h->length; row++) {
        const real *c = cosine + row % h->length * half, *s = sine + row % h->length * half;
        for (size_t head = 0; head < h->heads; head++, x += h->size) {
            for (size_t i = 0; i < half; i++) {
                real a = x[i], b = x[i + half];
                x[i] = a * c[i] - b * s[i] * sign;
                x[i + half] = b * c[i] + a * s[i] * sign;
            }
        }
    }
}

/* ---- attention ------------------------------------------------------------------------------------ */

/* Row i sees the first i + 1 elements; the others become 0. */
static void causal_softmax(real *scores, size_t length)
{
    for (size_t i = 0; i < length; i++, scores += length) {
        real largest = scores[0], sum = 0;
        for (size_t j = 1; j <= i; j++)
            largest = scores[j] > largest ? scores[j] : largest;
        for (size_t j = 0; j <= i; j++) {
            scores[j] = real_exp(scores[j] - largest);
            sum += scores[j];
        }
        for (size_t j = 0; j < length; j++)
            scores[j] = j <= i ? scores[j] / sum : 0;
    }
}

/* dscores = weights * (dweights - sum(dweights * weights)), in place. */
static void softmax_backward(const real *weights, real *d, size_t length)
{
    for (size_t i = 0; i < length; i++, weights += length, d += length) {
        real sum = 0;
        for (size_t j = 0; j <= i; j++)
            sum += d[j] * weights[j];
        for (size_t j = 0; j < length; j++)
            d[j] = j <= i ? weights[j] * (d[j] - sum) : 0;
    }
}

void attention_forward(const struct heads *h, const real *q, const real *k, const real *v, real *weights,
                       real *mixed)
{
    size_t length = h->length, size = h->size, width = h->heads * size;
    real scale = 1 / real_sqrt((real)size);
    for (size_t i = 0; i < h->batch * h->heads; i++) {
        size_t at =
            i / h->heads * length * width + i % h->heads * size; /* this head of the sequence's first token */
        real *w = weights + i * length * length;
        product(CblasNoTrans, CblasTrans, length, length, size, scale, q + at, width, k + at, width, 0, w,
                length);
        causal_softmax(w, length);
        product(CblasNoTrans, CblasNoTrans, length, size, length, 1, w, length, v + at, width, 0, mixed + at,
                width);
    }
}

void attention_backward(const struct heads *h, const real *q, const real *k, const real *v,
                        const real *weights, const real *dmixed, real *dq, real *dk, real *dv, real *d)
{
    size_t length = h->length, size = h->size, width = h->heads * size;
    real scale = 1 / real_sqrt((real)size);
    for (size_t i = 0; i < h->batch * h->heads; i++) {
        size_t at = i / h->heads * length * width + i % h->heads * size;
        const real *w = weights + i * length * length, *dm = dmixed + at;
        product(CblasTrans, CblasNoTrans, length, size, length, 1, w, length, dm, width, 0, dv + at, width);
        product(CblasNoTrans, CblasTrans, length, length, size, 1, dm, width, v + at, width, 0, d, length);
        softmax_backward(w, d, length);
        product(CblasNoTrans, CblasNoTrans, length, size, length, scale, d, length, k + at, width, 0, dq + at,
                width);
        product(CblasTrans, CblasNoTrans, length, size, length, scale, d, length, q + at, width, 0, dk + at,
                width);
    }
}

/* ---- feed-forward and loss ------------------------------------------------------------------------ */

void swiglu_forward(const real *gate, const real *up, real *active, size_t count)
{
    for (size_t i = 0; i < count; i++)
        active[i] = gate[i] / (1 + real_exp(-gate[i])) * up[i];
}

void swiglu_backward(const real *gate, const real *up, const real *dactive, real *dgate, real *dup,
                     size_t count)
{
    for (size_t i = 0; i < count; i++) {
        real d = dactive[i], sigmoid = 1 / (1 + real_exp(-gate[i]));
        dgate[i] = d * up[i] * sigmoid * (1 + gate[i] * (1 - sigmoid));
        dup[i] = d * gate[i] * sigmoid;
    }
}

double cross_entropy(real *logits, const uint8_t *targets, size_t rows, size_t classes, int gradient)
{
    double loss = 0;
    for (size_t row = 0; row < rows; row++, logits += classes) {
        real largest = logits[0], wanted = logits[targets[row]];
        for (size_t c = 1; c < classes; c++)
            largest = logits[c] > largest ? logits[c] : largest;
        double sum = 0;
        for (size_t c = 0; c < classes; c++) {
            real e = real_exp(logits[c] - largest);
            sum += (double)e;
            if (gradient)
                logits[c] = e;
        }
        /* cppcheck-suppress invalidFunctionArg ; the largest adds 1 to the sum */
        loss += log(sum) + (double)(largest - wanted);
        if (!gradient)
            continue;
        for (size_t c = 0; c < classes; c++)
            logits[c] /= (real)(sum * (double)rows);
        logits[targets[row]] -= 1 / (real)rows;
    }
    return loss / (double)rows;
}
