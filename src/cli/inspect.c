/* SPDX-License-Identifier: Apache-2.0 */
/* troika inspect: what is in a model file, and whether this program can run it. A bad file is an
 * error with its reason and exit code 1; a good file that we cannot run is shown, with the reason
 * at the end, and exit code 1 too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/inspect.h"

enum { TEXT_SHOWN = 100, ELEMENTS_SHOWN = 6 };

/* Names and texts of the file are foreign bytes: control characters do not reach the terminal. */
void inspect_put_text(bytes_buffer *out, bytes_view text, size_t max) {
  size_t n = text.len < max ? text.len : max;
  for (size_t i = 0; i < n;) {
    size_t good = utf8_valid_prefix(text.ptr + i, n - i, NULL);
    for (size_t j = i; j < i + good; j++) {
      unsigned char c = (unsigned char)text.ptr[j];
      if (c == '\n')
        bytes_append_string(out, "\\n");
      else if (c < 0x20 || c == 0x7f)
        bytes_append_string(out, "?");
      else
        bytes_append(out, &text.ptr[j], 1);
    }
    i += good;
    if (i < n) {
      if (n == text.len || n - i > 3)
        bytes_append_string(out, "?"); /* not a character that we cut */
      i++;
    }
  }
  if (text.len > max) bytes_append_format(out, "... (%zu bytes)", text.len);
}

static void put_element(bytes_buffer *out, const gguf_kv *kv, uint64_t i) {
  switch (kv->elem) {
    case GGUF_STRING:
      bytes_append_string(out, "\"");
      inspect_put_text(out, gguf_string_at(kv, i), kv->type == GGUF_ARRAY ? 24 : TEXT_SHOWN);
      bytes_append_string(out, "\"");
      break;
    case GGUF_F32:
      bytes_append_format(out, "%g", (double)gguf_f32_at(kv, i));
      break;
    case GGUF_F64: {
      double v;
      memcpy(&v, kv->data + i * sizeof v, sizeof v);
      bytes_append_format(out, "%g", v);
      break;
    }
    case GGUF_BOOL:
      bytes_append_string(out, gguf_int_at(kv, i) ? "true" : "false");
      break;
    case GGUF_ARRAY:
      bytes_append_string(out, "[...]");
      break;
    case GGUF_U64:
      bytes_append_format(out, "%llu", (unsigned long long)gguf_int_at(kv, i));
      break;
    default:
      bytes_append_format(out, "%lld", (long long)gguf_int_at(kv, i));
  }
}

static void put_value(bytes_buffer *out, const gguf_kv *kv) {
  if (kv->type != GGUF_ARRAY) {
    put_element(out, kv, 0);
    return;
  }
  bytes_append_format(out, "%llu x %s [", (unsigned long long)kv->n,
                      gguf_value_type_name(kv->elem));
  for (uint64_t i = 0; i < kv->n && i < ELEMENTS_SHOWN; i++) {
    if (i) bytes_append_string(out, ", ");
    put_element(out, kv, i);
  }
  bytes_append_string(out, kv->n > ELEMENTS_SHOWN ? ", ...]" : "]");
}

static void print_metadata(const gguf *file) {
  printf("\nMetadata (%zu)\n", gguf_kv_count(file));
  for (size_t i = 0; i < gguf_kv_count(file); i++) {
    const gguf_kv *kv = gguf_kv_at(file, i);
    bytes_buffer key, value;
    bytes_init(&key, 4096), bytes_init(&value, 65536);
    inspect_put_text(&key, kv->key, 80);
    if (bytes_equal_string(kv->key, "tokenizer.chat_template"))
      bytes_append_string(&value, "(below)");
    else
      put_value(&value, kv);
    printf("  %-42s %-7s %s\n", key.data, gguf_value_type_name(kv->type), value.data);
    bytes_free(&key), bytes_free(&value);
  }
}

static void print_tensors(const gguf *file) {
  printf("\nTensors (%zu)\n  %-40s %-6s %-22s %12s %14s\n", gguf_tensor_count(file), "name", "type",
         "shape", "offset", "bytes");
  for (size_t i = 0; i < gguf_tensor_count(file); i++) {
    const gguf_tensor *t = gguf_tensor_at(file, i);
    const char *type = gguf_type_name(t->type);
    char shape[96] = "";
    bytes_buffer name;
    bytes_init(&name, 4096);
    inspect_put_text(&name, t->name, 64);
    for (uint32_t d = 0, n = 0; d < t->n_dims; d++)
      n += (uint32_t)snprintf(shape + n, sizeof shape - n, d ? " x %llu" : "%llu",
                              (unsigned long long)t->dims[d]);
    printf("  %-40s %-6s %-22s %12llu %14llu\n", name.data, type ? type : "?", shape,
           (unsigned long long)t->offset, (unsigned long long)t->bytes);
    bytes_free(&name);
  }
}

static int by_bytes(const void *a, const void *b) {
  const inspect_total *x = a, *y = b;
  return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

size_t inspect_totals(const gguf *file, inspect_total *out, size_t capacity) {
  size_t n = 0;
  for (size_t i = 0; i < gguf_tensor_count(file); i++) {
    const gguf_tensor *t = gguf_tensor_at(file, i);
    size_t j = 0;
    while (j < n && out[j].type != t->type) j++;
    if (j == capacity) continue; /* more types than exist */
    if (j == n) out[n++] = (inspect_total){.type = t->type};
    out[j].tensors++;
    out[j].bytes += t->bytes;
    out[j].weights += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
  }
  qsort(out, n, sizeof *out, by_bytes);
  return n;
}

static void print_totals(const gguf *file) {
  inspect_total totals[INSPECT_TYPES_MAX];
  size_t n = inspect_totals(file, totals, INSPECT_TYPES_MAX);
  uint64_t weights = 0, bytes = 0;
  printf("\nTotals\n  %-8s %8s %16s %16s %14s\n", "type", "tensors", "weights", "bytes",
         "bits a weight");
  for (size_t i = 0; i < n; i++) {
    const inspect_total *t = &totals[i];
    const char *name = gguf_type_name(t->type);
    printf("  %-8s %8zu %16llu %16llu %14.2f\n", name ? name : "?", t->tensors,
           (unsigned long long)t->weights, (unsigned long long)t->bytes,
           t->weights ? (double)t->bytes * 8 / (double)t->weights : 0.0);
    weights += t->weights;
    bytes += t->bytes;
  }
  printf("  %-8s %8zu %16llu %16llu %14.2f\n", "all", gguf_tensor_count(file),
         (unsigned long long)weights, (unsigned long long)bytes,
         weights ? (double)bytes * 8 / (double)weights : 0.0);
}

static void print_template(const gguf *file) {
  bytes_view source;
  if (gguf_get_string(file, "tokenizer.chat_template", &source, NULL)) {
    printf("\nChat template: none in the file\n");
    return;
  }
  printf("\nChat template (%zu bytes)\n", source.len);
  for (size_t i = 0; i < source.len; i++) { /* as it is, but nothing that moves the cursor */
    unsigned char c = (unsigned char)source.ptr[i];
    putchar((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ? '?' : c);
  }
  if (source.len && source.ptr[source.len - 1] != '\n') putchar('\n');
}

static void print_file(const gguf *file, const char *path) {
  char bytes[16];
  cli_bytes_text(gguf_size(file), bytes);
  printf("%s\n  GGUF version %u, %s (%zu bytes), %zu tensors, data aligned to %llu\n", path,
         gguf_version(file), bytes, gguf_size(file), gguf_tensor_count(file),
         (unsigned long long)gguf_alignment(file));
}

static void print_runs(const troika_model *model, const char *reason) {
  if (!model) {
    printf("\nCannot run here: %s\n", reason);
    return;
  }
  troika_model_info m;
  char kv[16];
  troika_model_describe(model, &m);
  cli_bytes_text(m.kv_bytes_per_token * m.context_max, kv);
  printf(
      "\nRuns here: %s, %u layers, width %u, vocabulary %u, trained for %u tokens, tokenizer %s\n",
      m.architecture, m.layers, m.width, m.vocab, m.context_max, m.tokenizer);
  printf("  KV cache %llu bytes a token, %s at full length; chat template: %s\n",
         (unsigned long long)m.kv_bytes_per_token, kv,
         !m.has_template      ? "none"
         : m.template_builtin ? "built-in ChatML"
                              : "the file's");
}

int cli_inspect(const cli_settings *s) {
  char path[PATH_MAX], name[128];
  gguf *file = NULL;
  troika_error err = {0};
  troika_model *model = NULL;
  if (s->arguments_n != 1) {
    cli_fail("inspect takes one file");
    return CLI_USAGE;
  }
  if (!cli_model_path(s->arguments[0], path, sizeof path, name, sizeof name)) return CLI_FAILED;
  if (gguf_open(path, &file, &err)) {
    if (s->json) inspect_json_error(path, &err);
    return cli_fail_file(path, err.text);
  }
  troika_status status = troika_model_open(path, NULL, &model, &err);
  if (s->json) {
    inspect_json(file, path, model, err.text);
  } else {
    print_file(file, path);
    print_metadata(file);
    print_tensors(file);
    print_template(file);
    print_totals(file);
    print_runs(model, err.text);
  }
  if (model) troika_model_close(&model);
  gguf_close(&file);
  return status ? CLI_FAILED : CLI_OK;
}
