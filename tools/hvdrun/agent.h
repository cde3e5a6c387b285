/* SPDX-License-Identifier: Apache-2.0
 * hvdrun --node: the agent that a hvdrun has on a host. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_AGENT_H
#define HVI_TOOLS_HVDRUN_AGENT_H

#include <stdint.h>

/* Serves the hvdrun at the other end of stdin and stdout until that ends, or has said nothing for `silence_ns`;
 * what it tells to run has another silence time. An exit code. */
int run_agent(uint64_t silence_ns);

#endif
