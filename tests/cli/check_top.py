# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""`troika top`: once, as JSON, and on a terminal of its own (a pty), which is made smaller and keeps its keys; with servers that are
no troika, ask for a key, say what no terminal should see, or go away."""
import fcntl
import http.server
import json
import os
import pathlib
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_chat import MODEL, plain  # noqa: E402
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

FAST = ("--interval", "0.2")
PROMPT = {"prompt": "Once upon a time there was a ship that", "max_tokens": 400, "ignore_eos": True}


def top(*options, code=0, environment=None, timeout=60):
    run = subprocess.run([BINARY, "top", *options], capture_output=True, timeout=timeout, text=True,
                         env=ENVIRONMENT | (environment or {}))
    assert run.returncode == code, f"exit code {run.returncode}: {run.stdout[-300:]!r} {run.stderr[-300:]!r}"
    return run.stdout, run.stderr


class Screen:
    """`troika top` on a pty; text(): what was drawn since the last clear()."""

    def __init__(self, *options, columns=120, rows=30, environment=None):
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BINARY, [BINARY, "top", *options], ENVIRONMENT | {"TERM": "xterm"} | (environment or {}))
        self.resize(columns, rows)

    def resize(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def frames(self, n, seconds=30):
        """The next n whole frames, as lists of lines with their styles."""
        self.seen = b""
        begun = time.monotonic()
        while self.seen.count(b"\x1b[J") <= n:
            assert time.monotonic() - begun < seconds, f"no frame: {self.seen[-300:]!r}"
            self.read(1)
        whole = self.seen.split(b"\x1b[J")[1:n + 1]
        return [frame.decode().split("\x1b[H")[-1].replace("\r", "").split("\n") for frame in whole]

    def expect(self, words, seconds=30):
        begun = time.monotonic()
        while words not in plain(self.seen.decode(errors="replace")):
            assert time.monotonic() - begun < seconds, f"waited for {words!r}, saw {self.seen[-600:]!r}"
            self.read(1)

    def end(self, seconds=10):
        """The exit code; all that was still written is in `seen`."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0):
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still there: {self.seen[-300:]!r}")

    def mode(self):
        return termios.tcgetattr(self.fd)[3]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class Load:
    """Requests that run until the block ends: some of the background, one reactive."""

    def __init__(self, server, background=3, reactive=1):
        self.connections = [server.open_stream("/bg/v1/completions", PROMPT | {"stream": True, "troika": {"class": "proactive"}})
                            for _ in range(background)]
        self.connections += [server.open_stream("/v1/completions", PROMPT | {"stream": True, "user": "somebody"})
                             for _ in range(reactive)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.connections:
            connection.close()


def open_now(server):
    return len(server.ask("/v1/streams")[2]["data"])


def wait_open(server, n):
    begun = time.monotonic()
    while open_now(server) != n:
        assert time.monotonic() - begun < 30
        time.sleep(0.02)


def check_once(server):
    with Load(server):
        wait_open(server, 4)
        out, err = top("--url", server.url, "--once", *FAST)
        piped, _ = top("--url", f"127.0.0.1:{server.port}/", *FAST)  # no terminal: once as well
    lines = out.splitlines()
    assert err == "" and lines[0].startswith(f"troika top - smollm2 at {server.url}, up "), (err, lines[0])
    assert "\x1b" not in out
    table = [line for line in lines if line[10:19].strip() in ("reactive", "proactive") or line[9:18].strip() in ("reactive", "proactive")]
    assert len(table) == 4 and table[0].split()[1:3] == ["reactive", "R"], out
    assert all(line.split()[1:3] == ["proactive", "P"] for line in table[1:]), out
    assert table[0].rstrip().endswith("somebody"), table[0]
    assert len(piped.splitlines()) == len(lines)
    server.wait_running(0)
    out, _ = top("--url", server.url, "--once", *FAST)
    assert "no request is open" in out


def check_json(server):
    with Load(server):
        wait_open(server, 4)
        process = subprocess.Popen([BINARY, "top", "--url", server.url, "--json", *FAST], stdout=subprocess.PIPE, text=True,
                                   env=ENVIRONMENT)
        objects = [json.loads(process.stdout.readline()) for _ in range(4)]
        streams = server.ask("/v1/streams")[2]["data"]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        process.stdout.close()
    first, last = objects[0], objects[-1]
    assert first["out_tokens_per_second"]["reactive"] is None and first["streams"][0]["tokens_per_second"] is None
    assert last["model"] == "smollm2" and last["problem"] is None and last["url"] == server.url
    assert last["running"]["reactive"] == 1 and last["bcap_term"], last
    assert {s["id"] for s in last["streams"]} == {s["id"] for s in streams}
    reactive = [s for s in last["streams"] if s["class"] == "reactive"]
    assert len(reactive) == 1 and reactive[0]["band"] == "R" and reactive[0]["session"] == "somebody"
    before = [s for s in objects[-2]["streams"] if s["class"] == "reactive"][0]
    made = reactive[0]["completion_tokens"] - before["completion_tokens"]
    assert made >= 0 and abs(reactive[0]["tokens_per_second"] - made / 0.2) <= 0.5 * made / 0.2 + 1, (made, reactive)
    metrics = server.metrics()
    for key, name in (("kv_bytes", "kv_bytes"), ("preempt_bound_ms", "preempt_bound_seconds")):
        shown = last[key] / (1000 if key.endswith("_ms") else 1)
        assert abs(shown - metrics[f"troika_{name}"]) <= 0.5 * shown + 1e-9, key
    server.wait_running(0)
    once = json.loads(top("--url", server.url, "--json", "--once", *FAST)[0])
    assert once["streams"] == [] and once["out_tokens_per_second"]["proactive"] is not None


def check_terminal(server):
    with Load(server, background=6), Screen("--url", server.url, *FAST) as screen:
        wait_open(server, 7)
        frame = screen.frames(2)[-1]
        assert len(frame) <= 30 and len([line for line in frame if "proactive P" in plain(line)]) == 6, frame
        assert any("\x1b[32m" in line and "reactive  R" in line for line in frame), frame
        assert not screen.mode() & termios.ICANON and not screen.mode() & termios.ECHO
        screen.resize(60, 10)
        frame = screen.frames(2)[-1]
        assert len(frame) == 10 and all(len(plain(line)) <= 60 for line in frame), frame
        assert plain(frame[-1]).endswith(" more"), frame[-1]
        screen.resize(20, 2)
        assert len(screen.frames(2)[-1]) == 2
        screen.resize(120, 30)
        before = open_now(server)  # an answer may end meanwhile
        lines = len(screen.frames(2)[-1])
        assert 8 + open_now(server) <= lines <= 8 + before and before >= 6, (lines, before)
        os.write(screen.fd, b"x")  # no key of ours
        screen.frames(1)
        os.write(screen.fd, b"q")
        assert screen.end() == 0
        tail = screen.seen.decode(errors="replace")
        assert tail.rstrip().endswith("\x1b[?1049l") and "\x1b[?25h" in tail and "\x1b[?7h" in tail, tail[-80:]
    with Screen("--url", server.url, *FAST) as screen:
        screen.frames(1)
        os.write(screen.fd, b"\x03")
        assert screen.end() == 0 and "\x1b[?1049l" in screen.seen.decode(errors="replace")
    server.wait_running(0)


def check_plain_terminals(server):
    with Screen("--url", server.url, *FAST, environment={"NO_COLOR": "1"}) as screen:
        screen.frames(2)
        text = screen.seen.decode()
        assert "\x1b[H" in text and "m" not in "".join(part[:4].strip("0123456789;") [:1] for part in text.split("\x1b[")[1:]), text
    with Screen("--url", server.url, *FAST, environment={"TERM": "dumb"}) as screen:
        for _ in range(3):
            screen.expect("no request is open")
            screen.seen = screen.seen.split(b"no request is open", 1)[1]
        assert b"\x1b" not in screen.seen
        os.write(screen.fd, b"q")
        assert screen.end() == 0


def check_server_goes_away():
    with Server("-m", MODEL) as server:
        port = server.port
        screen = Screen("--url", server.url, *FAST)
        screen.frames(1)
        server.process.kill()
        server.process.wait()
    with screen:
        screen.seen = b""
        screen.expect("does not answer: Connection refused; trying again")
        assert len(screen.frames(3)[-1]) == 2
        with Server("-m", MODEL, "--port", str(port)) as server:  # the last --port counts
            screen.seen = b""
            screen.expect("no request is open")
            assert "trying again" not in plain("\n".join(screen.frames(2)[-1]))
            os.write(screen.fd, b"q")
            assert screen.end() == 0
            assert server.port == port


def check_errors(server):
    _, err = top("--url", "http://127.0.0.1:1", code=1)
    assert err == "troika: http://127.0.0.1:1 does not show its streams: Connection refused\n", err
    for url in ("", "http://", "https://x", "http://h:0", "http://h:99999", "http://h:8x", "http://a b", "http://u@h", "http://h/v1",
                "[::1"):
        _, err = top("--url", url, code=2)
        assert "is no address like" in err, (url, err)
    _, err = top("--url", "http://no-such-host.invalid:80", code=1)
    assert "there is no host" in err and err.count("\n") == 1, err
    _, err = top("x", code=2)
    assert "top takes no arguments" in err
    with Server("-m", MODEL, environment={"TROIKA_API_KEY": "k-1"}) as keyed:
        _, err = top("--url", keyed.url, code=1)
        assert "asks for an API key" in err and err.count("\n") == 1, err
        _, err = top("--url", keyed.url, code=1, environment={"TROIKA_API_KEY": "k-2"})
        assert "does not know this API key" in err, err
        top("--url", keyed.url, *FAST, environment={"TROIKA_API_KEY": "k-1"})
        path = pathlib.Path("/tmp") / f"troika-top-{os.getpid()}"
        path.write_text("# mine\nk-1 max=3 name=me\nk-3\n")
        try:
            top("--url", keyed.url, *FAST, "--api-key-file", str(path))
        finally:
            path.unlink()


class Strange:
    """A server that answers whatever `answers` says: path -> bytes of the whole answer, or None: it only listens."""

    def __init__(self, answers):
        self.answers = answers
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.over = False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        kept = []
        while not self.over:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            path = connection.recv(65536).split(b" ")[1].decode()
            answer = self.answers.get(path)
            if answer is None:
                kept.append(connection)
                continue
            try:
                for piece in answer if isinstance(answer, list) else [answer]:
                    connection.sendall(piece)
                    time.sleep(0.01)
            except OSError:
                pass
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = True
        self.socket.close()


def answer(body, more=""):
    data = body if isinstance(body, bytes) else body.encode()
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data


METRICS = 'troika_build_info{version="1",kernels="x"} 1\ntroika_bcap{term="sl\x1b]0;x\x07ack"} 3\ntroika_kv_bytes nan\n'
EVIL = {"object": "list", "data": [{"id": "stream-\x1b[2Jab", "class": "reactive\x1b[31m", "band": "\x9b", "state": "de\nco", "place": -5,
                                    "prompt_tokens": 1e300, "computed_tokens": "x", "agent": "a\x1b]0;title\x07b\tc\nd",
                                    "session": "\x1b[?1049l" + "é" * 400, "timings": [], "age_ms": -1}]}
MODELS = json.dumps({"data": [{"id": "m\x1bodel", "created": "x"}]})


def check_what_no_terminal_should_see():
    good = {"/metrics": answer(METRICS), "/v1/streams": answer(json.dumps(EVIL)), "/v1/models": answer(MODELS)}
    with Strange(good) as strange:
        out, _ = top("--url", strange.url, "--once", *FAST)
        assert not any(ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160 for c in out), ascii(out)
        assert "␛" in out and len(out.splitlines()) == 9, ascii(out)
        with Screen("--url", strange.url, *FAST) as screen:
            text = "".join("\n".join(frame) for frame in screen.frames(2))
            assert "title\x07" not in text and "\x1b]" not in text and "[?1049l" not in text.replace("␛[?1049l", ""), ascii(text)
            os.write(screen.fd, b"q")
            assert screen.end() == 0


def check_answers_that_are_none():
    ok = {"/metrics": answer(METRICS), "/v1/streams": answer('{"data":[]}'), "/v1/models": answer('{"data":[{"id":"m"}]}')}
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    fine = [answer('{"data":[]}', "X: y\r\n"), b"HTTP/1.0 200 OK\r\n\r\n" + b'{"data":[]}',
            [chunked, b"5;a=b\r\n", b'{"dat', b"\r\n6\r\na\":[]}\r\n", b"0\r\n\r\n"],
            [bytes([b]) for b in answer('{"data":[]}')], b"HTTP/1.1 100 Continue\r\n\r\n" + answer('{"data":[]}')]
    for raw in fine:
        with Strange(ok | {"/v1/streams": raw}) as strange:
            out, _ = top("--url", strange.url, "--once", *FAST)
            assert "no request is open" in out
    bad = [(b"", "no HTTP"), (b"SSH-2.0-x\r\n", "no HTTP"), (b"HTTP/1.1 abc OK\r\n\r\n", "no HTTP"), (b"HTTP/1.1 200 OK\r\nX: ", "no HTTP"),
           (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no HTTP"),
           (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "no HTTP"),
           (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200000 + b"\r\n\r\n", "no HTTP"), (b"\n" * 100000, "no HTTP"),
           (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", "ended in the middle"),
           (chunked + b"zz\r\n{}", "no HTTP"), (chunked + b"2\r\n{}xx\r\n", "no HTTP"), (chunked + b"7fffffffffffffffff\r\n", "no HTTP"),
           (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (33 << 20), "too long"), (chunked + b"3000000\r\n" + b" " * (33 << 20), "too long"),
           (answer("[1"), "no JSON"), (answer("{}"), "no list"), (answer('{"data":[{}]}'), "no list"), (answer('{"data":[3]}'), "no list"),
           (answer("[" * 100000), "no JSON"), (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "answered with 302"),
           (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "no HTTP")]
    for raw, why in bad:
        with Strange(ok | {"/v1/streams": raw}) as strange:
            _, err = top("--url", strange.url, "--once", *FAST, code=1)
            assert why in err and err.count("\n") == 1 and err.startswith("troika: http://"), (raw[:80], err)
    with Strange(ok | {"/metrics": answer("# no metrics\n")}) as strange:
        _, err = top("--url", strange.url, "--once", code=1)
        assert "no troika server" in err, err
    with Strange(ok | {"/v1/streams": None}) as strange:  # listens, and says nothing
        begun = time.monotonic()
        _, err = top("--url", strange.url, "--once", code=1)
        assert "in time" in err and 4 < time.monotonic() - begun < 15, err
        process = subprocess.Popen([BINARY, "top", "--url", strange.url, "--once"], env=ENVIRONMENT, stderr=subprocess.PIPE)
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)  # does not wait for the time-out
        assert process.wait(10) == 130 and time.monotonic() - begun < 2
        process.stderr.close()


class V6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


class Plain(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = {"/metrics": METRICS, "/v1/streams": '{"data":[]}', "/v1/models": MODELS}[self.path].encode()
        assert self.headers["Host"].startswith("[::1]:")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def check_ipv6():
    try:
        server = V6(("::1", 0), Plain)
    except OSError:
        assert not pathlib.Path("/proc/net/if_inet6").exists() or "00000000000000000000000000000001" not in pathlib.Path(
            "/proc/net/if_inet6").read_text()  # this machine has no IPv6: nothing to see
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    out, _ = top("--url", f"http://[::1]:{server.server_address[1]}", "--once", *FAST)
    assert "no request is open" in out
    server.shutdown()
    server.server_close()


def check_full_disk(server):
    with open("/dev/full", "w") as full:
        run = subprocess.run([BINARY, "top", "--url", server.url, "--once", *FAST], stdout=full, stderr=subprocess.PIPE, text=True,
                             env=ENVIRONMENT, timeout=60)
    assert run.returncode == 1 and "cannot write" in run.stderr, run


def main():
    with Server("-m", MODEL, "--model-name", "smollm2", "--parallel", "8") as server:
        run_checks([(check_once, server), (check_json, server), (check_terminal, server), (check_plain_terminals, server),
                    (check_server_goes_away,), (check_errors, server), (check_what_no_terminal_should_see,),
                    (check_answers_that_are_none,), (check_ipv6,), (check_full_disk, server)])


if __name__ == "__main__":
    main()
