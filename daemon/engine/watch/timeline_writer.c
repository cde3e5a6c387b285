/* SPDX-License-Identifier: Apache-2.0
 * The timeline's thread: takes records out of the ring, formats them and writes them. It may block
 * on a slow disk as long as it likes.
 *
 * The file is a valid JSON document at every moment, also after a kill and for somebody who reads it
 * meanwhile:
 *
 *   [ event ,event ,event        (blanks)                ,event ,event      (blanks)       ]
 *   |<-- page -->|<-- page -->|<-- page -->                                               end
 *
 * The closing bracket stands at the end of a stretch of blanks; an event replaces blanks by one
 * pwrite that never crosses a page, which the kernel does not interrupt. So neither the bracket nor
 * the size changes when events are written, and a reader who sees some pages older than others has
 * fewer events and nothing worse. When the blanks are used up the file doubles: blanks are written
 * behind the bracket, where they are legal, then the bracket moves, which takes two writes of one
 * byte: that microsecond at 4, 8, 16, ... MiB and once at the end, when the rest of the blanks is cut
 * off, is the exception, and so is the page that is being written, for a reader on another core may
 * overtake the copy. Somebody who reads across such a moment may see both brackets and, as the
 * size has changed meanwhile, knows to read again: no arrangement of bytes is valid both with and
 * without what is appended behind it. */
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"
#include "daemon/engine/watch/timeline.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define FIRST_END  (4u * 1024u * 1024u)
#define BLANKS     (64u * 1024u)
#define GROW_MOST  (64u * 1024u * 1024u)
#define NAP_MS     2 /* events come in crowds: one look per crowd */

struct output {
    struct timeline_writer *writer;
    uint64_t used,
        end; /* where the next event goes; the file's size: the bracket is its last byte */
    bool any, broken;
    char page[PAGE_BYTES]; /* collected for one pwrite at .used */
    size_t collected;
    char event[PAGE_BYTES];
    size_t length;
    uint64_t lost; /* broken */
};

/* ---- the file ---- */

static bool write_at(struct output *output, const char *bytes, size_t count, uint64_t at)
{
    while (count > 0) {
        ssize_t written = pwrite(output->writer->file_fd, bytes, count, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        bytes += written;
        at += (uint64_t)written;
        count -= (size_t)written;
    }
    return true;
}

/* From now on events are only counted. What is in the file stays valid. */
static void give_up(struct output *output, const char *what)
{
    HVI_LOG(HVI_LOG_WARN, "timeline", "timeline-cut", "the file cannot be written any more",
            "path=%s what=%s why=%s", output->writer->path, what, strerror(errno));
    output->broken = true;
}

/* Room for more events: blanks behind the bracket, then the bracket behind the blanks. */
static bool grow(struct output *output)
{
    static const char blanks[BLANKS] = {[0 ... BLANKS - 1] = ' '};
    uint64_t more = output->end < FIRST_END ? FIRST_END - output->end : output->end;
    uint64_t end;

    if (more > GROW_MOST)
        more = GROW_MOST;
    end = output->end + more;
    for (uint64_t at = output->end; at < end;) {
        uint64_t count = BLANKS - at % BLANKS;
        if (!write_at(output, blanks, (size_t)(count < end - at ? count : end - at), at))
            return false;
        at += count;
    }
    if (!write_at(output, "]", 1, end - 1))
        return false;
    if (!write_at(output, " ", 1, output->end - 1))
        return false;
    output->end = end;
    return true;
}

static void flush(struct output *output)
{
    if (output->collected == 0 || output->broken)
        return;
    if (!write_at(output, output->page, output->collected, output->used)) {
        give_up(output, "write");
        return;
    }
    output->used += output->collected;
    output->collected = 0;
}

/* The event in .event, at most a page, goes into the page that is being filled or the next one. */
static void put_event(struct output *output)
{
    uint64_t at = output->used + output->collected;

    bool is_full = at % PAGE_BYTES == 0 && output->collected > 0;
    if (is_full || at % PAGE_BYTES + output->length > PAGE_BYTES) {
        flush(output);
        at = (at + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        output->used = at;
    }
    while (!output->broken && at + output->length >= output->end) {
        flush(output);
        if (!output->broken && !grow(output))
            give_up(output, "grow");
    }
    if (output->broken) {
        output->lost++;
        return;
    }
    memcpy(output->page + output->collected, output->event, output->length);
    output->collected += output->length;
}

static int open_file(struct output *output)
{
    struct timeline_writer *writer = output->writer;
    struct stat stat;

    if (fstat(writer->file_fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        snprintf(writer->why, sizeof writer->why, "it is no regular file");
        return HVI_ERR_INVALID;
    }
    output->used = 1;
    output->end = 2;
    if (ftruncate(writer->file_fd, 0) != 0 || !write_at(output, "[]", 2, 0) || !grow(output)) {
        snprintf(writer->why, sizeof writer->why, "%s", strerror(errno));
        return HVI_ERR_LIMIT;
    }
    return HVI_OK;
}

static void close_file(struct output *output)
{
    flush(output);
    if (!output->broken && write_at(output, "\n]", 2, output->used) &&
        write_at(output, " ", 1, output->end - 1) &&
        ftruncate(output->writer->file_fd, (off_t)(output->used + 2)) == 0)
        return;
    if (output->lost > 0)
        HVI_LOG(HVI_LOG_WARN, "timeline", "timeline-lost", "events did not reach the file",
                "path=%s count=%" PRIu64, output->writer->path, output->lost);
}

/* ---- events ---- */

static void __attribute__((format(printf, 2, 3)))
say(struct output *output, const char *format, ...)
{
    va_list arguments;
    size_t room = sizeof output->event - output->length;

    va_start(arguments, format);
    int length = vsnprintf(output->event + output->length, room, format, arguments);
    va_end(arguments);
    output->length += length > 0 ? (size_t)length : 0;
}

static void say_plain(struct output *output, const char *text, size_t bytes)
{
    memcpy(output->event + output->length, text, bytes);
    output->length += bytes;
}

static void say_text(struct output *output, const char *text, size_t bytes)
{
    while (bytes > 0) {
        uint32_t code;
        size_t length = hvi_utf8_character(text, bytes, &code);
        if (length == 0) /* cannot be: names are checked when they come */
            return;
        if (code == '"' || code == '\\')
            say(output, "\\%c", (int)code);
        else if (!hvi_utf8_is_plain(code))
            say(output, "\\u%04x", code);
        else
            say_plain(output, text, length);
        text += length;
        bytes -= length;
    }
}

static void say_upper(struct output *output, const char *text)
{
    for (; *text != '\0'; text++)
        output->event[output->length++] = (char)toupper((unsigned char)*text);
}

static void begin(struct output *output)
{
    output->length = 0;
    say(output, output->any ? ",\n{" : "\n{");
    output->any = true;
}

static void end(struct output *output)
{
    say(output, "}");
    put_event(output);
}

static void say_time(struct output *output, const struct timeline_record *record)
{
    uint64_t start_ns = output->writer->start_ns;
    uint64_t ns = record->ts_ns > start_ns ? record->ts_ns - start_ns : 0;

    say(output, ", \"ts\": %" PRIu64 ".%03u, \"pid\": %u", ns / 1000, (unsigned)(ns % 1000),
        record->row);
}

static void put_sort_index(struct output *output, uint32_t row)
{
    begin(output);
    say(output,
        "\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": %u, "
        "\"args\": {\"sort_index\": %u}",
        row, row);
    end(output);
}

static void put_name(struct output *output, const struct timeline_record *record)
{
    begin(output);
    say(output, "\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %u, \"args\": {\"name\": \"",
        record->row);
    say_text(output, (const char *)(record + 1), record->payload);
    say(output, "\"}");
    end(output);
    put_sort_index(output, record->row);
}

static void put_head(struct output *output)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    begin(output);
    say(output,
        "\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, "
        "\"args\": {\"start_time_since_epoch_in_micros\": %" PRIu64 "}",
        now_us - (hvi_clock_ns() - output->writer->start_ns) / 1000);
    end(output);
    put_sort_index(output, 0);
}

static const char *const prefixes[] = {
    [TIMELINE_NEGOTIATE] = "NEGOTIATE_", [TIMELINE_OP] = "",         [TIMELINE_QUEUE] = "QUEUE",
    [TIMELINE_EXECUTE] = "HOST_",        [TIMELINE_WORKER] = "GPU_", [TIMELINE_NCCL] = "NCCL_",
    [TIMELINE_KERNELS] = "KERNELS_",
};

static void put_begin(struct output *output, const struct timeline_record *record)
{
    begin(output);
    say(output, "\"ph\": \"B\", \"name\": \"%s", prefixes[record->label]);
    if (record->label != TIMELINE_QUEUE)
        say_upper(output, hvi_kind_text(record->kind));
    say(output, "\"");
    say_time(output, record);
    end(output);
}

static void put_end(struct output *output, const struct timeline_record *record)
{
    struct timeline_shape shape;

    begin(output);
    say(output, "\"ph\": \"E\"");
    say_time(output, record);
    if (record->payload == sizeof shape) {
        memcpy(&shape, record + 1, sizeof shape);
        say(output, ", \"args\": {\"dtype\": \"%s\", \"shape\": \"[", hvi_dtype_text(shape.dtype));
        for (uint32_t i = 0; i < shape.ndim && i < 8; i++)
            say(output, "%s%" PRId64, i > 0 ? ", " : "", shape.dims[i]);
        say(output, "]\"");
        if (shape.status != HVI_OK)
            say(output, ", \"status\": \"%s\"", hvi_status_name(shape.status));
        say(output, "}");
    }
    end(output);
}

static void put_copied(struct output *output, const struct timeline_record *record)
{
    uint64_t ns = 0;

    memcpy(&ns, record + 1, sizeof ns);
    begin(output);
    say(output, "\"ph\": \"X\", \"name\": \"MEMCPY_IN_SHARED_BUFFER\"");
    say_time(output, record);
    say(output, ", \"dur\": %" PRIu64 ".%03u, \"tid\": %" PRIu64, ns / 1000, (unsigned)(ns % 1000),
        record->number + 1);
    end(output);
}

static void put_took(struct output *output, const struct timeline_record *record)
{
    struct timeline_took took;

    memcpy(&took, record + 1, sizeof took);
    begin(output);
    say(output, "\"ph\": \"X\", \"name\": \"%s", prefixes[record->label]);
    say_upper(output, hvi_kind_text(record->kind));
    say(output, "\"");
    say_time(output, record);
    say(output, ", \"dur\": %" PRIu64 ".%03u, \"tid\": %u, \"args\": {\"ops\": %" PRIu64 "}",
        took.ns / 1000, (unsigned)(took.ns % 1000), took.stream, record->number);
    end(output);
}

static void put_mark(struct output *output, const struct timeline_record *record, const char *name)
{
    begin(output);
    say(output, "\"ph\": \"i\", \"name\": \"%s\"", name);
    say_time(output, record);
    say(output, ", \"s\": \"g\"");
    if (record->what == TIMELINE_DROPPED)
        say(output, ", \"args\": {\"count\": %" PRIu64 "}", record->number);
    end(output);
}

static void put(struct output *output, const struct timeline_record *record)
{
    switch (record->what) {
    case TIMELINE_NAME:
        put_name(output, record);
        return;
    case TIMELINE_BEGIN:
        put_begin(output, record);
        return;
    case TIMELINE_ARRIVED:
        begin(output);
        say(output, "\"ph\": \"X\", \"name\": \"%" PRIu64 "\"", record->number);
        say_time(output, record);
        say(output, ", \"dur\": 0");
        end(output);
        return;
    case TIMELINE_COPIED:
        put_copied(output, record);
        return;
    case TIMELINE_END:
        put_end(output, record);
        return;
    case TIMELINE_CYCLE:
        put_mark(output, record, "CYCLE_START");
        return;
    case TIMELINE_DROPPED:
        put_mark(output, record, "DROPPED");
        return;
    case TIMELINE_TOOK:
        put_took(output, record);
        return;
    default: /* TIMELINE_SKIP */
        return;
    }
}

/* ---- the thread ---- */

static bool take(struct output *output)
{
    struct timeline_ring *ring = output->writer->ring;
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

    if (tail == head)
        return false;
    while (tail != head) {
        const struct timeline_record *record =
            (const void *)(ring->bytes + (tail & (TIMELINE_RING_BYTES - 1)));
        put(output, record);
        tail += record->bytes;
        atomic_store_explicit(&ring->tail, tail, memory_order_release);
    }
    flush(output);
    return true;
}

static void wait_for(struct timeline_writer *writer, int timeout_ms)
{
    struct pollfd pollfd = {.fd = writer->wake_fd, .events = POLLIN};
    eventfd_t value;

    if (poll(&pollfd, 1, timeout_ms) > 0)
        (void)eventfd_read(writer->wake_fd, &value);
}

static void sleep_until_woken(struct output *output)
{
    struct timeline_writer *writer = output->writer;

    atomic_store(&writer->sleeping, true);
    /* Sequentially consistent, as the store above: either we see the record, or its producer sees
     * us asleep. */
    if (atomic_load(&writer->ring->head) == atomic_load(&writer->ring->tail) &&
        !atomic_load(&writer->stop))
        wait_for(writer, -1);
    atomic_store(&writer->sleeping, false);
}

static void put_last_dropped(struct output *output)
{
    const struct timeline_record record = {.what = TIMELINE_DROPPED,
                                           .ts_ns = hvi_clock_ns(),
                                           .number = atomic_load(&output->writer->dropped)};

    if (record.number > 0)
        put(output, &record);
}

void *engine_timeline_write(void *user)
{
    struct timeline_writer *writer = user;
    struct output output = {.writer = writer};
    int status = open_file(&output);

    if (status == HVI_OK)
        put_head(&output);
    flush(&output);
    atomic_store_explicit(&writer->opened, status, memory_order_release);
    (void)eventfd_write(writer->done_fd, 1);
    while (status == HVI_OK) {
        bool stopping = atomic_load(&writer->stop);
        bool found = take(&output);
        if (stopping && !found)
            break;
        if (found && !stopping)
            wait_for(writer, NAP_MS);
        else if (!found)
            sleep_until_woken(&output);
    }
    if (status == HVI_OK) {
        put_last_dropped(&output);
        close_file(&output);
    }
    close(writer->file_fd);
    atomic_store_explicit(&writer->closed, true, memory_order_release);
    (void)eventfd_write(writer->done_fd, 1);
    return NULL;
}
