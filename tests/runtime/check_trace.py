# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""--trace and --record of a running server: the timeline holds what happened, and can be read before its end; the record is decided
again by `troika replay` without a difference; damaged, cut and changed records are told; a full disk hurts nobody."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

import fetch  # noqa: E402  (tools/ is on the path)

MODEL = str(fetch.path_of("smollm2"))
WORDS = "The quick brown fox jumps over the lazy dog near the river bank while it rains. "
CLASSES = ("reactive", "inherited", "proactive")
REACTIVE, PROACTIVE = 3, 5


class Run:
    """One server's life with both files; requests of both classes, one that leaves, metrics at its end."""

    def __init__(self, folder):
        self.trace, self.record = folder / "trace.json", folder / "record.bin"
        with Server("-m", MODEL, "--parallel", "4", "-c", "2048", "--span-rows", "64", "--profile", "off",
                    "--trace", str(self.trace), "--record", str(self.record)) as server:
            self.answers = self.load(server)
            with server.open_stream("/bg/v1/completions", {"prompt": WORDS * 20, "max_tokens": 500, "stream": True}) as leaving:
                assert b"200 OK" in leaving.recv(4096)
            server.wait_running(0)
            self.metrics = server.metrics()
        self.events = json.loads(self.trace.read_text())

    @staticmethod
    def load(server):
        def ask(path, number, words, tokens):
            body = {"prompt": f"{number}: " + WORDS * words, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
            status, _, answer = server.ask(path, body)
            assert status == 200, answer
            return answer

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(ask, "/bg/v1/completions", i, 12, 24) for i in range(PROACTIVE)]
            time.sleep(0.2)
            for i in range(REACTIVE):
                answers.append(pool.submit(ask, "/v1/completions", 100 + i, 4, 16))
                time.sleep(0.15)
            return [a.result() for a in answers]


def rows_of(events, process):
    rows = [e for e in events if e["ph"] == "X" and e["pid"] == process]
    return sorted(rows, key=lambda e: e["ts"])


def check_rows(run):
    names = {(e["name"], e["pid"]): e["args"] for e in run.events if e["ph"] == "M"}
    assert names["process_name", 1]["name"] == "devices" and names["process_name", 2]["name"] == "requests", names
    assert names["thread_name", 1]["name"] == "cpu" and names["trace_end", 1]["events_lost"] == 0
    for event in run.events:
        assert event["ph"] in "MXC" and isinstance(event["name"], str), event
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0 and event["args"]["phase"], event


def check_colours(run):
    """Perfetto colours a slice by its name and by nothing else: one class, one name, one colour, on both kinds of rows."""
    for process, phases in ((1, {"prefill", "decode", "decode + prefill"}), (2, {"queue", "prefill", "decode"})):
        slices = rows_of(run.events, process)
        assert {e["name"] for e in slices} == {"reactive", "proactive"} <= set(CLASSES), {e["name"] for e in slices}
        assert {e["args"]["phase"] for e in slices} <= phases and all("cname" not in e for e in slices)
        for name in ("reactive", "proactive"):
            assert len({e["args"]["phase"] for e in slices if e["name"] == name}) >= 2, (process, name)
    for e in rows_of(run.events, 1):  # the most urgent row is the launch's
        assert e["name"] == "reactive" or e["args"]["reactive_rows"] == 0, e
        assert e["name"] == "proactive" or e["args"]["reactive_rows"] or e["args"]["prompt_rows"], e


def check_stretches(run):
    stretches = rows_of(run.events, 1)
    for a, b in zip(stretches, stretches[1:]):
        assert a["ts"] + a["dur"] <= b["ts"] + 0.002, (a, b)
    busy = sum(e["dur"] for e in stretches) * 1e-6
    counted = sum(run.metrics[f'troika_launch_seconds_total{{class="{c}"}}'] for c in ("reactive", "proactive"))
    assert abs(busy - counted) <= 0.01 * counted + 0.001, (busy, counted)
    m = run.metrics
    pieces = m["troika_launches_total"] + m["troika_launch_stops_total"] - m["troika_iterations_dropped_total"]
    assert abs(len(stretches) - pieces) <= 1, (len(stretches), pieces)  # one may have been stopped for good
    assert sum(e["args"]["stopped"] for e in stretches) >= 1, "the background was never stopped"
    kinds = {(e["name"], e["args"]["phase"]) for e in stretches}
    assert {("reactive", "prefill"), ("reactive", "decode"), ("proactive", "prefill")} <= kinds, kinds
    for e in stretches:
        a = e["args"]
        assert a["prompt_rows"] or a["reactive_rows"] or a["background_rows"], e
        assert (a["phase"] == "decode") == (a["prompt_rows"] == 0), e


def check_requests(run):
    phases = {}
    for event in rows_of(run.events, 2):
        phases.setdefault(event["args"]["request"], []).append(event)
    assert len(phases) == REACTIVE + PROACTIVE + 1, phases.keys()
    finished = {"length": 0, "cancelled": 0}
    for number, events in phases.items():
        band, what = zip(*[(e["name"], e["args"]["phase"]) for e in events])
        order = ("queue", "prefill", "decode")
        assert what == order[:len(what)] and len(set(band)) == 1, (number, what, band)
        for a, b in zip(events, events[1:]):
            assert abs(a["ts"] + a["dur"] - b["ts"]) < 0.01 and a["tid"] == b["tid"], (a, b)
        finished[events[0]["args"]["finish"]] += 1
        if events[0]["args"]["finish"] == "length":
            assert len(what) == 3, (number, what)
    assert finished == {"length": REACTIVE + PROACTIVE, "cancelled": 1}, finished
    usage = sorted((a["usage"]["prompt_tokens"], a["usage"]["completion_tokens"]) for a in run.answers)
    seen = sorted((e[0]["args"]["prompt_tokens"], e[0]["args"]["completion_tokens"]) for e in phases.values()
                  if e[0]["args"]["finish"] == "length")
    assert usage == seen, (usage, seen)
    reactive = [e for e in phases.values() if e[0]["name"] == "reactive"]
    assert len(reactive) == REACTIVE and all(e[0]["args"]["completion_tokens"] == 16 for e in reactive)


def check_lanes(run):
    lanes = {}
    for event in rows_of(run.events, 2):
        lanes.setdefault(event["tid"], []).append(event)
    assert len(lanes) >= 4  # as many as were there at once
    for events in lanes.values():
        for a, b in zip(events, events[1:]):
            assert a["ts"] + a["dur"] <= b["ts"] + 0.01, (a, b)


def replay(path, *options, code=0, data=None):
    run = subprocess.run([BINARY, "replay", str(path), *options], capture_output=True, env=ENVIRONMENT, timeout=120, input=data)
    assert run.returncode == code, f"exit code {run.returncode}: {run.stdout[-600:]!r} {run.stderr[-300:]!r}"
    assert run.stderr.count(b"\n") == (1 if b"troika: " in run.stderr else 0), run.stderr
    return run.stdout.decode(), run.stderr.decode()


def check_replay(run):
    out, err = replay(run.record)
    assert "\nmismatches: 0\n" in out and err == "" and "B_cap" in out, (out, err)
    found = json.loads(replay(run.record, "--json")[0])
    m = run.metrics
    assert found["mismatches"] == found["missing"] == 0 and found["whole"] and found["problem"] is None, found
    assert found["bytes"] == run.record.stat().st_size and found["decisions_per_second"] > 1000, found
    assert found["actions"]["launch"] == m["troika_launches_total"] and found["actions"]["admit"] >= REACTIVE + PROACTIVE, found
    assert found["actions"]["stop"] >= m["troika_preemptions_total"] >= 1, found
    assert found["actions"]["drop"] == m["troika_iterations_dropped_total"], found
    assert found["requests"] == {"R": REACTIVE, "I": 0, "P": PROACTIVE + 1}, found["requests"]
    lines = found["timeline"]
    assert sum(x["decisions"] for x in lines) == found["decisions"] and max(x["running_max"]["P"] for x in lines) >= 2, lines
    assert any(x["bcap_max"] for x in lines), lines
    assert json.loads(replay("-", "--json", data=run.record.read_bytes())[0])["decisions"] == found["decisions"]  # from a pipe


def records_of(data):
    """(offset, length, actions) of each record."""
    found, at = [], 0
    while at < len(data):
        length = struct.unpack_from("<Q", data, at + 8)[0]
        found.append((at, length, struct.unpack_from("<I", data, at + 56)[0]))
        at += length
    return found


def check_damage(run):
    data = run.record.read_bytes()
    records = records_of(data)
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "r"

        def one(content, why, code=1, decisions=None):
            path.write_bytes(content)
            out, err = replay(path, "--json", code=code)
            assert why in err, (why, err)
            out = json.loads(out)
            assert decisions is None or out["decisions"] == decisions, out
            return out

        one(b"", "is empty")
        one(b"hello, world", "no record of decisions", decisions=0)
        one(b"x" * 5000, "no record of decisions", decisions=0)
        one(data[:7], "cut off", decisions=0)
        one(data[:-1], "cut off", decisions=len(records) - 1)
        one(data[:records[40][0] + 100], "cut off", decisions=40)
        one(data[:records[40][0]] + data[records[41][0] + 8:], "no record of decisions", decisions=40)
        one(data[:16] + b"\x01" + data[17:], "another build", decisions=0)
        one(data + bytes(8), "no record of decisions", decisions=len(records))
        lacking = one(data[:records[40][0]] + data[records[45][0]:], "", code=0)
        assert lacking["missing"] == 5 and lacking["mismatches"] == 0, lacking
        double = one(data[:records[41][0]] + data[records[40][0]:], "", code=1)
        assert double["mismatches"] >= 1 and "comes after" in double["first_mismatches"][0]["difference"], double
        at, length, _ = next(r for r in records if r[2])
        changed = bytearray(data)
        changed[at + length - 16] ^= 1  # `rows` or `launch` of its last action
        found = one(bytes(changed), "", code=1)
        assert found["mismatches"] == 1 and "was" in found["first_mismatches"][0]["difference"], found
        assert replay(path, code=1)[0].count("action ") == 1
    for arguments, why, code in ((["/nowhere/x"], "cannot open", 1), ([name], "cannot open", 1), ([], "one file", 2),
                                 (["a", "b"], "one file", 2), (["/"], "cannot read", 1)):
        done = subprocess.run([BINARY, "replay", *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
        assert done.returncode == code and why in done.stderr and done.stderr.count("\n") == 1, (arguments, done)


def check_killed():
    """Both files are good for something although the server had no time to close them."""
    with tempfile.TemporaryDirectory() as name:
        trace, record = pathlib.Path(name) / "t", pathlib.Path(name) / "r"
        with Server("-m", MODEL, "--parallel", "4", "-c", "2048", "--profile", "off", "--trace", str(trace),
                    "--record", str(record)) as server:
            streams = [server.open_stream(path, {"prompt": WORDS * 5, "max_tokens": 1000, "ignore_eos": True, "stream": True})
                       for path in ("/v1/completions", "/bg/v1/completions", "/bg/v1/completions")]
            said, begun = b"", time.monotonic()
            while said.count(b"data: ") < 60:
                said += streams[0].recv(65536)
            took = time.monotonic() - begun
            time.sleep(0.4)  # in which the writers take what is there
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            for stream in streams:
                stream.close()
        lines = trace.read_text().split("\n")
        assert lines[0] == "[" and len(lines) > 10
        for line in lines[1:-1]:
            assert line.endswith(",") and json.loads(line[:-1])["ph"], line
        stretches = [json.loads(line[:-1]) for line in lines[1:-1] if '"pid":1' in line and '"X"' in line]
        assert (stretches[-1]["ts"] - stretches[0]["ts"]) * 1e-6 > took, "it is written too late"
        done = subprocess.run([BINARY, "replay", str(record), "--json"], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
        found = json.loads(done.stdout)
        assert found["mismatches"] == found["missing"] == 0 and found["decisions"] > 60 and found["span_s"] > took, found
        assert done.returncode == (0 if found["whole"] else 1) and ("cut off" in done.stderr) == (not found["whole"]), done


def check_full_disk():
    with Server("-m", MODEL, "-c", "1024", "--profile", "off", "--trace", "/dev/full", "--record", "/dev/full") as server:
        for _ in range(3):
            status, _, answer = server.ask("/v1/completions", {"prompt": WORDS, "max_tokens": 8})
            assert status == 200 and answer["usage"]["completion_tokens"] > 0
            time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        server.reader.join(5)
        log = "".join(server.log)
    assert log.count("the trace is not whole") == 1 and log.count("the record of decisions ends here") == 1, log
    for option in ("--trace", "--record"):
        done = subprocess.run([BINARY, "serve", "-m", MODEL, "--port", "0", option, "/nowhere/x"], capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=60)
        assert done.returncode == 1 and "/nowhere/x" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as name:
        run = Run(pathlib.Path(name))
        kept = os.environ.get("TROIKA_KEEP")  # a folder: to look at the timeline
        if kept:
            shutil.copytree(name, kept, dirs_exist_ok=True)
        run_checks([(check_rows, run), (check_colours, run), (check_stretches, run), (check_requests, run), (check_lanes, run),
                    (check_replay, run), (check_damage, run), (check_killed,), (check_full_disk,)])


if __name__ == "__main__":
    main()
