/* SPDX-License-Identifier: Apache-2.0
 * hvdrun --node: the agent that a hvdrun has on a host. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_AGENT_H
#define HVI_TOOLS_HVDRUN_AGENT_H

/* Serves the hvdrun at the other end of stdin and stdout until that ends. An exit code. */
int run_agent(void);

#endif
