# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases L1 to L7, L9 and L11: limits, and fields of the API."""
import concurrent.futures
import json
import math
import pathlib
import sys

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import (ASK, CHAT, COMPLETIONS, ENDPOINTS, body_for, choice_text, finish_of, joined, refused, text_both,  # noqa: E402
                           text_of, tokens_of, user)
from support_server import Server, run_checks  # noqa: E402

CONTEXT = 512


def usage_both(s, path, body):
    """The usage of a request asked whole and as a stream."""
    whole = s.ask(path, body)[2]["usage"]
    last = s.chunks(path, body | {"stream_options": {"include_usage": True}})[-1]["usage"]
    assert {k: v for k, v in last.items() if k.endswith("_tokens")} == {k: v for k, v in whole.items() if k.endswith("_tokens")}
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]
    return whole


def check_L1_lengths(s):
    for path in ENDPOINTS:
        prompt = tokens_of(s, messages=ASK) if path == CHAT else tokens_of(s, prompt="One, two,")
        for n in (0, 1, 2):
            for field in ("max_tokens", "max_completion_tokens"):
                body = body_for(path) | {"max_tokens": None, field: n}
                usage = usage_both(s, path, body)
                assert usage["completion_tokens"] == n and usage["prompt_tokens"] == len(prompt), (path, n, usage)
                text, finish = text_both(s, path, body)
                assert finish == "length" and (text == "") == (n == 0), (path, n, text, finish)
        refused(s, path, body_for(path, max_tokens=-2), "max_tokens")
        refused(s, path, body_for(path, max_tokens=1.5), "max_tokens")


def check_L1_minus_one_is_until_full(s):
    for path in ENDPOINTS:
        long = {"messages": user(" word" * 440)} if path == CHAT else {"prompt": " word" * 480}
        answer = s.ask(path, body_for(path, max_tokens=-1, ignore_eos=True) | long)[2]
        assert answer["usage"]["total_tokens"] == CONTEXT and answer["choices"][0]["finish_reason"] == "length", answer["usage"]


def check_L2_longer_than_the_context(s):
    for n in (CONTEXT + 1, CONTEXT + 600):
        error = refused(s, COMPLETIONS, {"prompt": [5] * n}, "prompt", code="context_length_exceeded")
        assert error["n_prompt_tokens"] == n and error["n_ctx"] == CONTEXT, error
        assert str(n) in error["message"] and str(CONTEXT) in error["message"]
    words = CONTEXT + 1 - len(tokens_of(s, messages=user("")))
    long = user(" word" * words)
    assert len(tokens_of(s, messages=long)) == CONTEXT + 1
    error = refused(s, CHAT, {"messages": long}, "messages", code="context_length_exceeded")
    assert error["n_prompt_tokens"] == CONTEXT + 1 and error["n_ctx"] == CONTEXT, error
    error = refused(s, COMPLETIONS, {"prompt": " word" * (CONTEXT + 1)}, "prompt", code="context_length_exceeded")
    assert error["n_prompt_tokens"] == CONTEXT + 1, error
    error = refused(s, CHAT, {"messages": user("x" * 5_000_000)}, "messages", code="context_length_exceeded")  # told without tokenizing it
    assert error["n_prompt_tokens"] > CONTEXT and error["n_ctx"] == CONTEXT, error


def check_L2_exactly_the_context(s):
    long = user(" word" * (CONTEXT - len(tokens_of(s, messages=user("")))))
    for path, body in ((CHAT, {"messages": long}), (COMPLETIONS, {"prompt": [5] * CONTEXT})):
        assert text_both(s, path, body) == ("", "length")
        usage = usage_both(s, path, body)
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (CONTEXT, 0), usage
    one = s.ask(COMPLETIONS, {"prompt": [5] * (CONTEXT - 1), "ignore_eos": True})[2]
    assert one["usage"]["completion_tokens"] == 1 and one["choices"][0]["finish_reason"] == "length", one


def check_L3_ends_where_the_context_ends(s):
    body = {"messages": user("Tell me a story. " * 90), "ignore_eos": True, "temperature": 0}  # no max_tokens
    usage = usage_both(s, CHAT, body)
    assert usage["total_tokens"] == CONTEXT and usage["completion_tokens"] > 20, usage
    assert text_both(s, CHAT, body)[1] == "length"
    usage = usage_both(s, COMPLETIONS, {"prompt": [5] * (CONTEXT - 6), "ignore_eos": True})  # its 16 do not fit
    assert usage["completion_tokens"] == 6, usage
    assert usage_both(s, COMPLETIONS, {"prompt": "One,", "ignore_eos": True})["completion_tokens"] == 16


def check_L4_nulls_are_absent(s):
    sent = {"stop": None, "logit_bias": {}, "user": "", "n": 1, "max_tokens": None, "tools": [], "response_format": None}
    body = {"messages": ASK, "temperature": 0, "max_completion_tokens": 24}
    plain = s.ask(CHAT, body)
    assert s.ask(CHAT, body | sent)[2]["choices"] == plain[2]["choices"]
    assert text_both(s, CHAT, body | sent)[0] == text_of(plain)
    fields = ("stop", "logit_bias", "user", "n", "best_of", "max_completion_tokens", "tools", "tool_choice", "response_format", "top_p",
              "top_k", "min_p", "frequency_penalty", "presence_penalty", "repeat_penalty", "repetition_penalty", "repeat_last_n", "seed",
              "logprobs", "top_logprobs", "ignore_eos", "stream_options", "echo", "suffix", "parse_special", "model", "metadata",
              "functions", "function_call", "parallel_tool_calls", "service_tier", "store", "modalities", "prediction", "audio")
    for path in ENDPOINTS:
        nulls = body_for(path) | dict.fromkeys(fields)
        assert s.ask(path, nulls | {"stream": None})[2]["choices"] == s.ask(path, body_for(path))[2]["choices"]
        assert text_both(s, path, nulls) == text_both(s, path, body_for(path))
    message = dict.fromkeys(("name", "tool_calls", "tool_call_id", "refusal", "audio")) | ASK[0]
    assert s.ask(CHAT, {"messages": [message], "max_tokens": 1})[0] == 200


def chat_logprobs(choices, wanted, top):
    content = [t for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    assert len(content) == wanted, content
    for t in content:
        assert set(t) == {"token", "logprob", "bytes", "top_logprobs"} and len(t["top_logprobs"]) == top, t
        assert t["logprob"] <= 0 and bytes(t["bytes"]).decode(errors="replace") == t["token"]
        best = [u["logprob"] for u in t["top_logprobs"]]
        assert best == sorted(best, reverse=True) and sum(map(math.exp, best)) < 1.0001, best
        assert all(set(u) == {"token", "logprob", "bytes"} for u in t["top_logprobs"])
        assert not top or (t["top_logprobs"][0]["token"], best[0]) == (t["token"], t["logprob"])  # temperature 0
    return content


def check_L5_chat_logprobs(s):
    for top in (0, 3, 20):
        body = body_for(CHAT, max_tokens=4, logprobs=True, top_logprobs=top)
        whole = s.ask(CHAT, body)
        content = chat_logprobs(whole[2]["choices"], 4, top)
        assert bytes(b for t in content for b in t["bytes"]).decode() == text_of(whole)
        assert chat_logprobs([c for chunk in s.chunks(CHAT, body) for c in chunk["choices"]], 4, top) == content
    assert s.ask(CHAT, body_for(CHAT, max_tokens=2))[2]["choices"][0]["logprobs"] is None
    refused(s, CHAT, body_for(CHAT, top_logprobs=3), "top_logprobs")
    refused(s, CHAT, body_for(CHAT, logprobs=False, top_logprobs=3), "top_logprobs")
    refused(s, CHAT, body_for(CHAT, logprobs=True, top_logprobs=21), "top_logprobs")
    refused(s, CHAT, body_for(CHAT, logprobs=3), "logprobs")
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=300)
    a = client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3)
    assert [t.logprob for t in a.choices[0].logprobs.content] == [t["logprob"] for t in content]


def check_L5_completions_logprobs(s):
    for top in (0, 1, 2):
        body = body_for(COMPLETIONS, max_tokens=4, logprobs=top)
        whole = s.ask(COMPLETIONS, body)
        parts = whole[2]["choices"][0]["logprobs"]
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        assert set(parts) == set(names) and all(len(parts[name]) == 4 for name in names), parts
        assert "".join(parts["tokens"]) == text_of(whole) and all(p <= 0 for p in parts["token_logprobs"])
        assert all(len(t) == top for t in parts["top_logprobs"]), parts
        for offset, token in zip(parts["text_offset"], parts["tokens"]):
            assert text_of(whole)[offset:offset + len(token)] == token, parts
        if top:
            assert all(t[token] == p for t, token, p in zip(parts["top_logprobs"], parts["tokens"], parts["token_logprobs"]))
        streamed = [c["logprobs"] for chunk in s.chunks(COMPLETIONS, body) for c in chunk["choices"] if c["logprobs"]]
        assert {name: [v for part in streamed for v in part[name]] for name in names} == parts, streamed
    refused(s, COMPLETIONS, body_for(COMPLETIONS, logprobs=21), "logprobs")


def check_L5_together_with_tools(s):
    """What is asked for is there, with tools and stream too."""
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]
    body = body_for(CHAT, max_tokens=3, logprobs=True, top_logprobs=1, tools=tools)
    assert chat_logprobs(s.ask(CHAT, body)[2]["choices"], 3, 1)
    assert chat_logprobs([c for chunk in s.chunks(CHAT, body) for c in chunk["choices"]], 3, 1)


def check_L6_seeds(s):
    texts = {}
    for path in ENDPOINTS:
        body = body_for(path, temperature=1.5, max_tokens=12, ignore_eos=True)
        for seed in (7, -1, 2**31, 2**53 + 1, 2**63 - 1, -2**63):
            whole = text_of(s.ask(path, body | {"seed": seed}))
            assert text_of(s.ask(path, body | {"seed": seed})) == whole == joined(s.chunks(path, body | {"seed": seed})), seed
            texts[path, seed] = whole
        near = {text_of(s.ask(path, body | {"seed": seed})) for seed in (2**53, 7 + 2**32, 2**31 - 1)}
        assert not near & {texts[path, seed] for seed in (7, 2**53 + 1, 2**31)}, "a seed was cut or rounded"
        drawn = {text_of(s.ask(path, body | {"seed": seed})) for seed in (None, None, None)}
        assert len(drawn) == 3, drawn
        assert len(set(texts.values())) == len(texts), texts


def check_L6_seeds_that_are_none(s):
    for path in ENDPOINTS:
        body = body_for(path, temperature=1.5, max_tokens=8, ignore_eos=True)
        for seed in ("42", 1.5, True, [1], {}, 1e300, float(2**53 + 2), -1e19):
            refused(s, path, body | {"seed": seed}, "seed")
        refused(s, path, body | {"seed": 2**63})  # no integer for JSON's reader
        assert text_of(s.ask(path, body | {"seed": 7.0})) == text_of(s.ask(path, body | {"seed": 7}))  # an integer, as JSON Schema counts
        inexact = json.dumps(body | {"seed": 7.5}).replace("7.5", f"{2**53 + 1}.0").encode()  # its reader makes 2^53 of it
        assert s.ask(path, inexact)[0] == 400


def check_L7_alone_or_in_company(s):
    bodies = [body_for(path, max_tokens=24) for path in ENDPOINTS]
    alone = [text_of(s.ask(path, body)) for path, body in zip(ENDPOINTS, bodies)]
    others = [{"messages": user(f"Tell me about the number {i}." + " So" * (7 * i)), "max_tokens": 24} for i in range(7)]
    others[3] = bodies[0] | {"temperature": 1}  # one shares its prompt
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        rest = [pool.submit(s.ask, CHAT, body) for body in others]
        mine = [pool.submit(s.ask, path, body) for path, body in zip(ENDPOINTS, bodies)]
        assert [text_of(m.result()) for m in mine] == alone
        assert all(r.result()[0] == 200 for r in rest)
    three = s.ask(CHAT, bodies[0] | {"n": 3})
    assert [text_of(three, i) for i in range(3)] == [alone[0]] * 3


def check_L9_shapes_of_a_prompt(s):
    body = body_for(COMPLETIONS, max_tokens=6)
    a, b = (text_of(s.ask(COMPLETIONS, body | {"prompt": p})) for p in ("One, two,", "The capital of France"))
    one, two = (tokens_of(s, prompt=p) for p in ("One, two,", "The capital of France"))
    assert text_of(s.ask(COMPLETIONS, body | {"prompt": one})) == a
    for prompt in (["One, two,", "The capital of France"], [one, two], ["One, two,", two]):
        answer = s.ask(COMPLETIONS, body | {"prompt": prompt})
        assert [(c["index"], choice_text(c)) for c in answer[2]["choices"]] == [(0, a), (1, b)], answer
        assert answer[2]["usage"]["prompt_tokens"] == len(one) + len(two) and answer[2]["usage"]["completion_tokens"] == 12
        chunks = s.chunks(COMPLETIONS, body | {"prompt": prompt})
        assert [joined(chunks, i) for i in (0, 1)] == [a, b] and all(finish_of(chunks, i) == "length" for i in (0, 1))
    answer = s.ask(COMPLETIONS, body | {"prompt": ["One, two,", "The capital of France"], "n": 2})
    assert [text_of(answer, i) for i in range(4)] == [a, a, b, b]
    for prompt in (["One, two,"], [one]):
        assert text_of(s.ask(COMPLETIONS, body | {"prompt": prompt})) == a
    answer = s.ask(COMPLETIONS, body | {"prompt": [[1, 2], [3]]})
    assert [c["index"] for c in answer[2]["choices"]] == [0, 1] and answer[2]["usage"]["prompt_tokens"] == 3, answer
    for prompt, param in (([], "prompt"), (None, "prompt"), ({}, "prompt"), (7, "prompt"), ([[]], "prompt[0]"), ([[1], []], "prompt[1]"),
                          (["a", 7], "prompt[1]"), ([None], "prompt[0]"), ([1, "a"], "prompt"), ([10**9], "prompt"), ([-1], "prompt"),
                          ([1.5], "prompt[0]")):
        refused(s, COMPLETIONS, body | {"prompt": prompt}, param)
    refused(s, COMPLETIONS, {"max_tokens": 1}, "prompt")
    refused(s, COMPLETIONS, body | {"prompt": ["a"] * 129}, "prompt")


def check_L9_empty_prompt(s):
    """The begin token alone, also where the model puts none before other texts (SmolLM2), as docs/API.md has it."""
    with Server("--model", "gemma3", "--context", "64", "--parallel", "2") as gemma:
        for server, begin in ((s, 1), (gemma, 2)):
            body = body_for(COMPLETIONS, prompt="", max_tokens=4, ignore_eos=True)
            answer = server.ask(COMPLETIONS, body)
            assert answer[0] == 200 and answer[2]["usage"]["prompt_tokens"] == 1, answer
            assert text_of(answer) == text_of(server.ask(COMPLETIONS, body | {"prompt": [begin]}))
            assert text_of(answer) == joined(server.chunks(COMPLETIONS, body))
            two = server.ask(COMPLETIONS, body | {"prompt": ["", "One"]})
            assert text_of(two) == text_of(answer) and len(two[2]["choices"]) == 2, two


def check_L11_keys(s):
    whole = {CHAT: {"index", "message", "logprobs", "finish_reason"}, COMPLETIONS: {"index", "text", "logprobs", "finish_reason"}}
    head = {"id", "object", "created", "model", "service_tier", "choices"}
    for path, kind in ((CHAT, "chat.completion"), (COMPLETIONS, "text_completion")):
        status, headers, answer = s.ask(path, body_for(path, max_tokens=2))
        assert status == 200 and headers["Content-Type"] == "application/json"
        assert set(answer) == head | {"usage", "timings", "troika"} and answer["object"] == kind, answer
        assert all(set(c) == whole[path] for c in answer["choices"]), answer
        assert isinstance(answer["created"], int) and answer["model"] == "smollm2" and answer["id"] == headers["x-request-id"], answer
        assert set(answer["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
        if path == CHAT:
            assert set(answer["choices"][0]["message"]) == {"role", "content", "refusal"}, answer
        parts = {"index", "delta" if path == CHAT else "text", "logprobs", "finish_reason"}
        chunks = s.chunks(path, body_for(path, max_tokens=2))
        assert all(set(c) == head for c in chunks[:-1]) and set(chunks[-1]) == head | {"timings", "troika"}, chunks
        assert all(set(choice) == parts for c in chunks for choice in c["choices"]), chunks


def check_L11_models(s):
    status, _, listed = s.ask("/v1/models")
    assert status == 200 and set(listed) == {"object", "data"} and listed["object"] == "list" and len(listed["data"]) == 1, listed
    model = listed["data"][0]
    assert set(model) == {"id", "object", "created", "owned_by", "meta"} and model["id"] == "smollm2" and model["object"] == "model", model
    assert isinstance(model["created"], int) and isinstance(model["owned_by"], str)
    assert s.ask("/v1/models/smollm2")[2] == model
    status, _, answer = s.ask("/v1/models/gpt-9")
    assert status == 404 and set(answer["error"]) == {"message", "type", "param", "code"} and answer["error"]["code"] == "model_not_found"
    assert json.dumps(answer).isascii()


def main():
    with Server("--context", str(CONTEXT), "--parallel", "16") as s:
        run_checks([(check, s) for check in (
            check_L1_lengths, check_L1_minus_one_is_until_full, check_L2_longer_than_the_context, check_L2_exactly_the_context,
            check_L3_ends_where_the_context_ends, check_L4_nulls_are_absent, check_L5_chat_logprobs, check_L5_completions_logprobs,
            check_L5_together_with_tools, check_L6_seeds, check_L6_seeds_that_are_none, check_L7_alone_or_in_company,
            check_L9_shapes_of_a_prompt, check_L9_empty_prompt, check_L11_keys, check_L11_models)])


if __name__ == "__main__":
    main()
