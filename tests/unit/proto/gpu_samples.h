/* SPDX-License-Identifier: Apache-2.0
 * Legal messages of gpu.proto, with every field at work. */
#ifndef HVT_GPU_SAMPLES_H
#define HVT_GPU_SAMPLES_H

#include "proto/gpu.h"

/* Lists in it are constant, and are not to be freed. */
void hvt_gpu_sample(enum hvi_gpu_kind kind, struct hvi_gpu_msg *msg_p);

#endif
