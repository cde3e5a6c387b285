/* SPDX-License-Identifier: Apache-2.0
 * The handshake. Four messages of fixed size:
 *
 *   connects (lower node)                        accepts
 *     hello: who, what for, nonce     ─────────>   checks it against its own job, epoch and number
 *                                     <─────────   hello: the same from its side, its own nonce
 *     proof: MAC of both hellos       ─────────>   checks it: only a member of the epoch comes this far
 *                                     <─────────   proof: MAC of both hellos and of the first proof
 *
 * A hello, integers little-endian:
 *
 *   0 magic   8 version   12 purpose, lane, encrypts, 0   16 epoch   24 from   28 to   32 job   64 nonce
 *
 * A MAC is keyed BLAKE2b. Its key is derived from the epoch's key and the two numbers in the direction
 * of the proof, so a proof that is sent back proves nothing; the nonces make one that is sent again
 * worthless. The accepting side proves itself last, so a stranger gets no MAC at all.
 *
 * "encrypts" is 1 where DATA connections are encrypted, and has to be the same on both sides. Then the keys of
 * a connection, one for each direction, are derived in the same way from all that has been said but the last
 * proof: both nonces, purpose and lane among it. Otherwise, and on CONTROL connections, what follows the
 * handshake is neither encrypted nor signed (docs/design/trust.md). */
#include "daemon/engine/net/handshake.h"

#include "base/assert.h"
#include "base/status.h"

#include <endian.h>
#include <sodium.h>
#include <string.h>

#define AT_VERSION  8
#define AT_PURPOSE  12
#define AT_LANE     13
#define AT_ENCRYPTS 14
#define AT_ZERO     15
#define AT_EPOCH    16
#define AT_FROM     24
#define AT_TO       28
#define AT_JOB      32
#define AT_NONCE    64

static const unsigned char magic[AT_VERSION] = {'h', 'v', 'd', 'd', '-', 'n', 'e', 't'};
static const char key_label[] = "hvdd engine to engine";
static const char seal_label[] = "hvdd sealed connection";

_Static_assert(AT_NONCE + ENGINE_NET_NONCE_BYTES == ENGINE_NET_HELLO_BYTES, "a hello");
_Static_assert(HVI_SEAL_KEY_BYTES <= crypto_generichash_BYTES_MAX, "a connection's key");
_Static_assert(ENGINE_NET_KEY_BYTES <= crypto_generichash_KEYBYTES_MAX, "an epoch's key");

static void put_u32(unsigned char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static void put_u64(unsigned char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

static uint32_t get_u32(const unsigned char *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static uint64_t get_u64(const unsigned char *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

int engine_net_crypto_open(void)
{
    return sodium_init() < 0 ? HVI_ERR_DAEMON : HVI_OK;
}

void engine_net_nonce(unsigned char nonce_p[ENGINE_NET_NONCE_BYTES])
{
    randombytes_buf(nonce_p, ENGINE_NET_NONCE_BYTES);
}

void engine_net_identity_init(struct engine_net_identity *identity, const char *job, uint64_t epoch,
                              const unsigned char key[ENGINE_NET_KEY_BYTES], uint32_t node,
                              uint32_t nodes)
{
    *identity = (struct engine_net_identity){.epoch = epoch, .node = node, .nodes = nodes};
    memcpy(identity->key, key, sizeof identity->key);
    crypto_generichash(identity->job, sizeof identity->job, (const unsigned char *)job, strlen(job),
                       NULL, 0);
}

void engine_net_identity_fini(struct engine_net_identity *identity)
{
    sodium_memzero(identity, sizeof *identity);
}

/* ---- messages ---- */

static void say(struct engine_net_handshake *handshake, const unsigned char *bytes, size_t length)
{
    HVI_ASSERT(length <= sizeof handshake->said - handshake->said_length);
    memcpy(handshake->said + handshake->said_length, bytes, length);
    handshake->said_length += length;
}

static void send_hello(struct engine_net_handshake *handshake,
                       const struct engine_net_identity *identity)
{
    unsigned char *out = handshake->out;

    memset(out, 0, ENGINE_NET_HELLO_BYTES);
    memcpy(out, magic, sizeof magic);
    put_u32(out + AT_VERSION, ENGINE_NET_WIRE);
    out[AT_PURPOSE] = (unsigned char)handshake->purpose;
    out[AT_LANE] = (unsigned char)handshake->lane;
    out[AT_ENCRYPTS] = identity->encrypts;
    put_u64(out + AT_EPOCH, identity->epoch);
    put_u32(out + AT_FROM, identity->node);
    put_u32(out + AT_TO, handshake->peer);
    memcpy(out + AT_JOB, identity->job, sizeof identity->job);
    memcpy(out + AT_NONCE, handshake->nonce, ENGINE_NET_NONCE_BYTES);
    handshake->out_sent = 0;
    handshake->out_length = ENGINE_NET_HELLO_BYTES;
    say(handshake, out, ENGINE_NET_HELLO_BYTES);
}

/* The MAC of all that has been said, as `from` makes it for `to`. */
static void make_proof(const struct engine_net_handshake *handshake,
                       const struct engine_net_identity *identity, uint32_t from, uint32_t to,
                       unsigned char proof_p[ENGINE_NET_PROOF_BYTES])
{
    unsigned char direction[sizeof key_label + 8], key[ENGINE_NET_KEY_BYTES];

    memcpy(direction, key_label, sizeof key_label);
    put_u32(direction + sizeof key_label, from);
    put_u32(direction + sizeof key_label + 4, to);
    crypto_generichash(key, sizeof key, direction, sizeof direction, identity->key,
                       sizeof identity->key);
    crypto_generichash(proof_p, ENGINE_NET_PROOF_BYTES, handshake->said, handshake->said_length,
                       key, sizeof key);
    sodium_memzero(key, sizeof key);
}

static void send_proof(struct engine_net_handshake *handshake,
                       const struct engine_net_identity *identity)
{
    make_proof(handshake, identity, identity->node, handshake->peer, handshake->out);
    handshake->out_sent = 0;
    handshake->out_length = ENGINE_NET_PROOF_BYTES;
}

static void expect(struct engine_net_handshake *handshake, enum engine_net_stage stage)
{
    handshake->stage = stage;
    handshake->in_have = 0;
    handshake->in_need =
        stage == ENGINE_NET_STAGE_HELLO ? ENGINE_NET_HELLO_BYTES : ENGINE_NET_PROOF_BYTES;
}

void engine_net_handshake_connect(struct engine_net_handshake *handshake,
                                  const struct engine_net_identity *identity, uint32_t node,
                                  enum engine_net_purpose purpose, uint32_t lane,
                                  const unsigned char nonce[ENGINE_NET_NONCE_BYTES])
{
    *handshake = (struct engine_net_handshake){
        .connects = true, .purpose = purpose, .lane = lane, .peer = node};
    memcpy(handshake->nonce, nonce, sizeof handshake->nonce);
    send_hello(handshake, identity);
    expect(handshake, ENGINE_NET_STAGE_HELLO);
}

void engine_net_handshake_accept(struct engine_net_handshake *handshake,
                                 const unsigned char nonce[ENGINE_NET_NONCE_BYTES])
{
    *handshake = (struct engine_net_handshake){.connects = false};
    memcpy(handshake->nonce, nonce, sizeof handshake->nonce);
    expect(handshake, ENGINE_NET_STAGE_HELLO);
}

/* ---- what comes ---- */

/* NULL, or what is wrong with a hello that has to be of this job and for this node. */
static const char *look_at_hello(const unsigned char *hello,
                                 const struct engine_net_identity *identity)
{
    if (memcmp(hello, magic, sizeof magic) != 0)
        return "what came is no handshake of an engine";
    if (get_u32(hello + AT_VERSION) != ENGINE_NET_WIRE)
        return "it speaks another wire version";
    if (hello[AT_ENCRYPTS] > 1 || hello[AT_ZERO] != 0)
        return "what came is no handshake of an engine";
    if (memcmp(hello + AT_JOB, identity->job, sizeof identity->job) != 0)
        return "it belongs to another job";
    if (get_u64(hello + AT_EPOCH) != identity->epoch)
        return "it belongs to another epoch of the job";
    if (get_u32(hello + AT_TO) != identity->node)
        return "it wants another node";
    if (hello[AT_ENCRYPTS] != identity->encrypts)
        return "HVD_ENCRYPT (encrypt in hvdd.conf) is not the same on both nodes";
    return NULL;
}

static const char *take_callers_hello(struct engine_net_handshake *handshake,
                                      const struct engine_net_identity *identity)
{
    const uint32_t from = get_u32(handshake->in + AT_FROM);
    const uint32_t purpose = handshake->in[AT_PURPOSE], lane = handshake->in[AT_LANE];

    if (from >= identity->node)
        return "it is a node that does not connect to this one";
    if ((purpose != ENGINE_NET_CONTROL && purpose != ENGINE_NET_DATA) || lane >= ENGINE_NET_LANES ||
        (purpose == ENGINE_NET_CONTROL && lane != 0))
        return "its connection has no purpose that is known here";
    handshake->peer = from;
    handshake->purpose = (enum engine_net_purpose)purpose;
    handshake->lane = lane;
    return NULL;
}

static const char *take_answer(const struct engine_net_handshake *handshake)
{
    const unsigned char *in = handshake->in;

    if (get_u32(in + AT_FROM) != handshake->peer || in[AT_PURPOSE] != handshake->purpose ||
        in[AT_LANE] != handshake->lane)
        return "its answer is for another connection";
    return NULL;
}

static const char *take_hello(struct engine_net_handshake *handshake,
                              const struct engine_net_identity *identity)
{
    const char *why = look_at_hello(handshake->in, identity);

    if (!why)
        why =
            handshake->connects ? take_answer(handshake) : take_callers_hello(handshake, identity);
    if (why)
        return why;
    say(handshake, handshake->in, ENGINE_NET_HELLO_BYTES);
    if (handshake->connects) {
        send_proof(handshake, identity);
        say(handshake, handshake->out, ENGINE_NET_PROOF_BYTES);
    } else {
        send_hello(handshake, identity);
    }
    expect(handshake, ENGINE_NET_STAGE_PROOF);
    return NULL;
}

static const char *take_proof(struct engine_net_handshake *handshake,
                              const struct engine_net_identity *identity)
{
    unsigned char proof[ENGINE_NET_PROOF_BYTES];

    make_proof(handshake, identity, handshake->peer, identity->node, proof);
    if (sodium_memcmp(proof, handshake->in, sizeof proof) != 0)
        return "its proof is wrong: it has another key";
    if (!handshake->connects) {
        say(handshake, handshake->in, ENGINE_NET_PROOF_BYTES);
        send_proof(handshake, identity);
    }
    handshake->stage = ENGINE_NET_STAGE_DONE;
    return NULL;
}

int engine_net_handshake_step(struct engine_net_handshake *handshake,
                              const struct engine_net_identity *identity, const char **why_p)
{
    const char *why;

    HVI_ASSERT(handshake->in_have == handshake->in_need);
    HVI_ASSERT(handshake->out_sent == handshake->out_length);
    HVI_ASSERT(handshake->stage != ENGINE_NET_STAGE_DONE);
    why = handshake->stage == ENGINE_NET_STAGE_HELLO ? take_hello(handshake, identity)
                                                     : take_proof(handshake, identity);
    if (why) {
        *why_p = why;
        return HVI_ERR_PROTOCOL;
    }
    return handshake->stage == ENGINE_NET_STAGE_DONE ? HVI_OK : HVI_INPROGRESS;
}

static void make_key(const struct engine_net_handshake *handshake,
                     const struct engine_net_identity *identity, uint32_t from, uint32_t to,
                     unsigned char key_p[HVI_SEAL_KEY_BYTES])
{
    unsigned char direction[sizeof seal_label + 8];
    crypto_generichash_state state;

    memcpy(direction, seal_label, sizeof seal_label);
    put_u32(direction + sizeof seal_label, from);
    put_u32(direction + sizeof seal_label + 4, to);
    crypto_generichash_init(&state, identity->key, sizeof identity->key, HVI_SEAL_KEY_BYTES);
    crypto_generichash_update(&state, direction, sizeof direction);
    crypto_generichash_update(&state, handshake->said, handshake->said_length);
    crypto_generichash_final(&state, key_p, HVI_SEAL_KEY_BYTES);
    sodium_memzero(&state, sizeof state);
}

void engine_net_handshake_keys(const struct engine_net_handshake *handshake,
                               const struct engine_net_identity *identity,
                               struct hvi_seal_keys *keys_p)
{
    HVI_ASSERT(handshake->stage == ENGINE_NET_STAGE_DONE);
    HVI_ASSERT(handshake->said_length == sizeof handshake->said);
    make_key(handshake, identity, identity->node, handshake->peer, keys_p->send);
    make_key(handshake, identity, handshake->peer, identity->node, keys_p->receive);
}
