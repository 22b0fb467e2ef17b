/* dispatch.c - chooses a kernel table once: TN_ISA if it is usable, else the best one. */
#include "run/dispatch.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "run/cpu.h"

struct candidate {
    const struct tn_kernels *kernels;
    unsigned needs;
};

/* Worst first. */
static const struct candidate candidates[] = {
    {&tn_kernels_scalar, 0},
#if TN_ARCH_NEON
    {&tn_kernels_neon, TN_CPU_NEON},
#endif
#if TN_ARCH_X86_64
    {&tn_kernels_avx2, TN_CPU_AVX2},
    {&tn_kernels_avx512, TN_CPU_AVX512},
    {&tn_kernels_avx512bf16, TN_CPU_AVX512 | TN_CPU_AVX512BF16},
#endif
};

static _Atomic(const struct tn_kernels *) active;

/* cpuid is slow under a hypervisor: ask once. */
static unsigned cpu_bits(void)
{
    static _Atomic unsigned known;
    const unsigned asked = 1u << 31;
    unsigned bits = atomic_load_explicit(&known, memory_order_relaxed);
    if (!(bits & asked)) {
        bits = tn_cpu_detect() | asked;
        atomic_store_explicit(&known, bits, memory_order_relaxed);
    }
    return bits;
}

const struct tn_kernels *tn_usable_kernels(size_t k)
{
    unsigned cpu = cpu_bits();
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if ((candidates[i].needs & ~cpu) == 0 && k-- == 0)
            return candidates[i].kernels;
    return NULL;
}

const struct tn_kernels *tn_find_kernels(const char *name)
{
    const struct tn_kernels *kernels;
    for (size_t k = 0; (kernels = tn_usable_kernels(k)); k++)
        if (strcmp(kernels->name, name) == 0)
            return kernels;
    return NULL;
}

static const struct tn_kernels *choose(void)
{
    const char *asked = getenv("TN_ISA");
    const struct tn_kernels *best = asked ? tn_find_kernels(asked) : NULL;
    if (best)
        return best;
    for (size_t k = 0; tn_usable_kernels(k); k++)
        best = tn_usable_kernels(k);
    return best;
}

const struct tn_kernels *tn_active_kernels(void)
{
    const struct tn_kernels *kernels = atomic_load_explicit(&active, memory_order_acquire);
    if (TN_LIKELY(kernels != NULL))
        return kernels;
    kernels = choose();
    tn_use_kernels(kernels);
    return kernels;
}

void tn_use_kernels(const struct tn_kernels *kernels)
{
    atomic_store_explicit(&active, kernels, memory_order_release);
}
