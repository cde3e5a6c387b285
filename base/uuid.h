/* SPDX-License-Identifier: Apache-2.0
 * The name of a GPU, as NVML and nvidia-smi write it. An instance of one in MIG mode has a UUID of its own. Pure functions, any
 * thread. */
#ifndef HVI_BASE_UUID_H
#define HVI_BASE_UUID_H

#include "base/types.h"

#include <stdbool.h>

#define HVI_UUID_TEXT 41u /* with NUL */

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", also of an instance */
void hvi_uuid_format(const unsigned char bytes[HVI_UUID_BYTES], char text_p[HVI_UUID_TEXT]);
/* Of that form, or with "MIG-" before it. False for another one; then nothing is written. */
bool hvi_uuid_parse(const char *text, unsigned char bytes_p[HVI_UUID_BYTES]);

#endif
