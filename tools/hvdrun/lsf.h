/* SPDX-License-Identifier: Apache-2.0
 * Jobs of LSF, which tells a job its hosts in variables: horovodrun asks IBM's CSM for them, hvdrun
 * asks the user. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_LSF_H
#define HVI_TOOLS_HVDRUN_LSF_H

#include <stdbool.h>
#include <stddef.h>

/* Whether this is a job of LSF with several hosts; then a sentence that names them, for a command
 * line of `ranks` processes (0: it does not say how many) without a host. */
bool run_lsf_has_hosts(int ranks, char *text_p, size_t text_size);

#endif
