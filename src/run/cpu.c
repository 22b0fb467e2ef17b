/* cpu.c - CPU detection: instruction sets count only if the operating system saves their registers. */
#include "run/cpu.h"

#if TN_ARCH_X86_64
#include <cpuid.h>

static uint64_t enabled_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool has_all(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

unsigned tn_cpu_detect(void)
{
    uint32_t a, b, c, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!has_all(c, fma | osxsave | avx | f16c) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return 0;
    uint64_t state = enabled_state();
    unsigned found = 0;
    const uint32_t avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    if ((state & 0x6) == 0x6 && has_all(b7, avx2))
        found |= TN_CPU_AVX2;
    if ((state & 0xe6) == 0xe6 && has_all(b7, avx2 | f | dq | bw | vl))
        found |= TN_CPU_AVX512;
    if ((found & TN_CPU_AVX512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has_all(a, 1u << 5))
        found |= TN_CPU_AVX512BF16;
    return found;
}
#elif TN_ARCH_NEON
unsigned tn_cpu_detect(void)
{
    return TN_CPU_NEON;
}
#else
unsigned tn_cpu_detect(void)
{
    return 0;
}
#endif
