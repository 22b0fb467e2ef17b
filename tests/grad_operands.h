/* grad_operands.h - the operands of a backward call by number. */
#ifndef TN_TEST_GRAD_OPERANDS_H
#define TN_TEST_GRAD_OPERANDS_H

#include "support.h"

enum grad_operand {
    GR_DY,
    GR_DSUM,
    GR_DX, /* outputs from here */
    GR_DRESIDUAL,
    GR_DGATE,
    GR_DWEIGHT, /* sums over rows from here */
    GR_DBIAS,
    GR_DMOD_SCALE,
    GR_DMOD_SHIFT,
    GR_COUNT
};

/* An output of a gradient call by its number; inputs give an absent view. */
tn_out *grad_output(tn_norm_grads *g, enum grad_operand op);
const char *grad_operand_name(enum grad_operand op);
/* Elements of a row of an operand. */
size_t grad_columns_of(const tn_norm_desc *d, enum grad_operand op);

#endif
