/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and all that reads the environment. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
  R = 1 << CLI_RUN,
  C = 1 << CLI_CHAT,
  S = 1 << CLI_SERVE,
  B = 1 << CLI_BENCH,
  I = 1 << CLI_INSPECT,
  T = 1 << CLI_TOKENIZE,
  Y = 1 << CLI_SYNTH,
  P = 1 << CLI_PROFILE,
  TOP = 1 << CLI_TOP,
  L = 1 << CLI_REPLAY,
  TALK = R | C,
  ENGINE = TALK | S | B | P,
  ALL = ENGINE | I | T | Y | TOP | L
};

#define AT(field) offsetof(cli_settings, field)
#define FLAG(name, letter, commands, help, field) \
  { name, NULL, letter, OPTION_FLAG, commands, NULL, NULL, 0, 0, NULL, help, AT(field) }
#define TEXT(name, letter, commands, value, missing, help, field) \
  { name, NULL, letter, OPTION_TEXT, commands, value, missing, 0, 0, NULL, help, AT(field) }
#define NUMBER(name, alias, letter, type, commands, missing, min, max, help, field) \
  { name, alias, letter, type, commands, "N", missing, min, max, NULL, help, AT(field) }
#define LIST(name, commands, missing, choices, help, field) \
  { name, NULL, 0, OPTION_LIST, commands, "LIST", missing, 0, 0, choices, help, AT(field) }
#define CHOICE(name, commands, missing, choices, help, field) \
  { name, NULL, 0, OPTION_CHOICE, commands, "NAME", missing, 0, 0, choices, help, AT(field) }

const option options_table[] = {
    FLAG("help", 'h', ALL, "Print this and exit.", help),
    TEXT("config", 0, ALL, "FILE", NULL,
         "Settings file, \"name = value\" lines; default is troika/config in $XDG_CONFIG_HOME or "
         "~/.config.",
         config),
    TEXT("model", 'm', ENGINE | T, "MODEL", "smollm2",
         "GGUF file, or a name in the cache folder: smollm2, gemma3.", model),
    NUMBER("threads", NULL, 't', OPTION_INTEGER, ENGINE, "0", 0, 256,
           "Worker threads; 0 is the processors this process may use.", threads),
    CHOICE("activations", ENGINE, "default", "default|float|int8",
           "Arithmetic of activations: float is exact and slow, int8 fast and rougher.",
           activations),
    LIST("cpu-levels", ENGINE, "all", "all|scalar|avx2|avxvnni|avx512|avx512vnni|avx512bf16",
         "Instruction sets that may be used, with commas between.", cpu_levels),
    NUMBER("context", NULL, 'c', OPTION_INTEGER, ENGINE, "0", 0, 1 << 24,
           "Most tokens of one request, prompt and answer; 0 is the model's, at most 8192.",
           context),
    NUMBER("kv-size", NULL, 0, OPTION_SIZE, ENGINE, "0", 0, 1e15,
           "Bytes for the KV cache (64M, 2G); 0 is what full contexts need, at most half the free "
           "memory.",
           kv_size),
    NUMBER("span-rows", NULL, 0, OPTION_INTEGER, ENGINE, "0", 0, 4096,
           "Prompt rows that advance together, 16 or more; 0 is the engine's choice.", span_rows),
    TEXT("chat-template", 0, TALK | S, "FILE", NULL,
         "Jinja file used instead of the model's own chat template.", chat_template),
    CHOICE("log-level", S, "info", "error|warn|info|debug", "What is logged to standard error.",
           log_level),
    FLAG("log-json", 0, S, "Log one JSON object a line.", log_json),
    FLAG("verbose", 'v', TALK,
         "After an answer, print time to first token, tokens per second and more.", verbose),
    TEXT("system", 0, TALK, "TEXT", NULL, "System message.", system),
    FLAG("raw", 0, R, "Continue the prompt as it is, without the chat template.", raw),
    NUMBER("max-tokens", NULL, 'n', OPTION_INTEGER, TALK, "-1", -1, 1 << 24,
           "Most tokens of the answer; -1 is until the context is full.", max_tokens),
    NUMBER("temp", "temperature", 0, OPTION_REAL, TALK, "0.7", 0, 2,
           "Temperature; 0 takes the likeliest token.", temperature),
    NUMBER("top-k", NULL, 0, OPTION_INTEGER, TALK, "0", 0, INT32_MAX,
           "Draw among this many likeliest tokens; 0 is off.", top_k),
    NUMBER("top-p", NULL, 0, OPTION_REAL, TALK, "0.95", 0, 1,
           "Draw among the fewest tokens with this probability together; 1 is off.", top_p),
    NUMBER("min-p", NULL, 0, OPTION_REAL, TALK, "0", 0, 1,
           "Draw among tokens with this share of the best one's probability; 0 is off.", min_p),
    NUMBER("repeat-penalty", NULL, 0, OPTION_REAL, TALK, "1", 0.01, 100,
           "Makes recent tokens less likely; 1 is off.", repeat_penalty),
    NUMBER("repeat-last", NULL, 0, OPTION_INTEGER, TALK, "64", 0, 1 << 20,
           "Tokens that count as recent for --repeat-penalty.", repeat_last),
    NUMBER("seed", NULL, 's', OPTION_INTEGER, TALK | Y, NULL, -9e18, 9e18,
           "Same seed, same answer, else drawn anew; for synth: same seed, same file, else 1.",
           seed),
    TEXT("stop", 0, TALK, "TEXT", NULL, "Ends the answer where this text would begin.", stop),
    FLAG("ignore-eos", 0, R, "Do not stop at the model's end token.", ignore_eos),
    TEXT("load", 0, C, "FILE", NULL, "Go on with a chat from a file that /save wrote.", load),
    TEXT("host", 0, S, "ADDRESS", "127.0.0.1",
         "Address to listen on; 0.0.0.0 lets other machines in.", host),
    NUMBER("port", NULL, 'p', OPTION_INTEGER, S, "8080", 0, 65535,
           "Port to listen on; 0 is any free one.", port),
    NUMBER("parallel", NULL, 0, OPTION_INTEGER, S | P, "32", 1, 64, "Requests that run at once.",
           parallel),
    NUMBER("queue-max", NULL, 0, OPTION_INTEGER, S, "256", 1, 16384,
           "Requests that may wait; the next gets 429.", queue_max),
    NUMBER(
        "bcap", NULL, 0, OPTION_INTEGER, S, "0", 0, 64,
        "Rows of a decode batch that holds a reactive one, at most; 0 adapts to the machine, the "
        "paper's rule is 3.",
        bcap),
    NUMBER("tpot-slack", NULL, 0, OPTION_REAL, S, "0.15", 0.001, 10,
           "How much the background may stretch a reactive token's time: 0.15 is 15 %.",
           tpot_slack),
    NUMBER("tpot-target", NULL, 0, OPTION_REAL, S, "0", 0, 1e6,
           "Milliseconds per token that the background may not push a reactive answer beyond; 0 is "
           "none.",
           tpot_target),
    NUMBER("ttft-target", NULL, 0, OPTION_REAL, S, "1000", 1, 1e7,
           "Milliseconds to a reactive answer's first token beyond which the engine is overloaded.",
           ttft_target),
    NUMBER("age-limit", NULL, 0, OPTION_REAL, S, "30", 0.01, 1e6,
           "Seconds after which waiting background work is promoted, one at a time.", age_limit),
    NUMBER("background-share", NULL, 0, OPTION_REAL, S, "0.05", 0.001, 0.5,
           "Share of a reactive answer's time that promoted work may cost.", background_share),
    CHOICE("overload", S, "admit-first", "admit-first|degrade-first",
           "Under pressure: refuse background work before shortening answers that allow it, or "
           "after.",
           overload),
    TEXT("profile", 0, S | P, "FILE", "auto",
         "What launches cost here, as troika profile measures it; auto is a file of the cache for "
         "this machine, model and settings, off is none.",
         profile),
    TEXT("trace", 0, S, "FILE", NULL, "Write a timeline that Perfetto opens.", trace),
    TEXT("record", 0, S, "FILE", NULL, "Write every scheduling decision, for \"troika replay\".",
         record),
    TEXT("model-name", 0, S, "NAME", NULL,
         "Name in /v1/models and answers; default is the model's short or file name.", model_name),
    NUMBER("body-max", NULL, 0, OPTION_SIZE, S, "32M", 1024, 1 << 30,
           "Largest request body (64K, 32M); a larger one gets 413.", body_max),
    TEXT("api-key-file", 0, S | TOP, "FILE", NULL,
         "Keys, one a line; clients must send one. $TROIKA_API_KEY, if not empty, is one too. top "
         "sends the first.",
         api_key_file),
    CHOICE("default-class", S, "reactive", "reactive|proactive",
           "Class of requests that say nothing, with keys and paths that say nothing.",
           default_class),
    FLAG("no-heuristics", 0, S, "The shape of a request never makes it background.", no_heuristics),
    FLAG("share-cache", 0, S,
         "API keys share cached prompts: faster, but one can time what another has asked.",
         share_cache),
    TEXT("cors-origin", 0, S, "LIST", NULL,
         "Web origins that may ask, besides this machine's: http://NAME:PORT,... or *.",
         cors_origin),
    NUMBER("connections-max", NULL, 0, OPTION_INTEGER, S, "1024", 8, 65536,
           "Open connections; when as many are open, idle ones are closed.", connections_max),
    NUMBER("request-time", NULL, 0, OPTION_INTEGER, S, "60", 1, 3600,
           "Seconds in which a whole request must arrive, else 408.", request_time_s),
    NUMBER("keep-alive", NULL, 0, OPTION_INTEGER, S, "10", 0, 3600,
           "Seconds of silence after which a stream gets a comment line; 0 is never.", keepalive_s),
    NUMBER("drain", NULL, 0, OPTION_INTEGER, S, "30", 0, 86400,
           "Seconds that running requests get after SIGTERM or Ctrl-C.", drain_s),
    TEXT("prefill", 0, B, "LIST", "64,256,512,2048", "Prompt lengths to measure.", prefill),
    NUMBER("decode", NULL, 0, OPTION_INTEGER, B, "64", 2, 4096,
           "Tokens to generate in each decode measurement.", decode),
    TEXT("batch", 0, B, "LIST", "1,2,4,8", "Numbers of requests that decode together.", batch),
    NUMBER("repetitions", NULL, 'r', OPTION_INTEGER, B, "5", 1, 1000, "Measurements of each kind.",
           repetitions),
    NUMBER("warm-ups", NULL, 0, OPTION_INTEGER, B, "1", 0, 100, "Unmeasured runs before them.",
           warmups),
    FLAG("json", 0, B | I | T | Y | P | TOP | L, "Write JSON.", json),
    FLAG("ids", 0, T, "Write only the token numbers.", ids),
    FLAG("decode-ids", 'd', T, "The other way: token numbers in, text out.", decode_ids),
    FLAG("special", 0, T, "Names of control tokens in the text are control tokens.", special),
    FLAG("no-bos", 0, T, "Do not put the begin token first.", no_bos),
    FLAG("count", 0, T, "Write only how many tokens there are.", count),
    TEXT("shape", 0, Y, "NAME", NULL,
         "Whose shape: llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, or tiny for tests.", shape),
    CHOICE("type", Y, "q4_0", "q4_0|q8_0|q4_k_m", "Mix of weight formats.", mix),
    TEXT("output", 'o', Y, "FILE", NULL, "File to write.", output),
    FLAG("force", 0, Y, "Overwrite the file if it is there already.", force),
    TEXT("url", 0, TOP, "URL", "http://127.0.0.1:8080", "Server to watch.", url),
    NUMBER("interval", NULL, 0, OPTION_REAL, TOP, "1", 0.1, 3600, "Seconds between refreshes.",
           interval),
    FLAG("once", 0, TOP, "Print once and end, as where standard output is no terminal.", once),
};
const unsigned options_count = sizeof options_table / sizeof *options_table;

static bool name_is(const char *wanted, const char *name, size_t len) {
  if (!wanted || strlen(wanted) != len) return false;
  for (size_t i = 0; i < len; i++)
    if (wanted[i] != (name[i] == '_' ? '-' : name[i])) return false;
  return true;
}

const option *option_find(const char *name, size_t len) {
  for (unsigned i = 0; i < options_count; i++)
    if (name_is(options_table[i].name, name, len) || name_is(options_table[i].alias, name, len))
      return &options_table[i];
  return NULL;
}

const option *option_find_letter(char letter) {
  for (unsigned i = 0; i < options_count; i++)
    if (letter && options_table[i].letter == letter) return &options_table[i];
  return NULL;
}

/* Edits (insert, delete, replace) between two names; names longer than the row are cut. */
static unsigned distance(const char *a, const char *b) {
  unsigned row[48];
  size_t m = strlen(a), n = strlen(b);
  if (n > 46) n = 46;
  for (size_t j = 0; j <= n; j++) row[j] = (unsigned)j;
  for (size_t i = 1; i <= m; i++) {
    unsigned corner = row[0];
    row[0] = (unsigned)i;
    for (size_t j = 1; j <= n; j++) {
      unsigned above = row[j], best = corner + (a[i - 1] != b[j - 1]);
      if (above + 1 < best) best = above + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      corner = above;
      row[j] = best;
    }
  }
  return row[n];
}

const char *cli_nearest(const char *name, const char *const *names, unsigned n) {
  const char *best = NULL;
  unsigned least = (unsigned)strlen(name) / 2 + 1;
  for (unsigned i = 0; i < n; i++) {
    unsigned d = distance(name, names[i]);
    if (strlen(name) >= 3 && !strncmp(name, names[i], strlen(name))) d = 1;
    if (d < least) least = d, best = names[i];
  }
  return best;
}

const char *option_nearest(const char *name, cli_command command) {
  const char *names[sizeof options_table / sizeof *options_table];
  unsigned n = 0;
  for (unsigned i = 0; i < options_count; i++)
    if (options_table[i].commands & 1u << command) names[n++] = options_table[i].name;
  return cli_nearest(name, names, n);
}

static bool parse_flag(const char *text, bool *out) {
  static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off",
                                                                              "0"};
  for (int i = 0; i < 4; i++) {
    if (!strcasecmp(text, yes[i])) return *out = true, true;
    if (!strcasecmp(text, no[i])) return *out = false, true;
  }
  return false;
}

/* 64, 64K, 64M, 2G; powers of 1024. */
static bool parse_size(const char *text, double *out) {
  char *end;
  double v = strtod(text, &end);
  if (end == text) return false;
  static const char units[] = "KMGT";
  const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 32 : *end) : NULL;
  if (unit)
    for (end++; unit >= units; unit--) v *= 1024;
  if (*end == 'B' || *end == 'b') end++;
  *out = v;
  return !*end;
}

static bool parse_choice(const option *o, const char *text, int *out) {
  int i = 0;
  for (const char *p = o->choices; *p; i++) {
    size_t len = strcspn(p, "|");
    if (strlen(text) == len && !strncmp(text, p, len)) return *out = i, true;
    p += len;
    if (*p) p++;
  }
  return false;
}

/* Each word between commas is one of the choices. */
static bool check_list(const option *o, const char *text) {
  char word[32];
  int which;
  for (const char *p = text;; p++) {
    size_t len = strcspn(p, ",");
    if (len >= sizeof word) return false;
    memcpy(word, p, len);
    word[len] = 0;
    if (!parse_choice(o, word, &which)) return false;
    p += len;
    if (!*p) return true;
  }
}

static bool set_number(const option *o, const char *text, void *at, char *problem, size_t size) {
  char *end;
  double v = 0;
  long long whole = 0;
  errno = 0;
  bool ok;
  if (o->type == OPTION_SIZE) {
    ok = parse_size(text, &v);
    whole = ok && v >= 0 && v < 9e18 ? (long long)v : 0;
  } else if (o->type == OPTION_INTEGER) {
    whole = strtoll(text, &end, 10);
    v = (double)whole;
    ok = end != text && !*end && !errno;
  } else {
    v = strtod(text, &end);
    ok = end != text && !*end && isfinite(v);
  }
  if (!ok || !(v >= o->min && v <= o->max)) {
    snprintf(problem, size, "%s is \"%.60s\"; allowed is a %s from %.10g to %.10g", o->name, text,
             o->type == OPTION_INTEGER ? "whole number"
             : o->type == OPTION_SIZE  ? "size"
                                       : "number",
             o->min, o->max);
    return false;
  }
  if (o->type == OPTION_REAL)
    *(double *)at = v;
  else
    *(int64_t *)at = whole;
  return true;
}

enum { SPAN_ROWS_MIN = 16 }; /* as troika/runtime.h has it; 0 is a default */

static bool set_checked_number(const option *o, const char *text, cli_settings *s, char *problem,
                               size_t size) {
  cli_settings old = *s;
  if (!set_number(o, text, (char *)s + o->offset, problem, size)) return false;
  if (o->offset == AT(seed)) s->seeded = true;
  if (o->offset != AT(span_rows) || s->span_rows == 0 || s->span_rows >= SPAN_ROWS_MIN) return true;
  s->span_rows = old.span_rows;
  snprintf(problem, size, "%s is \"%.60s\"; allowed is 0, or a whole number from %d to %.10g",
           o->name, text, SPAN_ROWS_MIN, o->max);
  return false;
}

bool option_set(const option *o, const char *text, cli_settings *s, char *problem,
                size_t problem_size) {
  void *at = (char *)s + o->offset;
  switch (o->type) {
    case OPTION_FLAG:
      if (parse_flag(text, at)) return true;
      snprintf(problem, problem_size, "%s is \"%.60s\"; allowed is true or false", o->name, text);
      return false;
    case OPTION_TEXT:
      *(const char **)at = text;
      return true;
    case OPTION_CHOICE:
      if (parse_choice(o, text, at)) return true;
      snprintf(problem, problem_size, "%s is \"%.60s\"; allowed is %s", o->name, text, o->choices);
      return false;
    case OPTION_LIST:
      if (check_list(o, text)) return *(const char **)at = text, true;
      snprintf(problem, problem_size, "%s is \"%.60s\"; allowed is %s, with commas between",
               o->name, text, o->choices);
      return false;
    default:
      return set_checked_number(o, text, s, problem, problem_size);
  }
}

void options_set_defaults(cli_settings *s) {
  char problem[256];
  *s = (cli_settings){0};
  arena_init(&s->owned, 16 * 1024 * 1024);
  for (unsigned i = 0; i < options_count; i++)
    if (options_table[i].missing &&
        !option_set(&options_table[i], options_table[i].missing, s, problem, sizeof problem))
      fprintf(stderr, "troika: default of %s\n", problem); /* the table is wrong: tests see this */
}

bool options_set_environment(cli_settings *s, cli_command command) {
  for (unsigned i = 0; i < options_count; i++) {
    const option *o = &options_table[i];
    char name[64] = "TROIKA_", problem[256];
    if (!(o->commands & 1u << command) || o->offset == AT(help) || o->offset == AT(config))
      continue;
    for (size_t j = 0; o->name[j] && j < 50; j++) {
      char c = o->name[j];
      name[7 + j] = c == '-' ? '_' : c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
      name[8 + j] = 0;
    }
    const char *text = getenv(name);
    if (text && *text && !option_set(o, text, s, problem, sizeof problem)) {
      fprintf(stderr, "troika: %s in the environment: %s\n", name, problem);
      return false;
    }
  }
  return true;
}

static bool home_path(const char *variable, const char *below_home, const char *tail, char *out,
                      size_t size) {
  const char *base = getenv(variable), *home = getenv("HOME");
  int n;
  if (base && *base == '/')
    n = snprintf(out, size, "%s/%s", base, tail);
  else if (home && *home)
    n = snprintf(out, size, "%s/%s/%s", home, below_home, tail);
  else
    return false;
  return n > 0 && (size_t)n < size;
}

const char *option_api_key(void) {
  return getenv("TROIKA_API_KEY");
}

bool option_config_path(char *out, size_t size) {
  return home_path("XDG_CONFIG_HOME", ".config", "troika/config", out, size);
}

bool option_models_folder(char *out, size_t size) {
  return home_path("XDG_CACHE_HOME", ".cache", "troika/models", out, size);
}

bool option_profiles_folder(char *out, size_t size) {
  return home_path("XDG_CACHE_HOME", ".cache", "troika/profiles/", out, size);
}

bool option_history_path(char *out, size_t size) {
  return home_path("XDG_STATE_HOME", ".local/state", "troika/history", out, size);
}

bool option_home_path(const char *rest, char *out, size_t size) {
  const char *home = getenv("HOME");
  int n = home && *home ? snprintf(out, size, "%s/%s", home, rest) : 0;
  return n > 0 && (size_t)n < size;
}

bool option_terminal_has_cursor(void) {
  const char *terminal = getenv("TERM");
  return terminal && *terminal && strcmp(terminal, "dumb") != 0;
}

bool option_terminal_has_styles(void) {
  const char *plain = getenv("NO_COLOR");
  return !(plain && *plain) && option_terminal_has_cursor();
}
