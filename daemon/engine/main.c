/* SPDX-License-Identifier: Apache-2.0
 * hvdd-engine: started by hvdd, or by its unit, for one generation of one job, with a connected socket
 * as descriptor 3. */
#include "base/available.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/user.h"
#include "proto/started.h"
#include "reduce/reduce.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINK_FD  3
#define START_NS (5 * HVI_NS_SEC) /* for the first message of hvdd */

static int usage(int exit_code)
{
    fprintf(exit_code == 0 ? stdout : stderr,
            "hvdd-engine %s\n"
            "Executes the collective ops of one job. hvdd or its unit starts it, with a\n"
            "connected socket as descriptor 3; it is of no use by hand. See hvdd(8).\n",
            HVD_VERSION_TEXT);
    return exit_code;
}

/* SIGTERM is blocked from the start, so that it is never fatal: the loop takes it from a signalfd.
 * Ctrl-C and a closed terminal concern hvdd, which decides what becomes of the job. */
static void set_signals(void)
{
    sigset_t term;

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

static bool link_is_socket(void)
{
    int type = 0;
    socklen_t length = sizeof type;

    return getsockopt(LINK_FD, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

static bool is_possible(const struct hvi_engine_start *start)
{
    int32_t seats = start->seats > 0 ? start->seats : start->size;

    return seats > 0 && seats <= start->size && seats <= HVI_RANKS_MAX;
}

/* hvdd's first message, with the socket of the trainer whose job it is. It is decoded as that trainer's user. */
static int receive_start(struct hvi_packet *packet, struct engine_cores *cores,
                         struct hvi_engine_start *start_p)
{
    struct hvi_packet_msg msg;
    char why[256];
    int status = hvi_packet_receive(LINK_FD, packet, hvi_deadline_after(START_NS));

    if (status != HVI_OK)
        return status;
    const int trainer_fd = packet->fd_count > 0 ? packet->fds[0] : -1;
    status = engine_user_become(trainer_fd);
    engine_cores_open(cores, trainer_fd);
    hvi_packet_close_fds(packet);
    if (status != HVI_OK)
        return status;
    status = hvi_packet_msg_decode(packet->bytes, packet->length, &msg, why, sizeof why);
    if (status != HVI_OK)
        return status;
    if (msg.kind == HVI_PACKET_ENGINE_START && is_possible(&msg.engine_start))
        *start_p = msg.engine_start;
    else
        status = HVI_ERR_PROTOCOL;
    hvi_packet_msg_free(&msg);
    return status;
}

static int run(struct engine *engine)
{
    struct hvi_engine_start start;
    struct engine_cores cores;
    int status = hvi_started_tell(LINK_FD, "hvdd-engine");

    if (status == HVI_OK)
        status = receive_start(&engine->packet, &cores, &start);
    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "engine", "no-start", "hvdd has not said which job to run",
                "error=\"%s\"",
                status == HVI_ERR_CLOSED ? "the link has ended" : hvi_status_text(status));
        return 1;
    }
    hvi_log_set_user(start.uid);
    if (start.log_level >= HVI_LOG_ERROR && start.log_level <= HVI_LOG_TRACE)
        hvi_log_set_level((enum hvi_log_level)start.log_level);
    if (start.one_job)
        prctl(PR_SET_PDEATHSIG, SIGCONT); /* stopped, it would be left for good without hvdd */
    if (engine_init(engine, &start, LINK_FD) != HVI_OK)
        return 1;
    engine->cores = cores;
    HVI_LOG(HVI_LOG_INFO, "engine", "started", "ready for ranks",
            "job=%s generation=%llu size=%d seats=%u threads=%u cores=%u kernels=%s", start.job,
            (unsigned long long)start.generation, start.size, engine->sessions.seats,
            engine->start.threads, hvi_cores_available(), hvi_kernels_best()->name);
    engine_loop_run(engine);
    HVI_LOG(HVI_LOG_INFO, "engine", "ended", "nothing left to do", "job=%s generation=%llu",
            start.job, (unsigned long long)start.generation);
    if (!engine_fini(engine))
        _exit(
            0); /* a thread that waits in the kernel for ever is none that an exit handler may meet */
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "--help") == 0))
        return usage(0);
    if (argc != 1)
        return usage(2);
    set_signals();
    hvi_log_init("hvdd-engine", HVI_LOG_INFO);
    if (!link_is_socket())
        return usage(2);
    fcntl(LINK_FD, F_SETFD, FD_CLOEXEC);
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return 1;
    int exit_code = run(engine);
    free(engine);
    return exit_code;
}
