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
    # It says that it will be short, or it would be refused at once where 400 ms are few.
    short = {"expected_tokens": 1}
    status, headers, answer = send(s, "POST", CHAT, LONG | {"stream": False, "troika": short}, {"x-troika-deadline-ms": "400"})
    error = answer.get("error")
    assert status == 504 and error["code"] == "deadline_exceeded" and headers["x-should-retry"] == "false", (status, error)
    begun = time.monotonic()
    stream = Open(s, LONG | {"troika": short | {"deadline_ms": 400}})
    assert stream.error()["code"] == "deadline_exceeded" and time.monotonic() - begun < 3
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
    assert now["troika_bytes_copied_total"] == 0 and now["troika_preempt_bound_seconds"] >= 0 and now["troika_model_error"] >= 0
    assert now["troika_prefix_lookups_total"] >= before["troika_prefix_lookups_total"] + 3
    assert any(key.startswith("troika_bcap{term=") for key in now), sorted(now)
    for name in ("preemptions_total", "suspensions_total", "iterations_dropped_total", "piggybacked_rows_total", "promotions_total",
                 "engine_refused_total", "pressure", "pressure_level", "backlog_seconds", "aging_account_seconds", "prefix_hits_total",
                 "kv_evictions_total", 'refused_total{reason="queue_full"}', 'class_requests_running{class="reactive"}'):
        assert f"troika_{name}" in now, name


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
    with Server("--context", "256", "--parallel", "2") as s:
        name = send(s, "POST", CHAT, SHORT)[1]["x-troika-stream"]
        time.sleep(0.2)
        assert any(f" class reactive band R by default {name} " in line for line in s.log), s.log


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
            check_headers_and_about, check_errors_name_the_class, check_timings, check_tool_time, check_list_and_states,
            check_several_answers_have_one_name, check_patch_class, check_suspend_and_resume, check_cancel, check_unknown_and_wrong,
            check_ended_ones_are_kept_for_a_while, check_deadlines, check_metrics_by_class)] + [(check_log_lines,), (check_keys,)])


if __name__ == "__main__":
    main()
