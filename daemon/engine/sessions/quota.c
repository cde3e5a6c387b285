/* SPDX-License-Identifier: Apache-2.0
 *   RegionAdd --is granted already------------------------------------> mapped
 *      |                                                                  ^
 *   claim --EngineRegions{all that is wanted}--> hvdd --EngineRegions{granted}
 *                                                   \-----{why not}---> LIMIT
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
    uint64_t request; /* of the EngineRegions */
};

static uint64_t used(const struct engine_sessions *sessions)
{
    return engine_control_region_bytes(sessions, false) +
           engine_control_region_bytes(sessions, true);
}

/* Saturates: region-limit bounds what is used, and nothing what is wanted. */
static uint64_t wanted(const struct engine_sessions *sessions)
{
    uint64_t bytes = used(sessions);

    for (const struct engine_claim *claim = sessions->quota.claims; claim; claim = claim->next)
        bytes = claim->add.bytes > UINT64_MAX - bytes ? UINT64_MAX : bytes + claim->add.bytes;
    return bytes;
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

int engine_quota_ask(struct engine_session *session, const struct hvi_region_add *add, int fd)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_claim **link = &sessions->quota.claims;

    if (session->regions.count + claims_of(session) >= sessions->start->regions_max)
        return HVI_ERR_LIMIT;
    if (!*link && arm(sessions) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    struct engine_claim *claim = calloc(1, sizeof *claim);
    if (!claim)
        return HVI_ERR_NO_MEMORY;
    while (*link)
        link = &(*link)->next;
    *link = claim;
    claim->session = session;
    claim->add = *add;
    claim->fd = fd;
    claim->request = ++sessions->quota.last_request;
    sessions->calls->regions_wanted(sessions->user, claim->request, wanted(sessions));
    return HVI_INPROGRESS;
}

/* `status` HVI_OK: it is granted. */
static void settle(struct engine_sessions *sessions, struct engine_claim **link, int status,
                   const char *text)
{
    struct engine_claim *claim = *link;

    *link = claim->next;
    if (!sessions->quota.claims)
        sd_event_source_set_enabled(sessions->quota.late, SD_EVENT_OFF);
    engine_control_settle(claim->session, &claim->add, claim->fd, status, text);
    free(claim);
}

void engine_quota_told(struct engine_sessions *sessions, const struct hvi_engine_regions *told)
{
    struct engine_claim **first = &sessions->quota.claims;
    const struct engine_claim *claim = *first;

    while (claim && claim->request != told->request)
        claim = claim->next;
    if (!claim)
        return;
    if (told->text[0] == '\0')
        sessions->quota.granted = told->bytes;
    /* Answers come in order: hvdd never got the messages of the older claims, whose bytes are in this claim's sum. */
    while (*first && (*first)->request <= told->request)
        settle(sessions, first, told->text[0] == '\0' ? HVI_OK : HVI_ERR_LIMIT, told->text);
    if (*first && arm(sessions) != HVI_OK)
        engine_quota_alone(sessions);
}

void engine_quota_alone(struct engine_sessions *sessions)
{
    while (sessions->quota.claims)
        settle(sessions, &sessions->quota.claims, HVI_OK, "");
}

static void drop(struct engine_claim **link)
{
    struct engine_claim *claim = *link;

    *link = claim->next;
    close(claim->fd);
    free(claim);
}

bool engine_quota_remove(struct engine_session *session, const struct hvi_region_remove *remove)
{
    struct engine_claim **link = &session->sessions->quota.claims;

    while (*link && ((*link)->session != session || (*link)->add.region != remove->region))
        link = &(*link)->next;
    if (!*link)
        return false;
    drop(link);
    engine_control_ack(session, remove->request, HVI_OK, "");
    return true;
}

void engine_quota_close_session(struct engine_session *session)
{
    struct engine_claim **link = &session->sessions->quota.claims;

    while (*link) {
        if ((*link)->session == session)
            drop(link);
        else
            link = &(*link)->next;
    }
}

uint64_t engine_quota_keep(struct engine_sessions *sessions)
{
    struct engine_quota *quota = &sessions->quota;
    uint64_t bytes = wanted(sessions);

    if (!quota->claims)
        quota->granted = bytes;
    return bytes > quota->granted ? bytes : quota->granted;
}
