# SPDX-License-Identifier: Apache-2.0
"""What the checks of all clients share: servers in three states, questions, and what must hold of a server whatever client asks it.

A check is called check_<thing>_<what>. THINGS are the ten that each client is to show; tools/clients.py counts how many of them a client's
passed checks cover. Nothing here leaves this machine: a connection to anywhere but loopback fails, and is a failed check of its own.
"""
import contextlib
import ipaddress
import os
import pathlib
import re
import sys
import tempfile
import threading
import time

for name in list(os.environ):  # neither a proxy nor an account of the user's is part of a test
    if re.match(r"(?i)(https?|all|no)_proxy$", name) or re.match(r"(OPENAI|LANGCHAIN|LANGSMITH|LITELLM|AI_GATEWAY)_", name):
        del os.environ[name]
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGCHAIN_TRACING_V2": "false", "LANGSMITH_TRACING": "false"}

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))
from support_server import Server, run_checks  # noqa: E402, F401

THINGS = ("chat", "stream", "stop", "logprobs", "seed", "n", "schema", "errors", "timeouts", "abort")
MODEL = "smollm2"
KEY = "sk-a-key-of-this-test-0123456789"
ASK = [{"role": "user", "content": "Name three colours."}]
TELL = [{"role": "user", "content": "Write one line about a dog."}]
CUT = [{"role": "user", "content": "Tell me about a young dog called Rex, and his three friends. Answer as JSON."}]
TOO_LONG = [{"role": "user", "content": "word " * 3000}]
FOREVER = 1900  # tokens: with ignore_eos longer than any check waits for one that it leaves
HOLD = 8000  # the same for one that keeps a place
GONE_S = 2.0  # from a client's leaving until the server has noticed

outside = []


def forbid_outside(event, arguments):
    """An audit hook: sockets reach loopback only."""
    if event not in ("socket.connect", "socket.getaddrinfo"):
        return
    host = arguments[1] if event == "socket.connect" else arguments[0]
    host = host[0] if isinstance(host, tuple) else host
    if event == "socket.connect" and isinstance(host, (str, bytes)) and arguments[0].family.name == "AF_UNIX":
        return
    host = host.decode() if isinstance(host, bytes) else host
    try:
        inside = host in (None, "", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        outside.append(host)
        raise OSError(f"this test may not reach {host}")


sys.addaudithook(forbid_outside)


def check_nothing_left_this_machine():
    assert not outside, outside


def all_checks(names, *arguments):
    """For run_checks: every check_* of a file in its order; those that take arguments get these, the others start servers of their own."""
    checks = [f for name, f in names.items() if name.startswith("check_")]
    return [(f, *(arguments if f.__code__.co_argcount else ())) for f in checks] + [(check_nothing_left_this_machine,)]


class Served(Server):
    """A server from whose log a sanitizer's finding, also one of its last moments, becomes a failed check."""

    def __exit__(self, *given):
        super().__exit__(*given)
        self.reader.join(10)
        found = [line for line in self.log if re.search(r"Sanitizer|runtime error: |internal error", line)]
        if found:
            print(f"not ok server: {found[0].strip()}\n{''.join(self.log)[-8000:]}", flush=True)
            sys.exit(1)


def plain_server():
    """Room for n = 3 and company."""
    return Served("--context", "2048", "--parallel", "8")


@contextlib.contextmanager
def key_server():
    """A server that wants KEY."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.write(KEY + "\n")
        file.flush()
        with Served("--context", "1024", "--parallel", "1", "--api-key-file", file.name) as s:
            yield s


def busy_server():
    """One request runs, one waits, the next is told 429; a waiting stream gets a comment each second."""
    return Served("--context", "8192", "--parallel", "1", "--queue-max", "1", "--keep-alive", "1")


class Full:
    """`with Full(busy) as full:` - both places of a busy_server are taken; full.free() or the end gives them back."""

    def __init__(self, server):
        self.server = server
        self.connections = []
        self.timer = None

    def __enter__(self):
        body = {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": HOLD}
        assert self.server.wait_running(0, 10) is not None
        self.connections.append(self.server.open_stream("/v1/chat/completions", body))
        assert self.server.wait_running(1, 10) is not None
        self.connections.append(self.server.open_stream("/v1/chat/completions", body))
        begun = time.monotonic()
        while self.server.ask("/health")[2]["queued"] != 1:
            assert time.monotonic() - begun < 10, "the second request does not wait"
            time.sleep(0.01)
        return self

    def free(self):
        for connection in self.connections:
            connection.close()
        self.connections = []

    def free_after(self, seconds):
        self.timer = threading.Timer(seconds, self.free)
        self.timer.start()

    def __exit__(self, *_):
        if self.timer:
            self.timer.join()
        self.free()


def answers_in_log(server, status):
    """How many requests for one whole answer ended so, a regular expression, by the server's own log, which may lag a little."""
    return sum(bool(re.search(rf"POST /v1/chat/completions (?:{status}) prompt", line)) for line in list(server.log))


@contextlib.contextmanager
def answered_once(server, status):
    """What happens inside makes exactly one request with this answer: no retry."""
    time.sleep(0.3)
    before = answers_in_log(server, status)
    yield
    time.sleep(0.8)  # a retry comes after half a second at the latest
    count = answers_in_log(server, status) - before
    assert count == 1, f"{count} requests were answered {status}"


def is_running(server, n=1):
    assert server.wait_running(n, 10) is not None, "the request does not run"


def is_gone(server):
    """The client has just left: the server must notice, and still serve."""
    took = server.wait_running(0, 10)
    assert took is not None and took <= GONE_S, f"still running {took} s after the client has gone"
    status, _, answer = server.ask("/v1/chat/completions", {"messages": ASK, "max_tokens": 1})
    assert status == 200 and answer["usage"]["completion_tokens"] == 1, answer


def raises(error, call):
    """The error that `call` raises, which is of this class."""
    try:
        got = call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__} but {got!r}")


def middle_of(text):
    """A stop string that lies inside a text and does not begin it, and what is before it."""
    stop = text[len(text) // 2:len(text) // 2 + 4]
    cut = text[:text.index(stop)]
    assert stop and cut, text
    return stop, cut
