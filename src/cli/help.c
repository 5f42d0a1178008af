/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/options.h"

typedef struct command_text {
  const char *name, *arguments, *summary, *examples;
} command_text;

static const command_text texts[CLI_COMMANDS] = {
    [CLI_RUN] =
        {"run", "[PROMPT]", "Answer a prompt in the terminal.",
         "  troika run \"Why is the sky blue?\"\n"
         "  cat notes.txt | troika run \"Summarise:\"      standard input follows the prompt\n"
         "  troika run -m gemma3 --raw \"Once upon a time\"\n"},
    [CLI_CHAT] = {"chat", "[PROMPT]", "Talk with a model in the terminal.",
                  "  troika chat\n"
                  "  troika chat --system \"Answer in one sentence.\" \"Why is the sky blue?\"\n"
                  "  troika chat --load chat.json\n"
                  "  troika chat < questions.txt                 each line is a message\n"
                  "\nIn a chat, /help lists the commands.\n"},
    [CLI_SERVE] = {"serve", "", "Serve an OpenAI-compatible HTTP interface.",
                   "  troika serve --port 8080\n"
                   "  troika serve -m model.gguf --parallel 16 --context 4096\n"},
    [CLI_BENCH] = {"bench", "[kv]", "Measure speed and memory on this machine.",
                   "  troika bench\n"
                   "  troika bench kv                 KV memory: pages against contiguous\n"
                   "  troika bench -m gemma3 --json > result.json\n"},
    [CLI_INSPECT] = {"inspect", "FILE", "Show what is in a model file, or what is wrong with it.",
                     "  troika inspect model.gguf\n"
                     "  troika inspect smollm2 --json\n"},
    [CLI_TOKENIZE] = {"tokenize", "[TEXT]", "Text to tokens, and back.",
                      "  troika tokenize \"Hello world\"\n"
                      "  troika tokenize --ids < file.txt\n"
                      "  troika tokenize --decode-ids 504 2403\n"},
    [CLI_PROFILE] = {"profile", "", "Measure what launches cost here, and keep it for serve.",
                     "  troika profile\n"
                     "  troika profile -m gemma3 --parallel 16 --json > costs.json\n"},
    [CLI_TOP] = {"top", "", "Watch a running server: its streams, its figures.",
                 "  troika top\n"
                 "  troika top --url http://127.0.0.1:9000 --interval 0.5\n"
                 "  troika top --once --json\n"
                 "\nq or Ctrl-C ends it.\n"},
    [CLI_REPLAY] = {"replay", "FILE", "Make the decisions of a record again, and compare.",
                    "  troika serve --record decisions.bin\n"
                    "  troika replay decisions.bin\n"},
    [CLI_SYNTH] = {"synth", "", "Write a model of a known shape with random weights.",
                   "  troika synth --shape llama-3.2-1b -o random-1b.gguf\n"
                   "  troika synth --shape llama-3.1-8b --type q4_k_m --seed 7 -o random-8b.gguf\n"
                   "\nSuch a model is for measurements of speed and load: what it says has no "
                   "meaning.\n"},
};

const char *cli_command_name(cli_command command) {
  return texts[command].name;
}

/* "LIST, default 1,2" under the option's own words, wrapped at 100 columns would be over-done: help
 * texts are one line. */
static void print_option(const option *o) {
  char left[64], letter[8] = "    ";
  if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
  snprintf(left, sizeof left, "  %s--%s%s%s", letter, o->name, o->value ? " " : "",
           o->value ? o->value : "");
  printf("%-28s %s", left, o->help);
  if (o->type == OPTION_CHOICE || o->type == OPTION_LIST) printf(" [%s]", o->choices);
  if (o->type == OPTION_INTEGER && o->max <= 65536) printf(" [%.0f to %.0f]", o->min, o->max);
  if (o->type == OPTION_REAL) printf(" [%g to %g]", o->min, o->max);
  if (o->missing) printf(" Default: %s.", o->missing);
  printf("\n");
}

void cli_help(cli_command command) {
  const command_text *t = &texts[command];
  printf("%s\n\n  troika %s [OPTIONS]%s%s\n\nOptions\n", t->summary, t->name,
         *t->arguments ? " " : "", t->arguments);
  for (unsigned i = 0; i < options_count; i++)
    if (options_table[i].commands & 1u << command) print_option(&options_table[i]);
  printf(
      "\nEvery option but help and config can also be a line \"name = value\" of the settings "
      "file, "
      "or TROIKA_<NAME> in\nthe environment (max-tokens: TROIKA_MAX_TOKENS); "
      "the command line wins over the environment, and that over the file.\n\nExamples\n%s",
      t->examples);
}

void cli_help_all(void) {
  printf(
      "troika %s - language models on this machine, for people and agents\n\n  troika COMMAND "
      "[OPTIONS] ...\n\nCommands\n",
      troika_version());
  for (int i = 0; i < CLI_COMMANDS; i++) printf("  %-10s %s\n", texts[i].name, texts[i].summary);
  printf("  %-10s %s\n  %-10s %s\n", "help",
         "Print this; \"troika help COMMAND\" prints the options of one.", "version",
         "Print the version, and the commit it was built from.");
  printf(
      "\nExit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 130 "
      "interrupted.\n");
}
