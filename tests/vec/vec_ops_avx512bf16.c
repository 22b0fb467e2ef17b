/* vec_ops_avx512bf16.c - the vocabulary of vec_avx512.h with the BF16 conversions for test_vec. */
#include <math.h>

#include "base/half.h"
#include "vec/vec_ops.h"

#if TN_ARCH_X86_64
TN_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#define TN_VEC_BF16
#include "simd/vec_avx512.h"

#define TN_VEC_NAME avx512bf16
#include "vec/vec_ops_body.h"
TN_TARGET_END
#endif
