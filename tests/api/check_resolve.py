#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who waits for a request, as a client sees it: headers, fields, sessions, the path /bg, keys and their caps; that nothing stays counted.
ctest: slow"""
import json
import socket
import subprocess
import tempfile
import time

from support_server import BINARY, ENVIRONMENT, Server, run_checks

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 2, "temperature": 0}
LONG = BODY | {"max_tokens": 400, "ignore_eos": True, "stream": True}
KEYS = """plain-key name=plain
night-key class=proactive name=night
capped-key cap=proactive
two-key reactive-max=2
three-key max=3
"""


def key(name):
    return {"Authorization": f"Bearer {name}-key"}


def asked(s, name, headers=None, path=CHAT, **members):
    """(class, decided by, service_tier) of a turn."""
    status, answered, body = s.ask(path, BODY | members, headers=key(name) | (headers or {}))
    assert status == 200, body
    return answered["x-troika-class"], answered["x-troika-decided-by"], body.get("service_tier")


def check_signals(s):
    assert asked(s, "plain") == ("reactive", "default", "default")
    assert asked(s, "plain", {"X-Troika-Class": "proactive"}) == ("proactive", "x-troika-class", "flex")
    assert asked(s, "plain", {"x-troika-class": "proactive"}, service_tier="priority") == ("proactive", "x-troika-class", "flex")
    assert asked(s, "plain", service_tier="fast") == ("reactive", "service_tier", "priority")
    assert asked(s, "plain", service_tier="flex") == ("proactive", "service_tier", "flex")
    assert asked(s, "plain", priority=3) == ("proactive", "priority", "flex")
    assert asked(s, "plain", nvext={"agent_hints": {"priority": 3}}) == ("reactive", "nvext.agent_hints.priority", "priority")
    assert asked(s, "plain", troika={"class": "proactive"}) == ("proactive", "troika.class", "flex")
    assert asked(s, "plain", {"x-app": "cli-bg"})[:2] == ("proactive", "x-app")
    assert asked(s, "plain", {"x-openai-subagent": "compact"})[:2] == ("proactive", "x-openai-subagent")


def check_defaults(s):
    assert asked(s, "plain", path="/bg" + CHAT)[:2] == ("proactive", "path")
    assert asked(s, "night")[:2] == ("proactive", "key")
    assert asked(s, "night", service_tier="priority")[:2] == ("reactive", "service_tier")
    session = {"X-Session-Id": "s1"}
    assert asked(s, "plain", session, service_tier="flex")[0] == "proactive"
    assert asked(s, "plain", session)[:2] == ("proactive", "session")
    assert asked(s, "night", {"X-Session-Id": "s1"})[1] == "key", "a session of another key"
    assert asked(s, "plain", {"X-Session-Id": "s2"})[1] == "default"
    assert asked(s, "plain", {"X-Session-Id": "child", "x-parent-session-id": "s2"})[1] == "parent"


def check_caps(s):
    assert asked(s, "capped", service_tier="priority") == ("proactive", "service_tier", "flex")
    held = [stream(s, "two"), stream(s, "two")]
    assert asked(s, "two")[0] == "proactive", "a third reactive one"
    assert asked(s, "plain")[0] == "reactive", "another key's"
    for connection in held:
        connection.close()
    wait(lambda: asked(s, "two")[0] == "reactive", "places of clients that left")


def stream(s, name):
    """A stream of a key whose first bytes have come."""
    data = json.dumps(LONG).encode()
    connection = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer %s-key\r\nContent-Length: %d\r\n\r\n%s" %
                       (CHAT.encode(), name.encode(), len(data), data))
    assert connection.recv(4096).startswith(b"HTTP/1.1 200"), name
    return connection


def wait(condition, what, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def check_key_max(s):
    def status(**members):
        return s.ask(CHAT, BODY | members, headers=key("three"))

    held = [stream(s, "three") for _ in range(3)]
    code, headers, body = status()
    assert (code, body["error"]["code"]) == (429, "key_limit") and int(headers["Retry-After"]) >= 1, body
    code, _, body = status(n=4)
    assert (code, body["error"]["param"]) == (400, "n"), body
    held.pop().close()
    wait(lambda: status()[0] == 200, "the place of a client that left")
    for connection in held:
        connection.close()
    wait(lambda: status(n=3)[0] == 200, "all three places")
    # Every way out gives its place back.
    for members in ({"temperature": 9}, {"troika": 7}, {"priority": "x"}, {"messages": []}, {"n": 200},
                    {"messages": [{"role": "user", "content": "word " * 20000}]}, {"response_format": {"type": "json_schema"}},
                    {"response_format": {"type": "grammar", "syntax": "regex", "definition": "("}}):
        for _ in range(4):
            assert status(**members)[0] == 400, members
    assert s.ask("/tokenize", {"prompt": "a"}, headers=key("three"))[0] == 200
    assert status(n=3)[0] == 200, "a place was lost"


def check_refused(s):
    for headers, members, param, words in (
            ({"x-troika-class": "urgent"}, {}, "x-troika-class", "reactive, proactive"),
            ({"x-troika-deadline-ms": "0"}, {}, "x-troika-deadline-ms", "1 to 86400000"),
            ({"x-troika-first-deadline-ms": "soon"}, {}, "x-troika-first-deadline-ms", "soon"),
            ({"x-troika-latest": "1"}, {}, "x-troika-latest", "X-Session-Id"),
            ({"x-troika-shorten": "maybe"}, {}, "x-troika-shorten", "maybe"),
            ({}, {"service_tier": "turbo"}, "service_tier", "auto, default"),
            ({}, {"priority": 1.5}, "priority", "integer"),
            ({}, {"nvext": {"agent_hints": {"osl": -1}}}, "nvext.agent_hints.osl", "allowed"),
            ({}, {"troika": {"deadline_ms": 10**9}}, "troika.deadline_ms", "allowed")):
        status, _, body = s.ask(CHAT, BODY | members, headers=key("plain") | headers)
        assert status == 400 and body["error"]["param"] == param and words in body["error"]["message"], body
    # Others' headers are passed over.
    assert asked(s, "plain", {"x-stainless-read-timeout": "NaN", "x-stainless-retry-count": "many", "traceparent": "x", "x-app": "?"},
                 user=7, metadata="x", prompt_cache_key=[])[1] == "default"


def check_repeated_header(s):
    data = json.dumps(BODY).encode()
    for first, second in (("proactive", "reactive"), ("reactive", "proactive")):
        status, headers, body = s.raw(b"POST %s HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer plain-key\r\nx-troika-class: %s\r\n"
                                      b"x-troika-class: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" %
                                      (CHAT.encode(), first.encode(), second.encode(), len(data), data))
        assert status == 200 and headers["x-troika-class"] == first, (status, body)


def check_keys_stay_secret(s):
    asked(s, "plain", {"X-Session-Id": 'a"b\\c\td'})
    asked(s, "plain", {"X-Session-Id": "x" * 5000})
    wait(lambda: any("plain" in line for line in s.log), "the key's name in the log")
    assert not any("-key" in line for line in s.log), "a key in the log"


def check_key_file():
    def refused(line, *words):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"good name=a\n" + line)
            file.flush()
            result = subprocess.run([BINARY, "serve", "--port", "0", "--api-key-file", file.name], capture_output=True, text=True,
                                    env=ENVIRONMENT, timeout=60)
            assert result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1, result
            assert "secret" not in result.stderr and all(w in result.stderr for w in words), result.stderr

    refused(b"secret class=urgent", "line 2", "class= takes")
    refused(b"secret reactive-max=0", "line 2", "1 to 65536")
    refused(b"secret max=1 max=1", "line 2", "twice")
    refused(b"sec secret", "line 2", "0x20", "cap=proactive")
    refused(b"secret name=\xc3\xa4", "line 2", "0xC3")
    refused(b"secret cap=proactive may-react", "line 2", "goes with none")
    refused(b"good max=2", "same with other rules")


def check_options():
    def first(*options):
        with Server("--context", "256", "--parallel", "2", *options) as s:
            return s.ask(CHAT, BODY)[1]["x-troika-decided-by"], s.ask(CHAT, BODY)[1]["x-troika-class"]

    assert first() == ("default", "reactive")
    assert first("--default-class", "proactive") == ("default", "proactive")


def check_side_calls():
    helper = {"User-Agent": "notes/1.0"}
    for options, want in (((), "heuristic"), (("--no-heuristics",), "default")):
        with Server("--context", "256", "--parallel", "2", *options) as s:
            assert s.ask(CHAT, BODY, headers=helper)[1]["x-troika-decided-by"] == "default"
            s.ask(CHAT, BODY, headers=helper | {"X-Session-Id": "s"})
            assert s.ask(CHAT, BODY, headers=helper)[1]["x-troika-decided-by"] == want
            assert s.ask(CHAT, BODY, headers={"User-Agent": "other/1"})[1]["x-troika-decided-by"] == "default"


def main():
    with tempfile.NamedTemporaryFile() as keys:
        keys.write(KEYS.encode())
        keys.flush()
        with Server("--context", "1024", "--parallel", "8", "--api-key-file", keys.name) as s:
            shared = [(check, s) for check in (check_signals, check_defaults, check_caps, check_key_max, check_refused,
                                               check_repeated_header, check_keys_stay_secret)]
            run_checks(shared + [(check,) for check in (check_key_file, check_options, check_side_calls)])


if __name__ == "__main__":
    main()
