/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/hvt_fakegpu.h"

#include <sys/mman.h>

#define MIB ((size_t)1 << 20)

struct seen {
    int type, is_managed, device, is_legacy, is_mapped;
    uint64_t id, handles;
    hvi_cu_ptr start;
    size_t size;
    void *pool;
};

static struct seen look(hvi_cu_ptr address)
{
    struct seen seen;
    int what[] = {HVI_CU_POINTER_MEMORY_TYPE,  HVI_CU_POINTER_IS_MANAGED,
                  HVI_CU_POINTER_DEVICE,       HVI_CU_POINTER_LEGACY_IPC,
                  HVI_CU_POINTER_MAPPED,       HVI_CU_POINTER_BUFFER_ID,
                  HVI_CU_POINTER_HANDLE_TYPES, HVI_CU_POINTER_RANGE_START,
                  HVI_CU_POINTER_RANGE_SIZE,   HVI_CU_POINTER_MEMPOOL};
    void *to[] = {&seen.type, &seen.is_managed, &seen.device, &seen.is_legacy, &seen.is_mapped,
                  &seen.id,   &seen.handles,    &seen.start,  &seen.size,      &seen.pool};

    memset(&seen, 0xee, sizeof(seen));
    HVT_CU(hvt_cu.pointer_attributes(10, what, to, address));
    return seen;
}

START_TEST(an_allocation_is_what_it_is_at_each_of_its_addresses)
{
    hvi_cu_ptr base;
    size_t bytes;

    hvt_cu_begin("", "", 0);
    hvi_cu_ptr address = hvt_cu_alloc(MIB);
    struct seen seen = look(address + 4711);
    ck_assert(seen.type == HVI_CU_MEMORY_DEVICE && !seen.is_managed && seen.device == 0);
    ck_assert(seen.is_legacy && seen.is_mapped && seen.handles == 0 && seen.pool == NULL);
    ck_assert(seen.start == address && seen.size == MIB);
    HVT_CU(hvt_cu.address_range(&base, &bytes, address + MIB - 1));
    ck_assert(base == address && bytes == MIB);
    ck_assert_int_eq(hvt_cu.free(address + 1), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.free(address));
    ck_assert_int_eq(hvt_cu.free(address), HVI_CU_INVALID_VALUE);
}
END_TEST

START_TEST(a_strange_pointer_is_nothing_and_no_error)
{
    int local;

    hvt_cu_begin("", "", 0);
    struct seen seen = look((uintptr_t)&local);
    ck_assert(seen.type == 0 && seen.device == -2 && seen.id == 0 && !seen.is_legacy);
}
END_TEST

START_TEST(managed_memory_and_host_memory_are_told_apart)
{
    static _Alignas(4096) char page[4096];
    int (*managed)(hvi_cu_ptr *, size_t, unsigned);
    hvi_cu_ptr address;

    hvt_cu_begin("", "", 0);
    void *symbol = hvt_cu_symbol("cuMemAllocManaged");
    memcpy(&managed, &symbol, sizeof(managed));
    HVT_CU(managed(&address, 4096, 1));
    struct seen seen = look(address);
    ck_assert(seen.type == HVI_CU_MEMORY_DEVICE && seen.is_managed && !seen.is_legacy);
    HVT_CU(hvt_cu.host_register(page, sizeof(page), HVI_CU_HOST_PORTABLE));
    ck_assert_int_eq(look((uintptr_t)page).type, FAKE_MEMORY_HOST);
    ck_assert_int_eq(hvt_cu.host_register(page, sizeof(page), 0), FAKE_ALREADY_REGISTERED);
}
END_TEST

START_TEST(an_address_comes_again_and_its_buffer_id_does_not)
{
    hvt_cu_begin("", "", 0);
    hvi_cu_ptr address = hvt_cu_alloc(MIB);
    uint64_t id = look(address).id;
    HVT_CU(hvt_cu.free(address));
    hvi_cu_ptr again = hvt_cu_alloc(MIB);
    ck_assert_uint_ne(look(again).id, id);
    if (!HVT_SANITIZED) /* whose mappings may come between */
        ck_assert_uint_eq(again, address);
}
END_TEST

START_TEST(a_device_has_so_much_memory_and_no_more)
{
    size_t left, total;
    hvi_cu_ptr address;

    hvt_cu_begin("memory=4", "", 0);
    hvi_cu_ptr first = hvt_cu_alloc(3 * MIB);
    HVT_CU(hvt_cu.memory_info(&left, &total));
    ck_assert(left == MIB && total == 4 * MIB);
    ck_assert_int_eq(hvt_cu.alloc(&address, 2 * MIB), HVI_CU_OUT_OF_MEMORY);
    HVT_CU(hvt_cu.free(first));
    HVT_CU(hvt_cu.alloc(&address, 4 * MIB));
}
END_TEST

START_TEST(others_have_taken_memory_of_one_device)
{
    size_t left, total;
    hvi_cu_ptr address;

    hvt_cu_begin("devices=2;memory=4;taken=1:3", "", _i);
    HVT_CU(hvt_cu.memory_info(&left, &total));
    ck_assert(left == (_i == 1 ? 1 : 4) * MIB && total == 4 * MIB);
    ck_assert_int_eq(hvt_cu.alloc(&address, 2 * MIB), _i == 1 ? HVI_CU_OUT_OF_MEMORY : HVI_CU_OK);
}
END_TEST

START_TEST(copies_go_in_the_order_of_their_stream)
{
    static char in[1000], out[1000];

    hvt_cu_begin("", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr one = hvt_cu_alloc(1000), other = hvt_cu_alloc(1000);
    memset(in, 7, sizeof(in));
    HVT_CU(hvt_cu.copy_in(one, in, sizeof(in), stream));
    HVT_CU(hvt_cu.copy(other, one, sizeof(in), stream));
    HVT_CU(hvt_cu.copy_out(out, other, sizeof(out), stream));
    HVT_CU(hvt_cu.stream_synchronize(stream));
    ck_assert_mem_eq(in, out, sizeof(in));
    ck_assert_int_eq(hvt_cu.copy(other, one + 1, sizeof(in), stream), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.free(one));
}
END_TEST

/* --- what ends the process --- */

static void use_after_free(void)
{
    hvt_cu_begin("", "", 0);
    hvi_cu_ptr address = hvt_cu_alloc(64 * MIB);
    HVT_CU(hvt_cu.free(address));
    hvt_cu.write64(NULL, address, 1, 0);
}

static void unregister_in_use(void)
{
    static _Alignas(4096) _Atomic uint64_t page[512];

    hvt_cu_begin("", "", 0);
    HVT_CU(hvt_cu.host_register(page, sizeof(page), HVI_CU_HOST_DEVICEMAP));
    HVT_CU(hvt_cu.wait64(NULL, (uintptr_t)page, 1, 0));
    hvt_cu.host_unregister(page);
}

START_TEST(memory_that_is_gone_and_memory_that_is_in_use_are_blamed)
{
    hvt_expect_blame(use_after_free, "which cuMemFree has ended");
    hvt_expect_blame(unregister_in_use, "cuMemHostUnregister of 0x");
}
END_TEST

/* --- VMM, within one process --- */

static int create_on(int device, hvi_cu_allocation *handle_p, size_t bytes, int handle_types)
{
    int (*make)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *, uint64_t);
    void *symbol = hvt_cu_symbol("cuMemCreate");
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = handle_types, .location = {1, device}};

    memcpy(&make, &symbol, sizeof(make));
    return make(handle_p, bytes, &properties, 0);
}

static int create(hvi_cu_allocation *handle_p, size_t bytes, int handle_types)
{
    return create_on(0, handle_p, bytes, handle_types);
}

static const struct hvi_cu_access mine = {{1, 0}, 3}, anothers = {{1, 1}, 3};

START_TEST(virtual_memory_is_there_when_it_is_mapped_and_has_access)
{
    hvi_cu_allocation one, other, again;
    hvi_cu_ptr address;
    int fd;

    hvt_cu_begin("devices=2", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    ck_assert_int_eq(create(&one, MIB, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(create(&one, 2 * MIB, HVI_CU_HANDLE_FD));
    HVT_CU(create(&other, 4 * MIB, 0));
    HVT_CU(hvt_cu.reserve(&address, 6 * MIB, 0, 0, 0));
    HVT_CU(hvt_cu.map(address, 2 * MIB, 0, one, 0));
    ck_assert_int_eq(hvt_cu.map(address, 2 * MIB, 0, one, 0), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.map(address + 4 * MIB, 4 * MIB, 0, other, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.map(address + 2 * MIB, 4 * MIB, 0, other, 0));
    ck_assert_int_eq(hvt_cu.write64(stream, address, 1, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.set_access(address, 6 * MIB, &anothers, 1));
    ck_assert_int_eq(hvt_cu.write64(stream, address, 1, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.set_access(address, 6 * MIB, &mine, 1));
    HVT_CU(hvt_cu.copy(address + MIB, address + 3 * MIB, 2 * MIB, stream)); /* over both */
    HVT_CU(hvt_cu.stream_synchronize(stream));
    struct seen seen = look(address);
    ck_assert(!seen.is_legacy && seen.handles == HVI_CU_HANDLE_FD && seen.size == 2 * MIB);
    ck_assert_uint_eq(look(address + 2 * MIB).handles, 0);
    ck_assert_uint_ne(look(address + 2 * MIB).id, seen.id); /* each mapping has its own */
    ck_assert_int_eq(hvt_cu.unmap(address, MIB), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.retain(&again, (void *)(uintptr_t)(address + 5)));
    HVT_CU(hvt_cu.export_handle(&fd, again, HVI_CU_HANDLE_FD, 0));
    ck_assert_int_eq(hvt_cu.export_handle(&fd, other, HVI_CU_HANDLE_FD, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.allocation_release(again));
    HVT_CU(hvt_cu.allocation_release(one));
    HVT_CU(hvt_cu.allocation_release(other));
    ck_assert_int_eq(hvt_cu.unreserve(address, 6 * MIB), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.unmap(address, 6 * MIB));
    HVT_CU(hvt_cu.unreserve(address, 6 * MIB));
    ck_assert_int_eq(hvt_cu.allocation_release(one), HVI_CU_INVALID_VALUE);
}
END_TEST

START_TEST(virtual_memory_of_another_device_needs_peer_access)
{
    const bool has = _i == 1;
    hvi_cu_allocation chunk;
    hvi_cu_ptr address;

    hvt_cu_begin(has ? "devices=2" : "devices=2;nvlink=none", "", 0);
    HVT_CU(create_on(1, &chunk, 2 * MIB, HVI_CU_HANDLE_FD));
    HVT_CU(hvt_cu.reserve(&address, 2 * MIB, 0, 0, 0));
    ck_assert_uint_eq(address % (2 * MIB), 0);
    HVT_CU(hvt_cu.map(address, 2 * MIB, 0, chunk, 0));
    ck_assert_int_eq(hvt_cu.set_access(address, 2 * MIB, &mine, 1),
                     has ? HVI_CU_OK : FAKE_PEERS_UNSUPPORTED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fakegpu memory");
    TCase *tcase = tcase_create("memory");

    tcase_add_test(tcase, an_allocation_is_what_it_is_at_each_of_its_addresses);
    tcase_add_test(tcase, a_strange_pointer_is_nothing_and_no_error);
    tcase_add_test(tcase, managed_memory_and_host_memory_are_told_apart);
    tcase_add_test(tcase, an_address_comes_again_and_its_buffer_id_does_not);
    tcase_add_test(tcase, a_device_has_so_much_memory_and_no_more);
    tcase_add_loop_test(tcase, others_have_taken_memory_of_one_device, 0, 2);
    tcase_add_test(tcase, copies_go_in_the_order_of_their_stream);
    tcase_add_test(tcase, memory_that_is_gone_and_memory_that_is_in_use_are_blamed);
    tcase_add_test(tcase, virtual_memory_is_there_when_it_is_mapped_and_has_access);
    tcase_add_loop_test(tcase, virtual_memory_of_another_device_needs_peer_access, 0, 2);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
