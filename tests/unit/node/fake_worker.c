/* SPDX-License-Identifier: Apache-2.0
 * A GPU's worker without a GPU, for tests of hvdd. What it does follows from the job's name: "up" serves; "options" does if it has
 * its options; "late" says which step it is at and no more; "fails" has no driver; "dies" ends once it has an engine; "deaf" stands
 * still once it is up; "garbage" says what only hvdd says; "unused" opens no memory, "opens" does so when it has an engine, and all
 * others before they are up. Of a next job it says that it has it, unless that is "stays", of which
 * it says nothing; "lies", of which it says another number; or "ends", at which it ends. */
#include "base/status.h"
#include "proto/gpu.h"
#include "proto/packet.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINK_FD 3

static struct hvi_packet packet;
static struct hvi_gpu_msg msg;

static void say(const struct hvi_gpu_msg *said)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length;

    if (hvi_gpu_msg_encode(said, bytes, sizeof(bytes), &length) != HVI_OK ||
        hvi_packet_send(LINK_FD, bytes, length, NULL, 0, UINT64_MAX) != HVI_OK)
        _exit(90);
}

static void say_state(enum hvi_gpu_state_number state, const char *text)
{
    struct hvi_gpu_msg said = {.kind = HVI_GPU_STATE, .state = {.state = state}};

    snprintf(said.state.text, sizeof(said.state.text), "%s", text);
    say(&said);
}

static void say_up(uint32_t imports)
{
    struct hvi_gpu_msg said = {
        .kind = HVI_GPU_STATE,
        .state = {.state = HVI_GPU_UP,
                  .has_row = true,
                  .row = {.uuid = "GPU-ab", .name = "none", .state = "up", .imports = imports}}};

    say(&said);
}

static void hear(void)
{
    if (hvi_packet_receive(LINK_FD, &packet, UINT64_MAX) != HVI_OK)
        _exit(0);
    if (hvi_gpu_msg_decode(packet.bytes, packet.length, &msg, NULL, 0) != HVI_OK)
        _exit(91);
}

/* What test_gpu.c has set. */
static bool has_options(const struct hvi_gpu_start *start)
{
    return strcmp(start->kernels, "/kernels") == 0 && strcmp(start->library_path, "/a:/b") == 0 &&
           start->comm_ns == 7 && start->import_bytes_max == 8;
}

static void begin(const char *job)
{
    say_state(HVI_GPU_STARTING, "cuInit");
    if (strcmp(job, "late") == 0)
        return;
    if (strcmp(job, "fails") == 0) {
        say_state(HVI_GPU_FAILED, "no NVIDIA driver");
        _exit(1);
    }
    say_up(strcmp(job, "unused") != 0 && strcmp(job, "opens") != 0);
    if (strcmp(job, "garbage") == 0)
        say(&(struct hvi_gpu_msg){.kind = HVI_GPU_STOP});
    while (strcmp(job, "deaf") == 0)
        poll(NULL, 0, -1);
}

/* To the engine: one byte, the way that this worker can be told from others. */
static void greet(const char *job, int fd)
{
    if (msg.engine.instance_count == 0)
        _exit(95);
    if (strcmp(job, "dies") == 0)
        _exit(7);
    if (strcmp(job, "opens") == 0)
        say_up(1);
    if (write(fd, "w", 1) != 1)
        _exit(92);
}

static void pass(char *job_p, size_t size)
{
    snprintf(job_p, size, "%s", msg.job.job);
    if (strcmp(job_p, "ends") == 0)
        _exit(8);
    msg.job.instance += strcmp(job_p, "lies") == 0;
    if (strcmp(job_p, "stays") != 0)
        say(&msg);
}

int main(void)
{
    char job[HVI_JOB_ID_MAX + 1];

    hear();
    if (msg.kind != HVI_GPU_START)
        return 93;
    snprintf(job, sizeof(job), "%s", msg.start.job);
    const bool good = has_options(&msg.start);
    hvi_gpu_msg_free(&msg);
    if (strcmp(job, "options") == 0 && !good)
        return 94;
    begin(job);
    for (;;) {
        hear();
        if (msg.kind == HVI_GPU_BEAT)
            say(&msg);
        else if (msg.kind == HVI_GPU_ENGINE)
            greet(job, hvi_packet_take_fd(&packet, 0)); /* stays open, as a real one's */
        else if (msg.kind == HVI_GPU_JOB)
            pass(job, sizeof(job));
        else if (msg.kind == HVI_GPU_STOP)
            return 0;
    }
}
