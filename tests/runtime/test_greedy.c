/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy answers of the float kernel set against transformers': equal up to the first step at which
 * the reference's two best logits are nearer than 1e-3, where another order of additions may choose
 * the other. Files: tests/golden/oracle/NAME.greedy, laid out as tools/oracle/golden_file.py says.
 *
 * ctest: slow */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "figures.h"
#include "runtime/support_engine.h"

typedef struct greedy_head {
  char magic[8];
  uint32_t version, head_bytes;
  uint8_t sha256[32];
  uint64_t model_bytes;
  char architecture[16];
  uint32_t vocab, prompt_count, step_limit, end_id;
  uint64_t prompts, ids, steps, text, unused[2];
  uint8_t zero[8];
  char command[128], made_with[176];
} greedy_head;
_Static_assert(sizeof(greedy_head) == 448, "as golden_file.py lays it out");
typedef struct greedy_prompt {
  char name[24];
  uint32_t text_first, text_bytes, answer_first, answer_bytes, id_first, id_count, step_first,
      step_count;
} greedy_prompt;
typedef struct greedy_step {
  uint32_t best_id, second_id;
  float best, second;
} greedy_step;

/* Steps that must be equal: up to the first near tie. */
static uint32_t firm_steps(const greedy_step *steps, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (steps[i].best - steps[i].second < 1e-3f) return i;
  return n;
}

static uint32_t first_difference(const engine_answer *a, const greedy_step *steps, uint32_t n,
                                 uint32_t end_id) {
  for (uint32_t i = 0; i < n; i++) {
    bool ended = i == a->n && a->end.finish == TROIKA_FINISH_STOP && steps[i].best_id == end_id;
    if (!ended && (i >= a->n || (uint32_t)a->tokens[i] != steps[i].best_id)) return i;
  }
  return n;
}

static void check_model(const char *label, const char *model, const char *golden) {
  char path[4096];
  os_map map;
  troika_error err;
  snprintf(path, sizeof path, "%s/golden/oracle/%s", TEST_DATA, golden);
  if (os_map_open(path, &map, &err)) {
    fprintf(stderr, "%s\nmake it with: UPDATE=1 make oracle\n", err.text);
    exit(1);
  }
  const greedy_head *h = (const void *)map.data;
  if (memcmp(h->magic, "TRKGREED", 8) || h->version != 1) {
    fprintf(stderr, "%s is no golden greedy file of version 1\n", path);
    exit(1);
  }
  const greedy_prompt *prompts = (const void *)(map.data + h->prompts);
  const uint32_t *ids = (const void *)(map.data + h->ids);
  const greedy_step *all_steps = (const void *)(map.data + h->steps);
  troika_runtime_options o = {
      .size = sizeof o, .parallel = 1, .context = 512, .activations = TROIKA_ACTIVATIONS_FLOAT};
  engine e = engine_open(model, &o);
  uint32_t good = 0;
  uint32_t prompts_n = h->prompt_count;
#if defined(__SANITIZE_ADDRESS__) /* minutes; release asks them all */
  if (prompts_n > 2) prompts_n = 2;
#endif
  for (uint32_t i = 0; i < prompts_n; i++) {
    const greedy_prompt *p = &prompts[i];
    const greedy_step *steps = all_steps + p->step_first;
    static engine_answer a;
    troika_request q;
    troika_request_init(&q);
    q.prompt = (const int32_t *)ids + p->id_first;
    q.prompt_n = p->id_count;
    q.max_tokens = h->step_limit;
    q.temperature = 0;
    engine_ask(&e, &q, &a);
    uint32_t firm = firm_steps(steps, p->step_count);
    uint32_t differs = first_difference(&a, steps, p->step_count, h->end_id);
    bool holds = differs >= firm;
    good += holds;
    printf("     %s, %s: equal for %u of %u steps, %u of them firm%s\n", label, p->name, differs,
           p->step_count, firm, holds ? "" : " - DIFFERS");
    if (!holds)
      printf("     at step %u: ours %d, reference %u (%.5f), second %u (%.5f)\n", differs,
             differs < a.n ? a.tokens[differs] : -1, steps[differs].best_id,
             (double)steps[differs].best, steps[differs].second_id, (double)steps[differs].second);
  }
  char name[128];
  snprintf(name, sizeof name, "%s, float: greedy answers equal up to the first near tie", label);
  figure(name, ">=", prompts_n, good);
  engine_close(&e);
  os_map_close(&map);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  check_model("SmolLM2-135M", SMOLLM2, "smollm2-135m.greedy");
  check_model("Gemma-3-270M", GEMMA3, "gemma-3-270m.greedy");
  return figures_end();
}
