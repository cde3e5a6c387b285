/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdctl/peer_link.h"

#include "base/clock.h"
#include "base/status.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define MAGIC       "hvdpeer1"
#define MAGIC_BYTES 8u
#define NONCE_BYTES 32u
#define PROOF_BYTES 32u
#define ASK_BYTES   16u

_Static_assert(sizeof MAGIC - 1 == MAGIC_BYTES, "what both sides say first");
_Static_assert(CTL_PEER_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN, "a key");

struct hello {
    unsigned char magic[MAGIC_BYTES], nonce[NONCE_BYTES];
};

struct proof {
    unsigned char mac[PROOF_BYTES];
    char versions[CTL_PEER_VERSIONS];
};

/* ---- the key ---- */

bool ctl_peer_key_new(char text_p[CTL_PEER_KEY_TEXT])
{
    unsigned char key[CTL_PEER_KEY_BYTES];
    if (sodium_init() < 0)
        return false;
    randombytes_buf(key, sizeof key);
    sodium_bin2hex(text_p, CTL_PEER_KEY_TEXT, key, sizeof key);
    sodium_memzero(key, sizeof key);
    return true;
}

bool ctl_peer_key_parse(const char *text, unsigned char key_p[CTL_PEER_KEY_BYTES])
{
    const char *end;
    size_t length;
    return sodium_init() >= 0 &&
           sodium_hex2bin(key_p, CTL_PEER_KEY_BYTES, text, strlen(text), NULL, &length, &end) ==
               0 &&
           length == CTL_PEER_KEY_BYTES && *end == '\0';
}

/* ---- bytes ---- */

static int await(const struct ctl_peer_link *link, short events)
{
    struct pollfd pollfd = {.fd = link->fd, .events = events};
    if (hvi_deadline_passed(link->deadline_ns))
        return HVI_ERR_TIMEOUT;
    poll(&pollfd, 1, hvi_deadline_poll_ms(link->deadline_ns));
    return HVI_OK;
}

int ctl_peer_send(const struct ctl_peer_link *link, const void *bytes, size_t length)
{
    int status = HVI_OK;
    for (size_t at = 0; at < length && status == HVI_OK;) {
        const ssize_t sent =
            send(link->fd, (const char *)bytes + at, length - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            at += (size_t)sent;
        else if (errno == EAGAIN || errno == EINTR)
            status = await(link, POLLOUT);
        else
            status = HVI_ERR_CLOSED;
    }
    return status;
}

int ctl_peer_receive(const struct ctl_peer_link *link, void *bytes_p, size_t length)
{
    int status = HVI_OK;
    for (size_t at = 0; at < length && status == HVI_OK;) {
        const ssize_t received = recv(link->fd, (char *)bytes_p + at, length - at, MSG_DONTWAIT);
        if (received > 0)
            at += (size_t)received;
        else if (received < 0 && (errno == EAGAIN || errno == EINTR))
            status = await(link, POLLIN);
        else
            status = HVI_ERR_CLOSED;
    }
    return status;
}

int ctl_peer_pour(const struct ctl_peer_link *link, uint64_t bytes)
{
    static const unsigned char piece[CTL_PEER_PIECE];
    int status = HVI_OK;
    while (bytes > 0 && status == HVI_OK) {
        const size_t now = bytes < sizeof piece ? (size_t)bytes : sizeof piece;
        status = ctl_peer_send(link, piece, now);
        bytes -= now;
    }
    return status;
}

int ctl_peer_drain(const struct ctl_peer_link *link, uint64_t bytes)
{
    static unsigned char piece[CTL_PEER_PIECE];
    int status = HVI_OK;
    while (bytes > 0 && status == HVI_OK) {
        const size_t now = bytes < sizeof piece ? (size_t)bytes : sizeof piece;
        status = ctl_peer_receive(link, piece, now);
        bytes -= now;
    }
    return status;
}

/* ---- meeting ---- */

/* Of the side that serves, or the one that asks. */
static void make_mac(const unsigned char key[CTL_PEER_KEY_BYTES], bool serves,
                     const struct hello hellos[2], const char versions[CTL_PEER_VERSIONS],
                     unsigned char mac_p[PROOF_BYTES])
{
    crypto_generichash_state state;
    const unsigned char side = serves ? 's' : 'a';
    crypto_generichash_init(&state, key, CTL_PEER_KEY_BYTES, PROOF_BYTES);
    crypto_generichash_update(&state, &side, 1);
    crypto_generichash_update(&state, hellos[0].nonce, NONCE_BYTES);
    crypto_generichash_update(&state, hellos[1].nonce, NONCE_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)versions, CTL_PEER_VERSIONS);
    crypto_generichash_final(&state, mac_p, PROOF_BYTES);
}

static int send_proof(const struct ctl_peer_link *link, const unsigned char key[CTL_PEER_KEY_BYTES],
                      bool serves, const struct hello hellos[2], const char *versions)
{
    struct proof proof = {.versions = ""};
    snprintf(proof.versions, sizeof proof.versions, "%s", versions);
    make_mac(key, serves, hellos, proof.versions, proof.mac);
    return ctl_peer_send(link, &proof, sizeof proof);
}

/* It has an end, and nothing that a terminal takes for more than a letter. */
static bool is_plain(const char versions[CTL_PEER_VERSIONS])
{
    for (size_t i = 0; i < CTL_PEER_VERSIONS; i++) {
        if (versions[i] == '\0')
            return true;
        if (versions[i] < ' ' || versions[i] > '~')
            return false;
    }
    return false;
}

static int receive_proof(const struct ctl_peer_link *link,
                         const unsigned char key[CTL_PEER_KEY_BYTES], bool serves,
                         const struct hello hellos[2], char versions_p[CTL_PEER_VERSIONS])
{
    unsigned char mac[PROOF_BYTES];
    struct proof proof;
    const int status = ctl_peer_receive(link, &proof, sizeof proof);
    if (status != HVI_OK)
        return status;
    make_mac(key, serves, hellos, proof.versions, mac);
    if (sodium_memcmp(mac, proof.mac, sizeof mac) != 0)
        return HVI_ERR_REFUSED;
    if (!is_plain(proof.versions))
        return HVI_ERR_PROTOCOL;
    memcpy(versions_p, proof.versions, CTL_PEER_VERSIONS);
    return HVI_OK;
}

/* The hello of the side that asks is the first of both. */
static int exchange_hellos(const struct ctl_peer_link *link, bool serves, struct hello hellos_p[2])
{
    struct hello *own = &hellos_p[serves], *other = &hellos_p[!serves];
    memcpy(own->magic, MAGIC, MAGIC_BYTES);
    randombytes_buf(own->nonce, sizeof own->nonce);
    int status = serves ? HVI_OK : ctl_peer_send(link, own, sizeof *own);
    if (status == HVI_OK)
        status = ctl_peer_receive(link, other, sizeof *other);
    if (status == HVI_OK && memcmp(other->magic, MAGIC, MAGIC_BYTES) != 0)
        status = HVI_ERR_PROTOCOL;
    return status == HVI_OK && serves ? ctl_peer_send(link, own, sizeof *own) : status;
}

int ctl_peer_meet(const struct ctl_peer_link *link, const unsigned char key[CTL_PEER_KEY_BYTES],
                  bool serves, const char *versions, char versions_p[CTL_PEER_VERSIONS])
{
    struct hello hellos[2];
    int status = exchange_hellos(link, serves, hellos);
    if (status != HVI_OK)
        return status;
    if (serves) {
        status = receive_proof(link, key, false, hellos, versions_p);
        return status == HVI_OK ? send_proof(link, key, true, hellos, versions) : status;
    }
    status = send_proof(link, key, false, hellos, versions);
    if (status == HVI_OK)
        status = receive_proof(link, key, true, hellos, versions_p);
    return status == HVI_ERR_CLOSED ? HVI_ERR_REFUSED : status; /* so it ends with a wrong key */
}

/* ---- questions ---- */

int ctl_peer_send_ask(const struct ctl_peer_link *link, const struct ctl_peer_ask *ask)
{
    unsigned char bytes[ASK_BYTES] = {0};
    const uint32_t what = htole32(ask->what);
    const uint64_t count = htole64(ask->bytes);
    memcpy(bytes, &what, sizeof what);
    memcpy(bytes + 8, &count, sizeof count);
    return ctl_peer_send(link, bytes, sizeof bytes);
}

int ctl_peer_receive_ask(const struct ctl_peer_link *link, struct ctl_peer_ask *ask_p)
{
    unsigned char bytes[ASK_BYTES];
    const int status = ctl_peer_receive(link, bytes, sizeof bytes);
    if (status != HVI_OK)
        return status;
    memcpy(&ask_p->what, bytes, sizeof ask_p->what);
    memcpy(&ask_p->bytes, bytes + 8, sizeof ask_p->bytes);
    ask_p->what = le32toh(ask_p->what);
    ask_p->bytes = le64toh(ask_p->bytes);
    const bool good = ask_p->what >= CTL_PEER_ECHO && ask_p->what <= CTL_PEER_GIVE &&
                      ask_p->bytes <= CTL_PEER_BYTES_MAX;
    return good ? HVI_OK : HVI_ERR_PROTOCOL;
}
