/* SPDX-License-Identifier: Apache-2.0
 * What a fuzz target defines. The same file is linked with libFuzzer and with replay.c. */
#ifndef HVT_FUZZ_H
#define HVT_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Largest input that is made or read. */
#define HVT_FUZZ_BYTES (160u * 1024u)

/* Tries one input; returns 0. A broken property ends the process by HVT_FUZZ_REQUIRE. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Writes seed `index` (0, 1, ...) and returns its size; 0 when there is no such seed. */
size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room);

#define HVT_FUZZ_REQUIRE(condition)                                                                \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: property broken: %s\n", __FILE__, __LINE__, #condition);       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
