/* SPDX-License-Identifier: Apache-2.0
 * HVI_ASSERT: always compiled in, and only for what our own code guarantees. What a trainer, peer,
 * file, driver or allocator can cause is an error, never an assert. */
#ifndef HVI_BASE_ASSERT_H
#define HVI_BASE_ASSERT_H

/* Prints the failed expression and aborts. */
_Noreturn void hvi_assert_failed(const char *expression, const char *file, int line);

#define HVI_ASSERT(expression)                                                                     \
    ((expression) ? (void)0 : hvi_assert_failed(#expression, __FILE__, __LINE__))

#endif
