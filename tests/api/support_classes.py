# SPDX-License-Identifier: Apache-2.0
"""What the checks of classes and of /v1/streams share: requests with headers, streams whose name is known."""
import json
import re
import socket
import struct
import time
import urllib.error
import urllib.request

from support_cases import ASK, CHAT

LONG = {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 900}
SHORT = {"messages": ASK, "temperature": 0, "max_tokens": 8}
STREAMS = "/v1/streams"
BACKGROUND = {"x-troika-class": "proactive"}
REACTIVE = {"x-troika-class": "reactive"}


def send(s, method, path, body=None, headers=None):
    """(status, headers, JSON)"""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(s.url + path, data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())


class Open:
    """A request on a socket of its own, as it is answered."""

    def __init__(self, s, body, headers=None, path=CHAT):
        self.s, self.seen, self.begun, self.asked = s, b"", time.monotonic(), headers or {}
        self.socket = socket.create_connection(("127.0.0.1", s.port), timeout=120)
        data = json.dumps(body).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.asked.items())
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: t\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def until(self, *words):
        while not all(word in self.seen for word in words):
            more = self.socket.recv(65536)
            assert more, self.seen[-2000:]
            self.seen += more
        return self

    def more(self, seconds):
        """Bytes that come within so many seconds."""
        self.socket.settimeout(seconds)
        try:
            new = self.socket.recv(65536)
        except TimeoutError:
            new = b""
        self.socket.settimeout(120)
        self.seen += new
        return new

    def head(self):
        self.until(b"\r\n\r\n")
        return self.seen.split(b"\r\n\r\n")[0].decode()

    def header(self, name):
        return re.search(rf"^{name}: (.*?)\r?$", self.head(), re.MULTILINE | re.IGNORECASE)[1]

    @property
    def name(self):
        return self.header("x-troika-stream")

    def look(self):
        headers = {k: v for k, v in self.asked.items() if k == "Authorization"}
        return send(self.s, "GET", f"{STREAMS}/{self.name}", headers=headers)[2]

    def wait(self, *states, seconds=60):
        end = time.monotonic() + seconds
        while (now := self.look())["state"] not in states:
            assert time.monotonic() < end, now
            time.sleep(0.005)
        return now

    def rest(self):
        """All of it, until the connection ends or the stream does."""
        while b"data: [DONE]" not in self.seen and (more := self.socket.recv(65536)):
            self.seen += more
        return self.seen

    def chunks(self):
        """Of a stream that ends well."""
        lines = re.findall(rb"^data: (.*)$", self.rest(), re.MULTILINE)
        assert lines[-1].strip() == b"[DONE]", self.seen[-2000:]
        return [json.loads(line) for line in lines[:-1]]

    def error(self):
        """Of a stream that ends with one."""
        lines = re.findall(rb"^data: (.*)$", self.rest(), re.MULTILINE)
        assert b"[DONE]" not in self.seen and lines, self.seen[-2000:]
        return json.loads(lines[-1])["error"]

    def text(self):
        return "".join(c["delta"].get("content") or "" for chunk in self.chunks() for c in chunk["choices"])

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self):
        self.socket.close()
