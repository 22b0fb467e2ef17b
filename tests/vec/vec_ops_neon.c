/* vec_ops_neon.c - the vocabulary of vec_neon.h for test_vec. */
#include <math.h>

#include "base/half.h"
#include "vec/vec_ops.h"

#if TN_ARCH_NEON
#include "simd/vec_neon.h"

#define TN_VEC_NAME neon
#include "vec/vec_ops_body.h"
#endif
