/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/proto/launch_samples.h"

#include <string.h>

static int32_t pids[] = {1, 4711, INT32_MAX};
static unsigned char data[] = "line\n\0\xff";
static unsigned char much[4096];
static unsigned char command[] = "python3\0train.py\0";
static unsigned char environment[] = "PATH=/usr/bin:/bin\0EMPTY=\0LATIN=\xe9";
static unsigned char settings[] = "HOROVOD_CYCLE_TIME=1\0NAME=value";
static struct hvi_launch_rank ranks[] = {{2, 1, 2}, {3, 0, 1}};
static struct hvi_launch_exit exits[] = {{.rank = 0, .pid = 1, .signaled = true, .code = 9},
                                         {.rank = HVI_LAUNCH_SIZE_MAX - 1, .pid = 0, .code = 255},
                                         {.rank = 7, .pid = 7, .code = 0, .dying = true}};

static void make_start(struct hvi_launch_start *start, bool full)
{
    *start = (struct hvi_launch_start){
        .launch_version = HVI_LAUNCH_VERSION,
        .job = "hvdrun-0123456789abcdef",
        .job_key = "0123456789abcdef",
        .size = 4,
        .ranks = ranks,
        .rank_count = full ? 2 : 1,
        .command = command,
        .command_bytes = sizeof command - 1,
        .directory = "/tmp",
    };
    if (!full)
        return;
    start->environment = environment;
    start->environment_bytes = sizeof environment;
    start->settings = settings;
    start->settings_bytes = sizeof settings;
    start->exports = 1;
    strcpy(start->address, "/run/hvdd");
    strcpy(start->hvdd, "/usr/sbin/hvdd");
    strcpy(start->log_level, "warning");
    strcpy(start->mesh_listen, "192.0.2.1:0");
    strcpy(start->mesh_join, "[2001:db8::1]:9600");
    strcpy(start->mesh_key, "server x\nclient y\nsecret z\n");
    strcpy(start->host, "h1");
    start->ranks_before = 1;
    start->ranks_there = 3;
    start->start_timeout_ns = UINT64_MAX;
    start->grace_ns = 1;
    start->call_bytes = 1u << 20;
    start->silence_ns = 1;
    start->verbose = start->bind_to_core = start->gpu_mps = start->compat = true;
}

static void make_from_agent(unsigned index, struct hvi_launch_msg *msg)
{
    switch (index) {
    case 0:
        msg->kind = HVI_LAUNCH_HELLO;
        msg->hello = (struct hvi_launch_hello){
            UINT32_MAX, "0.1.0", "x86_64", "2001:db8::1", "63a2e2b4-1d0c-4f6b-9d7e-0c1b2a394857",
            "0-3,8"};
        break;
    case 1:
        msg->kind = HVI_LAUNCH_READY;
        break;
    case 2:
        msg->kind = HVI_LAUNCH_READY;
        msg->ready = (struct hvi_launch_ready){65535, 65535, "2001:db8::1"};
        break;
    case 3:
        msg->kind = HVI_LAUNCH_STARTED;
        msg->started = (struct hvi_launch_started){.pids = pids, .pid_count = 3};
        break;
    case 4:
        msg->kind = HVI_LAUNCH_OUTPUT;
        msg->data = (struct hvi_launch_data){3, 2, data, sizeof data};
        break;
    case 5:
        msg->kind = HVI_LAUNCH_LOG;
        msg->data = (struct hvi_launch_data){.data = much, .bytes = sizeof much};
        break;
    case 6:
        msg->kind = HVI_LAUNCH_SAY;
        strcpy(msg->text.text, "a sentence, gr\xc3\xbc\xc3\x9f");
        break;
    case 7:
        msg->kind = HVI_LAUNCH_EXITED;
        msg->exited = (struct hvi_launch_exited){.exits = exits, .exit_count = 3};
        break;
    case 8:
        msg->kind = HVI_LAUNCH_FAILED;
        memset(msg->text.text, 'x', sizeof msg->text.text - 1);
        msg->text.code = 255;
        break;
    default:
        msg->kind = HVI_LAUNCH_INPUT_TAKEN;
        msg->number.number = HVI_LAUNCH_DATA_MAX;
        break;
    }
}

static void make_to_agent(unsigned index, struct hvi_launch_msg *msg)
{
    switch (index) {
    case 0:
    case 1:
        msg->kind = HVI_LAUNCH_START;
        make_start(&msg->start, index == 1);
        break;
    case 2:
        msg->kind = HVI_LAUNCH_GO;
        break;
    case 3:
        msg->kind = HVI_LAUNCH_GO;
        strcpy(msg->go.master_address, "192.0.2.1");
        msg->go.master_port = 29500;
        break;
    case 4:
        msg->kind = HVI_LAUNCH_INPUT;
        msg->data = (struct hvi_launch_data){.data = data, .bytes = 1};
        break;
    case 5:
        msg->kind = HVI_LAUNCH_INPUT_END;
        break;
    case 6:
        msg->kind = HVI_LAUNCH_SIGNAL;
        msg->number.number = HVI_LAUNCH_SIGNAL_MAX;
        break;
    case 7:
        msg->kind = HVI_LAUNCH_CLOSE;
        msg->number.number = 1;
        break;
    case 10:
        msg->kind = HVI_LAUNCH_CALL;
        msg->data = (struct hvi_launch_data){.data = much, .bytes = sizeof much};
        break;
    case 12:
        msg->kind = HVI_LAUNCH_LOOK;
        break;
    case 14:
        msg->kind = HVI_LAUNCH_BEAT;
        break;
    case 15:
        msg->kind = HVI_LAUNCH_LOST;
        strcpy(msg->text.text, "h2: it is gone");
        break;
    case 13:
        msg->kind = HVI_LAUNCH_LOOKED;
        break;
    case 11:
        msg->kind = HVI_LAUNCH_OUTPUT;
        msg->data = (struct hvi_launch_data){0, HVI_LAUNCH_RESULT, data, sizeof data};
        break;
    default:
        msg->kind = HVI_LAUNCH_END;
        msg->end.linger = index == 9;
        break;
    }
}

static void make_of_relay(unsigned index, struct hvi_launch_msg *msg)
{
    switch (index) {
    case 0:
        msg->kind = HVI_LAUNCH_UP;
        msg->pass = (struct hvi_launch_pass){UINT32_MAX, 2, data, sizeof data};
        break;
    case 1:
        msg->kind = HVI_LAUNCH_TAKEN;
        msg->taken = (struct hvi_launch_taken){7, UINT32_MAX};
        break;
    case 2:
        msg->kind = HVI_LAUNCH_GONE;
        msg->gone = (struct hvi_launch_gone){7, true, 9};
        break;
    case 3:
        msg->kind = HVI_LAUNCH_OPEN;
        msg->open = (struct hvi_launch_open){7, command, sizeof command - 1, UINT64_MAX, 1};
        break;
    case 4:
        msg->kind = HVI_LAUNCH_DOWN;
        msg->pass = (struct hvi_launch_pass){.number = 7, .data = much, .bytes = sizeof much};
        break;
    default:
        msg->kind = HVI_LAUNCH_HANG_UP;
        msg->hang_up = (struct hvi_launch_hang_up){7, true};
        break;
    }
}

void hvt_launch_sample(unsigned index, struct hvi_launch_msg *msg_p)
{
    memset(msg_p, 0, sizeof *msg_p);
    if (index < 10)
        make_from_agent(index, msg_p);
    else if (index < 26)
        make_to_agent(index - 10, msg_p);
    if (index >= 26)
        make_of_relay(index - 26, msg_p);
}
