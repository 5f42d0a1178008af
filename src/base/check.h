/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - assertions: for our own mistakes only, never for bytes from outside.
 * The one place under src/ that may end the process. CHECK stays on in release builds. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#define CHECK(condition) \
  ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, __func__, #condition))

_Noreturn void check_failed(const char *file, int line, const char *function,
                            const char *condition);

#endif
