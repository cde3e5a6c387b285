/* SPDX-License-Identifier: Apache-2.0
 *   RegionAdd --is granted already------------------------------------------> mapped
 *      |                                                                        ^
 *   claim --the oldest: EngineRegions{all that is held, and it}--> hvdd --{granted}
 *                                                                    \----{why not}---> LIMIT
 *
 * hvdd is asked for one claim at a time, so that none is refused for the sake of another.
 *
 * What the job has stopped using goes back with the answer to hvdd's next beat. Link messages keep their order, so the
 * engine never holds more than hvdd counts: an answer to a claim that is over by now raises nothing.
 *
 * A job needs no hvdd to go on. Where it has gone, or has not answered for ANSWER_NS, the engine grants by itself
 * up to region-limit, and hvdd counts that when it is told: by the next answer to a beat, or EngineHello. */
#include "daemon/engine/sessions/quota.h"

#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/sessions/control.h"

#include <stdlib.h>
#include <unistd.h>

#define ANSWER_NS HVI_NS_SEC /* for hvdd */

/* A RegionAdd that waits for hvdd. */
struct engine_claim {
    struct engine_claim *next;
    struct engine_session *session;
    struct hvi_region_add add;
    int fd;
};

static uint64_t used(const struct engine_sessions *sessions)
{
    return engine_control_region_bytes(sessions, false) +
           engine_control_region_bytes(sessions, true);
}

/* Saturates: region-limit bounds what is used, and nothing what is wanted. */
static uint64_t wanted(const struct engine_sessions *sessions)
{
    const struct engine_claim *claim = sessions->quota.claims;
    uint64_t bytes = used(sessions), more = claim ? claim->add.bytes : 0;

    return more > UINT64_MAX - bytes ? UINT64_MAX : bytes + more;
}

bool engine_quota_has(const struct engine_sessions *sessions, uint64_t bytes)
{
    if (!sessions->start->region_asks || sessions->alone)
        return true;
    uint64_t held = used(sessions);
    return held <= sessions->quota.granted && bytes <= sessions->quota.granted - held;
}

static uint32_t claims_of(const struct engine_session *session)
{
    uint32_t count = 0;

    for (const struct engine_claim *claim = session->sessions->quota.claims; claim;
         claim = claim->next)
        count += claim->session == session;
    return count;
}

static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    engine_quota_alone(user);
    return 0;
}

static int arm(struct engine_sessions *sessions)
{
    int error = engine_event_after(sessions->event, &sessions->quota.late, ANSWER_NS / 1000, 1000,
                                   on_late, sessions);

    return error < 0 ? HVI_ERR_NO_MEMORY : HVI_OK;
}

static void disarm(struct engine_sessions *sessions)
{
    if (sessions->quota.late)
        sd_event_source_set_enabled(sessions->quota.late, SD_EVENT_OFF);
}

/* Answers the oldest claim. `status` HVI_OK: it is granted. */
static void settle(struct engine_sessions *sessions, int status, const char *text)
{
    struct engine_claim *claim = sessions->quota.claims;

    sessions->quota.claims = claim->next;
    engine_control_settle(claim->session, &claim->add, claim->fd, status, text);
    free(claim);
}

/* After the oldest claim has changed. */
static void ask(struct engine_sessions *sessions)
{
    struct engine_quota *quota = &sessions->quota;

    while (quota->claims && engine_quota_has(sessions, quota->claims->add.bytes))
        settle(sessions, HVI_OK, "");
    if (!quota->claims)
        disarm(sessions);
    else if (arm(sessions) != HVI_OK)
        engine_quota_alone(sessions);
    else
        sessions->calls->regions_wanted(sessions->user, ++quota->last_request, wanted(sessions));
}

int engine_quota_ask(struct engine_session *session, const struct hvi_region_add *add, int fd)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_claim **link = &sessions->quota.claims;

    if (session->regions.count + claims_of(session) >= sessions->start->regions_max)
        return HVI_ERR_LIMIT;
    struct engine_claim *claim = calloc(1, sizeof *claim);
    if (!claim)
        return HVI_ERR_NO_MEMORY;
    while (*link)
        link = &(*link)->next;
    *link = claim;
    claim->session = session;
    claim->add = *add;
    claim->fd = fd;
    if (sessions->quota.claims == claim)
        ask(sessions);
    return HVI_INPROGRESS;
}

void engine_quota_told(struct engine_sessions *sessions, const struct hvi_engine_regions *told)
{
    if (!sessions->quota.claims || told->request != sessions->quota.last_request)
        return;
    bool granted = told->text[0] == '\0';
    if (granted)
        sessions->quota.granted = told->bytes;
    settle(sessions, granted ? HVI_OK : HVI_ERR_LIMIT, told->text);
    ask(sessions);
}

void engine_quota_alone(struct engine_sessions *sessions)
{
    while (sessions->quota.claims)
        settle(sessions, HVI_OK, "");
    disarm(sessions);
}

/* Drops the session's claims for `region`; NULL: all of them. */
static bool drop(struct engine_session *session, const uint32_t *region)
{
    struct engine_claim **link = &session->sessions->quota.claims;
    const struct engine_claim *first = *link;
    bool dropped = false;

    while (*link) {
        struct engine_claim *claim = *link;
        if (claim->session != session || (region && claim->add.region != *region)) {
            link = &claim->next;
            continue;
        }
        *link = claim->next;
        close(claim->fd);
        free(claim);
        dropped = true;
    }
    if (session->sessions->quota.claims != first)
        ask(session->sessions);
    return dropped;
}

bool engine_quota_remove(struct engine_session *session, const struct hvi_region_remove *remove)
{
    if (!drop(session, &remove->region))
        return false;
    engine_control_ack(session, remove->request, HVI_OK, "");
    return true;
}

void engine_quota_close_session(struct engine_session *session)
{
    drop(session, NULL);
}

uint64_t engine_quota_keep(struct engine_sessions *sessions)
{
    struct engine_quota *quota = &sessions->quota;
    uint64_t bytes = wanted(sessions);

    if (!quota->claims)
        quota->granted = bytes;
    return bytes > quota->granted ? bytes : quota->granted;
}
