/* grad_operands.c - the operands of a backward call by number. */
#include "grad_operands.h"

tn_out *grad_output(tn_norm_grads *g, enum grad_operand op)
{
    static tn_out absent;
    tn_out *const all[GR_COUNT] = {&absent,     &absent,   &g->dx,         &g->dresidual, &g->dgate,
                                   &g->dweight, &g->dbias, &g->dmod_scale, &g->dmod_shift};
    return all[op];
}

const char *grad_operand_name(enum grad_operand op)
{
    static const char *const names[GR_COUNT] = {"dy",      "dsum",  "dx",         "dresidual", "dgate",
                                                "dweight", "dbias", "dmod_scale", "dmod_shift"};
    return names[op];
}

size_t grad_columns_of(const tn_norm_desc *d, enum grad_operand op)
{
    return (op == GR_DWEIGHT || op == GR_DBIAS) && d->positions ? d->n / d->positions : d->n;
}
