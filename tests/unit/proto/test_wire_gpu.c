/* SPDX-License-Identifier: Apache-2.0
 * The messages of a GPU's worker: what was sent arrives, what may not be said is refused on both sides, and bytes that are not
 * quite a message never hurt. */
#include "gpu_samples.h"

#include "base/log.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

static unsigned char bytes[HVI_PACKET_BYTES_MAX], again[HVI_PACKET_BYTES_MAX];
static size_t length, again_length;
static struct hvi_gpu_msg msg, copy;
static char text[256];

static void setup(void)
{
    text[0] = '\0';
}

static void sample(enum hvi_gpu_kind kind)
{
    hvt_gpu_sample(kind, &msg);
}

static int travel(void)
{
    ck_assert_int_eq(hvi_gpu_msg_encode(&msg, bytes, sizeof(bytes), &length), HVI_OK);
    return hvi_gpu_msg_decode(bytes, length, &copy, text, sizeof(text));
}

START_TEST(each_kind_arrives_as_it_was)
{
    sample((enum hvi_gpu_kind)_i);
    ck_assert_msg(travel() == HVI_OK, "%s", text);
    ck_assert_uint_eq(copy.kind, (unsigned)_i);
    ck_assert_int_eq(hvi_gpu_msg_encode(&copy, again, sizeof(again), &again_length), HVI_OK);
    ck_assert_uint_eq(length, again_length);
    ck_assert_mem_eq(bytes, again, length);
    hvi_gpu_msg_free(&copy);
}
END_TEST

START_TEST(lists_parts_and_fixed_bytes_are_the_same)
{
    sample(HVI_GPU_IMPORT);
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert_mem_eq(copy.import.memory.uuid, msg.import.memory.uuid, HVI_UUID_BYTES);
    ck_assert_uint_eq(copy.import.memory.chunk_count, HVI_WIRE_CHUNKS_MAX);
    ck_assert_mem_eq(copy.import.memory.chunks, msg.import.memory.chunks,
                     HVI_WIRE_CHUNKS_MAX * sizeof(uint64_t));
    for (size_t i = 0; i < HVI_WIRE_GPU_HANDLE; i++)
        ck_assert_uint_eq(copy.import.memory.handle[i], 0); /* absent */
    ck_assert_uint_eq(copy.import.memory.fabric_bytes, HVI_WIRE_CHUNKS_MAX * HVI_WIRE_GPU_HANDLE);
    ck_assert_mem_eq(copy.import.memory.fabric, msg.import.memory.fabric,
                     HVI_WIRE_CHUNKS_MAX * HVI_WIRE_GPU_HANDLE);
    hvi_gpu_msg_free(&copy);
    sample(HVI_GPU_STATE);
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert(copy.state.has_row);
    ck_assert_str_eq(copy.state.row.uuid, msg.state.row.uuid);
    ck_assert_str_eq(copy.state.row.links, msg.state.row.links);
    ck_assert_uint_eq(copy.state.row.batches, msg.state.row.batches);
    ck_assert_uint_eq(copy.state.row.nccl_version, msg.state.row.nccl_version);
    hvi_gpu_msg_free(&copy);
    sample(HVI_GPU_START);
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert_str_eq(copy.start.settings[1].name, "NCCL_SOCKET_IFNAME");
    hvi_gpu_msg_free(&copy);
}
END_TEST

START_TEST(what_is_cut_short_is_refused_and_leaks_nothing)
{
    sample((enum hvi_gpu_kind)_i);
    ck_assert_int_eq(hvi_gpu_msg_encode(&msg, bytes, sizeof(bytes), &length), HVI_OK);
    size_t step = length > 2000 ? length / 200 : 1;
    for (size_t cut = 0; cut < length; cut += step) {
        if (hvi_gpu_msg_decode(bytes, cut, &copy, text, sizeof(text)) == HVI_OK)
            hvi_gpu_msg_free(&copy);
    }
    for (size_t at = 0; at < length; at += step) {
        bytes[at] ^= 0xff;
        if (hvi_gpu_msg_decode(bytes, length, &copy, text, sizeof(text)) == HVI_OK)
            hvi_gpu_msg_free(&copy);
        bytes[at] ^= 0xff;
    }
}
END_TEST

/* Not to be sent; nor to be believed, which the packets of the last test show. */
#define REFUSED(k, change)                                                                         \
    do {                                                                                           \
        sample(k);                                                                                 \
        change;                                                                                    \
        ck_assert_int_eq(hvi_gpu_msg_encode(&msg, bytes, sizeof(bytes), &length),                  \
                         HVI_ERR_INVALID);                                                         \
    } while (0)

START_TEST(what_may_not_be_said_is_not_sent)
{
    REFUSED(HVI_GPU_START, msg.start.job[0] = '/');
    REFUSED(HVI_GPU_START, msg.start.attach_path[0] = '\0');
    REFUSED(HVI_GPU_START, msg.start.log_level = HVI_LOG_TRACE + 1);
    struct hvi_setting plugin = {.name = "NCCL_NET_PLUGIN", .value = "/tmp/evil.so"};
    REFUSED(HVI_GPU_START, msg.start.settings = &plugin; msg.start.setting_count = 1);
    struct hvi_setting own = {.name = "HVD_CYCLE_TIME", .value = "1"};
    REFUSED(HVI_GPU_START, msg.start.settings = &own; msg.start.setting_count = 1);
    REFUSED(HVI_GPU_STATE, msg.state.state = 4);
    REFUSED(HVI_GPU_STATE, msg.state.row.state[0] = '\0');
    REFUSED(HVI_GPU_IMPORT, msg.import.import = 0);
    REFUSED(HVI_GPU_IMPORT, msg.import.pid = -1);
    REFUSED(HVI_GPU_IMPORT, msg.import.memory.bytes = 0);
    REFUSED(HVI_GPU_IMPORT, msg.import.memory.kind = 5);
    REFUSED(HVI_GPU_IMPORT, msg.import.memory.fabric_bytes++);
    REFUSED(HVI_GPU_IMPORT, msg.import.memory.chunk_count = HVI_WIRE_CHUNKS_MAX + 1);
    REFUSED(HVI_GPU_PAGE, msg.page.page = 0);
    REFUSED(HVI_GPU_COMM_JOIN, msg.comm_join.rank = HVI_GPU_COMM_RANKS_MAX);
    REFUSED(HVI_GPU_COMM_JOIN, msg.comm_join.instance_count = HVI_GPU_COMM_RANKS_MAX + 1);
    REFUSED(HVI_GPU_COMM_DROP, msg.comm_drop.comm = 0);
    REFUSED(HVI_GPU_REGISTER, msg.registering.comm = 0);
    REFUSED(HVI_GPU_REGISTER, msg.registering.import = 0);
    REFUSED(HVI_GPU_ACK, msg.kind = HVI_GPU_KIND_END);
}
END_TEST

/* What each kind of memory comes with, beyond what decoding looks at. */
START_TEST(memory_has_the_handles_of_its_kind)
{
    const struct hvi_device_memory vmm = {.kind = HVI_DEVICE_VMM, .chunk_count = 2},
                                   pool = {.kind = HVI_DEVICE_POOL},
                                   legacy = {.kind = HVI_DEVICE_LEGACY},
                                   none = {.kind = HVI_DEVICE_VMM},
                                   no_fabric = {.kind = HVI_DEVICE_FABRIC};
    struct hvi_device_memory other = {
        .kind = HVI_DEVICE_FABRIC, .chunk_count = 2, .fabric_bytes = 2 * HVI_WIRE_GPU_HANDLE};

    ck_assert(hvi_device_memory_has_handles(&vmm, 2, true));
    ck_assert(!hvi_device_memory_has_handles(&vmm, 1, true));
    for (int more = 0; more < 2; more++) { /* else they could come without an end */
        ck_assert(!hvi_device_memory_has_handles(&none, 0, more));
        ck_assert(!hvi_device_memory_has_handles(&no_fabric, 0, more));
    }
    ck_assert(hvi_device_memory_has_handles(&pool, 1, false));
    ck_assert(!hvi_device_memory_has_handles(&pool, 1, true)); /* which cannot have pieces */
    ck_assert(hvi_device_memory_has_handles(&legacy, 0, false));
    ck_assert(!hvi_device_memory_has_handles(&legacy, 1, false));
    ck_assert(hvi_device_memory_has_handles(&other, 0, true));
    ck_assert(!hvi_device_memory_has_handles(&other, 2, false));
    other.fabric_bytes--;
    ck_assert(!hvi_device_memory_has_handles(&other, 0, false));
    other.fabric_bytes = 3 * HVI_WIRE_GPU_HANDLE;
    ck_assert(!hvi_device_memory_has_handles(&other, 0, false));
    other.kind = HVI_DEVICE_VMM;
    ck_assert(!hvi_device_memory_has_handles(&other, 2, false));
}
END_TEST

static int decode(const char *packet, size_t packet_bytes)
{
    return hvi_gpu_msg_decode((const unsigned char *)packet, packet_bytes, &copy, text,
                              sizeof(text));
}
#define DECODE(literal) decode(literal, sizeof(literal) - 1)

START_TEST(what_may_not_be_said_is_not_believed)
{
    ck_assert_int_eq(DECODE(""), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "gpu_packet: no body, or one that is not known here");
    /* page { request 1, page 0 } */
    ck_assert_int_eq(DECODE("\x52\x04\x08\x01\x10\x00"), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "page.page: 0, must be 1..4294967295");
    /* comm_id { request 1, id of one byte } */
    ck_assert_int_eq(DECODE("\x6a\x05\x08\x01\x12\x01\x41"), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "comm_id.id: 1 bytes, must be 128");
    ck_assert_int_eq(decode(NULL, HVI_PACKET_BYTES_MAX + 1), HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(of_a_foreign_version_only_the_version_is_read)
{
    sample(HVI_GPU_START);
    msg.start.protocol_version = HVI_PROTOCOL_VERSION + 1;
    msg.start.job[0] = '\0';
    ck_assert_msg(travel() == HVI_OK, "%s", text);
    ck_assert_uint_eq(copy.start.protocol_version, HVI_PROTOCOL_VERSION + 1);
    ck_assert_uint_eq(copy.start.setting_count, 0);
    hvi_gpu_msg_free(&copy);
}
END_TEST

START_TEST(what_does_not_fit_is_told_apart)
{
    sample(HVI_GPU_COMM_JOIN);
    ck_assert_int_eq(hvi_gpu_msg_encode(&msg, bytes, 100, &length), HVI_ERR_LIMIT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("proto/wire_gpu");
    TCase *tcase = tcase_create("messages");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_loop_test(tcase, each_kind_arrives_as_it_was, HVI_GPU_START, HVI_GPU_KIND_END);
    tcase_add_test(tcase, lists_parts_and_fixed_bytes_are_the_same);
    tcase_add_loop_test(tcase, what_is_cut_short_is_refused_and_leaks_nothing, HVI_GPU_START,
                        HVI_GPU_KIND_END);
    tcase_add_test(tcase, what_may_not_be_said_is_not_sent);
    tcase_add_test(tcase, memory_has_the_handles_of_its_kind);
    tcase_add_test(tcase, what_may_not_be_said_is_not_believed);
    tcase_add_test(tcase, of_a_foreign_version_only_the_version_is_read);
    tcase_add_test(tcase, what_does_not_fit_is_told_apart);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
