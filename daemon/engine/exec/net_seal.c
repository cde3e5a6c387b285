/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/exec/net_seal.h"

#include "base/pages.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ROOM (8u * HVI_SEAL_RECORD_MAX)

struct engine_wire_seal {
    struct hvi_seal out, in;
    uint32_t out_at, out_end;     /* of .sealed: what the socket has not taken */
    uint32_t in_at, in_end;       /* of .come: what has not been opened */
    uint32_t plain_at, plain_end; /* of .plain: what was opened, and is not wanted yet */
    unsigned char sealed[ROOM], come[ROOM], plain[HVI_SEAL_PLAIN_MAX];
};

struct engine_wire_seal *engine_wire_seal_new(const struct hvi_seal_keys *keys)
{
    struct engine_wire_seal *seal = calloc(1, sizeof *seal);

    if (seal && hvi_seal_init(&seal->out, keys->send, true) == HVI_OK &&
        hvi_seal_init(&seal->in, keys->receive, false) == HVI_OK)
        return seal;
    engine_wire_seal_free(seal);
    return NULL;
}

void engine_wire_seal_free(struct engine_wire_seal *seal)
{
    if (!seal)
        return;
    hvi_seal_fini(&seal->out);
    hvi_seal_fini(&seal->in);
    free(seal);
}

bool engine_wire_seal_unsent(const struct engine_wire_seal *seal)
{
    return seal->out_at < seal->out_end;
}

/* ---- sending ---- */

struct closing {
    struct engine_wire_seal *seal;
    const void *plain;
    uint32_t bytes;
    bool good;
};

static void close_record(void *user)
{
    struct closing *closing = user;

    closing->good = hvi_seal_close(&closing->seal->out, closing->plain, closing->bytes,
                                   closing->seal->sealed + closing->seal->out_end);
}

/* As much of a piece as there is room for. 0; -EFAULT: it cannot be read; -EIO: the cipher fails. */
static int seal_piece(struct engine_wire_seal *seal, struct iovec *piece)
{
    uintptr_t address;

    while (piece->iov_len > 0 && ROOM - seal->out_end >= HVI_SEAL_RECORD_MAX) {
        struct closing closing = {.seal = seal,
                                  .plain = piece->iov_base,
                                  .bytes = piece->iov_len < HVI_SEAL_PLAIN_MAX
                                               ? (uint32_t)piece->iov_len
                                               : HVI_SEAL_PLAIN_MAX};
        if (!hvi_pages_run(close_record, NULL, &closing, &address))
            return -EFAULT;
        if (!closing.good || !hvi_seal_next(&seal->out))
            return -EIO;
        piece->iov_base = (char *)piece->iov_base + closing.bytes;
        piece->iov_len -= closing.bytes;
        seal->out_end += closing.bytes + HVI_SEAL_EXTRA_BYTES;
    }
    return 0;
}

int engine_wire_seal_send(struct engine_wire_seal *seal, int fd, struct iovec *pieces, int count,
                          bool *writable_p)
{
    bool more = false;

    if (!*writable_p)
        return ENGINE_WIRE_WAITS;
    if (seal->out_at == seal->out_end)
        seal->out_at = seal->out_end = 0;
    for (int i = 0; i < count && !more; i++) {
        int error = seal_piece(seal, &pieces[i]);
        if (error < 0)
            return error;
        more = pieces[i].iov_len > 0;
    }
    ssize_t sent = send(fd, seal->sealed + seal->out_at, seal->out_end - seal->out_at,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return engine_wire_stopped(writable_p);
    seal->out_at += (uint32_t)sent;
    return !more && seal->out_at == seal->out_end ? ENGINE_WIRE_OVER : ENGINE_WIRE_MOVED;
}

/* ---- receiving ---- */

/* The bytes of the next record's text; 0: it is not whole yet; -EBADMSG. */
static int next_record(const struct engine_wire_seal *seal)
{
    uint32_t bytes, have = seal->in_end - seal->in_at;

    if (have < HVI_SEAL_HEAD_BYTES)
        return 0;
    if (!hvi_seal_length(seal->come + seal->in_at, &bytes))
        return -EBADMSG;
    return have < bytes + HVI_SEAL_EXTRA_BYTES ? 0 : (int)bytes;
}

static uint32_t take_plain(struct engine_wire_seal *seal, unsigned char *to, uint64_t wanted)
{
    uint32_t now = seal->plain_end - seal->plain_at;

    if (now > wanted)
        now = (uint32_t)wanted;
    memcpy(to, seal->plain + seal->plain_at, now);
    seal->plain_at += now;
    return now;
}

/* Opens what is there, as far as it is wanted. The memory at *to_p may lack a page: where that ends it, the record has
 * not been opened. How many bytes have come to *to_p, or an error. */
static int64_t open_records(struct engine_wire_seal *seal, unsigned char **to_p, uint64_t *wanted_p)
{
    const uint64_t wanted = *wanted_p;

    while (*wanted_p > 0) {
        uint32_t now = 0;
        if (seal->plain_at < seal->plain_end) {
            now = take_plain(seal, *to_p, *wanted_p);
        } else {
            const int bytes = next_record(seal);
            if (bytes < 0)
                return bytes;
            if (bytes == 0)
                break;
            const bool fits = (uint64_t)bytes <= *wanted_p;
            if (!hvi_seal_open(&seal->in, seal->come + seal->in_at, fits ? *to_p : seal->plain))
                return -EBADMSG;
            if (!hvi_seal_next(&seal->in))
                return -ENOMEM;
            seal->in_at += (uint32_t)bytes + HVI_SEAL_EXTRA_BYTES;
            seal->plain_at = 0;
            seal->plain_end = fits ? 0 : (uint32_t)bytes;
            now = fits ? (uint32_t)bytes : 0;
        }
        *to_p += now;
        *wanted_p -= now;
    }
    return (int64_t)(wanted - *wanted_p);
}

/* Bytes, 0: there are none now; or an error. */
static ssize_t fill(struct engine_wire_seal *seal, int fd, bool *readable_p, bool closing)
{
    const uint32_t left = seal->in_end - seal->in_at, room = ROOM - left;

    if (seal->in_at > 0)
        memmove(seal->come, seal->come + seal->in_at, left);
    seal->in_at = 0;
    seal->in_end = left;
    ssize_t received = recv(fd, seal->come + left, room, MSG_DONTWAIT);
    if (received < 0) {
        int error = engine_wire_stopped(readable_p);
        return error < 0 ? error : 0;
    }
    if (received == 0)
        return -ECONNRESET;
    if ((uint32_t)received < room && !closing)
        *readable_p = false;
    seal->in_end += (uint32_t)received;
    return received;
}

int engine_wire_seal_receive(struct engine_wire_seal *seal, int fd, unsigned char **to_p,
                             uint64_t *wanted_p, bool *readable_p, bool closing)
{
    int64_t opened = open_records(seal, to_p, wanted_p);

    if (opened < 0)
        return (int)opened;
    if (*wanted_p == 0)
        return ENGINE_WIRE_OVER;
    if (!*readable_p)
        return opened > 0 ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
    ssize_t received = fill(seal, fd, readable_p, closing);
    if (received < 0)
        return (int)received;
    if (received == 0)
        return opened > 0 || *readable_p ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
    opened = open_records(seal, to_p, wanted_p);
    if (opened < 0)
        return (int)opened;
    return *wanted_p == 0 ? ENGINE_WIRE_OVER : ENGINE_WIRE_MOVED;
}
