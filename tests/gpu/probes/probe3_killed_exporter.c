/* SPDX-License-Identifier: Apache-2.0
 * Question 3. A trainer dies by SIGKILL while the worker's kernel reads the memory it exported: does the kernel fault, is what
 * it reads still right, and whose is the memory then?
 *
 * Method. The owner allocates 1 GiB, fills it with a pattern and exports it; this process opens it, queues about half a second
 * of kernels that compare it with the pattern, kills the owner, waits for its end, and lets the kernels finish. Then it reads
 * everything once more, and closes. Free device memory (all processes') before the allocation, before the kill, after the
 * owner is gone, and after the close.
 *
 * Predicted. No fault, no wrong word; all of the 1 GiB stays in use until the close (left_after_death 1024 MiB, of the owner's
 * memory only its context returns) and is free after it. Sources: LMCache issues 4014, 4015 (112 GB per device stayed); UCX
 * issue 11753; cuda.h calls cudaFree before close undefined and is silent on death. */
#include "probe_cuda.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static void owner(const struct probe_options *o)
{
    struct probe_msg m;
    CUipcMemHandle handle;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    CUstream s = cu_stream();
    cu_settle(s, "nothing");
    probe_say_verb(PROBE_PEER_FD, "context");
    probe_expect(PROBE_PEER_FD, "alloc", &m, NULL);
    CUdeviceptr p = cu_alloc(m.a[0]);
    cu_fill(s, p, m.a[0] / 4, 3);
    cu_settle(s, "filling");
    CU(cuIpcGetMemHandle, &handle, p);
    memcpy(m.bytes, &handle, sizeof handle);
    snprintf(m.verb, sizeof m.verb, "handle");
    probe_say(PROBE_PEER_FD, &m, -1);
    probe_listen(PROBE_PEER_FD, 60, &m, NULL); /* until the kill */
}

/* How many comparisons fill half a second. */
static int count_for_half_a_second(CUdeviceptr p, size_t words)
{
    double began = probe_now_us();
    if (cu_mismatches(p, words, 3) != 0)
        probe_fail("wrong words while the owner lives");
    double us = probe_now_us() - began;
    int count = (int)(5e5 / us) + 1;
    return count > 500 ? 500 : count; /* a stream holds about a thousand launches */
}

/* Freed memory may return a little after the call that freed it. */
static double settled_free_mib(double wanted)
{
    double end = probe_now_us() + 2e6, now = cu_free_mib();
    while (now < wanted && probe_now_us() < end) {
        probe_sleep_us(1e4);
        now = cu_free_mib();
    }
    return now;
}

struct watch {
    size_t bytes;
    struct probe_peer peer;
    CUstream s;
    CUdeviceptr p, counter;
    double alone, before, mapped, dead, closed; /* free MiB, in this order */
};

static void bring_up(struct watch *w)
{
    struct probe_msg m = {.verb = "alloc", .a = {w->bytes}};
    w->s = cu_stream();
    w->counter = cu_alloc(sizeof(uint64_t));
    cu_mismatches(w->counter, 1,
                  0); /* whatever a first launch allocates is there before memory is counted */
    w->alone = cu_free_mib();
    w->peer = probe_start("owner");
    probe_expect(w->peer.fd, "context", NULL, NULL);
    w->before = cu_free_mib();
    if (w->before < (double)(2 * w->bytes >> 20))
        probe_refuse("needs %zu MiB of free device memory, has %.0f", 2 * w->bytes >> 20,
                     w->before);
    probe_say(w->peer.fd, &m, -1);
    probe_expect(w->peer.fd, "handle", &m, NULL);
    w->p = cu_ipc_open(m.bytes);
    w->mapped = cu_free_mib();
}

static void kill_beside_kernels(struct watch *w)
{
    int count = count_for_half_a_second(w->p, w->bytes / 4);
    CU(cuMemsetD8Async, w->counter, 0, sizeof(uint64_t), w->s);
    for (int i = 0; i < count; i++)
        cu_check(w->s, w->p, w->bytes / 4, 3, w->counter);
    probe_sleep_us(5e4);
    probe_step("killing the owner");
    int was_running = cu.cuStreamQuery(w->s) == CUDA_ERROR_NOT_READY;
    double killed = probe_now_us();
    kill(w->peer.pid, SIGKILL);
    int status = probe_end(&w->peer, PROBE_WAIT_S);
    int is_still_running = cu.cuStreamQuery(w->s) == CUDA_ERROR_NOT_READY;
    probe_figure((probe_now_us() - killed) / 1e3, "ms", "kill_until_reaped");
    if (!WIFSIGNALED(status))
        probe_note("the owner ended by itself before the kill");
    probe_answer(was_running ? "yes" : "no", "kernels_ran_at_the_kill");
    probe_answer(is_still_running ? "yes" : "no", "kernels_ran_after_the_owner_was_gone");
}

/* Whether the kernels ended well; if not, the context is lost with all further answers. */
static int let_kernels_finish(struct watch *w)
{
    uint64_t bad = ~0ull;
    double end = probe_now_us() + PROBE_WAIT_S * 1e6;
    CUresult result;
    probe_step("letting the kernels finish");
    while ((result = cu.cuStreamQuery(w->s)) == CUDA_ERROR_NOT_READY && probe_now_us() < end)
        ;
    probe_answer(result == CUDA_SUCCESS ? "none" : cu_error(result), "fault");
    if (result != CUDA_SUCCESS)
        return 0;
    CU(cuMemcpyDtoHAsync, &bad, w->counter, sizeof bad, w->s);
    cu_settle(w->s, "reading the counter");
    probe_figure((double)bad, "words", "wrong_words_during");
    probe_figure((double)cu_mismatches(w->p, w->bytes / 4, 3), "words", "wrong_words_afterwards");
    return 1;
}

static void importer(const struct probe_options *o)
{
    struct watch w = {.bytes = (size_t)(o->is_quick ? 256 : 1024) << 20};
    double mib = (double)(w.bytes >> 20);
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    bring_up(&w);
    kill_beside_kernels(&w);
    if (!let_kernels_finish(&w))
        return;
    w.dead = settled_free_mib(w.alone - mib - 16);
    probe_step("closing the mapping of the dead owner");
    double began = probe_now_us();
    CU(cuIpcCloseMemHandle, w.p);
    probe_figure((probe_now_us() - began) / 1e3, "ms", "close_after_death");
    w.closed = settled_free_mib(w.alone - 16);
    probe_figure(w.alone - w.before, "MiB", "owner_context");
    probe_figure(w.before - w.mapped, "MiB", "used_by_allocation");
    probe_figure(w.alone - w.dead, "MiB", "left_after_death");
    probe_figure(w.alone - w.closed, "MiB", "left_after_close");
}

static const struct probe_role roles[] = {{"importer", importer}, {"owner", owner}, {NULL, NULL}};
const struct probe probe = {3, "A trainer is killed while the worker reads its memory", NULL,
                            roles};
