/* SPDX-License-Identifier: Apache-2.0
 * How the agent of a host is started, and what ssh's failures mean. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_SSH_H
#define HVI_TOOLS_HVDRUN_SSH_H

#include "base/fate.h"
#include "tools/hvdrun/options.h"

#define RUN_SSH_WORDS_MAX 64

/* What is wanted on a host. */
enum run_ssh_role {
    RUN_SSH_AGENT,
    RUN_SSH_RELAY,  /* relay.h */
    RUN_SSH_BESIDE, /* the agent of a relay's own host, which that relay starts */
};

struct run_ssh {
    char *argv[RUN_SSH_WORDS_MAX + 1];
    char *command;         /* the words of --ssh-command, cut */
    char hvdrun[4096];     /* of the agent */
    char remote[2 * 4096]; /* for the shell there */
    char own[8192];        /* this program */
    const char *role;      /* its option: "--node" or "--relay" */
};

/* What to run for the agent or relay of `host`: this program itself for a host that is this machine. 0, or -1
 * with a sentence. */
int run_ssh_make(const struct run_options *options, const struct run_host *host,
                 enum run_ssh_role role, struct run_ssh *ssh_p, char *text_p, size_t text_size);
void run_ssh_fini(struct run_ssh *ssh);
/* True when `words`, from ssh's stderr, say that the server dropped the connection before the login,
 * as sshd does with more than it takes at a time (MaxStartups): worth another try. */
bool run_ssh_was_dropped(struct hvi_fate fate, const char *words);
/* Why there is no agent on the host, in one sentence. */
void run_ssh_explain(const struct run_ssh *ssh, const struct run_host *host, struct hvi_fate fate,
                     const char *words, char *text_p, size_t text_size);

#endif
