/* SPDX-License-Identifier: Apache-2.0
 * An allreduce written a second time, one element at a time and with other means than the kernels:
 * what reduce/reduce.h promises, to compare bits with. */
#ifndef HVT_REFERENCE_H
#define HVT_REFERENCE_H

#include "reduce/reduce.h"

/* Computes element `index` of the result. out_p has room for one element. */
void hvt_reference_element(const struct hvi_reduction *reduce, uint64_t index, void *out_p);
/* The value of a float16; NaN for NaN. */
double hvt_reference_f16(uint16_t half);
/* To nearest even, by looking for the unit in the last place. */
uint16_t hvt_reference_to_f16(double value);
/* The same for float8. */
double hvt_reference_e4m3(uint8_t byte);
uint8_t hvt_reference_to_e4m3(double value);
double hvt_reference_e5m2(uint8_t byte);
uint8_t hvt_reference_to_e5m2(double value);

/* Element `index` of a floating point type as a number, and the number nearest to `value` back. */
double hvt_reference_get(uint32_t dtype, const void *data, uint64_t index);
void hvt_reference_put(uint32_t dtype, void *data_p, uint64_t index, double value);

/* Adasum by its definition, in double throughout: the vectors (`members` * `count` numbers) are
 * folded to a power of two and combined in neighbouring pairs; the result is vectors[0..count). */
void hvt_reference_adasum(double *vectors, uint32_t members, uint64_t count);

/* Fills `bytes` with values of this dtype, the interesting ones among them. */
void hvt_reference_fill(uint32_t dtype, void *data_p, uint64_t count, uint64_t *random);
uint64_t hvt_random(uint64_t *state);

#endif
