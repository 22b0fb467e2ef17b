/* header_c99.c - the public header alone, as strict C99; and that its inline helpers link and run. */
#include "truenorm.h"

#if TN_VERSION_MAJOR < 0
#error "no version"
#endif

int main(void)
{
    float x[4] = {1, -1, 1, -1}, y[4];
    tn_norm_desc d = TN_NORM_DESC_INIT, e = tn_norm_init(TN_RMS, 1, 4, 0.0);
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(x, TN_F32, 4);
    io.y = tn_out_rows(y, TN_F32, 4);
    io.weight = tn_in_param(0, TN_F32);
    d.rows[0] = 1;
    d.n = 4;
    d.eps = 0.0;
    if (tn_norm_forward(&d, &io, 0) != TN_OK || y[0] != 1.0f || y[1] != -1.0f)
        return 1;
    return tn_norm_forward(&e, &io, 0) == TN_OK && y[3] == -1.0f ? 0 : 1;
}
