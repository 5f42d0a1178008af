# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases H1 to H7: HTTP as clients, proxies, browsers and attackers speak it."""
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import resource
import socket
import struct
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import ASK, CHAT, COMPLETIONS, ENDPOINTS, body_for, is_json, text_of, tokens_of, user  # noqa: E402
from support_server import Server, run_checks  # noqa: E402

LONG = {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 900}
JSON = {"Content-Type": "application/json"}


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_until(connection, *words):
    seen = b""
    while not all(word in seen for word in words):
        more = connection.recv(4096)
        assert more, seen
        seen += more
    return seen


# --- H1: chunked requests

CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"


def in_chunks(data, sizes, step=10):
    parts = [data[i:i + step] for i in range(0, len(data), step)]
    return b"".join(b"%s\r\n%s\r\n" % ((sizes[i % len(sizes)] % len(part)).encode(), part) for i, part in enumerate(parts))


def check_H1_chunks(s):
    body = body_for(CHAT, max_tokens=4)
    wanted = text_of(s.ask(CHAT, body))
    data = json.dumps(body).encode()
    chunks = in_chunks(data, ("%X;x=y", "%x", "00%x"))
    for tail in (b"0\r\n\r\n", b"0;last=1\r\n\r\n", b"0\r\nX-Trailer: v\r\nX-Other: w\r\n\r\n"):
        sent = CHUNKED + b"\r\n" + chunks + tail
        for step in (len(sent), 7):
            status, _, answer = s.raw(*(sent[i:i + step] for i in range(0, len(sent), step)), pause=0.001)
            assert status == 200, (status, answer, tail, step)
            assert json.loads(answer)["choices"][0]["message"]["content"] == wanted
    assert s.raw(CHUNKED + b"\r\n" + in_chunks(data, ('%x;a="b;c";d',)) + b"0\r\n\r\n")[0] == 200  # legal, if seldom


def check_H1_next_request_of_the_connection(s):
    data = json.dumps(body_for(CHAT, max_tokens=1)).encode()
    sent = CHUNKED + b"\r\n" + in_chunks(data, ("%x",)) + b"0\r\nX-Trailer: v\r\n\r\n"
    sent += b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as connection:
        connection.sendall(sent)
        seen = b""
        while more := connection.recv(65536):
            seen += more
    assert seen.count(b"HTTP/1.1 200") == 2 and b'"status":"ok"' in seen, seen


def check_H1_two_lengths(s):
    data = json.dumps(body_for(CHAT, max_tokens=1)).encode()
    chunks = in_chunks(data, ("%x",)) + b"0\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(data)
    plain = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n"
    for head, sent in ((CHUNKED + length, chunks), (CHUNKED + b"Content-Length: 0\r\n", chunks), (plain + length + length, data),
                       (plain + length + b"Transfer-Encoding: chunked\r\n", data),
                       (plain + b"Transfer-Encoding: gzip, chunked\r\n", chunks),
                       (plain + b"Transfer-Encoding: identity\r\n", data), (CHUNKED + b"Transfer-Encoding: chunked\r\n", chunks),
                       (plain + b"Transfer-Encoding : chunked\r\n", chunks)):
        status, headers, answer = s.raw(head + b"\r\n" + sent)
        assert status == 400 and headers["Connection"] == "close", (head, status, answer)
        assert json.loads(answer)["error"]["type"] == "invalid_request_error", answer
    for length in (b"+5", b"0x10", b"5, 5", b"-1", b""):  # the library's own page
        status, headers, answer = s.raw(plain + b"Content-Length: " + length + b"\r\n\r\n" + data)
        assert status == 400, (length, status, answer)


def check_H1_sizes_that_are_none(s):
    for size in (b"zz", b"-1", b"0x5", b"", b" 5", b"5 5", b"FFFFFFFFFFFFFFFFFF", b"5;\x01"):
        try:
            status, _, answer = s.raw(CHUNKED + b"\r\n" + size + b"\r\n12345\r\n0\r\n\r\n", timeout=10)
            assert status in (400, 413), (size, status, answer)
        except (ConnectionResetError, http.client.RemoteDisconnected) as error:
            raise AssertionError(f"size {size!r}: closed without an answer") from error
    status, _, answer = s.raw(CHUNKED + b"\r\n5\r\n1234567\r\n0\r\n\r\n", timeout=10)  # more data than it says
    assert status == 400, answer
    assert s.ask("/health")[2]["running"] == 0


# --- H2: browsers

def send(s, path, headers=None, body=None, method=None):
    request = urllib.request.Request(s.url + path, None if body is None else json.dumps(body).encode(), headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def check_H2_browser_of_this_machine(keyed):
    origin = {"Origin": "http://localhost:5173"}
    key = {"Authorization": "Bearer secret-1"}
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
    for path in ENDPOINTS + ("/v1/models", "/tokenize", "/health"):
        status, headers, body = send(keyed, path, origin | ask, method="OPTIONS")  # browsers never send the key here
        assert status == 204 and body == b"", (path, status, body)
        assert headers["Access-Control-Allow-Origin"] == origin["Origin"]
        allowed = {h.strip() for h in headers["Access-Control-Allow-Headers"].split(",")}
        assert {"authorization", "content-type", "x-stainless-os"} <= allowed, allowed
        assert {"GET", "POST"} <= {m.strip() for m in headers["Access-Control-Allow-Methods"].split(",")}
    body = body_for(CHAT, max_tokens=2)
    for more, sent, wanted in ((key, body, 200), (key, body | {"stream": True}, 200), ({}, body, 401), (key, body | {"n": 0}, 400),
                               (key, body | {"stream": True, "n": 0}, 400)):
        status, headers, answer = send(keyed, CHAT, origin | JSON | more, sent)
        assert status == wanted and headers["Access-Control-Allow-Origin"] == origin["Origin"], (status, headers, answer)
        assert "Origin" in headers["Vary"], headers
        if wanted == 200:
            assert "x-request-id" in headers["Access-Control-Expose-Headers"]
            assert (headers["Content-Type"].startswith("text/event-stream")) == ("stream" in sent)
    for path, wanted in (("/v1/models", 200), ("/nothing", 404), (CHAT, 405)):
        status, headers, _ = send(keyed, path, origin | key)
        assert status == wanted and headers["Access-Control-Allow-Origin"] == origin["Origin"], (path, status, headers)
    for name in ("http://127.0.0.1:3000", "https://localhost", "http://[::1]:80", "http://app.localhost:1"):
        assert send(keyed, "/health", {"Origin": name})[1]["Access-Control-Allow-Origin"] == name, name
    assert send(keyed, "/health")[1]["Access-Control-Allow-Origin"] is None  # no browser, no header


def check_H2_foreign_origins(keyed):
    key, body = {"Authorization": "Bearer secret-1"}, body_for(CHAT, max_tokens=1)
    for name in ("https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example",
                 "http://evil.example:8080", "localhost", "file://", "http://localhost@evil.example",
                 "http://" + "a" * 300 + ".localhost.example"):
        for headers, sent, method in ((key | JSON, body, "POST"), (JSON, body, "POST"), ({}, None, "GET"),
                                      ({"Access-Control-Request-Method": "POST"}, None, "OPTIONS")):
            path = "/health" if method == "GET" else CHAT
            status, answered, answer = send(keyed, path, headers | {"Origin": name}, sent, method)
            assert status == 403 and answered["Access-Control-Allow-Origin"] is None, (name, method, status, answered)
            assert json.loads(answer)["error"]["code"] == "origin_not_allowed"
    assert keyed.metrics_with(key)["troika_prompt_tokens_computed_total"] >= 0


def check_H2_allowed_by_option():
    with Server("--context", "256", "--parallel", "2", "--cors-origin", "https://app.example,http://10.0.0.7:81") as s:
        for name in ("https://app.example", "http://10.0.0.7:81", "http://localhost:1"):
            status, headers, _ = send(s, CHAT, {"Origin": name} | JSON, body_for(CHAT, max_tokens=1, stream=True))
            assert status == 200 and headers["Access-Control-Allow-Origin"] == name, (name, status)
        for name in ("http://app.example", "https://app.example:444", "https://app.example.evil"):
            assert send(s, "/health", {"Origin": name})[0] == 403, name


# --- H3: clients that leave

def check_H3_queued_and_gone_never_runs():
    with Server("--context", "1024", "--parallel", "1", "--keep-alive", "1") as s:
        a = s.open_stream(CHAT, LONG)
        read_until(a, b'"content":"', b"assistant")
        b = s.open_stream(CHAT, LONG | {"messages": user("Quite another prompt. " * 80)})
        read_until(b, b": keep-alive")  # it waits
        assert s.ask("/health")[2]["queued"] == 1
        reset(b)
        begun = time.monotonic()
        while s.ask("/health")[2]["queued"]:
            assert time.monotonic() - begun < 2, "still queued after its client has gone"
            time.sleep(0.01)
        assert s.ask("/health")[2]["running"] == 1  # and A was left alone
        read_until(a, b'"content":"')
        reset(a)
        c = s.ask(CHAT, body_for(CHAT, max_tokens=4, messages=user("Say hello.")))
        assert c[0] == 200
        usage = c[2]["usage"]
        now = s.metrics()
        wanted = len(tokens_of(s, messages=ASK)) + usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        computed = now["troika_prompt_tokens_computed_total"]
        assert computed == wanted, f"{computed} tokens of prompts were computed, those of A and C are {wanted}"
        assert [now['troika_requests_total{endpoint="chat",code="%d"}' % code] for code in (499, 200)] == [2, 1]
        lines = [line for line in s.log if " gone " in line]
        assert len(lines) == 2 and " generated 0 " in lines[0] and " prefill 0.0 decode 0.0 " in lines[0], s.log


def check_H3_gone_in_prefill():
    """Within one span of the prompt, long before its end, and of a stream as of a whole answer."""
    with Server("--parallel", "2") as s:
        words = "The quick brown fox jumps over the lazy dog again and again. " * 550  # about 7,000 tokens, many seconds
        for stream in (True, False):
            connection = s.open_stream(CHAT, LONG | {"messages": user(f"{stream} {words}"), "stream": stream})
            assert s.wait_running(1, 20) is not None
            time.sleep(0.3)
            reset(connection)
            took = s.wait_running(0, 20)
            assert took is not None and took < 2, took
            launches = s.metrics()["troika_launches_total"]
            time.sleep(0.3)
            assert s.metrics()["troika_launches_total"] == launches, "it is still computed"
        connection = s.open_stream(CHAT, LONG | {"messages": user("half " + words)})
        assert s.wait_running(1, 20) is not None
        connection.shutdown(socket.SHUT_WR)  # counts as gone
        assert s.wait_running(0, 2) is not None, "half closed, and still running"
        connection.close()


def check_H3_gone_before_and_after_the_first_token(s):
    for stream in (True, False):
        connection = s.open_stream(CHAT, LONG | {"stream": stream})
        assert s.wait_running(1, 20) is not None
        reset(connection)  # no token was sent
        assert s.wait_running(0, 2) is not None, stream
    connection = s.open_stream(CHAT, LONG | {"n": 3})
    read_until(connection, b'"index":2,"delta":{"content":"')
    reset(connection)
    assert s.wait_running(0, 2) is not None, "some of its choices run on"


# --- H4: control paths

def timed(s, path):
    begun = time.monotonic()
    with urllib.request.urlopen(s.url + path, timeout=30) as answer:
        answer.read()
    return time.monotonic() - begun


def check_H4_control_under_load():
    """More open streams than any pool has threads, then a long prefill too: /health and /metrics answer at once."""
    options = ("--context", "4096", "--parallel", "8", "--queue-max", "64", "--ttft-target", "1e7")
    with Server(*options) as s, contextlib.ExitStack() as open_streams:
        streams = [open_streams.enter_context(s.open_stream(CHAT, LONG)) for _ in range(24)]
        assert s.wait_running(8) is not None
        end = time.monotonic() + 10  # their first steps may still be under way
        while (queued := s.ask("/health")[2]["queued"]) < 16 and time.monotonic() < end:
            time.sleep(0.01)
        assert queued == 16, queued
        worst = max(timed(s, path) for _ in range(20) for path in ("/health", "/metrics", "/v1/models"))
        assert worst < 1, worst
        for connection in streams:
            reset(connection)
        assert s.wait_running(0, 10) is not None
        prompts = [user(f"{i} " + "So many words that it takes its time. " * 400) for i in range(2)]  # equal: computed once
        streams = [open_streams.enter_context(s.open_stream(CHAT, {"messages": p, "stream": True, "max_tokens": 1})) for p in prompts]
        for stream in streams:
            head = read_until(stream, b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
        end, took = time.monotonic() + 10, []
        while not s.ask("/health")[2]["running"] and time.monotonic() < end:
            time.sleep(0.01)
        while s.ask("/health")[2]["running"] and len(took) < 200:
            took += [timed(s, "/health"), timed(s, "/metrics")]
        assert len(took) > 20 and max(took) < 1, (len(took), max(took))


# --- H5: a full queue

def check_H5_six_requests():
    with Server("--context", "1024", "--parallel", "1", "--queue-max", "1") as s:
        body = {"messages": ASK, "ignore_eos": True, "max_tokens": 60}

        def one(path):
            begun = time.monotonic()
            return s.ask(path, body if path == CHAT else body | {"prompt": "One"}) + (time.monotonic() - begun,)

        told = set()
        for path in ENDPOINTS:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers = [a.result() for a in [pool.submit(one, path) for _ in range(6)]]
            refused = [a for a in answers if a[0] == 429]
            assert len(refused) == 4 and sorted(a[0] for a in answers) == [200] * 2 + [429] * 4, [a[0] for a in answers]
            for _, headers, answer, took in refused:
                seconds, ms = int(headers["Retry-After"]), int(headers["retry-after-ms"])
                assert 1 <= seconds <= 60 and 1000 <= ms <= 60000 and abs(1000 * seconds - ms) <= 500, (seconds, ms)
                told.add(ms)
                assert answer["error"]["code"] == "queue_full" and took < 2, (answer, took)
                assert answer["error"]["type"] == "rate_limit_error"
            assert all(a[2]["usage"]["completion_tokens"] == 60 for a in answers if a[0] == 200)
        assert len(told) >= 5, told  # of 8: they are spread


def check_H5_official_client_waits():
    with Server("--context", "1024", "--parallel", "1", "--queue-max", "1", "--keep-alive", "1") as s:
        first = s.open_stream(CHAT, LONG)
        assert s.wait_running(1) is not None
        second = s.open_stream(CHAT, LONG)
        seen = read_until(second, b": keep-alive")  # waits in the queue, and says so
        assert seen.startswith(b"HTTP/1.1 200") and seen.index(b"text/event-stream") < seen.index(b": keep-alive")
        for stream in (True, False):
            status, headers, a = s.ask(CHAT, body_for(CHAT, stream=stream))
            assert status == 429 and headers["Content-Type"] == "application/json" and a["error"]["code"] == "queue_full", (status, a)
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=60)
        try:
            client.chat.completions.create(model="x", messages=ASK)
            raise AssertionError("the queue is full, and it was taken")
        except openai.RateLimitError as error:
            assert error.code == "queue_full" and 1 <= int(error.response.headers["retry-after"]) <= 60
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            later = pool.submit(client.with_options(max_retries=3).chat.completions.create, model="x", messages=ASK, max_tokens=2)
            time.sleep(0.5)
            reset(first)
            reset(second)
            assert later.result().usage.completion_tokens <= 2
        assert sum(" 429 " in line for line in s.log) >= 4


# --- H6: too slow, too large, too many

def slowly(port, first, rest, result):
    """One byte a second; appends (seconds until its answer or end, bytes)."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.9) as connection:
        begun, seen = time.monotonic(), b""
        connection.sendall(first)
        for i in range(12):
            try:
                more = connection.recv(65536)
                seen += more
                if not more:
                    break
            except TimeoutError:
                with contextlib.suppress(OSError):
                    connection.sendall(rest[i:i + 1])
            except ConnectionResetError:
                break
        result.append((time.monotonic() - begun, seen))


def check_H6_slow_requests():
    with Server("--context", "256", "--parallel", "2", "--request-time", "2") as s:
        starts = ((b"POST /v1/chat/comp", b"letions HTTP/1.1\r\n"), (b"GET /health HTTP/1.1\r\nHost: t\r\nX-A", b": abcdefghijk"),
                  (b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n", b'{"messages":['),
                  (CHUNKED + b"\r\n", b"5\r\nabcdefghijk"), (b"", b""))
        results = [[] for _ in starts]
        with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
            running = [pool.submit(slowly, s.port, first, rest, result) for (first, rest), result in zip(starts, results)]
            while not all(r.done() for r in running):
                begun = time.monotonic()
                assert s.ask("/health")[0] == 200 and time.monotonic() - begun < 1
                time.sleep(0.1)
            for r in running:
                r.result()
        for (first, _), [(took, seen)] in zip(starts, results):
            assert 1.5 < took < 5, (first, took)
            if first:
                assert seen.startswith(b"HTTP/1.1 408 ") and is_json(seen.partition(b"\r\n\r\n")[2]), (first, seen)
            else:
                assert seen == b"", seen  # a connection that never said anything is just closed
        assert s.ask(CHAT, body_for(CHAT, max_tokens=1))[0] == 200


def check_H6_large_headers(s):
    for size, wanted in ((8 * 1024, (200,)), (40 * 1024, (431,)), (64 * 1024, (431,)), (1024 * 1024, (431,))):
        status, _, answer = s.raw(b"GET /health HTTP/1.1\r\nHost: t\r\nX-Big: " + b"a" * size + b"\r\n\r\n")
        assert status in wanted, (size, status, answer)
    many = b"".join(b"X-%d: v\r\n" % i for i in range(8000))
    assert s.raw(b"GET /health HTTP/1.1\r\nHost: t\r\n" + many + b"\r\n")[0] == 431
    status, _, answer = s.raw(b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: t\r\n\r\n")
    assert status in (414, 431), (status, answer)
    assert s.ask("/health")[0] == 200


def check_H6_large_bodies():
    with Server("--context", "256", "--parallel", "2", "--body-max", "64K") as s:
        line = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n"
        data = json.dumps(body_for(CHAT, max_tokens=1) | {"metadata": "x" * 63 * 1024}).encode()
        assert len(data) < 65536
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        assert s.raw(line + b"Content-Length: %d\r\n\r\n" % len(data) + data)[0] == 200
        for head, body in ((b"Content-Length: 65537\r\n", b""), (b"Content-Length: 99999999999\r\n", b"x" * 100000),
                           (b"Content-Length: 70000\r\nExpect: 100-continue\r\n", b""), (b"Content-Length: 70000\r\n", b" " * 70000),
                           (b"Transfer-Encoding: chunked\r\n", chunk * 17 + b"0\r\n\r\n"),
                           (b"Transfer-Encoding: chunked\r\n", chunk * 1000 + b"0\r\n\r\n")):
            begun = time.monotonic()
            status, _, answer = s.raw(line + head + b"\r\n", body)
            assert status == 413 and json.loads(answer)["error"]["type"] == "invalid_request_error", (head, status, answer)
            assert time.monotonic() - begun < 5
        before = s.metrics()["troika_resident_bytes"]
        for _ in range(20):
            s.raw(line + b"Transfer-Encoding: chunked\r\n\r\n", chunk * 1000 + b"0\r\n\r\n")
        grown = s.metrics()["troika_resident_bytes"] - before
        assert grown < 16 << 20, grown


def idle(port):
    """A connection that had one answer, and stays."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
    read_until(connection, b"}")
    return connection


def check_H6_idle_connections():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
    with Server("--context", "256", "--parallel", "2") as s, contextlib.ExitStack() as kept:
        before = s.metrics()["troika_resident_bytes"]
        for _ in range(1000):
            kept.enter_context(idle(s.port))
        now = s.metrics()
        assert now["troika_http_connections"] > 900 and now["troika_resident_bytes"] - before < 64 << 20, now
        begun = time.monotonic()
        assert s.ask(CHAT, body_for(CHAT, max_tokens=1))[0] == 200
        assert max(timed(s, "/health") for _ in range(20)) < 1 and time.monotonic() - begun < 5
    with Server("--context", "256", "--parallel", "2", "--connections-max", "64") as s, contextlib.ExitStack() as kept:
        for _ in range(64):
            kept.enter_context(idle(s.port))
        assert timed(s, "/health") < 3  # the longest idle make room
        for _ in range(20):
            kept.enter_context(idle(s.port))
        assert s.metrics()["troika_http_connections"] <= 64
        assert s.ask(CHAT, body_for(CHAT, max_tokens=1))[0] == 200


# --- H7: keys

def check_H7_keys(keyed):
    body = body_for(CHAT, max_tokens=1)
    for wrong in (None, "", "Bearer", "Bearer ", "Bearer wrong", "secret-1", "Basic secret-1", "Bearer secret-", "Bearer secret-12",
                  "Bearer SECRET-1", "Bearer secret-1 x", "Bearersecret-1", "Bearer " + "a" * 5000, "Bearer # a comment"):
        headers = JSON if wrong is None else JSON | {"Authorization": wrong}
        for path, sent in ((CHAT, body), (CHAT, body | {"stream": True}), (COMPLETIONS, {"prompt": "x"}), ("/v1/models", None),
                           ("/tokenize", {"prompt": "x"}), ("/metrics", None)):
            status, answered, answer = send(keyed, path, headers, sent)
            assert status == 401 and answered["WWW-Authenticate"].startswith("Bearer"), (wrong, path, status, answer)
            error = json.loads(answer)["error"]
            assert set(error) == {"message", "type", "param", "code"} and error["code"] == "invalid_api_key" and error["type"], error
            assert "secret" not in error["message"], error
    for right in ("Bearer secret-1", "bearer secret-1", "BEARER secret-1", "Bearer   secret-1", "Bearer secret-2",
                  "Bearer from-environment"):
        assert send(keyed, CHAT, JSON | {"Authorization": right}, body)[0] == 200, right
    assert send(keyed, "/health")[0] == 200  # needs none
    client = openai.OpenAI(base_url=keyed.url + "/v1", api_key="wrong", max_retries=0, timeout=60)
    try:
        client.models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    assert client.with_options(api_key="secret-2").models.list().data[0].id == "smollm2"


def check_H7_blanks_around_a_value(keyed):
    """They are no part of it (RFC 9112, 5.1)."""
    for value in ("Bearer secret-1 ", "Bearer secret-1\t", " \tBearer secret-1 \t "):
        assert send(keyed, "/v1/models", {"Authorization": value})[0] == 200, repr(value)


def check_H7_control_characters(keyed):
    data = json.dumps(body_for(CHAT, max_tokens=1)).encode()
    for key in (b"secret-1\r", b"secret-1\x00x", b"secret-1\x00 x", b"secret-1\x0b", b"\x01secret-1", b"secret-1\x7f"):
        sent = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\nAuthorization: Bearer %s\r\n\r\n%s"
        status, _, answer = keyed.raw(sent % (len(data), key, data), timeout=10)
        assert status == 400, (key, status, answer)
    assert send(keyed, "/v1/models", {"Authorization": "Bearer secret-1"})[0] == 200


def check_H7_files_that_hold_no_key():
    for content in ("", "\r\n", "# only a comment\n\n"):
        with tempfile.NamedTemporaryFile("w", newline="") as file:
            file.write(content)
            file.flush()
            try:
                with Server("--api-key-file", file.name):
                    raise AssertionError(f"a server without keys came of {content!r}")
            except RuntimeError as error:
                assert "no API key" in str(error), error


class Keyed(Server):
    """Two keys in a file with CRLF line ends, one in the environment."""

    def __init__(self):
        with tempfile.NamedTemporaryFile("w", newline="") as file:
            file.write("# a comment\r\nsecret-1\r\n\r\n  secret-2\t\r\n")
            file.flush()
            super().__init__("--context", "256", "--parallel", "4", "--api-key-file", file.name,
                             environment={"TROIKA_API_KEY": "from-environment"})

    def metrics_with(self, headers):
        status, _, text = send(self, "/metrics", headers)
        assert status == 200
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.decode().split("\n") if line and line[0] != "#"}


def main():
    with Server("--context", "1024", "--parallel", "8") as s, Keyed() as keyed:
        run_checks([(check_H1_chunks, s), (check_H1_next_request_of_the_connection, s), (check_H1_two_lengths, s),
                    (check_H1_sizes_that_are_none, s), (check_H2_browser_of_this_machine, keyed), (check_H2_foreign_origins, keyed),
                    (check_H2_allowed_by_option,), (check_H3_queued_and_gone_never_runs,), (check_H3_gone_in_prefill,),
                    (check_H3_gone_before_and_after_the_first_token, s), (check_H4_control_under_load,), (check_H5_six_requests,),
                    (check_H5_official_client_waits,), (check_H6_slow_requests,), (check_H6_large_headers, s), (check_H6_large_bodies,),
                    (check_H6_idle_connections,), (check_H7_keys, keyed), (check_H7_blanks_around_a_value, keyed),
                    (check_H7_control_characters, keyed), (check_H7_files_that_hold_no_key,)])


if __name__ == "__main__":
    main()
