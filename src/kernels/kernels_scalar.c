/* kernels_scalar.c - the kernel table for plain C. */
#include <math.h>

#include "base/base.h"
#include "base/half.h"
#include "truenorm.h"

#include "simd/vec_scalar.h"

#define TN_KERNEL_ISA scalar
#define TN_NO_FUSED
#include "kernels/table.h"
