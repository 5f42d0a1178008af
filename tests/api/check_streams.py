# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Requests by name: what /v1/streams shows of them, PATCH, DELETE, keys; headers, `timings`, `troika`, metrics and log lines by class."""
import concurrent.futures
import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import ASK, CHAT, COMPLETIONS, ENDPOINTS, body_for, text_of, user  # noqa: E402
from support_classes import BACKGROUND, LONG, REACTIVE, SHORT, STREAMS, Open, send  # noqa: E402
from support_server import Server, run_checks  # noqa: E402

ABOUT = {"class", "band", "stream", "decided_by", "priority", "capped", "attached", "promoted", "preemptions", "diverged_at",
         "cached_tokens", "queue_ms"}
ENGINE = ("queue_ms", "prefill_ms", "decode_ms", "preempted_ms", "slack_ms", "idle_ms")


def check_headers_and_about(s):
    """The same is said in headers and in the answer, of whole answers and of streams, of both classes and paths."""
    for path in ENDPOINTS:
        for asked, prefix, class_, band, by, tier in (({}, "", "reactive", "R", "default", "default"),
                                                      (BACKGROUND, "", "proactive", "P", "x-troika-class", "flex"),
                                                      (REACTIVE, "", "reactive", "R", "x-troika-class", "priority"),
                                                      ({}, "/bg", "proactive", "P", "path", "flex")):
            status, headers, answer = send(s, "POST", prefix + path, body_for(path), asked)
            assert status == 200, answer
            about = answer["troika"]
            assert set(about) == ABOUT, about
            found = [headers[f"x-troika-{name}"] for name in ("class", "band", "decided-by", "stream")]
            assert found == [about[name] for name in ("class", "band", "decided_by", "stream")], (found, about)
            assert found[:3] == [class_, band, by] and answer["service_tier"] == tier, (found, answer)
            assert int(headers["x-troika-cached-tokens"]) == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert abs(float(headers["x-troika-queue-ms"]) - answer["timings"]["queue_ms"]) < 0.01, headers
            stream = Open(s, body_for(path, stream=True), asked, prefix + path)
            chunks = stream.chunks()
            assert [stream.header(f"x-troika-{name}") for name in ("class", "band", "decided-by")] == [class_, band, by]
            assert all(c["service_tier"] == tier for c in chunks) and set(chunks[-1]["troika"]) == ABOUT, chunks[-1]
            assert chunks[-1]["troika"]["stream"] == stream.name != about["stream"]
            assert "x-troika-queue-ms" not in stream.head()
            stream.close()


def check_what_was_resolved_is_told(s):
    """In the answer, in its stream's last chunk and in /v1/streams, and only where something was."""
    headers = {"x-claude-code-session-id": "s-1", "x-claude-code-agent-id": "scout", "x-openai-subagent": "review",
               "x-troika-deadline-ms": "60000"}
    hints = {"troika": {"first_deadline_ms": 50000, "expected_tokens": 99, "next_use_ms": 0, "steps_to_execution": 2},
             "nvext": {"agent_context": {"trajectory_final": True}, "agent_hints": {"speculative_prefill": True}}}
    names = {"session": "s-1", "agent": "scout", "step": "review"}
    rest = {"parent": "s-1", "deadline_ms": 60000, "first_deadline_ms": 50000, "expected_tokens": 8, "next_use_ms": 0,
            "steps_to_execution": 2, "final": True}  # no more is expected than max_tokens allows
    for path in ENDPOINTS:
        body = body_for(path) | {"max_tokens": 8} | hints
        status, _, answer = send(s, "POST", path, body, headers)
        assert status == 200 and set(answer["troika"]) == ABOUT | set(names) | set(rest), answer
        last = Open(s, body | {"stream": True}, headers, path).chunks()[-1]
        for about in (answer["troika"], last["troika"]):
            assert {name: about[name] for name in names | rest} == names | rest, about
            shown = send(s, "GET", f"{STREAMS}/{about['stream']}")[2]
            assert {name: shown[name] for name in names | rest} == names | rest, shown
        plain = send(s, "POST", path, body_for(path))[2]["troika"]
        shown = send(s, "GET", f"{STREAMS}/{plain['stream']}")[2]
        assert not rest.keys() & shown.keys() and [shown[name] for name in names] == [None] * 3, shown
    about = send(s, "POST", CHAT, SHORT, {"x-stainless-read-timeout": "600"})[2]["troika"]
    assert about["deadline_ms"] == 601000 and not (set(names) | set(rest)) - {"deadline_ms"} & set(about), about
    about = send(s, "POST", CHAT, SHORT | {"messages": [{"role": "user", "name": 'o"\n\u00e9k', "content": "Hi"}], "user": "x" * 5000})[2]
    assert about["troika"]["agent"] == "o????k" and about["troika"]["session"] == "x" * 64, about["troika"]
    planner = [{"role": "system", "content": "You plan."}, {"role": "user", "content": "Go"}]
    about = send(s, "POST", CHAT, SHORT | {"messages": planner, "stop": ["<end_plan>"]})[2]["troika"]
    assert about["agent"].startswith("system-") and about["step"] == "plan", about


def check_errors_name_the_class(s):
    status, headers, answer = send(s, "POST", CHAT, {"messages": user("word " * 3000)}, BACKGROUND)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    assert headers["x-troika-class"] == "proactive" and headers["x-troika-decided-by"] == "x-troika-class", headers
    assert send(s, "GET", f"{STREAMS}/{headers['x-troika-stream']}")[2]["state"] == "refused"
    assert send(s, "POST", CHAT, SHORT, {"x-troika-class": "high"})[0] == 400
    assert send(s, "POST", CHAT, SHORT | {"temperature": 9})[1]["x-troika-class"] is None  # nobody knows yet


def check_timings(s):
    prompt = user("How many? " * 60 + str(time.monotonic()))
    for stream in (False, True):
        answer = Open(s, SHORT | {"messages": prompt, "stream": True, "max_tokens": 24, "ignore_eos": True}).chunks()[-1] if stream \
            else send(s, "POST", CHAT, SHORT | {"messages": prompt, "max_tokens": 24, "ignore_eos": True})[2]
        t = answer["timings"]
        assert all(value >= 0 for value in t.values()), t
        total = sum(t[name] for name in ENGINE)
        assert t["first_token_ms"] <= total and t["gap_ms"] <= total and t["first_launch_ms"] <= t["queue_ms"] + 5, t
        assert t["decode_ms"] > 0 and t["first_token_ms"] > 0 and 0 < t["gap_ms"], t
        assert t["tool_ms"] == 0 and t["blocked_ms"] <= t["queue_ms"] + t["preempted_ms"] + 1, t
        assert answer["troika"]["diverged_at"] >= answer["troika"]["cached_tokens"], answer["troika"]


def check_tool_time(s):
    session = {"X-Session-Id": f"tools-{time.monotonic()}"}
    assert send(s, "POST", CHAT, SHORT, session)[0] == 200
    time.sleep(0.3)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = ASK + [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "7"}]
    status, _, answer = send(s, "POST", CHAT, SHORT | {"messages": messages}, session)
    assert status == 200 and 300 <= answer["timings"]["tool_ms"] < 3000, answer
    assert send(s, "POST", CHAT, SHORT, session)[2]["timings"]["tool_ms"] == 0  # no tool's answer in it


def check_list_and_states(s):
    assert send(s, "GET", STREAMS)[2] == {"object": "list", "data": []}
    running = []
    for i in range(2):  # one after the other, so that the list's order is known
        running.append(Open(s, LONG | {"messages": user(f"{i} Tell a story.")}, {"X-Session-Id": f"s{i}"}))
        assert running[i].wait("decode")["place"] == 0
    waiting = Open(s, LONG, BACKGROUND)
    while not (now := waiting.wait("queued"))["place"]:  # the queue is counted now and then
        time.sleep(0.01)
    assert now["place"] == 1 and (now["class"], now["band"]) == ("proactive", "P") and now["status"] is None, now
    listed = send(s, "GET", STREAMS)[2]["data"]
    assert [one["id"] for one in listed] == [waiting.name, running[1].name, running[0].name], listed
    assert [one["session"] for one in listed] == [None, "s1", "s0"] and all(one["streaming"] for one in listed)
    assert listed[1]["completion_tokens"] > 0 and listed[1]["prompt_tokens"] > 0 and listed[1]["age_ms"] > 0, listed[1]
    before = running[0].look()["completion_tokens"]
    time.sleep(0.5)
    assert running[0].look()["completion_tokens"] > before
    for stream in (waiting, *running):
        stream.reset()
        ended = stream.wait("cancelled", seconds=5)
        assert ended["status"] == 499 and ended["place"] == 0, ended
    assert send(s, "GET", STREAMS)[2]["data"] == []
    s.check_idle()


def check_place_in_the_queue():
    """Those that wait are numbered as they will run: by band, then by arrival; PATCH moves them."""
    with Server("--context", "1024", "--parallel", "1", "--queue-max", "16", "--age-limit", "3600") as s:
        running = Open(s, LONG)
        running.wait("decode")
        waiting = {}

        def come(name, headers):  # prompts of their own: who waits for another's pages lifts it
            waiting[name] = Open(s, LONG | {"messages": user(f"{name} Tell a story.")}, headers)
            waiting[name].wait("queued")  # so that the order of arrival is known

        def places():
            return {name: x.look()["place"] for name, x in waiting.items()}

        def expect(**wanted):
            end = time.monotonic() + 5
            while (now := places()) != wanted:  # the queue is counted every 10 ms
                assert time.monotonic() < end, (now, wanted)
                time.sleep(0.01)

        for i in range(1, 6):
            come(f"b{i}", BACKGROUND)
        expect(b1=1, b2=2, b3=3, b4=4, b5=5)
        come("r1", REACTIVE)
        expect(r1=1, b1=2, b2=3, b3=4, b4=5, b5=6)
        come("b6", BACKGROUND)
        come("r2", {})
        expect(r1=1, r2=2, b1=3, b2=4, b3=5, b4=6, b5=7, b6=8)
        send(s, "PATCH", f"{STREAMS}/{waiting['b4'].name}", {"class": "reactive"})
        expect(b4=1, r1=2, r2=3, b1=4, b2=5, b3=6, b5=7, b6=8)  # it came before the other two
        send(s, "PATCH", f"{STREAMS}/{waiting['r1'].name}", {"class": "proactive"})
        expect(b4=1, r2=2, b1=3, b2=4, b3=5, b5=6, r1=7, b6=8)
        for name in ("b4", "r2", "b1"):  # they run as they are numbered
            assert waiting[name].look()["place"] == 1, places()
            running.reset()
            running = waiting.pop(name)
            assert running.wait("prefill", "decode", seconds=20)["place"] == 0
            expect(**{other: place for place, other in enumerate(
                [n for n in ("b4", "r2", "b1", "b2", "b3", "b5", "r1", "b6") if n in waiting], 1)})
        for stream in (running, *waiting.values()):
            stream.reset()


def check_several_answers_have_one_name(s):
    body = {"prompt": ["One, two,", "Red, green,"], "n": 2, "max_tokens": 6, "ignore_eos": True}
    status, headers, answer = send(s, "POST", COMPLETIONS, body)
    assert status == 200, answer
    ended = send(s, "GET", f"{STREAMS}/{headers['x-troika-stream']}")[2]
    assert (ended["answers"], ended["state"], ended["status"], ended["completion_tokens"]) == (4, "done", 200, 24), ended
    assert ended["prompt_tokens"] == answer["usage"]["prompt_tokens"], (ended, answer["usage"])


def check_patch_class(s):
    stream = Open(s, LONG | {"max_tokens": 100}, BACKGROUND)
    stream.wait("decode")
    status, _, raised = send(s, "PATCH", f"{STREAMS}/{stream.name}", {"class": "reactive"})
    assert status == 200 and (raised["class"], raised["band"], raised["decided_by"]) == ("reactive", "R", "PATCH"), raised
    lowered = send(s, "PATCH", f"{STREAMS}/{stream.name}", {"class": "proactive", "unknown": 1})[2]
    assert (lowered["class"], lowered["band"], lowered["service_tier"]) == ("proactive", "P", "flex"), lowered
    send(s, "PATCH", f"{STREAMS}/{stream.name}", {"class": "reactive"})
    last = stream.chunks()[-1]
    assert (last["troika"]["class"], last["troika"]["band"], last["troika"]["decided_by"]) == ("reactive", "R", "PATCH"), last
    session = {"X-Session-Id": "patched"}  # a class that PATCH has set is the session's from then on
    stream = Open(s, LONG, session)
    stream.wait("decode")
    send(s, "PATCH", f"{STREAMS}/{stream.name}", {"class": "proactive"})
    stream.reset()
    answer = send(s, "POST", CHAT, SHORT, session)
    assert answer[1]["x-troika-class"] == "proactive" and answer[1]["x-troika-decided-by"] == "session", answer[1]


def check_suspend_and_resume(s):
    body = SHORT | {"messages": user("Count as far as you can."), "stream": True, "ignore_eos": True, "max_tokens": 60}
    alone = Open(s, body).text()
    stream = Open(s, body)
    stream.until(b'"content":"', b"assistant").wait("decode")
    status, _, now = send(s, "PATCH", f"{STREAMS}/{stream.name}", {"state": "suspended"})
    assert status == 200 and now["state"] == "suspended", now
    time.sleep(0.2)  # the launch that was on its way
    stream.more(0.1)
    made = stream.look()["completion_tokens"]
    assert stream.more(0.5) == b"" and stream.look()["completion_tokens"] == made < 60, "it goes on"
    assert send(s, "POST", CHAT, SHORT)[0] == 200  # others do
    assert send(s, "PATCH", f"{STREAMS}/{stream.name}", {"state": "running"})[2]["state"] != "suspended"
    assert stream.text() == alone, "the answer is another one"
    t = stream.chunks()[-1]["timings"]
    assert t["preempted_ms"] > 500 and t["gap_ms"] > 500, t


def check_cancel(s):
    other = Open(s, LONG | {"max_tokens": 300})
    for headers in (BACKGROUND, {}):
        stream = Open(s, LONG, headers)
        stream.wait("decode")
        status, _, now = send(s, "DELETE", f"{STREAMS}/{stream.name}")
        assert status == 200 and now["id"] == stream.name and now["state"] in ("ending", "cancelled"), now
        error = stream.error()
        assert (error["code"], error["type"]) == ("cancelled", "conflict_error"), error
        ended = stream.wait("cancelled", seconds=5)
        assert ended["status"] == 409, ended
        for method in ("DELETE", "PATCH"):
            status, head, answer = send(s, method, f"{STREAMS}/{stream.name}", {"class": "reactive"})
            assert status == 409 and answer["error"]["code"] == "stream_ended" and head["x-should-retry"] == "false", answer
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        whole = pool.submit(send, s, "POST", CHAT, LONG | {"stream": False, "n": 2}, {"X-Session-Id": "whole"})
        end = time.monotonic() + 20
        while not (mine := [one for one in send(s, "GET", STREAMS)[2]["data"] if one["session"] == "whole"]):
            assert time.monotonic() < end
        assert send(s, "DELETE", f"{STREAMS}/{mine[0]['id']}")[0] == 200
        status, headers, answer = whole.result()
    assert status == 409 and answer["error"]["code"] == "cancelled" and headers["x-should-retry"] == "false", answer
    assert other.chunks()[-1]["choices"][0]["finish_reason"] == "length"
    s.check_idle()


def check_unknown_and_wrong(s):
    for method in ("GET", "DELETE", "PATCH"):
        status, _, answer = send(s, method, f"{STREAMS}/nobody", {"class": "reactive"} if method == "PATCH" else None)
        assert status == 404 and answer["error"]["code"] == "stream_not_found", answer
    stream = Open(s, LONG)
    for wrong, param in (({}, "class"), ({"class": "high"}, "class"), ({"state": "stopped"}, "state"), ({"class": 1}, "class"),
                         ({"class": None}, "class"), ([], None)):
        status, _, answer = send(s, "PATCH", f"{STREAMS}/{stream.name}", wrong)
        assert status == 400 and answer["error"]["param"] == param, (wrong, answer)
    status, _, answer = send(s, "PATCH", f"{STREAMS}/{stream.name}", {"class": "reactive", "x": "y" * 5000})
    assert status == 413, answer
    assert stream.look()["state"] in ("queued", "prefill", "decode")
    stream.reset()


def check_ended_ones_are_kept_for_a_while(s):
    names = [send(s, "POST", COMPLETIONS, {"prompt": "a", "max_tokens": 0})[1]["x-troika-stream"] for _ in range(258)]
    assert len(set(names)) == 258
    found = [send(s, "GET", f"{STREAMS}/{name}")[0] for name in names]
    assert found == [404] * 2 + [200] * 256, (found.index(200), found.count(200))


def check_deadlines(s):
    # It says that it will be short, or it would be refused at once; and this is enough for that, with sanitizers as well.
    short = {"expected_tokens": 1}
    status, headers, answer = send(s, "POST", CHAT, LONG | {"stream": False, "troika": short}, {"x-troika-deadline-ms": "1500"})
    error = answer.get("error")
    assert status == 504 and error["code"] == "deadline_exceeded" and headers["x-should-retry"] == "false", (status, error)
    begun = time.monotonic()
    stream = Open(s, LONG | {"troika": short | {"deadline_ms": 1500}})
    assert stream.error()["code"] == "deadline_exceeded" and time.monotonic() - begun < 5
    assert stream.look()["status"] == 504
    assert send(s, "POST", CHAT, SHORT, {"x-troika-deadline-ms": "60000"})[0] == 200


def check_metrics_by_class(s):
    before = s.metrics()
    for headers in ({}, BACKGROUND, BACKGROUND):
        assert send(s, "POST", CHAT, SHORT, headers)[0] == 200
    now = s.metrics()

    def grown(name, class_):
        key = f'troika_{name}{{class="{class_}"}}'
        return now[key] - before[key]

    for name in ("queue_seconds", "time_to_first_token_seconds", "time_per_output_token_seconds", "request_seconds"):
        assert (grown(name + "_count", "reactive"), grown(name + "_count", "proactive")) == (1, 2), name
        buckets = [value for key, value in now.items() if key.startswith(f'troika_{name}_bucket{{class="proactive"')]
        assert buckets == sorted(buckets) and buckets[-1] == now[f'troika_{name}_count{{class="proactive"}}'], name
    assert grown("class_generated_tokens_total", "proactive") == 2 * grown("class_generated_tokens_total", "reactive") > 0
    assert grown("launch_seconds_total", "proactive") > 0 < grown("launch_seconds_total", "reactive")
    assert now["troika_bytes_copied_total"] == 0 and now["troika_model_error"] >= 0
    assert now["troika_prefix_lookups_total"] >= before["troika_prefix_lookups_total"] + 3
    assert any(key.startswith("troika_bcap{term=") for key in now), sorted(now)
    for name in ("preemptions_total", "suspensions_total", "iterations_dropped_total", "piggybacked_rows_total", "promotions_total",
                 "engine_refused_total", "pressure", "pressure_level", "backlog_seconds", "aging_account_seconds", "prefix_hits_total",
                 "kv_evictions_total", 'refused_total{reason="queue_full"}', 'class_requests_running{class="reactive"}'):
        assert f"troika_{name}" in now, name


def check_stops_are_measured():
    """Nobody measured this machine here (the profile is off): the bound is the guess, unless 32 stops and more prove it wrong."""
    with Server("--context", "1024", "--parallel", "2") as s:
        assert " stops within " not in s.ready, s.ready
        first, names = s.metrics(), ("preempt_bound_seconds", 'preempt_stop_seconds{quantile="0.95"}', "preempt_stop_max_seconds")
        assert [first[f"troika_{name}"] for name in names] == [0.002, 0, 0], first
        assert first["troika_preempt_bound_measured"] == first["troika_preemptions_total"] == 0, first
        for i in range(20):  # until a person comes while a launch of the background runs
            back = Open(s, SHORT | {"messages": user(f"{i} " + "and so on " * 250), "stream": True}, BACKGROUND)
            back.wait("prefill", "decode", "done")
            assert send(s, "POST", CHAT, SHORT)[0] == 200
            back.chunks()
            back.close()
            now = s.metrics()
            stops = now["troika_preemptions_total"]
            bound, p95, longest = (now[f"troika_{name}"] for name in names)
            assert (stops > 0) == (p95 > 0) and p95 <= longest < 10, now
            wanted = max(0.002, min(p95, 0.01)) if stops >= 32 else 0.002
            assert abs(bound - wanted) < 1e-9 and now["troika_preempt_bound_measured"] == 0, (stops, bound, p95)
            if i > 2 and stops:
                return
        raise AssertionError("no launch was ever stopped")


def check_log_lines():
    with Server("--context", "256", "--parallel", "2", "--log-json") as s:
        name = send(s, "POST", CHAT, SHORT, BACKGROUND)[1]["x-troika-stream"]
        send(s, "POST", "/tokenize", {"prompt": "a"})
        time.sleep(0.2)
        lines = [json.loads(line) for line in s.log if "POST" in line]
        assert [line["path"] for line in lines] == [CHAT, "/tokenize"], lines
        who = lines[0]
        assert (who["class"], who["band"], who["decided_by"], who["troika_stream"]) == ("proactive", "P", "x-troika-class", name), who
        assert who["queue_ms"] >= 0 and who["preempted_ms"] >= 0 and who["status"] == 200 and "class" not in lines[1], lines
        assert not {"session", "agent", "step"} & (who.keys() | lines[1].keys()), lines
    with Server("--context", "256", "--parallel", "2") as s:
        name = send(s, "POST", CHAT, SHORT)[1]["x-troika-stream"]
        time.sleep(0.2)
        assert any(f" class reactive band R by default {name} " in line for line in s.log), s.log


def check_log_names():
    """Session, agent and step are in a request's line, cut, quoted, and harmless, whatever a client calls them."""
    evil = '"}\r\n{"level":"error"} " class reactive \\'
    named = ({"X-Session-Id": "s-1", "x-claude-code-agent-id": "scout", "x-openai-subagent": "review"},
             {"session-id": "x" * 500, "thread-id": "y" * 500, "x-openai-subagent": "z" * 500})
    wanted = (("s-1", "scout", "review"), ("x" * 64, "y" * 64, "z" * 32))
    body = SHORT | {"user": evil, "messages": [{"role": "user", "name": evil + "\u2028\u0085", "content": "Hi"}]}
    clean = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in evil)
    for json_lines in (True, False):
        with Server("--context", "256", "--parallel", "2", *(["--log-json"] if json_lines else [])) as s:
            for headers in named:
                assert send(s, "POST", CHAT, SHORT, headers)[0] == 200
            assert send(s, "POST", CHAT, body)[0] == 200
            time.sleep(0.2)
            lines = [line for line in s.log if "POST" in line or "reactive" in line or "level" in line]
            lines = [line for line in lines if CHAT in line or clean[:8] in line]
        assert len(lines) == 3 and not any('{"level":"error"}' in line for line in s.log), s.log
        if json_lines:
            lines = [json.loads(line) for line in lines]
            assert [tuple(line[n] for n in ("session", "agent", "step")) for line in lines[:2]] == list(wanted), lines
            assert lines[2]["session"] == clean and lines[2]["agent"].startswith(clean) and "step" not in lines[2], lines
        else:
            for line, (session, agent, step) in zip(lines, wanted):
                assert f' session "{session}" agent "{agent}" step "{step}" chatcmpl-' in line, line
            assert f' session "{clean}" agent "{clean}' in lines[2] and lines[2].count('"') == 4, lines[2]
            assert " step " not in lines[2], lines[2]


def check_keys():
    """A key sees and changes its own requests only; one that is capped makes nothing reactive."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("sk-one\nsk-two\nsk-capped cap=proactive name=nightly\n")
        keys.flush()
        with Server("--context", "1024", "--parallel", "4", "--api-key-file", keys.name) as s:
            one, two, capped = ({"Authorization": f"Bearer sk-{name}"} for name in ("one", "two", "capped"))
            stream, low = Open(s, LONG, one), Open(s, LONG, capped | REACTIVE)
            for request in (stream, low):
                request.head()
            assert [x["id"] for x in send(s, "GET", STREAMS, headers=one)[2]["data"]] == [stream.name]
            assert send(s, "GET", STREAMS, headers=two)[2]["data"] == [] and send(s, "GET", STREAMS)[0] == 401
            for method in ("GET", "PATCH", "DELETE"):
                body = {"class": "proactive"} if method == "PATCH" else None
                assert send(s, method, f"{STREAMS}/{stream.name}", body, two)[0] == 404
                assert send(s, method, f"{STREAMS}/{stream.name}", body)[0] == 401
            assert low.header("x-troika-class") == "proactive" and low.look()["capped"], low.look()
            status, _, answer = send(s, "PATCH", f"{STREAMS}/{low.name}", {"class": "reactive"}, capped)
            assert status == 403 and answer["error"]["code"] == "class_capped", answer
            assert low.look()["class"] == "proactive"
            assert send(s, "PATCH", f"{STREAMS}/{low.name}", {"state": "running"}, capped)[0] == 200
            low.reset()
            stream.reset()
            assert text_of(send(s, "POST", CHAT, SHORT, capped)) == text_of(send(s, "POST", CHAT, SHORT, one))
            time.sleep(0.2)
            assert any(" key nightly " in line for line in s.log) and not any("sk-" in line for line in s.log), s.log


def main():
    with Server("--context", "1024", "--parallel", "2", "--queue-max", "16") as s:
        run_checks([(check, s) for check in (
            check_headers_and_about, check_what_was_resolved_is_told, check_errors_name_the_class, check_timings,
            check_tool_time, check_list_and_states, check_several_answers_have_one_name, check_patch_class,
            check_suspend_and_resume, check_cancel, check_unknown_and_wrong, check_ended_ones_are_kept_for_a_while,
            check_deadlines, check_metrics_by_class)]
                   + [(check_stops_are_measured,), (check_place_in_the_queue,), (check_log_lines,), (check_log_names,), (check_keys,)])


if __name__ == "__main__":
    main()
