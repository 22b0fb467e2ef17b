/* kernels_avx512bf16.c - the kernel table for AVX-512 F, BW, DQ, VL and BF16. */
#include <math.h>

#include "base/base.h"
#include "base/half.h"
#include "truenorm.h"

#if TN_ARCH_X86_64
TN_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#define TN_VEC_BF16
#include "simd/vec_avx512.h"

#define TN_KERNEL_ISA avx512bf16
#include "kernels/table.h"
TN_TARGET_END
#endif
