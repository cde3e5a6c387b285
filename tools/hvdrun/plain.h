/* SPDX-License-Identifier: Apache-2.0
 * A job on this machine: one node, no agent. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_PLAIN_H
#define HVI_TOOLS_HVDRUN_PLAIN_H

#include "tools/hvdrun/options.h"

/* The exit code of the job. */
int run_plain(const struct run_options *options);

#endif
