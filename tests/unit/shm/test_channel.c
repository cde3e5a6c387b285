/* SPDX-License-Identifier: Apache-2.0
 * A channel: what the client refuses to map, names that wrap, sentences that are overwritten while
 * somebody reads. */
#include "shm/channel.h"

#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct hvt_link pair;

static void set_up(void)
{
    hvt_link_open(&pair, 5);
}

static void tear_down(void)
{
    hvt_link_close(&pair);
}

/* Maps the engine's channel once more and lets go of it. */
static int try_map(void)
{
    struct hvi_channel view;
    int before = hvt_count_fds();
    int copy = fcntl(pair.engine.region.fd, F_DUPFD_CLOEXEC, 3);
    int status = hvi_channel_map(copy, &view);
    if (status == HVI_OK) {
        ck_assert_int_eq(view.region.fd, copy);
        hvi_channel_fini(&view);
    } else {
        ck_assert_msg(fcntl(copy, F_GETFD) >= 0, "on failure the caller keeps the descriptor");
        close(copy);
    }
    ck_assert_int_eq(hvt_count_fds(), before);
    return status;
}

START_TEST(both_views_agree)
{
    ck_assert_uint_eq(pair.engine.channel_index, 5);
    ck_assert_uint_eq(pair.client.channel_index, 5);
    ck_assert_uint_eq(pair.client.header->epoch, 7);
    ck_assert_uint_eq(pair.engine.region.bytes, pair.client.region.bytes);
    ck_assert_uint_eq(pair.engine.region.bytes, pair.engine.header->total_bytes);
    unsigned char *engine = pair.engine.region.base, *client = pair.client.region.base;
    ck_assert_int_eq((char *)pair.engine.names - (char *)engine,
                     (char *)pair.client.names - (char *)client);
    ck_assert_int_eq(pair.engine.inline_base - engine, pair.client.inline_base - client);
    ck_assert_int_eq((char *)pair.engine.texts - (char *)engine,
                     (char *)pair.client.texts - (char *)client);
    ck_assert_int_eq(pair.engine.sq.slots - engine, pair.client.sq.slots - client);
    ck_assert_int_eq(pair.engine.cq.slots - engine, pair.client.cq.slots - client);
    ck_assert_uint_eq(atomic_load(&pair.client.header->session_state), HVI_SESSION_OPEN);
}
END_TEST

struct area {
    uint64_t offset, bytes;
};

START_TEST(areas_fill_the_channel_without_overlap)
{
    const struct hvi_channel_header *header = pair.engine.header;
    const struct area areas[] = {
        {0, header->header_bytes},
        {header->sq_offset, header->sq_slots * sizeof(struct hvi_submission)},
        {header->cq_offset, header->cq_slots * sizeof(struct hvi_completion)},
        {header->names_offset, header->names_bytes},
        {header->texts_offset, header->text_cells * sizeof(struct hvi_text_cell)},
        {header->inline_offset, header->inline_bytes},
    };
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof(areas) / sizeof(areas[0]); i++) {
        ck_assert_uint_eq(areas[i].offset, at);
        ck_assert_uint_eq(areas[i].offset % HVI_CACHE_LINE, 0);
        at += areas[i].bytes;
    }
    ck_assert_uint_eq(at, header->total_bytes);
    ck_assert_uint_eq(header->inline_offset % HVI_PAGE, 0);
}
END_TEST

START_TEST(a_good_channel_maps_again_and_again)
{
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(try_map(), HVI_OK);
    atomic_store(&pair.engine.header->session_state, HVI_SESSION_ENDED);
    ck_assert_msg(try_map() == HVI_OK, "a session may end before the client has looked");
}
END_TEST

START_TEST(features_arrive)
{
    struct hvi_channel view;
    int copy = dup(pair.engine.region.fd);
    ck_assert_uint_eq(pair.client.features, 0);
    hvi_channel_offer(&pair.engine, HVI_FEATURE_PROCESS);
    ck_assert_int_eq(hvi_channel_map(copy, &view), HVI_OK);
    ck_assert_uint_eq(view.features, HVI_FEATURE_PROCESS);
    hvi_channel_fini(&view);
}
END_TEST

START_TEST(an_index_beyond_the_bell_page_is_invalid)
{
    struct hvi_channel channel;
    ck_assert_int_eq(hvi_channel_create(HVI_BELL_CHANNELS, 1, &channel), HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_channel_create(UINT32_MAX, 1, &channel), HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_channel_create(HVI_BELL_CHANNELS - 1, 1, &channel), HVI_OK);
    hvi_channel_fini(&channel);
    hvi_channel_fini(&channel);
}
END_TEST

#define FIELD(name)                                                                                \
    {                                                                                              \
#name, offsetof(struct hvi_channel_header, name),                                          \
            sizeof(((struct hvi_channel_header *)0)->name)                                         \
    }

static const struct field {
    const char *name;
    size_t offset;
    size_t bytes;
} fields[] = {
    FIELD(magic),      FIELD(abi_version),   FIELD(header_bytes),  FIELD(total_bytes),
    FIELD(features),   FIELD(sq_offset),     FIELD(sq_slots),      FIELD(cq_offset),
    FIELD(cq_slots),   FIELD(names_offset),  FIELD(names_bytes),   FIELD(texts_offset),
    FIELD(text_cells), FIELD(inline_offset), FIELD(inline_bytes),  FIELD(channel_index),
    FIELD(reserved0),  FIELD(pad0),          FIELD(sq_tail),       FIELD(sq_head),
    FIELD(cq_tail),    FIELD(cq_head),       FIELD(session_state),
};

/* The epoch is the only number the client cannot know; of the index it knows the range, of the
 * state two values, of the features which there are. */
static bool is_legal_flip(const struct field *field, size_t bit)
{
    if (strcmp(field->name, "features") == 0)
        return bit < 2; /* HVI_FEATURES_KNOWN */
    return strcmp(field->name, "channel_index") == 0 && bit < 10;
}

START_TEST(every_flipped_bit_of_every_field_is_refused)
{
    unsigned char *header = (unsigned char *)pair.engine.header;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        int wrong = strcmp(fields[i].name, "abi_version") == 0 ? HVI_ERR_VERSION : HVI_ERR_PROTOCOL;
        for (size_t bit = 0; bit < 8 * fields[i].bytes; bit++) {
            unsigned char *byte = header + fields[i].offset + bit / 8;
            *byte ^= (unsigned char)(1u << bit % 8);
            int status = try_map();
            *byte ^= (unsigned char)(1u << bit % 8);
            int expected = is_legal_flip(&fields[i], bit) ? HVI_OK : wrong;
            ck_assert_msg(status == expected, "%s, bit %zu: %d", fields[i].name, bit, status);
        }
    }
    ck_assert_int_eq(try_map(), HVI_OK);
}
END_TEST

START_TEST(every_extreme_value_of_every_field_is_refused)
{
    unsigned char *header = (unsigned char *)pair.engine.header;
    const unsigned char fills[] = {0x00, 0xff, 0x7f, 0x80};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        for (size_t j = 0; j < sizeof(fills); j++) {
            unsigned char saved[64], filled[64];
            memcpy(saved, header + fields[i].offset, fields[i].bytes);
            memset(filled, fills[j], fields[i].bytes);
            memcpy(header + fields[i].offset, filled, fields[i].bytes);
            int status = try_map();
            memcpy(header + fields[i].offset, saved, fields[i].bytes);
            bool legal = memcmp(saved, filled, fields[i].bytes) == 0 ||
                         (strcmp(fields[i].name, "channel_index") == 0 && fills[j] == 0);
            ck_assert_msg((status == HVI_OK) == legal, "%s = %02x..: %d", fields[i].name, fills[j],
                          status);
        }
    }
}
END_TEST

/* A memfd with the bytes of a good channel, but of another size or without seals. */
static int imitation(uint64_t bytes, int seals)
{
    int fd = memfd_create("hvt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint64_t good = pair.engine.region.bytes;
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    size_t copied = (size_t)(bytes < good ? bytes : good);
    ck_assert_int_eq(pwrite(fd, pair.engine.region.base, copied, 0), (ssize_t)copied);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

START_TEST(an_imitation_must_have_seals_and_size)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const uint64_t good = pair.engine.region.bytes;
    struct hvi_channel view;
    const struct {
        uint64_t bytes;
        int seals, status;
    } rows[] = {
        {good, seals, HVI_OK},
        {good, 0, HVI_ERR_PROTOCOL},
        {good, F_SEAL_GROW | F_SEAL_SEAL, HVI_ERR_PROTOCOL},
        {good, F_SEAL_SHRINK | F_SEAL_SEAL, HVI_ERR_PROTOCOL},
        {good, F_SEAL_SHRINK | F_SEAL_GROW, HVI_ERR_PROTOCOL},
        {good, seals | F_SEAL_WRITE, HVI_ERR_PROTOCOL},
        {good - HVI_PAGE, seals, HVI_ERR_PROTOCOL},
        {good + HVI_PAGE, seals, HVI_ERR_PROTOCOL},
        {HVI_PAGE, seals, HVI_ERR_PROTOCOL},
        {0, seals, HVI_ERR_PROTOCOL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int fd = imitation(rows[i].bytes, rows[i].seals);
        ck_assert_msg(hvi_channel_map(fd, &view) == rows[i].status, "row %zu", i);
        if (rows[i].status == HVI_OK)
            hvi_channel_fini(&view);
        else
            close(fd);
    }
    FILE *file = tmpfile();
    ck_assert_int_eq(ftruncate(fileno(file), (off_t)good), 0);
    ck_assert_int_eq(hvi_channel_map(fileno(file), &view), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(hvi_channel_map(-1, &view), HVI_ERR_PROTOCOL);
    fclose(file);
}
END_TEST

START_TEST(a_view_does_not_read_sizes_back)
{
    /* All of the header's constants change behind both views. */
    memset(pair.engine.header, 0xff, offsetof(struct hvi_channel_header, sq_tail));
    struct hvi_submission *slot = hvi_ring_slot(&pair.client.sq, 0);
    hvt_fill_submission(slot, 1);
    hvi_ring_publish(&pair.client.sq, 1);
    uint32_t here = 0;
    ck_assert_int_eq(hvi_ring_available(&pair.engine.sq, &here), HVI_OK);
    ck_assert_uint_eq(here, 1);
    char name[HVI_NAME_MAX + 1];
    hvi_channel_write_name(&pair.client, HVI_NAMES_BYTES - 2, "name", 4);
    ck_assert(hvi_channel_read_name(&pair.engine, HVI_NAMES_BYTES - 2, 4, name));
    ck_assert_str_eq(name, "name");
}
END_TEST

START_TEST(no_descriptor_for_a_channel_is_a_limit)
{
    int before = hvt_count_fds();
    struct hvi_channel channel;
    struct hvi_region region;
    struct hvi_bell_page *page;
    struct rlimit old = hvt_forbid_fds();
    int channel_status = hvi_channel_create(1, 1, &channel);
    int bell_status = hvi_bell_create(&region, &page);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_assert_int_eq(channel_status, HVI_ERR_LIMIT);
    ck_assert_int_eq(bell_status, HVI_ERR_LIMIT);
    ck_assert_int_eq(hvt_count_fds(), before);
}
END_TEST

/* --- names --- */

START_TEST(names_wrap_around_the_area)
{
    char name[HVI_NAME_MAX + 1], copy[HVI_NAME_MAX + 1];
    for (uint32_t bytes = 0; bytes <= HVI_NAME_MAX; bytes += 11) {
        for (uint32_t i = 0; i < bytes; i++)
            name[i] = (char)('a' + (i + bytes) % 26);
        name[bytes] = '\0';
        for (uint32_t back = 0; back < HVI_NAME_MAX; back += 97) {
            uint32_t offset = (HVI_NAMES_BYTES - back) % HVI_NAMES_BYTES;
            hvi_channel_write_name(&pair.client, offset, name, bytes);
            memset(copy, 0x55, sizeof(copy));
            ck_assert(hvi_channel_read_name(&pair.engine, offset, bytes, copy));
            ck_assert_str_eq(copy, name);
        }
    }
}
END_TEST

START_TEST(a_writer_may_count_on_without_end)
{
    char copy[HVI_NAME_MAX + 1];
    uint32_t at = UINT32_MAX - 3;
    hvi_channel_write_name(&pair.client, at, "wraps", 5);
    ck_assert(hvi_channel_read_name(&pair.engine, at % HVI_NAMES_BYTES, 5, copy));
    ck_assert_str_eq(copy, "wraps");
}
END_TEST

START_TEST(a_name_outside_the_area_is_refused)
{
    char copy[HVI_NAME_MAX + 1] = "untouched";
    const uint32_t offsets[] = {HVI_NAMES_BYTES, HVI_NAMES_BYTES + 1, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
        ck_assert(!hvi_channel_read_name(&pair.engine, offsets[i], 1, copy));
    const uint32_t lengths[] = {HVI_NAME_MAX + 1, HVI_NAMES_BYTES, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        ck_assert(!hvi_channel_read_name(&pair.engine, 0, lengths[i], copy));
    ck_assert_str_eq(copy, "untouched");
    ck_assert(hvi_channel_read_name(&pair.engine, HVI_NAMES_BYTES - 1, HVI_NAME_MAX, copy));
}
END_TEST

/* --- sentences --- */

START_TEST(a_sentence_arrives_with_its_cell_and_turn)
{
    char text[HVI_TEXT_MAX + 1];
    uint32_t cell = 99, turn = 0;
    hvi_channel_write_text(&pair.engine, "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)",
                           &cell, &turn);
    ck_assert_uint_lt(cell, HVI_TEXT_CELLS);
    ck_assert_uint_ne(turn, 0);
    ck_assert(hvi_channel_read_text(&pair.client, cell, turn, text, sizeof(text)));
    ck_assert_str_eq(text, "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)");
    hvi_channel_write_text(&pair.engine, "", &cell, &turn);
    ck_assert(hvi_channel_read_text(&pair.client, cell, turn, text, sizeof(text)));
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(a_long_sentence_is_cut_at_a_character)
{
    char sentence[4000] = "";
    char text[HVI_TEXT_MAX + 1];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(sentence, 'x', shift);
        for (size_t i = 0; i < 600; i++)
            memcpy(sentence + shift + 4 * i, "😀", 5);
        uint32_t cell, turn;
        hvi_channel_write_text(&pair.engine, sentence, &cell, &turn);
        ck_assert(hvi_channel_read_text(&pair.client, cell, turn, text, sizeof(text)));
        ck_assert_uint_eq(strlen(text), shift + (1016 - shift) / 4 * 4);
        ck_assert(hvi_utf8_valid(text, strlen(text)));
        ck_assert_int_eq(memcmp(text, sentence, strlen(text)), 0);
    }
}
END_TEST

START_TEST(a_small_buffer_gets_what_fits)
{
    char text[8];
    uint32_t cell, turn;
    hvi_channel_write_text(&pair.engine, "aä€😀", &cell, &turn);
    const char *const expected[] = {"", "a", "a", "aä", "aä", "aä", "aä€"};
    for (size_t size = 1; size <= 7; size++) {
        memset(text, 0x55, sizeof(text));
        ck_assert(hvi_channel_read_text(&pair.client, cell, turn, text, size));
        ck_assert_str_eq(text, expected[size - 1]);
        ck_assert_int_eq(text[size], 0x55);
    }
    text[0] = 0x55;
    ck_assert(!hvi_channel_read_text(&pair.client, cell, turn, text, 0));
    ck_assert_int_eq(text[0], 0x55);
}
END_TEST

START_TEST(a_reused_cell_is_noticed)
{
    char sentence[64], text[HVI_TEXT_MAX + 1];
    static uint32_t cells[3 * HVI_TEXT_CELLS], turns[3 * HVI_TEXT_CELLS];
    for (uint32_t i = 0; i < 3 * HVI_TEXT_CELLS; i++) {
        snprintf(sentence, sizeof(sentence), "sentence %u", i);
        hvi_channel_write_text(&pair.engine, sentence, &cells[i], &turns[i]);
    }
    for (uint32_t i = 0; i < 3 * HVI_TEXT_CELLS; i++) {
        bool expected = i >= 2 * HVI_TEXT_CELLS;
        text[0] = 'x';
        ck_assert_int_eq(
            hvi_channel_read_text(&pair.client, cells[i], turns[i], text, sizeof(text)), expected);
        snprintf(sentence, sizeof(sentence), "sentence %u", i);
        ck_assert_str_eq(text, expected ? sentence : "");
    }
}
END_TEST

START_TEST(turns_wrap_without_the_turn_that_means_writing)
{
    char text[HVI_TEXT_MAX + 1];
    pair.engine.text_turn = UINT32_MAX - 3;
    for (int i = 0; i < 8; i++) {
        uint32_t cell, turn;
        hvi_channel_write_text(&pair.engine, "round", &cell, &turn);
        ck_assert_uint_ne(turn, 0);
        ck_assert(hvi_channel_read_text(&pair.client, cell, turn, text, sizeof(text)));
    }
}
END_TEST

START_TEST(a_cell_that_does_not_exist_has_no_text)
{
    char text[16];
    const uint32_t cells[] = {HVI_TEXT_CELLS, HVI_TEXT_CELLS + 1, 1u << 31, HVI_TEXT_NONE};
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
        strcpy(text, "x");
        ck_assert(!hvi_channel_read_text(&pair.client, cells[i], 1, text, sizeof(text)));
        ck_assert_str_eq(text, "");
    }
    ck_assert_msg(!hvi_channel_read_text(&pair.client, 0, 0, text, sizeof(text)),
                  "turn 0 of a cell that was never written");
}
END_TEST

START_TEST(a_cell_with_an_impossible_length_has_no_text)
{
    char text[HVI_TEXT_MAX + 1];
    uint32_t cell, turn;
    hvi_channel_write_text(&pair.engine, "fine", &cell, &turn);
    const uint32_t lengths[] = {1017, 1024, 65536, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        atomic_store(&pair.engine.texts[cell].bytes, lengths[i]);
        ck_assert(!hvi_channel_read_text(&pair.client, cell, turn, text, sizeof(text)));
        ck_assert_str_eq(text, "");
    }
    atomic_store(&pair.engine.texts[cell].bytes, 1016);
    ck_assert(hvi_channel_read_text(&pair.client, cell, turn, text, sizeof(text)));
}
END_TEST

#define SENTENCES HVT_SCALE(300000u)
static _Atomic uint64_t latest;    /* cell << 32 | turn */
static _Atomic uint64_t whole;     /* sentences that were read */
static const uint64_t enough = 50; /* a busy machine may not run the reader for a long time */

/* Sentences of one letter each, of all lengths: a torn one mixes letters. */
static void *write_sentences(void *unused)
{
    (void)unused;
    char sentence[1017];
    struct hvt_random random;
    hvt_random_init(&random, 5);
    for (uint32_t i = 0; i < SENTENCES || atomic_load(&whole) < enough; i++) {
        size_t bytes = 1 + i * 7 % 1016;
        memset(sentence, 'a' + (int)(i % 26), bytes);
        sentence[bytes] = '\0';
        uint32_t cell, turn;
        pair.engine.text_next = 0; /* one cell only, so that reader and writer meet */
        hvi_channel_write_text(&pair.engine, sentence, &cell, &turn);
        atomic_store(&latest, (uint64_t)cell << 32 | turn);
        for (uint64_t n = hvt_random_below(&random, 400); n > 0; n--)
            __asm__ volatile("");
    }
    atomic_store(&latest, UINT64_MAX);
    return NULL;
}

START_TEST(a_reader_never_sees_a_torn_sentence)
{
    char text[HVI_TEXT_MAX + 1];
    pthread_t thread;
    uint64_t at;
    ck_assert_int_eq(pthread_create(&thread, NULL, write_sentences, NULL), 0);
    while ((at = atomic_load(&latest)) != UINT64_MAX) {
        if (at == 0 || !hvi_channel_read_text(&pair.client, (uint32_t)(at >> 32), (uint32_t)at,
                                              text, sizeof(text)))
            continue;
        atomic_fetch_add(&whole, 1);
        uint32_t i = (uint32_t)at - 1; /* turns count from 1 */
        ck_assert_uint_eq(strlen(text), 1 + i * 7 % 1016);
        ck_assert_int_eq(text[0], 'a' + (int)(i % 26));
        ck_assert_uint_eq(strspn(text, (char[]){text[0], '\0'}), strlen(text));
    }
    pthread_join(thread, NULL);
}
END_TEST

/* --- bell page --- */

START_TEST(a_bell_page_maps_only_when_it_is_one)
{
    struct hvi_region region;
    struct hvi_bell_page *page;
    int fd = fcntl(pair.bell.fd, F_DUPFD_CLOEXEC, 3);
    pair.page->magic ^= 1;
    ck_assert_int_eq(hvi_bell_map(fd, &region, &page), HVI_ERR_PROTOCOL);
    pair.page->magic ^= 1;
    pair.page->abi_version++;
    ck_assert_int_eq(hvi_bell_map(fd, &region, &page), HVI_ERR_VERSION);
    pair.page->abi_version--;
    pair.page->reserved0 = 1;
    ck_assert_int_eq(hvi_bell_map(fd, &region, &page), HVI_ERR_PROTOCOL);
    pair.page->reserved0 = 0;
    ck_assert_int_eq(hvi_bell_map(pair.engine.region.fd, &region, &page), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(hvi_bell_map(pair.event_fd, &region, &page), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(hvi_bell_map(fd, &region, &page), HVI_OK);
    hvi_bell_ring_engine(page, 64, pair.event_fd);
    ck_assert(hvi_bell_take(pair.page, 1) == 1);
    hvi_region_fini(&region);
}
END_TEST

static void add_mapping(TCase *tcase)
{
    tcase_add_test(tcase, both_views_agree);
    tcase_add_test(tcase, areas_fill_the_channel_without_overlap);
    tcase_add_test(tcase, a_good_channel_maps_again_and_again);
    tcase_add_test(tcase, features_arrive);
    tcase_add_test(tcase, an_index_beyond_the_bell_page_is_invalid);
    tcase_add_test(tcase, every_flipped_bit_of_every_field_is_refused);
    tcase_add_test(tcase, every_extreme_value_of_every_field_is_refused);
    tcase_add_test(tcase, an_imitation_must_have_seals_and_size);
    tcase_add_test(tcase, a_view_does_not_read_sizes_back);
    tcase_add_test(tcase, no_descriptor_for_a_channel_is_a_limit);
    tcase_add_test(tcase, a_bell_page_maps_only_when_it_is_one);
}

static void add_texts(TCase *tcase)
{
    tcase_add_test(tcase, names_wrap_around_the_area);
    tcase_add_test(tcase, a_writer_may_count_on_without_end);
    tcase_add_test(tcase, a_name_outside_the_area_is_refused);
    tcase_add_test(tcase, a_sentence_arrives_with_its_cell_and_turn);
    tcase_add_test(tcase, a_long_sentence_is_cut_at_a_character);
    tcase_add_test(tcase, a_small_buffer_gets_what_fits);
    tcase_add_test(tcase, a_reused_cell_is_noticed);
    tcase_add_test(tcase, turns_wrap_without_the_turn_that_means_writing);
    tcase_add_test(tcase, a_cell_that_does_not_exist_has_no_text);
    tcase_add_test(tcase, a_cell_with_an_impossible_length_has_no_text);
    tcase_add_test(tcase, a_reader_never_sees_a_torn_sentence);
}

int main(void)
{
    Suite *suite = suite_create("shm/channel");
    TCase *mapping = tcase_create("mapping");
    TCase *texts = tcase_create("names and sentences");
    tcase_add_checked_fixture(mapping, set_up, tear_down);
    tcase_add_checked_fixture(texts, set_up, tear_down);
    add_mapping(mapping);
    add_texts(texts);
    suite_add_tcase(suite, mapping);
    suite_add_tcase(suite, texts);
    return hvt_run_suite(suite);
}
