#include "adamw.h"

#define BETA1 0.9
#define BETA2 0.95
#define EPSILON 1e-8

double gradient_length(const real *gradients, size_t first, size_t end)
{
    double sum = 0;
    for (size_t i = first; i < end; i++)
        sum += (double)gradients[i] * (double)gradients[i];
    return sqrt(sum);
}

void adamw(const struct layout *layout, size_t step, double rate, double decay, double scale,
           const real *gradients, real *m, real *v, real *parameters)
{
    /* The averages start at 0, and are too small by these factors. */
    double grown1 = 1 - pow(BETA1, (double)step), grown2 = 1 - pow(BETA2, (double)step);
    const real b1 = (real)BETA1, b2 = (real)BETA2, s = (real)scale, epsilon = (real)EPSILON;
    const real speed = (real)(rate / grown1), spread = (real)(1 / grown2);
    for (size_t t = 0; t < layout->tensor_count; t++) {
        const struct tensor *tensor = &layout->tensors[t];
        const real kept = (real)(tensor->cols ? 1 - rate * decay : 1);
        for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            real g = gradients[i] * s;
            m[i] = b1 * m[i] + (1 - b1) * g;
            v[i] = b2 * v[i] + (1 - b2) * g * g;
            parameters[i] = kept * parameters[i] - speed * m[i] / (real_sqrt(v[i] * spread) + epsilon);
        }
    }
}
