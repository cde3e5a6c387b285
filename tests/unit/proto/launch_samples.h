/* SPDX-License-Identifier: Apache-2.0
 * Messages of launch.proto with boundary values, for unit tests and as seeds of the fuzzer. */
#ifndef HVT_LAUNCH_SAMPLES_H
#define HVT_LAUNCH_SAMPLES_H

#include "proto/launch.h"

#define HVT_LAUNCH_SAMPLES 32

/* What it points to is static: encode it, do not free it. */
void hvt_launch_sample(unsigned index, struct hvi_launch_msg *msg_p);

#endif
