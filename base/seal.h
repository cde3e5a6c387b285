/* SPDX-License-Identifier: Apache-2.0
 * A stream of bytes in sealed records. A record that was changed, left out, repeated or moved on the way is not
 * opened, and neither is any after it.
 *
 *   0  bytes of plain text, 1 to HVI_SEAL_PLAIN_MAX, little-endian
 *   4  so many bytes of ciphertext
 *   .  the tag, 16 bytes, of both
 *
 * AES-256-GCM. The nonce is four zero bytes and the number of the record in its direction, from 0, little-endian.
 * So a key is for one direction of one connection. After 2^20 records the key becomes the SHA-256 of a label and of
 * itself: 16 GiB at most are sealed with one. Any thread, one at a time for each struct. */
#ifndef HVI_BASE_SEAL_H
#define HVI_BASE_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#define HVI_SEAL_KEY_BYTES   32u
#define HVI_SEAL_PLAIN_MAX   16384u
#define HVI_SEAL_HEAD_BYTES  4u
#define HVI_SEAL_EXTRA_BYTES 20u /* of a record, beside the plain text's */
#define HVI_SEAL_RECORD_MAX  (HVI_SEAL_PLAIN_MAX + HVI_SEAL_EXTRA_BYTES)
#define HVI_SEAL_KEY_RECORDS (UINT64_C(1) << 20)

/* Of one side of a connection; the other side has them the other way round. */
struct hvi_seal_keys {
    unsigned char send[HVI_SEAL_KEY_BYTES], receive[HVI_SEAL_KEY_BYTES];
};

/* One direction. */
struct hvi_seal {
    void *cipher;
    uint64_t count; /* records that are over */
    unsigned char key[HVI_SEAL_KEY_BYTES];
};

/* HVI_OK, or HVI_ERR_NO_MEMORY: nothing is left. */
int hvi_seal_init(struct hvi_seal *seal, const unsigned char key[HVI_SEAL_KEY_BYTES], bool closes);
/* Wipes it. Harmless on a zeroed one. */
void hvi_seal_fini(struct hvi_seal *seal);
/* Makes the next record; hvi_seal_next has to follow. `record_p` has room for bytes + HVI_SEAL_EXTRA_BYTES. False: the
 * cipher fails. It may be left by a jump while it reads `plain`: then the connection has to end, for the record's
 * number is used. */
bool hvi_seal_close(struct hvi_seal *seal, const void *plain, uint32_t bytes,
                    unsigned char *record_p);
/* Of a record that has come, from its head. False: that is no record. */
bool hvi_seal_length(const unsigned char head[HVI_SEAL_HEAD_BYTES], uint32_t *bytes_p);
/* Opens the next record, which is whole and has been measured; hvi_seal_next has to follow. False: it is not the one
 * that the other side has made, and what is at `plain_p` means nothing. It may be left by a jump while it writes there,
 * and be called again for the same record. */
bool hvi_seal_open(struct hvi_seal *seal, const unsigned char *record, void *plain_p);
/* The record is over. False: there is no memory for the next key. */
bool hvi_seal_next(struct hvi_seal *seal);

#endif
