/* SPDX-License-Identifier: Apache-2.0
 * A scripted hvdd and engine in one thread of the test process, on a real socket in a directory of
 * its own: what the client library meets when its peer is well, slow, rude or dead. It knows one
 * rank: every op it serves is the identity.
 *
 * The thread attaches sessions and answers control messages. Rings belong to it unless the script
 * says `manual`; then the test plays the engine with hvt_fake_take and hvt_fake_done. Failed
 * expectations abort the process, also outside check(3). */
#ifndef HVT_CLIENT_FAKE_H
#define HVT_CLIENT_FAKE_H

#include "hvd/hvd.h"
#include "proto/wire.h"
#include "shm/abi.h"
#include "shm/fence.h"

#include <stdbool.h>
#include <stdint.h>

enum hvt_fake_attach {
    HVT_ATTACH,       /* as an engine should */
    HVT_REFUSE,       /* AttachReply with .status and .text */
    HVT_SILENT,       /* accepts and says nothing */
    HVT_HANG_UP,      /* closes after the request */
    HVT_GARBAGE,      /* answers with bytes that are no message */
    HVT_WRONG_KIND,   /* answers with a notice */
    HVT_FOREIGN,      /* status OK in another protocol version */
    HVT_FEW_FDS,      /* two descriptors instead of four */
    HVT_BAD_CHANNEL,  /* a channel without magic */
    HVT_UNSEALED,     /* a channel that could be truncated */
    HVT_NOT_MEMORY,   /* /dev/null as the channel */
    HVT_FOREIGN_ABI,  /* a channel of another ABI version */
    HVT_BAD_BELL,     /* the bell page without magic */
    HVT_HANG_UP_ONCE, /* closes the first connection, serves the next */
};

struct hvt_fake_script {
    enum hvt_fake_attach attach;
    int status; /* HVT_REFUSE */
    const char *text;
    bool manual;       /* the test plays the engine */
    int region_status; /* Ack of RegionAdd */
    const char *region_text;
    int device_status; /* Ack of DeviceAdd */
    const char *device_text;
    int timeline_status; /* Ack of TimelineStart */
    const char *timeline_text;
    bool mute;           /* no Ack at all */
    bool keeps;          /* no Ack of RegionRemove */
    uint32_t busy;       /* so many RegionRemove are answered with HVD_ERR_BUSY first */
    uint64_t features;   /* of the channel: HVI_FEATURE_* */
    bool fabric;         /* it takes fabric handles */
    uint64_t silence_ns; /* of the bell page, whose beat is the test's */
    int slots_fd;        /* the job's slots, which the test keeps; 0: it has none */
};

struct hvt_fake;
struct hvt_fake_session;

/* Listens before it returns. */
struct hvt_fake *hvt_fake_start(const struct hvt_fake_script *script);
/* At `directory`, which exists already. */
struct hvt_fake *hvt_fake_start_at(const struct hvt_fake_script *script, const char *directory);
/* Hangs up on everybody, removes the directory. */
void hvt_fake_stop(struct hvt_fake *fake);
const char *hvt_fake_dir(const struct hvt_fake *fake);
struct hvi_bell_page *hvt_fake_bell(const struct hvt_fake *fake);
/* The last AttachRequest's settings: value of `name`, or NULL. */
const char *hvt_fake_setting(struct hvt_fake *fake, const char *name);
/* The identity of the last AttachRequest as "job rank/size local/size cross/size origin". */
const char *hvt_fake_identity(struct hvt_fake *fake);
/* AttachRequests that have come. */
uint32_t hvt_fake_requests(struct hvt_fake *fake);
/* The n-th attached session; waits for it. */
struct hvt_fake_session *hvt_fake_session(struct hvt_fake *fake, uint32_t n);

/* Opens a session with rank 0 of 1 at the fake; fails the test when it does not work. */
struct hvd_session *hvt_fake_open(struct hvt_fake *fake);
struct hvd_session *hvt_fake_open_as(struct hvt_fake *fake, int rank, int size);

/* Takes the next submission; fails the test after a second. */
struct hvi_submission hvt_fake_take(struct hvt_fake_session *session);
/* Nothing was submitted (looks once). */
bool hvt_fake_is_idle(struct hvt_fake_session *session);
/* The memory that an operand names. */
void *hvt_fake_memory(struct hvt_fake_session *session, uint32_t region, uint64_t offset);
/* Copies a name out of the name area. HVI_NAME_MAX + 1 bytes. */
void hvt_fake_name(struct hvt_fake_session *session, const struct hvi_submission *submission,
                   char *name_p);
/* Writes a completion and rings. `text` may be NULL. */
void hvt_fake_done(struct hvt_fake_session *session, uint64_t cookie, int status, const char *text,
                   int culprit);
/* A good end with the engine's numbers; rows: see struct hvi_completion. */
void hvt_fake_done_rows(struct hvt_fake_session *session, uint64_t cookie, int64_t rows,
                        uint64_t bytes);
/* The size of a result that wants memory. */
void hvt_fake_sized(struct hvt_fake_session *session, uint64_t cookie, int64_t rows,
                    uint64_t bytes);
/* As it is, but for the seq; with `seq` 0 the right one. */
void hvt_fake_completion(struct hvt_fake_session *session, struct hvi_completion completion);
/* Uses up the text cells, so that earlier sentences are gone. */
void hvt_fake_reuse_texts(struct hvt_fake_session *session);
void hvt_fake_notice(struct hvt_fake_session *session, int status, const char *text, bool ended);
/* An AttachReply more. */
void hvt_fake_reply_again(struct hvt_fake_session *session, int status, const char *text);
/* The engine dies: end of file at the client. */
void hvt_fake_die(struct hvt_fake_session *session);
struct hvi_channel_header *hvt_fake_header(struct hvt_fake_session *session);
/* Regions the client has announced and not taken back. */
uint32_t hvt_fake_regions(struct hvt_fake_session *session);
/* The session's fence page, NULL before FenceAdd. */
struct hvi_fence_page *hvt_fake_fences(struct hvt_fake_session *session);
/* The device memory that was announced last; how many allocations were, and chunks of all. */
struct hvi_device_memory hvt_fake_device(struct hvt_fake_session *session, uint32_t *count_p,
                                         uint32_t *chunks_p);
/* Later DeviceAdd are answered with this. */
void hvt_fake_refuse_devices(struct hvt_fake *fake, int status, const char *text);
/* How many timelines were to start and to stop. The last one's path as it is shown, its mark and its file, which is the
 * fake's. */
struct hvt_fake_timeline {
    uint32_t starts, stops;
    char path[HVI_WIRE_PATH];
    bool mark_cycles;
    int fd; /* -1: none has come */
};
struct hvt_fake_timeline hvt_fake_timeline(struct hvt_fake_session *session);
/* Whether a Detach has come. */
bool hvt_fake_detached(struct hvt_fake_session *session);
/* Later RegionAdd are answered with this. */
void hvt_fake_refuse_regions(struct hvt_fake *fake, int status, const char *text);

/* From now on there are no Acks: the engine stands still. */
void hvt_fake_mute(struct hvt_fake *fake);

/* Address space, of which no page is touched. */
void *hvt_space(size_t bytes);

#endif
