/* SPDX-License-Identifier: Apache-2.0 */
#include "troika/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "runtime/internal.h"

static void free_model(troika_model *m) {
  grammar_vocab_destroy(&m->grammar_words);
  pthread_mutex_destroy(&m->grammar_lock);
  chat_template_destroy(&m->chat);
  tokenizer_destroy(&m->t);
  model_graph_destroy(&m->g);
  gguf_close(&m->file);
  free(m->name);
  free(m->path);
  free(m);
}

static char *model_name(const troika_model *m) {
  bytes_view name;
  if (!gguf_get_string(m->file, "general.name", &name, NULL) && name.len &&
      utf8_valid_prefix(name.ptr, name.len, NULL) == name.len)
    return strndup(name.ptr, name.len);
  const char *slash = strrchr(m->path, '/');
  return strdup(slash ? slash + 1 : m->path);
}

/* The weight type that takes most bytes, and the parameters of all. */
static void count_weights(troika_model *m) {
  uint64_t most = 0;
  for (size_t i = 0; i < gguf_tensor_count(m->file); i++) {
    const gguf_tensor *t = gguf_tensor_at(m->file, i);
    m->parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    uint64_t bytes = 0;
    for (size_t j = 0; j < gguf_tensor_count(m->file); j++)
      if (gguf_tensor_at(m->file, j)->type == t->type) bytes += gguf_tensor_at(m->file, j)->bytes;
    if (bytes <= most) continue;
    most = bytes;
    m->type = gguf_type_name(t->type);
  }
}

static troika_status open_template(troika_model *m, const troika_model_options *options,
                                   troika_error *err) {
  troika_status status;
  if (options && options->chat_template) {
    bytes_view bos = {"", 0}, eos = {"", 0};
    if (tokenizer_bos(m->t) >= 0) bos = tokenizer_piece(m->t, tokenizer_bos(m->t), true);
    if (tokenizer_eos(m->t) >= 0) eos = tokenizer_piece(m->t, tokenizer_eos(m->t), true);
    char *bos_text = strndup(bos.ptr, bos.len), *eos_text = strndup(eos.ptr, eos.len);
    if (bos_text && eos_text)
      status = chat_template_create_source(bytes_of_string(options->chat_template), bos_text,
                                           eos_text, &m->chat, err);
    else
      status = error_set(err, TROIKA_NO_MEMORY, "no memory for a template");
    free(bos_text);
    free(eos_text);
    return status;
  }
  status = chat_template_create(m->file, m->t, &m->chat, err);
  return status == TROIKA_NOT_FOUND ? TROIKA_OK : status; /* a base model has none */
}

troika_status troika_model_open(const char *path, const troika_model_options *options,
                                troika_model **out, troika_error *err) {
  if (options && options->size != sizeof *options)
    return error_set(err, TROIKA_INVALID, "troika_model_options.size is %u, wanted %zu",
                     options->size, sizeof *options);
  troika_model *m = calloc(1, sizeof *m);
  if (!m) return error_set(err, TROIKA_NO_MEMORY, "no memory for a model");
  pthread_mutex_init(&m->grammar_lock, NULL);
  troika_status status = (m->path = strdup(path))
                             ? gguf_open(path, &m->file, err)
                             : error_set(err, TROIKA_NO_MEMORY, "no memory for a model");
  if (!status) status = model_graph_create(m->file, &m->g, err);
  if (!status) status = tokenizer_create(m->file, &m->t, err);
  if (!status && tokenizer_vocab_size(m->t) > m->g->vocab)
    status = error_set(err, TROIKA_FORMAT, "the tokenizer has %u tokens, the model computes %u",
                       tokenizer_vocab_size(m->t), m->g->vocab);
  if (!status) status = open_template(m, options, err);
  if (!status && !(m->name = model_name(m)))
    status = error_set(err, TROIKA_NO_MEMORY, "no memory for a model");
  if (status) {
    free_model(m);
    return status;
  }
  count_weights(m);
  *out = m;
  return TROIKA_OK;
}

troika_status troika_model_close(troika_model **model) {
  if (!*model) return TROIKA_OK;
  if (atomic_load(&(*model)->users)) return TROIKA_BUSY;
  free_model(*model);
  *model = NULL;
  return TROIKA_OK;
}

void troika_model_describe(const troika_model *m, troika_model_info *out) {
  const graph *g = m->g;
  *out = (troika_model_info){
      .name = m->name,
      .architecture = model_architecture_name(m->file),
      .type = m->type ? m->type : "none",
      .tokenizer = tokenizer_kind(m->t),
      .file_bytes = gguf_size(m->file),
      .parameters = m->parameters,
      .context_max = g->context,
      .vocab = g->vocab,
      .layers = g->layers,
      .width = g->width,
      .kv_bytes_per_token = (uint64_t)g->layers * g->kv_heads * g->head_dim * 2 * sizeof(uint16_t),
      .token_bytes_max = (uint32_t)tokenizer_piece_max(m->t),
      .bos = tokenizer_bos(m->t),
      .eos = tokenizer_eos(m->t),
      .has_template = m->chat != NULL,
      .template_builtin = m->chat && chat_template_is_builtin(m->chat)};
}

static troika_status give_ids(tokenizer_ids *ids, troika_status status, int32_t *tokens,
                              size_t capacity, size_t *n, troika_error *err) {
  if (!status) {
    *n = ids->n;
    if (ids->n > capacity)
      status = error_set(err, TROIKA_LIMIT, "%zu tokens, room for %zu", ids->n, capacity);
    else if (ids->n)
      memcpy(tokens, ids->data, ids->n * sizeof *tokens);
  }
  tokenizer_ids_free(ids);
  return status;
}

troika_status troika_model_tokenize(const troika_model *m, const char *text, size_t len,
                                    bool add_bos, bool parse_special, int32_t *tokens,
                                    size_t capacity, size_t *n, troika_error *err) {
  tokenizer_ids ids = {0};
  tokenizer_options options = {.parse_special = parse_special, .add_bos = add_bos};
  troika_status status = tokenizer_encode(m->t, bytes_of(text, len), options, 0, &ids, err);
  return give_ids(&ids, status, tokens, capacity, n, err);
}

const char *troika_model_piece(const troika_model *m, int32_t token, bool special, size_t *len) {
  bytes_view piece = tokenizer_piece(m->t, token, special);
  *len = piece.len;
  return piece.ptr ? piece.ptr : "";
}

troika_status troika_model_chat(const troika_model *m, const char *messages, size_t messages_len,
                                const char *tools, size_t tools_len, troika_chat_end end,
                                int32_t *tokens, size_t capacity, size_t *n, troika_error *err) {
  if (!m->chat)
    return error_set(
        err, TROIKA_NOT_FOUND,
        "the model has no chat template: give it plain text, or a template of your own");
  tokenizer_ids ids = {0};
  static const chat_end ends[] = {[TROIKA_CHAT_GENERATE] = CHAT_GENERATE,
                                  [TROIKA_CHAT_CONTINUE] = CHAT_CONTINUE,
                                  [TROIKA_CHAT_CLOSED] = CHAT_CLOSED};
  if ((size_t)end >= sizeof ends / sizeof *ends)
    return error_set(err, TROIKA_INVALID, "chat end %d: not one of three", (int)end);
  chat_render_options options = {ends[end], (int64_t)time(NULL)};
  troika_status status = chat_template_tokenize(m->chat, m->t, bytes_of(messages, messages_len),
                                                bytes_of(tools, tools_len), options, 0, &ids, err);
  return give_ids(&ids, status, tokens, capacity, n, err);
}

const char *troika_model_template(const troika_model *m) {
  return m->chat ? chat_template_source(m->chat) : "";
}
