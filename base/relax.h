/* SPDX-License-Identifier: Apache-2.0
 * The pause between two looks at a word that another core is about to change. */
#ifndef HVI_BASE_RELAX_H
#define HVI_BASE_RELAX_H

static inline void hvi_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
