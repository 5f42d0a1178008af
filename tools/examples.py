#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/examples.py - `troika run` greedy on ten prompts a model beside the float32 reference, into docs/EXAMPLES.md.

The reference's answers are in tests/golden/oracle/*.greedy.json (made by `UPDATE=1 make oracle`). For each
prompt: both texts, and the step at which the texts first differ. Kernel set: the default one, whose
arithmetic is not float32's, so that an answer may part from the reference where its two best tokens are near
each other; the margin there is printed. Writes build/reports/examples.json.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402
import report  # noqa: E402

BINARY = ROOT / "build/release/troika"
MODELS = [("SmolLM2-135M-Instruct (chat template)", "smollm2", "smollm2-135m", []),
          ("Gemma-3-270M (raw continuation)", "gemma3", "gemma-3-270m", ["--raw"])]


def ours(model, prompt, more):
    return subprocess.run([BINARY, "run", "-m", model, "--temp", "0", "-n", "64", *more, prompt],
                          stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout.decode()


def pieces(model, ids):
    out = subprocess.run([BINARY, "tokenize", "-m", model, "--decode-ids", " ".join(map(str, ids))],
                         stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    return out.decode(errors="replace").rstrip("\ufffd")


def first_difference(model, text, prompt):
    """The first step whose text so far is no beginning of ours; None if ours is the reference's answer."""
    if text.rstrip("\n") == prompt["output"].rstrip("\n"):
        return None
    for step in range(len(prompt["output_ids"])):
        if not text.startswith(pieces(model, prompt["output_ids"][: step + 1])):
            return step
    return None


def block(text):
    return "\n".join("    " + line for line in text.rstrip("\n").split("\n"))


def main():
    result = report.Report("examples")
    page = ["# Examples", "",
            "Written by `make examples`: greedy answers of at most 64 tokens, `troika run --temp 0 -n 64`, default kernel set, beside",
            "transformers in float32 on the same dequantised weights (tests/golden/oracle). Where they part, the reference's two best",
            "logits at that step differ by the margin given.", ""]
    for title, name, golden, more in MODELS:
        model = fetch.path_of(name)
        reference = json.loads((ROOT / f"tests/golden/oracle/{golden}.greedy.json").read_text())
        page += [f"## {title}", ""]
        same = 0
        far = 0
        for prompt in reference["prompts"]:
            text = ours(model, prompt["prompt"], more)
            step = first_difference(model, text, prompt)
            same += step is None
            far += step is not None and prompt["margins"][step] > 0.15
            verdict = ("the same, all %d steps" % len(prompt["output_ids"]) if step is None else
                       f"first difference at step {step} of {len(prompt['output_ids'])}, margin {prompt['margins'][step]:.4f}")
            page += [f"### {prompt['name']}", "", f"Prompt: `{prompt['prompt']}`" if "\n" not in prompt["prompt"]
                     else "Prompt:\n\n" + block(prompt["prompt"]), "", "troika:", "", block(text), ""]
            if step is not None:
                page += ["reference:", "", block(prompt["output"]), ""]
            page += [verdict[0].upper() + verdict[1:] + ".", ""]
        result.add(f"{title}: answers equal to the end", "", same)
        result.add(f"{title}: answers that part where the margin is over 0.15", "== 0", far)
    (ROOT / "docs/EXAMPLES.md").write_text("\n".join(page))
    return result.finish()


if __name__ == "__main__":
    sys.exit(main())
