/* SPDX-License-Identifier: Apache-2.0 */
#include "base/copy.h"

#include <string.h>

#define PAGE    4096u
#define NEAR    32u
#define AT_ONCE 2048u /* glibc 2.36 copies so much without `rep movsb` */

void hvi_copy(void *to, const void *from, size_t bytes)
{
    const size_t ahead = ((uintptr_t)to - (uintptr_t)from) % PAGE;
    const size_t at_once = ahead > 0 && ahead < NEAR ? AT_ONCE : bytes;

    for (size_t at = 0; at < bytes; at += at_once) {
        const size_t left = bytes - at;
        memcpy((char *)to + at, (const char *)from + at, left < at_once ? left : at_once);
    }
}
