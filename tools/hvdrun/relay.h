/* SPDX-License-Identifier: Apache-2.0
 * hvdrun --relay: starts agents, here and on other hosts, for a hvdrun that has too many hosts to reach
 * them all itself. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_RELAY_H
#define HVI_TOOLS_HVDRUN_RELAY_H

#include <stdint.h>

/* Serves the hvdrun at the other end of stdin and stdout until that ends and everything that was
 * started has ended. Without processes it ends, too, when hvdrun has said nothing for `silence_ns`; the first
 * process to start comes with another silence time. An exit code. */
int run_relay(uint64_t silence_ns);

#endif
