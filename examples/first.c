/* first.c - two norms in C, and the gradients of one. */
#include <stdio.h>
#include <truenorm.h>

static int report(tn_status status, const float *y)
{
    if (status != TN_OK) {
        fprintf(stderr, "first: %s\n", tn_status_text(status));
        return 1;
    }
    printf("%g %g %g %g\n", (double)y[0], (double)y[1], (double)y[2], (double)y[3]);
    return 0;
}

int main(void)
{
    /* RMSNorm of two rows. The second is 1e20 times the first: its squares are beyond any float. */
    const float x[2][4] = {{1, 2, 3, 4}, {1e20f, 2e20f, 3e20f, 4e20f}};
    float y[2][4];
    tn_status status = tn_rmsnorm(TN_F32, 2, 4, x, NULL, 1e-6, y);
    if (report(status, y[0]) || report(status, y[1]))
        return 1;

    /* Everything else is one call over a descriptor. Here: the sum with a residual is normalised and kept, and the
     * weight is stored less one. */
    const float residual[4] = {2, 0, -2, -2}, weight[4] = {0, 0, 0, 1};
    float sum[4];
    tn_norm_desc desc = tn_norm_init(TN_RMS, 1, 4, 1e-6);
    desc.weight_offset = 1;
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(x, TN_F32, 4);
    io.residual = tn_in_rows(residual, TN_F32, 4);
    io.weight = tn_in_param(weight, TN_F32);
    io.y = tn_out_rows(y, TN_F32, 4);
    io.sum = tn_out_rows(sum, TN_F32, 4);
    status = tn_norm_forward(&desc, &io, NULL);
    if (report(status, sum) || report(status, y[0]))
        return 1;

    /* Gradients take the same descriptor and inputs; each output is optional. */
    const float dy[4] = {1, 0, 0, 0};
    float dx[4], dweight[4];
    tn_norm_grads grads = tn_grads_init();
    grads.dy = tn_in_rows(dy, TN_F32, 4);
    grads.dx = tn_out_rows(dx, TN_F32, 4);
    grads.dweight = tn_out_param(dweight, TN_F32);
    status = tn_norm_backward(&desc, &io, &grads, NULL);
    return report(status, dx) || report(status, dweight);
}
