/* SPDX-License-Identifier: Apache-2.0
 * The connection between `hvdctl doctor --peer` and `hvdctl doctor --peer-server`: who has the key may measure.
 *
 *   asks                             serves
 *     magic, nonce       ─────────>
 *                        <─────────  magic, nonce
 *     proof, versions    ─────────>  ends here without the key: a stranger gets no proof
 *                        <─────────  proof, versions
 *     ECHO, TAKE n, GIVE n, ...      at most CTL_PEER_BYTES_MAX each
 *
 * A proof is a keyed BLAKE2b of a letter for the side, both nonces and the versions. What is measured is not
 * encrypted and means nothing. Main thread; every wait ends at the link's deadline. */
#ifndef HVI_TOOLS_HVDCTL_PEER_LINK_H
#define HVI_TOOLS_HVDCTL_PEER_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CTL_PEER_KEY_BYTES 16u
#define CTL_PEER_KEY_TEXT  33u /* in hexadecimal digits */
#define CTL_PEER_VERSIONS  64u
#define CTL_PEER_BYTES_MAX (UINT64_C(256) << 20)
#define CTL_PEER_PIECE     (256u * 1024u)
#define CTL_PEER_KEY_NAME  "HVD_PEER_KEY"

enum ctl_peer_what { CTL_PEER_ECHO = 1, CTL_PEER_TAKE, CTL_PEER_GIVE };

struct ctl_peer_link {
    int fd; /* non-blocking */
    uint64_t deadline_ns;
};

/* One message: what is asked of the side that serves. */
struct ctl_peer_ask {
    uint32_t what;
    uint64_t bytes;
};

/* False: the system has no random numbers. */
bool ctl_peer_key_new(char text_p[CTL_PEER_KEY_TEXT]);
bool ctl_peer_key_parse(const char *text, unsigned char key_p[CTL_PEER_KEY_BYTES]);

/* HVI_OK; HVI_ERR_TIMEOUT; HVI_ERR_CLOSED: the other side has ended it. */
int ctl_peer_send(const struct ctl_peer_link *link, const void *bytes, size_t length);
int ctl_peer_receive(const struct ctl_peer_link *link, void *bytes_p, size_t length);
/* Both sides: HVI_OK with the peer's versions, which are plain text; as above; HVI_ERR_PROTOCOL: it is no
 * hvdctl; HVI_ERR_REFUSED: it has another key. */
int ctl_peer_meet(const struct ctl_peer_link *link, const unsigned char key[CTL_PEER_KEY_BYTES],
                  bool serves, const char *versions, char versions_p[CTL_PEER_VERSIONS]);
int ctl_peer_send_ask(const struct ctl_peer_link *link, const struct ctl_peer_ask *ask);
/* HVI_ERR_PROTOCOL: it is none. */
int ctl_peer_receive_ask(const struct ctl_peer_link *link, struct ctl_peer_ask *ask_p);
/* So many bytes of no meaning. */
int ctl_peer_pour(const struct ctl_peer_link *link, uint64_t bytes);
int ctl_peer_drain(const struct ctl_peer_link *link, uint64_t bytes);

#endif
