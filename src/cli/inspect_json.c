/* SPDX-License-Identifier: Apache-2.0 */
/* troika inspect --json: {"file", "version", "metadata": {key: {"type", "value" | "n" and
 * "first"}}, "tensors": [...], "totals": [...], "runs": ...}. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/json.h"
#include "cli/inspect.h"

enum { ARRAY_SHOWN = 32 };

static void put_view(bytes_buffer *out, bytes_view text) {
  api_json_put_string(out, text.ptr, text.len);
}

static void put_real(bytes_buffer *out, double v) {
  if (isfinite(v))
    bytes_append_format(out, "%.9g", v);
  else
    bytes_append_string(out, "null");
}

static void put_element(bytes_buffer *out, const gguf_kv *kv, uint64_t i) {
  double v;
  switch (kv->elem) {
    case GGUF_STRING:
      put_view(out, gguf_string_at(kv, i));
      break;
    case GGUF_F32:
      put_real(out, (double)gguf_f32_at(kv, i));
      break;
    case GGUF_F64:
      memcpy(&v, kv->data + i * sizeof v, sizeof v);
      put_real(out, v);
      break;
    case GGUF_BOOL:
      bytes_append_string(out, gguf_int_at(kv, i) ? "true" : "false");
      break;
    case GGUF_ARRAY:
      bytes_append_string(out, "null");
      break;
    case GGUF_U64:
      bytes_append_format(out, "%llu", (unsigned long long)gguf_int_at(kv, i));
      break;
    default:
      bytes_append_format(out, "%lld", (long long)gguf_int_at(kv, i));
  }
}

static void put_kv(bytes_buffer *out, const gguf_kv *kv) {
  put_view(out, kv->key);
  bytes_append_format(out, ":{\"type\":\"%s\",", gguf_value_type_name(kv->type));
  if (kv->type != GGUF_ARRAY) {
    bytes_append_string(out, "\"value\":");
    put_element(out, kv, 0);
  } else {
    bool whole = kv->n <= ARRAY_SHOWN;
    bytes_append_format(out, "\"elements\":\"%s\",\"n\":%llu,\"%s\":[",
                        gguf_value_type_name(kv->elem), (unsigned long long)kv->n,
                        whole ? "value" : "first");
    for (uint64_t i = 0; i < (whole ? kv->n : ARRAY_SHOWN); i++) {
      if (i) bytes_append_string(out, ",");
      put_element(out, kv, i);
    }
    bytes_append_string(out, "]");
  }
  bytes_append_string(out, "}");
}

static void put_type(bytes_buffer *out, uint32_t type) {
  const char *name = gguf_type_name(type);
  bytes_append_format(out, "\"type\":\"%s\"", name ? name : "?");
}

static void put_tensor(bytes_buffer *out, const gguf_tensor *t) {
  bytes_append_string(out, "{\"name\":");
  put_view(out, t->name);
  bytes_append_string(out, ",");
  put_type(out, t->type);
  bytes_append_string(out, ",\"shape\":[");
  for (uint32_t d = 0; d < t->n_dims; d++)
    bytes_append_format(out, d ? ",%llu" : "%llu", (unsigned long long)t->dims[d]);
  bytes_append_format(out, "],\"offset\":%llu,\"bytes\":%llu}", (unsigned long long)t->offset,
                      (unsigned long long)t->bytes);
}

static void put_runs(bytes_buffer *out, const troika_model *model, const char *reason) {
  troika_model_info m;
  if (!model) {
    bytes_append_string(out, "{\"can\":false,\"reason\":");
    api_json_put_string(out, reason, strlen(reason));
    bytes_append_string(out, "}");
    return;
  }
  troika_model_describe(model, &m);
  bytes_append_format(out,
                      "{\"can\":true,\"architecture\":\"%s\",\"layers\":%u,\"width\":%u,\"vocab\":%"
                      "u,\"context_max\":%u,"
                      "\"kv_bytes_per_token\":%llu,\"tokenizer\":\"%s\",\"has_template\":%s,"
                      "\"template_builtin\":%s}",
                      m.architecture, m.layers, m.width, m.vocab, m.context_max,
                      (unsigned long long)m.kv_bytes_per_token, m.tokenizer,
                      m.has_template ? "true" : "false", m.template_builtin ? "true" : "false");
}

static void print(bytes_buffer *out) {
  bytes_append_string(out, "\n");
  fwrite(out->data, 1, out->len, stdout);
  bytes_free(out);
}

void inspect_json(const gguf *file, const char *path, const troika_model *model,
                  const char *reason) {
  bytes_buffer out;
  inspect_total totals[INSPECT_TYPES_MAX];
  bytes_init(&out, SIZE_MAX / 4);
  bytes_append_string(&out, "{\"file\":");
  api_json_put_string(&out, path, strlen(path));
  bytes_append_format(&out, ",\"version\":%u,\"bytes\":%zu,\"alignment\":%llu,\"metadata\":{",
                      gguf_version(file), gguf_size(file),
                      (unsigned long long)gguf_alignment(file));
  for (size_t i = 0; i < gguf_kv_count(file); i++) {
    if (i) bytes_append_string(&out, ",");
    put_kv(&out, gguf_kv_at(file, i));
  }
  bytes_append_string(&out, "},\"tensors\":[");
  for (size_t i = 0; i < gguf_tensor_count(file); i++) {
    if (i) bytes_append_string(&out, ",");
    put_tensor(&out, gguf_tensor_at(file, i));
  }
  bytes_append_string(&out, "],\"totals\":[");
  size_t n = inspect_totals(file, totals, INSPECT_TYPES_MAX);
  for (size_t i = 0; i < n; i++) {
    bytes_append_string(&out, i ? ",{" : "{");
    put_type(&out, totals[i].type);
    bytes_append_format(&out, ",\"tensors\":%zu,\"weights\":%llu,\"bytes\":%llu}",
                        totals[i].tensors, (unsigned long long)totals[i].weights,
                        (unsigned long long)totals[i].bytes);
  }
  bytes_append_string(&out, "],\"runs\":");
  put_runs(&out, model, reason);
  bytes_append_string(&out, "}");
  print(&out);
}

void inspect_json_error(const char *path, const troika_error *err) {
  bytes_buffer out;
  bytes_init(&out, 65536);
  bytes_append_string(&out, "{\"file\":");
  api_json_put_string(&out, path, strlen(path));
  bytes_append_string(&out, ",\"error\":");
  api_json_put_string(&out, err->text, strlen(err->text));
  bytes_append_format(&out, ",\"status\":\"%s\"}", troika_status_text(err->status));
  print(&out);
}
