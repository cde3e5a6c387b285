/* SPDX-License-Identifier: Apache-2.0
 * A short digest of a secret that two of our own processes compare (the job key, in EngineHello
 * after a restart of hvdd). FNV-1a, 64 bits: it keeps the key itself out of messages and tables and
 * is no protection against somebody who holds the digest; only processes of the daemon's own uid
 * ever see one. Pure function, any thread. */
#ifndef HVI_BASE_DIGEST_H
#define HVI_BASE_DIGEST_H

#include <stdint.h>

#define HVI_DIGEST_TEXT 17 /* 16 hexadecimal digits and a NUL */

/* The digest of "" is "", so that "no key" can be seen. */
static inline void hvi_digest_text(const char *secret, char digest_p[HVI_DIGEST_TEXT])
{
    uint64_t hash = 14695981039346656037ull;
    const char *at;
    int i;

    for (at = secret; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211ull;
    for (i = 0; i < HVI_DIGEST_TEXT - 1; i++)
        digest_p[i] = "0123456789abcdef"[(hash >> (60 - 4 * i)) & 15];
    digest_p[at == secret ? 0 : HVI_DIGEST_TEXT - 1] = '\0';
}

#endif
