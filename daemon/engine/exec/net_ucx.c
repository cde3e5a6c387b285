/* SPDX-License-Identifier: Apache-2.0
 * The row "ucx": transfers over UCX, whose libucp is opened while the engine runs. It is for RDMA; its TCP does the same.
 *
 *   lane's connection:  hello {address of the worker} ──> both ways, then silence until it ends
 *   UCX:                knock ──> of the one with the lower address, which alone connects; then of the other one
 *                       datagram: copies of heads and small bodies, and last the head of a posted send
 *                       body: from the operand to the operand, where UCX moves it; only after such a head
 *
 * Each port has a worker and an endpoint of its own. The connection over which the addresses have come stays: its
 * other end has proved itself (net/handshake.c), and its end is the end of the lane. UCX's own checks of the other end
 * are off, for they are late or wrong, and mesh/ has better ones; errors that its transports meet are believed.
 *
 * UCX 1.13 is built with assertions by Debian, and one of them ends the process if an endpoint is closed by force while
 * an answer of its own to a first word waits behind it (docs/adr/0027). So a port is ready when its own knock was
 * taken and the other one's has come: both are sends that the other end acknowledges, so the ends know each other then,
 * and nothing of that kind is left. Before that no operand is given to UCX. A port that is given up before it is ready
 * is left alone until the process ends; one that is ready is closed by force. Afterwards its worker ends with what it
 * has not returned, and nothing touches an operand any more.
 *
 * The order of heads is UCX's, as one datagram is received at a time, and a body when its head has come.
 *
 * UCX 1.16 to 1.21 ends the process if the other end goes while a message by rendezvous waits for it, unless its memory
 * has a name (a memory handle): without memory events it has no registration cache, which it asks all the same (its
 * issue 11467). So with these, memory that is given to UCX is named before.
 *
 * UCX touches posted memory outside of base/pages.h. So the pages have to be there before (needs_pages). */
#include "base/assert.h"
#include "base/clock.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/exec/net.h"

#include <dirent.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define LIBRARY       "libucp.so.0"
#define API_MAJOR     ((unsigned)UCP_API_MAJOR)
#define API_MINOR     ((unsigned)UCP_API_MINOR)
#define MAGIC         UINT32_C(0x75646876) /* "vhdu" */
#define ADDRESS_MAX   4096u
#define PROGRESS_MOST 8
/* Over TCP: so much is sent without asking, and waits in the other end's memory. It is what goes in a datagram. Above
 * it the sender waits until the receiver has named its memory. */
#define RNDV_BYTES "65664"
/* What the other end had sent before it closed may come later than the end of the lane's connection: TCP sends a lost
 * segment again after 200 ms at least. */
#define LATE_NS HVI_NS_SEC
/* A closed endpoint's requests come back at once, or never. Those of ports that cease together have it together. */
#define CLOSE_NS (100 * HVI_NS_MS)
/* A large body waits for the other engine, not for its kernel: on busy cores that has taken 180 ms. */
#define PATIENCE_NS (500 * HVI_NS_MS)
_Static_assert(PATIENCE_NS + ENGINE_WIRE_TICK_NS + CLOSE_NS <= ENGINE_WIRE_FAILED_NS,
               "failed works are over in time");

enum { TAG_KNOCK = 1, TAG_DATAGRAM, TAG_BODY };

/* ---- the library ---- */

#define CALLS(X)                                                                                   \
    X(config_read)                                                                                 \
    X(config_modify)                                                                               \
    X(config_release)                                                                              \
    X(init_version)                                                                                \
    X(cleanup)                                                                                     \
    X(get_version)                                                                                 \
    X(get_version_string)                                                                          \
    X(mem_map)                                                                                     \
    X(mem_unmap)                                                                                   \
    X(worker_create)                                                                               \
    X(worker_destroy)                                                                              \
    X(worker_get_address)                                                                          \
    X(worker_release_address)                                                                      \
    X(worker_get_efd)                                                                              \
    X(worker_arm)                                                                                  \
    X(worker_progress)                                                                             \
    X(ep_create)                                                                                   \
    X(ep_close_nbx)                                                                                \
    X(ep_flush_nbx)                                                                                \
    X(tag_send_nbx)                                                                                \
    X(tag_send_sync_nbx)                                                                           \
    X(tag_recv_nbx)                                                                                \
    X(request_cancel)                                                                              \
    X(request_free)

/* Once for the process: UCX does not survive being closed. */
static struct {
    void *library;
#define DECLARE(name) __typeof__(ucp_##name) *name;
    CALLS(DECLARE)
#undef DECLARE
    const char *(*status_string)(ucs_status_t status);
    bool names_memory; /* this version needs it: see above */
} ucp;

/* Read when the library is loaded. What the engine has inherited is its user's, and not meant for it. */
static const char *const environment[][2] = {
    {"UCX_ERROR_SIGNALS", ""},     /* it installs no handler */
    {"UCX_HANDLE_ERRORS", "none"}, /* nor waits for a debugger */
    {"UCX_DEBUG_SIGNO", "0"},      /* nor has a signal of its own */
    {"UCX_MEM_EVENTS", "n"},       /* patches no mmap */
    {"UCX_VFS_ENABLE", "n"},       /* shows its state to no other process */
    {"UCX_LOG_LEVEL", "fatal"},    /* the engine says what has failed */
    {"UCX_TCP_CONN_NB", "y"},      /* else making an endpoint may block for minutes */
};

/* UCX reads a ucx.conf of the home and of the working directory, too. The engine needs neither. */
static bool clean_environment(void)
{
    char name[128];

    for (size_t i = 0; environ && environ[i];) {
        size_t length = strcspn(environ[i], "=");
        if (strncmp(environ[i], "UCX_", 4) != 0 || length >= sizeof name) {
            i++;
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)length, environ[i]);
        unsetenv(name);
    }
    for (size_t i = 0; i < sizeof environment / sizeof environment[0]; i++)
        setenv(environment[i][0], environment[i][1], 1);
    unsetenv("HOME");
    return chdir("/") == 0;
}

static bool find(const char *name, void *function_p)
{
    void *function = dlsym(ucp.library, name);

    memcpy(function_p, &function, sizeof function);
    return function != NULL;
}

/* NULL, or a function that is not there. */
static const char *find_all(void)
{
    const char *missing = NULL;

#define FIND(name)                                                                                 \
    if (!find("ucp_" #name, &ucp.name))                                                            \
        missing = "ucp_" #name;
    CALLS(FIND)
#undef FIND
    if (!find("ucs_status_string", &ucp.status_string))
        missing = "ucs_status_string";
    return missing;
}

static bool check_version(char text_p[ENGINE_TEXT_BYTES])
{
    unsigned major = 0, minor = 0, release = 0;
    const char *missing = find_all();

    if (ucp.get_version)
        ucp.get_version(&major, &minor, &release);
    ucp.names_memory = minor >= 16 && minor <= 21;
    if (!missing && major == API_MAJOR && minor >= API_MINOR)
        return true;
    snprintf(text_p, ENGINE_TEXT_BYTES,
             "net-transport is ucx, and " LIBRARY " is of UCX %u.%u%s%s, but this hvdd-engine "
             "needs %u.%u or a newer one of %u: install that, or set net-transport to "
             "tcp",
             major, minor, missing ? " without " : "", missing ? missing : "", API_MAJOR, API_MINOR,
             API_MAJOR);
    return false;
}

static bool load(const char *address, char text_p[ENGINE_TEXT_BYTES])
{
    if (ucp.library)
        return true;
    if (!clean_environment()) {
        snprintf(text_p, ENGINE_TEXT_BYTES,
                 "net-transport is ucx, and the engine cannot enter the directory /: set "
                 "net-transport to tcp");
        return false;
    }
    setenv("UCX_TCP_AF_PRIO", strchr(address, ':') ? "inet6" : "inet", 1);
    ucp.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!ucp.library) {
        snprintf(text_p, ENGINE_TEXT_BYTES,
                 "net-transport is ucx, and the library cannot be loaded: %s; install libucx0, or "
                 "set net-transport to tcp",
                 dlerror());
        return false;
    }
    if (check_version(text_p))
        return true;
    ucp.library = NULL; /* it stays all the same */
    return false;
}

/* ---- what ports share ---- */

struct shared {
    ucp_context_h context;
    bool abandoned; /* a worker, and so the context stays */
};

/* "mlx5_0:1", the interface's RDMA device, or "". */
static void find_rdma(const char *interface, char *device_p, size_t size)
{
    char path[128], port[16] = "0";

    device_p[0] = '\0';
    snprintf(path, sizeof path, "/sys/class/net/%s/device/infiniband", interface);
    DIR *folder = opendir(path);
    if (!folder)
        return;
    const struct dirent *entry = readdir(folder);
    while (entry && entry->d_name[0] == '.')
        entry = readdir(folder);
    snprintf(path, sizeof path, "/sys/class/net/%s/dev_port", interface);
    FILE *file = fopen(path, "re");
    if (file && !fgets(port, sizeof port, file))
        port[0] = '\0';
    if (file)
        fclose(file);
    if (entry)
        snprintf(device_p, size, "%.32s:%ld", entry->d_name, strtol(port, NULL, 10) + 1);
    closedir(folder);
}

/* Else UCX says nothing, and takes TCP. */
static bool may_open_verbs(void)
{
    bool may = false;
    const struct dirent *entry;
    DIR *folder = opendir("/dev/infiniband");

    while (folder && !may && (entry = readdir(folder)))
        may = strncmp(entry->d_name, "uverbs", 6) == 0 &&
              faccessat(dirfd(folder), entry->d_name, R_OK | W_OK, AT_EACCESS) == 0;
    if (folder)
        closedir(folder);
    return may;
}

static void tell(const char *interface, const char *rdma, const char *devices)
{
    HVI_LOG(HVI_LOG_INFO, "net", "ucx", "data between nodes goes over UCX", "version=%s devices=%s",
            ucp.get_version_string(), devices);
    if (!rdma[0])
        HVI_LOG(HVI_LOG_WARN, "net", "ucx-tcp",
                "the interface has no RDMA device: UCX moves data over TCP, and net-transport tcp "
                "is the better choice",
                "interface=%s", interface);
    else if (!may_open_verbs())
        HVI_LOG(HVI_LOG_WARN, "net", "ucx-tcp",
                "this engine may open no RDMA device in /dev/infiniband: UCX moves data over TCP; "
                "set PrivateDevices=no in a drop-in of hvdd-engine@.service",
                "interface=%s rdma=%s", interface, rdma);
}

static ucs_status_t make_context(struct shared *shared, const char *interface)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP};
    char rdma[64], devices[128];
    ucp_config_t *config;

    find_rdma(interface, rdma, sizeof rdma);
    snprintf(devices, sizeof devices, "%s%s%.31s", rdma, rdma[0] ? "," : "", interface);
    const char *const settings[][2] = {
        {"TLS", rdma[0] ? "ib,tcp" : "tcp"},
        {"NET_DEVICES", devices},
        {"MAX_RNDV_RAILS", "1"},
        {"RNDV_THRESH", rdma[0] ? "auto" : RNDV_BYTES},
        {"KEEPALIVE_INTERVAL", "inf"},
    };
    ucs_status_t status = ucp.config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return status;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && status == UCS_OK; i++)
        status = ucp.config_modify(config, settings[i][0], settings[i][1]);
    if (status == UCS_OK)
        status = ucp.init_version(API_MAJOR, API_MINOR, &params, config, &shared->context);
    ucp.config_release(config);
    if (status == UCS_OK)
        tell(interface, rdma, devices);
    return status;
}

static void ucx_end(void *user)
{
    struct shared *shared = user;

    if (shared->context && !shared->abandoned)
        ucp.cleanup(shared->context);
    free(shared);
}

static int make_shared(const char *interface, void **shared_p, char text_p[ENGINE_TEXT_BYTES])
{
    struct shared *shared = calloc(1, sizeof *shared);

    if (!shared) {
        snprintf(text_p, ENGINE_TEXT_BYTES, "the engine is out of memory");
        return HVI_ERR_NO_MEMORY;
    }
    ucs_status_t status = make_context(shared, interface);
    if (status != UCS_OK) {
        snprintf(text_p, ENGINE_TEXT_BYTES,
                 "UCX cannot use the interface %s: %s; set net-transport to tcp", interface,
                 ucp.status_string(status));
        shared->context = NULL;
        ucx_end(shared);
        return HVI_ERR_UNSUPPORTED;
    }
    *shared_p = shared;
    return HVI_OK;
}

static int ucx_begin(const char *address, void **shared_p, char text_p[ENGINE_TEXT_BYTES])
{
    struct hvi_interface interface;
    char why[256];

    if (hvi_interface_find(address, AF_UNSPEC, &interface, why, sizeof why) != HVI_OK) {
        snprintf(text_p, ENGINE_TEXT_BYTES,
                 "no interface has the address %s, by which other nodes know this one: UCX cannot "
                 "be told which one to use; set net-transport to tcp",
                 address);
        return HVI_ERR_UNSUPPORTED;
    }
    return load(address, text_p) ? make_shared(interface.name, shared_p, text_p)
                                 : HVI_ERR_UNSUPPORTED;
}

/* ---- requests ---- */

/* One that UCX has, or has returned. */
struct request {
    void *handle;
    bool busy, over;
    ucs_status_t status;
    size_t received; /* of a receive that is over: what has come */
};

/* Around a call that gives one to UCX, which may call back before it returns. */
static void *begin(struct request *request)
{
    *request = (struct request){.busy = true};
    return request;
}

static void note_answer(struct request *request, ucs_status_ptr_t answer)
{
    if (UCS_PTR_IS_PTR(answer)) {
        request->handle = request->busy ? answer : NULL;
        return;
    }
    *request = (struct request){.over = true, .status = UCS_PTR_RAW_STATUS(answer)};
}

static void on_over(void *handle, ucs_status_t status, void *user)
{
    struct request *request = user;

    request->handle = NULL;
    request->busy = false;
    request->over = true;
    request->status = status;
    ucp.request_free(handle);
}

static void on_received(void *handle, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user)
{
    struct request *request = user;

    request->received = info->length;
    on_over(handle, status, user);
}

static ucp_request_param_t sends(struct request *request)
{
    return (ucp_request_param_t){.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_over,
                                 .user_data = begin(request)};
}

/* ---- a port ---- */

struct hello {
    uint32_t magic, address_bytes;
};
_Static_assert(sizeof(struct hello) == 8, "on the wire");

struct datagram {
    uint32_t bytes;    /* all of it */
    uint32_t has_body; /* that of its last head comes by itself */
};
_Static_assert(sizeof(struct datagram) == 8, "on the wire");

#define DATAGRAM_BYTES (sizeof(struct datagram) + ENGINE_WIRE_PACK_BYTES + ENGINE_WIRE_HEAD_BYTES)

struct ucx {
    struct shared *shared;
    ucp_worker_h worker;
    int event_fd; /* the worker's */
    bool armed;   /* nothing has come from UCX or was given to it since it was looked at last */
    bool moved;   /* something, since progress() said so last */
    int fd;
    int error;          /* negative; 0: none */
    uint64_t closed_ns; /* when its connection has ended; 0: it has not */
    uint64_t ceased_ns; /* when its endpoint was told to close; 0: it was not */
    ucp_ep_h endpoint;  /* NULL: not yet */
    bool greeted;       /* the other end's address has come: UCX may hear of it */
    bool ready;         /* the ends know each other */
    struct request knock_out, knock_in, datagram_out, body_out, flush, datagram_in, body_in,
        closing;
    ucp_mem_h out_name, in_name, body_out_name, body_in_name; /* NULL: has none */

    /* Sending. */
    const void *head, *body;
    uint64_t head_bytes, body_bytes;
    uint32_t packed;   /* bytes in .out, behind its struct datagram */
    bool sends;        /* .out is with UCX, */
    bool sends_posted; /* and in it the posted send */
    bool dirty;        /* something was sent since the last flush began */

    /* Receiving. */
    unsigned char *to;
    uint64_t wanted;
    uint32_t ahead_at, ahead_end; /* in .in */
    bool body_follows;

    _Atomic uint64_t sent, received; /* relaxed: counts */
    unsigned char knocks[2];         /* what is sent, and what has come */
    uint32_t hello_bytes, hello_sent, hello_have;
    unsigned char hello_out[sizeof(struct hello) + ADDRESS_MAX];
    unsigned char hello_in[sizeof(struct hello) + ADDRESS_MAX];
    unsigned char out[DATAGRAM_BYTES], in[DATAGRAM_BYTES];
};

static int error_of(const struct ucx *ucx)
{
    if (ucx->error != 0)
        return ucx->error;
    return ucx->closed_ns != 0 && hvi_clock_ns() - ucx->closed_ns >= LATE_NS ? -ECONNRESET : 0;
}

/* ---- names of memory ---- */

static void forget_name(const struct ucx *ucx, ucp_mem_h *name)
{
    if (*name)
        ucp.mem_unmap(ucx->shared->context, *name);
    *name = NULL;
}

/* Unless it has one. Where it cannot have any, nothing may be begun with it: false, and the port has failed. */
static bool name_memory(struct ucx *ucx, ucp_mem_h *name, const void *memory, size_t bytes)
{
    ucp_mem_map_params_t what = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                               UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                 .length = bytes};

    memcpy(&what.address, &memory, sizeof memory);
    if (!ucp.names_memory || *name || ucp.mem_map(ucx->shared->context, &what, name) == UCS_OK)
        return true;
    *name = NULL;
    ucx->error = -ENOMEM;
    return false;
}

static void use_name(ucp_request_param_t *param, ucp_mem_h name)
{
    if (!name)
        return;
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param->memh = name;
}

/* UCX says to the callback alone how much has come; of what is there already 1.13 would not say it otherwise. */
static void receive(struct ucx *ucx, struct request *request, ucp_mem_h *name, void *to,
                    size_t bytes, ucp_tag_t tag)
{
    if (request->busy || request->over || (name && !name_memory(ucx, name, to, bytes)))
        return;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv = on_received,
                                 .user_data = begin(request)};

    if (name)
        use_name(&param, *name);
    note_answer(request, ucp.tag_recv_nbx(ucx->worker, to, bytes, tag, UINT64_MAX, &param));
    ucx->armed = false;
}

static void look_at(struct ucx *ucx)
{
    for (int i = 0; ucx->greeted && !ucx->armed && i < PROGRESS_MOST; i++) {
        if (ucp.worker_progress(ucx->worker) > 0)
            ucx->moved = true;
        else
            ucx->armed = ucp.worker_arm(ucx->worker) != UCS_ERR_BUSY;
    }
}

/* True: something has moved, or UCX has not been looked at to the end. */
static bool progress(struct ucx *ucx)
{
    look_at(ucx);
    bool moved = ucx->moved;
    ucx->moved = false;
    return moved || (ucx->greeted && !ucx->armed);
}

/* ---- its connection ---- */

static void say_hello(struct ucx *ucx)
{
    while (ucx->hello_sent < ucx->hello_bytes) {
        ssize_t sent = send(ucx->fd, ucx->hello_out + ucx->hello_sent,
                            ucx->hello_bytes - ucx->hello_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent <= 0 && errno != EINTR)
            return; /* ready() comes, or the other end has gone */
        ucx->hello_sent += sent > 0 ? (uint32_t)sent : 0;
    }
}

/* How many bytes the hello has, as far as is known; 0: it is none. */
static uint32_t hello_wanted(const struct ucx *ucx)
{
    struct hello hello;

    if (ucx->hello_have < sizeof hello)
        return sizeof hello;
    memcpy(&hello, ucx->hello_in, sizeof hello);
    uint32_t bytes = le32toh(hello.address_bytes);
    return le32toh(hello.magic) == MAGIC && bytes > 0 && bytes <= ADDRESS_MAX
               ? (uint32_t)sizeof hello + bytes
               : 0;
}

/* Nothing follows the hello but the end. */
static void hear(struct ucx *ucx)
{
    unsigned char more;

    while (ucx->error == 0 && ucx->closed_ns == 0) {
        uint32_t wanted = hello_wanted(ucx);
        bool greets = ucx->hello_have < wanted;
        ssize_t got = recv(ucx->fd, greets ? ucx->hello_in + ucx->hello_have : &more,
                           greets ? wanted - ucx->hello_have : 1, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0)
            ucx->closed_ns = hvi_clock_ns();
        else if (!greets)
            ucx->error = -EPROTO;
        else
            ucx->hello_have += (uint32_t)got;
        if (got > 0 && greets && hello_wanted(ucx) == 0)
            ucx->error = -EPROTO;
        else if (got > 0 && greets && ucx->hello_have == hello_wanted(ucx))
            ucx->greeted = true;
    }
}

static void ucx_ready(void *port, uint32_t events)
{
    struct ucx *ucx = port;

    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        say_hello(ucx);
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        hear(ucx);
    ucx->armed = false;
    look_at(ucx); /* or the worker's descriptor would be there again */
}

/* ---- until it is ready ---- */

static void on_failure(void *user, ucp_ep_h endpoint, ucs_status_t status)
{
    struct ucx *ucx = user;

    (void)endpoint, (void)status;
    ucx->error = -ECONNRESET;
}

static bool make_endpoint(struct ucx *ucx)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const void *)(ucx->hello_in + sizeof(struct hello)),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_failure, .arg = ucx},
    };

    ucx->armed = false;
    if (ucp.ep_create(ucx->worker, &params, &ucx->endpoint) == UCS_OK)
        return true;
    ucx->endpoint = NULL;
    ucx->error = -EHOSTUNREACH;
    return false;
}

/* The addresses of two workers differ. */
static bool comes_first(const struct ucx *ucx)
{
    const uint32_t least = ucx->hello_bytes < ucx->hello_have ? ucx->hello_bytes : ucx->hello_have;
    const int order = memcmp(ucx->hello_out, ucx->hello_in, least);

    return order != 0 ? order < 0 : ucx->hello_bytes < ucx->hello_have;
}

/* One connects, and the other one does so over that connection: when both do it at once, UCX has to choose. */
static void knock(struct ucx *ucx)
{
    receive(ucx, &ucx->knock_in, NULL, &ucx->knocks[1], 1, TAG_KNOCK);
    if (ucx->endpoint || (!comes_first(ucx) && !ucx->knock_in.over) || !make_endpoint(ucx))
        return;
    const ucp_request_param_t param = sends(&ucx->knock_out);
    note_answer(&ucx->knock_out,
                ucp.tag_send_sync_nbx(ucx->endpoint, &ucx->knocks[0], 1, TAG_KNOCK, &param));
}

/* True: something has moved. */
static bool get_ready(struct ucx *ucx)
{
    if (!ucx->greeted || ucx->error != 0)
        return false;
    knock(ucx);
    bool moved = progress(ucx);
    knock(ucx);
    if ((ucx->knock_in.over && ucx->knock_in.status != UCS_OK) ||
        (ucx->knock_out.over && ucx->knock_out.status != UCS_OK))
        ucx->error = -ECONNRESET;
    ucx->ready = ucx->error == 0 && ucx->knock_in.over && ucx->knock_out.over;
    return moved || ucx->ready || !ucx->armed;
}

static ucs_status_t make_worker(struct ucx *ucx)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_address_t *address = NULL;
    size_t bytes = 0;

    ucs_status_t status = ucp.worker_create(ucx->shared->context, &params, &ucx->worker);
    if (status != UCS_OK)
        return status;
    status = ucp.worker_get_efd(ucx->worker, &ucx->event_fd);
    if (status == UCS_OK)
        status = ucp.worker_get_address(ucx->worker, &address, &bytes);
    if (status == UCS_OK && bytes > ADDRESS_MAX)
        status = UCS_ERR_BUFFER_TOO_SMALL;
    const struct hello hello = {.magic = htole32(MAGIC), .address_bytes = htole32((uint32_t)bytes)};
    memcpy(ucx->hello_out, &hello, sizeof hello);
    if (status == UCS_OK)
        memcpy(ucx->hello_out + sizeof hello, address, bytes);
    ucx->hello_bytes = (uint32_t)(sizeof hello + bytes);
    if (address)
        ucp.worker_release_address(ucx->worker, address);
    if (status != UCS_OK)
        ucp.worker_destroy(ucx->worker);
    return status;
}

static void *ucx_open(void *shared, int fd, const struct hvi_seal_keys *keys)
{
    struct ucx *ucx = calloc(1, sizeof *ucx);
    ucs_status_t status = UCS_ERR_NO_MEMORY;
    sigset_t all, before;

    HVI_ASSERT(!keys); /* nodes.c */
    /* UCX's thread leaves signals alone. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (ucx) {
        ucx->shared = shared;
        status = make_worker(ucx);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != UCS_OK) {
        HVI_LOG(HVI_LOG_ERROR, "net", "ucx-worker", ucp.status_string(status), "");
        free(ucx);
        close(fd);
        return NULL;
    }
    ucx->fd = fd;
    say_hello(ucx);
    return ucx;
}

static int ucx_fd(const void *port)
{
    return ((const struct ucx *)port)->fd;
}

static int ucx_event(const void *port)
{
    return ((const struct ucx *)port)->event_fd;
}

/* ---- closing ---- */

static bool is_busy(const struct ucx *ucx)
{
    return ucx->closing.busy || ucx->datagram_out.busy || ucx->body_out.busy || ucx->flush.busy ||
           ucx->datagram_in.busy || ucx->body_in.busy;
}

static void cancel(const struct ucx *ucx, const struct request *request)
{
    if (request->busy)
        ucp.request_cancel(ucx->worker, request->handle);
}

static void ucx_cease(void *port)
{
    struct ucx *ucx = port;

    if (!ucx->ready || ucx->ceased_ns != 0)
        return;
    ucx->ceased_ns = hvi_clock_ns();
    cancel(ucx, &ucx->datagram_in);
    cancel(ucx, &ucx->body_in);
    ucp_request_param_t param = sends(&ucx->closing);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    note_answer(&ucx->closing, ucp.ep_close_nbx(ucx->endpoint, &param));
}

/* Nothing of an operand was given to UCX, and it may be in the middle of an answer: see above. */
static void abandon(struct ucx *ucx)
{
    HVI_LOG(HVI_LOG_INFO, "net", "ucx-left",
            "a connection over UCX is given up before it was ready; UCX keeps it until the engine "
            "ends",
            "");
    ucx->shared->abandoned = true;
}

static void forget_names(struct ucx *ucx)
{
    ucp_mem_h *const names[] = {&ucx->out_name, &ucx->in_name, &ucx->body_out_name,
                                &ucx->body_in_name};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        forget_name(ucx, names[i]);
}

static void ucx_close(void *port)
{
    struct ucx *ucx = port;
    bool stays = ucx->greeted && !ucx->ready;

    shutdown(ucx->fd, SHUT_RDWR); /* a forked child may still hold it */
    close(ucx->fd);
    if (stays) {
        abandon(ucx);
        return;
    }
    ucx_cease(ucx);
    while (is_busy(ucx) && hvi_clock_ns() - ucx->ceased_ns < CLOSE_NS)
        ucp.worker_progress(ucx->worker);
    ucp.worker_destroy(ucx->worker);
    forget_names(ucx);
    free(ucx);
}

/* ---- sending ---- */

static void ucx_post_send(void *port, const void *head, uint64_t head_bytes, const void *body,
                          uint64_t body_bytes)
{
    struct ucx *ucx = port;

    ucx->head = head;
    ucx->head_bytes = head_bytes;
    ucx->body = body;
    ucx->body_bytes = body_bytes;
}

static bool ucx_pack(void *port, const void *head, uint64_t head_bytes, const void *body,
                     uint64_t body_bytes)
{
    struct ucx *ucx = port;
    uint64_t room = ENGINE_WIRE_PACK_BYTES - ucx->packed;

    if (ucx->sends || ucx->head_bytes > 0 || head_bytes > room || body_bytes > room - head_bytes)
        return false;
    unsigned char *to = ucx->out + sizeof(struct datagram) + ucx->packed;
    memcpy(to, head, head_bytes);
    if (body_bytes > 0)
        memcpy(to + head_bytes, body, body_bytes);
    ucx->packed += (uint32_t)(head_bytes + body_bytes);
    return true;
}

/* What UCX has taken may still lie in its memory, until a flush has ended; and the other end waits for this one
 * until both are ready. */
static bool ucx_packed(const void *port)
{
    const struct ucx *ucx = port;

    return error_of(ucx) == 0 && (!ucx->ready || ucx->packed > 0 || ucx->dirty || ucx->flush.busy);
}

static void begin_send(struct ucx *ucx)
{
    if (!name_memory(ucx, &ucx->out_name, ucx->out, sizeof ucx->out) ||
        (ucx->body_bytes > 0 && !name_memory(ucx, &ucx->body_out_name, ucx->body, ucx->body_bytes)))
        return;
    ucp_request_param_t datagram = sends(&ucx->datagram_out), body = sends(&ucx->body_out);
    size_t bytes = sizeof(struct datagram) + ucx->packed + ucx->head_bytes;
    const struct datagram about = {.bytes = htole32((uint32_t)bytes),
                                   .has_body = htole32(ucx->body_bytes > 0)};

    memcpy(ucx->out, &about, sizeof about);
    if (ucx->head_bytes > 0)
        memcpy(ucx->out + sizeof about + ucx->packed, ucx->head, ucx->head_bytes);
    atomic_fetch_add_explicit(&ucx->sent, ucx->packed + ucx->head_bytes + ucx->body_bytes,
                              memory_order_relaxed);
    use_name(&datagram, ucx->out_name);
    use_name(&body, ucx->body_out_name);
    note_answer(&ucx->datagram_out,
                ucp.tag_send_nbx(ucx->endpoint, ucx->out, bytes, TAG_DATAGRAM, &datagram));
    note_answer(&ucx->body_out,
                ucx->body_bytes == 0
                    ? NULL
                    : ucp.tag_send_nbx(ucx->endpoint, ucx->body, ucx->body_bytes, TAG_BODY, &body));
    ucx->sends = ucx->dirty = true;
    ucx->sends_posted = ucx->head_bytes > 0;
    ucx->armed = false;
}

static void begin_flush(struct ucx *ucx)
{
    if (ucx->flush.busy || !ucx->dirty)
        return;
    const ucp_request_param_t param = sends(&ucx->flush);
    ucx->dirty = ucx->armed = false;
    note_answer(&ucx->flush, ucp.ep_flush_nbx(ucx->endpoint, &param));
}

/* UCX has returned what begin_send gave it. A send may have been posted meanwhile. */
static int end_send(struct ucx *ucx)
{
    ucx->sends = false;
    ucx->packed = 0;
    forget_name(ucx, &ucx->body_out_name);
    if (ucx->sends_posted)
        ucx->head_bytes = ucx->body_bytes = 0;
    if (ucx->datagram_out.status != UCS_OK || ucx->body_out.status != UCS_OK)
        return -ECONNRESET;
    return ucx->head_bytes > 0 ? ENGINE_WIRE_MOVED : ENGINE_WIRE_OVER;
}

static int ucx_send(void *port)
{
    struct ucx *ucx = port;
    int error = error_of(ucx);

    if (error != 0)
        return error;
    if (!ucx->ready)
        return get_ready(ucx) ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
    if (!ucx->sends && ucx->packed + ucx->head_bytes > 0)
        begin_send(ucx);
    else if (!ucx->sends)
        begin_flush(ucx);
    bool moved = progress(ucx);
    if (ucx->sends && !ucx->datagram_out.busy && !ucx->body_out.busy)
        return end_send(ucx);
    return moved ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
}

/* ---- receiving ---- */

static void ucx_post_receive(void *port, void *to, uint64_t bytes)
{
    struct ucx *ucx = port;

    ucx->to = to;
    ucx->wanted = bytes;
}

static bool ucx_divert(void *port, void *to)
{
    struct ucx *ucx = port;

    if (ucx->body_in.busy)
        return false;
    if (!ucx->body_in.over) /* else it has come to where it was to go */
        ucx->to = to;
    return true;
}

static uint64_t ucx_missing(const void *port)
{
    return ((const struct ucx *)port)->wanted;
}

static void count_received(struct ucx *ucx, uint64_t bytes)
{
    atomic_fetch_add_explicit(&ucx->received, bytes, memory_order_relaxed);
}

/* Of a datagram: what was one head, or one body, to the sender. */
static int take_ahead(struct ucx *ucx)
{
    if (ucx->wanted > ucx->ahead_end - ucx->ahead_at)
        return -EPROTO;
    memcpy(ucx->to, ucx->in + ucx->ahead_at, ucx->wanted);
    ucx->ahead_at += (uint32_t)ucx->wanted;
    ucx->wanted = 0;
    return ENGINE_WIRE_OVER;
}

/* How the request has ended, which may be given to UCX again. */
static int take_result(struct request *request)
{
    const ucs_status_t status = request->status;

    *request = (struct request){0};
    if (status == UCS_OK)
        return 0;
    return status == UCS_ERR_MESSAGE_TRUNCATED ? -EPROTO : -ECONNRESET;
}

static int take_body(struct ucx *ucx)
{
    const size_t received = ucx->body_in.received;
    int error = take_result(&ucx->body_in);

    forget_name(ucx, &ucx->body_in_name);
    if (error == 0 && received != ucx->wanted)
        error = -EPROTO;
    if (error != 0)
        return error;
    count_received(ucx, ucx->wanted);
    ucx->dirty = true; /* UCX tells the sender */
    ucx->body_follows = false;
    ucx->wanted = 0;
    return ENGINE_WIRE_OVER;
}

static int take_datagram(struct ucx *ucx)
{
    const size_t received = ucx->datagram_in.received;
    int error = take_result(&ucx->datagram_in);
    struct datagram about;

    if (error == 0 && received <= sizeof about)
        error = -EPROTO;
    if (error != 0)
        return error;
    memcpy(&about, ucx->in, sizeof about);
    uint32_t bytes = le32toh(about.bytes);
    if (bytes != received)
        return -EPROTO;
    ucx->ahead_at = sizeof about;
    ucx->ahead_end = bytes;
    ucx->body_follows = about.has_body != 0;
    count_received(ucx, bytes - (uint32_t)sizeof about);
    return take_ahead(ucx);
}

/* What has come is taken before an error is believed. */
static int ucx_receive(void *port)
{
    struct ucx *ucx = port;

    if (!ucx->ready) {
        int error = error_of(ucx);
        bool moved = get_ready(ucx);
        return error != 0 ? error : moved ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
    }
    if (ucx->ahead_at < ucx->ahead_end)
        return take_ahead(ucx);
    if (ucx->body_follows)
        receive(ucx, &ucx->body_in, &ucx->body_in_name, ucx->to, ucx->wanted, TAG_BODY);
    else
        receive(ucx, &ucx->datagram_in, &ucx->in_name, ucx->in, sizeof ucx->in, TAG_DATAGRAM);
    bool moved = progress(ucx);
    if (ucx->body_in.over)
        return take_body(ucx);
    if (ucx->datagram_in.over)
        return take_datagram(ucx);
    int error = error_of(ucx);
    return error != 0 ? error : moved ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
}

static void ucx_count(const void *port, struct engine_lane_row *row_p)
{
    const struct ucx *ucx = port;
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    row_p->bytes_sent += atomic_load_explicit(&ucx->sent, memory_order_relaxed);
    row_p->bytes_received += atomic_load_explicit(&ucx->received, memory_order_relaxed);
    if (getsockopt(ucx->fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
        row_p->rtt_ns = (uint64_t)info.tcpi_rtt * 1000; /* of the connection beside it */
}

const struct engine_wire_transport engine_wire_ucx = {
    .name = "ucx",
    .needs_pages = true,
    .patience_ns = PATIENCE_NS,
    .begin = ucx_begin,
    .end = ucx_end,
    .open = ucx_open,
    .cease = ucx_cease,
    .close = ucx_close,
    .fd = ucx_fd,
    .event = ucx_event,
    .ready = ucx_ready,
    .post_send = ucx_post_send,
    .pack = ucx_pack,
    .packed = ucx_packed,
    .post_receive = ucx_post_receive,
    .divert = ucx_divert,
    .missing = ucx_missing,
    .send = ucx_send,
    .receive = ucx_receive,
    .count = ucx_count,
};
