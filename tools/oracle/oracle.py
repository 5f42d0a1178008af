#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the reference library answers, written down where our own engine can be held against it.

For each of the two real models: next-token logits of some 2,000 positions of text and greedy answers
to ten prompts, by transformers in float32 on the same dequantised weights. The files go to --out and
are compared with those committed in --golden; --update replaces the committed ones.

Before anything is written the reference is itself checked: against a float64 forward of our own
(forward64.py), and by its perplexity. Run it by tools/oracle/run.sh (`make oracle`), which makes
the environment. Two threads, 6 GiB of memory at most; 5 minutes on 2 quiet cores, 20 on busy ones.
"""

import argparse
import json
import math
import os
import resource
import shutil
import sys
import time

import gguf  # noqa: F401  (its version is written into the files)
import numpy
import tokenizers
import torch
import transformers
from importlib.metadata import version

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import golden_file
from forward64 import Forward64
from models import MODELS, Model, reference_make
from report import Report
from tokens import Tokens

COMMAND = "UPDATE=1 make oracle   (tools/oracle/run.sh --update)"
STEP_LIMIT = 64
ROWS_AT_ONCE = 64  # a row of Gemma's logits is 1 MiB
# name, text files joined, positions. The first is longer than two sliding windows of Gemma.
CHUNKS = [("prose-licence", ["prose.txt", "licence.txt"], 1152),
          ("code", ["code.txt"], 384),
          ("languages", ["udhr.txt"], 448),
          ("mixed", ["mixed.txt"], 384)]
# Far above what was measured, far below what a wrong rope, norm or scale gives.
PERPLEXITY_MAX = {"smollm2-135m": 30.0, "gemma-3-270m": 40.0}
FLOAT64_LOGIT_MAX = 2e-3
FLOAT64_KL_MAX = 1e-8
# Another processor adds in another order: what a repeated run may differ by.
REPEAT_LOGIT_MAX = 5e-3
# Two best logits further apart than this do not change places by rounding.
MARGIN_SURE = 1e-3


def chunks_read(tokens, folder):
    chunks = []
    for name, files, count in CHUNKS:
        text = "\n".join(open(os.path.join(folder, file), encoding="utf-8").read()
                         for file in files)
        ids = tokens.encode(text)
        if len(ids) < count:
            raise ValueError(f"{name}: {len(ids)} tokens, wanted {count}")
        chunks.append((name, ids[:count]))
    return chunks


def divergence(p, q):
    """KL(p || q) of rows of logits, whole vocabulary, float64."""
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def divergence_best(p, q, best_ids):
    """The same over the best ids and one bucket: the formula of golden_file.py."""
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    p_best, q_best = p.gather(-1, best_ids), q.gather(-1, best_ids)
    p_rest = p.scatter(-1, best_ids, -math.inf).logsumexp(-1)
    q_rest = q.scatter(-1, best_ids, -math.inf).logsumexp(-1)
    return (p_best.exp() * (p_best - q_best)).sum(-1) + p_rest.exp() * (p_rest - q_rest)


def int8_inputs(module, inputs):
    """A stand-in for an engine with 8-bit activations: what a plausible divergence looks like."""
    x = inputs[0]
    groups = x.reshape(*x.shape[:-1], -1, 32)
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return ((groups / scale).round() * scale).reshape(x.shape)


def hidden_all(reference, chunks):
    return [reference.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
            for _, ids in chunks]


def hidden_int8(reference, chunks):
    linears = [m for m in reference.modules() if isinstance(m, torch.nn.Linear)]
    hooks = [linear.register_forward_pre_hook(int8_inputs) for linear in linears]
    hidden = hidden_all(reference, chunks)
    for hook in hooks:
        hook.remove()
    return [int8_inputs(None, (h,)) for h in hidden]


def logits_make(model, reference, second, chunks, report):
    """Everything of the TRKLOGIT file, and what is worth knowing about it."""
    start = time.monotonic()
    hidden = hidden_all(reference, chunks)
    hidden64 = [second.hidden(ids) for _, ids in chunks]
    coarse = hidden_int8(reference, chunks)
    parts = {key: [] for key in ("log_sum", "log_sum_rest", "ids", "logits", "off64", "kl64", "nll",
                                 "kl_full", "kl_best", "margin", "same")}
    for (_, ids), h, h64, h8 in zip(chunks, hidden, hidden64, coarse):
        following = torch.tensor(ids[1:])
        for row in range(0, len(ids), ROWS_AT_ONCE):
            rows = slice(row, row + ROWS_AT_ONCE)
            logits = reference.lm_head(h[rows])
            exact = second.logits(h64[rows])
            ours = reference.lm_head(h8[rows])
            # Sorted by falling logit, then rising id, whatever order topk leaves equal ones in.
            best, best_ids = logits.topk(golden_file.BEST_COUNT)
            order = numpy.lexsort((best_ids.numpy(), -best.numpy()), axis=-1)
            best_ids = best_ids.gather(-1, torch.from_numpy(order))
            best = logits.gather(-1, best_ids)
            wide = logits.double()
            parts["log_sum"].append(wide.logsumexp(-1))
            parts["log_sum_rest"].append(wide.scatter(-1, best_ids, -math.inf).logsumexp(-1))
            parts["ids"].append(best_ids)
            parts["logits"].append(best)
            parts["off64"].append((wide - exact).abs().amax(-1))
            parts["kl64"].append(divergence(exact, wide))
            parts["kl_full"].append(divergence(wide, ours))
            parts["kl_best"].append(divergence_best(wide, ours, best_ids))
            parts["margin"].append(best[:, 0] - best[:, 1])
            parts["same"].append((exact.argmax(-1) == best_ids[:, 0]).double())
            wanted = following[rows]
            parts["nll"].append(-wide.log_softmax(-1)[:len(wanted)].gather(-1, wanted[:, None])[:, 0])
    flat = {key: torch.cat(value).numpy() for key, value in parts.items()}
    logits_report(model, chunks, flat, report, time.monotonic() - start)
    return flat


def logits_report(model, chunks, flat, report, seconds):
    name, first = model.name, 0
    positions = sum(len(ids) for _, ids in chunks)
    report.add(f"{name}: positions", ">= 2000", positions)
    report.add(f"{name}: seconds for the logits, three forwards", "", round(seconds, 1))
    report.add(f"{name}: perplexity", f"< {PERPLEXITY_MAX[name]}", math.exp(flat["nll"].mean()))
    for chunk, ids in chunks:
        loss = flat["nll"][first:first + len(ids) - 1]
        report.add(f"{name}: perplexity of {chunk}", "", math.exp(loss.mean()))
        first += len(ids) - 1
    off, kl, full, best = (flat[key] for key in ("off64", "kl64", "kl_full", "kl_best"))
    report.add(f"{name}: largest logit difference float32 to float64", f"< {FLOAT64_LOGIT_MAX}",
               float(off.max()), float(off.std()))
    report.add(f"{name}: mean KL(float64 || float32)", f"< {FLOAT64_KL_MAX}", float(kl.mean()),
               float(kl.std()))
    sure = flat["margin"] > MARGIN_SURE
    report.add(f"{name}: best token other in float64, margin > {MARGIN_SURE}", "== 0",
               int((1 - flat["same"][sure]).sum()))
    report.add(f"{name}: positions with margin > 0.15", "", int((flat["margin"] > 0.15).sum()))
    report.add(f"{name}: 8-bit activations, mean full KL", "", float(full.mean()), float(full.std()))
    report.add(f"{name}: 8-bit activations, mean KL64", "", float(best.mean()), float(best.std()))
    report.add(f"{name}: 8-bit activations, KL64 / full KL", "0.8..1", float(best.sum() / full.sum()))
    report.add(f"{name}: positions with KL64 > full KL", "== 0", int((best > full + 1e-9).sum()))


def greedy_one(reference, ids, end_id):
    """Token by token over a cache, as a server does it."""
    cache, step_ids, steps = transformers.DynamicCache(config=reference.config), ids, []
    while len(steps) < STEP_LIMIT and not (steps and steps[-1][0] == end_id):
        logits = reference(input_ids=torch.tensor([step_ids]), past_key_values=cache,
                           use_cache=True, logits_to_keep=1).logits[0, -1]
        best, best_ids = logits.topk(3)
        # Equal logits: the lower id first, as in the other file.
        (first, first_id), (other, other_id) = sorted(
            zip(best.tolist(), best_ids.tolist()), key=lambda pair: (-pair[0], pair[1]))[:2]
        steps.append((first_id, other_id, first, other))
        step_ids = [first_id]
    return steps


def greedy_make(model, reference, second, tokens, prompts, report):
    start, answers, worst, unequal = time.monotonic(), [], 0.0, 0
    for prompt in prompts:
        text = prompt["chat" if tokens.template else "raw"]
        ids = tokens.encode_chat(text) if tokens.template else tokens.encode(text)
        steps = greedy_one(reference, ids, model.end_id)
        emitted = [step[0] for step in steps]
        text_ids = emitted[:-1] if emitted[-1] == model.end_id else emitted
        # All at once and in float64: the same tokens, and how far the stored logits are off.
        exact = second.logits(second.hidden(ids + emitted[:-1])[len(ids) - 1:])
        stored = torch.tensor([step[2] for step in steps], dtype=torch.float64)
        worst = max(worst, float((exact.amax(-1) - stored).abs().max()))
        margins = torch.tensor([step[2] - step[3] for step in steps])
        differ = exact.argmax(-1) != torch.tensor(emitted)
        unequal += int((differ & (margins > MARGIN_SURE)).sum())
        answers.append({"name": prompt["name"], "text": text, "ids": ids, "steps": steps,
                        "answer": tokens.decode(text_ids)})
        print(f"      {prompt['name']:<12} {len(steps):>3} steps, least margin {margins.min():.4f}: "
              f"{answers[-1]['answer'][:70]!r}", flush=True)
    name = model.name
    report.add(f"{name}: greedy steps other in float64, margin > {MARGIN_SURE}", "== 0", unequal)
    report.add(f"{name}: greedy best logit, float32 with a cache to float64",
               f"< {FLOAT64_LOGIT_MAX}", worst)
    report.add(f"{name}: seconds for the greedy answers", "", round(time.monotonic() - start, 1))
    return answers


def greedy_json_write(path, head, answers, tokens, end_id):
    """The same answers for people, and for the documents; one list a line."""
    compact = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    rows = []
    for a in answers:
        rows.append("  {" + ",\n   ".join([
            f'"name": {compact(a["name"])}', f'"prompt": {compact(a["text"])}',
            f'"prompt_as_read": {compact(tokens.decode(a["ids"]))}',
            f'"prompt_ids": {compact(a["ids"])}',
            f'"output_ids": {compact([step[0] for step in a["steps"]])}',
            f'"second_ids": {compact([step[1] for step in a["steps"]])}',
            f'"margins": {compact([round(step[2] - step[3], 5) for step in a["steps"]])}',
            f'"output": {compact(a["answer"])}']) + "}")
    lines = [f' "{key}": {compact(value)}' for key, value in head.items()]
    lines += [f' "step_limit": {STEP_LIMIT}', f' "end_id": {end_id}',
              ' "prompts": [\n' + ",\n".join(rows) + "\n ]"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def model_make(name, args, prompts, report):
    print(f"{name}:", flush=True)
    model = Model(name, args.models)
    tokens = Tokens(model, args.gemma_tokenizer)
    chunks = chunks_read(tokens, args.texts)
    reference, second = reference_make(model), Forward64(model)
    made_with = " ".join(f"{package} {version(package)}" for package in
                         ("torch", "transformers", "tokenizers", "gguf", "numpy"))
    head = {"sha256": model.sha256, "bytes": model.bytes, "architecture": model.architecture,
            "vocabulary_count": model.vocabulary_count, "command": COMMAND,
            "made_with": f"{made_with}; float32, eager attention"}
    flat = logits_make(model, reference, second, chunks, report)
    paths = [os.path.join(args.out, f"{name}{suffix}")
             for suffix in (".logits", ".greedy", ".greedy.json")]
    golden_file.logits_write(paths[0], head, chunks, flat["log_sum"].astype("<f8"),
                             flat["log_sum_rest"].astype("<f8"), flat["ids"].astype("<u4"),
                             flat["logits"].astype("<f4"))
    answers = greedy_make(model, reference, second, tokens, prompts, report)
    golden_file.greedy_write(paths[1], head, STEP_LIMIT, model.end_id, answers)
    greedy_json_write(paths[2], head, answers, tokens, model.end_id)
    return paths


def logits_distance(new, old):
    """The largest difference of a stored logit or sum that both files have; None: other text."""
    if (new["sha256"], new["chunks"], new["tokens"]) != (old["sha256"], old["chunks"], old["tokens"]):
        return None
    best, worst = new["best_count"], 0.0
    for p in range(new["position_count"]):
        at = slice(p * best, (p + 1) * best)
        was = dict(zip(old["best_ids"][at], old["best_logits"][at]))
        worst = max([worst, abs(new["log_sum"][p] - old["log_sum"][p])]
                    + [abs(logit - was[i]) for i, logit in
                       zip(new["best_ids"][at], new["best_logits"][at]) if i in was])
    return worst


def greedy_distance(new, old):
    """As above, up to the first step at which the two runs emit different tokens."""
    key = lambda golden: [(p["name"], p["text"], p["ids"]) for p in golden["prompts"]]
    if new["sha256"] != old["sha256"] or key(new) != key(old):
        return None
    worst = 0.0
    for a, b in zip(new["prompts"], old["prompts"]):
        for step, was in zip(a["steps"], b["steps"]):
            worst = max(worst, abs(step[2] - was[2]))
            if step[0] != was[0]:
                # They part here: fair only if the committed run's two best were this close.
                worst = max(worst, was[2] - was[3])
                break
    return worst


def committed_compare(paths, folder, report):
    """The committed files against the new ones."""
    for path in paths:
        committed = os.path.join(folder, os.path.basename(path))
        if path.endswith(".json"):
            continue
        distance = None
        if os.path.exists(committed):
            new, old = golden_file.file_read(path), golden_file.file_read(committed)
            measure = logits_distance if path.endswith(".logits") else greedy_distance
            distance = measure(new, old)
        # None does not hold: no such file, or other texts or prompts.
        report.add(f"{os.path.basename(path)}: committed file to this run, logits",
                   f"< {REPEAT_LOGIT_MAX}", distance)


def arguments_read():
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    golden = os.path.join(root, "tests", "golden", "oracle")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", required=True, help="folder of the two GGUF files")
    parser.add_argument("--gemma-tokenizer", required=True, help="its tokenizer.json")
    parser.add_argument("--golden", default=golden, help="folder of the committed files")
    parser.add_argument("--texts", default=os.path.join(golden, "text"))
    parser.add_argument("--prompts", default=os.path.join(here, "prompts.json"))
    parser.add_argument("--out", default=os.path.join(root, "build", "oracle"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=list(MODELS), help="one model")
    parser.add_argument("--update", action="store_true", help="replace the committed files")
    return parser.parse_args()


def main():
    args, report = arguments_read(), Report("oracle")
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    with open(args.prompts, encoding="utf-8") as file:
        prompts = json.load(file)
    start = time.monotonic()
    for name in [args.only] if args.only else MODELS:
        paths = model_make(name, args, prompts, report)
        for path in paths[:2]:
            golden = golden_file.file_read(path)
            check = (golden_file.logits_faults if path.endswith(".logits")
                     else golden_file.greedy_faults)
            faults = check(golden)
            print("\n".join(f"      {os.path.basename(path)}: {fault}" for fault in faults[:20]))
            report.add(f"{os.path.basename(path)}: faults in the file", "== 0", len(faults))
        if args.update:
            for path in paths:
                shutil.copy(path, args.golden)
        else:
            committed_compare(paths, args.golden, report)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report.add("oracle: peak memory, GiB", "< 8", peak)
    report.add("oracle: seconds", "", round(time.monotonic() - start, 1))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
