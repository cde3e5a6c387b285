/* SPDX-License-Identifier: Apache-2.0
 * Whether engines live. An engine that was stopped, or that runs in a circle, still has its socket open
 * and its process: its ranks would wait for ever. So hvdd asks each engine once a second, and kills one
 * that has not answered for `engine-silence`; its ranks see the end of their connections and get
 * HVD_ERR_ENGINE_LOST.
 *
 * Silence is counted in ticks of our own timer: where hvdd, or the whole machine, stood still, that
 * counts as one. What the engine has said already is read before it is judged, and whatever it says is
 * a sign of life.
 *
 * Where hvdd is gone, its ranks judge an engine, by the engine-silence that the last question brought. */
#include "daemon/node/node.h"

#include "base/status.h"

#include <utlist.h>

#define BEAT_NS  HVI_NS_SEC
#define SLACK_US 1000 /* six ticks are six seconds */

/* Again and again with one number: an answer that found no room in the socket is lost. */
static void ask(struct node_engine *engine)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY};

    if (engine->beat == 0)
        engine->beat = engine->node->next_query++;
    msg.engine_query.what = HVI_QUERY_ALIVE;
    msg.engine_query.rank = -1;
    msg.engine_query.request = engine->beat;
    msg.engine_query.silence_ns = (uint64_t)engine->node->config.engine_silence;
    node_link_send(engine, &msg, NULL, 0);
}

/* False: it is killed. */
static bool judge(struct node_engine *engine)
{
    uint64_t limit_ns = (uint64_t)engine->node->config.engine_silence;

    engine->silent_ns += BEAT_NS;
    if (engine->silent_ns == NODE_SILENT_NS)
        HVI_LOG(HVI_LOG_WARN, "beat", "engine-silent", "an engine does not answer",
                "job=%s generation=%llu pid=%d silent_ms=%llu", engine->generation->job->name.id,
                (unsigned long long)engine->generation->number, (int)engine->pid,
                (unsigned long long)(engine->silent_ns / HVI_NS_MS));
    if (engine->silent_ns < limit_ns)
        return true;
    engine->beats = false;
    node_spawn_kill(engine, "the engine has not answered for engine-silence: it was stopped, or is "
                            "stuck");
    return false;
}

static void look_at(struct node_engine *engine)
{
    if (!engine->beats || engine->node->config.engine_silence == 0)
        return;
    node_link_poll(engine);
    if (engine->link_fd < 0)
        return;
    if (engine->beat == 0 || judge(engine))
        ask(engine);
}

static int on_tick(sd_event_source *source, uint64_t usec, void *user)
{
    struct node *node = user;
    struct node_engine *engine;

    (void)usec;
    DL_FOREACH(node->engines, engine)
    look_at(engine);
    if (node->engines == NULL)
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    sd_event_source_set_time_relative(source, BEAT_NS / 1000);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int node_beat_start(struct node_engine *engine)
{
    struct node *node = engine->node;
    int enabled = SD_EVENT_OFF;

    engine->beats = engine->pidfd >= 0;
    if (node->beat == NULL)
        return sd_event_add_time_relative(node->event, &node->beat, CLOCK_MONOTONIC, BEAT_NS / 1000,
                                          SLACK_US, on_tick, node) < 0
                   ? HVI_ERR_NO_MEMORY
                   : HVI_OK;
    sd_event_source_get_enabled(node->beat, &enabled);
    if (enabled != SD_EVENT_OFF)
        return HVI_OK;
    sd_event_source_set_time_relative(node->beat, BEAT_NS / 1000);
    sd_event_source_set_enabled(node->beat, SD_EVENT_ONESHOT);
    return HVI_OK;
}

void node_beat_heard(struct node_engine *engine)
{
    engine->silent_ns = 0;
    engine->beat = 0;
}

void node_beat_reload(struct node *node)
{
    struct node_engine *engine;

    DL_FOREACH(node->engines, engine)
    {
        if (engine->beats && engine->link_fd >= 0)
            ask(engine);
    }
}

void node_beat_close(struct node *node)
{
    node->beat = sd_event_source_disable_unref(node->beat);
}
