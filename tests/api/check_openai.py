# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The server through the official openai client and raw HTTP, with SmolLM2. Case ids (S1, L2 ...) name the reports they come from."""
import concurrent.futures
import json
import pathlib
import signal
import subprocess
import sys
import time

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"messages": ASK, "temperature": 0, "max_tokens": 24}


def text_of(answer):
    return answer[2]["choices"][0]["message"]["content"]


def check_models(s, client):
    listed = client.models.list().data
    assert [m.id for m in listed] == ["smollm2"], listed
    assert client.models.retrieve("smollm2").object == "model"
    try:
        client.models.retrieve("gpt-9")
        raise AssertionError("a model that is not there was found")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"


def check_chat(s, client):
    a = client.chat.completions.create(model="smollm2", messages=ASK, temperature=0, max_tokens=24)
    assert a.choices[0].message.role == "assistant" and len(a.choices[0].message.content) > 5
    assert a.usage.completion_tokens <= 24 and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens
    assert a.choices[0].finish_reason in ("stop", "length")


def check_S1_S7_stream(s, client):
    whole = client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=24)
    chunks = list(client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=24, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role in (None,) for c in chunks[1:])
    assert len({c.id for c in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    joined = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert joined == whole.choices[0].message.content, (joined, whole)
    assert "\ufffd" not in joined


def check_S1_emoji(s, client):
    body = {"messages": [{"role": "user", "content": "Repeat: 😀 日本語 😀"}], "temperature": 0, "max_tokens": 32}
    whole = text_of(s.ask(CHAT, body))
    data, _ = s.events(CHAT, body | {"stream": True})
    joined = "".join(json.loads(d)["choices"][0]["delta"].get("content", "") for d in data[:-1])
    assert joined == whole, (joined, whole)


def check_S6_usage(s, client):
    data, _ = s.events(CHAT, GREEDY | {"stream": True})
    chunks = [json.loads(d) for d in data[:-1]]
    assert data[-1] == "[DONE]" and all(c["choices"] and "usage" not in c for c in chunks)
    data, _ = s.events(CHAT, GREEDY | {"stream": True, "stream_options": {"include_usage": True}})
    chunks = [json.loads(d) for d in data[:-1]]
    assert all(c["usage"] is None and c["choices"] for c in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0


def check_S3_stop(s, client):
    whole = text_of(s.ask(CHAT, GREEDY))
    stop = whole[6:12]  # lies across tokens as it happens
    cut = whole[:whole.index(stop)]
    a = s.ask(CHAT, GREEDY | {"stop": [stop]})
    assert text_of(a) == cut and a[2]["choices"][0]["finish_reason"] == "stop", (a[2], cut)
    data, _ = s.events(CHAT, GREEDY | {"stop": stop, "stream": True})
    chunks = [json.loads(d) for d in data[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == cut
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def check_L1_lengths(s, client):
    for n in (0, 1, 2):
        a = s.ask(CHAT, GREEDY | {"max_tokens": n})
        assert a[0] == 200 and a[2]["usage"]["completion_tokens"] == n, a
        assert a[2]["choices"][0]["finish_reason"] == "length"
        assert (text_of(a) == "") == (n == 0)


def check_L2_too_long(s, client):
    body = {"messages": [{"role": "user", "content": "word " * 1200}]}
    for stream in (False, True):
        status, _, a = s.ask(CHAT, body | {"stream": stream})
        assert status == 400 and a["error"]["code"] == "context_length_exceeded", a
        assert a["error"]["n_ctx"] == 1024 and a["error"]["n_prompt_tokens"] > 1200, a
    status, _, a = s.ask("/v1/completions", {"prompt": [5] * 1025})
    assert status == 400 and a["error"]["n_prompt_tokens"] == 1025, a
    status, _, a = s.ask("/v1/completions", {"prompt": [5] * 1024})
    assert status == 200 and a["choices"][0]["finish_reason"] == "length" and a["usage"]["prompt_tokens"] == 1024, a


def check_L3_context_full(s, client):
    status, _, a = s.ask("/v1/completions", {"prompt": [5] * 1000, "max_tokens": -1, "ignore_eos": True})
    assert status == 200 and a["usage"]["total_tokens"] == 1024 and a["choices"][0]["finish_reason"] == "length", a


def check_L5_logprobs(s, client):
    a = client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3)
    content = a.choices[0].logprobs.content
    assert len(content) == 4
    assert bytes(b for c in content for b in c.bytes).decode() == a.choices[0].message.content
    for c in content:
        assert len(c.top_logprobs) == 3 and c.top_logprobs[0].logprob == c.logprob <= 0
    chunks = list(client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=4, logprobs=True,
                                                 top_logprobs=3, stream=True))
    streamed = [c for chunk in chunks if chunk.choices[0].logprobs for c in chunk.choices[0].logprobs.content]
    assert [c.token for c in streamed] == [c.token for c in content]
    a = s.ask("/v1/completions", {"prompt": "One, two,", "max_tokens": 3, "temperature": 0, "logprobs": 2})[2]["choices"][0]
    p = a["logprobs"]
    assert len(p["tokens"]) == len(p["token_logprobs"]) == len(p["top_logprobs"]) == len(p["text_offset"]) == 3
    assert "".join(p["tokens"]) == a["text"]


def check_L6_seed(s, client):
    body = {"messages": ASK, "max_tokens": 16, "temperature": 1.2, "seed": 7}
    a, b = text_of(s.ask(CHAT, body)), text_of(s.ask(CHAT, body))
    assert a == b
    others = {text_of(s.ask(CHAT, body | {"seed": None})) for _ in range(3)}
    assert len(others) > 1, others


def check_L7_company(s, client):
    alone = text_of(s.ask(CHAT, GREEDY))
    prompts = [f"Tell me about the number {i}." for i in range(7)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rest = [pool.submit(s.ask, CHAT, {"messages": [{"role": "user", "content": p}], "max_tokens": 24}) for p in prompts]
        mine = pool.submit(s.ask, CHAT, GREEDY)
        assert text_of(mine.result()) == alone
        assert all(r.result()[0] == 200 for r in rest)


def check_logit_bias(s, client):
    first = s.ask(CHAT, GREEDY | {"max_tokens": 1, "logprobs": True})[2]["choices"][0]["logprobs"]["content"][0]["token"]
    ids = json.loads(subprocess.run([BINARY, "tokenize", "--json", first], env=ENVIRONMENT, capture_output=True, check=True).stdout)
    assert ids["count"] == 1, ids
    other = s.ask(CHAT, GREEDY | {"max_tokens": 1, "logit_bias": {str(ids["tokens"][0]["id"]): -100}})
    assert text_of(other) != first


def check_errors(s, client):
    for bad, kind in (({"temperature": 9}, "temperature"), ({"n": 2}, "n"), ({"stop": [""]}, "stop")):
        try:
            client.chat.completions.create(model="x", messages=ASK, **bad)
            raise AssertionError(f"{bad} was taken")
        except openai.BadRequestError as error:
            assert error.param == kind and error.type == "invalid_request_error", error
    status, headers, a = s.ask(CHAT, {"messages": ASK, "n": 0, "stream": True})  # S9
    assert status == 400 and headers["Content-Type"] == "application/json" and a["error"]["param"] == "n"
    assert s.ask(CHAT, b'{"messages":[{"role":"user","content":"\xc4\xe3"}]}')[0] == 400  # T8
    assert s.ask(CHAT, b"{")[0] == 400
    status, headers, _ = s.ask(CHAT)
    assert status == 405 and headers["Allow"] == "POST"
    assert s.ask("/v1/nothing")[0] == 404 and s.ask("/health", {})[0] == 405
    assert s.ask("/v1/chat/completions/", {})[0] == 404


def check_H3_gone(s, client):
    long = {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 900}
    connection = s.open_stream(CHAT, long)
    seen = b""
    while b'"content":"' not in seen or b"assistant" not in seen:
        seen += connection.recv(4096)
    connection.close()  # in decode
    assert s.wait_running(0, 5) is not None, "still running after the client has gone"
    connection = s.open_stream(CHAT, long | {"stream": False})
    assert s.wait_running(1, 10) is not None
    connection.close()  # no header was sent yet
    took = s.wait_running(0, 5)
    assert took is not None and took < 1.5, took


def check_metrics_of_answers(s, client):
    a = s.ask(CHAT, GREEDY)[2]
    t = a["timings"]
    assert t["prefill_ms"] > 0 and t["decode_ms"] > 0 and t["preprocess_ms"] > 0 and t["queue_ms"] >= 0
    data, _ = s.events(CHAT, GREEDY | {"stream": True})
    assert json.loads(data[-2])["timings"]["decode_ms"] > 0


def check_T7_one_bos_and_raw_text(s, client):
    a = s.ask("/v1/completions", {"prompt": "hi", "max_tokens": 1})[2]
    b = s.ask("/v1/completions", {"prompt": "<|im_end|>", "max_tokens": 1})[2]
    c = s.ask("/v1/completions", {"prompt": "<|im_end|>", "max_tokens": 1, "parse_special": True})[2]
    assert a["usage"]["prompt_tokens"] == 1 and b["usage"]["prompt_tokens"] > 1 and c["usage"]["prompt_tokens"] == 1, (a, b, c)


def check_H5_queue_full():
    with Server("--parallel", "1", "--queue-max", "1", "--keep-alive", "1", "--context", "1024") as s:
        long = {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 900}
        first = s.open_stream(CHAT, long)
        assert s.wait_running(1) is not None
        second = s.open_stream(CHAT, long)
        seen = b""
        while b": keep-alive" not in seen:  # waits in the queue, and says so
            seen += second.recv(4096)
        assert seen.startswith(b"HTTP/1.1 200") and seen.index(b"text/event-stream") < seen.index(b": keep-alive")
        begun = time.monotonic()
        status, headers, a = s.ask(CHAT, GREEDY)
        assert status == 429 and headers["Retry-After"] == "1" and a["error"]["code"] == "queue_full", (status, a)
        assert time.monotonic() - begun < 2
        first.close()
        second.close()
        assert s.wait_running(0, 10) is not None


def check_drain():
    with Server("--context", "1024") as s:
        stream = s.open_stream(CHAT, {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 20})
        assert s.wait_running(1, 20) is not None
        s.process.send_signal(signal.SIGTERM)
        seen = b""
        while True:
            more = stream.recv(4096)
            if not more:
                break
            seen += more
            if b"data: [DONE]" in seen:
                break
        assert b"data: [DONE]" in seen and s.process.wait(10) == 0
    with Server("--context", "1024") as s:  # a second signal ends what runs, and says so in the stream
        stream = s.open_stream(CHAT, {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 900})
        assert s.wait_running(1, 20) is not None
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        begun = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(10) == 0 and time.monotonic() - begun < 3
        stream.close()


def check_port_in_use():
    with Server() as s:
        second = subprocess.run([BINARY, "serve", "--port", str(s.port)], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1 and f"port {s.port} of 127.0.0.1 is in use" in second.stderr, second


def check_curl_line():
    with Server() as s:
        assert s.curl.startswith(f"curl {s.url}/v1/chat/completions "), s.curl
        ran = subprocess.run(s.curl.replace("curl ", "curl -sS ", 1), shell=True, capture_output=True, text=True, timeout=300)
        assert json.loads(ran.stdout)["choices"][0]["message"]["content"], ran


def main():
    with Server("--context", "1024") as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=300)
        shared = [check_models, check_chat, check_S1_S7_stream, check_S1_emoji, check_S6_usage, check_S3_stop, check_L1_lengths,
                  check_L2_too_long, check_L3_context_full, check_L5_logprobs, check_L6_seed, check_L7_company, check_logit_bias,
                  check_errors, check_H3_gone, check_metrics_of_answers, check_T7_one_bos_and_raw_text]
        run_checks([(check, s, client) for check in shared] +
                   [(check,) for check in (check_H5_queue_full, check_drain, check_port_in_use, check_curl_line)])


if __name__ == "__main__":
    main()
