/* SPDX-License-Identifier: Apache-2.0
 * hvdrun --relay: starts agents, here and on other hosts, for a hvdrun that has too many hosts to reach
 * them all itself. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_RELAY_H
#define HVI_TOOLS_HVDRUN_RELAY_H

/* Serves the hvdrun at the other end of stdin and stdout until that ends and everything that was
 * started has ended. An exit code. */
int run_relay(void);

#endif
