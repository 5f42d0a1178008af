/* SPDX-License-Identifier: Apache-2.0 */
/* The made vocabulary: byte-level BPE in which every byte of a text is a token of its own.
 *
 *   0 .. 255              the bytes, in GPT-2's letters
 *   256 .. vocab - 257    fillers: what the model says, " b7qx"; "a0" is the first
 *   vocab - 256 ..        control tokens, placed and named as Llama 3 has them
 *
 * A filler can be printed but never comes out of encoding: each has a letter before a digit, where
 * the pre-tokenizer llama-bpe always cuts, so neither a merge nor a whole word reaches it. The same
 * holds for the one merge, "a" and "0", which is there because readers ask for some. So a prompt
 * has as many tokens as bytes, and a load generator can count. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "cli/synth.h"

enum { BYTES = 256, CONTROLS = 256, TEXT_MAX = 40 };
enum { NORMAL = 1, CONTROL = 3 }; /* tokenizer.ggml.token_type */
enum { BEGIN = 0, TURN_END = 9 }; /* among the control tokens */

static const char chat_template[] =
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";

static bool byte_is_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* GPT-2's letter for a byte, in UTF-8: the letter of that number if it can be seen, else the next
 * of U+0100 and on. */
static void byte_text(unsigned byte, char out[TEXT_MAX]) {
  unsigned letter = byte;
  if (!byte_is_itself(byte)) {
    letter = 256;
    for (unsigned b = 0; b < byte; b++) letter += !byte_is_itself(b);
  }
  if (letter < 128)
    snprintf(out, TEXT_MAX, "%c", (int)letter);
  else
    snprintf(out, TEXT_MAX, "%c%c", (int)(0xc0 | letter >> 6), (int)(0x80 | (letter & 63)));
}

/* Filler i: a blank (U+0120 in GPT-2's letters), a letter, a digit, two letters. */
static void filler_text(uint32_t i, char out[TEXT_MAX]) {
  if (i == 0) {
    snprintf(out, TEXT_MAX, "a0");
    return;
  }
  snprintf(out, TEXT_MAX, "\xc4\xa0%c%c%c%c", (int)('a' + i / 6760 % 26), (int)('0' + i / 676 % 10),
           (int)('a' + i / 26 % 26), (int)('a' + i % 26));
}

static void control_text(uint32_t i, char out[TEXT_MAX]) {
  static const char *const names[] = {
      [0] = "begin_of_text",   [1] = "end_of_text",   [4] = "finetune_right_pad_id",
      [6] = "start_header_id", [7] = "end_header_id", [8] = "eom_id",
      [9] = "eot_id",          [10] = "python_tag"};
  uint32_t known = sizeof names / sizeof *names, reserved = 0;
  if (i < known && names[i]) {
    snprintf(out, TEXT_MAX, "<|%s|>", names[i]);
    return;
  }
  for (uint32_t j = 0; j < i; j++) reserved += j >= known || !names[j];
  snprintf(out, TEXT_MAX, "<|reserved_special_token_%u|>", reserved);
}

static void add_keys(gguf_writer *w, uint32_t vocab, const bytes_view *tokens,
                     const int32_t *types) {
  const uint32_t controls = vocab - CONTROLS;
  const bytes_view merge = bytes_of_string("a 0");
  gguf_writer_add_string(w, "tokenizer.ggml.model", bytes_of_string("gpt2"));
  gguf_writer_add_string(w, "tokenizer.ggml.pre", bytes_of_string("llama-bpe"));
  gguf_writer_add_strings(w, "tokenizer.ggml.tokens", tokens, vocab);
  gguf_writer_add_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, vocab);
  gguf_writer_add_strings(w, "tokenizer.ggml.merges", &merge, 1);
  gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", controls + BEGIN);
  gguf_writer_add_u32(w, "tokenizer.ggml.eos_token_id", controls + TURN_END);
  gguf_writer_add_bool(w, "tokenizer.ggml.add_bos_token", true);
  gguf_writer_add_string(w, "tokenizer.chat_template", bytes_of_string(chat_template));
}

bool synth_vocab_add(gguf_writer *writer, uint32_t vocab) {
  arena texts;
  arena_init(&texts, 64 << 20);
  bytes_view *tokens = calloc(vocab, sizeof *tokens);
  int32_t *types = calloc(vocab, sizeof *types);
  bool ok = tokens && types;
  for (uint32_t i = 0; i < vocab && ok; i++) {
    char text[TEXT_MAX];
    types[i] = i < vocab - CONTROLS ? NORMAL : CONTROL;
    if (i < BYTES)
      byte_text(i, text);
    else if (types[i] == NORMAL)
      filler_text(i - BYTES, text);
    else
      control_text(i - (vocab - CONTROLS), text);
    size_t len = bytes_of_string(text).len;
    char *copy = arena_copy_string(&texts, text, len);
    tokens[i] = bytes_of(copy, len);
    ok = copy != NULL;
  }
  if (ok) add_keys(writer, vocab, tokens, types);
  free(types);
  free(tokens);
  arena_free(&texts);
  return ok;
}
