# SPDX-License-Identifier: Apache-2.0
"""Streaming HTTP clients for measuring: many requests over raw sockets, on one thread.

What arrives is kept as it came, with the time at which it was read, and taken apart when the measuring is over: on a machine whose
cores the engine fills, a client that parses while it reads delays what it measures. One thread, because a second one would wait for
the interpreter's lock. Times are time.perf_counter(), seconds.

    loop = Loop()
    call = loop.post(port, "/v1/completions", body, {"x-troika-class": "reactive"})
    loop.run(until=lambda: call.done)
    answer = call.answer()      # times of each piece of text, usage, timings
"""
import dataclasses
import heapq
import itertools
import json
import selectors
import socket
import time

HOST = "127.0.0.1"


class HttpParser:
    """One answer of HTTP/1.1: status, headers, and its body as (time, bytes) without the framing of chunks."""

    def __init__(self):
        self.status, self.headers, self.body = None, {}, []
        self.rest = b""
        self.left = None  # bytes of the chunk (its CRLF included) or of the body that are still to come
        self.whole = False

    def feed(self, when, data):
        self.rest += data
        if self.status is None:
            head, found, rest = self.rest.partition(b"\r\n\r\n")
            if not found:
                return
            lines = head.decode("latin-1").split("\r\n")
            self.status = int(lines[0].split(" ")[1])
            self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            self.rest = rest
            self.chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
            if not self.chunked and "content-length" in self.headers:
                self.left = int(self.headers["content-length"])
                self.whole = not self.left
        if self.chunked:
            self.feed_chunks(when)
        elif self.rest:
            self.body.append((when, self.rest))
            if self.left is not None:
                self.left -= len(self.rest)
                self.whole = self.left <= 0
            self.rest = b""

    def feed_chunks(self, when):
        while not self.whole:
            if self.left is None:
                line, found, rest = self.rest.partition(b"\r\n")
                if not found:
                    return
                size = int(line.split(b";")[0], 16)
                self.rest, self.left = rest, size + 2
                if not size:
                    self.whole = True
                    return
            take = self.rest[:self.left]
            if not take:
                return
            # The last two bytes of what is left are the chunk's CRLF.
            text = take[:max(self.left - 2, 0)]
            if text:
                self.body.append((when, text))
            self.rest = self.rest[len(take):]
            self.left -= len(take)
            if not self.left:
                self.left = None


def sse_events(body):
    """(time, data) of each event of a stream; its time is that of the bytes that completed it. Comments are left out."""
    rest = b""
    for when, data in body:
        rest = (rest + data).replace(b"\r\n", b"\n")
        while (end := rest.find(b"\n\n")) >= 0:
            lines = rest[:end].split(b"\n")
            rest = rest[end + 2:]
            text = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
            if text:
                yield when, text.decode("utf-8", "replace")


@dataclasses.dataclass
class Answer:
    """What one request was answered. Times are absolute; `texts` is when each piece of text was read, `marks` the same without those
    that came in one read: a step's tokens are one emission."""
    status: int | None
    sent: float
    ended: float
    texts: list
    usage: dict
    timings: dict
    finish: str | None
    error: str | None
    headers: dict
    code: str | None = None  # of an error in the stream

    @property
    def ok(self):
        return self.error is None

    @property
    def marks(self):
        return [when for when, _ in itertools.groupby(self.texts)]

    @property
    def tokens(self):
        return self.usage.get("completion_tokens") or len(self.texts)

    @property
    def ttft(self):
        return self.texts[0] - self.sent if self.texts else None

    @property
    def e2e(self):
        return self.ended - self.sent

    @property
    def tpot(self):
        """(last - first) / (n - 1), n >= 2."""
        return (self.texts[-1] - self.texts[0]) / (self.tokens - 1) if self.texts and self.tokens >= 2 else None

    @property
    def gap(self):
        """The longest time between two emissions."""
        marks = self.marks
        return max((b - a for a, b in itertools.pairwise(marks)), default=None)


def text_of(chunk):
    choice = (chunk.get("choices") or [{}])[0]
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


class Call:
    """One request on its own connection. `tag` is the caller's."""

    def __init__(self, method, port, path, body, headers, tag):
        self.tag, self.method, self.path = tag, method, path
        self.lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self.out = (f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n{self.lines}\r\n").encode() + body
        self.port, self.socket = port, None
        self.begun = self.sent = self.ended = None
        self.pieces, self.problem = [], None
        self.tail = b""
        self.stopped = False  # by us, before its end

    @property
    def done(self):
        return self.ended is not None

    @property
    def complete(self):
        """Whether its stream has ended as a stream should."""
        return b"data: [DONE]" in self.tail

    def ends(self, data):
        """Whether this is its last read: the end of a stream need not wait for the connection's."""
        self.tail = (self.tail + data)[-64:]
        return self.complete

    def events(self):
        """Whatever has arrived: (parser, events)."""
        parser = HttpParser()
        for when, data in self.pieces:
            parser.feed(when, data)
        return parser, list(sse_events(parser.body))

    def token_times(self):
        """When each piece of text came, also of a call that is not done."""
        parser, events = self.events()
        if parser.status != 200:
            return []
        return [when for when, data in events if data != "[DONE]" and text_of(json.loads(data))]

    def answer(self):
        parser, events = self.events()
        result = Answer(status=parser.status, sent=self.sent or self.begun, ended=self.ended, texts=[], usage={}, timings={},
                        finish=None, error=self.problem, headers=parser.headers)
        if parser.status is not None and parser.status != 200:
            result.error = f"HTTP {parser.status}: {b''.join(data for _, data in parser.body)[:300].decode('utf-8', 'replace')}"
            return result
        for when, data in events:
            if data == "[DONE]":
                result.ended = when
                break
            chunk = json.loads(data)
            if "error" in chunk:
                result.error = result.error or f"in the stream: {chunk['error'].get('message', chunk['error'])}"
                result.code = result.code or chunk["error"].get("code")
            if text_of(chunk):
                result.texts.append(when)
            for choice in chunk.get("choices") or []:
                result.finish = choice.get("finish_reason") or result.finish
                result.timings |= choice.get("timings") or {}
            result.usage |= chunk.get("usage") or {}
            result.timings |= chunk.get("timings") or {}
        else:
            result.error = result.error or ("stopped by the client" if self.stopped else "the stream broke off")
        return result


class Loop:
    """Runs calls and timed functions until told to stop."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.timers, self.order = [], itertools.count()
        self.calls = set()
        self.on_done = lambda call: None

    def at(self, when, function):
        heapq.heappush(self.timers, (when, next(self.order), function))

    def clear_timers(self):
        self.timers.clear()

    def post(self, port, path, body, headers=None, tag=None):
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        return self.start(Call("POST", port, path, data, headers, tag))

    def start(self, call):
        call.begun = time.perf_counter()
        self.calls.add(call)
        self.connect(call)
        return call

    def connect(self, call):
        call.socket = socket.socket()
        call.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            call.socket.connect((HOST, call.port))  # loopback: at once, or refused at once
        except OSError as problem:
            self.finish(call, f"no connection: {problem}")
            return
        call.socket.setblocking(False)
        call.sent = time.perf_counter()
        self.selector.register(call.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, call)
        self.write(call)

    def write(self, call):
        try:
            count = call.socket.send(call.out)
        except BlockingIOError:
            return
        except OSError:
            count = len(call.out)  # it was answered before it was all sent, or is gone: reading tells
        call.out = call.out[count:]
        if not call.out:
            call.sent = time.perf_counter()  # the request is complete
            self.selector.modify(call.socket, selectors.EVENT_READ, call)

    def read(self, call):
        try:
            data = call.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as problem:
            self.finish(call, f"the connection broke: {problem}")
            return
        if data:
            call.pieces.append((time.perf_counter(), data))
        if not data or call.ends(data):
            self.finish(call, None)

    def finish(self, call, problem):
        call.ended, call.problem = time.perf_counter(), problem
        self.close(call)
        self.on_done(call)

    def close(self, call):
        if call.socket is not None:
            try:
                self.selector.unregister(call.socket)
            except (KeyError, ValueError):
                pass  # never registered: it was refused
            call.socket.close()
            call.socket = None
        self.calls.discard(call)

    def stop(self, call):
        """Hangs up, as a client does that has lost interest; on_done is not called."""
        if not call.done:
            call.stopped, call.ended = True, time.perf_counter()
            self.close(call)

    def run(self, until, deadline=None):
        """Until until() holds (True), or the time `deadline` has come (False)."""
        while not until():
            now = time.perf_counter()
            if deadline is not None and now >= deadline:
                return False
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            ends = [t for t in (deadline, self.timers[0][0] if self.timers else None) if t is not None]
            timeout = max(min(ends) - time.perf_counter(), 0) if ends else 1.0
            for key, events in self.selector.select(min(timeout, 1.0)):
                if events & selectors.EVENT_WRITE and key.data.out and not key.data.done:
                    self.write(key.data)
                if events & selectors.EVENT_READ and not key.data.done:
                    self.read(key.data)
        return True

    def sleep_until(self, when):
        self.run(lambda: False, when)

    def close_all(self):
        self.clear_timers()
        for call in list(self.calls):
            self.stop(call)
        self.selector.close()
