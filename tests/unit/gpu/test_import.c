/* SPDX-License-Identifier: Apache-2.0
 * The cache of imports on the fake driver, whose rules end a test that breaks them. The exporter is a child. */
#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "daemon/gpu/device.h"
#include "daemon/gpu/import.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_NS (20 * HVI_NS_SEC)
#define BYTES       (2u << 20)

/* What the exporter says of an allocation. */
struct exported {
    uint64_t address, buffer_id;
    struct hvi_cu_ipc handle;
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

/* ---- the exporter: 'a' allocates and exports, 'f' frees the oldest ---- */

static void export_memory(const struct hvi_cuda *cuda, struct exported *exported_p)
{
    int attribute = HVI_CU_POINTER_BUFFER_ID;
    void *value = &exported_p->buffer_id;

    if (cuda->alloc(&exported_p->address, BYTES) != HVI_CU_OK ||
        cuda->ipc_get(&exported_p->handle, exported_p->address) != HVI_CU_OK ||
        cuda->pointer_attributes(1, &attribute, &value, exported_p->address) != HVI_CU_OK ||
        write(line, exported_p, sizeof(*exported_p)) != sizeof(*exported_p))
        _exit(91);
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
        else if (cuda.free(exported[freed++].address) != HVI_CU_OK || write(line, "f", 1) != 1)
            _exit(92);
    }
    _exit(0);
}

static struct exported allocate(void)
{
    struct exported exported;

    ck_assert_int_eq(write(line, "a", 1), 1);
    ck_assert_int_eq(read(line, &exported, sizeof(exported)), sizeof(exported));
    return exported;
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

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
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

static void setup(void)
{
    uint64_t end = hvi_deadline_after(PATIENCE_NS);

    hvt_log_open();
    start_exporter();
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

static void add(int owner, uint64_t request, uint32_t number, const struct exported *exported)
{
    struct hvi_gpu_import said = ask(request, number, exported);
    ck_assert(gpu_import_add(&imports, &owners[owner], &said));
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

START_TEST(what_cannot_be_imported_is_an_answer)
{
    struct exported memory = allocate();
    struct hvi_gpu_import said = ask(1, 1, &memory);

    said.memory.uuid[0]++;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(0, 0, 1, HVI_ERR_INVALID);
    said = ask(2, 1, &memory);
    said.memory.kind = HVI_DEVICE_POOL;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(1, 0, 2, HVI_ERR_UNSUPPORTED);
    said = ask(3, 1, &memory);
    said.memory.bytes = 2 * BYTES;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(2, 0, 3, HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(answers[2].text, "4194304 were said"));
    said = ask(4, 1, &memory);
    said.memory.bytes = 9 * BYTES;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(3, 0, 4, HVI_ERR_LIMIT);
    said = ask(5, 1, &memory);
    said.memory.handle[3] ^= 0x40; /* of a process that is not there: the first bytes are its pid */
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(4, 0, 5, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(answers[4].text, "cuIpcOpenMemHandle: CUDA_ERROR"));
    said = ask(6, 1, &memory);
    said.pid = INT32_MAX;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(5, 0, 6, HVI_ERR_NOT_FOUND);
    ck_assert_uint_eq(imports.count, 0);
}
END_TEST

/* Chunks of VMM are said in pieces. */
START_TEST(memory_in_pieces_is_answered_at_the_last_one)
{
    struct exported memory = allocate();
    struct hvi_gpu_import said = ask(1, 1, &memory);

    said.more = true;
    ck_assert(!gpu_import_add(&imports, &owners[0], &said)); /* it has none */
    said.memory.kind = HVI_DEVICE_VMM;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    ck_assert_int_eq(answer_count, 0);
    said.more = false;
    ck_assert(gpu_import_add(&imports, &owners[0], &said));
    expect(0, 0, 1, HVI_ERR_UNSUPPORTED);
}
END_TEST

START_TEST(a_small_allocation_may_lie_within_a_block)
{
    struct exported memory = allocate();

    add(0, 1, 1, &memory);
    expect(0, 0, 1, HVI_OK);
}
END_TEST

START_TEST(a_number_that_is_taken_breaks_the_protocol)
{
    struct exported memory = allocate();
    struct hvi_gpu_import said = ask(2, 1, &memory);

    add(0, 1, 1, &memory);
    ck_assert(!gpu_import_add(&imports, &owners[0], &said));
    expect(0, 0, 1, HVI_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_import");
    TCase *tcase = tcase_create("imports"), *blocks = tcase_create("blocks");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, memory_is_opened_once_and_closed_with_its_last_holder);
    tcase_add_test(tcase, the_next_generation_finds_memory_open);
    tcase_add_test(tcase, the_end_of_a_process_closes_what_nobody_holds);
    tcase_add_test(tcase, an_owner_that_goes_while_memory_is_opened_hears_nothing);
    tcase_add_test(tcase, an_address_that_was_freed_and_allocated_again_is_opened_again);
    tcase_add_test(tcase, what_cannot_be_imported_is_an_answer);
    tcase_add_test(tcase, a_number_that_is_taken_breaks_the_protocol);
    tcase_add_test(tcase, memory_in_pieces_is_answered_at_the_last_one);
    suite_add_tcase(suite, tcase);
    tcase_add_checked_fixture(blocks, setup_blocks, teardown);
    tcase_add_test(blocks, a_small_allocation_may_lie_within_a_block);
    suite_add_tcase(suite, blocks);
    return hvt_run_suite(suite);
}
