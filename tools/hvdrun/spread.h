/* SPDX-License-Identifier: Apache-2.0
 * A job on several hosts, or on another one: an agent on each. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_SPREAD_H
#define HVI_TOOLS_HVDRUN_SPREAD_H

#include "tools/hvdrun/options.h"

/* The exit code of the job. */
int run_spread(const struct run_options *options);

#endif
