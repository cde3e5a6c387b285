/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/task.h"

#include "base/status.h"
#include "tools/hvdrun/route.h"
#include "tools/hvdrun/words.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_numeric(const char *address)
{
    struct in6_addr found; /* room for either */
    return inet_pton(AF_INET, address, &found) == 1 || inet_pton(AF_INET6, address, &found) == 1;
}

static bool are_names(const char *interfaces)
{
    char entry[64];
    for (const char *at = interfaces; *at != '\0'; at += at[0] == ',') {
        const size_t length = strcspn(at, ",");
        snprintf(entry, sizeof entry, "%.*s", (int)length, at);
        if (strpbrk(entry, "^/ ") != NULL || is_numeric(entry))
            return false;
        at += length;
    }
    return true;
}

/* Interfaces by name are for others that use the network too, as with horovodrun; exceptions, networks
 * and addresses are not what they understand. */
static int pack_interfaces(const char *interfaces, struct run_buffer *out)
{
    char nccl[512];
    char gloo[512];
    char *list[] = {nccl, gloo, NULL};
    if (interfaces == NULL || !are_names(interfaces))
        return HVI_OK;
    snprintf(nccl, sizeof nccl, "NCCL_SOCKET_IFNAME=%s", interfaces);
    snprintf(gloo, sizeof gloo, "HOROVOD_GLOO_IFACE=%.*s", (int)strcspn(interfaces, ","),
             interfaces);
    return run_words_pack(list, NULL, out);
}

static int pack_list(char *const *words, size_t count, struct run_buffer *out)
{
    char *list[RUN_EXPORTS_MAX + RUN_VARIABLES_MAX + 1] = {NULL};
    memcpy(list, words, count * sizeof *list);
    return run_words_pack(list, NULL, out);
}

/* What the ranks are given beside the environment: options, then variables. Of several for one name
 * the last counts: those of -x win over what interfaces and --tcp say. */
static int pack_settings(const struct run_options *options, struct run_buffer *out)
{
    int status = pack_list(options->exports, options->export_count, out);
    if (status == HVI_OK)
        status = pack_interfaces(options->interfaces, out);
    if (status == HVI_OK && options->tcp)
        status = run_buffer_append(out, RUN_VARIABLE_TCP, sizeof RUN_VARIABLE_TCP);
    return status == HVI_OK ? pack_list(options->variables, options->variable_count, out) : status;
}

static bool make_ranks(const struct run_hosts *hosts, size_t host, struct hvi_launch_start *start)
{
    const struct run_host *at = &hosts->list[host];
    start->rank_count = (size_t)at->ranks;
    start->ranks = calloc(start->rank_count, sizeof *start->ranks);
    for (int i = 0; start->ranks != NULL && i < at->ranks; i++) {
        struct hvi_launch_rank *rank = &start->ranks[i];
        int cross_rank;
        int cross_size;
        run_hosts_cross(hosts, host, i, &cross_rank, &cross_size);
        *rank = (struct hvi_launch_rank){
            .rank = at->first_rank + i, .cross_rank = cross_rank, .cross_size = cross_size};
    }
    return start->ranks != NULL;
}

static void put(char *text_p, size_t size, const char *text)
{
    snprintf(text_p, size, "%s", text != NULL ? text : "");
}

static bool find_directory(const struct run_options *options, const struct run_host *host,
                           char *directory_p, size_t size)
{
    if (!host->here && options->remote_dir != NULL) {
        put(directory_p, size, options->remote_dir);
        return true;
    }
    return getcwd(directory_p, size) != NULL;
}

int run_task_init(struct run_task *task_p, const struct run_options *options, const char *job,
                  const char *key, uint64_t call_bytes)
{
    *task_p =
        (struct run_task){.options = options, .job = job, .key = key, .call_bytes = call_bytes};
    int status = run_words_pack(options->command, NULL, &task_p->command);
    if (status == HVI_OK)
        status = run_words_pack(environ, run_words_travel, &task_p->environment);
    return status == HVI_OK ? pack_settings(options, &task_p->settings) : status;
}

/* hvdd listens at numbers alone, and what a name means here it may not mean there. */
int run_task_meet(struct run_task *task, const char *address, const char **why_p)
{
    if (is_numeric(address))
        run_route_place(task->mesh_listen, sizeof task->mesh_listen, address, 0);
    else
        put(task->mesh_listen, sizeof task->mesh_listen, RUN_ROUTE_ANYWHERE);
    return mesh_key_make(task->server_key, task->client_key, why_p);
}

void run_task_join(struct run_task *task, const char *address, uint32_t port)
{
    run_route_place(task->mesh_join, sizeof task->mesh_join, address, port);
}

void run_task_fini(struct run_task *task)
{
    explicit_bzero(task->server_key, sizeof task->server_key);
    explicit_bzero(task->client_key, sizeof task->client_key);
    run_buffer_fini(&task->command);
    run_buffer_fini(&task->environment);
    run_buffer_fini(&task->settings);
}

static void fill(const struct run_task *task, struct hvi_launch_start *start)
{
    const struct run_options *options = task->options;
    start->launch_version = HVI_LAUNCH_VERSION;
    start->size = options->ranks;
    start->command = (unsigned char *)task->command.data;
    start->command_bytes = task->command.used;
    start->environment = (unsigned char *)task->environment.data;
    start->environment_bytes = task->environment.used;
    start->settings = (unsigned char *)task->settings.data;
    start->settings_bytes = task->settings.used;
    start->exports = (uint32_t)options->export_count;
    start->call_bytes = task->call_bytes;
    start->grace_ns = options->grace_ns;
    start->silence_ns = options->silence_ns;
    start->verbose = options->verbose;
    start->bind_to_core = options->bind_to_core;
    start->gpu_mps = options->gpu_mps;
    start->compat = options->compat;
    put(start->job, sizeof start->job, task->job);
    put(start->job_key, sizeof start->job_key, task->key);
    put(start->address, sizeof start->address, options->address);
    put(start->hvdd, sizeof start->hvdd, options->hvdd);
    put(start->log_level, sizeof start->log_level, options->log_level);
}

static void fill_meeting(const struct run_task *task, size_t host, struct hvi_launch_start *start)
{
    if (host == 0) {
        put(start->mesh_listen, sizeof start->mesh_listen, task->mesh_listen);
        put(start->mesh_key, sizeof start->mesh_key, task->server_key);
    } else if (task->mesh_join[0] != '\0') {
        put(start->mesh_join, sizeof start->mesh_join, task->mesh_join);
        put(start->mesh_key, sizeof start->mesh_key, task->client_key);
    }
}

void run_task_send(const struct run_task *task, size_t host, uint64_t patience_ns,
                   const struct run_machine *machine, struct run_link *link)
{
    const struct run_options *options = task->options;
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_START};
    struct hvi_launch_start *start = &msg.start;
    fill(task, start);
    start->start_timeout_ns = patience_ns;
    start->ranks_before = machine->before;
    start->ranks_there = machine->there;
    put(start->host, sizeof start->host, link->host->name);
    fill_meeting(task, host, start);
    if (!find_directory(options, link->host, start->directory, sizeof start->directory))
        snprintf(link->text, sizeof link->text, "the working directory here has no name: %s",
                 strerror(errno));
    else if (!make_ranks(&options->places, host, start))
        snprintf(link->text, sizeof link->text, "%s", strerror(ENOMEM));
    else
        run_link_send(link, &msg);
    free(start->ranks);
}
