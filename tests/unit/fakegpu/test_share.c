/* SPDX-License-Identifier: Apache-2.0
 * Memory of two processes: legacy handles, descriptors, pools. The child exports, as a trainer does. */
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/hvt_fakegpu.h"

#include <signal.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)

static const char *settings = "", *child_faults = "";

struct offer {
    struct hvi_cu_ipc handle;
    hvi_cu_ptr address;
    uint64_t id;
};

static void begin(const char *faults)
{
    hvt_cu_begin(settings, faults, 0);
}

static struct offer make_offer(uint64_t word)
{
    struct offer offer = {.address = hvt_cu_alloc(MIB)};
    int what = HVI_CU_POINTER_BUFFER_ID;
    void *to = &offer.id;

    atomic_store(hvt_cu_word(offer.address), word);
    HVT_CU(hvt_cu.ipc_get(&offer.handle, offer.address));
    HVT_CU(hvt_cu.pointer_attributes(1, &what, &to, offer.address));
    return offer;
}

/* Allocates and offers; at each word frees, allocates and offers anew, with the next number. */
static void export_memory(int fd)
{
    char go;

    begin(child_faults);
    struct offer offer = make_offer(1);
    hvt_say(fd, &offer, sizeof(offer));
    for (uint64_t word = 2; recv(fd, &go, 1, 0) == 1; word++) {
        HVT_CU(hvt_cu.free(offer.address));
        offer = make_offer(word);
        hvt_say(fd, &offer, sizeof(offer));
    }
}

static struct offer ask(const struct hvt_child *child)
{
    struct offer offer;

    hvt_say(child->fd, "", 1);
    hvt_hear(child->fd, &offer, sizeof(offer));
    return offer;
}

static hvi_cu_ptr open_offer(const struct offer *offer)
{
    hvi_cu_ptr address;

    HVT_CU(hvt_cu.ipc_open(&address, offer->handle, HVI_CU_IPC_LAZY_PEER));
    return address;
}

START_TEST(a_handle_opens_in_another_process_and_not_in_its_own)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;
    hvi_cu_ptr address;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    ck_assert_int_eq(hvt_cu.ipc_open(&address, offer.handle, 0), HVI_CU_INVALID_VALUE);
    address = open_offer(&offer);
    ck_assert_uint_eq(atomic_load(hvt_cu_word(address)), 1);
    struct offer own = make_offer(1);
    ck_assert_int_eq(hvt_cu.ipc_open(&address, own.handle, HVI_CU_IPC_LAZY_PEER),
                     HVI_CU_INVALID_CONTEXT);
    ck_assert_int_eq(hvt_cu.ipc_get(&own.handle, own.address + 8), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.ipc_get(&own.handle, address), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

START_TEST(streams_of_two_processes_meet_at_a_word)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    hvi_cu_ptr address = open_offer(&offer);
    HVT_CU(hvt_cu.wait64(NULL, address, 1, 0));
    HVT_CU(hvt_cu.write64(NULL, address + 8, 5, 0));
    HVT_CU(hvt_cu.stream_synchronize(NULL));
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

START_TEST(a_second_open_is_the_first_mapping_also_when_it_is_stale)
{
    settings = "free=keeps";
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;
    hvi_cu_ptr address;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    address = open_offer(&offer);
    ck_assert_uint_eq(open_offer(&offer), address);
    struct offer again = ask(&child); /* the exporter has freed what is mapped here */
    ck_assert_mem_eq(&again.handle, &offer.handle, sizeof(offer.handle));
    ck_assert_uint_ne(again.id, offer.id);
    ck_assert_uint_eq(open_offer(&again), address);
    ck_assert_uint_eq(atomic_load(hvt_cu_word(address)), 1);
    for (int i = 0; i < 3; i++)
        HVT_CU(hvt_cu.ipc_close(address));
    ck_assert_int_eq(hvt_cu.ipc_close(address), HVI_CU_INVALID_VALUE);
    address = open_offer(&again); /* closed to zero: now it is the new one */
    ck_assert_uint_eq(atomic_load(hvt_cu_word(address)), 2);
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

START_TEST(handles_may_be_told_to_differ)
{
    settings = "handles=new";
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer, again;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    again = ask(&child);
    ck_assert_mem_ne(&again.handle, &offer.handle, sizeof(offer.handle));
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

START_TEST(memory_outlives_its_exporter_while_it_is_mapped)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;
    hvi_cu_ptr address;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    address = open_offer(&offer);
    kill(child.pid, SIGKILL);
    ck_assert_int_eq(hvt_reap(&child), 256 + SIGKILL);
    ck_assert_uint_eq(atomic_load(hvt_cu_word(address)), 1);
    HVT_CU(hvt_cu.ipc_close(address));
    ck_assert_int_eq(hvt_cu.ipc_open(&address, offer.handle, HVI_CU_IPC_LAZY_PEER),
                     FAKE_MAP_FAILED);
}
END_TEST

START_TEST(an_exporter_may_exit_at_its_next_call)
{
    child_faults = "exporter-exit@1";
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;

    begin("");
    ck_assert_int_eq(recv(child.fd, &offer, sizeof(offer), 0), 0);
    ck_assert_int_eq(hvt_reap(&child), 256 + SIGKILL);
}
END_TEST

START_TEST(an_open_may_be_slow_and_may_find_no_memory)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;
    hvi_cu_ptr address;
    struct timespec before, after;

    begin("slow-open@100;no-memory@1");
    hvt_hear(child.fd, &offer, sizeof(offer));
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_int_eq(hvt_cu.ipc_open(&address, offer.handle, HVI_CU_IPC_LAZY_PEER),
                     HVI_CU_OUT_OF_MEMORY);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_ge(
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000, 99);
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

START_TEST(a_handle_of_a_device_without_a_link_does_not_open)
{
    settings = "devices=2;nvlink=none";
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;
    hvi_cu_ptr address;

    hvt_cu_begin(settings, "", 1);
    hvt_hear(child.fd, &offer, sizeof(offer));
    ck_assert_int_eq(hvt_cu.ipc_open(&address, offer.handle, HVI_CU_IPC_LAZY_PEER),
                     FAKE_PEERS_UNSUPPORTED);
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

/* --- what is blamed --- */

static void free_what_is_open(void)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    open_offer(&offer);
    hvt_say(child.fd, "", 1);
    ck_assert_int_eq(recv(child.fd, &offer, sizeof(offer), 0), 0);
    _exit(hvt_reap(&child) == 0 ? 0 : 1);
}

static void close_what_is_used(void)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    hvi_cu_ptr address = open_offer(&offer);
    HVT_CU(hvt_cu.wait64(NULL, address, 7, 0));
    hvt_cu.ipc_close(address);
}

static void use_what_is_closed(void)
{
    struct hvt_child child = hvt_fork(export_memory);
    struct offer offer;

    begin("");
    hvt_hear(child.fd, &offer, sizeof(offer));
    hvi_cu_ptr address = open_offer(&offer);
    HVT_CU(hvt_cu.ipc_close(address));
    hvt_cu.copy(address, address, 8, NULL);
}

START_TEST(free_of_what_is_open_close_of_what_is_used_and_use_of_what_is_closed_are_blamed)
{
    settings = child_faults = "";
    hvt_expect_blame(free_what_is_open, "while another process has it open");
    hvt_expect_blame(close_what_is_used, "cuIpcCloseMemHandle of 0x");
    hvt_expect_blame(use_what_is_closed, "which cuIpcCloseMemHandle has ended");
}
END_TEST

/* --- by descriptor --- */

static void send_descriptor(int fd, int sent, const void *data, size_t bytes)
{
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);

    *head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &sent, sizeof(sent));
    ck_assert_int_eq(sendmsg(fd, &message, 0), (ssize_t)bytes);
}

static int take_descriptor(int fd, void *data_p, size_t bytes)
{
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {data_p, bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    int taken;

    ck_assert_int_eq(recvmsg(fd, &message, 0), (ssize_t)bytes);
    memcpy(&taken, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(taken));
    return taken;
}

static const struct hvi_cu_access mine = {{1, 0}, 3};

static hvi_cu_ptr map_all(hvi_cu_allocation handle, size_t bytes)
{
    hvi_cu_ptr address;

    HVT_CU(hvt_cu.reserve(&address, bytes, 0, 0, 0));
    HVT_CU(hvt_cu.map(address, bytes, 0, handle, 0));
    HVT_CU(hvt_cu.set_access(address, bytes, &mine, 1));
    HVT_CU(hvt_cu.allocation_release(handle));
    return address;
}

static void export_virtual(int fd)
{
    int (*make)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *, uint64_t);
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, 0}};
    hvi_cu_allocation handle;
    int shared;

    begin("");
    void *symbol = hvt_cu_symbol("cuMemCreate");
    memcpy(&make, &symbol, sizeof(make));
    HVT_CU(make(&handle, 2 * MIB, &properties, 0));
    HVT_CU(hvt_cu.export_handle(&shared, handle, HVI_CU_HANDLE_FD, 0));
    hvi_cu_ptr address = map_all(handle, 2 * MIB);
    atomic_store(hvt_cu_word(address), 11);
    send_descriptor(fd, shared, "", 1);
}

START_TEST(virtual_memory_comes_by_descriptor_and_other_descriptors_are_refused)
{
    struct hvt_child child = hvt_fork(export_virtual);
    hvi_cu_allocation handle;
    char byte;

    begin("");
    int fd = take_descriptor(child.fd, &byte, 1), other = memfd_create("other", MFD_CLOEXEC);
    HVT_CU(hvt_cu.import_handle(&handle, (void *)(intptr_t)fd, HVI_CU_HANDLE_FD));
    close(fd);
    ck_assert_int_eq(hvt_reap(&child), 0);
    hvi_cu_ptr address = map_all(handle, 2 * MIB);
    ck_assert_uint_eq(atomic_load(hvt_cu_word(address)), 11);
    ck_assert_int_eq(hvt_cu.import_handle(&handle, (void *)(intptr_t)other, HVI_CU_HANDLE_FD),
                     HVI_CU_INVALID_VALUE);
    close(other);
}
END_TEST

/* --- by fabric handle --- */

static int make_virtual(hvi_cu_allocation *handle_p, int handle_types)
{
    int (*make)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *, uint64_t);
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = handle_types, .location = {1, 0}};
    void *symbol = hvt_cu_symbol("cuMemCreate");

    memcpy(&make, &symbol, sizeof(make));
    return make(handle_p, 2 * MIB, &properties, 0);
}

/* Two handles, of which the second one's memory is gone. */
static void export_fabric(int fd)
{
    struct hvi_cu_fabric fabric[2];
    hvi_cu_allocation handle, gone, private_handle;
    char byte;

    begin("");
    HVT_CU(make_virtual(&handle, HVI_CU_HANDLE_FABRIC));
    HVT_CU(make_virtual(&gone, HVI_CU_HANDLE_FABRIC | HVI_CU_HANDLE_FD));
    HVT_CU(make_virtual(&private_handle, HVI_CU_HANDLE_FD));
    ck_assert_int_eq(hvt_cu.export_handle(fabric, private_handle, HVI_CU_HANDLE_FABRIC, 0),
                     HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.export_handle(fabric, handle, HVI_CU_HANDLE_FD, 0),
                     HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.export_handle(&fabric[0], handle, HVI_CU_HANDLE_FABRIC, 0));
    HVT_CU(hvt_cu.export_handle(&fabric[1], gone, HVI_CU_HANDLE_FABRIC, 0));
    HVT_CU(hvt_cu.allocation_release(gone));
    HVT_CU(make_virtual(&gone, HVI_CU_HANDLE_FABRIC)); /* another one, in its place */
    atomic_store(hvt_cu_word(map_all(handle, 2 * MIB)), 13);
    hvt_say(fd, fabric, sizeof(fabric));
    hvt_hear(fd, &byte, 1); /* it has been opened */
}

START_TEST(virtual_memory_comes_by_a_fabric_handle_as_long_as_it_lives)
{
    struct hvt_child child = hvt_fork(export_fabric);
    struct hvi_cu_fabric fabric[2];
    hvi_cu_allocation handle;

    begin("");
    hvt_hear(child.fd, fabric, sizeof(fabric));
    HVT_CU(hvt_cu.import_handle(&handle, &fabric[0], HVI_CU_HANDLE_FABRIC));
    ck_assert_int_eq(
        hvt_cu.import_handle(&(hvi_cu_allocation){0}, &fabric[1], HVI_CU_HANDLE_FABRIC),
        HVI_CU_INVALID_VALUE);
    hvt_say(child.fd, "", 1);
    ck_assert_int_eq(hvt_reap(&child), 0);
    ck_assert_uint_eq(atomic_load(hvt_cu_word(map_all(handle, 2 * MIB))), 13);
    ck_assert_int_eq(hvt_cu.import_handle(&handle, &fabric[0], HVI_CU_HANDLE_FABRIC),
                     HVI_CU_INVALID_VALUE);
}
END_TEST

START_TEST(without_fabric_handles_or_an_imex_channel_they_are_refused)
{
    static const char *const faults[] = {"no-fabric", "no-imex", "no-imex@2"};
    static const int errors[] = {HVI_CU_NOT_SUPPORTED, HVI_CU_NOT_PERMITTED, HVI_CU_NOT_PERMITTED};
    const int both = HVI_CU_HANDLE_FABRIC | HVI_CU_HANDLE_FD;
    struct hvi_cu_fabric fabric = {{0}};
    hvi_cu_allocation handle;
    int fd = -1, is_there;

    begin(faults[_i]);
    HVT_CU(hvt_cu.device_attribute(&is_there, FAKE_DEVICE_FABRIC, 0));
    ck_assert_int_eq(is_there, _i != 0);
    ck_assert_int_eq(make_virtual(&handle, both), _i == 2 ? HVI_CU_OK : errors[_i]);
    if (_i == 2) { /* without a channel from now on */
        ck_assert_int_eq(hvt_cu.export_handle(&fabric, handle, HVI_CU_HANDLE_FABRIC, 0),
                         errors[_i]);
        HVT_CU(hvt_cu.export_handle(&fd, handle, HVI_CU_HANDLE_FD, 0));
        close(fd);
    }
    ck_assert_int_eq(hvt_cu.import_handle(&handle, &fabric, HVI_CU_HANDLE_FABRIC), errors[_i]);
    HVT_CU(make_virtual(&handle, HVI_CU_HANDLE_FD));
}
END_TEST

static void export_pool(int fd)
{
    int (*make)(void **, const struct fake_pool_properties *);
    int (*take)(hvi_cu_ptr *, size_t, void *, hvi_cu_stream);
    int (*give)(hvi_cu_ptr, hvi_cu_stream);
    struct fake_pool_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, 0}};
    struct hvi_cu_pool_pointer pointer;
    void *pool, *private_pool;
    hvi_cu_ptr address;
    int shared;
    char byte;

    begin("");
    void *symbols[] = {hvt_cu_symbol("cuMemPoolCreate"), hvt_cu_symbol("cuMemAllocFromPoolAsync"),
                       hvt_cu_symbol("cuMemFreeAsync")};
    memcpy(&make, &symbols[0], sizeof(make));
    memcpy(&take, &symbols[1], sizeof(take));
    memcpy(&give, &symbols[2], sizeof(give));
    HVT_CU(make(&pool, &properties));
    properties.handle_types = 0;
    HVT_CU(make(&private_pool, &properties));
    ck_assert_int_eq(hvt_cu.pool_export(&shared, private_pool, HVI_CU_HANDLE_FD, 0),
                     HVI_CU_INVALID_VALUE);
    HVT_CU(take(&address, MIB, pool, NULL));
    ck_assert_int_eq(hvt_cu.ipc_get((struct hvi_cu_ipc *)(void *)&pointer, address),
                     HVI_CU_INVALID_VALUE);
    atomic_store(hvt_cu_word(address), 12);
    HVT_CU(hvt_cu.pool_export(&shared, pool, HVI_CU_HANDLE_FD, 0));
    HVT_CU(hvt_cu.pool_export_pointer(&pointer, address));
    send_descriptor(fd, shared, &pointer, sizeof(pointer));
    hvt_hear(fd, &byte, 1); /* the importer lets go first */
    HVT_CU(give(address, NULL));
    HVT_CU(hvt_cu.stream_synchronize(NULL));
}

START_TEST(pool_memory_comes_by_descriptor_and_pointer)
{
    struct hvt_child child = hvt_fork(export_pool);
    int (*allow)(void *, const struct hvi_cu_access *, size_t);
    int (*destroy)(void *);
    struct hvi_cu_pool_pointer pointer;
    void *pool;
    hvi_cu_ptr address;

    begin("");
    void *symbols[] = {hvt_cu_symbol("cuMemPoolSetAccess"), hvt_cu_symbol("cuMemPoolDestroy")};
    memcpy(&allow, &symbols[0], sizeof(allow));
    memcpy(&destroy, &symbols[1], sizeof(destroy));
    int fd = take_descriptor(child.fd, &pointer, sizeof(pointer));
    HVT_CU(hvt_cu.pool_import(&pool, (void *)(intptr_t)fd, HVI_CU_HANDLE_FD, 0));
    close(fd);
    ck_assert_int_eq(hvt_cu.pool_import_pointer(&address, pool, &pointer), HVI_CU_INVALID_VALUE);
    HVT_CU(allow(pool, &mine, 1));
    HVT_CU(hvt_cu.pool_import_pointer(&address, pool, &pointer));
    ck_assert_uint_eq(atomic_load(hvt_cu_word(address)), 12);
    HVT_CU(hvt_cu.free(address));
    HVT_CU(destroy(pool));
    hvt_say(child.fd, "", 1);
    ck_assert_int_eq(hvt_reap(&child), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fakegpu share");
    TCase *tcase = tcase_create("share");

    tcase_add_test(tcase, a_handle_opens_in_another_process_and_not_in_its_own);
    tcase_add_test(tcase, streams_of_two_processes_meet_at_a_word);
    tcase_add_test(tcase, a_second_open_is_the_first_mapping_also_when_it_is_stale);
    tcase_add_test(tcase, handles_may_be_told_to_differ);
    tcase_add_test(tcase, memory_outlives_its_exporter_while_it_is_mapped);
    tcase_add_test(tcase, an_exporter_may_exit_at_its_next_call);
    tcase_add_test(tcase, an_open_may_be_slow_and_may_find_no_memory);
    tcase_add_test(tcase, a_handle_of_a_device_without_a_link_does_not_open);
    tcase_add_test(tcase,
                   free_of_what_is_open_close_of_what_is_used_and_use_of_what_is_closed_are_blamed);
    tcase_add_test(tcase, virtual_memory_comes_by_descriptor_and_other_descriptors_are_refused);
    tcase_add_test(tcase, virtual_memory_comes_by_a_fabric_handle_as_long_as_it_lives);
    tcase_add_loop_test(tcase, without_fabric_handles_or_an_imex_channel_they_are_refused, 0, 3);
    tcase_add_test(tcase, pool_memory_comes_by_descriptor_and_pointer);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
