/* SPDX-License-Identifier: Apache-2.0
 * What comes over a connection whose bytes are sealed, arbitrary bytes in pieces: nothing is handed on but the
 * beginning of what the other end has sealed, however much of it is asked for at a time. */
#include "fuzz.h"

#include "base/seal.h"
#include "base/status.h"
#include "daemon/engine/exec/net_seal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct hvi_seal_keys keys = {.receive = "of the fuzzer"};

static unsigned char text_at(size_t at)
{
    return (unsigned char)(at * 31 + at / 977);
}

static void require_text(const unsigned char *bytes, size_t from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        HVT_FUZZ_REQUIRE(bytes[i] == text_at(from + i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct engine_wire_seal *seal = engine_wire_seal_new(&keys);
    static unsigned char got[5000];
    const uint64_t most = size % sizeof got + 1;
    size_t taken = 0;
    int ends[2], status = ENGINE_WIRE_MOVED;

    HVT_FUZZ_REQUIRE(seal != NULL && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    while (status >= 0 && size > 0) {
        const ssize_t sent = send(ends[0], data, size < 8000 ? size : 8000, MSG_DONTWAIT);
        HVT_FUZZ_REQUIRE(sent > 0);
        data += sent;
        size -= (size_t)sent;
        do {
            unsigned char *to = got;
            uint64_t wanted = most;
            bool readable = true;
            status = engine_wire_seal_receive(seal, ends[1], &to, &wanted, &readable, false);
            const size_t now = (size_t)(to - got);
            HVT_FUZZ_REQUIRE(now == most - wanted);
            require_text(got, taken, now);
            taken += now;
        } while (status == ENGINE_WIRE_OVER || status == ENGINE_WIRE_MOVED);
    }
    close(ends[0]);
    close(ends[1]);
    engine_wire_seal_free(seal);
    return 0;
}

/* Records of so many bytes of the text. */
size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const uint32_t pieces[] = {48, 1000, HVI_SEAL_PLAIN_MAX};
    unsigned char text[HVI_SEAL_PLAIN_MAX];
    struct hvi_seal seal;
    size_t used = 0, at = 0;

    if (index >= sizeof pieces / sizeof pieces[0])
        return 0;
    HVT_FUZZ_REQUIRE(room > 3 * HVI_SEAL_RECORD_MAX);
    HVT_FUZZ_REQUIRE(hvi_seal_init(&seal, keys.receive, true) == HVI_OK);
    for (int record = 0; record < 3; record++) {
        for (uint32_t i = 0; i < pieces[index]; i++)
            text[i] = text_at(at + i);
        HVT_FUZZ_REQUIRE(hvi_seal_close(&seal, text, pieces[index], bytes_p + used) &&
                         hvi_seal_next(&seal));
        at += pieces[index];
        used += pieces[index] + HVI_SEAL_EXTRA_BYTES;
    }
    hvi_seal_fini(&seal);
    return used;
}
