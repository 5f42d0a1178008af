/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/build.h"

static const struct {
  const char *name;
  build_architecture *build;
} architectures[] = {
#define ARCHITECTURE(name) {#name, build_##name},
    MODEL_ARCHITECTURES(ARCHITECTURE)
#undef ARCHITECTURE
};

const char *model_architectures(void) {
#define ARCHITECTURE(name) ", " #name
  return &(MODEL_ARCHITECTURES(ARCHITECTURE))[2];
#undef ARCHITECTURE
}

const char *model_architecture_name(const gguf *file) {
  bytes_view name;
  if (gguf_get_string(file, "general.architecture", &name, NULL)) return "";
  for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
    if (bytes_equal_string(name, architectures[i].name)) return architectures[i].name;
  return "";
}

troika_status model_graph_create(const gguf *file, graph **out, troika_error *err) {
  bytes_view name = {0};
  troika_status status = gguf_get_string(file, "general.architecture", &name, err);
  if (status == TROIKA_NOT_FOUND)
    return error_set(err, TROIKA_FORMAT, "the file has no general.architecture");
  if (status) return status;
  for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
    if (!bytes_equal_string(name, architectures[i].name)) continue;
    build b = {.file = file, .arch = architectures[i].name, .err = err};
    b.g = calloc(1, sizeof *b.g);
    if (!b.g) return error_set(err, TROIKA_NO_MEMORY, "no memory for the graph");
    b.g->mapped = gguf_map(file) != NULL;
    status = architectures[i].build(&b);
    free(b.used);
    if (status)
      model_graph_destroy(&b.g);
    else
      *out = b.g;
    return status;
  }
  return error_set(err, TROIKA_UNSUPPORTED,
                   "architecture '%.*s' is not supported by this build; supported: %s",
                   (int)(name.len < 64 ? name.len : 64), name.ptr, model_architectures());
}

void model_graph_destroy(graph **g) {
  if (!*g) return;
  for (uint32_t i = 0; i < (*g)->n_norms; i++) free((void *)(uintptr_t)(*g)->norms[i].w);
  free((*g)->norms);
  free((*g)->weights);
  free((*g)->nodes);
  free(*g);
  *g = NULL;
}
