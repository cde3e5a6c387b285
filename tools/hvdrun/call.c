/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/call.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUEUED_MAX (1024u * 1024u) /* of the call, on its way to one host */

int run_call_open(struct run_call *call_p, const char *dir, int ranks, char *text_p,
                  size_t text_size)
{
    char path[PATH_MAX];
    struct stat st;
    *call_p = (struct run_call){.dir = dir, .fd = -1, .ranks = ranks};
    if (dir == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/call", dir);
    call_p->fd = open(path, O_RDONLY | O_CLOEXEC);
    call_p->results = malloc((size_t)ranks * sizeof *call_p->results);
    for (int i = 0; call_p->results != NULL && i < ranks; i++)
        call_p->results[i] = -1;
    if (call_p->fd >= 0 && call_p->results != NULL && fstat(call_p->fd, &st) == 0) {
        call_p->bytes = (uint64_t)st.st_size;
        return 0;
    }
    snprintf(text_p, text_size, "cannot read the call in %s: %s", dir, strerror(errno));
    return -1;
}

void run_call_send(const struct run_call *call, struct run_link *link, uint64_t *sent_p)
{
    static unsigned char bytes[HVI_LAUNCH_DATA_MAX];
    while (*sent_p < call->bytes && link->state == RUN_LINK_OPEN &&
           run_link_queued(link) < QUEUED_MAX) {
        const ssize_t length = pread(call->fd, bytes, sizeof bytes, (off_t)*sent_p);
        if (length <= 0) {
            if (link->text[0] == '\0')
                snprintf(link->text, sizeof link->text, "cannot read the call: %s",
                         length < 0 ? strerror(errno) : "it has become shorter");
            return;
        }
        const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_CALL,
                                           .data = {.data = bytes, .bytes = (size_t)length}};
        *sent_p += (uint64_t)length;
        run_link_send(link, &msg);
    }
}

static bool note_arrival(struct run_call *call, int rank, size_t host)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/arrivals", call->dir);
    if (call->arrivals == NULL)
        call->arrivals = fopen(path, "we");
    return call->arrivals != NULL && fprintf(call->arrivals, "%d %zu\n", rank, host) > 0 &&
           fflush(call->arrivals) == 0;
}

/* A rank without a result has no file, and every file has its line in `arrivals`. */
static bool begin_result(struct run_call *call, int rank, size_t host)
{
    char path[PATH_MAX];
    if (!note_arrival(call, rank, host))
        return false;
    snprintf(path, sizeof path, "%s/result.%d", call->dir, rank);
    call->results[rank] = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return call->results[rank] >= 0;
}

static int cannot_keep(int rank, char *text_p, size_t text_size)
{
    snprintf(text_p, text_size, "cannot keep the result of rank %d: %s", rank, strerror(errno));
    return -1;
}

int run_call_take(struct run_call *call, size_t host, const struct hvi_launch_data *data,
                  char *text_p, size_t text_size)
{
    if (call->results == NULL || data->rank >= call->ranks) {
        snprintf(text_p, text_size, "rank %d returns what nobody has called", (int)data->rank);
        return -1;
    }
    if (call->results[data->rank] < 0 && !begin_result(call, data->rank, host))
        return cannot_keep(data->rank, text_p, text_size);
    for (size_t at = 0; at < data->bytes;) {
        const ssize_t written = write(call->results[data->rank], data->data + at, data->bytes - at);
        if (written < 0 && errno != EINTR)
            return cannot_keep(data->rank, text_p, text_size);
        at += written > 0 ? (size_t)written : 0;
    }
    return 0;
}

void run_call_close(struct run_call *call)
{
    for (int i = 0; call->results != NULL && i < call->ranks; i++)
        if (call->results[i] >= 0)
            close(call->results[i]);
    free(call->results);
    if (call->arrivals != NULL)
        fclose(call->arrivals);
    if (call->fd >= 0)
        close(call->fd);
    *call = (struct run_call){.fd = -1};
}
