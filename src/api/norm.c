/* norm.c - the public forward functions. */
#include "api/plan.h"
#include "kernels/kernels.h"
#include "run/rows.h"

#include <math.h>

static tn_status run(const tn_norm_desc *desc, const tn_norm_io *io, enum tn_call call,
                     const tn_executor *executor)
{
    struct tn_plan plan;
    bool empty;
    if (executor && !executor->parallel_for)
        return TN_ERR_NULL;
    tn_status status = tn_make_plan(desc, io, call, &plan, &empty);
    if (status == TN_OK && !empty)
        tn_run_rows(&plan, executor);
    return status;
}

tn_status tn_norm_forward(const tn_norm_desc *desc, const tn_norm_io *io, const tn_executor *executor)
{
    return run(desc, io, TN_FORWARD, executor);
}

tn_status tn_norm_apply(const tn_norm_desc *desc, const tn_norm_io *io, const tn_executor *executor)
{
    return run(desc, io, TN_APPLY, executor);
}

tn_status tn_norm_moments(const tn_norm_desc *desc, const tn_norm_io *io, const tn_executor *executor)
{
    return run(desc, io, TN_MOMENTS, executor);
}

static tn_status simple(tn_kind kind, tn_dtype dtype, size_t rows, size_t n, const void *x,
                        const void *weight, const void *bias, double eps, void *y)
{
    tn_norm_desc d = tn_norm_init(kind, rows, n, eps);
    tn_norm_io io = tn_io_init();
    if (n > PTRDIFF_MAX)
        return TN_ERR_SIZE;
    io.x = tn_in_rows(x, dtype, n);
    io.weight = tn_in_param(weight, dtype);
    io.bias = tn_in_param(bias, dtype);
    io.y = tn_out_rows(y, dtype, n);
    if ((int)dtype < TN_F64 || (int)dtype > TN_F16)
        return TN_ERR_DTYPE;
    if (rows && n && !y)
        return TN_ERR_NULL;
    return tn_norm_forward(&d, &io, NULL);
}

tn_status tn_rmsnorm(tn_dtype dtype, size_t rows, size_t n, const void *x, const void *weight, double eps,
                     void *y)
{
    return simple(TN_RMS, dtype, rows, n, x, weight, NULL, eps, y);
}

tn_status tn_layernorm(tn_dtype dtype, size_t rows, size_t n, const void *x, const void *weight,
                       const void *bias, double eps, void *y)
{
    return simple(TN_LAYER, dtype, rows, n, x, weight, bias, eps, y);
}

void tn_moments_merge(double *count_a, double *mean_a, double *moment2_a, double count_b, double mean_b,
                      double moment2_b)
{
    double count = *count_a + count_b;
    if (!(count > 0))
        return;
    double delta = mean_b - *mean_a;
    *mean_a += delta * (count_b / count);
    *moment2_a += moment2_b + delta * delta * (*count_a * (count_b / count));
    *count_a = count;
}

double tn_norm_rstd(const tn_norm_desc *desc, double moment2, double count)
{
    tn_norm_desc d;
    struct tn_plan p;
    if (tn_copy_struct(&d, sizeof d, desc) != TN_OK || tn_plan_desc(&d, &p) != TN_OK)
        return NAN;
    double v = moment2 / (d.divisor > 0 ? d.divisor : d.kind == TN_L2 ? 1.0 : count);
    if (v == 0.0 && d.eps == 0.0)
        return 0.0;
    switch ((int)d.eps_mode) {
    case TN_EPS_INSIDE:
        return 1.0 / sqrt(v + d.eps);
    case TN_EPS_OUTSIDE:
        return 1.0 / (sqrt(v) + d.eps);
    default:
        return 1.0 / (sqrt(v) < d.eps ? d.eps : sqrt(v));
    }
}
