/* SPDX-License-Identifier: Apache-2.0 */
#include "api/page.h"

#include <string.h>

const api_page *api_page_find(const char *path) {
  if (!strcmp(path, "/favicon.ico")) path = "/icon.svg";
  for (size_t i = 0; i < api_page_count; i++)
    if (!strcmp(path, api_page_files[i].path)) return &api_page_files[i];
  return NULL;
}

/* A list of tags, of which some may be weak (W/"..."). A tag holds no quote but its own two, so
 * finding it with them is the comparison that RFC 9110 asks for. */
bool api_page_unchanged(const api_page *page, bytes_view if_none_match) {
  if (!if_none_match.len) return false;
  return bytes_equal_string(if_none_match, "*") ||
         memmem(if_none_match.ptr, if_none_match.len, page->etag, strlen(page->etag)) != NULL;
}
