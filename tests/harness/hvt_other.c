/* SPDX-License-Identifier: Apache-2.0
 * hvt-other ADDRESS BYTES: a program with other rights than the trainer that executes it (the test makes it setuid). Its
 * memory at that address is its own business: floats of 7. It answers as hvt-rank does: once at the start, and then each
 * line with how many of its bytes have changed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u

int main(int argc, char **argv)
{
    const float secret = 7;
    char line[256];

    if (argc != 3)
        return 2;
    uintptr_t begin = (uintptr_t)strtoull(argv[1], NULL, 10);
    size_t bytes = (size_t)strtoull(argv[2], NULL, 10), lead = begin % PAGE;
    char *pages = mmap((void *)(begin - lead), bytes + lead, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (pages == MAP_FAILED)
        return 1;
    char *data = pages + lead;
    for (size_t at = 0; at + sizeof secret <= bytes; at += sizeof secret)
        memcpy(data + at, &secret, sizeof secret);
    printf("{\"status\": 0}\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t changed = 0;
        for (size_t at = 0; at + sizeof secret <= bytes; at += sizeof secret)
            changed += memcmp(data + at, &secret, sizeof secret) != 0 ? sizeof secret : 0;
        printf("{\"status\": 0, \"changed\": %zu}\n", changed);
        fflush(stdout);
    }
    return 0;
}
