/* troika/status.h - what a call answers.
 *
 * Every call that can fail returns a troika_status. Where a reason helps a person, it also takes a
 * troika_error that the caller owns (NULL is allowed) and fills in one sentence with the numbers in
 * it. A call that fails leaves its out parameters as they were and never calls back later.
 *
 * Copyright 2026 the troika authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef TROIKA_STATUS_H
#define TROIKA_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(TROIKA_STATIC)
#define TROIKA_API __attribute__((visibility("default")))
#else
#define TROIKA_API
#endif

/* Codes differ where a caller acts differently. X(NAME, number, what it means) */
#define TROIKA_STATUS_LIST(X)                                                             \
  X(OK, 0, "ok")                                                                          \
  X(INVALID, 1, "invalid argument")   /* the caller's mistake: change the call */         \
  X(FORMAT, 2, "bad format")          /* bytes from outside do not parse */               \
  X(UNSUPPORTED, 3, "unsupported")    /* well formed, but not ours to run */              \
  X(NO_MEMORY, 4, "out of memory")    /* nothing was changed */                           \
  X(BUSY, 5, "busy")                  /* try again later */                               \
  X(CANCELLED, 6, "cancelled")        /* ended on request */                              \
  X(LIMIT, 7, "over a limit")         /* a configured bound; the text has both numbers */ \
  X(DEVICE_LOST, 8, "device lost")    /* a processor stopped answering */                 \
  X(DEADLINE, 9, "deadline passed")   /* the request's own */                             \
  X(IO, 10, "input or output failed") /* the operating system said no */                  \
  X(NOT_FOUND, 11, "not found")       /* no such file, key, stream */                     \
  X(TIMEOUT, 12, "timed out")         /* nothing happened yet; call again */              \
  X(END, 13, "end of stream")         /* nothing more will come */                        \
  X(NUMERIC, 14, "not a number in the model's output") /* NaN or Inf in logits */         \
  X(INTERNAL, 15, "internal error")                    /* our mistake */

typedef enum troika_status {
#define TROIKA_STATUS_ENUM(name, number, text) TROIKA_##name = number,
  TROIKA_STATUS_LIST(TROIKA_STATUS_ENUM)
#undef TROIKA_STATUS_ENUM
} troika_status;

enum { TROIKA_ERROR_TEXT_MAX = 512 };

/* Owned by the caller; valid UTF-8, NUL-terminated, no raw bytes of the input. */
typedef struct troika_error {
  troika_status status;
  char text[TROIKA_ERROR_TEXT_MAX];
} troika_error;

/* "bad format" and so on; never NULL, also for a number that is none. Any thread. */
TROIKA_API const char *troika_status_text(troika_status status);

/* "0.1.0"; semantic versioning. The ABI number changes when a struct here does. Any thread. */
TROIKA_API const char *troika_version(void);
enum { TROIKA_ABI_VERSION = 1 };

#ifdef __cplusplus
}
#endif
#endif
