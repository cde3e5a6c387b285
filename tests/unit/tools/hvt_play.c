/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tools/hvt_play.h"
#include "tests/unit/hvt_file.h"

#include "base/status.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <zmq.h>

struct hvi_admin_request hvt_asked[HVT_LINES_MAX];

#ifdef __SANITIZE_ADDRESS__
/* libzmq loses messages that are on their way while a socket closes without linger, now and then. */
#define LOSES_MESSAGES "leak:libzmq.so"

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return LOSES_MESSAGES;
}

void hvt_forgive_libzmq(const char *root)
{
    char path[128], options[256];
    snprintf(path, sizeof path, "%s/suppressions", root);
    hvt_write_file(path, 0644, LOSES_MESSAGES "\n");
    snprintf(options, sizeof options, "suppressions=%s:print_suppressions=0", path);
    setenv("LSAN_OPTIONS", options, 1);
}
#else
void hvt_forgive_libzmq(const char *root)
{
    (void)root;
}
#endif

struct player {
    void *context, *socket;
    const struct hvt_line *lines;
    size_t count;
};

/* As hvdd's gate, which is given the listening socket. */
static void open_player(struct player *player, const char *root)
{
    char endpoint[128];
    const int linger_ms = 0;
    const int patience_ms = 20000;
    const int fd = hvt_listen(root, "admin.sock", SOCK_STREAM);
    player->context = zmq_ctx_new();
    player->socket = zmq_socket(player->context, ZMQ_ROUTER);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_USE_FD, &fd, sizeof fd), 0);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms), 0);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms),
                     0);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/admin.sock", root);
    ck_assert_int_eq(zmq_bind(player->socket, endpoint), 0);
}

/* The next question into *asked_p; who asks. */
static int take_question(struct player *player, size_t line, unsigned char identity_p[64])
{
    unsigned char body[4096];
    char complaint[256] = "";
    const int bytes = zmq_recv(player->socket, identity_p, 64, 0);
    ck_assert_msg(bytes > 0, "line %zu was not asked for", line);
    ck_assert_int_eq(zmq_recv(player->socket, body, sizeof body, 0), 0); /* as of a REQ socket */
    const int length = zmq_recv(player->socket, body, sizeof body, 0);
    ck_assert_int_gt(length, 0);
    ck_assert_msg(hvi_admin_request_decode(body, (size_t)length, &hvt_asked[line], complaint,
                                           sizeof complaint) == HVI_OK,
                  "%s", complaint);
    ck_assert_int_eq(hvt_asked[line].kind, player->lines[line].kind);
    return bytes;
}

static void answer(struct player *player, size_t line, const unsigned char *identity, int bytes)
{
    unsigned char *body;
    size_t length;
    struct hvi_admin_reply reply = player->lines[line].reply;
    reply.protocol_version = HVI_PROTOCOL_VERSION;
    reply.request = player->lines[line].more ? 0 : hvt_asked[line].request;
    ck_assert_int_eq(hvi_admin_reply_encode(&reply, &body, &length), HVI_OK);
    length -= player->lines[line].cut;
    ck_assert_int_eq(zmq_send(player->socket, identity, (size_t)bytes, ZMQ_SNDMORE), bytes);
    ck_assert_int_eq(zmq_send(player->socket, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_eq(zmq_send(player->socket, body, length, 0), (int)length);
    free(body);
}

/* What was said last is still heard. */
static void leave(struct player *player)
{
    const int linger_ms = 20000;
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms), 0);
    zmq_close(player->socket); /* and with it the listening socket */
    player->socket = NULL;
}

static void *play(void *context)
{
    struct player *player = context;
    unsigned char identity[64];
    int bytes = 0;
    for (size_t i = 0; i < player->count && player->socket != NULL; i++) {
        const struct hvt_line *line = &player->lines[i];
        if (line->silent) /* who does not wait long may not even have asked */
            continue;
        if (!line->more)
            bytes = take_question(player, i, identity);
        if (line->gone)
            leave(player);
        else
            answer(player, i, identity, bytes);
    }
    return NULL;
}

void hvt_play(const char *root, const struct hvt_line *lines, size_t count,
              void (*act)(const void *context), const void *context)
{
    struct player player = {.lines = lines, .count = count};
    char path[128];
    pthread_t thread;
    ck_assert_uint_le(count, HVT_LINES_MAX);
    open_player(&player, root);
    ck_assert_int_eq(pthread_create(&thread, NULL, play, &player), 0);
    act(context);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    if (player.socket != NULL)
        zmq_close(player.socket);
    zmq_ctx_term(player.context);
    snprintf(path, sizeof path, "%s/admin.sock", root);
    unlink(path);
}
