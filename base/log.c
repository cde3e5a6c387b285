/* SPDX-License-Identifier: Apache-2.0
 * Logging of daemons and tools.
 *
 * A line is built in two buffers on the caller's stack and leaves in one system call, so no lock is
 * needed and lines of different threads and processes never mix: 4096 bytes is PIPE_BUF. The printf
 * result goes into the first buffer and is escaped into the second, so that nothing an argument
 * holds can look like a second line or move a terminal's cursor.
 *
 * A sink that does not take the line costs that line, counted, and nothing else: the journal is never waited for, a pipe that
 * nobody reads only briefly, and the SIGPIPE of a closed one is taken back. */
#include "base/log.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/rate.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES    4096u
#define PATIENCE_MS   20 /* for a pipe that is full */
#define PROGRAM_BYTES 32u

/* Written once by hvi_log_init before other threads start. */
static char program_name[PROGRAM_BYTES] = "hvd";
static bool to_journal;
static int journal_fd = -1;
static bool of_user; /* hvi_log_set_user */
static uint32_t user_uid;
/* Independent words; relaxed because no other data is published through them. */
static _Atomic int current_level = HVI_LOG_INFO;
static _Atomic uint64_t lost_lines;

enum sent { SENT, SENT_LOST, SENT_NOT /* there is no such sink */ };

struct line {
    size_t bytes;
    char text[LINE_BYTES];
};

static const char *const level_texts[] = {"error", "warning", "info", "debug", "trace"};
static const int level_priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG, LOG_DEBUG};

/* systemd sets JOURNAL_STREAM to "device:inode" of the stream it gave us; a redirected stderr no
 * longer matches. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat info;
    if (stream == NULL || fstat(STDERR_FILENO, &info) != 0)
        return false;
    char ours[64];
    snprintf(ours, sizeof(ours), "%ju:%ju", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    return strcmp(stream, ours) == 0;
}

void hvi_log_init(const char *program, enum hvi_log_level level)
{
    snprintf(program_name, sizeof(program_name), "%s", program);
    to_journal = stderr_is_journal();
    if (to_journal && journal_fd < 0)
        journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    hvi_log_set_level(level);
}

void hvi_log_set_level(enum hvi_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum hvi_log_level hvi_log_level(void)
{
    return (enum hvi_log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

int hvi_log_level_parse(const char *text)
{
    for (int level = HVI_LOG_ERROR; level <= HVI_LOG_TRACE; level++) {
        if (strcasecmp(text, level_texts[level]) == 0)
            return level;
    }
    if (strcasecmp(text, "warn") == 0)
        return HVI_LOG_WARN;
    if (strcasecmp(text, "fatal") == 0)
        return HVI_LOG_ERROR;
    return -1;
}

const char *hvi_log_level_text(enum hvi_log_level level)
{
    return level_texts[level];
}

uint64_t hvi_log_lost(void)
{
    return atomic_load_explicit(&lost_lines, memory_order_relaxed);
}

/* ---- how often ---- */

_Static_assert(HVI_LOG_PER_SECOND == HVI_LIMIT_VALUE_log_rate, "the table of limits says so");

#define BUCKETS 64u
#define EACH_NS (HVI_NS_SEC / HVI_LOG_PER_SECOND)

/* Lines of one user and id. The one that is paid for first makes room for another, which takes over what is not paid for:
 * so many users have no more than so many measures together. */
struct bucket {
    uint32_t uid;
    char id[32];
    uint64_t paid_ns, suppressed; /* base/rate.h */
};
static struct bucket buckets[BUCKETS];
static pthread_mutex_t buckets_lock = PTHREAD_MUTEX_INITIALIZER; /* held for no write */
static _Thread_local uint64_t suppressed_before;

static struct bucket *find_bucket(uint32_t uid, const char *id)
{
    struct bucket *oldest = &buckets[0];

    for (size_t i = 0; i < BUCKETS; i++) {
        struct bucket *bucket = &buckets[i];
        if (bucket->uid == uid && strcmp(bucket->id, id) == 0)
            return bucket;
        if (bucket->paid_ns < oldest->paid_ns)
            oldest = bucket;
    }
    *oldest = (struct bucket){.uid = uid, .paid_ns = oldest->paid_ns};
    snprintf(oldest->id, sizeof(oldest->id), "%s", id);
    return oldest;
}

bool hvi_log_admit(uint32_t uid, const char *id)
{
    uint64_t now_ns = hvi_clock_ns();

    pthread_mutex_lock(&buckets_lock);
    struct bucket *bucket = find_bucket(uid, id);
    bool admitted = hvi_rate_take(&bucket->paid_ns, now_ns, EACH_NS, HVI_LOG_BURST) == 0;
    if (admitted) {
        suppressed_before = bucket->suppressed;
        bucket->suppressed = 0;
    } else {
        bucket->suppressed++;
    }
    pthread_mutex_unlock(&buckets_lock);
    return admitted;
}

void hvi_log_set_user(uint32_t uid)
{
    user_uid = uid;
    of_user = true;
}

/* ---- lines ---- */

static void put(struct line *line, const char *text, size_t bytes)
{
    /* The last byte belongs to the newline. */
    if (bytes > LINE_BYTES - 1 - line->bytes)
        return;
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
}

/* Bytes at `at` that may be shown as they are; 0: escape one byte. */
static size_t printable(const char *at, size_t left)
{
    uint32_t code;
    size_t bytes = hvi_utf8_character(at, left, &code);
    return bytes > 0 && code != '\\' && hvi_utf8_is_plain(code) ? bytes : 0;
}

static void put_escaped(struct line *line, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t step = printable(text, left);
        char escape[8];
        if (step > 0) {
            put(line, text, step);
        } else {
            step = 1;
            int bytes = *text == '\n' ? snprintf(escape, sizeof(escape), "\\n")
                        : *text == '\\'
                            ? snprintf(escape, sizeof(escape), "\\\\")
                            : snprintf(escape, sizeof(escape), "\\x%02x", (unsigned char)*text);
            put(line, escape, (size_t)bytes);
        }
        text += step;
        left -= step;
    }
}

static void put_prefix(struct line *line, enum hvi_log_level level)
{
    struct timespec now;
    struct tm parts;
    char text[128];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t bytes = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
    bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes, ".%03ldZ %s[%d] %s ",
                              now.tv_nsec / 1000000, program_name, (int)getpid(),
                              hvi_log_level_text(level));
    put(line, text, bytes);
}

/* One write(2). EPIPE comes with a signal for this thread, which is taken back unless one was
 * pending before. */
static bool write_stderr(const char *text, size_t bytes)
{
    struct pollfd entry = {.fd = STDERR_FILENO, .events = POLLOUT};
    sigset_t pipe_set, old_set, pending;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_set, &old_set);
    ssize_t written = -1;
    if (poll(&entry, 1, PATIENCE_MS) > 0) {
        do
            written = write(STDERR_FILENO, text, bytes);
        while (written < 0 && errno == EINTR);
        const struct timespec at_once = {0, 0};
        if (written < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
            sigtimedwait(&pipe_set, NULL, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &old_set, NULL);
    return written == (ssize_t)bytes;
}

/* One datagram in the journal's own protocol, never waited for: sd_journal_send() stands still while journald does. A line has no
 * newline, so each field is one line of text. */
static enum sent send_journal(enum hvi_log_level level, const char *topic, const char *id,
                              struct line *message)
{
    static struct sockaddr_un journal = {.sun_family = AF_UNIX,
                                         .sun_path = "/run/systemd/journal/socket"};
    static char head[] = "MESSAGE=";
    char fields[256];
    int bytes = snprintf(fields, sizeof(fields),
                         "\nPRIORITY=%d\nSYSLOG_IDENTIFIER=%s\nHVD_TOPIC=%s\nHVD_ID=%s\n",
                         level_priorities[level], program_name, topic, id);
    struct iovec parts[] = {{.iov_base = head, .iov_len = sizeof(head) - 1},
                            {.iov_base = message->text, .iov_len = message->bytes},
                            {.iov_base = fields, .iov_len = (size_t)bytes}};
    struct msghdr datagram = {
        .msg_name = &journal, .msg_namelen = sizeof(journal), .msg_iov = parts, .msg_iovlen = 3};

    if (bytes < 0 || (size_t)bytes >= sizeof(fields) || journal_fd < 0)
        return SENT_NOT;
    if (sendmsg(journal_fd, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return SENT;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? SENT_LOST : SENT_NOT;
}

static void put_body(struct line *line, const char *topic, const char *id, const char *sentence,
                     const char *pairs)
{
    put_escaped(line, topic);
    put(line, " ", 1);
    put_escaped(line, id);
    put(line, ": ", 2);
    put_escaped(line, sentence);
    if (pairs[0] != '\0')
        put(line, " ", 1);
    put_escaped(line, pairs);
    if (suppressed_before > 0) {
        char text[48];
        put(line, text,
            (size_t)snprintf(text, sizeof(text), " suppressed=%llu",
                             (unsigned long long)suppressed_before));
        suppressed_before = 0;
    }
}

void hvi_log_write(enum hvi_log_level level, const char *topic, const char *id,
                   const char *sentence, const char *pairs, ...)
{
    int saved_errno = errno;
    if (of_user && level <= HVI_LOG_INFO && !hvi_log_admit(user_uid, id))
        return;
    char raw[LINE_BYTES];
    struct line line;
    va_list args;
    va_start(args, pairs);
    if (vsnprintf(raw, sizeof(raw), pairs, args) < 0)
        raw[0] = '\0';
    va_end(args);
    line.bytes = 0;
    if (!to_journal)
        put_prefix(&line, level);
    put_body(&line, topic, id, sentence, raw);
    enum sent sent = to_journal ? send_journal(level, topic, id, &line) : SENT_NOT;
    if (sent == SENT_NOT) {
        line.text[line.bytes++] = '\n';
        sent = write_stderr(line.text, line.bytes) ? SENT : SENT_LOST;
    }
    if (sent == SENT_LOST)
        atomic_fetch_add_explicit(&lost_lines, 1, memory_order_relaxed);
    errno = saved_errno;
}
