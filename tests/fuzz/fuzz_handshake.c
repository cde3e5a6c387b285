/* SPDX-License-Identifier: Apache-2.0
 * What a stranger sends to an engine's port, or answers at a peer's: arbitrary bytes in pieces. Nothing but
 * what a member of the epoch would have said gets through, no more is taken than the handshake has, and
 * where the pieces are cut changes nothing. */
#include "fuzz.h"

#include "base/status.h"
#include "daemon/engine/net/handshake.h"

#include <string.h>

#define WHOLE (ENGINE_NET_HELLO_BYTES + ENGINE_NET_PROOF_BYTES)

static const unsigned char epoch_key[ENGINE_NET_KEY_BYTES] = "the key of epoch seven";
static const unsigned char nonces[2][ENGINE_NET_NONCE_BYTES] = {"a nonce", "another nonce"};
static struct engine_net_identity identities[2];
/* What each side says when both are honest. */
static unsigned char honest[2][WHOLE];
static size_t honest_said[2];

static void begin(struct engine_net_handshake *side, int which)
{
    if (which == 0)
        engine_net_handshake_connect(side, &identities[0], 1, ENGINE_NET_DATA, 3, nonces[0]);
    else
        engine_net_handshake_accept(side, nonces[1]);
}

static void learn(void)
{
    struct engine_net_handshake sides[2];
    const char *why = NULL;
    int status = HVI_INPROGRESS;

    for (int i = 0; i < 2; i++)
        engine_net_identity_init(&identities[i], "job", 7, epoch_key, (uint32_t)i, 2);
    begin(&sides[0], 0);
    begin(&sides[1], 1);
    for (int turn = 0; turn < 4; turn++) {
        struct engine_net_handshake *from = &sides[turn & 1], *to = &sides[!(turn & 1)];
        memcpy(to->in, from->out, from->out_length);
        memcpy(honest[turn & 1] + honest_said[turn & 1], from->out, from->out_length);
        honest_said[turn & 1] += from->out_length;
        from->out_sent = to->in_have = from->out_length;
        status = engine_net_handshake_step(to, &identities[!(turn & 1)], &why);
    }
    HVT_FUZZ_REQUIRE(status == HVI_OK && honest_said[0] == WHOLE && honest_said[1] == WHOLE);
}

/* *used_p: bytes that were taken. */
static int talk(int which, const uint8_t *data, size_t size, size_t piece, size_t *used_p)
{
    struct engine_net_handshake side;
    const char *why = NULL;
    int status = HVI_INPROGRESS;
    size_t used = 0;

    begin(&side, which);
    while (status == HVI_INPROGRESS && used < size) {
        size_t now = side.in_need - side.in_have;
        if (now > piece)
            now = piece;
        if (now > size - used)
            now = size - used;
        HVT_FUZZ_REQUIRE(now > 0 && side.in_need <= sizeof side.in);
        memcpy(side.in + side.in_have, data + used, now);
        side.in_have += now;
        used += now;
        side.out_sent = side.out_length;
        if (side.in_have == side.in_need)
            status = engine_net_handshake_step(&side, &identities[which], &why);
    }
    HVT_FUZZ_REQUIRE(status != HVI_ERR_PROTOCOL || why != NULL);
    *used_p = used;
    return status;
}

/* The first byte says which side is told. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t used, used_in_pieces;

    if (size == 0)
        return 0;
    if (honest_said[0] == 0)
        learn();
    const int which = data[0] & 1;
    const unsigned char *expected = honest[!which];
    int status = talk(which, data + 1, size - 1, size, &used);
    int in_pieces = talk(which, data + 1, size - 1, size % 31 + 1, &used_in_pieces);

    HVT_FUZZ_REQUIRE(status == in_pieces && used == used_in_pieces && used <= WHOLE);
    HVT_FUZZ_REQUIRE((status == HVI_OK) ==
                     (size - 1 >= WHOLE && memcmp(data + 1, expected, WHOLE) == 0));
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    HVT_FUZZ_REQUIRE(room > 1 + WHOLE);
    if (honest_said[0] == 0)
        learn();
    if (index >= 4)
        return 0;
    bytes_p[0] = (uint8_t)(index & 1);
    memcpy(bytes_p + 1, honest[index < 2 ? !index : index - 2],
           WHOLE); /* and one's own, reflected */
    return 1 + WHOLE;
}
