# SPDX-License-Identifier: Apache-2.0
# ctest: serial
"""check_bench.py [NAME...] - the benchmarks' own arithmetic, against cases whose answer is known, and a server that emits at known times.

A benchmark that errs says so to nobody, so its parts are checked here: quantiles, framing of HTTP and events however the bytes come in
pieces, times of arrival, which window a request belongs to, the chart. No engine and no model is needed.
"""
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path[:0] = [str(BENCH), str(ROOT / "tools")]
import chart  # noqa: E402
import client  # noqa: E402
import common  # noqa: E402
import mixed  # noqa: E402
import saturation  # noqa: E402
import servers  # noqa: E402
import stats  # noqa: E402

LATE_S = 0.25  # a read may be this late on a machine that others load


def chunk(text="", **more):
    return "data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]} | more) + "\n\n"


def framed(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def wire(*events):
    """A whole chunked answer, each event in a chunk of its own."""
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(framed(e.encode()) for e in events) + b"0\r\n\r\n"


def call_of(kind, begun, pieces, tokens=(10, 2), stopped=False):
    call = client.Call("POST", 1, "/", b"", None, common.Tag(kind, *tokens))
    call.begun = call.sent = begun
    call.pieces, call.ended, call.stopped = pieces, pieces[-1][0] if pieces else begun, stopped
    call.tail = b"".join(data for _, data in pieces)[-64:]
    return call


def stream_pieces(times, tokens=(10, 2), head=True):
    """Reads of an answer whose pieces of text come at these times, usage and end with the last."""
    result = [(times[0], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")] if head else []
    result += [(when, framed(chunk("x").encode())) for when in times]
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    result.append((times[-1], framed(chunk(usage=usage, timings={"queue_ms": 1.5, "preempted_ms": 2.0}).encode())))
    return result + [(times[-1], framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")]


class Fake:
    """A server that speaks just enough: /tokenize, /metrics, and streams whose tokens it sends at given times after the request."""
    kind, label = "troika", "troika fake"

    def __init__(self, times, status=200, breaks=False):
        self.times, self.status, self.breaks = times, status, breaks
        self.sent, self.bodies, self.heads = {}, [], []  # sent: by the length of the prompt
        self.open = self.most_open = 0
        self.lock = threading.Lock()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head, re.I)[1])
            while len(body) < length:
                body += connection.recv(65536)
            if head.startswith(b"GET /metrics"):
                text = b'troika_launch_seconds_total{class="reactive"} 1.5\n'
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
                return
            with self.lock:
                self.bodies.append(json.loads(body))
                self.heads.append(head.decode())
                self.open += 1
                self.most_open = max(self.most_open, self.open)
            left = False

            def leave():
                """Before the last byte: the client may send its next request as soon as it has that."""
                nonlocal left
                with self.lock:
                    self.open -= not left
                    left = True
            try:
                self.stream(connection, json.loads(body), leave)
            except OSError:
                pass  # the client has gone
            finally:
                leave()

    def stream(self, connection, body, leave):
        if self.status != 200:
            connection.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 4\r\n\r\nnot!" % self.status)
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin, sent = time.perf_counter(), []
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed(chunk("").encode()))
        for when in self.times:
            time.sleep(max(begin + when - time.perf_counter(), 0))
            sent.append(time.perf_counter())
            connection.sendall(framed(chunk("x").encode()))
        self.sent[len(body["prompt"])] = sent
        if self.breaks:
            return
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(self.times)}
        leave()
        connection.sendall(framed(chunk(usage=usage).encode()) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def tokenize(self, text, special=False):
        return [1] * special + [3 + byte for byte in text.encode()]

    def wait_idle(self):
        begun = time.monotonic()
        while self.open and time.monotonic() - begun < 5:
            time.sleep(0.01)
        return not self.open

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)  # close alone would leave it to a thread that waits in accept
        self.socket.close()


def check_quantiles_are_nearest_rank():
    values = list(range(1, 101))
    random.Random(1).shuffle(values)
    assert [stats.quantile(values, q) for q in (0.01, 0.5, 0.95, 0.99, 1)] == [1, 50, 95, 99, 100]
    assert stats.quantile([15, 20, 35, 40, 50], 0.3) == 20 and stats.quantile([15, 20, 35, 40, 50], 0.4) == 20
    assert stats.quantile([7], 0.95) == 7 and stats.quantile([], 0.5) is None and stats.median([4, 1]) == 1
    assert stats.quantile(range(1, 21), 0.95) == 19  # 0.95 * 20 is 19, not a bit more
    for bad in (0, 1.1, -1):
        try:
            stats.quantile([1], bad)
        except ValueError:
            continue
        raise AssertionError(f"quantile {bad} was taken")


def check_quantiles_need_samples():
    assert stats.quantile_if_enough(range(499), 0.99) is None and stats.quantile_if_enough(range(500), 0.99) == 494
    assert stats.quantile_if_enough(range(19), 0.95) is None and stats.quantile_if_enough(range(20), 0.95) == 18


def check_spread_and_thirds():
    assert stats.spread([9, 10, 12]) == 0.3 and stats.spread([5]) is None and stats.spread([4, None, 4]) == 0 and stats.spread([]) is None
    assert stats.thirds(range(7)) == [[0, 1], [2, 3, 4], [5, 6]] and stats.thirds([1]) == [[], [1], []]
    assert stats.ratio(3, 2) == 1.5 and stats.ratio(None, 2) is None and stats.ratio(3, 0) is None
    assert stats.rounded(1234.5678) == 1235 and stats.rounded(0.00123456) == 0.001235 and stats.rounded(float("inf")) is None


def check_http_in_any_pieces():
    """However an answer is cut into reads, its events and their order are the same, and each has the time of the read that ended it."""
    data = wire(": keep-alive\n\n", chunk("a"), chunk("b\u00e9") + chunk("c"), "data: [DONE]\n\n")
    whole = client.HttpParser()
    whole.feed(0, data)
    wanted = [event for _, event in client.sse_events(whole.body)]
    assert len(wanted) == 4 and wanted[-1] == "[DONE]" and whole.whole and whole.status == 200
    ends = [data.index(b"\n\n", data.index(mark)) + 1 for mark in (b'"a"', b'b\\u00e9', b'"c"', b"[DONE]")]
    rng = random.Random(2)
    for trial in range(300):
        size = 1 if trial == 0 else rng.randint(1, 40)
        parser, reads = client.HttpParser(), [(i, data[i:i + size]) for i in range(0, len(data), size)]
        for when, piece in reads:
            parser.feed(when, piece)
        events = list(client.sse_events(parser.body))
        assert [event for _, event in events] == wanted and parser.whole, size
        assert [when for when, _ in events] == [end // size * size for end in ends], size


def check_http_with_a_length():
    for size in (1, 3, 1000):
        parser, data = client.HttpParser(), b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\nRetry-After: 2\r\n\r\nhello"
        for i in range(0, len(data), size):
            assert not parser.whole
            parser.feed(i, data[i:i + size])
        assert parser.whole and parser.status == 429 and b"".join(d for _, d in parser.body) == b"hello"
        assert parser.headers["retry-after"] == "2"


def check_times_of_an_answer():
    call = call_of("reactive", 10.0, stream_pieces([10.5, 10.6, 10.6, 11.0], (10, 5)), (10, 5))
    answer = common.checked(call)
    assert answer.ok, answer.error
    assert abs(answer.ttft - 0.5) < 1e-9 and abs(answer.e2e - 1.0) < 1e-9 and answer.tokens == 5
    assert abs(answer.tpot - 0.5 / 4) < 1e-9  # (last - first) / (n - 1), n by the server's count
    assert answer.marks == [10.5, 10.6, 11.0] and abs(answer.gap - 0.4) < 1e-9  # what came in one read is one emission
    assert common.first_launch_wait_ms(answer) == 3.5
    assert common.first_launch_wait_ms(types.SimpleNamespace(timings={"first_launch_ms": 1, "queue_ms": 9, "preempted_ms": 2})) == 3
    assert common.first_launch_wait_ms(types.SimpleNamespace(timings={})) is None


def check_wrong_lengths_are_failures():
    for tokens in ((11, 2), (10, 3)):
        answer = common.checked(call_of("reactive", 0, stream_pieces([1, 2], tokens)))
        assert not answer.ok and "asked for 10 and 2" in answer.error, answer.error
    broken = call_of("reactive", 0, stream_pieces([1, 2])[:-1])
    assert "broke off" in common.checked(broken).error
    error = call_of("reactive", 0, [(1, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                                    (2, framed(b'data: {"error":{"message":"deadline exceeded"}}\n\n'))])
    assert "deadline exceeded" in common.checked(error).error


def check_the_client_reads_at_once():
    """Against a server that notes when it sends: no read is earlier, none is later than a busy machine explains."""
    times = [0.05, 0.07, 0.09, 0.45, 0.5, 0.75]
    with Fake(times) as fake, common.Load(fake, 1) as load:
        calls = [load.post("reactive", 20 + i, len(times)) for i in range(3)]
        assert load.loop.run(lambda: all(c.done for c in calls), time.perf_counter() + 10)
        answers = [common.checked(c) for c in calls]
        assert all(a.ok for a in answers), answers
        for i, answer in enumerate(answers):
            late = [got - at for got, at in zip(answer.texts, fake.sent[20 + i], strict=True)]
            assert min(late) >= 0 and max(late) < LATE_S, late
            assert 0.36 - LATE_S < answer.gap < 0.36 + LATE_S and answer.tokens == len(times)
        assert all("x-troika-class: reactive" in head for head in fake.heads)


def check_failures_are_told_apart():
    for options, wanted in (({"status": 429}, "HTTP 429"), ({"breaks": True}, "broke off")):
        with Fake([0.01], **options) as fake, common.Load(fake, 1) as load:
            call = load.post("reactive", 20, 1)
            assert load.loop.run(lambda: call.done, time.perf_counter() + 10)
            assert wanted in common.checked(call).error, common.checked(call).error
    with Fake([]) as fake:
        load = common.Load(fake, 1)
    call = load.post("reactive", 20, 1)
    assert call.done and "no connection" in common.checked(call).error


def check_prompts():
    """Exact lengths, the begin token of models that have one, and no two with the same begin."""
    prompts, fronts = common.Prompts(Fake([]), 1), set()
    for count in (9, 160, 1000, 8000):
        for _ in range(50):
            prompt = prompts.make(count)
            assert len(prompt) == count and prompt[0] == 1
            fronts.add(tuple(prompt[:9]))
    assert len(fronts) == 200
    assert common.Prompts(Fake([]), 1).make(50) == common.Prompts(Fake([]), 1).make(50) != common.Prompts(Fake([]), 2).make(50)


def check_what_a_window_counts():
    """Requests by their arrival, tokens by their time, whatever the other end of either."""
    calls = [call_of("reactive", 104.99, stream_pieces([106, 107])),              # arrived before the count
             call_of("reactive", 105.0, stream_pieces([106, 107])),               # the first that counts
             call_of("reactive", 129.99, stream_pieces([140, 150])),              # counts, however long it takes
             call_of("reactive", 130.0, stream_pieces([131, 132])),               # too late
             call_of("reactive", 120.0, stream_pieces([121, 122])[:-1]),          # broke off
             call_of("reactive", 125.0, [], stopped=True),                        # never answered
             call_of("proactive", 100.0, stream_pieces([104.9, 105.0]), (10, 2)),  # one token inside, its prompt before
             call_of("proactive", 101.0, stream_pieces([110, 130.0]), (10, 2)),   # prompt and one token inside
             call_of("proactive", 128.0, stream_pieces([129.5])[:-2], stopped=True)]
    w = common.account("troika x", "company", 105.0, 130.0, calls)
    assert [round(a.sent, 2) for a in w.reactive] == [105.0, 129.99] and w.unfinished == 1 and len(w.failed) == 1
    assert (w.tokens_out, w.tokens_in, w.proactive_failed) == (3, 20, []), w
    before, after = ({'troika_launch_seconds_total{class="reactive"}': v, 'troika_launch_seconds_total{class="proactive"}': 9}
                     for v in (2, 7))
    assert common.account("troika x", "company", 105.0, 130.0, calls, before, after).reactive_share == 0.2
    assert common.account("peer", "company", 105.0, 130.0, calls).reactive_share is None


def check_a_window_on_a_server():
    """Three in flight and never more, arrivals every period, load until the last that counts is answered."""
    with Fake([0.02, 0.04]) as fake, common.Load(fake, 1) as load:
        w = common.run_window(load, "company", 1.5, 0.5, 0.25, (20, 2), (30, 2), 3, random.Random(1))
        kinds = [re.search(r"x-troika-class: (\w+)", head)[1] for head in fake.heads]
        assert 3 <= len(w.reactive) <= 4 and not w.failed and not w.unfinished and not w.proactive_failed, w
        assert kinds.count("proactive") > 30 and fake.most_open <= 4, (kinds.count("proactive"), fake.most_open)
        assert w.tokens_out > 30 and w.reactive_share == 0.0  # the counter of this server stands still
        assert abs(w.seconds - 1.0) < 1e-6 and all(len(body["prompt"]) in (20, 30) for body in fake.bodies)
    with Fake([0.02, 0.04]) as fake, common.Load(fake, 1) as load:
        alone = common.run_window(load, "alone", 1.0, 0.25, 0.25, (20, 2), (30, 2), 3, random.Random(1))
        assert len(alone.reactive) == 3 and fake.most_open == 1 and alone.tokens_out == 0


def check_the_plan_alternates():
    plan = mixed.plan(2, 1, mixed.WINDOWS, 30)
    count = {key: plan.count(key) for key in plan}
    assert {mode: count[0, mode] for mode in mixed.WINDOWS} == mixed.WINDOWS
    assert count[1, "company"] == 11 and count[1, "alone"] in (5, 6) and count[1, "background"] == 2
    longest = max(len(run) for run in re.findall(r"0+|1+", "".join(str(index) for index, _ in plan)))
    assert longest <= 5, plan
    assert {index for index, _ in mixed.plan(3, 1 / 3, mixed.WINDOWS, 30)} == {0, 1, 2}


def check_outcomes():
    calls = [call_of("proactive", 1, stream_pieces([2, 3])),
             call_of("proactive", 1, [(2, b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n")]),
             call_of("proactive", 1, [(2, b"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n")]),
             call_of("proactive", 1, [(2, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")]),
             call_of("proactive", 1, [], stopped=True), call_of("proactive", 9, stream_pieces([10, 11])),
             call_of("reactive", 1, stream_pieces([2, 3]))]
    o = common.outcome(calls, "proactive", 0, 5)
    assert (len(o.ok), o.refused, o.expired, len(o.failed), o.open, o.arrived) == (1, 1, 1, 1, 1, 5), o
    longest, minutes, tokens = saturation.silences(calls[:1], 0, 130)
    assert longest == 127 and minutes == [1, 0] and tokens == 2
    rate = len(list(common.poisson(random.Random(3), 5.0, 1000))) / 1000
    assert 4.7 < rate < 5.3 and list(common.poisson(random.Random(3), 5.0, 1)) == list(common.poisson(random.Random(3), 5.0, 1))


def check_metrics():
    text = ('# HELP x\ntroika_a_total{class="reactive",x="1"} 2\ntroika_a_total{class="reactive",x="2"} 3\n'
            'troika_b_seconds 0.002\ntroika_c_ms 4\n')
    m = servers.parse_metrics(text)
    assert servers.metric(m, "a_total", **{"class": "reactive"}) == 5 and servers.metric(m, "a_total", x="1") == 2
    assert servers.metric(m, "a_total", x="9") is None and servers.metric(m, "a") is None
    assert (servers.metric_ms(m, "b"), servers.metric_ms(m, "c"), servers.metric_ms(m, "d")) == (2, 4, None)


def sample_rows():
    values = {"TTFT mean, ms": (100, 110), "end-to-end mean, ms": (300, 330), "reactive requests counted": (77, 154)}
    return [{"name": f"M <1>, {engine}, {mode}: {what}", "measured": value * factor, "wanted": "", "spread": None, "holds": None}
            for engine, factor in (("troika 1", 1), ("xllamacpp 2 (AVX2)", 8)) for what, pair in values.items()
            for mode, value in zip(("alone", "company"), pair)]


def check_the_chart():
    """Valid XML with a title and a description, bars as long as their values, both engines and all figures in words."""
    with tempfile.TemporaryDirectory() as folder:
        source, goal = pathlib.Path(folder, "in.json"), pathlib.Path(folder, "out.svg")
        source.write_text(json.dumps(sample_rows()))
        command = [sys.executable, "-B", BENCH / "chart.py", "--input", source, "--output", goal]
        subprocess.run(command, check=True, capture_output=True)
        text = goal.read_text()
        root = xml.etree.ElementTree.fromstring(text)
        space = "{http://www.w3.org/2000/svg}"
        assert "prefers-color-scheme: dark" in text and not root.findall(f".//{space}script")
        assert root.find(f"{space}title").text and "troika 1: first word after 0.10 s alone" in root.find(f"{space}desc").text
        bars = [(r.get("class"), float(r.get("width"))) for r in root.iter(f"{space}rect") if r.get("class") != "ground"]
        assert [kind for kind, _ in bars] == ["ours alone", "ours company", "theirs alone", "theirs company"] * 2
        scale = bars[-1][1] / (330 * 8)
        for (_, width), value in zip(bars, (100, 110, 800, 880, 300, 330, 2400, 2640)):
            assert abs(width - value * scale) < 0.2, (width, value)
        assert max(float(r.get("x")) + float(r.get("width")) for r in root.iter(f"{space}rect")) <= chart.WIDTH
        source.write_text(json.dumps([row for row in sample_rows() if "xllamacpp 2 (AVX2), company: TTFT" not in row["name"]]))
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 2 and "says nothing of M <1>, xllamacpp 2 (AVX2), company: TTFT mean" in run.stderr, run.stderr
        for bad in ("", "{}", "[]", "[3]"):
            source.write_text(bad)
            assert subprocess.run(command, capture_output=True).returncode == 2, bad
    assert chart.ticks(11.6) == [0, 2, 4, 6, 8, 10, 12] and chart.ticks(0.9)[-1] >= 0.9 and len(chart.ticks(1.0)) <= 8


def check_commands_say_what_is_wrong():
    """Each benchmark has its help; what is missing is a sentence and exit code 2, with nothing left running."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("mixed", "saturation", "load", "stall", "batch", "overload", "chart", "peers"):
            path = BENCH / (name if name == "peers" else f"{name}.py")
            run = subprocess.run([sys.executable, "-B", path, "--help"], capture_output=True, text=True)
            assert run.returncode == 0 and name in run.stdout, run.stderr
            if name not in ("chart", "peers"):
                run = subprocess.run([sys.executable, "-B", path, "--model", "/no/such.gguf", "--model", "/no/such.gguf", "--seconds", "5"],
                                     capture_output=True, text=True)
                assert run.returncode == 2 and "there is no model /no/such.gguf" in run.stderr, (name, run.stderr)
        peers = [sys.executable, "-B", BENCH / "peers"]
        run = subprocess.run([*peers, "--list", "--folder", folder], capture_output=True, text=True)
        assert run.returncode == 1 and run.stdout.count("not installed") == 2 and not list(pathlib.Path(folder).iterdir())
        run = subprocess.run([*peers, "--folder", BENCH / "x"], capture_output=True, text=True)
        assert run.returncode == 2 and "inside the repository" in run.stderr
        assert subprocess.run([*peers, "ollama"], capture_output=True).returncode == 2


def main():
    failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_") or sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        try:
            check()
            print(f"ok {name.removeprefix('check_')}", flush=True)
        except Exception as error:  # a failing check is a line, whatever it threw
            failed += 1
            print(f"not ok {name.removeprefix('check_')}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc(limit=4)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
