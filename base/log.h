/* SPDX-License-Identifier: Apache-2.0
 * Logging for the daemons and tools: level, topic, stable id, sentence, then key=value pairs.
 *
 *   HVI_LOG(HVI_LOG_WARN, "stall", "op-stalled", "waiting for ranks 2,3",
 *           "job=%s tensor=%s age_ms=%lu", ...);
 *   -> 2026-11-21T10:00:00.123Z hvdd[4711] warning stall op-stalled: waiting for ranks 2,3
 *      job=a tensor=w1 age_ms=60001                                        (one line)
 *
 * Sinks: the journal (native protocol, with HVD_TOPIC= and HVD_ID= fields) when stderr is connected
 * to it (JOURNAL_STREAM), else one write(2) per line to stderr. A failed write (full disk, closed
 * pipe, a journal that stands still) is counted and never stops the caller. libhvdclient does not use this file: it is silent
 * and calls the user's callback. Thread-safe. Never blocks on a lock held across a write. */
#ifndef HVI_BASE_LOG_H
#define HVI_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum hvi_log_level {
    HVI_LOG_ERROR, /* somebody lost work */
    HVI_LOG_WARN,  /* we coped */
    HVI_LOG_INFO,  /* per lifecycle event */
    HVI_LOG_DEBUG, /* per op */
    HVI_LOG_TRACE, /* per slot */
};

/* Program name for the prefix; level; call once at start. */
void hvi_log_init(const char *program, enum hvi_log_level level);
void hvi_log_set_level(enum hvi_log_level level);
enum hvi_log_level hvi_log_level(void);
/* "error", "warning", "info", "debug", "trace" (also "warn", "fatal", upper case); returns -1 for
 * anything else. */
int hvi_log_level_parse(const char *text);
const char *hvi_log_level_text(enum hvi_log_level level);
/* Lines that could not be written since start. */
uint64_t hvi_log_lost(void);

/* `sentence` is constant or preformatted text; `pairs` is a printf format for the key=value part,
 * "" for none. A line is cut at 4096 bytes. Control characters in arguments are escaped, so a
 * tensor name cannot forge a line. */
void hvi_log_write(enum hvi_log_level level, const char *topic, const char *id,
                   const char *sentence, const char *pairs, ...)
    __attribute__((format(printf, 5, 6)));

/* For a line that user `uid` has caused: HVI_LOG_BURST of one id at once, then HVI_LOG_PER_SECOND. False: one too many, which is
 * counted. The next line of this thread says suppressed=N where it follows some of the same user and id. */
#define HVI_LOG_BURST      100u
#define HVI_LOG_PER_SECOND 10u
bool hvi_log_admit(uint32_t uid, const char *id);
/* All that this process does it does for that user: from now on each line up to HVI_LOG_INFO counts as one that it has
 * caused. Before the second thread starts. */
void hvi_log_set_user(uint32_t uid);

#define HVI_LOG_OF(uid, level, topic, id, ...)                                                     \
    do {                                                                                           \
        if ((level) <= hvi_log_level() && hvi_log_admit((uid), (id)))                              \
            hvi_log_write((level), (topic), (id), __VA_ARGS__);                                    \
    } while (0)

#define HVI_LOG(level, ...)                                                                        \
    do {                                                                                           \
        if ((level) <= hvi_log_level())                                                            \
            hvi_log_write((level), __VA_ARGS__);                                                   \
    } while (0)

#endif
