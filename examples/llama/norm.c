#include "norm.h"
#include "common.h"

static double spent;

double norm_seconds(void)
{
    return spent;
}

static tn_norm_desc describe(const struct norm *norm)
{
    tn_norm_desc desc =
        tn_norm_init(norm->kind.kind == KIND_LAYER ? TN_LAYER : TN_RMS, norm->rows, norm->n, norm->eps);
    if (norm->kind.kind == KIND_PARTIAL)
        desc.partial = (size_t)ceil(norm->kind.part * (double)norm->n);
    return desc;
}

static tn_norm_io inputs(const struct norm *norm, const real *x)
{
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(x, REAL_DTYPE, norm->n);
    io.weight = tn_in_param(norm->weight, REAL_DTYPE);
    if (norm->bias)
        io.bias = tn_in_param(norm->bias, REAL_DTYPE);
    return io;
}

static void check(tn_status status)
{
    if (status != TN_OK)
        fail("norm: %s", tn_status_text(status));
}

void norm_forward(const struct norm *norm, const real *x, real *y, double *stats)
{
    double start = seconds();
    tn_norm_desc desc = describe(norm);
    tn_norm_io io = inputs(norm, x);
    io.y = tn_out_rows(y, REAL_DTYPE, norm->n);
    io.rstd = tn_out_rows(stats + norm->rows, TN_F64, 1);
    if (desc.kind == TN_LAYER)
        io.mean = tn_out_rows(stats, TN_F64, 1);
    check(tn_norm_forward(&desc, &io, NULL));
    spent += seconds() - start;
}

void norm_backward(const struct norm *norm, const real *x, const double *stats, const real *dy,
                   const real *dsum, real *dx, real *dweight, real *dbias)
{
    double start = seconds();
    tn_norm_desc desc = describe(norm);
    tn_norm_io io = inputs(norm, x);
    io.rstd_in = tn_in_rows(stats + norm->rows, TN_F64, 1);
    if (desc.kind == TN_LAYER)
        io.mean_in = tn_in_rows(stats, TN_F64, 1);
    tn_norm_grads grads = tn_grads_init();
    grads.dy = tn_in_rows(dy, REAL_DTYPE, norm->n);
    grads.dx = tn_out_rows(dx, REAL_DTYPE, norm->n);
    grads.dweight = tn_out_param(dweight, REAL_DTYPE);
    if (norm->bias)
        grads.dbias = tn_out_param(dbias, REAL_DTYPE);
    if (dsum)
        grads.dsum = tn_in_rows(dsum, REAL_DTYPE, norm->n);
    check(tn_norm_backward(&desc, &io, &grads, NULL));
    spent += seconds() - start;
}
