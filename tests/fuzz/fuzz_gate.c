/* SPDX-License-Identifier: Apache-2.0
 * What comes to a gate and from it: messages of the mesh, messages between hvdd and its gate, key files of both
 * kinds. What decodes must encode, and from there on decoding and encoding reproduce the same bytes. The first byte says
 * which of the four it is. */
#include "fuzz.h"

#include "base/status.h"
#include "daemon/gate/keys.h"
#include "proto/gate.h"

#include <string.h>

#define MESH_SEEDS 8u

static unsigned char first[4 * HVT_FUZZ_BYTES], second[4 * HVT_FUZZ_BYTES];

static void mesh(const uint8_t *data, size_t size)
{
    struct hvi_mesh_msg msg, again;
    char text[128] = "";
    size_t length = 0, again_length = 0;
    int status = hvi_mesh_msg_decode(data, size, &msg, text, sizeof(text));

    if (status != HVI_OK) {
        HVT_FUZZ_REQUIRE(status == HVI_ERR_NO_MEMORY || text[0] != '\0');
        return;
    }
    HVT_FUZZ_REQUIRE(hvi_mesh_msg_encode(&msg, first, sizeof(first), &length) == HVI_OK);
    if (length <= HVI_MESH_BYTES_MAX) {
        HVT_FUZZ_REQUIRE(hvi_mesh_msg_decode(first, length, &again, NULL, 0) == HVI_OK);
        HVT_FUZZ_REQUIRE(again.kind == msg.kind && again.talk == msg.talk);
        HVT_FUZZ_REQUIRE(hvi_mesh_msg_encode(&again, second, sizeof(second), &again_length) ==
                         HVI_OK);
        HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
        hvi_mesh_msg_free(&again);
    }
    hvi_mesh_msg_free(&msg);
}

static void gate(const uint8_t *data, size_t size)
{
    struct hvi_gate_msg msg, again;
    size_t length = 0, again_length = 0;

    if (hvi_gate_msg_decode(data, size, &msg, NULL, 0) != HVI_OK)
        return;
    HVT_FUZZ_REQUIRE(hvi_gate_msg_encode(&msg, first, sizeof(first), &length) == HVI_OK);
    if (length <= HVI_PACKET_BYTES_MAX) {
        HVT_FUZZ_REQUIRE(hvi_gate_msg_decode(first, length, &again, NULL, 0) == HVI_OK);
        HVT_FUZZ_REQUIRE(again.kind == msg.kind);
        HVT_FUZZ_REQUIRE(hvi_gate_msg_encode(&again, second, sizeof(second), &again_length) ==
                         HVI_OK);
        HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
        hvi_gate_msg_free(&again);
    }
    hvi_gate_msg_free(&msg);
}

static void keys(const uint8_t *data, size_t size)
{
    struct gate_keys found;
    char text[200] = "";

    if (gate_keys_parse((const char *)data, size, &found, text, sizeof(text)) != HVI_OK) {
        HVT_FUZZ_REQUIRE(text[0] != '\0');
        return;
    }
    HVT_FUZZ_REQUIRE(strlen(found.server) == GATE_KEY_TEXT - 1 &&
                     strlen(found.secret) == GATE_KEY_TEXT - 1);
    HVT_FUZZ_REQUIRE(found.client_count > 0 && found.client_count <= GATE_CLIENTS_MAX);
    gate_keys_fini(&found);
}

static void key(const uint8_t *data, size_t size)
{
    char one[GATE_KEY_TEXT] = "", again[GATE_KEY_TEXT] = "";

    if (gate_keys_parse_one((const char *)data, size, "", one)) {
        HVT_FUZZ_REQUIRE(strlen(one) == GATE_KEY_TEXT - 1);
        HVT_FUZZ_REQUIRE(gate_keys_parse_one(one, strlen(one), "", again));
        HVT_FUZZ_REQUIRE(strcmp(one, again) == 0);
        HVT_FUZZ_REQUIRE(!gate_keys_parse_one((const char *)data, size, "secret ", again));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[])(const uint8_t *, size_t) = {mesh, gate, keys, key};

    if (size > 0)
        readers[data[0] % 4](data + 1, size - 1);
    return 0;
}

static size_t seed_mesh(unsigned index, uint8_t *bytes_p, size_t room)
{
    static unsigned char packet[] = "packet";
    static struct hvi_mesh_host host = {.node = 5, .name = "node", .text = "gone", .gone = true};
    static const enum hvi_mesh_kind kinds[] = {
        HVI_MESH_NONE,        HVI_MESH_HELLO,    HVI_MESH_NODE_REGISTER, HVI_MESH_NODE_WITHDRAW,
        HVI_MESH_NODE_ROSTER, HVI_MESH_QUESTION, HVI_MESH_REPLY,         HVI_MESH_HOSTS};
    struct hvi_mesh_msg msg = {.kind = kinds[index],
                               .oldest = 1,
                               .newest = 1,
                               .node = UINT64_MAX,
                               .talk = 7,
                               .peer_talk = 9,
                               .number = 3,
                               .heard = 2};
    size_t length = 0;

    strcpy(msg.text, "words");
    if (msg.kind == HVI_MESH_HELLO) {
        strcpy(msg.hello.name, "node");
        strcpy(msg.hello.dialed, "10.0.0.1");
    } else if (msg.kind == HVI_MESH_QUESTION) {
        msg.question = (struct hvi_mesh_question){.ticket = 7, .request = 8, .what = 4};
    } else if (msg.kind == HVI_MESH_REPLY) {
        msg.reply.part = packet;
        msg.reply.part_bytes = sizeof(packet);
    } else if (msg.kind == HVI_MESH_HOSTS) {
        msg.hosts = (struct hvi_mesh_hosts){.hosts = &host, .host_count = 1};
    } else if (msg.kind != HVI_MESH_NONE) {
        strcpy(msg.node_register.job, "job"); /* at the same place in all three */
        if (msg.kind == HVI_MESH_NODE_REGISTER) {
            msg.node_register.node = packet;
            msg.node_register.node_bytes = sizeof(packet);
        } else if (msg.kind == HVI_MESH_NODE_ROSTER) {
            msg.node_roster.roster = packet;
            msg.node_roster.roster_bytes = sizeof(packet);
        }
    }
    HVT_FUZZ_REQUIRE(hvi_mesh_msg_encode(&msg, bytes_p, room, &length) == HVI_OK);
    return length;
}

static size_t seed_gate(unsigned index, uint8_t *bytes_p, size_t room)
{
    static unsigned char bytes[] = "bytes";
    struct hvi_gate_msg msg = {.kind = (enum hvi_gate_kind)(HVI_GATE_START + index)};
    size_t length = 0;

    if (msg.kind == HVI_GATE_START) {
        strcpy(msg.start.name, "node");
        strcpy(msg.start.mesh_listen, "[::]:0");
        strcpy(msg.start.mesh_seeds, "n1:9600,n2:9600");
    } else if (msg.kind == HVI_GATE_ASK) {
        msg.ask.request = bytes;
        msg.ask.request_bytes = sizeof(bytes);
    } else if (msg.kind == HVI_GATE_REPLY) {
        msg.reply.part = bytes;
        msg.reply.part_bytes = sizeof(bytes);
    } else if (msg.kind == HVI_GATE_EVENT) {
        msg.event.reply = bytes;
        msg.event.reply_bytes = sizeof(bytes);
    } else if (msg.kind >= HVI_GATE_NODE_REGISTER) {
        strcpy(msg.node_register.job, "job");
        if (msg.kind == HVI_GATE_NODE_REGISTER) {
            msg.node_register.node = bytes;
            msg.node_register.node_bytes = sizeof(bytes);
        } else if (msg.kind == HVI_GATE_NODE_ROSTER) {
            msg.node_roster.roster = bytes;
            msg.node_roster.roster_bytes = sizeof(bytes);
        }
    }
    HVT_FUZZ_REQUIRE(hvi_gate_msg_encode(&msg, bytes_p, room, &length) == HVI_OK);
    return length;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const char file[] = "# words\nserver aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\n"
                               "client aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\n"
                               "secret aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\n";

    static const char one[] = "# words\naaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\n";
    const unsigned files = MESH_SEEDS + HVI_GATE_KIND_END - HVI_GATE_START;

    if (index < MESH_SEEDS) {
        bytes_p[0] = 0;
        return 1 + seed_mesh(index, bytes_p + 1, room - 1);
    }
    if (index < files) {
        bytes_p[0] = 1;
        return 1 + seed_gate(index - MESH_SEEDS, bytes_p + 1, room - 1);
    }
    if (index > files + 1)
        return 0;
    bytes_p[0] = index == files ? 2 : 3;
    if (index == files)
        memcpy(bytes_p + 1, file, sizeof(file) - 1);
    else
        memcpy(bytes_p + 1, one, sizeof(one) - 1);
    return index == files ? sizeof(file) : sizeof(one);
}
