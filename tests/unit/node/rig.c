/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/node/rig.h"

#include "admin/client.h"
#include "base/clock.h"
#include "base/status.h"
#include "shm/abi.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKEN    "HVT_RIG"
#define ATTACHED "attaching -> attached"

static const char *build(const char *name)
{
    static char path[2][512];
    static int turn;
    const char *dir = getenv("HVD_BUILD_DIR");

    ck_assert_msg(dir != NULL, "HVD_BUILD_DIR is not set");
    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", dir, name);
    return path[turn];
}

static uint64_t deadline(void)
{
    return hvi_deadline_after(RIG_MS * (int64_t)HVI_NS_MS);
}

static void nap(void)
{
    poll(NULL, 0, 2);
}

void rig_init(struct rig *rig)
{
    *rig = (struct rig){.parent_fd = -1, .notify_fd = -1, .listen_fd = -1};
    snprintf(rig->base, sizeof(rig->base), "/tmp/hvt-node-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(rig->base));
    ck_assert_int_eq(chmod(rig->base, 0755), 0);
    snprintf(rig->dir, sizeof(rig->dir), "%s/run", rig->base);
    snprintf(rig->log, sizeof(rig->log), "%s/log", rig->base);
    snprintf(rig->conf, sizeof(rig->conf), "%s/conf", rig->base);
    setenv(TOKEN, rig->base, 1); /* engines inherit it, so they can be found */
    signal(SIGPIPE, SIG_IGN);
}

static void empty_dir(const char *path)
{
    char name[400];
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        unlink(name);
    }
    if (dir != NULL)
        closedir(dir);
    rmdir(path);
}

/* The environment of a process carries our token, and it is not a hvdd or test. */
static bool is_our_engine(const struct rig *rig, const char *pid)
{
    char path[300], text[8192], needle[128];
    FILE *in;
    size_t length;

    snprintf(path, sizeof(path), "/proc/%s/comm", pid);
    in = fopen(path, "re");
    if (in == NULL || fgets(text, sizeof(text), in) == NULL ||
        strncmp(text, "hvt_fake_engine", 15) != 0) {
        if (in != NULL)
            fclose(in);
        return false;
    }
    fclose(in);
    snprintf(path, sizeof(path), "/proc/%s/environ", pid);
    in = fopen(path, "re");
    if (in == NULL)
        return false;
    length = fread(text, 1, sizeof(text), in);
    fclose(in);
    snprintf(needle, sizeof(needle), TOKEN "=%s", rig->base);
    return memmem(text, length, needle, strlen(needle)) != NULL;
}

static int each_engine(const struct rig *rig, int signal_number)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int count = 0;

    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !is_our_engine(rig, entry->d_name))
            continue;
        count++;
        if (signal_number != 0)
            kill((pid_t)atoi(entry->d_name), signal_number);
    }
    closedir(dir);
    return count;
}

int rig_engines(const struct rig *rig)
{
    return each_engine(rig, 0);
}

void rig_wait_engines(const struct rig *rig, int count)
{
    uint64_t end = deadline();
    while (rig_engines(rig) != count) {
        ck_assert_msg(!hvi_deadline_passed(end), "%d engines instead of %d", rig_engines(rig),
                      count);
        nap();
    }
}

void rig_fini(struct rig *rig)
{
    int left;

    if (rig->pid > 0) {
        kill(rig->pid, SIGKILL);
        waitpid(rig->pid, NULL, 0);
        left = 0; /* the test ended in the middle: engines are expected */
    } else {
        left = rig_engines(rig);
    }
    each_engine(rig, SIGKILL);
    if (rig->parent_fd >= 0)
        close(rig->parent_fd);
    if (rig->notify_fd >= 0)
        close(rig->notify_fd);
    empty_dir(rig->dir);
    empty_dir(rig->base);
    ck_assert_int_eq(left, 0);
}

/* ---- the process ------------------------------------------------------------------------------------------------- */

#define ARGUMENTS_MAX 32

static void child(struct rig *rig, char **argv, int parent_fd)
{
    int log_fd = open(rig->log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    char number[16];

    dup2(log_fd, 2);
    if (rig->notify_fd >= 0) {
        char path[160];
        snprintf(path, sizeof(path), "%s/notify", rig->base);
        setenv("NOTIFY_SOCKET", path, 1);
    }
    if (rig->listen_fd >= 0) {
        snprintf(number, sizeof(number), "%d", (int)getpid());
        setenv("LISTEN_PID", number, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("LISTEN_FDNAMES", "attach", 1);
        dup2(rig->listen_fd, 3);
    }
    (void)parent_fd;
    if (rig->nofile > 0) {
        struct rlimit limit = {(rlim_t)rig->nofile, (rlim_t)rig->nofile};
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (rig->uid != 0 && setuid(rig->uid) != 0)
        _exit(99);
    execv(argv[0], argv);
    _exit(98);
}

/* Another user may not be able to enter the folder of the build, nor to run what is there. */
static void copy_for_another_user(const struct rig *rig, char *path, size_t bytes)
{
    char command[700], name[100];

    snprintf(name, sizeof(name), "%s", strrchr(path, '/'));
    snprintf(command, sizeof(command), "install -m 0755 '%s' %s", path, rig->base);
    ck_assert_msg(system(command) == 0, "%s failed", command);
    snprintf(path, bytes, "%s%s", rig->base, name);
}

/* Starts it; the read end of --ready-fd. */
static int launch(struct rig *rig, const char *const *arguments)
{
    static char program[512], engine[512], gate[512], ready_text[16], parent_text[16];
    char *argv[ARGUMENTS_MAX] = {
        program,     (char *)"--runtime-dir", rig->dir,        (char *)"--engine",
        engine,      (char *)"--ready-fd",    ready_text,      (char *)"--parent-fd",
        parent_text, (char *)"--log-level",   (char *)"debug", (char *)"--gate",
        gate};
    int count = 13, ready[2], parent[2];

    snprintf(program, sizeof(program), "%s", build("bin/hvdd"));
    snprintf(engine, sizeof(engine), "%s", build("tests/hvt_fake_engine"));
    snprintf(gate, sizeof(gate), "%s", build("libexec/hvdd/hvdd-gate"));
    if (rig->uid != 0) {
        copy_for_another_user(rig, program, sizeof(program));
        copy_for_another_user(rig, engine, sizeof(engine));
        copy_for_another_user(rig, gate, sizeof(gate));
    }
    for (; arguments != NULL && *arguments != NULL; arguments++)
        argv[count++] = (char *)(uintptr_t)*arguments;
    /* Above 3, where a passed socket goes. */
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe2(parent, O_CLOEXEC), 0);
    int ready_fd = fcntl(ready[1], F_DUPFD, 20), parent_fd = fcntl(parent[0], F_DUPFD, 20);
    close(ready[1]);
    close(parent[0]);
    fcntl(ready[0], F_SETFD, FD_CLOEXEC);
    snprintf(ready_text, sizeof(ready_text), "%d", ready_fd);
    snprintf(parent_text, sizeof(parent_text), "%d", parent_fd);
    rig->pid = fork();
    ck_assert_int_ge(rig->pid, 0);
    if (rig->pid == 0)
        child(rig, argv, parent_fd);
    close(ready_fd);
    close(parent_fd);
    if (rig->parent_fd >= 0)
        close(rig->parent_fd);
    rig->parent_fd = parent[1];
    return ready[0];
}

static bool wait_ready(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    char line[16] = "";

    bool ready = poll(&poll_fd, 1, RIG_MS) == 1 && read(fd, line, sizeof(line) - 1) >= 6 &&
                 (strcmp(line, "ready\n") == 0 || strncmp(line, "ready ", 6) == 0); /* PORT */
    close(fd);
    return ready;
}

void rig_start(struct rig *rig, const char *const *arguments)
{
    if (!wait_ready(launch(rig, arguments))) {
        char command[200];
        snprintf(command, sizeof(command), "cat %s >&2", rig->log);
        if (system(command) != 0)
            perror("cat");
        ck_abort_msg("hvdd did not become ready");
    }
}

int rig_start_failing(struct rig *rig, const char *const *arguments)
{
    ck_assert(!wait_ready(launch(rig, arguments)));
    return rig_wait(rig);
}

int rig_wait(struct rig *rig)
{
    uint64_t end = deadline();
    int status;

    while (waitpid(rig->pid, &status, WNOHANG) == 0) {
        ck_assert_msg(!hvi_deadline_passed(end), "hvdd does not end");
        nap();
    }
    rig->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void rig_kill(struct rig *rig, int signal_number)
{
    ck_assert_int_eq(kill(rig->pid, signal_number), 0);
}

int rig_log_count(const struct rig *rig, const char *needle)
{
    static char text[4 * 1024 * 1024];
    FILE *in = fopen(rig->log, "re");
    int count = 0;

    if (in == NULL)
        return 0;
    text[fread(text, 1, sizeof(text) - 1, in)] = '\0';
    fclose(in);
    for (const char *at = strstr(text, needle); at != NULL; at = strstr(at + 1, needle))
        count++;
    return count;
}

void rig_wait_log(const struct rig *rig, const char *needle, int times)
{
    uint64_t end = deadline();
    while (rig_log_count(rig, needle) < times) {
        ck_assert_msg(!hvi_deadline_passed(end), "the log does not say \"%s\" %d times", needle,
                      times);
        nap();
    }
}

void rig_become(struct rig *rig, uid_t uid)
{
    char text[16];

    if (geteuid() != 0)
        return;
    ck_assert_int_eq(chown(rig->base, uid, (gid_t)-1), 0);
    close(creat(rig->log, 0666));
    ck_assert_int_eq(chown(rig->log, uid, (gid_t)-1), 0);
    rig->uid = uid;
    snprintf(text, sizeof(text), "%u", (unsigned)uid);
    setenv("HVD_SERVICE_UID", text, 1); /* else tools of others say nothing to it */
}

bool rig_exists(const struct rig *rig, const char *name)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", rig->dir, name);
    return access(path, F_OK) == 0;
}

/* ---- clients ------------------------------------------------------------------------------------------------------ */

struct hvi_attach_request *rig_request(const char *job, int32_t rank, int32_t size)
{
    static struct hvi_attach_request request;

    memset(&request, 0, sizeof(request));
    request.protocol_version = HVI_PROTOCOL_VERSION;
    request.abi_version = HVI_ABI_VERSION;
    snprintf(request.job, sizeof(request.job), "%s", job);
    request.rank = request.local_rank = rank;
    request.size = request.local_size = size;
    request.cross_size = 1;
    snprintf(request.origin, sizeof(request.origin), "arguments");
    snprintf(request.client_version, sizeof(request.client_version), "0.0.0");
    return &request;
}

int rig_connect(const struct rig *rig)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/attach.sock", rig->dir);
    ck_assert_msg(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "connect: %s",
                  strerror(errno));
    return fd;
}

void rig_send(int fd, const struct hvi_packet_msg *msg)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length;

    ck_assert_int_eq(hvi_packet_msg_encode(msg, bytes, sizeof(bytes), &length), HVI_OK);
    int status = hvi_packet_send(fd, bytes, length, NULL, 0, deadline());
    /* Who is refused before he has said anything can still read why. */
    ck_assert_msg(status == HVI_OK || status == HVI_ERR_CLOSED, "%s", hvi_status_text(status));
}

void rig_send_attach(int fd, const struct hvi_attach_request *request)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REQUEST, .attach_request = *request};
    rig_send(fd, &msg);
}

bool rig_read_reply(int fd, struct hvi_attach_reply *reply_p)
{
    static struct hvi_packet packet;
    struct hvi_packet_msg msg;
    int status = hvi_packet_receive(fd, &packet, deadline());

    if (status == HVI_ERR_CLOSED)
        return false;
    ck_assert_msg(status == HVI_OK, "no reply: %s", hvi_status_text(status));
    hvi_packet_close_fds(&packet);
    ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_ATTACH_REPLY);
    *reply_p = msg.attach_reply;
    return true;
}

int rig_attach(const struct rig *rig, const struct hvi_attach_request *request, int status,
               struct hvi_attach_reply *reply_p)
{
    int before = rig_log_count(rig, ATTACHED), fd = rig_connect(rig);

    rig_send_attach(fd, request);
    ck_assert(rig_read_reply(fd, reply_p));
    ck_assert_msg(reply_p->status == status, "%s: %s", hvi_status_name(reply_p->status),
                  reply_p->text);
    if (status == HVI_OK) /* the engine tells the client first */
        rig_wait_log(rig, ATTACHED, before + 1);
    return fd;
}

int rig_join(const struct rig *rig, const char *job, int32_t rank, int32_t size)
{
    struct hvi_attach_reply reply;
    return rig_attach(rig, rig_request(job, rank, size), HVI_OK, &reply);
}

void rig_detach(int fd)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH, .detach = {.request = 1}};
    rig_send(fd, &msg);
    close(fd);
}

void rig_ask(const struct rig *rig, const struct hvi_admin_request *request,
             struct hvi_admin_reply *reply_p)
{
    struct hvi_admin_request copy = *request;
    struct admin_client *client;
    char text[256] = "";

    ck_assert_int_eq(admin_client_open(rig->dir, &client), HVI_OK);
    int status = admin_client_call(client, &copy, deadline(), reply_p, text, sizeof(text));
    ck_assert_msg(status == HVI_OK, "admin: %s %s", hvi_status_name(status), text);
    admin_client_close(client);
}
