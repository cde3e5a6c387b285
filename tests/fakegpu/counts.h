/* SPDX-License-Identifier: Apache-2.0
 * What a process has asked of the fake libraries, for tests that count: with FAKEGPU's counts=PREFIX it is in the file PREFIX and
 * its process' number. Any thread. */
#ifndef FAKEGPU_COUNTS_H
#define FAKEGPU_COUNTS_H

#include <stdatomic.h>
#include <stdint.h>

struct fakegpu_counts {
    _Atomic uint64_t launches; /* of kernels */
    _Atomic uint64_t memops;   /* calls; one may have many waits and writes */
    _Atomic uint64_t nccl;     /* groups, and collectives without one */
};

/* Never NULL: without a file it is this process' alone. */
struct fakegpu_counts *fake_counts(void);

#endif
