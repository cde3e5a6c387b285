/* SPDX-License-Identifier: Apache-2.0
 * hvdd-gate: started by hvdd, or by its unit, with a connected socket as descriptor 3. It reads what strangers send
 * to the node and passes hvdd what it has understood. */
#include "daemon/gate/gate.h"

#include "base/status.h"
#include "proto/started.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define LINK_FD 3

static int usage(int exit_code)
{
    fprintf(exit_code == 0 ? stdout : stderr,
            "hvdd-gate %s\n"
            "Speaks ZeroMQ for hvdd. hvdd or its unit starts it, with a connected socket as "
            "descriptor\n"
            "3; it is of no use by hand. See hvdd(8).\n",
            HVD_VERSION_TEXT);
    return exit_code;
}

static bool link_is_socket(void)
{
    int type = 0;
    socklen_t length = sizeof(type);

    return getsockopt(LINK_FD, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

/* hvdd decides when the gate ends, not a terminal. SIGCHLD: for base/discard.h, before the first thread. */
static void set_signals(void)
{
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

static int serve(struct gate *gate, const int listen_fds[2])
{
    int code = 1;

    if (sd_event_default(&gate->event) < 0)
        return 1;
    sd_event_set_watchdog(gate->event, true); /* of its unit; nothing where hvdd has started it */
    if (gate_link_open(gate) == HVI_OK &&
        gate_admin_open(gate, listen_fds[0], listen_fds[1]) == HVI_OK &&
        gate_mesh_open(gate) == HVI_OK)
        code = sd_event_loop(gate->event);
    gate_mesh_close(gate);
    gate_admin_close(gate);
    gate_link_close(gate);
    sd_event_unref(gate->event);
    return code;
}

int main(int argc, char **argv)
{
    static struct gate gate;
    int listen_fds[2] = {-1, -1}, status;

    if (argc > 1)
        return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
    if (!link_is_socket())
        return usage(2);
    hvi_log_init("hvdd-gate", HVI_LOG_INFO);
    set_signals();
    if (gate_limits_apply(&gate) != HVI_OK)
        return 1;
    status = hvi_started_tell(LINK_FD, "hvdd-gate");
    if (status == HVI_ERR_REFUSED)
        HVI_LOG(HVI_LOG_ERROR, "link", "no-start", "this is not the connection of this user's hvdd",
                "");
    if (status == HVI_OK)
        status = gate_link_start(&gate, LINK_FD, listen_fds);
    if (status != HVI_OK)
        return status == HVI_ERR_CLOSED ? 0 : 1;
    hvi_log_set_level((enum hvi_log_level)gate.start.log_level);
    if (gate.start.one_job && !gate_limits_outlive(&gate))
        return 1;
    return serve(&gate, listen_fds);
}
