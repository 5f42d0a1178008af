# SPDX-License-Identifier: Apache-2.0
"""Hooks for schemathesis, which check_openapi.py starts with SCHEMATHESIS_HOOKS=support_openapi.

Before a call, what would take long is made small (max_tokens, n), and where a valid body breaks one of the rules that JSON Schema cannot
say, it is made to keep it. After a call, refusals of valid bodies that remain and are right are let pass: each by its own words, counted in
$TROIKA_EXCUSED."""
import collections
import copy
import json
import os
import re

import schemathesis

VOCAB = int(os.environ["TROIKA_VOCAB"])
EXCUSED = os.environ["TROIKA_EXCUSED"]
TOKENS, CHOICES = 2, 2

# What a valid body may still be refused for: (what the message says, why the description cannot say it).
REFUSALS = [(re.compile(pattern), why) for pattern, why in (
    (r"^the body is not JSON: .*(too big (negative )?integer|real number overflow|NUL byte in object key)",
     "a limit of JSON in fields that nobody knows"),
    (r"^a stop string has 1 to 256 bytes", "a schema counts characters"),
)]
FORM = re.compile(r"response_format|grammar|schema|keyword|regex|lark|pattern", re.IGNORECASE)


def whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def shrink(body):
    """Bounds the work, of wrong bodies too; a wrong value stays as wrong as it is."""
    for name in ("max_tokens", "max_completion_tokens"):
        if whole(body.get(name)) and (body[name] == -1 or TOKENS < body[name] < 2**32 - 1):
            body[name] = TOKENS
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_tokens"] = TOKENS
    for name in ("n", "best_of"):
        if whole(body.get(name)) and CHOICES < body[name] <= 128:
            body[name] = CHOICES
    if isinstance(body.get("prompt"), list) and 4 < len(body["prompt"]) <= 128:
        body["prompt"] = body["prompt"][:4]
    own = body.get("troika") if isinstance(body.get("troika"), dict) else {}
    for name in ("deadline_ms", "first_deadline_ms"):
        if whole(own.get(name)) and 1 <= own[name] <= 86400000:
            own[name] = 86400000


def keep_rules_of_messages(messages):
    for message in messages:
        for call in message.get("tool_calls") or []:
            if isinstance(call["function"].get("arguments"), str):
                call["function"]["arguments"] = json.dumps({"text": call["function"]["arguments"]})
    if [m["role"] for m in messages[-2:]] == ["assistant"] * 2:
        messages.append({"role": "user", "content": "Go on."})


def keep_rules(body):
    """Of a body that is valid by its schema."""
    if isinstance(body.get("messages"), list):
        keep_rules_of_messages(body["messages"])
    if (body.get("troika") or {}).get("latest"):
        body["prompt_cache_key"] = "a session"
    if body.get("top_logprobs") and not body.get("logprobs"):
        body["logprobs"] = True
    if body.get("echo") and whole(body.get("logprobs")):
        body["echo"] = False
    if body.get("best_of") is not None:
        body["best_of"] = min(body["best_of"], body.get("n") or 1)
    if body.get("tools") and (body.get("response_format") or {}).get("type", "text") != "text":
        body["tool_choice"] = "none"
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(key) % VOCAB): value for key, value in body["logit_bias"].items()}
    for name in ("prompt", "tokens"):
        body.update({name: within_vocabulary(body[name])} if name in body else {})


def within_vocabulary(prompt):
    if isinstance(prompt, list):
        return [within_vocabulary(p) for p in prompt]
    if isinstance(prompt, float):  # 1.0 is an integer to JSON Schema, but no token
        prompt = int(prompt)
    return prompt % VOCAB if whole(prompt) else prompt or "a"


@schemathesis.hook
def before_call(context, case, kwargs):
    if not isinstance(case.body, dict):
        return
    body = copy.deepcopy(case.body)
    if case.operation.path.endswith("completions"):
        shrink(body)
    if (case.meta is None or case.meta.generation.mode.is_positive) and "streams" not in case.operation.path:
        keep_rules(body)
    case.body = body  # always: 1 and 1.0 are equal here, but not for the server


excused = collections.Counter()


def reason(error):
    if error["code"] == "context_length_exceeded":
        return "the context is the model's"
    for pattern, why in REFUSALS:
        if pattern.search(error["message"]):
            return why
    if (error["param"] or "").startswith("response_format") and FORM.search(error["message"]):
        return "a schema or grammar that cannot be enforced"
    return None


@schemathesis.hook
def filter_failure(context, failure, case, response):
    if type(failure).__name__ != "RejectedPositiveData" or response.status_code != 400:
        return True
    why = reason(json.loads(response.content)["error"])
    if why is None:
        return True
    excused[why] += 1
    with open(EXCUSED, "w", encoding="utf-8") as out:
        json.dump(excused, out)
    return False
