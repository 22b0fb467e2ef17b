// header_cxx.cpp - the public header alone, as strict C++17; C linkage.
#include "truenorm.h"

int main()
{
    float x[4] = {1, -1, 1, -1}, y[4];
    tn_norm_desc d = TN_NORM_DESC_INIT;
    tn_norm_desc e = tn_norm_init(TN_LAYER, 1, 4, 0.0);
    tn_norm_io io = tn_io_init();
    io.x = tn_in_rows(x, TN_F32, 4);
    io.y = tn_out_rows(y, TN_F32, 4);
    tn_norm_grads g = tn_grads_init();
    d.rows[0] = 0;
    if (tn_norm_forward(&d, &io, nullptr) != TN_OK)
        return 1;
    g.dy = io.x;
    g.dx = io.y;
    if (tn_norm_backward(&d, &io, &g, nullptr) != TN_OK)
        return 1;
    return tn_norm_forward(&e, &io, nullptr) == TN_OK && y[0] == 1.0f && y[3] == -1.0f ? 0 : 1;
}
