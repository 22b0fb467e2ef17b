/* vec_ops_avx2.c - the vocabulary of vec_avx2.h for test_vec. */
#include <math.h>

#include "base/half.h"
#include "vec/vec_ops.h"

#if TN_ARCH_X86_64
TN_TARGET_BEGIN("avx2,fma,f16c")
#include "simd/vec_avx2.h"

#define TN_VEC_NAME avx2
#include "vec/vec_ops_body.h"
TN_TARGET_END
#endif
