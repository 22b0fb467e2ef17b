/* dispatch.h - the kernel table in use. */
#ifndef TN_DISPATCH_H
#define TN_DISPATCH_H

#include "kernels/kernels.h"

/* The table in use; the first call chooses it. */
const struct tn_kernels *tn_active_kernels(void);

/* The k-th usable table, worst first; NULL past the end. */
const struct tn_kernels *tn_usable_kernels(size_t k);

/* The usable table of that name, or NULL. */
const struct tn_kernels *tn_find_kernels(const char *name);

void tn_use_kernels(const struct tn_kernels *kernels);

#endif
