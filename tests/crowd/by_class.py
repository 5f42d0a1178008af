# SPDX-License-Identifier: Apache-2.0
"""What the clients do with classes: streams that are steered by name, autocomplete, retries, subagents, deadlines, a greedy key. As
behaviours.py, whose behaviours are drawn as well: WEIGHTS has all of them."""
import asyncio
import json
import re

import behaviours
from behaviours import CHAT, COMPLETIONS, check_class, check_whole, read_head_of_stream, read_some, read_stream
from who import AGENTS, CAPPED, GREEDY, GREEDY_REACTIVE_MAX, KEYS, Who, explicit, hardly_anybody, somebody
from wire import KEY, Events, Mistake, Wire, expect_error, request

STREAMS = "/v1/streams"
LIVE = {"preparing", "queued", "prefill", "decode", "suspended", "ending"}
STATES = LIVE | {"done", "cancelled", "refused", "failed"}
SAMPLE = re.compile(rb'troika_[a-z_]+(\{[^{}]*\})? [-+0-9.e]+(inf|nan)?')


async def control(c, method, path, body=None, key=KEY, statuses=(200, 404, 409)):
    """A request beside a stream, on a connection of its own; its answer."""
    async with Wire(c.port) as w:
        await w.send(request(method, path, body, key=key))
        answer = await c.within(w.response())
        c.count(answer)
        if answer.status != 200 or 200 not in statuses:
            error = expect_error(answer, *statuses)
            if answer.status != 429 and error["code"] not in ("stream_not_found", "stream_ended", "class_capped"):
                raise Mistake(f"{method} {path}: {error}")
        w.expect_quiet()
        return answer


def check_stream(one, name=None):
    if one.get("state") not in STATES or one.get("class") not in ("reactive", "proactive") or one.get("band") not in ("R", "I", "P") \
            or one.get("object") != "stream" or (name and one["id"] != name) or one["age_ms"] < 0:
        raise Mistake(f"a stream: {one}")
    return one


async def wait_gone(c, name, key):
    """Until nothing is left of it; that has to be soon."""
    for _ in range(int(c.patience / 6 / 0.25)):
        answer = await control(c, "GET", f"{STREAMS}/{name}", key=key)
        if answer.status == 404 or check_stream(answer.json(), name)["state"] not in LIVE:
            return
        await asyncio.sleep(0.25)
    raise Mistake(f"left and still there after {c.patience / 6:.0f} s: {answer.body[:400]!r}")


async def patch(c, name, who, body):
    """One PATCH; what it says counts at once, in its own answer."""
    capped = who.key == CAPPED and body.get("class") == "reactive"
    answer = await control(c, "PATCH", f"{STREAMS}/{name}", body, who.key, (403, 404, 409) if capped else (200, 404, 409))
    c.statuses[f"PATCH {'/'.join(body)} {answer.status}"] += 1
    if answer.status != 200:
        return
    now = check_stream(answer.json(), name)
    # One that has its whole answer, or a retry's, is as it is.
    if body.get("state") == "suspended" and now["state"] != "suspended" or body.get("state") == "running" and now["state"] == "suspended":
        raise Mistake(f"{body} gave {now}")
    if "class" in body and not now["attached"] and now["class"] != body["class"]:
        raise Mistake(f"{body} gave {now}")


async def steer(c):
    """A stream that is raised, lowered, suspended and resumed while it is computed; its text is the same. Or it is cancelled, or its
    client leaves while it stands still."""
    known, who = c.known("long"), hardly_anybody(c)
    async with Wire(c.port) as w:
        await w.send(who.ask(CHAT, known["body"] | {"stream": True}))
        events = await read_head_of_stream(c, w, who)
        if not events:
            return
        for _ in range(c.random.randint(1, 5)):
            await asyncio.sleep(c.random.uniform(0, 0.4))
            await patch(c, events.stream, who, c.random.choice([
                {"class": "reactive"}, {"class": "proactive"}, {"state": "suspended"}, {"state": "running"},
                {"class": "proactive", "state": "suspended"}, {"class": "reactive", "state": "running"}]))
        end = c.random.choice(["finish", "finish", "delete", "leave", "leave suspended"])
        c.statuses[f"steered: {end}"] += 1
        if end == "finish":
            await patch(c, events.stream, who, {"state": "running"})
            await read_stream(c, w, known, events)
            return
        if end == "delete":
            await control(c, "DELETE", f"{STREAMS}/{events.stream}", key=who.key)
            await read_stream(c, w, known, events, codes=("overloaded", "cancelled"))
            return
        if end == "leave suspended":
            await patch(c, events.stream, who, {"state": "suspended"})
        if c.random.random() < 0.5:
            w.reset()
    await wait_gone(c, events.stream, who.key)


async def looking_on(c):
    """Lists, single streams, metrics: all whole, whatever the others do at the moment."""
    key = c.random.choice(list(KEYS))
    listed = [check_stream(one) for one in (await control(c, "GET", STREAMS, key=key, statuses=(200,))).json()["data"]]
    if any(one["state"] not in LIVE for one in listed):
        raise Mistake(f"among the live ones: {listed}")
    if listed:
        one = c.random.choice(listed)
        answer = await control(c, "GET", f"{STREAMS}/{one['id']}", key=key)
        if answer.status == 200:
            check_stream(answer.json(), one["id"])
        other = c.random.choice([k for k in KEYS if k != key])
        await control(c, c.random.choice(["GET", "DELETE"]), f"{STREAMS}/{one['id']}", key=other, statuses=(404,))
    await control(c, "GET", f"{STREAMS}/stream-{c.random.getrandbits(128):032x}", key=key, statuses=(404,))
    async with Wire(c.port) as w:
        await w.send(request("GET", "/metrics", key=key))
        answer = await c.within(w.response())
        c.count(answer)
    wrong = [line for line in answer.body.splitlines() if not line.startswith(b"# ") and not SAMPLE.fullmatch(line)]
    if wrong or b"\ntroika_bytes_copied_total 0\n" not in answer.body:
        raise Mistake(f"/metrics: {wrong[:3]} {answer.body[:200]!r}")


async def typing(c):
    """Autocomplete: a request for each keystroke, of which only the latest counts; the editor drops some itself."""
    session = f"typing-{c.random.getrandbits(64):x}"
    text = "The quick brown fox jumps over the lazy dog"
    who = Who(None, [f"X-Session-Id: {session}", "x-troika-latest: 1"], {"service_tier": c.random.choice(["fast", "flex"])})
    asked, dropped = [], 0

    async def keystroke(n, stream):
        body = {"prompt": text[:n], "max_tokens": 6, "temperature": 0, "stream": stream}
        async with Wire(c.port) as w:
            await w.send(who.ask(COMPLETIONS, body))
            answer = await c.within(w.head())
            if answer.status != 200 or not stream:
                answer.body = await w.exactly(int(answer.headers["content-length"]))
                if answer.status != 409:
                    return check_whole(c, answer, None) and "whole"
                c.count(answer)
                return expect_error(answer, 409)["code"]
            c.count(answer)
            check_class(c, answer.headers, who)
            _, last = await read_stream(c, w, events=Events(w), codes=("overloaded", "superseded"))
            return last if isinstance(last, str) else "whole"

    try:
        for n in range(c.random.randint(3, 8)):
            if asked and c.random.random() < 0.25:
                asked[-1].cancel()
                dropped += 1
            asked.append(asyncio.create_task(keystroke(4 + 3 * n, c.random.random() < 0.5)))
            await asyncio.sleep(c.random.uniform(0.02, 0.25))
        ends = await asyncio.gather(*asked, return_exceptions=True)
    finally:
        for task in asked:
            task.cancel()
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, asyncio.CancelledError):
            raise end
    ends = [end for end in ends if not isinstance(end, BaseException)]
    c.statuses["superseded"] += ends.count("superseded")
    if set(ends) - {"whole", "superseded", "overloaded", None} or (not dropped and set(ends) == {"superseded"}):
        raise Mistake(f"{dropped} dropped, the others ended as {ends}")


async def retry(c):
    """The same body again, after or before the first one leaves, or while both stay: each that stays is whole, and the same if it is the
    same answer."""
    drawn, known = c.random.random() < 0.5, c.known("long")
    if drawn:
        question = [{"role": "user", "content": f"Tell me of number {c.random.getrandbits(40)}."}]
        known = {"body": {"messages": question, "max_tokens": c.tokens(40), "ignore_eos": True}}
    first, second = explicit(c, 0.15), explicit(c, 0.15)
    second.headers.append(f"x-stainless-retry-count: {c.random.randint(1, 3)}")
    first.body, second.body = {}, {}  # a class in the body would make it another one
    first.class_ = second.class_ = None
    first.prefix = second.prefix = ""
    stream, leaves = c.random.random() < 0.5, c.random.choice(["before", "at once", "later", "never"])
    c.statuses[f"first one leaves: {leaves}"] += 1

    async def answer_of(w):
        if stream:
            text, last = await read_stream(c, w, None if drawn else known)
            return (text, last["troika"]["attached"]) if text is not None else None
        a = check_whole(c, await c.within(w.response()), None if drawn else known)
        return a and (a["choices"][0]["message"]["content"], a["troika"]["attached"])

    async with Wire(c.port) as one, Wire(c.port) as two:
        await one.send(first.ask(CHAT, known["body"] | {"stream": stream}))
        await asyncio.sleep(c.random.uniform(0, 0.6))
        if leaves == "before":
            one.reset()
        await two.send(second.ask(CHAT, known["body"] | {"stream": stream}))
        if leaves == "at once":
            one.reset()
        elif leaves == "later":
            await asyncio.sleep(c.random.uniform(0, 0.4))
            one.reset()
        if leaves != "never":
            got = await answer_of(two)
        else:
            before, got = await asyncio.gather(answer_of(one), answer_of(two))
            if before and got and got[1] and before[0] != got[0]:
                raise Mistake(f"attached, and {got[0]!r} instead of {before[0]!r}")
        c.statuses["attached" if got and got[1] else "not attached"] += 1


async def subagents(c):
    """A turn of a parent, then children of it beside each other, which say nothing themselves."""
    name, key = f"parent-{c.random.getrandbits(48):x}", c.random.choice([KEY, AGENTS])
    parent = Who("reactive", [f"X-Session-Id: {name}"], key=key)

    async def one(who):
        known = c.known("chat")
        async with Wire(c.port) as w:
            await w.send(who.ask(CHAT, known["body"]))
            a = check_whole(c, await c.within(w.response()), known, who=who)
            if a and who is not parent and a["troika"]["decided_by"] != "parent":
                raise Mistake(f"a child's class: {a['troika']}")

    await one(parent)
    children = [Who(None, [f"X-Session-Id: {name}-{i}", f"X-Parent-Session-Id: {name}"], key=key) for i in range(c.random.randint(1, 3))]
    await asyncio.gather(*[one(child) for child in children])


async def deadline(c):
    """An answer that is too long for its deadline, or just not."""
    ms, stream = c.random.choice([1, 50, 300, 1000, 3000]), c.random.random() < 0.5
    kind = c.random.choice(["x-troika-deadline-ms", "x-troika-first-deadline-ms", "deadline_ms", "x-stainless-read-timeout"])
    who = somebody(c)
    if kind == "deadline_ms":
        who.body = {"troika": who.body.get("troika", {}) | {kind: ms}}
        who.class_ = None
    elif kind == "x-stainless-read-timeout":
        stream = False
        who.headers.append(f"{kind}: {ms / 1000}")
    else:
        who.headers.append(f"{kind}: {ms}")
    body = {"messages": [{"role": "user", "content": "Count to a thousand."}], "max_tokens": c.tokens(120), "ignore_eos": True}
    async with Wire(c.port) as w:
        begun = asyncio.get_running_loop().time()
        await w.send(who.ask(CHAT, body | {"stream": stream}))
        answer = await c.within(w.head())
        if answer.status == 200 and stream:
            c.count(answer)
            check_class(c, answer.headers, who)
            await read_stream(c, w, events=Events(w), codes=("overloaded", "deadline_exceeded"))
            return
        answer.body = await w.exactly(int(answer.headers["content-length"]))
        if answer.status != 504:
            check_whole(c, answer, None, who=who)
            return
        c.count(answer)
        if expect_error(answer, 504)["code"] != "deadline_exceeded":
            raise Mistake(f"504: {answer.body[:200]!r}")
        took = asyncio.get_running_loop().time() - begun
        if not ms / 1000 - 0.01 <= took <= ms / 1000 + c.patience / 6:
            raise Mistake(f"a deadline of {ms} ms ended it after {took:.3f} s")


async def greedy(c):
    """A key that calls everything reactive: not more of it than it may is, at any time, by PATCH neither."""
    who = Who(None, ["x-troika-class: reactive"], key=GREEDY)

    async def one():
        async with Wire(c.port) as w:
            await w.send(who.ask(CHAT, c.known("long")["body"] | {"stream": True}))
            events = await read_head_of_stream(c, w, who)
            if not events:
                return
            listed = (await control(c, "GET", STREAMS, key=GREEDY, statuses=(200,))).json()["data"]
            reactive = [x for x in listed if x["class"] == "reactive"]
            if len(reactive) > GREEDY_REACTIVE_MAX:
                raise Mistake(f"{len(reactive)} are reactive: {reactive}")
            low = [x["id"] for x in listed if x["class"] == "proactive"]
            if low:
                answer = await control(c, "PATCH", f"{STREAMS}/{c.random.choice(low)}", {"class": "reactive"}, GREEDY,
                                       (200, 403, 404, 409))
                c.statuses[f"greedy PATCH {answer.status}"] += 1
            if c.random.random() < 0.5:
                await read_stream(c, w, events=events)
            else:
                await read_some(c, events, c.random.randint(0, 4))

    await asyncio.gather(*[one() for _ in range(c.random.randint(2, 4))])


async def wrong_class(c):
    """What asks for something and is wrong is refused."""
    headers, body = c.random.choice([
        (["x-troika-class: urgent"], {}), ([], {"service_tier": "gold"}), ([], {"priority": "high"}), ([], {"nvext": 3}),
        ([], {"nvext": {"agent_hints": {"priority": 1.5}}}), ([], {"troika": {"class": 1}}), (["x-troika-deadline-ms: soon"], {}),
        (["x-troika-latest: 1"], {}), ([], {"troika": {"deadline_ms": 0}})])
    async with Wire(c.port) as w:
        await w.send(request("POST", CHAT, c.known("chat")["body"] | body, headers))
        answer = await c.within(w.response())
        c.count(answer)
        expect_error(answer, 400)
        data = c.random.choice([b"", b"{", b"[]", b'{"class":"urgent"}', b'{"state":7}', json.dumps({"class": "x" * 5000}).encode()])
        await w.send(request("PATCH", f"{STREAMS}/stream-0", data))
        answer = await c.within(w.response())
        c.count(answer)
        expect_error(answer, 400, 413)
        w.expect_quiet()


async def left_suspended(c):
    """Suspended as soon as it has a name, in the queue or in its prompt, and left."""
    who = somebody(c)
    prompt = " ".join(str(c.random.randrange(1000)) for _ in range(c.random.choice([5, 150])))
    async with Wire(c.port) as w:
        await w.send(who.ask(CHAT, {"messages": [{"role": "user", "content": prompt}], "max_tokens": 40, "stream": True}))
        events = await read_head_of_stream(c, w, who)
        if not events:
            return
        await patch(c, events.stream, who, {"state": "suspended"})
        await asyncio.sleep(c.random.uniform(0, 1))
        if c.random.random() < 0.5:
            w.reset()
    await wait_gone(c, events.stream, who.key)


WEIGHTS = behaviours.WEIGHTS | {
    steer: 14, looking_on: 8, typing: 6, retry: 12, subagents: 5, deadline: 6, greedy: 4, wrong_class: 3, left_suspended: 5,
}
