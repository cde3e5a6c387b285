/* SPDX-License-Identifier: Apache-2.0
 * What kernels.cu computes, by name, for the fake driver. */
#include "tests/fakegpu/probe_kernels.h"

#include "tests/fakegpu/fake.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void touch(const char *name, union fake_argument *a)
{
    (void)name;
    *(uint64_t *)a[0].p += 1;
}

static void work(const char *name, union fake_argument *a)
{
    (void)name;
    uint64_t ns = (uint64_t)a[0].u32 * 5;
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

static uint32_t pattern(uint64_t i, uint32_t seed)
{
    return (uint32_t)(i * 2654435761u) ^ (seed * 0x9e3779b9u);
}

static void fill(const char *name, union fake_argument *a)
{
    (void)name;
    for (uint64_t i = 0; i < a[1].u64; i++)
        ((uint32_t *)a[0].p)[i] = pattern(i, a[2].u32);
}

static void check(const char *name, union fake_argument *a)
{
    uint64_t bad = 0;
    (void)name;
    for (uint64_t i = 0; i < a[1].u64; i++)
        bad += ((uint32_t *)a[0].p)[i] != pattern(i, a[2].u32);
    *(uint64_t *)a[3].p += bad;
}

static void watch(const char *name, union fake_argument *a)
{
    uint64_t *row = a[0].p, begin = now_ns(), last = begin, longest = 0;
    (void)name;
    while (last - begin < a[1].u64) {
        uint64_t t = now_ns();
        longest = t - last > longest ? t - last : longest;
        last = t;
    }
    row[0] = begin;
    row[1] = last;
    row[2] = longest;
}

static void out_of_bounds(const char *name, union fake_argument *a)
{
    (void)name, (void)a;
    fake_break(HVI_CU_ILLEGAL_ADDRESS);
}

/* --- numbers: small ones, exact in each dtype --- */
enum dtype { FP32, BF16, FP16 };

static enum dtype dtype_of(const char *name)
{
    return strstr(name, "fp32") ? FP32 : strstr(name, "bf16") ? BF16 : FP16;
}

static float get(enum dtype dtype, const void *p, uint64_t i)
{
    uint32_t bits;
    float value;
    if (dtype == FP32)
        return ((const float *)p)[i];
    bits = ((const uint16_t *)p)[i];
    if (dtype == BF16)
        bits <<= 16;
    else
        bits = bits ? ((bits >> 10) + 127 - 15) << 23 | (bits & 1023) << 13 : 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set(enum dtype dtype, void *p, uint64_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == FP32)
        ((float *)p)[i] = value;
    else if (dtype == BF16)
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    else
        ((uint16_t *)p)[i] =
            (uint16_t)(value != 0 ? ((bits >> 23) - 127 + 15) << 10 | (bits >> 13 & 1023) : 0);
}

static uint64_t per_vector(enum dtype dtype)
{
    return dtype == FP32 ? 4 : 8;
}

static void ramp(const char *name, union fake_argument *a)
{
    enum dtype dtype = dtype_of(name);
    for (uint64_t i = 0; i < a[1].u64; i++)
        set(dtype, a[0].p, i, (float)((i + 3 * a[2].u32) % 8));
}

static void mean(const char *name, union fake_argument *a)
{
    enum dtype dtype = dtype_of(name);
    uint64_t bad = 0;
    for (uint64_t i = 0; i < a[1].u64; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < a[2].u32; r++)
            sum += (float)((i + 3 * r) % 8);
        bad += get(dtype, a[0].p, i) != sum * a[3].f32;
    }
    *(uint64_t *)a[4].p += bad;
}

static int ranks_of(const char *name)
{
    return name[strlen(name) - 1] - '0';
}

static void reduce(const char *name, union fake_argument *a)
{
    enum dtype dtype = dtype_of(name);
    int ranks = ranks_of(name);
    for (uint64_t i = 0; i < a[1].u64 * per_vector(dtype); i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++)
            sum += get(dtype, a[0].buffers[r], i);
        for (int r = 0; r < ranks; r++)
            set(dtype, a[0].buffers[r], i, sum * a[2].f32);
    }
    if (fake_fault("wrong-reduce") != 0)
        set(dtype, a[0].buffers[ranks - 1], 1, 100);
}

static void pack(const char *name, union fake_argument *a)
{
    const struct {
        uint32_t from, to, count, unused;
    } *tiles = a[1].p;
    enum dtype dtype = dtype_of(name);
    uint64_t lanes = per_vector(dtype);
    int ranks = ranks_of(name);
    for (uint32_t t = 0; t < a[2].u32; t++) {
        for (uint64_t i = 0; i < tiles[t].count * lanes; i++) {
            float sum = 0;
            for (int r = 0; r < ranks; r++)
                sum += get(dtype, a[0].buffers[r], tiles[t].from * lanes + i);
            set(dtype, a[3].p, tiles[t].to * lanes + i, sum * a[4].f32);
        }
    }
}

static const struct fake_probe_kernel kernels[] = {
    {"probe_touch", "8", touch},      {"probe_work", "48", work},
    {"probe_fill", "884", fill},      {"probe_check", "8848", check},
    {"probe_watch", "88", watch},     {"probe_out_of_bounds", "8", out_of_bounds},
    {"probe_ramp_", "884", ramp},     {"probe_mean_", "88448", mean},
    {"probe_reduce_", "b84", reduce}, {"probe_pack_", "b8484", pack},
};

const struct fake_probe_kernel *fake_probe_kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strncmp(name, kernels[i].prefix, strlen(kernels[i].prefix)) == 0)
            return &kernels[i];
    }
    return NULL;
}

size_t fake_probe_kernel_arguments(const struct fake_probe_kernel *kernel, void **arguments,
                                   void *to)
{
    union fake_argument *all = to;
    size_t count = strlen(kernel->arguments);

    for (size_t i = 0; i < count; i++) {
        const char kind = kernel->arguments[i];
        memset(&all[i], 0, sizeof(all[i]));
        memcpy(&all[i], arguments[i], kind == '8' ? 8 : kind == '4' ? 4 : sizeof(all[i].buffers));
    }
    return count * sizeof(*all);
}
