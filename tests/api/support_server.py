# SPDX-License-Identifier: Apache-2.0
"""A running `troika serve`, and checks that print "ok NAME" or "not ok NAME: why" (tools/run_tests.py counts these lines)."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

BINARY = os.environ["TROIKA_BINARY"]
# The environment's and the user's own settings are not part of a test; and no server of one measures launches whenever it is idle.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("TROIKA_")} | {"XDG_CONFIG_HOME": "/nowhere",
                                                                                                   "TROIKA_PROFILE": "off"}


class Server:
    """`with Server("--parallel", "1") as s:` - s.url; the server's log is in s.log. environment: variables besides the test's own."""

    def __init__(self, *options, environment=None):
        self.process = subprocess.Popen([BINARY, "serve", "--port", "0", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | (environment or {}))
        self.log = []
        self.ready = self.process.stdout.readline()
        self.curl = self.process.stdout.readline()
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        found = re.search(r" at (http://\S+)$", self.ready.strip())
        if not found:
            self.process.wait(10)
            self.reader.join(5)
            raise RuntimeError(f"no server: {self.ready!r} {self.log}")
        self.url = found[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)  # two at once would be one
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        # What a sanitizer found at the end, among others; SIGKILL is a test's own.
        if self.process.returncode not in (0, -signal.SIGKILL):
            self.reader.join(5)
            raise RuntimeError(f"the server ended with {self.process.returncode}: {''.join(self.log[-60:])}")

    def ask(self, path, body=None, timeout=300, headers=None):
        """(status, headers, JSON)"""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"} | (headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.headers, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.loads(error.read())

    def open_stream(self, path, body):
        """A raw socket whose request is sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        data = json.dumps(body).encode()
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data))
        return connection

    def events(self, path, body):
        """All data lines of a stream, as text, and its comments."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=300) as answer:
            lines = answer.read().decode().split("\n")
        return [line[6:] for line in lines if line.startswith("data: ")], [line for line in lines if line.startswith(":")]

    def chunks(self, path, body):
        """The chunks of a stream that has to end well."""
        data, _ = self.events(path, body | {"stream": True})
        assert data[-1] == "[DONE]" and "[DONE]" not in data[:-1], data
        return [json.loads(line) for line in data[:-1]]

    def raw(self, *pieces, pause=0, timeout=60):
        """Sends bytes as they are, piece by piece, and reads one answer: (status, headers, body)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(pause)
            except (ConnectionResetError, BrokenPipeError):  # it answered before it had all
                pass
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.headers, answer.read()

    def metrics(self):
        """Of /metrics: name with its labels -> value."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().split("\n")
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and not line.startswith("#")}

    def wait_running(self, want, seconds=60):
        """Until /health counts `want` running requests; the seconds it took, or None."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            if self.ask("/health")[2]["running"] == want:
                return time.monotonic() - begun
            time.sleep(0.01)
        return None

    def check_idle(self):
        """Nothing is left: an answer that ends with an error is out before its stream is counted as gone."""
        assert self.wait_running(0, 5) is not None, "a request still runs"
        assert self.ask("/health")[2] == {"status": "ok", "running": 0, "queued": 0}


def run_checks(checks):
    """Those whose name holds a word of the command line, or all."""
    failed = 0
    words = [a for a in sys.argv[1:] if not a.startswith("-")]
    for check, *arguments in checks:
        name = check.__name__.removeprefix("check_")
        if words and not any(word in name for word in words):
            continue
        try:
            check(*arguments)
            print(f"ok {name}", flush=True)
        except Exception as error:  # a failing check is a line, whatever it threw
            failed += 1
            print(f"not ok {name}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc(limit=3)
    sys.exit(1 if failed else 0)
