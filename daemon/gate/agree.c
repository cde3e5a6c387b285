/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gate/agree.h"

#include "base/clock.h"
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void gate_say(struct gate_sentence *sentence, const char *format, ...)
{
    size_t room = sizeof(sentence->text) - sentence->used;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(sentence->text + sentence->used, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        sentence->used += (size_t)length < room ? (size_t)length : room - 1;
}

void gate_say_ranks(struct gate_sentence *sentence, const bool *has, int32_t size, bool wanted)
{
    const char *separator = "";

    for (int32_t first = 0; first < size; first++) {
        int32_t last = first;
        if (has[first] != wanted)
            continue;
        while (last + 1 < size && has[last + 1] == wanted)
            last++;
        gate_say(sentence, last > first ? "%s%d-%d" : "%s%d", separator, first, last);
        separator = ",";
        first = last;
    }
}

void gate_say_lost(struct gate_sentence *sentence, const char *name, const char *address,
                   const char *job, uint64_t silent_ns, const char *why)
{
    gate_say(sentence, "node %s (%s) is lost, before all nodes of ", name,
             address[0] != '\0' ? address : "its address is not known");
    if (job[0] != '\0')
        gate_say(sentence, "job '%s'", job);
    else
        gate_say(sentence, "the job");
    gate_say(sentence, " had met: for %.1f s %s", (double)silent_ns / (double)HVI_NS_SEC, why);
}

void gate_mark_ranks(bool *has, int32_t size, const struct gate_registration *said)
{
    for (size_t i = 0; i < said->engine.rank_count; i++)
        if (said->engine.ranks[i] >= 0 && said->engine.ranks[i] < size)
            has[said->engine.ranks[i]] = true;
}

void gate_say_node(struct gate_sentence *sentence, const struct gate_registration *said)
{
    const char *own = sentence->own_address != NULL && sentence->own_address[0] != '\0'
                          ? sentence->own_address
                          : "its address is not known";

    gate_say(sentence, "%s (%s)", said->name, said->address[0] != '\0' ? said->address : own);
}

/* ---- whether they agree ---- */

static const char *transport_of(const struct gate_registration *said)
{
    return said->engine.transport[0] != '\0' ? said->engine.transport : "tcp";
}

bool gate_agree_contradict(const struct gate_registration *a, const struct gate_registration *b,
                           struct gate_sentence *sentence, int *status_p)
{
    if (a->engine.size != b->engine.size) {
        gate_say(sentence, "the nodes of job '%s' disagree about its size: ", a->job);
        gate_say_node(sentence, a);
        gate_say(sentence, " says %d, ", a->engine.size);
        gate_say_node(sentence, b);
        gate_say(sentence, " says %d", b->engine.size);
        *status_p = HVI_ERR_BAD_SIZE;
        return true;
    }
    for (size_t i = 0; i < a->engine.rank_count; i++) {
        for (size_t k = 0; k < b->engine.rank_count; k++) {
            if (a->engine.ranks[i] != b->engine.ranks[k])
                continue;
            gate_say(sentence, "rank %d of job '%s' is on two nodes, ", a->engine.ranks[i], a->job);
            gate_say_node(sentence, a);
            gate_say(sentence, " and ");
            gate_say_node(sentence, b);
            gate_say(sentence, "; start each rank once");
            *status_p = HVI_ERR_DUPLICATE_RANK;
            return true;
        }
    }
    if (a->engine.encrypt != b->engine.encrypt) {
        gate_say(sentence, "the nodes of job '%s' disagree about encryption: ", a->job);
        gate_say_node(sentence, a->engine.encrypt ? a : b);
        gate_say(sentence, " encrypts data connections, ");
        gate_say_node(sentence, a->engine.encrypt ? b : a);
        gate_say(sentence,
                 " does not; give all of them HVD_ENCRYPT=1, or encrypt = yes in hvdd.conf");
        *status_p = HVI_ERR_REFUSED;
        return true;
    }
    if (strcmp(transport_of(a), transport_of(b)) != 0) {
        gate_say(sentence, "the nodes of job '%s' move data in two ways: net-transport is %s on ",
                 a->job, transport_of(a));
        gate_say_node(sentence, a);
        gate_say(sentence, " and %s on ", transport_of(b));
        gate_say_node(sentence, b);
        gate_say(sentence, "; set it to the same on all");
        *status_p = HVI_ERR_MISMATCH;
        return true;
    }
    if (a->engine.wire_oldest <= b->engine.wire_newest &&
        b->engine.wire_oldest <= a->engine.wire_newest)
        return false;
    gate_say(sentence, "the engines of job '%s' speak no common version: ", a->job);
    gate_say_node(sentence, a);
    gate_say(sentence, " speaks %u to %u, ", a->engine.wire_oldest, a->engine.wire_newest);
    gate_say_node(sentence, b);
    gate_say(sentence, " speaks %u to %u; install the same hvdd on both", b->engine.wire_oldest,
             b->engine.wire_newest);
    *status_p = HVI_ERR_VERSION;
    return true;
}

int gate_agree_check(const struct gate_registration *said, struct gate_sentence *sentence)
{
    const struct hvi_engine_node *engine = &said->engine;

    if (engine->rank_count == 0 || engine->rank_count > (size_t)engine->size) {
        gate_say(sentence, "node ");
        gate_say_node(sentence, said);
        gate_say(sentence, " brings %zu ranks to job '%s' of size %d", engine->rank_count,
                 said->job, engine->size);
        return HVI_ERR_BAD_SIZE;
    }
    for (size_t i = 0; i < engine->rank_count; i++) {
        bool twice = false;
        for (size_t k = 0; k < i; k++)
            twice = twice || engine->ranks[k] == engine->ranks[i];
        if (!twice && engine->ranks[i] >= 0 && engine->ranks[i] < engine->size)
            continue;
        gate_say(sentence, "node ");
        gate_say_node(sentence, said);
        gate_say(sentence,
                 twice ? " brings rank %d of job '%s' twice" : " brings rank %d to job '%s'",
                 engine->ranks[i], said->job);
        if (!twice)
            gate_say(sentence, ", whose ranks are 0..%d", engine->size - 1);
        return twice ? HVI_ERR_DUPLICATE_RANK : HVI_ERR_BAD_RANK;
    }
    return HVI_OK;
}
