/* real.h - the arithmetic of the model: float, or double where LLAMA_F64 is defined, so that finite differences can
 * check the very code that trains. */
#ifndef LLAMA_REAL_H
#define LLAMA_REAL_H

#include <cblas.h>
#include <math.h>
#include <truenorm.h>

#ifdef LLAMA_F64
typedef double real;
#define REAL_DTYPE TN_F64
#define REAL_NAME "F64" /* as safetensors and config.json call it */
#define REAL_TORCH "float64"
#define real_gemm cblas_dgemm
#define real_exp exp
#define real_sqrt sqrt
#else
typedef float real;
#define REAL_DTYPE TN_F32
#define REAL_NAME "F32"
#define REAL_TORCH "float32"
#define real_gemm cblas_sgemm
#define real_exp expf
#define real_sqrt sqrtf
#endif

#endif
