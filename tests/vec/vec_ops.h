/* vec_ops.h - every op of the vector vocabulary as a plain function over memory, one table per machine. */
#ifndef TN_TEST_VEC_OPS_H
#define TN_TEST_VEC_OPS_H

#include "base/base.h"
#include "truenorm.h"

/* Operands are 16 f32 or f64 lanes each; `n` is a lane count, `out` big enough for 16 lanes. */
struct vec_ops {
    const char *name;
    void (*f32)(int op, const float *a, const float *b, const float *c, float *out);
    void (*f64)(int op, const double *a, const double *b, const double *c, double *out);
    void (*load)(tn_dtype dt, const void *p, size_t i, size_t n, float *out);
    void (*store)(tn_dtype dt, void *p, size_t i, size_t n, const float *in);
    void (*round)(tn_dtype dt, const float *in, float *out);
    void (*widen)(const float *in, double *out);
    void (*narrow)(const double *in, float *out);
    void (*first)(const double *in, size_t n, double *out);
    double (*sum)(const double *in);
    double (*hmax)(const double *in);
    int (*any_tiny)(bool normal, const float *in); /* 32 elements; is one below 2^-126 (normal) or 2^-100? */
    int (*any_less)(const float *in, float limit);
    void (*scale2)(const float *in, int k, float *out);
    void (*widen_memory)(tn_dtype dt, const void *p, size_t i, double *out);
    void (*sum_rows)(const double *in, double *out); /* 16 rows of 16 */
    void (*store_i8)(const double *in, void *p);
    void (*put)(bool past, tn_dtype dt, void *p, const float *in,
                size_t m); /* 16 m elements, aligned if past */
};

enum { F32_ADD, F32_SUB, F32_MUL, F32_DIV, F32_FMA, F32_FMS, F32_ABS, F32_MIN, F32_SET1, F32_OPS };
enum {
    F64_ADD,
    F64_SUB,
    F64_MUL,
    F64_PLUS,
    F64_DIV,
    F64_SQRT,
    F64_FMA,
    F64_MAX,
    F64_ABS,
    F64_SELECT_NEG,
    F64_SET1,
    F64_POW2,
    F64_OPS
};

extern const struct vec_ops vec_ops_scalar, vec_ops_avx2, vec_ops_avx512, vec_ops_avx512bf16, vec_ops_neon;

#endif
