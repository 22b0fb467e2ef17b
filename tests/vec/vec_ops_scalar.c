/* vec_ops_scalar.c - the vocabulary of vec_scalar.h for test_vec. */
#include <math.h>

#include "base/half.h"
#include "vec/vec_ops.h"

#include "simd/vec_scalar.h"

#define TN_VEC_NAME scalar
#include "vec/vec_ops_body.h"
