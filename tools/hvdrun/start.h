/* SPDX-License-Identifier: Apache-2.0
 * The environment of a rank and its process. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_START_H
#define HVI_TOOLS_HVDRUN_START_H

#include "tools/hvdrun/node.h"

/* A TCP port on which nobody listens, or 0. */
int run_start_free_port(void);
/* All ranks of the node. An exit code with a sentence; 0 when all were started. */
int run_start_ranks(struct run_node *node, int input_fd, char *text_p, size_t text_size);

#endif
