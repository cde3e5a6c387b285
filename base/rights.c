/* SPDX-License-Identifier: Apache-2.0
 * Ambient capabilities are not touched: the kernel takes those away that are not permitted any more. */
#include "base/rights.h"

#include <sys/syscall.h>
#include <unistd.h>

#define WORDS _LINUX_CAPABILITY_U32S_3

static bool read_rights(struct __user_cap_data_struct words_p[WORDS])
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};

    return syscall(SYS_capget, &header, words_p) == 0;
}

bool hvi_rights_has(uint64_t rights)
{
    struct __user_cap_data_struct has[WORDS] = {{0}};

    if (!read_rights(has))
        return false;
    return ((has[0].effective | (uint64_t)has[1].effective << 32) & rights) == rights;
}

bool hvi_rights_keep(uint64_t rights)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct words[WORDS] = {{0}};
    bool has_others = false;

    if (!read_rights(words))
        return false;
    for (int i = 0; i < WORDS; i++) {
        const uint32_t kept = (uint32_t)(rights >> (32 * i));
        has_others = has_others || ((words[i].permitted | words[i].inheritable) & ~kept) != 0;
        words[i].effective &= kept;
        words[i].permitted &= kept;
        words[i].inheritable &= kept;
    }
    return !has_others || syscall(SYS_capset, &header, words) == 0;
}
