# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases H3, H5 and S10 with requests of both classes; what a retry attaches to; latest-only; a key that calls everything reactive."""
import concurrent.futures
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import ASK, CHAT, COMPLETIONS, choice_text, text_of, tokens_of, user  # noqa: E402
from support_classes import BACKGROUND, LONG, REACTIVE, SHORT, STREAMS, Open, send  # noqa: E402
from support_server import Server, run_checks  # noqa: E402

RETRY = {"x-stainless-retry-count": "1"}
COMMENT = b": keep-alive"


def computed(s):
    return s.metrics()["troika_prompt_tokens_computed_total"]


# --- H3: clients that leave

def check_H3_queued_and_gone_with_classes():
    """One place: A, of either class, runs; B, of either class, waits and goes: it never runs, A and C do."""
    with Server("--context", "1024", "--parallel", "1") as s:
        for a_class, b_class in ((BACKGROUND, BACKGROUND), (REACTIVE, BACKGROUND), (REACTIVE, REACTIVE)):
            a = Open(s, LONG | {"messages": user(f"{time.monotonic()} Tell a long story.")}, a_class)
            a.wait("decode")
            b = Open(s, LONG | {"messages": user(f"{time.monotonic()} Quite another prompt. " * 40)}, b_class)
            b.wait("queued")
            before = computed(s)
            b.reset()
            gone = b.wait("cancelled", seconds=2)
            assert gone["completion_tokens"] == gone["computed_tokens"] == 0 and gone["timings"]["prefill_ms"] == 0, gone
            assert computed(s) == before and a.look()["state"] == "decode", "A was touched, or B was computed"
            made = a.look()["completion_tokens"]
            c = Open(s, SHORT | {"stream": True}, REACTIVE)
            time.sleep(0.3)
            assert a.look()["completion_tokens"] > made or a.look()["class"] == "proactive"
            a.reset()
            assert c.chunks()[-1]["choices"][0]["finish_reason"]
            s.check_idle()


def check_H3_background_gives_way_and_comes_back():
    """One place and the background in it: a reactive request does not wait for its end, and both end as if alone."""
    with Server("--context", "1024", "--parallel", "1") as s:
        body = {"messages": user("Count as far as you can."), "temperature": 0, "stream": True, "ignore_eos": True, "max_tokens": 200}
        alone, short = Open(s, body, BACKGROUND).text(), text_of(send(s, "POST", CHAT, SHORT))
        low = Open(s, body, BACKGROUND)
        low.wait("decode")
        for _ in range(3):
            assert text_of(send(s, "POST", CHAT, SHORT, REACTIVE)) == short
        assert low.look()["state"] in ("queued", "prefill", "decode"), "the background did not last"
        assert low.text() == alone


def check_H3_gone_in_prefill_with_classes():
    words = "The quick brown fox jumps over the lazy dog again and again. " * 550  # about 7,000 tokens, many seconds
    with Server("--parallel", "2") as s:
        for headers in (BACKGROUND, REACTIVE):
            for stream in (True, False):
                request = Open(s, LONG | {"messages": user(f"{time.monotonic()} {words}"), "stream": stream},
                               headers | {"X-Session-Id": "prefill"})
                assert s.wait_running(1, 20) is not None
                time.sleep(0.3)
                request.reset()
                took = s.wait_running(0, 20)
                assert took is not None and took < 2, took
                launches = s.metrics()["troika_launches_total"]
                time.sleep(0.3)
                assert s.metrics()["troika_launches_total"] == launches, "it is still computed"


# --- H5: a full queue

def check_H5_says_when():
    """Retry-After is a prediction: what is before it in a full queue; what one of the key's answers takes. A quarter more, or a second."""
    def within(headers, least_s, most_s):
        told = int(headers["retry-after-ms"]) / 1000
        assert min(45, max(1, least_s)) - 0.01 <= told <= min(60, max(most_s * 1.25, most_s + 1, 2)), (least_s, told, most_s)
        assert abs(int(headers["Retry-After"]) - told) <= 0.501, headers

    with Server("--context", "1024", "--parallel", "1", "--queue-max", "2") as s:
        held = []
        for i in range(3):
            held.append(Open(s, LONG | {"troika": {"expected_tokens": 300}, "messages": user(f"{i} Tell a story.")}, BACKGROUND))
            held[-1].wait("queued", "decode")
        held[0].wait("decode")
        before = s.metrics()["troika_backlog_seconds"]
        status, headers, answer = send(s, "POST", CHAT, SHORT, BACKGROUND)
        after = s.metrics()["troika_backlog_seconds"]
        assert status == 429 and answer["error"]["code"] == "queue_full" and after > 2, (answer, after)
        within(headers, min(before, after) * 0.8, max(before, after) * 1.2)
        for stream in held:
            stream.reset()
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("sk-a max=1\n")
        keys.flush()
        with Server("--context", "1024", "--parallel", "2", "--api-key-file", keys.name) as s:
            key = {"Authorization": "Bearer sk-a"}
            begun = time.monotonic()
            assert send(s, "POST", CHAT, LONG | {"stream": False, "max_tokens": 300}, key)[0] == 200
            took = time.monotonic() - begun
            one = Open(s, LONG, key)
            one.wait("decode")
            status, headers, answer = send(s, "POST", CHAT, SHORT, key)
            assert status == 429 and answer["error"]["code"] == "key_limit", answer
            within(headers, took - 0.3, took)
            one.reset()


def check_H5_six_requests_of_both_classes():
    with Server("--context", "1024", "--parallel", "1", "--queue-max", "1") as s:
        body = {"messages": ASK, "ignore_eos": True, "max_tokens": 60}

        def one(i):
            begun = time.monotonic()
            stream = bool(i & 2)
            if not stream:
                return send(s, "POST", CHAT, body, BACKGROUND if i & 1 else {}) + (time.monotonic() - begun,)
            request = Open(s, body | {"stream": True}, BACKGROUND if i & 1 else {})
            status = int(request.head().split()[1])
            took = time.monotonic() - begun
            if status == 200 and b'"code":"overloaded"' in request.rest():
                assert i & 1, request.seen  # background that had begun to wait when a person came
                return 429, {"Retry-After": "1", "retry-after-ms": "1000"}, None, took
            if status == 200:
                request.chunks()
            headers = {name: request.header(name) for name in ("Retry-After", "retry-after-ms")} if status == 429 else {}
            return status, headers, None, took

        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers = [a.result() for a in [pool.submit(one, i) for i in range(6)]]
            refused = [a for a in answers if a[0] == 429]
            assert sorted(a[0] for a in answers) == [200] * 2 + [429] * 4, [a[0] for a in answers]
            for _, headers, answer, took in refused:
                assert 1 <= int(headers["Retry-After"]) <= 60 and 1000 <= int(headers["retry-after-ms"]) <= 60000 and took < 2, headers
                assert answer is None or answer["error"]["code"] in ("queue_full", "overloaded"), answer
        assert sum(s.metrics()[f'troika_refused_total{{reason="{reason}"}}'] for reason in ("queue_full", "overloaded")) == 12
        s.check_idle()


# --- S10: a long prompt and a queue, and a client that wants to hear something

def check_S10_headers_and_comments():
    """One place: a long prompt, and one of each class that waits behind it. Headers at once, comments at the interval."""
    prompt = "So many words that it takes its time. " * 850  # about 7,000 tokens
    with Server("--parallel", "1", "--keep-alive", "1") as s:
        body = LONG | {"max_tokens": 1}
        requests = []
        for headers in (REACTIVE, BACKGROUND, REACTIVE):
            request = Open(s, body | {"messages": user(f"{len(requests)} {prompt}")}, headers)
            request.head()
            took = time.monotonic() - request.begun
            assert took < 1, f"headers after {took:.2f} s"
            requests.append(request)
        end = time.monotonic() + 5.5
        while time.monotonic() < end:
            for request in requests:
                request.more(0.05)
        for request in requests:
            done = b"[DONE]" in request.seen
            assert done or 3 <= request.seen.count(COMMENT) <= 7, (request.header("x-troika-class"), request.seen.count(COMMENT))
        assert b"[DONE]" not in requests[1].seen and b"[DONE]" not in requests[2].seen, "nothing waited"
        for request in requests:
            request.reset()


def check_S10_no_comments_if_the_interval_is_zero():
    with Server("--context", "1024", "--parallel", "1", "--keep-alive", "0") as s:
        running, waiting = Open(s, LONG, REACTIVE), Open(s, LONG, BACKGROUND)
        waiting.wait("queued")
        assert waiting.more(2.5).count(COMMENT) == 0 and COMMENT not in waiting.seen
        running.reset()
        waiting.reset()


# --- a retry attaches

def check_retry_attaches(s):
    """The same body again while the first still runs: nothing is computed twice, and both get all of it."""
    body = {"messages": user(f"{time.monotonic()} Count as far as you can. " * 8), "temperature": 1, "stream": True, "ignore_eos": True,
            "max_tokens": 120}
    first = Open(s, body, BACKGROUND)
    first.wait("decode")
    before = computed(s)
    second = Open(s, body, RETRY)
    now = second.wait("decode")
    assert now["attached"] and now["class"] == "reactive", now  # the more urgent of the two
    assert first.look()["band"] == "R", first.look()
    texts = first.text(), second.text()
    assert texts[0] == texts[1] and len(texts[0]) > 50, texts  # drawn at random, so it is one answer
    assert computed(s) == before, "the prompt was computed again"
    last = [x.chunks()[-1] for x in (first, second)]
    assert [x["troika"]["attached"] for x in last] == [False, True] and last[0]["id"] != last[1]["id"]


def check_retry_outlives_the_first(s):
    """The first client leaves: the answer goes on for the second, whole or as a stream, and ends when that leaves, too."""
    body = LONG | {"messages": user(f"{time.monotonic()} Tell a story."), "max_tokens": 150}
    first = Open(s, body)
    first.wait("decode")
    second, third = Open(s, body, RETRY), Open(s, body, RETRY)
    for request in (second, third):
        assert request.wait("decode")["attached"]
    first.reset()
    first.wait("cancelled", seconds=5)
    third.reset()
    last = second.chunks()[-1]
    assert last["choices"][0]["finish_reason"] == "length" and last["troika"]["attached"], last
    first = Open(s, LONG)
    first.wait("decode")
    second = Open(s, LONG, RETRY)
    second.wait("decode")
    first.reset()
    second.reset()
    assert s.wait_running(0, 5) is not None, "nobody reads it, and it runs on"


def check_retry_of_several_answers(s):
    body = {"prompt": [f"{time.monotonic()} One, two,", "Red, green,"], "n": 2, "max_tokens": 100, "ignore_eos": True, "temperature": 1}
    start = computed(s)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, s, "POST", COMPLETIONS, body, {})
        while not (seen := send(s, "GET", STREAMS)[2]["data"]) or computed(s) < start + 2 * seen[0]["prompt_tokens"]:
            assert not first.done(), first.result()
            time.sleep(0.01)
        assert s.wait_running(4, 20) is not None
        before = computed(s)
        second = pool.submit(send, s, "POST", COMPLETIONS, body, RETRY).result()
        first = first.result()
    assert first[0] == second[0] == 200 and second[2]["troika"]["attached"], second
    assert [choice_text(c) for c in first[2]["choices"]] == [choice_text(c) for c in second[2]["choices"]]
    assert first[2]["usage"]["completion_tokens"] == second[2]["usage"]["completion_tokens"] == 400 and computed(s) == before


def check_retry_of_another_body_or_none(s):
    first = Open(s, LONG)
    first.wait("decode")
    for body, headers in ((LONG | {"max_tokens": 899}, RETRY), (LONG, {})):
        other = Open(s, body, headers)
        assert not other.wait("decode")["attached"], body
        other.reset()
    first.reset()
    s.check_idle()
    assert text_of(send(s, "POST", CHAT, SHORT, RETRY)) == text_of(send(s, "POST", CHAT, SHORT))  # nothing to attach to


def check_retry_races_with_the_end(s):
    """A retry that comes just when the first one ends, or is cancelled, is whole in any case."""
    body = SHORT | {"max_tokens": 3, "ignore_eos": True}
    wanted = text_of(send(s, "POST", CHAT, body))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i in range(60):
            first = Open(s, body | {"stream": bool(i & 1)})
            tries = [pool.submit(send, s, "POST", CHAT, body | {"stream": False}, RETRY) for _ in range(2)]
            time.sleep(i % 20 * 0.002)
            first.reset()
            for answer in tries:
                assert text_of(answer.result()) == wanted
    stream = body | {"stream": True}
    for i in range(40):
        first = Open(s, stream)
        time.sleep(i % 20 * 0.002)
        second = Open(s, stream, RETRY)
        first.reset()
        assert second.text() == wanted
    s.check_idle()


def check_retry_stays_within_the_key():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("sk-one\nsk-two\n")
        keys.flush()
        for options in ((), ("--share-cache",)):
            with Server("--context", "1024", "--parallel", "4", "--api-key-file", keys.name, *options) as s:
                one, two = ({"Authorization": f"Bearer sk-{name}"} for name in ("one", "two"))
                first = Open(s, LONG, one)
                first.wait("decode")
                assert Open(s, LONG, one | RETRY).wait("decode")["attached"]
                assert not Open(s, LONG, two | RETRY).wait("decode")["attached"]


# --- the latest only

def check_latest_only(s):
    typing = {"X-Session-Id": f"typing-{time.monotonic()}", "x-troika-latest": "1"}
    busy = [Open(s, LONG | {"messages": user(f"{i} Tell a story.")}) for i in range(4)]
    for stream in busy:
        stream.wait("decode")
    first = Open(s, LONG | {"max_tokens": 5}, typing)
    first.wait("queued")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        second = pool.submit(send, s, "POST", CHAT, SHORT, typing)
        error = first.error()
        assert (error["code"], error["type"]) == ("superseded", "conflict_error"), error
        others = [Open(s, SHORT | {"stream": True}, {"X-Session-Id": "another", "x-troika-latest": "1"}),
                  Open(s, SHORT | {"stream": True}, {"X-Session-Id": typing["X-Session-Id"]})]
        third = Open(s, LONG | {"max_tokens": 5}, typing)
        status, headers, answer = second.result()
        assert status == 409 and answer["error"]["code"] == "superseded" and headers["x-should-retry"] == "false", answer
        assert third.look()["state"] == "queued" and all(o.look()["state"] == "queued" for o in others)
        assert s.metrics()['troika_refused_total{reason="superseded"}'] >= 2
        for stream in busy:
            stream.reset()
        assert third.chunks()[-1]["choices"][0]["finish_reason"] == "length" and all(o.chunks() for o in others)
    running = Open(s, LONG, typing)  # one that has begun goes on
    running.wait("decode")
    assert send(s, "POST", CHAT, SHORT, typing)[0] == 200
    assert running.look()["state"] == "decode"
    running.reset()
    assert send(s, "POST", CHAT, SHORT, {"x-troika-latest": "1"})[0] == 400  # of which session?
    s.check_idle()


# --- a key that calls everything reactive

def check_key_with_limits():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("sk-a reactive-max=2 max=4\n")
        keys.flush()
        # Promoted early, so that the capped request is served while the person's long answer still runs.
        with Server("--context", "1024", "--parallel", "8", "--age-limit", "0.2", "--api-key-file", keys.name) as s:
            key = {"Authorization": "Bearer sk-a"}
            streams = []
            for _ in range(4):
                streams.append(Open(s, LONG, key | REACTIVE))
                streams[-1].head()
            assert [x.header("x-troika-class") for x in streams] == ["reactive"] * 2 + ["proactive"] * 2
            assert [x.look()["capped"] for x in streams] == [False, False, True, True]
            status, headers, answer = send(s, "POST", CHAT, SHORT, key)
            assert status == 429 and answer["error"]["code"] == "key_limit" and int(headers["Retry-After"]) >= 1, answer
            assert send(s, "PATCH", f"{STREAMS}/{streams[3].name}", {"class": "reactive"}, key)[0] == 403
            streams[0].reset()
            streams[0].wait("cancelled", seconds=5)
            assert send(s, "PATCH", f"{STREAMS}/{streams[3].name}", {"class": "reactive"}, key)[2]["class"] == "reactive"
            assert send(s, "POST", CHAT, SHORT, key)[2]["troika"]["capped"]
            for stream in streams[1:]:
                stream.reset()
                stream.wait("cancelled", seconds=5)
            assert not send(s, "POST", CHAT, SHORT, key)[2]["troika"]["capped"]


def main():
    with Server("--context", "1024", "--parallel", "4", "--queue-max", "16") as s:
        run_checks([(check_H3_queued_and_gone_with_classes,), (check_H3_background_gives_way_and_comes_back,),
                    (check_H3_gone_in_prefill_with_classes,), (check_H5_says_when,), (check_H5_six_requests_of_both_classes,),
                    (check_S10_headers_and_comments,), (check_S10_no_comments_if_the_interval_is_zero,), (check_retry_attaches, s),
                    (check_retry_outlives_the_first, s),
                    (check_retry_of_several_answers, s), (check_retry_of_another_body_or_none, s), (check_retry_races_with_the_end, s),
                    (check_retry_stays_within_the_key,), (check_latest_only, s), (check_key_with_limits,)])


if __name__ == "__main__":
    main()
