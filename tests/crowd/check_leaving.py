# SPDX-License-Identifier: Apache-2.0
# ctest: slow, tsan
"""Clients that are killed in each stage of a request, with classes; streams that stand still when their client leaves or the server
stops; and reactive requests beside a long queue of the background."""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "api")]
from crowd import shallow_model  # noqa: E402
from support_cases import CHAT, text_of, user  # noqa: E402
from support_classes import BACKGROUND, LONG, REACTIVE, SHORT, STREAMS, Open, send  # noqa: E402
from support_crowd import is_plain  # noqa: E402
from support_server import Server, run_checks  # noqa: E402

STAGES = ["connected", "head", "body", "sent", "whole", "queued", "prefill", "streaming", "suspended", "suspended early", "retry"]
RETRY = {"x-stainless-retry-count": "1"}
GONE_S = 5 if is_plain() else 60
FIRST_LAUNCH_MS = 250  # P95 beside 300 of the background: generous, since others use the machine meanwhile


def listed(s):
    return send(s, "GET", STREAMS)[2]["data"]


def wait_idle(s, why):
    end = time.monotonic() + GONE_S
    while (left := listed(s)) or s.ask("/health")[2]["running"] or s.ask("/health")[2]["queued"]:
        assert time.monotonic() < end, f"{why}: {len(left)} streams are left: {left[:2]}"
        time.sleep(0.02)
    s.check_idle()


def check_killed_in_each_stage(s):
    wanted = text_of(send(s, "POST", CHAT, SHORT))
    for stage in STAGES:
        n = 12 if stage != "streaming" and stage != "suspended" else 4  # more than places, unless all of them have to run
        victim = subprocess.Popen([sys.executable, "-B", HERE / "victim.py", str(s.port), stage, str(n)], stdout=subprocess.PIPE, text=True)
        try:
            names = json.loads(victim.stdout.readline())
            time.sleep(0.2)
            if stage.startswith("suspended"):
                assert [x["state"] for x in listed(s)] == ["suspended"] * n, listed(s)
        finally:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            victim.stdout.close()
        wait_idle(s, f"killed when {stage}")
        for name in names:
            ended = send(s, "GET", f"{STREAMS}/{name}")[2]
            assert (ended["state"], ended["status"]) == ("cancelled", 499), (stage, ended)
        for headers in (REACTIVE, BACKGROUND):
            assert text_of(send(s, "POST", CHAT, SHORT, headers)) == wanted, stage
    metrics = s.metrics()
    assert metrics["troika_bytes_copied_total"] == 0 and metrics["troika_failed_total"] == 0, metrics["troika_failed_total"]


def check_suspends_and_leaves(s):
    """In decode, in its prompt and in the queue; with FIN and with RST."""
    busy = []
    for where in ("decode", "prefill", "queued"):
        if where == "queued":
            busy = [Open(s, LONG | {"messages": user(f"{i} Go on.")}, REACTIVE) for i in range(4)]
            for one in busy:
                one.wait("decode")
        for headers in (REACTIVE, BACKGROUND):
            for leave in (Open.close, Open.reset):
                words = "many words that it has to read " * 100 if where == "prefill" else "Go on."
                one = Open(s, LONG | {"messages": user(f"{time.monotonic()} {words}")}, headers)
                if where != "prefill":
                    one.wait(where)
                assert send(s, "PATCH", f"{STREAMS}/{one.name}", {"state": "suspended"})[2]["state"] == "suspended"
                time.sleep(0.1)
                assert one.look()["state"] == "suspended", one.look()
                leave(one)
                assert one.wait("cancelled", seconds=GONE_S)["status"] == 499
    for one in busy:
        one.reset()
    wait_idle(s, "suspended and left")


def check_owner_is_suspended_and_leaves(s):
    """Who attached does not stand still with the first one, and goes on alone."""
    body = SHORT | {"messages": user("Count as far as you can."), "stream": True, "ignore_eos": True, "max_tokens": 120}
    alone = Open(s, body).text()
    for when in ("before", "after"):
        first = Open(s, body, BACKGROUND)
        first.wait("decode")
        if when == "before":
            send(s, "PATCH", f"{STREAMS}/{first.name}", {"state": "suspended"})
        second = Open(s, body, RETRY)
        assert second.wait("decode")["attached"]
        if when == "after":
            send(s, "PATCH", f"{STREAMS}/{first.name}", {"state": "suspended"})
        first.reset()
        assert second.text() == alone, when
    wait_idle(s, "the owner left")


def check_readers_leave_at_once(s):
    """Several readers of one answer, all of whom go within moments: nothing is left; and one that comes just then gets all of it."""
    body = SHORT | {"messages": user("Count as far as you can."), "stream": True, "ignore_eos": True,
                    "max_tokens": 40 if is_plain() else 200}  # the shallow model is faster
    alone = Open(s, body).text()
    for i in range(60 if is_plain() else 20):
        readers = [Open(s, body, BACKGROUND)] + [Open(s, body, RETRY) for _ in range(3)]
        for one in readers:
            one.head()
        time.sleep(i // 2 % 10 * 0.004)
        threads = [threading.Thread(target=one.reset) for one in readers]
        for thread in threads:
            thread.start()
        late = Open(s, body, RETRY) if i % 2 else None
        for thread in threads:
            thread.join()
        if late:
            assert late.text() == alone, i
            late.close()
    wait_idle(s, "all readers left")


def check_stops_with_suspended_streams(model):
    """The drain comes to its end, and so does the server; a second signal does not wait for it."""
    for signals, least, most in ((1, 2, 2 + GONE_S), (2, 0, GONE_S)):
        with Server(*model, "--context", "1024", "--parallel", "2", "--drain", "2" if signals == 1 else "600") as s:
            streams = [Open(s, LONG | {"messages": user(f"{i} Go on.")}, headers) for i, headers in enumerate((REACTIVE, BACKGROUND) * 2)]
            for one in streams:
                assert send(s, "PATCH", f"{STREAMS}/{one.name}", {"state": "suspended"})[0] == 200
            begun = time.monotonic()
            for _ in range(signals):
                s.process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            assert s.process.wait(60) == 0
            assert least <= time.monotonic() - begun < most + 0.3 * signals, time.monotonic() - begun
            for one in streams:
                assert b"[DONE]" not in one.rest() and b'"error"' in one.seen, one.seen[-300:]


def check_reactive_beside_a_long_queue(model):
    n = 300 if is_plain() else 60
    with Server(*model, "--context", "512", "--parallel", "4", "--queue-max", "400") as s:
        asked = [LONG | {"messages": user(f"{i} Tell me all about the number {i * 7919}."), "max_tokens": 100} for i in range(n)]
        low = [Open(s, body, BACKGROUND) for body in asked]
        for one in low:
            one.head()
        health = s.ask("/health")[2]
        assert health["running"] == 4 and health["queued"] == n - 4, health
        times = []
        for i in range(40 if is_plain() else 10):
            status, headers, answer = send(s, "POST", CHAT, SHORT | {"messages": user(f"{i} Name three colours.")}, REACTIVE)
            assert status == 200 and headers["x-troika-band"] == "R", answer
            times.append(answer["timings"]["first_launch_ms"])
            time.sleep(i % 7 * 0.01)
        times.sort()
        p95 = times[int(len(times) * 0.95) - 1]
        health = s.ask("/health")[2]
        print(f"# first launch beside {health['queued']} that wait: P50 {times[len(times) // 2]:.2f} ms, P95 {p95:.2f}, "
              f"most {times[-1]:.2f}", flush=True)
        assert health["queued"] > n / 2, health
        assert p95 < FIRST_LAUNCH_MS or not is_plain(), times
        for one in low:
            one.reset()
        wait_idle(s, "the background left")


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = [] if is_plain() else shallow_model(pathlib.Path(folder))[:2]
        with Server(*model, "--context", "4096", "--parallel", "4", "--queue-max", "64") as s:
            run_checks([(check, s) for check in (
                check_killed_in_each_stage, check_suspends_and_leaves, check_owner_is_suspended_and_leaves, check_readers_leave_at_once)]
                + [(check, model) for check in (check_stops_with_suspended_streams, check_reactive_beside_a_long_queue)])


if __name__ == "__main__":
    main()
