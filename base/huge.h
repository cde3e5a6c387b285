/* SPDX-License-Identifier: Apache-2.0
 * Huge pages: their size where hvdd uses them, and advice that headers may be too old for. */
#ifndef HVI_BASE_HUGE_H
#define HVI_BASE_HUGE_H

#include <stdint.h>
#include <sys/mman.h>

#define HVI_HUGE_BYTES (UINT64_C(2) << 20)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#endif
