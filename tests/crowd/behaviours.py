# SPDX-License-Identifier: Apache-2.0
"""What the clients of the crowd do. Each behaviour is `async def name(c)` with c a Client (clients.py); it raises Mistake where the server
is wrong. Whatever a behaviour leaves open or half sent is on purpose. Those about classes are in by_class.py."""
import asyncio
import json

from who import Who, hardly_anybody, somebody
from wire import TOO_MANY, Ended, Events, Mistake, Wire, expect_error, request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MANY_TOPS = {"logprobs": True, "top_logprobs": 20}  # 2 KiB and more a token: fills rings and sockets


# --- what an answer must look like

def check_class(c, headers, who):
    class_ = headers.get("x-troika-class")
    if class_ not in ("reactive", "proactive") or headers.get("x-troika-band") not in ("R", "I", "P") \
            or not headers.get("x-troika-stream"):
        raise Mistake(f"headers do not say who waits: {headers}")
    if who and who.class_ not in (None, class_):
        raise Mistake(f"{class_} ({headers['x-troika-decided-by']}) instead of {who.class_}: {who.prefix} {who.headers} {who.body}")
    c.statuses[f"200 {class_}"] += 1


def check_wait(c, answer):
    if answer["troika"]["class"] == "reactive" and answer["timings"]["queue_ms"] > c.patience * 1e3:
        raise Mistake(f"reactive, and it waited for {answer['timings']['queue_ms']} ms")


def told_to_wait(c, seconds):
    """Nobody here waits for long: a crowd that does is none."""
    c.told_to_wait = min(int(seconds), 4)


def check_whole(c, answer, known, choices=1, who=None):
    """A 200 with the known text, or a 429. The answer, or None."""
    c.count(answer)
    if answer.status != 200:
        expect_error(answer, 429)
        told_to_wait(c, answer.headers["retry-after"])
        return None
    check_class(c, answer.headers, who)
    a = answer.json()
    if a["troika"]["class"] != answer.headers["x-troika-class"] or a["troika"]["stream"] != answer.headers["x-troika-stream"]:
        raise Mistake(f"{a['troika']} and {answer.headers}")
    if len(a["choices"]) != choices:
        raise Mistake(f"{len(a['choices'])} choices instead of {choices}")
    for choice in a["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        if known and text != known["text"]:
            raise Mistake(f"{text!r} instead of {known['text']!r}")
        if choice["finish_reason"] not in ("stop", "length"):
            raise Mistake(f"finish_reason {choice['finish_reason']!r}")
    if a["usage"]["total_tokens"] != a["usage"]["prompt_tokens"] + a["usage"]["completion_tokens"]:
        raise Mistake(f"usage: {a['usage']}")
    check_wait(c, a)
    return a


async def read_head_of_stream(c, w, who=None):
    """The Events of a stream that was accepted, with its name as `stream`, or None after a 429."""
    answer = await c.within(w.head())
    if answer.status == 200:
        c.count(answer)
        check_class(c, answer.headers, who)
        if answer.headers.get("content-type") != "text/event-stream; charset=utf-8" or "content-length" in answer.headers:
            raise Mistake(f"headers of a stream: {answer.headers}")
        events = Events(w)
        events.stream = answer.headers["x-troika-stream"]
        return events
    answer.body = await w.exactly(int(answer.headers["content-length"]))
    check_whole(c, answer, None)
    return None


async def end_of_failed(c, w, error, codes):
    """A stream that ended with an error: one of those that may be, and nothing after it."""
    if error.get("code") not in codes or not error.get("message") or not error.get("type"):
        raise Mistake(f"error in a stream: {error}")
    rest = await c.ended(w, "open after an error")
    if b"data: " in rest:
        raise Mistake(f"events after an error: {rest[:200]!r}")
    c.statuses[f"stream: {error['code']}"] += 1
    if error["code"] in TOO_MANY:
        told_to_wait(c, 2)
    return error["code"]


async def read_stream(c, w, known=None, events=None, who=None, codes=("overloaded",)):
    """Reads it all; the text, and the last chunk's members. If it ended with one of the codes, None and that. The server may have been
    too busy to refuse it by a status."""
    events = events or await read_head_of_stream(c, w, who)
    if not events:
        return None, "refused"
    last, text, ids, finish, done = None, "", set(), None, False
    while (payload := await c.within(events.next())) is not None:
        if done:
            raise Mistake(f"an event after [DONE]: {payload[:100]!r}")
        if payload == b"[DONE]":
            done = True
            continue
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise Mistake(f"an event is not JSON: {payload[:200]!r}") from error
        if "error" in chunk:
            return None, await end_of_failed(c, w, chunk["error"], codes)
        last = chunk
        ids.add(chunk["id"])
        if finish:
            raise Mistake("an event after finish_reason")
        choice = chunk["choices"][0]
        finish = choice["finish_reason"]
        text += (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
    if not done or len(ids) != 1 or finish not in ("stop", "length"):
        raise Mistake(f"stream: done {done}, {len(ids)} ids, finish {finish}")
    if known and text != known["text"]:
        raise Mistake(f"streamed {text!r} instead of {known['text']!r}")
    w.expect_quiet()
    return text, last


async def read_some(c, events, n):
    """False: the stream came to its end, or was refused late."""
    for _ in range(n):
        payload = await c.within(events.next())
        if payload is None or payload.startswith(b'{"error"'):
            return False
    return True


def long_answer(c, tokens, stream, who=None, **more):
    prompt = c.random.choice(["Tell me a long story.", "Count to a thousand.", "Describe the sea.", "List every animal."])
    who = who or hardly_anybody(c)
    if c.random.random() < 0.2:
        who.headers.append("x-troika-shorten: 1")
    return who.ask(CHAT, {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "ignore_eos": True, "stream": stream,
                          **more})


# What else a request that nobody waits for can hold when it is dropped. With a format it may come to its end early.
LONG = [{}, {}, {"n": 3}, {"logprobs": True, "top_logprobs": 5}]
FORMATS = [{"response_format": {"type": "json_object"}},
           {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
               "type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}}}}}}]


# --- the well-behaved

async def chat(c):
    known, stream, who = c.known("chat"), c.random.random() < 0.5, somebody(c)
    async with Wire(c.port) as w:
        await w.send(who.ask(CHAT, known["body"] | {"stream": stream}))
        if stream:
            await read_stream(c, w, known, who=who)
        else:
            check_whole(c, await c.within(w.response()), known, who=who)
            w.expect_quiet()


async def choices(c):
    known, n, who = c.known("chat"), c.random.randint(2, 3), somebody(c)
    async with Wire(c.port) as w:
        await w.send(who.ask(CHAT, known["body"] | {"n": n}))
        check_whole(c, await c.within(w.response()), known, n, who)


async def tokens(c):
    """There and back, on one connection."""
    text = "".join(c.random.choice("abc dé, 日\n😀") for _ in range(c.random.randint(1, 200)))
    async with Wire(c.port) as w:
        await w.send(request("POST", "/tokenize", {"prompt": text, "add_special_tokens": False}))
        answer = await c.within(w.response())
        c.count(answer)
        if answer.status != 200:
            raise Mistake(f"/tokenize: {answer.status} {answer.body[:200]!r}")
        await w.send(request("POST", "/detokenize", {"tokens": answer.json()["tokens"]}))
        answer = await c.within(w.response())
        c.count(answer)
        if answer.status != 200 or answer.json()["prompt"] != text:
            raise Mistake(f"{text!r} came back as {answer.body[:500]!r}")


async def completion(c):
    known, stream, who = c.known("completion"), c.random.random() < 0.5, somebody(c)
    async with Wire(c.port) as w:
        await w.send(who.ask(COMPLETIONS, known["body"] | {"stream": stream}))
        if stream:
            await read_stream(c, w, known, who=who)
        else:
            check_whole(c, await c.within(w.response()), known, who=who)


async def keep_alive(c):
    async with Wire(c.port) as w:
        for _ in range(c.random.randint(3, 8)):
            if c.random.random() < 0.3:
                known, who = c.known("chat"), somebody(c)
                await w.send(who.ask(CHAT, known["body"]))
                check_whole(c, await c.within(w.response()), known, who=who)
            else:
                path = c.random.choice(["/health", "/v1/models", "/metrics", "/openapi.json", "/"])
                await w.send(request("GET", path))
                answer = await c.within(w.response())
                c.count(answer)
                check_control(answer, path)
            w.expect_quiet()
            await asyncio.sleep(c.random.uniform(0, 1))


def check_control(answer, path):
    if path == "/missing":
        expect_error(answer, 404)
        return
    if path in ("/metrics", "/"):
        if answer.status != 200 or len(answer.body) < 100 or not answer.headers.get("content-type", "").startswith("text/"):
            raise Mistake(f"{path}: {answer.status} {answer.body[:200]!r}")
        return
    a = answer.json()
    if answer.status != 200 or (path == "/health" and a["status"] != "ok") or (path == "/v1/models" and a["object"] != "list"):
        raise Mistake(f"{path}: {answer.status} {answer.body[:200]!r}")


async def pipelining(c):
    """Several requests in one write; answers in their order, each one what was asked for."""
    asked, data, who = [], b"", Who("proactive", ["x-troika-class: proactive"])
    for _ in range(c.random.randint(3, 5)):
        kind = c.random.choice(["/health", "/v1/models", "/metrics", "/missing", "chat"])
        known = c.known("chat") if kind == "chat" else None
        asked.append((kind, known))
        data += who.ask(CHAT, known["body"]) if known else request("GET", kind)
    async with Wire(c.port) as w:
        await w.send(data)
        for kind, known in asked:
            answer = await c.within(w.response())
            if known:
                check_whole(c, answer, known, who=who)
            else:
                c.count(answer)
                check_control(answer, kind)
        w.expect_quiet()


async def chunked_upload(c):
    """Odd sizes, extensions, a trailer, cut into packets anywhere."""
    known = c.known("chat")
    body, data = json.dumps(known["body"]).encode(), b""
    while body:
        n = min(len(body), c.random.choice([1, 2, 7, 10, 100]))
        size = c.random.choice([f"{n:x}", f"{n:X}", f"{n:04x}", f"{n:x};a=b", f"{n:x};a=\"c d\";e"])
        data += size.encode() + b"\r\n" + body[:n] + b"\r\n"
        body = body[n:]
    data += c.random.choice([b"0\r\n\r\n", b"0;last\r\n\r\n", b"000\r\nX-Trailer: t\r\nX-Other: u\r\n\r\n"])
    async with Wire(c.port) as w:
        await w.send(request("POST", CHAT, headers=["Transfer-Encoding: chunked", "Content-Type: application/json"]))
        while data:
            n = c.random.randint(1, 200)
            await w.send(data[:n])
            data = data[n:]
            if c.random.random() < 0.3:
                await asyncio.sleep(0.01)
        check_whole(c, await c.within(w.response()), known)
        w.expect_quiet()


async def expect_continue(c):
    known = c.known("chat")
    data = request("POST", CHAT, known["body"], ["Expect: 100-continue"])
    head, body = data.split(b"\r\n\r\n", 1)
    async with Wire(c.port) as w:
        await w.send(head + b"\r\n\r\n")
        answer = await c.within(w.head())
        if answer.status != 100:
            raise Mistake(f"{answer.status} instead of 100")
        await w.send(body)
        check_whole(c, await c.within(w.response()), known)


async def head_and_old_version(c):
    async with Wire(c.port) as w:
        await w.send(request("HEAD", "/health"))
        answer = await c.within(w.response("HEAD"))
        c.count(answer)
        if answer.status != 200:
            raise Mistake(f"HEAD: {answer.status}")
        await w.send(b"GET /health HTTP/1.0\r\n\r\n")
        answer = await c.within(w.response())
        c.count(answer)
        check_control(answer, "/health")
        await c.ended(w, "HTTP/1.0 is not closed")
        w.expect_quiet()


# --- the wrong

async def wrong_method(c):
    async with Wire(c.port) as w:
        method, path = c.random.choice([("DELETE", CHAT), ("GET", CHAT), ("PUT", "/health"), ("BREW", "/v1/models"),
                                        ("PATCH", COMPLETIONS)])
        await w.send(request(method, path))
        answer = await c.within(w.response())
        c.count(answer)
        expect_error(answer, 405)
        if "allow" not in answer.headers:
            raise Mistake("405 without Allow")


async def wrong_body(c):
    bodies = [b"", b"{", b"[]", b"null", b'{"messages":[]}', b'{"messages":"x"}', b'{"messages":[{"role":"user","content":"\xff"}]}',
              b"[" * 3000, b'{"messages":[{"role":"user","content":"a"}],"temperature":9}', bytes(c.random.randbytes(300)),
              b'{"messages":[{"role":"user","content":"' + b"word " * 3000 + b'"}]}']
    async with Wire(c.port) as w:
        for _ in range(3):
            await w.send(request("POST", CHAT, c.random.choice(bodies)))
            answer = await c.within(w.response())
            c.count(answer)
            expect_error(answer, 400)
            w.expect_quiet()


async def huge_headers(c):
    async with Wire(c.port) as w:
        try:
            if c.random.random() < 0.5:
                await w.send(request("GET", "/health", headers=["X-Huge: " + "x" * 65536]))
            else:
                await w.send(request("GET", "/health", headers=[f"X-{i}: " + "x" * 100 for i in range(640)]))
            answer = await c.within(w.response())
            c.count(answer)
            if answer.status != 431:  # its body may be the library's own: the headers did not fit into its memory
                raise Mistake(f"{answer.status} instead of 431")
        except Ended:  # with bytes of ours unread it may be reset before its answer is read
            c.statuses["closed"] += 1
            return
        await c.ended(w, "open after 431")


async def huge_body(c):
    """Over the limit by length or by chunks; by length the answer comes before the body."""
    async with Wire(c.port) as w:
        try:
            if c.random.random() < 0.5:
                await w.send(request("POST", CHAT, headers=[f"Content-Length: {c.body_max + 1 + c.random.randrange(1 << 30)}"]))
                answer = await c.within(w.response())
            else:
                await w.send(request("POST", CHAT, headers=["Transfer-Encoding: chunked"]))
                piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
                for _ in range(c.body_max // 65536 + 2):
                    await w.send(piece)
                await w.send(b"0\r\n\r\n")
                answer = await c.within(w.response())
        except Ended as error:
            raise Mistake(f"no 413: {error}") from error
        c.count(answer)
        expect_error(answer, 413)
        await c.ended(w, "open after 413")


async def smuggling(c):
    lines = c.random.choice([
        "Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 5", "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding : chunked", "X-A: b\r\n Transfer-Encoding: chunked", "Host: b\r\nContent-Length: 5"])
    async with Wire(c.port) as w:
        await w.send(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n0\r\n\r\n".encode() + request("GET", "/v1/models"))
        try:
            answer = await c.within(w.response())
            c.count(answer)
            expect_error(answer, 400)
        except Ended as error:
            raise Mistake(f"no 400 to {lines!r}: {error}") from error
        rest = await c.ended(w, f"open after {lines!r}")
        if b"HTTP/1.1" in rest:
            raise Mistake(f"smuggled by {lines!r}: {rest[:200]!r}")


async def garbage(c):
    """Bytes that are no HTTP, then the end of them: an error or an end."""
    async with Wire(c.port) as w:
        try:
            await w.send(c.random.choice([
                c.random.randbytes(c.random.randint(1, 3000)) + b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
                b"\r\n" * 2000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET  /health  HTTP/1.1\r\nHost: a\r\n\r\n\x00\x00"]))
            w.half_close()
        except Ended:
            pass
        rest = await c.ended(w, "open after garbage and its end")
        if rest and not rest.startswith(b"HTTP/1."):
            raise Mistake(f"to garbage: {rest[:100]!r}")


# --- the slow

async def slow_reader(c):
    """A stream whose reader takes a byte each 50 ms, or nothing for seconds; then the rest must be whole, or it leaves."""
    leaves = c.random.random() < 0.2
    async with Wire(c.port, receive_buffer=4096) as w:
        await w.send(long_answer(c, c.tokens(c.random.randint(24, 64)), True, **MANY_TOPS))
        events = await read_head_of_stream(c, w)
        if not events:
            return
        if c.random.random() < 0.5:
            try:
                for _ in range(c.random.randint(20, 100)):
                    await c.within(w.more(1))
                    await asyncio.sleep(0.05)
            except Ended:  # then it says why: what has come is read below
                leaves = False
        else:
            await asyncio.sleep(c.random.uniform(1, 6))
        if not leaves:
            await read_stream(c, w, events=events)


async def dead_reader(c):
    """Reads nothing until the server has given it up (write_time_s, 60 s): what was sent until then comes, and no [DONE]."""
    if c.seconds < 240:
        return await slow_reader(c)
    async with Wire(c.port, receive_buffer=4096) as w:
        await w.send(long_answer(c, 400, True, Who("reactive"), **MANY_TOPS))
        if not await read_head_of_stream(c, w):
            return
        await asyncio.sleep(140)  # it takes a while until all is full
        if b"[DONE]" in await c.ended(w, "a reader that reads nothing is not given up"):
            raise Mistake("400 tokens with 20 alternatives fit into nowhere, and all of them came")


async def slowloris(c):
    """A byte of a header each second. It goes away, or comes to its end and is served, or is ended by the server after 60 s."""
    end = c.random.choice(["leave", "finish", "stay"])
    async with Wire(c.port) as w:
        try:
            await w.send(b"GET /health HTTP/1.1\r\nHost: slow\r\nX-Slow: ")
            for _ in range(200 if end == "stay" else c.random.randint(5, 20)):
                await w.send(b"x")
                await asyncio.sleep(1)
            if end == "leave":
                return
            if end == "stay":
                raise Mistake("half a request is still open after 200 s")
            await w.send(b"\r\n\r\n")
            answer = await c.within(w.response())
            c.count(answer)
            check_control(answer, "/health")
        except Ended:
            if end == "finish":
                raise Mistake("a request of 20 s was cut off") from None
            rest = await c.ended(w, "")
            if rest and not rest.startswith(b"HTTP/1.1 408 "):
                raise Mistake(f"to a slow request: {rest[:200]!r}") from None


async def idle(c):
    async with Wire(c.port) as w:
        await asyncio.sleep(c.random.uniform(2, 20))
        if c.random.random() < 0.5:
            await w.send(request("GET", "/v1/models"))
            answer = await c.within(w.response())
            c.count(answer)
            check_control(answer, "/v1/models")


async def partial_body(c):
    """Half a body that stays open for seconds; then the rest of it, or the end."""
    known = c.known("chat")
    data = somebody(c).ask(CHAT, known["body"])
    cut = c.random.randint(data.index(b"\r\n\r\n") + 4, len(data) - 1)
    async with Wire(c.port) as w:
        await w.send(data[:cut])
        await asyncio.sleep(c.random.uniform(1, 10))
        if c.random.random() < 0.5:
            return
        await w.send(data[cut:])
        check_whole(c, await c.within(w.response()), known)


# --- those who go

async def half_close(c):
    """A closed sending side counts as gone: the connection ends soon, without a whole answer."""
    stream = c.random.random() < 0.5
    async with Wire(c.port) as w:
        await w.send(long_answer(c, 300, stream, **c.random.choice(LONG)))
        if stream and c.random.random() < 0.7:
            events = await read_head_of_stream(c, w)
            if not events:
                return
            if not await read_some(c, events, c.random.randint(1, 3)):
                return
        w.half_close()
        rest = await c.ended(w, "a half-closed connection is still open")
        if rest.startswith(b"HTTP/1.1 429 "):
            return
        if b"[DONE]" in rest or b'"usage"' in rest:
            raise Mistake("a half-closed client got its whole answer")


async def half_close_early(c):
    """The same in mid request, or with a request that is answered at once."""
    data = c.random.choice([b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHo", request("POST", CHAT, {"messages": []})[:-3],
                            request("GET", "/health"), request("GET", "/missing")])
    async with Wire(c.port) as w:
        await w.send(data)
        w.half_close()
        rest = await c.ended(w, f"half-closed after {data[-20:]!r} and still open")
        if rest and not rest.startswith(b"HTTP/1.1 "):
            raise Mistake(f"to a half-closed client: {rest[:100]!r}")


async def disconnect(c):
    """FIN or RST in each stage of a request."""
    stage = c.random.choice(["connect", "line", "headers", "body", "queued", "waiting", "answered", "streaming"])
    stream = stage in ("answered", "streaming")
    data = long_answer(c, 200, stream or c.random.random() < 0.5, **c.random.choice(LONG + FORMATS))
    body = data.index(b"\r\n\r\n") + 4
    cut = {"connect": 0, "line": c.random.randint(1, 20), "headers": c.random.randint(40, body - 2),
           "body": c.random.randint(body, len(data) - 1)}.get(stage, len(data))
    c.statuses[f"gone: {stage}"] += 1
    async with Wire(c.port) as w:
        await w.send(data[:cut])
        if stage == "waiting" or cut < len(data):
            await asyncio.sleep(c.random.uniform(0, 0.5))
        if stream:
            events = await read_head_of_stream(c, w)
            if not events:
                return
            await read_some(c, events, c.random.randint(1, 6) if stage == "streaming" else 0)
        if c.random.random() < 0.5:
            w.reset()


# How often each is drawn. Those who ask the engine for something are about half; the slow ones hold their client for seconds.
WEIGHTS = {
    chat: 16, choices: 3, tokens: 3, completion: 8, keep_alive: 8,
    pipelining: 6, chunked_upload: 5, expect_continue: 3, head_and_old_version: 2,
    wrong_method: 3, wrong_body: 4, huge_headers: 3, huge_body: 2, smuggling: 3, garbage: 3,
    slow_reader: 6, dead_reader: 0.3, slowloris: 2, idle: 4, partial_body: 4,
    half_close: 6, half_close_early: 4, disconnect: 14,
}
