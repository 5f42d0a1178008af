/* SPDX-License-Identifier: Apache-2.0 */
/* page.h - the chat page: the files of web/, which cmake/web.cmake puts into the executable.
 *
 * The page is plain HTML, CSS and one module; it asks nobody but the server that sent it. The
 * policy below holds it to that: no script, style or request from elsewhere, no inline script,
 * no frame around it. So text of a model that got past the page's own care could still run nothing.
 *
 * docs/openapi.json, which says what the server can do, lies here too. About 40 KB of read-only
 * data for the page, and that file. All of it is constant: any thread. */
#ifndef API_PAGE_H
#define API_PAGE_H

#include <stddef.h>

#include "base/bytes.h"

/* Headers that each of these answers carries, besides Content-Type and ETag. Both parts of the
 * policy, with "; " between them, are Content-Security-Policy. no-cache: a browser keeps its copy
 * but asks each time, so that a new version of the server shows its own page; if
 * api_page_unchanged, the answer is 304 without a body. */
#define API_PAGE_POLICY_LOAD \
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
#define API_PAGE_POLICY_FRAME "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#define API_PAGE_SNIFF "nosniff"  /* X-Content-Type-Options */
#define API_PAGE_CACHE "no-cache" /* Cache-Control */

typedef struct api_page {
  const char *path; /* as in the request: "/", "/page.css" ... */
  const char *content_type;
  bytes_view content;
  const char *etag; /* with its quotes; changes with the content and with nothing else */
} api_page;

/* The table itself is generated. */
extern const api_page api_page_files[];
extern const size_t api_page_count;

/* The file at `path` (without a query), NULL if there is none. "/favicon.ico" is the icon, because
 * browsers ask for it unasked. */
const api_page *api_page_find(const char *path);

/* Whether the value of an If-None-Match header (len 0: there is none) names this file as it is. */
bool api_page_unchanged(const api_page *page, bytes_view if_none_match);

#endif
