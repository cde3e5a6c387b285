/* SPDX-License-Identifier: Apache-2.0
 * The kernels of the probes, as one fatbin that the programs carry. Patterns are small integers, so that sums are exact in
 * every dtype and a comparison is one of bits. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned long long u64;
typedef unsigned int u32;

extern "C" __global__ void probe_touch(u64 *word)
{
    *word += 1;
}

/* Arithmetic that depends on itself: its time is its work, whoever else has the device meanwhile. */
extern "C" __global__ void __launch_bounds__(1024) probe_work(u32 iterations, float *sink)
{
    float x = (float)threadIdx.x;
    for (u32 i = 0; i < iterations; i++)
        x = fmaf(x, 0.999f, 1.0f);
    if (x == -1.0f)
        *sink = x;
}

static __device__ u32 pattern(u64 i, u32 seed)
{
    return (u32)(i * 2654435761u) ^ (seed * 0x9e3779b9u);
}

extern "C" __global__ void probe_fill(u32 *p, u64 words, u32 seed)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words;
         i += (u64)gridDim.x * blockDim.x)
        p[i] = pattern(i, seed);
}

extern "C" __global__ void probe_check(const u32 *p, u64 words, u32 seed, u64 *bad)
{
    u64 mine = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words;
         i += (u64)gridDim.x * blockDim.x)
        mine += p[i] != pattern(i, seed);
    if (mine)
        atomicAdd(bad, mine);
}

static __device__ u64 now_ns(void)
{
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Reads the clock for ns: row[0] begin, row[1] end, row[2] the longest time between two readings. */
extern "C" __global__ void probe_watch(u64 *row, u64 ns)
{
    u64 begin = now_ns(), last = begin, longest = 0;
    while (last - begin < ns) {
        u64 t = now_ns();
        longest = t - last > longest ? t - last : longest;
        last = t;
    }
    row[0] = begin;
    row[1] = last;
    row[2] = longest;
}

/* A store far outside of any allocation. */
extern "C" __global__ void probe_out_of_bounds(u32 *p)
{
    p[(1ull << 40) + threadIdx.x] = 1;
}

/* --- reduce and pack: 16 bytes per load, fp32 accumulation, ranks always in the same order --- */
struct buffers {
    uint4 *p[8];
};

struct tile {
    u32 from, to, count, unused;
};

template <typename T> struct vec;

template <> struct vec<float> {
    enum { lanes = 4 };
    static __device__ void add(uint4 v, float *sum)
    {
        sum[0] += __uint_as_float(v.x);
        sum[1] += __uint_as_float(v.y);
        sum[2] += __uint_as_float(v.z);
        sum[3] += __uint_as_float(v.w);
    }
    static __device__ uint4 store(const float *sum, float scale)
    {
        return make_uint4(__float_as_uint(sum[0] * scale), __float_as_uint(sum[1] * scale),
                          __float_as_uint(sum[2] * scale), __float_as_uint(sum[3] * scale));
    }
};

static __device__ float2 widen(__half2 v)
{
    return __half22float2(v);
}

static __device__ float2 widen(__nv_bfloat162 v)
{
    return __bfloat1622float2(v);
}

static __device__ void narrow(float a, float b, __half2 *out)
{
    *out = __floats2half2_rn(a, b);
}

static __device__ void narrow(float a, float b, __nv_bfloat162 *out)
{
    *out = __floats2bfloat162_rn(a, b);
}

template <typename T2> struct vec16 {
    enum { lanes = 8 };
    static __device__ void add(uint4 v, float *sum)
    {
        const T2 *pairs = reinterpret_cast<const T2 *>(&v);
        for (int i = 0; i < 4; i++) {
            float2 f = widen(pairs[i]);
            sum[2 * i] += f.x;
            sum[2 * i + 1] += f.y;
        }
    }
    static __device__ uint4 store(const float *sum, float scale)
    {
        uint4 v;
        T2 *pairs = reinterpret_cast<T2 *>(&v);
        for (int i = 0; i < 4; i++)
            narrow(sum[2 * i] * scale, sum[2 * i + 1] * scale, &pairs[i]);
        return v;
    }
};

template <> struct vec<__half> : vec16<__half2> {
};
template <> struct vec<__nv_bfloat16> : vec16<__nv_bfloat162> {
};

/* The sum over N buffers of U vectors, `stride` apart; all N * U loads are issued before the first is used. */
template <typename T, int N, int U>
static __device__ void sum_at(const buffers &b, u64 i, u64 stride, u64 count, float scale,
                              uint4 *out)
{
    uint4 v[U][N];
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
        for (int r = 0; r < N; r++)
            v[u][r] = i + u * stride < count ? b.p[r][i + u * stride] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        float sum[vec<T>::lanes] = {};
#pragma unroll
        for (int r = 0; r < N; r++)
            vec<T>::add(v[u][r], sum);
        out[u] = vec<T>::store(sum, scale);
    }
}

template <typename T, int N> static __device__ void reduce(const buffers &b, u64 count, float scale)
{
    enum { U = N >= 4 ? 1 : 4 / N };
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += U * stride) {
        uint4 out[U];
        sum_at<T, N, U>(b, i, stride, count, scale, out);
        for (int u = 0; u < U; u++) {
            for (int r = 0; r < N && i + u * stride < count; r++)
                b.p[r][i + u * stride] = out[u];
        }
    }
}

/* N ranks' scattered tensors, summed into one packed buffer: a block per tile. */
template <typename T, int N>
static __device__ void pack(const buffers &b, const tile *tiles, u32 tile_count, uint4 *packed,
                            float scale)
{
    enum { U = N >= 4 ? 1 : 4 / N };
    for (u32 t = blockIdx.x; t < tile_count; t += gridDim.x) {
        tile at = tiles[t];
        buffers shifted;
        for (int r = 0; r < N; r++)
            shifted.p[r] = b.p[r] + at.from;
        for (u32 i = threadIdx.x; i < at.count; i += U * blockDim.x) {
            uint4 out[U];
            sum_at<T, N, U>(shifted, i, blockDim.x, at.count, scale, out);
            for (int u = 0; u < U; u++) {
                if (i + u * blockDim.x < at.count)
                    packed[at.to + i + u * blockDim.x] = out[u];
            }
        }
    }
}

/* Element i of rank r is (i + 3 r) % 8: sums of up to eight are exact in bfloat16, and so is their mean. */
template <typename T> static __device__ void ramp(T *p, u64 count, u32 rank)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count;
         i += (u64)gridDim.x * blockDim.x)
        p[i] = (T)(float)((i + 3 * rank) % 8);
}

/* Compares with the mean over `ranks`; element i of a packed buffer came from element i of its tile. */
template <typename T>
static __device__ void check_mean(const T *p, u64 count, u32 ranks, float scale, u64 *bad)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count;
         i += (u64)gridDim.x * blockDim.x) {
        float sum = 0;
        for (u32 r = 0; r < ranks; r++)
            sum += (float)((i + 3 * r) % 8);
        if ((float)p[i] != sum * scale)
            atomicAdd(bad, 1ull);
    }
}

#define KERNELS_OF_N(T, name, N)                                                                   \
    extern "C" __global__ void __launch_bounds__(512)                                              \
        probe_reduce_##name##_##N(buffers b, u64 count, float scale)                               \
    {                                                                                              \
        reduce<T, N>(b, count, scale);                                                             \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(512) probe_pack_##name##_##N(                     \
        buffers b, const tile *tiles, u32 tile_count, uint4 *packed, float scale)                  \
    {                                                                                              \
        pack<T, N>(b, tiles, tile_count, packed, scale);                                           \
    }

#define KERNELS_OF(T, name)                                                                        \
    KERNELS_OF_N(T, name, 1)                                                                       \
    KERNELS_OF_N(T, name, 2)                                                                       \
    KERNELS_OF_N(T, name, 4)                                                                       \
    KERNELS_OF_N(T, name, 8)                                                                       \
    extern "C" __global__ void probe_ramp_##name(T *p, u64 count, u32 rank)                        \
    {                                                                                              \
        ramp<T>(p, count, rank);                                                                   \
    }                                                                                              \
    extern "C" __global__ void probe_mean_##name(const T *p, u64 count, u32 ranks, float scale,    \
                                                 u64 *bad)                                         \
    {                                                                                              \
        check_mean<T>(p, count, ranks, scale, bad);                                                \
    }

KERNELS_OF(float, fp32)
KERNELS_OF(__half, fp16)
KERNELS_OF(__nv_bfloat16, bf16)
