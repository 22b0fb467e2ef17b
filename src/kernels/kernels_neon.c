/* kernels_neon.c - the kernel table for AArch64 NEON. */
#include <math.h>

#include "base/base.h"
#include "base/half.h"
#include "truenorm.h"

#if TN_ARCH_NEON
#include "simd/vec_neon.h"

#define TN_LEAN
#define TN_KERNEL_ISA neon
#include "kernels/table.h"
#endif
