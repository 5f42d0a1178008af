# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Plain curl: what people type, and what HTTP allows beyond what the other clients do."""
import json
import os
import re
import subprocess
import tempfile
import time

from support_clients import (ASK, CUT, FOREVER, KEY, MODEL, TELL, TOO_LONG, Full, all_checks, answers_in_log, busy_server, is_gone,
                             is_running, key_server, middle_of, plain_server, run_checks)

import support_server

CHAT = "/v1/chat/completions"
GREEDY = {"messages": ASK, "temperature": 0, "max_tokens": 16}
LONG = {"messages": ASK, "max_tokens": FOREVER, "ignore_eos": True}


def curl(server, path, *options, body=None, want=0, stdin=None):
    """(status, headers with lower-case names, body) of one call; the exit code must be `want`."""
    with tempfile.NamedTemporaryFile() as heads:
        command = ["curl", "-q", "-sS", "--noproxy", "*", "-D", heads.name, *options, server.url + path]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
            stdin = body if isinstance(body, bytes) else json.dumps(body).encode()
        done = subprocess.run(command, input=stdin or b"", capture_output=True, timeout=120)
        assert done.returncode == want, (done.returncode, done.stderr)
        last = heads.read().decode().strip().split("\r\n\r\n")[-1].split("\r\n")  # behind any "100 Continue"
    status = int(last[0].split()[1]) if last[0] else 0
    headers = dict((name.lower(), value) for name, value in (line.split(": ", 1) for line in last[1:]))
    return status, headers, done.stdout


def ask(server, body, *options, path=CHAT):
    status, headers, text = curl(server, path, *options, body=body)
    assert headers["content-type"].startswith("application/json"), headers
    return status, json.loads(text)


def text_of(server, body, *options):
    status, answer = ask(server, body, *options)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


def events(server, body, *options):
    status, headers, text = curl(server, CHAT, "-N", *options, body=body | {"stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), (status, headers)
    data = re.findall(r"^data: (.*)$", text.decode(), re.M)
    assert data[-1] == "[DONE]" and text.endswith(b"\n\n"), text[-200:]
    return [json.loads(line) for line in data[:-1]]


def joined(chunks, index=0):
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def check_chat(s):
    status, a = ask(s, GREEDY)
    assert status == 200 and a["object"] == "chat.completion" and a["model"] == MODEL, a
    assert a["choices"][0]["message"]["role"] == "assistant" and len(a["choices"][0]["message"]["content"]) > 5, a
    assert a["usage"]["total_tokens"] == a["usage"]["prompt_tokens"] + a["usage"]["completion_tokens"], a
    assert text_of(s, GREEDY, "-H", "Content-Type: text/plain") == a["choices"][0]["message"]["content"]


def check_chat_printed_line(s):
    """The line that the server prints at its start works as it stands."""
    done = subprocess.run(["bash", "-c", s.curl.replace("curl ", "curl -q -sS --noproxy '*' ", 1)], capture_output=True, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)["choices"][0]["message"]["content"], done


def check_chat_http_1_0(s):
    whole = text_of(s, GREEDY)
    status, headers, text = curl(s, CHAT, "--http1.0", body=GREEDY)
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == whole
    assert "transfer-encoding" not in headers, headers  # HTTP/1.0 knows no chunks
    _, headers, text = curl(s, CHAT, "--http1.0", "-N", body=GREEDY | {"stream": True})
    assert "transfer-encoding" not in headers and headers.get("connection", "close").lower() == "close", headers
    data = re.findall(r"^data: (.*)$", text.decode(), re.M)
    assert joined([json.loads(d) for d in data[:-1]]) == whole and data[-1] == "[DONE]"


def check_chat_expect_continue(s):
    """2 MB behind "Expect: 100-continue": the server says go on at once, not after curl's patience."""
    body = GREEDY | {"metadata": {"filling": "x" * 2_000_000}}
    begun = time.monotonic()
    status, _, text = curl(s, CHAT, "-H", "Expect: 100-continue", "--expect100-timeout", "30", "-v", body=body)
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == text_of(s, GREEDY), text
    assert time.monotonic() - begun < 10


def check_chat_expect_refused(s):
    """Too large by its own word: refused before the body is sent."""
    with tempfile.NamedTemporaryFile() as file:
        os.truncate(file.name, 64 << 20)
        begun = time.monotonic()
        status, _, text = curl(s, CHAT, "-H", "Expect: 100-continue", "--expect100-timeout", "30", "-w", "%{stderr}%{size_upload}",
                               "-X", "POST", "-T", file.name)
    assert status == 413 and json.loads(text)["error"]["type"] == "invalid_request_error", (status, text)
    assert time.monotonic() - begun < 10


def check_chat_chunked_upload(s):
    whole = text_of(s, GREEDY)
    assert text_of(s, GREEDY, "-H", "Transfer-Encoding: chunked") == whole
    big = GREEDY | {"metadata": {"filling": "x" * 500_000}}
    assert text_of(s, big, "-H", "Transfer-Encoding: chunked", "-H", "Expect:") == whole
    status, _ = ask(s, GREEDY, "-H", "Transfer-Encoding: chunked", "-H", "Content-Length: 5")
    assert status == 400, status


def check_chat_head_and_get(s):
    status, headers, text = curl(s, "/health", "-I")
    assert status == 200 and int(headers["content-length"]) > 0, headers
    status, _, text = curl(s, "/health")
    assert status == 200 and json.loads(text)["status"] == "ok"
    status, _, text = curl(s, "/v1/models")
    assert status == 200 and [m["id"] for m in json.loads(text)["data"]] == [MODEL]
    status, headers, _ = curl(s, CHAT)
    assert status == 405 and "POST" in headers["allow"].split(", ") and "GET" not in headers["allow"], headers


def check_chat_keep_alive(s):
    """Three requests over one connection, an error among them."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as good, tempfile.NamedTemporaryFile("w", suffix=".json") as bad:
        json.dump(GREEDY, good)
        json.dump(GREEDY | {"temperature": 9}, bad)
        good.flush()
        bad.flush()
        command = ["curl", "-q", "-sS", "--noproxy", "*"]
        for number, file in enumerate((good, bad, good)):
            command += ["--next", "-sS", "--noproxy", "*"] if number else []
            command += ["-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n", "--data-binary", "@" + file.name, s.url + CHAT]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split("\n")[:3] == ["200 1", "400 0", "200 0"], done


def check_stream(s):
    whole = text_of(s, GREEDY)
    chunks = events(s, GREEDY)
    assert joined(chunks) == whole and len(chunks) > 4 and all("usage" not in c for c in chunks)
    chunks = events(s, GREEDY | {"stream_options": {"include_usage": True}})
    assert joined(chunks) == whole and chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(c["usage"] is None for c in chunks[:-1])


def check_stream_comes_at_once(s):
    """-N shows the first bytes long before the last."""
    body = json.dumps({"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 300}).encode()
    with subprocess.Popen(["curl", "-q", "-sSN", "--noproxy", "*", "--data-binary", "@-", s.url + CHAT], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:
        process.stdin.write(body)
        process.stdin.close()
        begun = time.monotonic()
        line = process.stdout.readline()
        first = time.monotonic() - begun
        rest = process.stdout.read()
        whole = time.monotonic() - begun
    assert b'"role":"assistant"' in line and rest.rstrip().endswith(b"data: [DONE]") and first < whole / 2, (first, whole)


def check_stop(s):
    stop, cut = middle_of(text_of(s, GREEDY))
    for given in (stop, [stop], ["never in here", stop]):
        _, a = ask(s, GREEDY | {"stop": given})
        assert a["choices"][0]["message"]["content"] == cut and a["choices"][0]["finish_reason"] == "stop", (a, cut)
    assert joined(events(s, GREEDY | {"stop": stop})) == cut


def check_logprobs(s):
    asked = GREEDY | {"max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    choice = ask(s, asked)[1]["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes(b for c in content for b in c["bytes"]).decode() == choice["message"]["content"] and len(content) == 6, choice
    assert all(set(c) == {"token", "logprob", "bytes", "top_logprobs"} and len(c["top_logprobs"]) == 3 for c in content), content
    streamed = [t for c in events(s, asked) for t in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == content


def check_seed(s):
    texts = []
    for seed in (7, 8, 2 ** 53 + 1):
        asked = {"messages": TELL, "temperature": 1, "seed": seed, "max_tokens": 16}
        first = text_of(s, asked)
        assert text_of(s, asked) == first == joined(events(s, asked))
        texts.append(first)
    assert len(set(texts)) == 3, texts


def check_n(s):
    asked = {"messages": TELL, "temperature": 1, "seed": 5, "max_tokens": 12, "ignore_eos": True}
    _, one = ask(s, asked)
    for n in (2, 3):
        status, a = ask(s, asked | {"n": n})
        assert status == 200, a
        texts = [c["message"]["content"] for c in a["choices"]]
        assert [c["index"] for c in a["choices"]] == list(range(n)) and len(set(texts)) == n, a
        assert a["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"] and a["usage"]["completion_tokens"] == 12 * n, a["usage"]
        chunks = events(s, asked | {"n": n, "stream_options": {"include_usage": True}})
        assert [joined(chunks, i) for i in range(n)] == texts and chunks[-1]["usage"]["completion_tokens"] == 12 * n, chunks
    status, a = ask(s, asked | {"n": 129})
    assert status == 400 and a["error"]["param"] == "n", a


def check_schema(s):
    schema = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"}, "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"enum": ["dog", "cat", "bird"]}, "minItems": 1, "maxItems": 3}}}
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}}
    for seed in range(3):
        asked = {"messages": CUT, "response_format": form, "temperature": seed / 2, "seed": seed, "max_tokens": 200}
        text = text_of(s, asked)
        got = json.loads(text)
        assert set(got) == {"name", "age", "tags"} and re.fullmatch("[A-Z][a-z]{1,8}", got["name"]) and 0 <= got["age"] <= 30, got
        assert 1 <= len(got["tags"]) <= 3 and set(got["tags"]) <= {"dog", "cat", "bird"}, got
        assert joined(events(s, asked)) == text


def check_errors(s):
    for body, param, code in ((GREEDY | {"temperature": 9}, "temperature", None), (GREEDY | {"n": 0}, "n", None), (b"{", None, None),
                              (GREEDY | {"messages": TOO_LONG}, "messages", "context_length_exceeded"), (b"", None, None)):
        status, a = ask(s, body)
        assert status == 400 and a["error"]["type"] == "invalid_request_error" and a["error"]["message"], a
        assert set(a["error"]) >= {"message", "type", "param", "code"} and a["error"]["param"] == param, a
        assert code is None or a["error"]["code"] == code, a
    status, _, text = curl(s, "/v1/models/gpt-9")
    assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found"
    status, _, text = curl(s, "/nothing")
    assert status == 404 and json.loads(text)["error"]["message"]
    status, _, text = curl(s, CHAT, "--fail-with-body", body=GREEDY | {"temperature": 9}, want=22)
    assert status == 400


def check_errors_key():
    with key_server() as keyed:
        for name in ("Authorization: Bearer ", "authorization: bearer "):
            assert text_of(keyed, GREEDY, "-H", name + KEY)
        for wrong in ([], ["-H", "Authorization: Bearer sk-wrong"], ["-H", "Authorization: Bearer"], ["-H", f"Authorization: Basic {KEY}"],
                      ["-H", f"Authorization: Bearer {KEY} {KEY}"]):
            status, headers, text = curl(keyed, CHAT, *wrong, body=GREEDY)
            assert status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key", (wrong, status, text)
            assert headers["www-authenticate"].startswith("Bearer") and KEY not in text.decode(), headers
        assert curl(keyed, "/v1/models")[0] == 401


def check_errors_key_of_environment():
    support_server.ENVIRONMENT["TROIKA_API_KEY"] = KEY
    try:
        keyed = plain_server()
    finally:
        del support_server.ENVIRONMENT["TROIKA_API_KEY"]
    with keyed:
        assert text_of(keyed, GREEDY, "-H", "Authorization: Bearer " + KEY)
        assert curl(keyed, CHAT, body=GREEDY)[0] == 401
        assert curl(keyed, CHAT, "-H", "Authorization: Bearer " + KEY[1:], body=GREEDY)[0] == 401


def check_errors_queue_full():
    with busy_server() as busy, Full(busy) as full:
        status, headers, text = curl(busy, CHAT, body=GREEDY)
        assert status == 429 and int(headers["retry-after"]) >= 1 and json.loads(text)["error"]["code"] == "queue_full", (status, text)
        before = answers_in_log(busy, "429|gone")
        full.free_after(2.3)
        begun = time.monotonic()
        status, _, text = curl(busy, CHAT, "--retry", "6", "-f", body=GREEDY)  # curl honours Retry-After
        assert status == 200 and time.monotonic() - begun >= 2, (status, time.monotonic() - begun)
        time.sleep(0.2)
        assert 2 <= answers_in_log(busy, "429|gone") - before <= 4


def check_timeouts(s):
    begun = time.monotonic()
    curl(s, CHAT, "--max-time", "0.5", body=LONG, want=28)
    assert 0.4 < time.monotonic() - begun < 3
    is_gone(s)
    curl(s, CHAT, "-N", "--max-time", "0.5", body=LONG | {"stream": True}, want=28)
    is_gone(s)


def check_abort(s):
    for stream in (False, True):
        process = subprocess.Popen(["curl", "-q", "-sSN", "--noproxy", "*", "-d", json.dumps(LONG | {"stream": stream}), s.url + CHAT],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        is_running(s)
        process.terminate()  # as Ctrl-C does
        process.wait(10)
        is_gone(s)


def main():
    with plain_server() as s:
        run_checks(all_checks(globals(), s))  # ends this process


if __name__ == "__main__":
    main()
