/* kernels_avx2.c - the kernel table for AVX2, FMA and F16C. */
#include <math.h>

#include "base/base.h"
#include "base/half.h"
#include "truenorm.h"

#if TN_ARCH_X86_64
TN_TARGET_BEGIN("avx2,fma,f16c")
#include "simd/vec_avx2.h"

#define TN_KERNEL_ISA avx2
#include "kernels/table.h"
TN_TARGET_END
#endif
