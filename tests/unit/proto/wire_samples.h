/* SPDX-License-Identifier: Apache-2.0
 * Legal messages at the borders of what is legal: for each kind the emptiest and the fullest one.
 * Made with malloc, so the caller frees them as if they had been decoded. */
#ifndef HVT_WIRE_SAMPLES_H
#define HVT_WIRE_SAMPLES_H

#include "proto/wire.h"

#include <stdbool.h>

/* Two per kind: even numbers are the emptiest, odd numbers the fullest. */
#define HVT_PACKET_SAMPLES  (2u * (HVI_PACKET_KIND_END - 1u))
#define HVT_REQUEST_SAMPLES (2u * (HVI_ADMIN_KIND_END - HVI_ADMIN_STATUS))
#define HVT_REPLY_SAMPLES   3u

void hvt_packet_sample(unsigned index, struct hvi_packet_msg *msg_p);
void hvt_request_sample(unsigned index, struct hvi_admin_request *request_p);
void hvt_reply_sample(unsigned index, struct hvi_admin_reply *reply_p);

/* `bytes` times a letter, or two-byte characters while they fit, then NUL. */
void hvt_fill(char *text_p, size_t bytes, bool wide);

#endif
