/* SPDX-License-Identifier: Apache-2.0
 * What kernels.cu needs of its compiler: nvcc, or the host's as C. Host: a kernel is a loop over its blocks, its phases and its
 * threads, so threads of one block meet between phases, as at a barrier, and blocks never do. */
#ifndef GPU_PORTABLE_H
#define GPU_PORTABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Which thread of a kernel this is. */
struct place {
    uint64_t block, blocks;
    uint32_t thread, threads;
};

#ifdef __CUDACC__
#define ANY_TYPE
#define _Alignas alignas
#define _Static_assert static_assert
#else
#define ANY_TYPE __attribute__((may_alias)) /* numbers of any type lie there */
#endif

/* How memory is read and written: an element, or 16 bytes of them. */
typedef uint8_t one_1 ANY_TYPE;
typedef uint16_t one_2 ANY_TYPE;
typedef uint32_t one_4 ANY_TYPE;
typedef uint64_t one_8 ANY_TYPE;
typedef struct ANY_TYPE {
    _Alignas(16) uint32_t word[4];
} wide;

#ifdef __CUDACC__

#define INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define LOOP   _Pragma("unroll 1")

/* A word that other processors store. */
INLINE uint64_t load_word(uint64_t address)
{
    return *(const volatile uint64_t *)(uintptr_t)address;
}

/* NAME(args): BODY(&args, place, phase) for each phase, unless args.guard says otherwise. One thread of a block looks: the word
 * lies in the host's memory. */
#define KERNEL(NAME, ARGS, PHASES, BODY)                                                           \
    extern "C" __global__ void __launch_bounds__(1024) NAME(const __grid_constant__ ARGS args)     \
    {                                                                                              \
        const struct place place = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};               \
        if (args.guard.skip != 0 &&                                                                \
            __syncthreads_or(threadIdx.x == 0 && is_past(args.guard.skip, args.guard.turn)))       \
            return;                                                                                \
        UNROLL for (int phase = 0; phase < (PHASES); phase++)                                      \
        {                                                                                          \
            if (phase > 0)                                                                         \
                __syncthreads();                                                                   \
            BODY(&args, place, phase);                                                             \
        }                                                                                          \
    }

INLINE float as_float(uint32_t bits)
{
    return __uint_as_float(bits);
}

INLINE uint32_t as_bits(float value)
{
    return __float_as_uint(value);
}

INLINE double as_double(uint64_t bits)
{
    return __longlong_as_double((long long)bits);
}

INLINE uint64_t as_bits_64(double value)
{
    return (uint64_t)__double_as_longlong(value);
}

/* The machine's conversions of float16; rn: to nearest even. Subnormals are kept, a NaN stays one. */
#define HAS_F16
INLINE float machine_widen_f16(uint16_t half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

INLINE uint16_t machine_narrow_f16(float value)
{
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

#else

#define INLINE static inline __attribute__((always_inline))
#define UNROLL
#define LOOP

INLINE uint64_t load_word(uint64_t address)
{
    return __atomic_load_n((const uint64_t *)(uintptr_t)address, __ATOMIC_ACQUIRE);
}

#define KERNEL(NAME, ARGS, PHASES, BODY)                                                           \
    static void NAME##_host(const void *arguments, uint32_t blocks, uint32_t threads)              \
    {                                                                                              \
        const ARGS *args = (const ARGS *)arguments;                                                \
        struct place place = {.blocks = blocks, .threads = threads};                               \
        for (place.block = 0; place.block < blocks; place.block++) {                               \
            if (args->guard.skip != 0 && is_past(args->guard.skip, args->guard.turn))              \
                continue;                                                                          \
            for (int phase = 0; phase < (PHASES); phase++) {                                       \
                for (place.thread = 0; place.thread < threads; place.thread++)                     \
                    BODY(args, place, phase);                                                      \
            }                                                                                      \
        }                                                                                          \
    }

INLINE float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

INLINE double as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE uint64_t as_bits_64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

#endif

/* Whether the word is at `turn` or beyond. */
INLINE bool is_past(uint64_t address, uint64_t turn)
{
    return (int64_t)(load_word(address) - turn) >= 0;
}

#endif
