/* SPDX-License-Identifier: Apache-2.0 */
#include "base/seal.h"

#include "base/assert.h"
#include "base/status.h"

#include <endian.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>

#define TAG_BYTES   16u
#define NONCE_BYTES 12u

static const char next_label[] = "hvdd next key";

_Static_assert(HVI_SEAL_HEAD_BYTES + TAG_BYTES == HVI_SEAL_EXTRA_BYTES, "a record");

int hvi_seal_init(struct hvi_seal *seal, const unsigned char key[HVI_SEAL_KEY_BYTES], bool closes)
{
    *seal = (struct hvi_seal){.cipher = EVP_CIPHER_CTX_new()};
    memcpy(seal->key, key, sizeof seal->key);
    if (seal->cipher &&
        EVP_CipherInit_ex(seal->cipher, EVP_aes_256_gcm(), NULL, seal->key, NULL, closes) == 1)
        return HVI_OK;
    hvi_seal_fini(seal);
    return HVI_ERR_NO_MEMORY;
}

void hvi_seal_fini(struct hvi_seal *seal)
{
    EVP_CIPHER_CTX_free(seal->cipher);
    OPENSSL_cleanse(seal, sizeof *seal);
}

/* The cipher, before the head and the text of the next record. */
static bool begin(const struct hvi_seal *seal, const unsigned char *head)
{
    unsigned char nonce[NONCE_BYTES] = {0};
    const uint64_t number = htole64(seal->count);
    int length;

    memcpy(nonce + NONCE_BYTES - sizeof number, &number, sizeof number);
    return EVP_CipherInit_ex(seal->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(seal->cipher, NULL, &length, head, HVI_SEAL_HEAD_BYTES) == 1;
}

bool hvi_seal_close(struct hvi_seal *seal, const void *plain, uint32_t bytes,
                    unsigned char *record_p)
{
    const uint32_t head = htole32(bytes);
    unsigned char *text = record_p + HVI_SEAL_HEAD_BYTES;
    int length;

    HVI_ASSERT(bytes > 0 && bytes <= HVI_SEAL_PLAIN_MAX);
    memcpy(record_p, &head, sizeof head);
    return begin(seal, record_p) &&
           EVP_CipherUpdate(seal->cipher, text, &length, plain, (int)bytes) == 1 &&
           EVP_CipherFinal_ex(seal->cipher, text + bytes, &length) == 1 &&
           EVP_CIPHER_CTX_ctrl(seal->cipher, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, text + bytes) == 1;
}

bool hvi_seal_length(const unsigned char head[HVI_SEAL_HEAD_BYTES], uint32_t *bytes_p)
{
    uint32_t bytes;

    memcpy(&bytes, head, sizeof bytes);
    bytes = le32toh(bytes);
    if (bytes == 0 || bytes > HVI_SEAL_PLAIN_MAX)
        return false;
    *bytes_p = bytes;
    return true;
}

bool hvi_seal_open(struct hvi_seal *seal, const unsigned char *record, void *plain_p)
{
    const unsigned char *text = record + HVI_SEAL_HEAD_BYTES;
    unsigned char tag[TAG_BYTES];
    uint32_t bytes;
    int length;

    if (!hvi_seal_length(record, &bytes))
        return false;
    memcpy(tag, text + bytes, sizeof tag);
    return begin(seal, record) &&
           EVP_CIPHER_CTX_ctrl(seal->cipher, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, tag) == 1 &&
           EVP_CipherUpdate(seal->cipher, plain_p, &length, text, (int)bytes) == 1 &&
           EVP_CipherFinal_ex(seal->cipher, (unsigned char *)plain_p + bytes, &length) == 1;
}

bool hvi_seal_next(struct hvi_seal *seal)
{
    unsigned char from[sizeof next_label + HVI_SEAL_KEY_BYTES];
    bool done;

    if (++seal->count % HVI_SEAL_KEY_RECORDS != 0)
        return true;
    memcpy(from, next_label, sizeof next_label);
    memcpy(from + sizeof next_label, seal->key, sizeof seal->key);
    done = EVP_Digest(from, sizeof from, seal->key, NULL, EVP_sha256(), NULL) == 1 &&
           EVP_CipherInit_ex(seal->cipher, NULL, NULL, seal->key, NULL, -1) == 1;
    OPENSSL_cleanse(from, sizeof from);
    return done;
}
