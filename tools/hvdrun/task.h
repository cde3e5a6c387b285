/* SPDX-License-Identifier: Apache-2.0
 * What each host is told to run. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_TASK_H
#define HVI_TOOLS_HVDRUN_TASK_H

#include "tools/common/mesh_key.h"
#include "tools/hvdrun/divide.h"
#include "tools/hvdrun/link.h"

/* What is the same for every host. */
struct run_task {
    const struct run_options *options;
    const char *job, *key;
    uint64_t call_bytes;   /* see call.h */
    char mesh_listen[320]; /* of the first host's hvdd; "": hosts do not meet */
    char mesh_join[320];   /* of the others' */
    char server_key[MESH_KEY_TEXT], client_key[MESH_KEY_TEXT];
    struct run_buffer command, environment, settings;
};

/* Collects command, environment and settings. HVI_OK or HVI_ERR_NO_MEMORY; run_task_fini in both
 * cases. */
int run_task_init(struct run_task *task_p, const struct run_options *options, const char *job,
                  const char *key, uint64_t call_bytes);
/* Private hvdds of several hosts meet: keys for them, and where the first listens: at the address, if it is
 * numeric, else RUN_ROUTE_ANYWHERE: at the one that its agent chooses, or at all that its host has. 0, or -1
 * with a reason. */
int run_task_meet(struct run_task *task, const char *address, const char **why_p);
/* Where the others find it. Before, theirs meet with none. */
void run_task_join(struct run_task *task, const char *address, uint32_t port);
/* Tells the agent of the host with this number, whose hvdd has so long to get ready. `machine` says
 * which part of its cores it has. What goes wrong stands in the link's text. */
void run_task_send(const struct run_task *task, size_t host, uint64_t patience_ns,
                   const struct run_machine *machine, struct run_link *link);
void run_task_fini(struct run_task *task);

#endif
