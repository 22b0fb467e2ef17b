/* cpu.h - which instruction sets this CPU and its operating system offer. */
#ifndef TN_CPU_H
#define TN_CPU_H

#include "base/base.h"

enum tn_cpu_bits { TN_CPU_AVX2 = 1, TN_CPU_AVX512 = 2, TN_CPU_NEON = 4, TN_CPU_AVX512BF16 = 8 };

/* An OR of tn_cpu_bits. */
unsigned tn_cpu_detect(void);

#endif
