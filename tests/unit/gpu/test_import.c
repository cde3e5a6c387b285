/* SPDX-License-Identifier: Apache-2.0
 * The cache of imports on the fake driver, whose rules end a test that breaks them. The exporter is a child. */
#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "daemon/gpu/device.h"
#include "daemon/gpu/import.h"
#include "proto/packet.h"
#include "tests/fakegpu/cuda_abi.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_NS (20 * HVI_NS_SEC)
#define BYTES       (2u << 20)
#define CHUNKS      3u

/* What the exporter says of an allocation; descriptors go with it. */
struct exported {
    uint64_t address, buffer_id;
    struct hvi_cu_ipc handle; /* or a pool's pointer */
    struct hvi_cu_fabric fabric[CHUNKS];
};

static pid_t exporter;
static int line;
static sd_event *event;
static struct gpu_device device;
static struct gpu_imports imports;
static char owners[2]; /* only their addresses count */
static struct {
    void *owner;
    uint64_t request;
    int status;
    char text[300];
} answers[16];
static int answer_count;

/* ---- the exporter: 'a' allocates and exports, 'f' frees the oldest; 'v' maps three chunks in a row, the last of them on the
 * second device with 'w', by fabric handles with 'h', and unmaps them with 'u'; 'p' takes a pointer out of a pool ---- */

static void say(const struct exported *exported, const int *fds, uint32_t count)
{
    if (hvi_packet_send(line, exported, sizeof(*exported), fds, count, 0) != HVI_OK)
        _exit(93);
}

/* A function that gpu/cuda.def has not. */
static void *symbol(const struct hvi_cuda *cuda, const char *name)
{
    void *found = dlsym(cuda->library, name);

    if (found == NULL)
        _exit(94);
    return found;
}

static void must(int error)
{
    if (error != HVI_CU_OK)
        _exit(95);
}

static void export_chunks(const struct hvi_cuda *cuda, struct exported *exported_p, int last_device,
                          int type)
{
    int (*create)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *,
                  uint64_t);
    void *found = symbol(cuda, "cuMemCreate");
    struct hvi_cu_access access = {{1, 0}, 3};
    int fds[CHUNKS];

    memcpy(&create, &found, sizeof(create));
    *exported_p = (struct exported){.buffer_id = 1};
    must(cuda->reserve(&exported_p->address, CHUNKS * BYTES, 0, 0, 0));
    for (unsigned i = 0; i < CHUNKS; i++) {
        const struct hvi_cu_allocation_properties properties = {
            .type = 1, .handle_types = type, .location = {1, i == CHUNKS - 1 ? last_device : 0}};
        hvi_cu_ptr at = exported_p->address + i * BYTES;
        hvi_cu_allocation chunk;
        must(create(&chunk, BYTES, &properties, 0));
        must(cuda->map(at, BYTES, 0, chunk, 0));
        must(cuda->set_access(at, BYTES, &access, 1));
        *(unsigned *)(uintptr_t)at = i + 1;
        must(cuda->export_handle(type == HVI_CU_HANDLE_FD ? (void *)&fds[i]
                                                          : (void *)&exported_p->fabric[i],
                                 chunk, type, 0));
        must(cuda->allocation_release(chunk));
    }
    say(exported_p, fds, type == HVI_CU_HANDLE_FD ? CHUNKS : 0);
    for (unsigned i = 0; type == HVI_CU_HANDLE_FD && i < CHUNKS; i++)
        close(fds[i]);
}

static void unmap_chunks(const struct hvi_cuda *cuda, const struct exported *exported)
{
    must(cuda->unmap(exported->address, CHUNKS * BYTES));
    must(cuda->unreserve(exported->address, CHUNKS * BYTES));
    if (write(line, "u", 1) != 1)
        _exit(92);
}

static void export_pointer(const struct hvi_cuda *cuda, struct exported *exported_p)
{
    int (*create)(void **, const struct fake_pool_properties *);
    int (*take)(hvi_cu_ptr *, size_t, void *, hvi_cu_stream);
    void *found = symbol(cuda, "cuMemPoolCreate"), *pool;
    const struct fake_pool_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, 0}};
    struct hvi_cu_pool_pointer pointer;
    int fd;

    memcpy(&create, &found, sizeof(create));
    found = symbol(cuda, "cuMemAllocFromPoolAsync");
    memcpy(&take, &found, sizeof(take));
    must(create(&pool, &properties));
    must(take(&exported_p->address, BYTES, pool, NULL));
    must(cuda->stream_synchronize(NULL));
    *(unsigned *)(uintptr_t)exported_p->address = 77;
    exported_p->buffer_id = 1;
    must(cuda->pool_export(&fd, pool, HVI_CU_HANDLE_FD, 0));
    must(cuda->pool_export_pointer(&pointer, exported_p->address));
    memcpy(exported_p->handle.bytes, pointer.bytes, sizeof(pointer.bytes));
    say(exported_p, &fd, 1);
    close(fd);
}

static void export_memory(const struct hvi_cuda *cuda, struct exported *exported_p)
{
    int attribute = HVI_CU_POINTER_BUFFER_ID;
    void *value = &exported_p->buffer_id;

    if (cuda->alloc(&exported_p->address, BYTES) != HVI_CU_OK ||
        cuda->ipc_get(&exported_p->handle, exported_p->address) != HVI_CU_OK ||
        cuda->pointer_attributes(1, &attribute, &value, exported_p->address) != HVI_CU_OK)
        _exit(91);
    say(exported_p, NULL, 0);
}

static void run_exporter(void)
{
    struct hvi_cuda cuda;
    struct exported exported[8];
    hvi_cu_device ordinal;
    hvi_cu_context context;
    char text[300], command;
    int count = 0, freed = 0;

    if (hvi_cuda_open(false, &cuda, text, sizeof(text)) != HVI_OK || cuda.init(0) != HVI_CU_OK ||
        cuda.device_get(&ordinal, 0) != HVI_CU_OK ||
        cuda.context_retain(&context, ordinal) != HVI_CU_OK ||
        cuda.context_set(context) != HVI_CU_OK)
        _exit(90);
    while (read(line, &command, 1) == 1) {
        if (command == 'a')
            export_memory(&cuda, &exported[count++]);
        else if (command == 'v' || command == 'w')
            export_chunks(&cuda, &exported[count++], command == 'w', HVI_CU_HANDLE_FD);
        else if (command == 'h')
            export_chunks(&cuda, &exported[count++], 0, HVI_CU_HANDLE_FABRIC);
        else if (command == 'p')
            export_pointer(&cuda, &exported[count++]);
        else if (command == 'u')
            unmap_chunks(&cuda, &exported[freed++]);
        else if (cuda.free(exported[freed++].address) != HVI_CU_OK || write(line, "f", 1) != 1)
            _exit(92);
    }
    _exit(0);
}

static struct exported order(const char *command, struct hvi_packet *packet_p)
{
    struct exported exported;

    ck_assert_int_eq(write(line, command, 1), 1);
    ck_assert_int_eq(hvi_packet_receive(line, packet_p, hvi_deadline_after(PATIENCE_NS)), HVI_OK);
    ck_assert_uint_eq(packet_p->length, sizeof(exported));
    memcpy(&exported, packet_p->bytes, sizeof(exported));
    return exported;
}

static struct exported allocate(void)
{
    static struct hvi_packet packet;
    return order("a", &packet);
}

static void free_oldest(void)
{
    char answer = 0;

    ck_assert_int_eq(write(line, "f", 1), 1);
    ck_assert_int_eq(read(line, &answer, 1), 1);
}

/* ---- the importer ---- */

static void on_answer(void *owner, uint64_t request, int status, const char *text)
{
    answers[answer_count].owner = owner;
    answers[answer_count].request = request;
    answers[answer_count].status = status;
    snprintf(answers[answer_count++].text, sizeof(answers[0].text), "%s", text);
}

/* The first fake device: FAKEGPU's node 0. */
static const unsigned char uuid[HVI_UUID_BYTES] = "fake gpu of no";

static void start_exporter(void)
{
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    exporter = fork();
    ck_assert_int_ge(exporter, 0);
    if (exporter == 0) {
        close(ends[0]);
        line = ends[1];
        run_exporter();
    }
    close(ends[1]);
    line = ends[0];
}

static void open_device(void)
{
    uint64_t end = hvi_deadline_after(PATIENCE_NS);

    ck_assert_int_ge(sd_event_new(&event), 0);
    ck_assert_int_eq(gpu_device_open(&device, uuid), HVI_OK);
    while (gpu_device_state(&device) == HVI_INPROGRESS) {
        ck_assert(!hvi_deadline_passed(end));
        poll(NULL, 0, 1);
    }
    ck_assert_msg(gpu_device_state(&device) == HVI_OK, "%s", device.why);
    imports.answer = on_answer;
    ck_assert_int_eq(
        gpu_imports_open(&imports, event, &device.cuda, device.context, uuid, 8 * BYTES), HVI_OK);
}

static void setup(void)
{
    hvt_log_open();
    start_exporter();
    open_device();
}

static void setup_two(void)
{
    setenv("FAKEGPU", "devices=2", 1);
    setup();
}

/* The importer's, after the first chunk. */
static void setup_no_channel(void)
{
    hvt_log_open();
    start_exporter();
    setenv("FAKEGPU_FAULT", "no-imex@2", 1);
    open_device();
}

static void setup_blocks(void)
{
    setenv("FAKEGPU", "ranges=block", 1);
    setup();
}

static void end_exporter(void)
{
    int status;

    close(line);
    ck_assert_int_eq(waitpid(exporter, &status, 0), exporter);
    ck_assert_int_eq(status, 0);
    exporter = 0;
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++)
        gpu_import_owner_gone(&imports, &owners[i]);
    gpu_imports_close(&imports);
    ck_assert_uint_eq(imports.bytes, 0);
    ck_assert_ptr_null(imports.exporters);
    sd_event_unref(event);
    ck_assert(gpu_device_close(&device));
    if (exporter > 0)
        end_exporter();
}

static struct hvi_gpu_import ask(uint64_t request, uint32_t number, const struct exported *exported)
{
    struct hvi_gpu_import said = {.request = request,
                                  .import = number,
                                  .memory = {.address = exported->address,
                                             .bytes = BYTES,
                                             .buffer_id = exported->buffer_id,
                                             .kind = HVI_DEVICE_LEGACY},
                                  .pid = (int32_t)exporter,
                                  .process_start = 1};

    memcpy(said.memory.uuid, uuid, sizeof(uuid));
    memcpy(said.memory.handle, exported->handle.bytes, sizeof(said.memory.handle));
    return said;
}

/* With descriptors and chunks of BYTES, if there are any. */
static bool import(int owner, const struct hvi_gpu_import *said, const int *fds, uint32_t count)
{
    struct gpu_exported exported = {0};
    uint64_t chunks[CHUNKS] = {BYTES, BYTES, BYTES};
    struct hvi_device_memory memory = said->memory;

    memory.chunks = chunks;
    memory.chunk_count = said->memory.kind == HVI_DEVICE_VMM ? count : 0;
    ck_assert_int_eq(gpu_exported_add(&exported, &memory, fds, count), HVI_OK);
    ck_assert(gpu_exported_is_whole(&exported) || count != said->memory.bytes / BYTES);
    return gpu_import_add(&imports, &owners[owner], said, &exported);
}

static void add(int owner, uint64_t request, uint32_t number, const struct exported *exported)
{
    struct hvi_gpu_import said = ask(request, number, exported);
    ck_assert(import(owner, &said, NULL, 0));
}

static void give_back(int owner, uint64_t request, uint32_t number)
{
    struct hvi_gpu_release said = {.request = request, .import = number};
    gpu_import_release(&imports, &owners[owner], &said);
}

static void expect(int number, int owner, uint64_t request, int status)
{
    uint64_t end = hvi_deadline_after(PATIENCE_NS);

    while (answer_count <= number) {
        ck_assert(!hvi_deadline_passed(end));
        ck_assert_int_ge(sd_event_run(event, 100000), 0);
    }
    ck_assert_ptr_eq(answers[number].owner, &owners[owner]);
    ck_assert_uint_eq(answers[number].request, request);
    ck_assert_msg(answers[number].status == status, "%s: %s",
                  hvi_status_name(answers[number].status), answers[number].text);
}

static void expect_count(uint32_t count)
{
    uint64_t end = hvi_deadline_after(PATIENCE_NS);

    while (imports.count != count) {
        ck_assert_msg(!hvi_deadline_passed(end), "%u imports", imports.count);
        ck_assert_int_ge(sd_event_run(event, 100000), 0);
    }
}

START_TEST(memory_is_opened_once_and_closed_with_its_last_holder)
{
    struct exported memory = allocate();

    add(0, 1, 1, &memory);
    add(1, 2, 1, &memory); /* while it is being opened */
    expect(0, 0, 1, HVI_OK);
    expect(1, 1, 2, HVI_OK);
    add(0, 3, 2, &memory); /* it is open: at once */
    ck_assert_int_eq(answer_count, 3);
    expect(2, 0, 3, HVI_OK);
    ck_assert_uint_eq(imports.count, 1);
    give_back(0, 4, 1);
    give_back(1, 5, 1);
    expect(3, 0, 4, HVI_OK);
    expect(4, 1, 5, HVI_OK);
    ck_assert_uint_eq(imports.count, 1);
    give_back(0, 6, 2);
    ck_assert_int_eq(answer_count, 5); /* not before it is closed */
    expect(5, 0, 6, HVI_OK);
    ck_assert_uint_eq(imports.count, 0);
    free_oldest(); /* which the driver would refuse while it is open */
    give_back(0, 7, 2);
    expect(6, 0, 7, HVI_ERR_NOT_FOUND);
}
END_TEST

START_TEST(the_next_generation_finds_memory_open)
{
    struct exported memory = allocate();

    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
    gpu_import_owner_gone(&imports, &owners[0]);
    ck_assert_uint_eq(imports.count, 1);
    add(1, 2, 7, &memory);
    ck_assert_int_eq(answer_count, 2); /* at once */
    expect(1, 1, 2, HVI_OK);
}
END_TEST

START_TEST(what_the_next_generation_does_not_ask_for_is_closed_after_a_while)
{
    struct exported memory = allocate(), other = allocate();

    add(0, 1, 1, &memory);
    add(0, 2, 2, &other);
    expect(1, 0, 2, HVI_OK);
    gpu_import_owner_gone(&imports, &owners[0]);
    ck_assert_uint_eq(imports.count, 2);
    ck_assert_uint_eq(imports.claim_ns, 10 * HVI_NS_SEC);
    imports.claim_ns = 20 * HVI_NS_MS;
    gpu_imports_await_claims(&imports);
    add(1, 3, 7, &other);
    expect(2, 1, 3, HVI_OK);
    expect_count(1);
    free_oldest(); /* which the driver would refuse while it is open */
    give_back(1, 4, 7);
    expect(3, 1, 4, HVI_OK);
}
END_TEST

START_TEST(what_no_engine_has_makes_room_where_the_limit_leaves_none)
{
    struct exported memory = allocate(), other = allocate();

    imports.bytes_max = BYTES;
    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
    add(1, 2, 1, &other);
    expect(1, 1, 2, HVI_ERR_LIMIT);
    gpu_import_owner_gone(&imports, &owners[0]);
    add(1, 3, 2, &other);
    expect(2, 1, 3, HVI_OK);
    ck_assert_uint_eq(imports.count, 1);
}
END_TEST

START_TEST(the_end_of_a_process_closes_what_nobody_holds)
{
    struct exported memory = allocate(), other = allocate();

    add(0, 1, 1, &memory);
    add(1, 2, 1, &other);
    expect(1, 1, 2, HVI_OK);
    gpu_import_owner_gone(&imports, &owners[0]);
    end_exporter();
    expect_count(1);
    gpu_import_owner_gone(&imports, &owners[1]);
    expect_count(0);
}
END_TEST

START_TEST(an_owner_that_goes_while_memory_is_opened_hears_nothing)
{
    struct exported memory = allocate();

    add(0, 1, 1, &memory);
    gpu_import_owner_gone(&imports, &owners[0]);
    expect_count(0);
    ck_assert_int_eq(answer_count, 0);
}
END_TEST

/* The handle has the same bytes, the address is the same: BUFFER_ID tells them apart. */
START_TEST(an_address_that_was_freed_and_allocated_again_is_opened_again)
{
    struct exported first = allocate(), again;

    add(0, 1, 1, &first);
    expect(0, 0, 1, HVI_OK);
    again = first;
    again.buffer_id++;
    add(1, 2, 1, &again); /* somebody still uses the old one */
    give_back(1, 3, 1);
    expect(1, 1, 3, HVI_ERR_NOT_FOUND); /* and waits for it no more */
    add(1, 4, 1, &again);
    ck_assert_int_eq(answer_count, 2);
    gpu_import_owner_gone(&imports, &owners[0]);
    ck_assert_int_eq(answer_count, 2); /* not the old mapping */
    expect(2, 1, 4, HVI_OK);
    ck_assert_uint_eq(imports.count, 1);
}
END_TEST

/* The kernel gives a process number out again: the start tells them apart. */
START_TEST(another_process_of_the_same_number_has_an_import_of_its_own)
{
    const struct exported memory = allocate(), later = allocate();
    struct hvi_gpu_import said = ask(2, 2, &later);

    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
    said.process_start = 2; /* with another handle, of what has the same address and number there */
    said.memory.address = memory.address;
    said.memory.buffer_id = memory.buffer_id;
    ck_assert(import(1, &said, NULL, 0));
    expect(1, 1, 2, HVI_OK);
    ck_assert_uint_eq(imports.count, 2);
}
END_TEST

/* ---- closes that wait for an empty moment ---- */

static int closings;

static void on_closing(void *user)
{
    (void)user;
    closings++;
}

static void setup_waiting(void)
{
    imports.closing = on_closing;
    setup();
}

static void close_all(void)
{
    struct gpu_calls calls = {.cuda = &device.cuda, .usual_ns = HVI_NS_SEC};

    ck_assert_int_eq(device.cuda.context_set(device.context), HVI_CU_OK);
    ck_assert(!gpu_imports_close_some(&imports, &calls, hvi_deadline_after(PATIENCE_NS)));
    ck_assert(!calls.failed);
}

START_TEST(a_release_is_answered_by_the_close_or_after_a_while)
{
    struct exported memory = allocate(), other = allocate(), third = allocate();

    add(0, 1, 1, &memory);
    add(0, 2, 2, &other);
    add(0, 3, 3, &third);
    expect(2, 0, 3, HVI_OK);
    const uint64_t before = hvi_clock_ns();
    give_back(0, 4, 1);
    ck_assert_int_eq(closings, 1);
    expect(3, 0, 4, HVI_OK);
    ck_assert_uint_ge(hvi_clock_ns() - before, 150 * HVI_NS_MS);
    ck_assert_uint_eq(imports.count, 3);
    give_back(0, 5, 2); /* at once: nothing was closed since */
    ck_assert_int_eq(answer_count, 5);
    close_all();
    expect_count(1);
    free_oldest(); /* which the driver would refuse while it is open */
    give_back(0, 6, 3);
    ck_assert_int_eq(answer_count, 5);
    close_all();
    expect(5, 0, 6, HVI_OK);
    expect_count(0);
}
END_TEST

START_TEST(what_is_asked_for_again_before_it_is_closed_stays_open)
{
    struct exported memory = allocate();

    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
    give_back(0, 2, 1);
    ck_assert_int_eq(answer_count, 1);
    add(1, 3, 1, &memory);
    ck_assert_int_eq(answer_count, 3);
    expect(1, 0, 2, HVI_OK); /* it stays open for another */
    expect(2, 1, 3, HVI_OK);
    close_all(); /* nothing */
    ck_assert_uint_eq(imports.count, 1);
    give_back(1, 4, 1);
    close_all();
    expect(3, 1, 4, HVI_OK);
}
END_TEST

/* `is_equal`: the handle has the bytes of the one that is open, whose mapping would be given out again. */
static void expect_successor(struct exported *again, bool is_equal)
{
    again->buffer_id += 100;
    give_back(0, 2, 1);
    add(0, 3, 2, again);
    for (int i = 0; i < 5; i++)
        ck_assert_int_ge(sd_event_run(event, 10000), 0);
    ck_assert_int_eq(answer_count, is_equal ? 1 : 2);
    if (!is_equal)
        expect(1, 0, 3, HVI_OK);
    close_all();
    expect(is_equal ? 1 : 2, 0, 2, HVI_OK);
    if (is_equal)
        expect(2, 0, 3, HVI_OK);
    ck_assert_uint_eq(imports.count, 1);
}

START_TEST(only_a_handle_of_equal_bytes_waits_for_the_close)
{
    struct exported memory = allocate(), again = memory;

    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
    if (_i == 1) {
        again = allocate();
        again.address = memory.address; /* as if it lay there */
    }
    expect_successor(&again, _i == 0);
}
END_TEST

/* The close, for which it waits, is taken back. */
START_TEST(an_import_for_which_room_was_to_be_made_is_refused_when_that_is_asked_for_again)
{
    struct exported memory = allocate(), other = allocate();

    imports.bytes_max = BYTES;
    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
    gpu_import_owner_gone(&imports, &owners[0]);
    add(1, 2, 1, &other);
    ck_assert_int_eq(answer_count, 1);
    ck_assert_int_eq(closings, 1);
    add(1, 3, 2, &memory);
    expect(1, 1, 3, HVI_OK);
    expect(2, 1, 2, HVI_ERR_LIMIT);
    close_all(); /* nothing */
    ck_assert_uint_eq(imports.count, 1);
}
END_TEST

START_TEST(what_cannot_be_imported_is_an_answer)
{
    struct exported memory = allocate();
    struct hvi_gpu_import said = ask(1, 1, &memory);

    said.memory.uuid[0]++;
    ck_assert(import(0, &said, NULL, 0));
    expect(0, 0, 1, HVI_ERR_INVALID);
    said = ask(2, 1, &memory);
    said.memory.kind = HVI_DEVICE_POOL;
    int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert(import(0, &said, &none, 1));
    expect(1, 0, 2, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(answers[1].text, "cuMemPoolImportFromShareableHandle: CUDA"));
    said = ask(3, 1, &memory);
    said.memory.bytes = 2 * BYTES;
    ck_assert(import(0, &said, NULL, 0));
    expect(2, 0, 3, HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(answers[2].text, "4194304 were said"));
    said = ask(4, 1, &memory);
    said.memory.bytes = 9 * BYTES;
    ck_assert(import(0, &said, NULL, 0));
    expect(3, 0, 4, HVI_ERR_LIMIT);
    said = ask(5, 1, &memory);
    said.memory.handle[3] ^= 0x40; /* of a process that is not there: the first bytes are its pid */
    ck_assert(import(0, &said, NULL, 0));
    expect(4, 0, 5, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(answers[4].text, "cuIpcOpenMemHandle: CUDA_ERROR"));
    said = ask(6, 1, &memory);
    said.pid = INT32_MAX;
    ck_assert(import(0, &said, NULL, 0));
    expect(5, 0, 6, HVI_ERR_NOT_FOUND);
    ck_assert_uint_eq(imports.count, 0);
}
END_TEST

/* ---- by descriptors ---- */

static struct hvi_gpu_import ask_chunks(uint64_t request, uint32_t number, uint64_t buffer_id,
                                        const struct exported *exported, uint32_t chunks)
{
    struct hvi_gpu_import said = ask(request, number, exported);

    said.memory.kind = HVI_DEVICE_VMM;
    said.memory.bytes = chunks * BYTES;
    said.memory.buffer_id = buffer_id;
    return said;
}

static void expect_words(int owner, uint32_t number, unsigned first, unsigned count)
{
    hvi_cu_ptr base;
    uint64_t bytes;

    gpu_import_where(&imports, &owners[owner], number, &base, &bytes);
    ck_assert_uint_eq(bytes, count * BYTES);
    for (unsigned i = 0; i < count; i++)
        ck_assert_uint_eq(*(unsigned *)(uintptr_t)(base + i * BYTES), first + i);
}

static void unmap_oldest(void)
{
    char answer = 0;

    ck_assert_int_eq(write(line, "u", 1), 1);
    ck_assert_int_eq(read(line, &answer, 1), 1);
}

static unsigned count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

START_TEST(chunks_are_one_range_which_outlives_the_exporter_s_mapping)
{
    static struct hvi_packet packet;
    unsigned before = count_descriptors();
    struct exported memory = order("v", &packet);
    struct hvi_gpu_import said = ask_chunks(1, 1, 5, &memory, CHUNKS);

    ck_assert_uint_eq(packet.fd_count, CHUNKS);
    ck_assert(import(0, &said, packet.fds, CHUNKS));
    expect(0, 0, 1, HVI_OK);
    expect_words(0, 1, 1, CHUNKS);
    ck_assert_uint_eq(imports.bytes, CHUNKS * BYTES);
    unmap_oldest(); /* which ends nothing here */
    expect_words(0, 1, 1, CHUNKS);
    give_back(0, 2, 1);
    expect(1, 0, 2, HVI_OK);
    ck_assert_uint_eq(imports.count, 0);
    ck_assert_uint_eq(count_descriptors(), before);
}
END_TEST

START_TEST(a_range_that_has_grown_is_opened_beside_the_smaller_one)
{
    static struct hvi_packet packet;
    struct exported memory = order("v", &packet);
    int fds[CHUNKS + 2];
    struct hvi_gpu_import smaller = ask_chunks(1, 1, 5, &memory, 2);
    struct hvi_gpu_import larger = ask_chunks(2, 2, 6, &memory, CHUNKS);

    for (unsigned i = 0; i < CHUNKS; i++)
        fds[i] = dup(packet.fds[i]);
    ck_assert(import(0, &smaller, packet.fds, 2));
    ck_assert(import(0, &larger, fds, CHUNKS));
    close(packet.fds[2]);
    expect(0, 0, 1, HVI_OK);
    expect(1, 0, 2, HVI_OK); /* while the other one is held */
    expect_words(0, 1, 1, 2);
    expect_words(0, 2, 1, CHUNKS);
    give_back(0, 3, 1);
    expect(2, 0, 3, HVI_OK);
    ck_assert_uint_eq(imports.count, 1);
    fds[0] = open("/dev/null",
                  O_RDONLY | O_CLOEXEC); /* of what is open already no descriptor is looked at */
    fds[1] = dup(fds[0]);
    fds[2] = dup(fds[0]);
    larger.request = 4;
    ck_assert(import(1, &larger, fds, CHUNKS));
    expect(3, 1, 4, HVI_OK);
}
END_TEST

START_TEST(chunks_that_are_not_what_was_said_are_refused_and_leave_nothing)
{
    static struct hvi_packet packet;
    unsigned before = count_descriptors();
    struct exported memory = order("v", &packet);
    struct hvi_gpu_import said = ask_chunks(1, 1, 5, &memory, CHUNKS);
    int one;

    close(packet.fds[2]);
    packet.fds[2] =
        open("/dev/null", O_RDONLY | O_CLOEXEC); /* the third is no memory of the driver's */
    ck_assert(import(0, &said, packet.fds, CHUNKS));
    expect(0, 0, 1, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(answers[0].text, "cuMemImportFromShareableHandle: CUDA_ERROR"));
    memory = order("v", &packet);
    said = ask(2, 1, &memory); /* one chunk of half its size */
    said.memory.kind = HVI_DEVICE_VMM;
    said.memory.bytes = BYTES / 2;
    struct gpu_exported exported = {0};
    uint64_t half = BYTES / 2;
    struct hvi_device_memory part = said.memory;
    part.chunks = &half;
    part.chunk_count = 1;
    one = dup(packet.fds[0]);
    ck_assert_int_eq(gpu_exported_add(&exported, &part, &one, 1), HVI_OK);
    ck_assert(gpu_import_add(&imports, &owners[0], &said, &exported));
    expect(1, 0, 2, HVI_ERR_UNSUPPORTED);
    hvi_packet_close_fds(&packet);
    expect_count(0);
    ck_assert_uint_eq(count_descriptors(), before);
}
END_TEST

/* ---- by fabric handles ---- */

static bool import_fabric(const struct hvi_gpu_import *said, const struct exported *memory)
{
    struct gpu_exported exported = {0};
    uint64_t chunks[CHUNKS] = {BYTES, BYTES, BYTES};
    struct hvi_device_memory piece = said->memory;

    for (unsigned i = 0; i < CHUNKS; i += 2) { /* two pieces */
        unsigned char bytes[2 * HVI_WIRE_GPU_HANDLE];
        piece.chunks = chunks;
        piece.chunk_count = i == 0 ? 2 : 1;
        piece.fabric = bytes;
        piece.fabric_bytes = piece.chunk_count * HVI_WIRE_GPU_HANDLE;
        memcpy(bytes, &memory->fabric[i], piece.fabric_bytes);
        ck_assert_int_eq(gpu_exported_add(&exported, &piece, NULL, 0), HVI_OK);
    }
    ck_assert(gpu_exported_is_whole(&exported));
    return gpu_import_add(&imports, &owners[0], said, &exported);
}

START_TEST(chunks_by_fabric_handles_are_one_range_while_and_after_they_are_mapped_there)
{
    static struct hvi_packet packet;
    unsigned before = count_descriptors();
    struct exported memory = order("h", &packet);
    struct hvi_gpu_import said = ask_chunks(1, 1, 5, &memory, CHUNKS);

    said.memory.kind = HVI_DEVICE_FABRIC;
    ck_assert_uint_eq(packet.fd_count, 0);
    ck_assert(import_fabric(&said, &memory));
    expect(0, 0, 1, HVI_OK);
    expect_words(0, 1, 1, CHUNKS);
    unmap_oldest();
    expect_words(0, 1, 1, CHUNKS);
    give_back(0, 2, 1);
    expect(1, 0, 2, HVI_OK);
    said.request = 3;
    ck_assert(import_fabric(&said, &memory)); /* of memory that is gone */
    expect(2, 0, 3, HVI_ERR_UNSUPPORTED);
    expect_count(0);
    ck_assert_uint_eq(count_descriptors(), before);
}
END_TEST

START_TEST(a_worker_without_the_channel_says_so_and_leaves_nothing)
{
    static struct hvi_packet packet;
    struct exported memory = order("h", &packet);
    struct hvi_gpu_import said = ask_chunks(1, 1, 5, &memory, CHUNKS);

    said.memory.kind = HVI_DEVICE_FABRIC;
    ck_assert(import_fabric(&said, &memory));
    expect(0, 0, 1, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(answers[0].text, "CUDA_ERROR_NOT_PERMITTED (800)"));
    ck_assert_ptr_nonnull(strstr(answers[0].text, "IMEX channel"));
    expect_count(0);
}
END_TEST

START_TEST(a_chunk_on_another_gpu_is_refused)
{
    static struct hvi_packet packet;
    struct exported memory = order("w", &packet);
    struct hvi_gpu_import said = ask_chunks(1, 1, 5, &memory, CHUNKS);

    ck_assert(import(0, &said, packet.fds, CHUNKS));
    expect(0, 0, 1, HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(answers[0].text, "another GPU"));
    expect_count(0);
}
END_TEST

START_TEST(the_end_of_a_process_unmaps_its_chunks)
{
    static struct hvi_packet packet;
    struct exported memory = order("v", &packet);
    struct hvi_gpu_import said = ask_chunks(1, 1, 5, &memory, CHUNKS);

    ck_assert(import(0, &said, packet.fds, CHUNKS));
    expect(0, 0, 1, HVI_OK);
    end_exporter();
    expect_words(0, 1, 1, CHUNKS);
    gpu_import_owner_gone(&imports, &owners[0]);
    expect_count(0);
}
END_TEST

START_TEST(a_pointer_of_a_pool_is_opened_and_freed)
{
    static struct hvi_packet packet;
    unsigned before = count_descriptors();
    struct exported memory = order("p", &packet);
    struct hvi_gpu_import said = ask(1, 1, &memory);

    said.memory.kind = HVI_DEVICE_POOL;
    ck_assert(import(0, &said, packet.fds, 1));
    expect(0, 0, 1, HVI_OK);
    expect_words(0, 1, 77, 1);
    give_back(0, 2, 1);
    expect(1, 0, 2, HVI_OK);
    ck_assert_uint_eq(count_descriptors(), before);
    memory = order("p", &packet);
    said = ask(3, 1, &memory);
    said.memory.kind = HVI_DEVICE_POOL;
    said.memory.bytes = 2 * BYTES;
    ck_assert(import(0, &said, packet.fds, 1));
    expect(2, 0, 3, HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(answers[2].text, "4194304 were said"));
}
END_TEST

START_TEST(what_was_said_of_chunks_adds_up)
{
    uint64_t chunks[2] = {BYTES, BYTES};
    const int fds[2] = {-1, -1};
    struct hvi_device_memory memory = {.kind = HVI_DEVICE_VMM,
                                       .bytes = (HVI_DEVICE_CHUNKS_MAX + 1) * (uint64_t)BYTES,
                                       .chunks = chunks,
                                       .chunk_count = 2};
    struct gpu_exported exported = {0};

    for (uint32_t i = 0; i < HVI_DEVICE_CHUNKS_MAX; i += 2) {
        ck_assert_int_eq(gpu_exported_add(&exported, &memory, fds, 2), HVI_OK);
        ck_assert(!gpu_exported_is_whole(&exported));
    }
    ck_assert_int_eq(gpu_exported_add(&exported, &memory, fds, 1), HVI_ERR_LIMIT);
    exported.bytes -= BYTES;
    ck_assert(gpu_exported_is_whole(&exported));
    exported.chunks[0] = UINT64_MAX;
    ck_assert(!gpu_exported_is_whole(&exported));
    gpu_exported_fini(&exported);
}
END_TEST

/* Handles of one kind are no handles of the other, and there would be fewer of them than chunks. */
START_TEST(pieces_of_another_kind_or_size_are_refused_and_change_nothing)
{
    uint64_t chunk = BYTES;
    const int fd = -1;
    unsigned char handle[HVI_WIRE_GPU_HANDLE] = {0};
    struct hvi_device_memory memory = {
        .kind = HVI_DEVICE_VMM, .bytes = 2 * BYTES, .chunks = &chunk, .chunk_count = 1};
    struct hvi_device_memory other = memory;
    struct gpu_exported exported = {0};

    ck_assert_int_eq(gpu_exported_add(&exported, &memory, &fd, 1), HVI_OK);
    other.bytes = 3 * BYTES;
    ck_assert_int_eq(gpu_exported_add(&exported, &other, &fd, 1), HVI_ERR_INVALID);
    other = memory;
    other.kind = HVI_DEVICE_FABRIC;
    other.fabric = handle;
    other.fabric_bytes = sizeof handle;
    ck_assert_int_eq(gpu_exported_add(&exported, &other, NULL, 0), HVI_ERR_INVALID);
    ck_assert_int_eq(gpu_exported_add(&exported, &memory, &fd, 1), HVI_OK);
    ck_assert(gpu_exported_is_whole(&exported));
    gpu_exported_fini(&exported);
}
END_TEST

START_TEST(a_small_allocation_may_lie_within_a_block)
{
    struct exported memory = allocate();

    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
}
END_TEST

START_TEST(an_mps_server_that_is_lost_ends_the_process_and_too_many_clients_do_not)
{
    const int error = HVI_CU_MPS_CONNECTION_FAILED + _i;
    const bool has_room = error != HVI_CU_MPS_MAX_CLIENTS && error != HVI_CU_MPS_MAX_CONNECTIONS;
    struct gpu_calls calls = {.cuda = &device.cuda};
    struct gpu_outcome outcome = {.status = HVI_OK};

    ck_assert(!gpu_outcome_good(&calls, &outcome, "cuIpcOpenMemHandle", error));
    ck_assert_int_eq(outcome.status, HVI_ERR_UNSUPPORTED);
    ck_assert_int_eq(calls.failed, has_room);
}
END_TEST

START_TEST(a_number_that_is_taken_breaks_the_protocol)
{
    struct exported memory = allocate();
    struct hvi_gpu_import said = ask(2, 1, &memory);

    add(0, 1, 1, &memory);
    ck_assert(!import(0, &said, NULL, 0));
    expect(0, 0, 1, HVI_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_import");
    TCase *tcase = tcase_create("imports"), *blocks = tcase_create("blocks");
    TCase *two = tcase_create("two devices"), *waiting = tcase_create("waiting");
    TCase *channel = tcase_create("no channel");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, memory_is_opened_once_and_closed_with_its_last_holder);
    tcase_add_test(tcase, the_next_generation_finds_memory_open);
    tcase_add_test(tcase, what_the_next_generation_does_not_ask_for_is_closed_after_a_while);
    tcase_add_test(tcase, what_no_engine_has_makes_room_where_the_limit_leaves_none);
    tcase_add_test(tcase, the_end_of_a_process_closes_what_nobody_holds);
    tcase_add_test(tcase, an_owner_that_goes_while_memory_is_opened_hears_nothing);
    tcase_add_test(tcase, an_address_that_was_freed_and_allocated_again_is_opened_again);
    tcase_add_test(tcase, another_process_of_the_same_number_has_an_import_of_its_own);
    tcase_add_test(tcase, what_cannot_be_imported_is_an_answer);
    tcase_add_test(tcase, a_number_that_is_taken_breaks_the_protocol);
    tcase_add_loop_test(tcase,
                        an_mps_server_that_is_lost_ends_the_process_and_too_many_clients_do_not, 0,
                        HVI_CU_MPS_CLIENT_TERMINATED - HVI_CU_MPS_CONNECTION_FAILED + 1);
    tcase_add_test(tcase, chunks_are_one_range_which_outlives_the_exporter_s_mapping);
    tcase_add_test(tcase, a_range_that_has_grown_is_opened_beside_the_smaller_one);
    tcase_add_test(tcase, chunks_that_are_not_what_was_said_are_refused_and_leave_nothing);
    tcase_add_test(tcase,
                   chunks_by_fabric_handles_are_one_range_while_and_after_they_are_mapped_there);
    tcase_add_test(tcase, the_end_of_a_process_unmaps_its_chunks);
    tcase_add_test(tcase, a_pointer_of_a_pool_is_opened_and_freed);
    tcase_add_test(tcase, what_was_said_of_chunks_adds_up);
    tcase_add_test(tcase, pieces_of_another_kind_or_size_are_refused_and_change_nothing);
    suite_add_tcase(suite, tcase);
    tcase_add_checked_fixture(waiting, setup_waiting, teardown);
    tcase_add_test(waiting, a_release_is_answered_by_the_close_or_after_a_while);
    tcase_add_test(waiting, what_is_asked_for_again_before_it_is_closed_stays_open);
    tcase_add_test(waiting,
                   an_import_for_which_room_was_to_be_made_is_refused_when_that_is_asked_for_again);
    tcase_add_loop_test(waiting, only_a_handle_of_equal_bytes_waits_for_the_close, 0, 2);
    suite_add_tcase(suite, waiting);
    tcase_add_checked_fixture(channel, setup_no_channel, teardown);
    tcase_add_test(channel, a_worker_without_the_channel_says_so_and_leaves_nothing);
    suite_add_tcase(suite, channel);
    tcase_add_checked_fixture(two, setup_two, teardown);
    tcase_add_test(two, a_chunk_on_another_gpu_is_refused);
    suite_add_tcase(suite, two);
    tcase_add_checked_fixture(blocks, setup_blocks, teardown);
    tcase_add_test(blocks, a_small_allocation_may_lie_within_a_block);
    suite_add_tcase(suite, blocks);
    return hvt_run_suite(suite);
}
