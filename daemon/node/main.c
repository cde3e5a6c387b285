/* SPDX-License-Identifier: Apache-2.0
 * hvdd: the node daemon. One thread, one event loop, no tensor data, no blocking call after the
 * start. This file puts the parts together; docs/design/spine.md says what they do. */
#include "daemon/node/node.h"

#include "base/rights.h"
#include "base/status.h"
#include "base/uid.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A closed 0, 1 or 2 would become some socket of ours, and later somebody's stdout. */
static void fill_standard_fds(void)
{
    int fd = open("/dev/null", O_RDWR);

    while (fd >= 0 && fd <= 2)
        fd = dup(fd);
    if (fd > 2)
        close(fd);
}

/* As many descriptors as we may have, and how many that are. */
static uint64_t raise_descriptor_limit(void)
{
    struct rlimit limit = {.rlim_cur = 1024, .rlim_max = 1024};
    struct rlimit raised;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return limit.rlim_cur;
    raised = (struct rlimit){.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
        return raised.rlim_cur;
    HVI_LOG(HVI_LOG_WARN, "main", "few-descriptors", "the limit of open files could not be raised",
            "");
    return limit.rlim_cur;
}

/* --print-config and --help-man end here; so does a bad configuration. */
static void read_config(struct node *node, int argc, char **argv)
{
    char text[NODE_CONFIG_ERROR];

    node_config_command(argc, argv, &node->command);
    if (node->command.help_man) {
        node_config_print_man(stdout);
        exit(0);
    }
    if (node->command.help_limits) {
        node_config_print_limits(stdout);
        exit(0);
    }
    if (node_config_load(&node->command, &node->config, text, sizeof(text)) != HVI_OK) {
        fprintf(stderr, "hvdd: %s\n", text);
        exit(2);
    }
    if (node->command.print_config) {
        node_config_print(&node->config, stdout);
        exit(0);
    }
}

/* It reads what every user sends, and root owns the system's files whatever capabilities it has left. A private hvdd of
 * root's serves root's trainers alone, whose rights its engines have. */
static bool is_root_for_all(const struct node *node)
{
    if (node->private_mode || node->uid != 0)
        return false;
    HVI_LOG(
        HVI_LOG_ERROR, "main", "root-for-all",
        "a hvdd for all users does not run as root, which owns the system's files; start the "
        "service, which has a user of its own (systemctl start hvdd), or hvdd as another user, or "
        "with --private=yes for root's own jobs",
        "");
    return true;
}

/* Its own number is that of others too, whom it could not tell from itself. */
static bool is_nameless(const struct node *node)
{
    if (hvi_uid_is_known(node->uid))
        return false;
    HVI_LOG(HVI_LOG_ERROR, "main", "no-uid",
            "hvdd's user namespace has no number for hvdd's own user; map it there, as unshare "
            "--map-current-user does",
            "uid=%u", (unsigned)node->uid);
    return true;
}

/* With the first two, engines become their job's user (daemon/engine/user.c), and with the third hvdd can still kill
 * them. Root's private hvdd keeps its rights. */
static bool limit_rights(const struct node *node)
{
    const uint64_t rights = HVI_RIGHT(CAP_SETUID) | HVI_RIGHT(CAP_SETGID) | HVI_RIGHT(CAP_KILL);

    if (node->uid == 0 || hvi_rights_keep(node->private_mode ? 0 : rights))
        return true;
    HVI_LOG(HVI_LOG_ERROR, "main", "no-limits", "hvdd cannot give up capabilities", "error=\"%s\"",
            strerror(errno));
    return false;
}

/* Where hvdd goes, and whom it serves where nobody says: all users from the system's directory. */
static void choose_place(struct node *node)
{
    if (node_rundir_default(node->uid, node->place, sizeof(node->place)) != HVI_OK)
        node->place[0] = '\0'; /* too long, which is an error if it is needed */
    node->private_mode = node_rundir_is_private(node->config.private_mode, node->uid);
    if (node->config.runtime_dir[0] != '\0')
        memcpy(node->place, node->config.runtime_dir, sizeof(node->place));
}

static int open_rundir(struct node *node)
{
    char text[NODE_CONFIG_ERROR] = "the path of the runtime directory is too long";
    int status = HVI_ERR_INVALID;

    if (node->place[0] != '\0')
        status =
            node_rundir_open(node->place, node->private_mode, &node->rundir, text, sizeof(text));
    if (status != HVI_OK)
        HVI_LOG(HVI_LOG_ERROR, "main", "no-runtime-dir", text, "");
    return status;
}

static void mps_ended(void *user)
{
    node_stop_check(user);
}

static void mps_lost(void *user)
{
    struct node *node = user;

    node_gpu_stop_idle(&node->gpu, "MPS has ended, and with it what the worker had on its GPU");
}

static void open_gpus(struct node *node)
{
    node->mps = (struct node_mps){.event = node->event,
                                  .config = &node->config,
                                  .rundir = &node->rundir,
                                  .private_mode = node->private_mode,
                                  .ended = mps_ended,
                                  .lost = mps_lost,
                                  .user = node};
    node_mps_open(&node->mps);
    node_gpu_open(&node->gpu, node->event, &node->config, &node_link_gpu_calls, node,
                  node->gpu_path, node->attach_path);
}

static int start(struct node *node)
{
    int status = HVI_OK;

    if (sd_event_default(&node->event) < 0)
        return HVI_ERR_DAEMON;
    node->discard.event = node->event;
    status = node_stop_watch(node);
    if (status == HVI_OK)
        status = node_spawn_find(node);
    if (status == HVI_OK)
        status = node_mesh_init(node);
    if (status == HVI_OK)
        status = open_rundir(node);
    if (status == HVI_OK)
        status = node_notify_inherit(node);
    if (status == HVI_OK)
        status = node_listen_open(node);
    if (status == HVI_OK)
        status = node_gate_open(node);
    if (status == HVI_OK)
        open_gpus(node);
    return status;
}

static void finish(struct node *node)
{
    node_listen_close(node);
    node_attach_close_all(node, HVI_ERR_DRAINING,
                          "hvdd is shutting down and takes no new sessions");
    node_gate_close(node);
    node_gpu_close(&node->gpu);
    node_mps_close(&node->mps);
    hvi_discard_close(&node->discard);
    node_link_forget_all(node);
    node_jobs_fini(&node->jobs);
    node_rundir_close(&node->rundir);
    for (size_t i = 0; i < sizeof(node->signals) / sizeof(node->signals[0]); i++)
        sd_event_source_disable_unref(node->signals[i]);
    sd_event_source_disable_unref(node->parent);
    sd_event_source_disable_unref(node->drain);
    sd_event_source_disable_unref(node->idle);
    sd_event_source_disable_unref(node->status);
    sd_event_unref(node->event);
}

int main(int argc, char **argv)
{
    static struct node node = {
        .attach_fd = -1, .admin_fd = -1, .root_fd = -1, .rundir = NODE_RUNDIR_INIT};
    int code = 1;

    fill_standard_fds();
    read_config(&node, argc, argv);
    hvi_log_init("hvdd", (enum hvi_log_level)node.config.log_level);
    node.descriptors = raise_descriptor_limit();
    node.uid = geteuid();
    choose_place(&node);
    if (is_nameless(&node) || is_root_for_all(&node) || !limit_rights(&node))
        return 2;
    node.started_ns = hvi_clock_ns();
    node.next_session = node.started_ns; /* grows from one hvdd to the next */
    node.next_query = 1;
    node_jobs_init(&node.jobs);
    int status = start(&node);
    if (status == HVI_ERR_INVALID) {
        code = 2; /* an option is wrong, and stays so */
    } else if (status == HVI_OK) {
        HVI_LOG(HVI_LOG_INFO, "main", "ready", "hvdd accepts attaches",
                "version=%s dir=%s private=%s pid=%d", HVD_VERSION_TEXT, node.rundir.path,
                node.private_mode ? "yes" : "no", (int)getpid());
        if (!node_mesh_wanted(&node))
            node_notify_ready(&node); /* else when the mesh is there */
        node_stop_check(&node);
        code = sd_event_loop(node.event);
        code = code < 0 ? 1 : code;
    }
    finish(&node);
    if (code == 0)
        HVI_LOG(HVI_LOG_INFO, "main", "exit", "hvdd has ended", "");
    return code;
}
