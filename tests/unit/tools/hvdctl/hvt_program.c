/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tools/hvdctl/hvt_program.h"

#include "base/status.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <pthread.h>
#include <spawn.h>
#include <zmq.h>

#define WORDS_MAX 24

char hvt_root[64];
struct hvi_admin_request hvt_asked[HVT_LINES_MAX];
int hvt_code;
char hvt_out[32768], hvt_err[8192];
const char *hvt_out_path, *hvt_in_path;

#ifdef __SANITIZE_ADDRESS__
/* libzmq loses messages that are on their way while a socket closes without linger, now and then. */
#define LOSES_MESSAGES "leak:libzmq.so"

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return LOSES_MESSAGES;
}

/* Of hvdctl. */
static void suppress_leaks(void)
{
    char options[128];
    FILE *file = fopen(hvt_path("suppressions"), "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(LOSES_MESSAGES "\n", file), 0);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(options, sizeof options, "suppressions=%s:print_suppressions=0",
             hvt_path("suppressions"));
    setenv("LSAN_OPTIONS", options, 1);
}
#else
static void suppress_leaks(void)
{
}
#endif

void hvt_program_setup(void)
{
    snprintf(hvt_root, sizeof hvt_root, "/tmp/hvt-ctl-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(hvt_root));
    setenv("HVD_ADDRESS", hvt_root, 1);
    setenv("XDG_RUNTIME_DIR", hvt_root, 1);
    setenv("LC_ALL", "C", 1);
    hvt_out_path = hvt_in_path = NULL;
    suppress_leaks();
}

void hvt_program_teardown(void)
{
    DIR *stream = opendir(hvt_root);
    const struct dirent *entry;
    ck_assert_ptr_nonnull(stream);
    while ((entry = readdir(stream)) != NULL)
        unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    ck_assert_int_eq(rmdir(hvt_root), 0);
}

const char *hvt_path(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", hvt_root, name);
    return path;
}

/* ---- hvdctl ---- */

/* In the place of each @ the folder. */
static void fill_in(const char *words, char *line_p, size_t size)
{
    size_t used = 0;
    for (; *words != '\0'; words++) {
        const int length = *words == '@' ? snprintf(line_p + used, size - used, "%s", hvt_root)
                                         : snprintf(line_p + used, size - used, "%c", *words);
        used += (size_t)length;
        ck_assert_uint_lt(used, size);
    }
}

static pid_t spawn(char **argv, const char *out_path, const char *err_path)
{
    static const int create = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_t actions;
    char program[512];
    pid_t pid = 0;
    ck_assert_ptr_nonnull(getenv("HVD_BUILD_DIR"));
    snprintf(program, sizeof program, "%s/bin/hvdctl", getenv("HVD_BUILD_DIR"));
    ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO,
                                     hvt_in_path != NULL ? hvt_in_path : "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_path, create, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_path, create, 0600);
    ck_assert_int_eq(posix_spawn(&pid, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

void hvt_read(const char *path, char *text_p, size_t size)
{
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    const size_t length = fread(text_p, 1, size, file);
    fclose(file);
    ck_assert_uint_lt(length, size);
    text_p[length] = '\0';
}

static pid_t start(const char *words, const char *out_path, const char *err_path)
{
    static char line[8192];
    char *argv[WORDS_MAX + 1] = {(char[]){"hvdctl"}};
    char *rest;
    int argc = 1;
    fill_in(words, line, sizeof line);
    for (char *word = strtok_r(line, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        ck_assert_int_lt(argc, WORDS_MAX);
        argv[argc++] = word;
    }
    return spawn(argv, out_path, err_path);
}

pid_t hvt_start(const char *words, const char *name)
{
    char out_path[128], err_path[128];
    snprintf(out_path, sizeof out_path, "%s/%s.out", hvt_root, name);
    snprintf(err_path, sizeof err_path, "%s/%s.err", hvt_root, name);
    return start(words, out_path, err_path);
}

void hvt_run(const char *words)
{
    char err_path[128];
    snprintf(err_path, sizeof err_path, "%s/err", hvt_root);
    const int status = hvt_wait_child(
        start(words, hvt_out_path != NULL ? hvt_out_path : hvt_path("out"), err_path));
    hvt_out[0] = '\0';
    if (hvt_out_path == NULL)
        hvt_read(hvt_path("out"), hvt_out, sizeof hvt_out);
    hvt_read(hvt_path("err"), hvt_err, sizeof hvt_err);
    ck_assert_msg(WIFEXITED(status), "hvdctl %s: wait status %d: %s", words, status, hvt_err);
    hvt_code = WEXITSTATUS(status);
}

void hvt_expect_end(int code, const char *complaint)
{
    ck_assert_msg(hvt_code == code, "exit status %d: %s%s", hvt_code, hvt_out, hvt_err);
    if (complaint[0] == '\0')
        ck_assert_str_eq(hvt_err, "");
    ck_assert_msg(strstr(hvt_err, complaint) != NULL, "'%s' is not in '%s'", complaint, hvt_err);
}

cJSON *hvt_document(void)
{
    const char *end = NULL;
    cJSON *document = cJSON_ParseWithOpts(hvt_out, &end, 0);
    ck_assert_msg(document != NULL, "no JSON: %s", hvt_out);
    ck_assert_str_eq(end, "\n");
    return document;
}

void hvt_expect_error(int status)
{
    cJSON *document = hvt_document();
    const cJSON *error = cJSON_GetObjectItem(document, "error");
    ck_assert_msg((int)cJSON_GetNumberValue(cJSON_GetObjectItem(error, "status")) == status, "%s",
                  hvt_out);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(error, "name")),
                     hvi_status_name(status));
    ck_assert_ptr_nonnull(
        strstr(hvt_err, cJSON_GetStringValue(cJSON_GetObjectItem(error, "text"))));
    cJSON_Delete(document);
}

/* ---- what doctor has found ---- */

static const char *string(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
}

cJSON *hvt_findings(void)
{
    cJSON *document = hvt_document();
    const cJSON *object;
    int problems = 0;
    cJSON_ArrayForEach(object, cJSON_GetObjectItem(document, "checks")) problems +=
        strcmp(string(object, "result"), "problem") == 0;
    ck_assert_int_eq((int)cJSON_GetNumberValue(cJSON_GetObjectItem(document, "problems")),
                     problems);
    hvt_expect_end(problems == 0 ? 0 : 1, "");
    return document;
}

const cJSON *hvt_finding(const cJSON *document, const char *check)
{
    const cJSON *object;
    cJSON_ArrayForEach(
        object, cJSON_GetObjectItem(document, "checks")) if (strcmp(string(object, "check"),
                                                                    check) == 0) return object;
    return NULL;
}

void hvt_expect_finding(const cJSON *document, const char *check, const char *result,
                        const char *value, const char *next)
{
    const cJSON *object = hvt_finding(document, check);
    ck_assert_msg(object != NULL, "no check %s", check);
    ck_assert_msg(strstr(string(object, "value"), value) != NULL, "%s", string(object, "value"));
    ck_assert_str_eq(string(object, "result"), result);
    if (next[0] == '\0')
        ck_assert_str_eq(string(object, "next"), "");
    ck_assert_msg(strstr(string(object, "next"), next) != NULL, "%s", string(object, "next"));
}

/* ---- hvdd ---- */

struct player {
    void *context, *socket;
    const struct hvt_line *lines;
    size_t count;
};

/* As hvdd's gate, which is given the listening socket. */
static void open_player(struct player *player)
{
    char endpoint[128];
    const int linger_ms = 0;
    const int patience_ms = 20000;
    const int fd = hvt_listen(hvt_root, "admin.sock", SOCK_STREAM);
    player->context = zmq_ctx_new();
    player->socket = zmq_socket(player->context, ZMQ_ROUTER);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_USE_FD, &fd, sizeof fd), 0);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms), 0);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms),
                     0);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/admin.sock", hvt_root);
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
    reply.request = hvt_asked[line].request;
    ck_assert_int_eq(hvi_admin_reply_encode(&reply, &body, &length), HVI_OK);
    length -= player->lines[line].cut;
    ck_assert_int_eq(zmq_send(player->socket, identity, (size_t)bytes, ZMQ_SNDMORE), bytes);
    ck_assert_int_eq(zmq_send(player->socket, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_eq(zmq_send(player->socket, body, length, 0), (int)length);
    free(body);
}

static void *play(void *context)
{
    struct player *player = context;
    unsigned char identity[64];
    for (size_t i = 0; i < player->count; i++) {
        if (player->lines[i].silent) /* who does not wait long may not even have asked */
            continue;
        const int bytes = take_question(player, i, identity);
        if (player->lines[i].gone) {
            zmq_close(player->socket); /* and with it the listening socket */
            player->socket = NULL;
            return NULL;
        }
        answer(player, i, identity, bytes);
    }
    return NULL;
}

void hvt_run_played(const struct hvt_line *lines, size_t count, const char *words)
{
    struct player player = {.lines = lines, .count = count};
    pthread_t thread;
    ck_assert_uint_le(count, HVT_LINES_MAX);
    open_player(&player);
    ck_assert_int_eq(pthread_create(&thread, NULL, play, &player), 0);
    hvt_run(words);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    if (player.socket != NULL)
        zmq_close(player.socket);
    zmq_ctx_term(player.context);
    unlink(hvt_path("admin.sock"));
}
