/* SPDX-License-Identifier: Apache-2.0
 * The handshake of engines, byte for byte, without a socket: who gets through, and that nothing else does. */
#include "base/status.h"
#include "daemon/engine/net/handshake.h"
#include "tests/unit/hvt_main.h"

#define NODES 4

static const unsigned char epoch_key[ENGINE_NET_KEY_BYTES] = "the key of epoch seven";
static const unsigned char nonce_a[ENGINE_NET_NONCE_BYTES] = "a nonce";
static const unsigned char nonce_b[ENGINE_NET_NONCE_BYTES] = "another nonce";
static const unsigned char nonce_c[ENGINE_NET_NONCE_BYTES] = "a third nonce";

static struct engine_net_identity identity_of(uint32_t node)
{
    struct engine_net_identity identity;

    engine_net_identity_init(&identity, "job", 7, epoch_key, node, NODES);
    return identity;
}

/* Moves what `from` has to say to `to`, which takes it. */
static int tell(struct engine_net_handshake *from, struct engine_net_handshake *to,
                const struct engine_net_identity *identity, const char **why_p)
{
    const size_t bytes = from->out_length - from->out_sent;

    ck_assert_uint_eq(bytes, to->in_need - to->in_have);
    memcpy(to->in + to->in_have, from->out + from->out_sent, bytes);
    from->out_sent += bytes;
    to->in_have += bytes;
    return engine_net_handshake_step(to, identity, why_p);
}

/* Runs both to the end or to the first refusal, and says what the refusing side says. */
static const char *meet(const struct engine_net_identity *low,
                        const struct engine_net_identity *high, uint32_t wanted)
{
    struct engine_net_handshake a, b;
    const char *why = NULL;
    int status_a = HVI_INPROGRESS, status_b = HVI_INPROGRESS;

    engine_net_handshake_connect(&a, low, wanted, ENGINE_NET_DATA, 3, nonce_a);
    engine_net_handshake_accept(&b, nonce_b);
    while (status_a == HVI_INPROGRESS) {
        status_b = tell(&a, &b, high, &why);
        if (status_b != HVI_OK && status_b != HVI_INPROGRESS)
            return why;
        status_a = tell(&b, &a, low, &why);
    }
    if (status_a != HVI_OK)
        return why;
    ck_assert_int_eq(status_b, HVI_OK);
    ck_assert_int_eq(a.stage, ENGINE_NET_STAGE_DONE);
    ck_assert_int_eq(b.stage, ENGINE_NET_STAGE_DONE);
    ck_assert_uint_eq(b.peer, low->node);
    ck_assert_int_eq(b.purpose, ENGINE_NET_DATA);
    ck_assert_uint_eq(b.lane, 3);
    return "";
}

START_TEST(two_members_of_an_epoch_prove_it_to_each_other)
{
    struct engine_net_identity low = identity_of(0), high = identity_of(2);

    ck_assert_str_eq(meet(&low, &high, 2), "");
}
END_TEST

START_TEST(a_stranger_is_refused_with_a_reason)
{
    const struct engine_net_identity high = identity_of(2);
    unsigned char other_key[ENGINE_NET_KEY_BYTES];
    struct engine_net_identity low = identity_of(0);

    memcpy(other_key, epoch_key, sizeof other_key);
    other_key[31] ^= 1;
    engine_net_identity_init(&low, "job", 7, other_key, 0, NODES);
    ck_assert_str_eq(meet(&low, &high, 2), "its proof is wrong: it has another key");
    engine_net_identity_init(&low, "jo", 7, epoch_key, 0, NODES);
    ck_assert_str_eq(meet(&low, &high, 2), "it belongs to another job");
    engine_net_identity_init(&low, "job", 6, epoch_key, 0, NODES);
    ck_assert_str_eq(meet(&low, &high, 2), "it belongs to another epoch of the job");
    engine_net_identity_init(&low, "job", 7, epoch_key, 0, NODES);
    ck_assert_str_eq(meet(&low, &high, 3), "it wants another node");
    engine_net_identity_init(&low, "job", 7, epoch_key, 3, NODES);
    ck_assert_str_eq(meet(&low, &high, 2), "it is a node that does not connect to this one");
    engine_net_identity_init(&low, "job", 7, epoch_key, 2, NODES);
    ck_assert_str_eq(meet(&low, &high, 2), "it is a node that does not connect to this one");
}
END_TEST

/* Whichever bit of whichever message is another one, somebody refuses. */
START_TEST(no_bit_of_the_four_messages_may_change)
{
    const struct engine_net_identity low = identity_of(0), high = identity_of(2);
    const size_t bits = 8 * (2 * ENGINE_NET_HELLO_BYTES + 2 * ENGINE_NET_PROOF_BYTES);

    for (size_t bit = 0; bit < bits; bit++) {
        struct engine_net_handshake sides[2];
        const char *why = NULL;
        size_t at = 0;
        int status = HVI_INPROGRESS, done = 0;
        engine_net_handshake_connect(&sides[0], &low, 2, ENGINE_NET_CONTROL, 0, nonce_a);
        engine_net_handshake_accept(&sides[1], nonce_b);
        for (int turn = 0; turn < 4; turn++) {
            struct engine_net_handshake *from = &sides[turn & 1], *to = &sides[!(turn & 1)];
            if (bit / 8 >= at && bit / 8 < at + from->out_length)
                from->out[bit / 8 - at] ^= (unsigned char)(1u << (bit & 7));
            at += from->out_length;
            status = tell(from, to, turn & 1 ? &low : &high, &why);
            if (status == HVI_ERR_PROTOCOL)
                break;
            done += status == HVI_OK;
        }
        ck_assert_msg(status == HVI_ERR_PROTOCOL, "bit %zu", bit);
        ck_assert_msg(done < 2, "bit %zu", bit);
    }
}
END_TEST

/* A man who has no key gives the connecting node its own proof back. */
START_TEST(what_is_reflected_proves_nothing)
{
    const struct engine_net_identity low = identity_of(0), high = identity_of(2);
    struct engine_net_handshake a, b;
    const char *why = NULL;

    engine_net_handshake_connect(&a, &low, 2, ENGINE_NET_CONTROL, 0, nonce_a);
    memcpy(a.in, a.out, ENGINE_NET_HELLO_BYTES);
    a.in_have = a.out_sent = ENGINE_NET_HELLO_BYTES;
    ck_assert_int_eq(engine_net_handshake_step(&a, &low, &why), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(why, "it wants another node");

    engine_net_handshake_connect(&a, &low, 2, ENGINE_NET_CONTROL, 0, nonce_a);
    engine_net_handshake_accept(&b, nonce_b);
    ck_assert_int_eq(tell(&a, &b, &high, &why), HVI_INPROGRESS);
    ck_assert_int_eq(tell(&b, &a, &low, &why), HVI_INPROGRESS);
    memcpy(a.in, a.out, ENGINE_NET_PROOF_BYTES);
    a.in_have = a.out_sent = ENGINE_NET_PROOF_BYTES;
    ck_assert_int_eq(engine_net_handshake_step(&a, &low, &why), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(why, "its proof is wrong: it has another key");
}
END_TEST

START_TEST(a_handshake_that_was_overheard_cannot_be_played_again)
{
    const struct engine_net_identity low = identity_of(0), high = identity_of(2);
    struct engine_net_handshake a, b;
    unsigned char proof[ENGINE_NET_PROOF_BYTES];
    const char *why = NULL;

    for (int again = 0; again < 2; again++) {
        engine_net_handshake_connect(&a, &low, 2, ENGINE_NET_CONTROL, 0, nonce_a);
        engine_net_handshake_accept(&b, again ? nonce_c : nonce_b);
        ck_assert_int_eq(tell(&a, &b, &high, &why), HVI_INPROGRESS);
        ck_assert_int_eq(tell(&b, &a, &low, &why), HVI_INPROGRESS);
        if (again)
            memcpy(a.out, proof, sizeof proof);
        memcpy(proof, a.out, sizeof proof);
        ck_assert_int_eq(tell(&a, &b, &high, &why), again ? HVI_ERR_PROTOCOL : HVI_OK);
    }
    ck_assert_str_eq(why, "its proof is wrong: it has another key");
}
END_TEST

/* Another node of the job knows the key, but not of this connection. */
START_TEST(a_connection_is_for_what_it_was_asked_for)
{
    const struct engine_net_identity low = identity_of(0), high = identity_of(2);
    static const struct {
        enum engine_net_purpose purpose;
        uint32_t lane;
    } bad[] = {{0, 0}, {3, 0}, {ENGINE_NET_CONTROL, 1}, {ENGINE_NET_DATA, 8}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct engine_net_handshake a, b;
        const char *why = NULL;
        engine_net_handshake_connect(&a, &low, 2, bad[i].purpose, bad[i].lane, nonce_a);
        engine_net_handshake_accept(&b, nonce_b);
        ck_assert_int_eq(tell(&a, &b, &high, &why), HVI_ERR_PROTOCOL);
        ck_assert_str_eq(why, "its connection has no purpose that is known here");
    }
    struct engine_net_handshake a, b, c;
    const char *why = NULL;
    engine_net_handshake_connect(&a, &low, 2, ENGINE_NET_DATA, 1, nonce_a);
    engine_net_handshake_connect(&c, &low, 2, ENGINE_NET_DATA, 2, nonce_c);
    engine_net_handshake_accept(&b, nonce_b);
    c.out_sent = c.out_length;
    ck_assert_int_eq(tell(&a, &b, &high, &why), HVI_INPROGRESS);
    ck_assert_int_eq(tell(&b, &c, &low, &why), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(why, "its answer is for another connection");
}
END_TEST

START_TEST(both_sides_encrypt_or_none)
{
    struct engine_net_identity low = identity_of(0), high = identity_of(2);

    low.encrypts = true;
    ck_assert_str_eq(meet(&low, &high, 2),
                     "HVD_ENCRYPT (encrypt in hvdd.conf) is not the same on both nodes");
    high.encrypts = true;
    ck_assert_str_eq(meet(&low, &high, 2), "");
    low.encrypts = false;
    ck_assert_str_eq(meet(&low, &high, 2),
                     "HVD_ENCRYPT (encrypt in hvdd.conf) is not the same on both nodes");
}
END_TEST

/* The keys of the connecting side, of a handshake on this lane with this nonce; they are the other's the other way
 * round. */
static struct hvi_seal_keys keys_of(uint32_t lane,
                                    const unsigned char nonce[ENGINE_NET_NONCE_BYTES])
{
    const struct engine_net_identity low = identity_of(0), high = identity_of(2);
    struct engine_net_handshake a, b;
    struct hvi_seal_keys keys, others;
    const char *why = NULL;

    engine_net_handshake_connect(&a, &low, 2, ENGINE_NET_DATA, lane, nonce);
    engine_net_handshake_accept(&b, nonce_b);
    ck_assert_int_eq(tell(&a, &b, &high, &why), HVI_INPROGRESS);
    ck_assert_int_eq(tell(&b, &a, &low, &why), HVI_INPROGRESS);
    ck_assert_int_eq(tell(&a, &b, &high, &why), HVI_OK);
    ck_assert_int_eq(tell(&b, &a, &low, &why), HVI_OK);
    engine_net_handshake_keys(&a, &low, &keys);
    engine_net_handshake_keys(&b, &high, &others);
    ck_assert_mem_eq(keys.send, others.receive, sizeof keys.send);
    ck_assert_mem_eq(keys.receive, others.send, sizeof keys.send);
    return keys;
}

START_TEST(each_connection_and_direction_has_a_key_of_its_own)
{
    const struct hvi_seal_keys all[] = {keys_of(1, nonce_a), keys_of(2, nonce_a),
                                        keys_of(1, nonce_c)};
    const unsigned char *keys[6];

    for (size_t i = 0; i < 3; i++) {
        keys[2 * i] = all[i].send;
        keys[2 * i + 1] = all[i].receive;
    }
    for (size_t i = 0; i < 6; i++) {
        for (size_t k = 0; k < i; k++)
            ck_assert_mem_ne(keys[i], keys[k], HVI_SEAL_KEY_BYTES);
    }
    const struct hvi_seal_keys again = keys_of(1, nonce_a);
    ck_assert_mem_eq(&again, &all[0], sizeof again);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/handshake");
    TCase *tcase = tcase_create("handshake");

    tcase_add_test(tcase, two_members_of_an_epoch_prove_it_to_each_other);
    tcase_add_test(tcase, a_stranger_is_refused_with_a_reason);
    tcase_add_test(tcase, no_bit_of_the_four_messages_may_change);
    tcase_add_test(tcase, what_is_reflected_proves_nothing);
    tcase_add_test(tcase, a_handshake_that_was_overheard_cannot_be_played_again);
    tcase_add_test(tcase, a_connection_is_for_what_it_was_asked_for);
    tcase_add_test(tcase, both_sides_encrypt_or_none);
    tcase_add_test(tcase, each_connection_and_direction_has_a_key_of_its_own);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
