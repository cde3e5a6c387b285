/* SPDX-License-Identifier: Apache-2.0
 * What LeakSanitizer is told in every program that is built with it. A file of suppressions, as ThreadSanitizer's, would
 * not be seen by programs that have a file system of their own. */

const char *__lsan_default_suppressions(void);

/* libzmq may be ended before its threads have handed their last messages over. */
const char *__lsan_default_suppressions(void)
{
    return "leak:libzmq.so\n";
}
