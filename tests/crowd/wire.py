# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 over a raw socket, byte by byte where a behaviour wants it, and strict about what comes back.

Nothing is read that was not asked for, so a client that does not read really does not: asyncio's own streams read ahead.
"""
import asyncio
import json
import re
import socket
import struct

STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t\x20-\x7e\x80-\xff]*)")
TOO_MANY = ("queue_full", "overloaded", "key_limit")  # the codes of 429
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")


class Mistake(Exception):
    """The server did what it must not."""


class Ended(Exception):
    """The server ended the connection: fine where a behaviour expects it."""


class Response:
    def __init__(self, status, headers):
        self.status = status
        self.headers = headers
        self.body = b""

    def json(self):
        if not self.headers.get("content-type", "").startswith("application/json"):
            raise Mistake(f"{self.status} has type {self.headers.get('content-type')!r}, wanted JSON: {self.body[:200]!r}")
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise Mistake(f"{self.status}: not JSON ({error}): {self.body[:200]!r}") from error
        if not isinstance(value, dict):
            raise Mistake(f"{self.status}: no JSON object: {self.body[:200]!r}")
        return value


class Wire:
    """`async with Wire(port) as w`: closed at the end, by RST if reset() was called."""

    def __init__(self, port, receive_buffer=0):
        self.loop = asyncio.get_running_loop()
        self.port = port
        self.buffer = bytearray()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:  # small segments keep the server's buffer small too: over loopback it would take megabytes
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)

    async def __aenter__(self):
        try:
            await self.loop.sock_connect(self.socket, ("127.0.0.1", self.port))
        except BaseException:
            self.socket.close()
            raise
        return self

    async def __aexit__(self, *_):
        self.socket.close()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def half_close(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise Ended(str(error)) from error

    async def send(self, data):
        try:
            await self.loop.sock_sendall(self.socket, data)
        except OSError as error:  # what it said before is still there to be read, or not
            raise Ended(str(error)) from error

    async def more(self, most=65536):
        """At least one byte more in the buffer; Ended if none will come."""
        try:
            data = await self.loop.sock_recv(self.socket, most)
        except OSError as error:
            raise Ended(str(error)) from error
        if not data:
            raise Ended("closed")
        self.buffer += data

    async def wait_end(self):
        """Reads until the server ends the connection; all that came."""
        try:
            while True:
                await self.more()
        except Ended:
            return bytes(self.buffer)

    def take(self, n):
        data = bytes(self.buffer[:n])
        del self.buffer[:n]
        return data

    async def line(self, most=16384):
        while (end := self.buffer.find(b"\r\n")) < 0:
            if len(self.buffer) > most:
                raise Mistake(f"a line without end: {bytes(self.buffer[:100])!r}")
            await self.more()
        line = self.take(end)
        self.take(2)
        return line

    async def exactly(self, n):
        while len(self.buffer) < n:
            await self.more()
        return self.take(n)

    async def head(self):
        line = await self.line()
        match = STATUS_LINE.fullmatch(line)
        if not match:
            raise Mistake(f"no status line: {line[:200]!r}")
        headers = {}
        while line := await self.line():
            field = HEADER.fullmatch(line)
            if not field:
                raise Mistake(f"no header: {line[:200]!r}")
            name = field[1].decode().lower()
            if name in headers and name in ("content-length", "transfer-encoding", "content-type", "connection"):
                raise Mistake(f"{name} twice")
            headers[name] = field[2].strip().decode("latin-1")
        return Response(int(match[1]), headers)

    async def chunk(self):
        """The next chunk; b"" is the last, with its trailer read."""
        line = await self.line()
        if not CHUNK_SIZE.fullmatch(line):
            raise Mistake(f"no chunk size: {line[:100]!r}")
        size = int(line, 16)
        data = await self.exactly(size)
        if await self.line():
            raise Mistake("a chunk is longer than it says")
        return data

    async def response(self, method="GET"):
        """One whole answer; interim ones (100) are passed over."""
        answer = await self.head()
        while answer.status == 100:
            answer = await self.head()
        length, coding = answer.headers.get("content-length"), answer.headers.get("transfer-encoding")
        if (length is None) == (coding is None) and method != "HEAD":
            raise Mistake(f"{answer.status} has length {length!r} and coding {coding!r}")
        if method == "HEAD":
            pass
        elif length is not None:
            if not length.isdecimal():
                raise Mistake(f"Content-Length {length!r}")
            answer.body = await self.exactly(int(length))
        else:
            while data := await self.chunk():
                answer.body += data
        return answer

    def expect_quiet(self):
        if self.buffer:
            raise Mistake(f"bytes after the answer: {bytes(self.buffer[:100])!r}")


class Events:
    """The data lines of a streamed answer, one at a time; comments are counted."""

    def __init__(self, wire):
        self.wire = wire
        self.text = b""
        self.comments = 0

    async def next(self):
        """The payload of the next event, or None at the end of the answer."""
        while True:
            while (end := self.text.find(b"\n\n")) < 0:
                data = await self.wire.chunk()
                if not data:
                    if self.text:
                        raise Mistake(f"the stream ends in mid event: {self.text[:100]!r}")
                    return None
                self.text += data
            event, self.text = self.text[:end], self.text[end + 2:]
            if event.startswith(b": "):
                self.comments += 1
            elif event.startswith(b"data: ") and b"\n" not in event:
                return event[6:]
            else:
                raise Mistake(f"no event: {event[:100]!r}")


KEY = "sk-crowd"


def request(method, path, body=None, headers=(), host=True, key=KEY):
    """The bytes of a request; body is bytes or something that becomes JSON."""
    lines = [f"{method} {path} HTTP/1.1"] + (["Host: crowd"] if host else []) + [f"Authorization: Bearer {key}"] + list(headers)
    if body is None:
        return "\r\n".join([*lines, "", ""]).encode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines += ["Content-Type: application/json", f"Content-Length: {len(data)}", "", ""]
    return "\r\n".join(lines).encode() + data


def expect_error(answer, *statuses):
    """An error object of one of these statuses, whole."""
    if answer.status not in statuses:
        raise Mistake(f"{answer.status} instead of {statuses}: {answer.body[:200]!r}")
    error = answer.json().get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"] \
            or not isinstance(error.get("type"), str) or not {"param", "code"} <= error.keys():
        raise Mistake(f"{answer.status}: no error object: {answer.body[:200]!r}")
    if answer.status == 429 and (answer.headers.get("retry-after", "") == "" or error["code"] not in TOO_MANY):
        raise Mistake(f"429 without Retry-After or code: {answer.headers} {error}")
    if answer.status in (409, 504) and answer.headers.get("x-should-retry") != "false":
        raise Mistake(f"{answer.status} without x-should-retry: false: {answer.headers} {error}")
    return error
