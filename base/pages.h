/* SPDX-License-Identifier: Apache-2.0
 * hvi_pages: work in shared memory whose pages may not be there. The kernel answers a touch of a page
 * that it cannot provide with SIGBUS. hvi_pages_run turns that signal into a return value. Any thread. */
#ifndef HVI_BASE_PAGES_H
#define HVI_BASE_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* Installs the handler of SIGBUS, which is the process's. The first open remembers the handler that was
 * there; every SIGBUS that is not from the work of hvi_pages_run goes on to it. The last close puts it
 * back, unless another one was installed on top meanwhile: then ours stays below it. A handler
 * on top that does not call the one it found keeps the signals to itself. */
void hvi_pages_open(void);
/* Once for each open. */
void hvi_pages_close(void);

/* Calls work(user). False: it touched a page that could not be had, at *address_p, and was left there.
 * So `work` must not hold a lock, allocate, or change anything that cannot stay half done. `owns` says
 * whether an address lies in the memory that is worked on, in the signal handler; SIGBUS elsewhere is
 * not ours. NULL: every address does. SIGBUS must not be blocked, and hvi_pages_open must have been
 * called; otherwise the process ends as if this were a plain call. */
bool hvi_pages_run(void (*work)(void *user), bool (*owns)(const void *user, uintptr_t address),
                   void *user, uintptr_t *address_p);

#endif
