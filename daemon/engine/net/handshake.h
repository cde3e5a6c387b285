/* SPDX-License-Identifier: Apache-2.0
 * How two engines of a job prove to each other that they belong to it: bytes in, bytes out, no socket.
 * The caller moves the bytes: what is in .out goes to the peer, what comes goes to .in, and each time
 * .in holds .in_need bytes, engine_net_handshake_step takes them. Any thread, one at a time. */
#ifndef ENGINE_NET_HANDSHAKE_H
#define ENGINE_NET_HANDSHAKE_H

#include "base/seal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENGINE_NET_WIRE        4u /* the version that is spoken between engines */
#define ENGINE_NET_LANES       8u /* DATA connections between two nodes */
#define ENGINE_NET_KEY_BYTES   32u
#define ENGINE_NET_NONCE_BYTES 32u
#define ENGINE_NET_HELLO_BYTES 96u
#define ENGINE_NET_PROOF_BYTES 32u

/* What a connection is for; on the wire. */
enum engine_net_purpose {
    ENGINE_NET_CONTROL = 1,
    ENGINE_NET_DATA = 2,
};

/* What this engine is in its job. The job is a digest of its id. */
struct engine_net_identity {
    unsigned char job[32];
    unsigned char key[ENGINE_NET_KEY_BYTES];
    uint64_t epoch;
    uint32_t node, nodes;
    bool encrypts; /* DATA connections */
};

enum engine_net_stage {
    ENGINE_NET_STAGE_HELLO, /* the peer's hello is to come */
    ENGINE_NET_STAGE_PROOF, /* the peer's proof is to come */
    ENGINE_NET_STAGE_DONE,  /* proved, once .out has been sent */
};

struct engine_net_handshake {
    enum engine_net_stage stage;
    bool connects;
    enum engine_net_purpose purpose;
    uint32_t lane;
    uint32_t peer; /* of the accepting side: from its hello, proved only with DONE */
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];
    unsigned char in[ENGINE_NET_HELLO_BYTES], out[ENGINE_NET_HELLO_BYTES];
    size_t in_have, in_need, out_sent, out_length;
    /* What has been said: both hellos, the connecting side's first, and then its proof. */
    unsigned char said[2 * ENGINE_NET_HELLO_BYTES + ENGINE_NET_PROOF_BYTES];
    size_t said_length;
};

/* Before all else, once or more. HVI_OK, or HVI_ERR_DAEMON: no random numbers. */
int engine_net_crypto_open(void);
void engine_net_nonce(unsigned char nonce_p[ENGINE_NET_NONCE_BYTES]);

/* The key is copied; engine_net_identity_fini wipes it. */
void engine_net_identity_init(struct engine_net_identity *identity, const char *job, uint64_t epoch,
                              const unsigned char key[ENGINE_NET_KEY_BYTES], uint32_t node,
                              uint32_t nodes);
void engine_net_identity_fini(struct engine_net_identity *identity);

/* The nonce must never have been used. Afterwards .out holds the first message. */
void engine_net_handshake_connect(struct engine_net_handshake *handshake,
                                  const struct engine_net_identity *identity, uint32_t node,
                                  enum engine_net_purpose purpose, uint32_t lane,
                                  const unsigned char nonce[ENGINE_NET_NONCE_BYTES]);
/* The accepting side, which may not know yet what it is. */
void engine_net_handshake_accept(struct engine_net_handshake *handshake,
                                 const unsigned char nonce[ENGINE_NET_NONCE_BYTES]);

/* Takes the message in .in. .out must have been sent. HVI_INPROGRESS; HVI_OK: the peer has proved
 * itself, and .out may hold our proof; HVI_ERR_PROTOCOL: refused, *why_p is a constant text. */
int engine_net_handshake_step(struct engine_net_handshake *handshake,
                              const struct engine_net_identity *identity, const char **why_p);
/* Of a handshake that is over: the keys of this connection, one for each direction. */
void engine_net_handshake_keys(const struct engine_net_handshake *handshake,
                               const struct engine_net_identity *identity,
                               struct hvi_seal_keys *keys_p);

#endif
