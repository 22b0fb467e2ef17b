/* base.h - what the compiler and the machine are; nothing about norms. */
#ifndef TN_BASE_H
#define TN_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "truenorm's results depend on IEEE arithmetic: build without -ffast-math"
#endif

#if defined(__x86_64__)
#define TN_ARCH_X86_64 1
#else
#define TN_ARCH_X86_64 0
#endif
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)
#define TN_ARCH_NEON 1
#else
#define TN_ARCH_NEON 0
#endif

/* Kernels are built from always-inline functions whose dtype and option arguments are constants. */
#define TN_INLINE static inline __attribute__((always_inline))
#define TN_NOINLINE __attribute__((noinline))
#define TN_LIKELY(c) __builtin_expect(!!(c), 1)
#define TN_UNLIKELY(c) __builtin_expect(!!(c), 0)

/* Before a loop whose body is large enough. */
#if defined(__clang__)
#define TN_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define TN_NO_UNROLL _Pragma("GCC unroll 1")
#endif

/* A file of kernels sets its own target, so that the sources need no per-file flags. */
#define TN_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define TN_TARGET_BEGIN(t) TN_PRAGMA(clang attribute push(__attribute__((target(t))), apply_to = function))
#define TN_TARGET_END TN_PRAGMA(clang attribute pop)
#else
#define TN_TARGET_BEGIN(t) TN_PRAGMA(GCC push_options) TN_PRAGMA(GCC target(t))
#define TN_TARGET_END TN_PRAGMA(GCC pop_options)
#endif

/* a * b and a + b for sizes; false on overflow. */
static inline bool tn_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tn_size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
