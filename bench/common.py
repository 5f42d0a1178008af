# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: options, prompts of an exact length, load on one engine, progress, samples beside the report."""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]
import fetch  # noqa: E402
import report  # noqa: E402
import servers  # noqa: E402
import stats  # noqa: E402
from client import Call, Loop  # noqa: E402

LABELS = {"smollm2": "SmolLM2-135M", "gemma3": "Gemma-3-270M"}
FRONT = 8        # tokens that make each prompt's begin its own, so that no cached prefix helps anybody
DRAIN_S = 90     # the longest that is waited for requests which a window counts
OTHERS_MAX = 5   # % of the processors for other programs, from which on a person is warned
QUIET = 0.05     # of one processor: an engine that uses less has nothing to do
QUIET_S = 5      # for so long, before it is measured: troika waits a little before it takes its time for a profile
REFUSALS = ("queue_full", "overloaded")  # codes of an error in a stream that had begun to wait
REPEAT_S = 0.25  # before a background request is sent again that was refused


class Progress:
    """Lines on standard error, with the time that is left by the plan, corrected by how the plan has fared so far."""

    def __init__(self, planned_s):
        self.begun = time.monotonic()
        self.planned, self.done = planned_s, 0.0

    @property
    def elapsed(self):
        return time.monotonic() - self.begun

    def left(self):
        pace = self.elapsed / self.done if self.done > 0 else 1.0
        return max((self.planned - self.done) * pace, 0)

    def say(self, text, planned_s=0.0):
        """planned_s: of the plan, what is done now."""
        self.done += planned_s
        minutes, seconds = divmod(int(self.elapsed), 60)
        left = self.left()
        eta = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        print(f"[{minutes:02d}:{seconds:02d}, about {eta} left] {text}", file=sys.stderr, flush=True)


class Prompts:
    """Prompts as token numbers, each of exactly the length that is asked for, no two with a common begin: lines of this project's
    license, which is a fixed English text, in a new order each time, behind a few tokens drawn at random."""

    def __init__(self, server, seed):
        self.random = random.Random(f"prompts {seed}")
        lines = [line.strip() for line in (ROOT / "LICENSE").read_text().splitlines() if len(line.split()) >= 3]
        self.lines = [tokens for tokens in (server.tokenize(line + "\n") for line in lines) if tokens]
        self.pool = sorted({token for line in self.lines for token in line})
        plain, special = server.tokenize("a"), server.tokenize("a", special=True)
        self.begin = special[:len(special) - len(plain)]  # the begin token of models that have one

    def make(self, count):
        if count < len(self.begin) + FRONT:
            raise ValueError(f"a prompt of {count} tokens has no room for its own begin")
        tokens = self.begin + self.random.choices(self.pool, k=FRONT)
        while len(tokens) < count:
            for index in self.random.sample(range(len(self.lines)), len(self.lines)):
                tokens += self.lines[index]
        return tokens[:count]


@dataclasses.dataclass
class Tag:
    kind: str       # "reactive" or "proactive"
    tokens_in: int
    tokens_out: int
    window: object = None


class Load:
    """Requests to one engine: open (a request at a given time) and closed (always so many in flight)."""

    def __init__(self, server, seed):
        self.server = server
        self.prompts = Prompts(server, seed)
        self.loop = Loop()
        self.loop.on_done = self.finished
        self.calls = []      # since the last `take`
        self.refill = None   # (kind, in, out) of the closed load, or None
        self.after = {}      # call -> function(call), once, when it is done

    def body(self, tokens_in, tokens_out, prompt=None, **more):
        result = {"prompt": prompt or self.prompts.make(tokens_in), "max_tokens": tokens_out, "temperature": 0,
                  "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}} | more
        if self.server.kind != "troika":
            result["cache_prompt"] = False
        return result

    def post(self, kind, tokens_in, tokens_out, prompt=None, headers=None, after=None, **more):
        """One request now."""
        named = {"x-troika-class": kind} | (headers or {}) if self.server.kind == "troika" else None
        call = self.loop.post(self.server.port, "/v1/completions", self.body(tokens_in, tokens_out, prompt, **more), named,
                              Tag(kind, tokens_in, tokens_out))
        self.calls.append(call)
        if after:
            self.after[call] = after
        return call

    def closed(self, count, kind, tokens_in, tokens_out, make_prompt=None):
        """From now on `count` of these are always in flight."""
        self.refill = (kind, tokens_in, tokens_out, make_prompt)
        for _ in range(count):
            self.post_refill()

    def post_refill(self):
        if self.refill:
            kind, tokens_in, tokens_out, make_prompt = self.refill
            self.post(kind, tokens_in, tokens_out, make_prompt() if make_prompt else None).tag.window = "closed"

    def finished(self, call):
        if call.tag is None:
            return
        if function := self.after.pop(call, None):
            function(call)
        if call.tag.window == "closed" and self.refill:
            if call.complete:
                self.post_refill()
            else:
                self.loop.at(time.perf_counter() + REPEAT_S, self.post_refill)

    def warm_up(self, seconds=120):
        """One request, then until the engine has been quiet for a while: whatever it does once, or measures when it first has time, is
        not in what follows, nor in the other engine's way."""
        call = self.post("reactive", 160, 16)
        self.loop.run(lambda: call.done, call.begun + DRAIN_S)
        self.take()
        if not call.done or not checked(call).ok:
            raise servers.ServerError(f"{self.server.label} fails a first request: {checked(call).error if call.done else 'no answer'}")
        end, quiet = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            before = self.server.cpu_seconds()
            time.sleep(1)
            quiet = quiet + 1 if self.server.cpu_seconds() - before < QUIET else 0
            if quiet == QUIET_S:
                return
        print(f"{self.server.label} is still busy {seconds} s after its first request", file=sys.stderr, flush=True)

    def ask_metrics(self):
        """A call whose answer metrics_of reads; on the loop, so that no stream is read late because of it."""
        return self.loop.start(Call("GET", self.server.port, "/metrics", b"", None, None))

    def take(self):
        """All calls since the last take; those still in flight are hung up on, and the engine is given time to notice."""
        self.refill = None
        self.loop.clear_timers()
        for call in list(self.loop.calls):
            self.loop.stop(call)
        self.after.clear()
        calls, self.calls = self.calls, []
        if not self.server.wait_idle():
            print(f"{self.server.label} still works 30 s after its clients have gone", file=sys.stderr, flush=True)
        return calls

    def close(self):
        self.loop.close_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def metrics_of(call):
    if call is None or not call.done:
        return {}
    parser, _ = call.events()
    if parser.status != 200:
        return {}
    return servers.parse_metrics(b"".join(data for _, data in parser.body).decode())


def checked(call):
    """Its answer; lengths that are not what was asked for make it a failure, since nothing can be compared then."""
    answer, tag = call.answer(), call.tag
    if answer.ok:
        got = answer.usage.get("prompt_tokens"), answer.usage.get("completion_tokens")
        if got[0] not in (None, tag.tokens_in) or got[1] not in (None, tag.tokens_out):
            answer.error = f"{got[0]} tokens in and {got[1]} out, asked for {tag.tokens_in} and {tag.tokens_out}"
    return answer


@dataclasses.dataclass
class Window:
    """What one window saw. Only reactive requests that arrived in [counted, end) are in `reactive`; tokens are those that came in
    that time, whenever their request arrived."""
    engine: str
    mode: str
    counted: float
    end: float
    reactive: list
    unfinished: int
    failed: list
    tokens_out: int      # of proactive requests
    tokens_in: int       # prompts of proactive requests, at their first token
    proactive_failed: list
    reactive_share: float | None  # of the time, in which launches with a reactive row ran

    @property
    def seconds(self):
        return self.end - self.counted


def account(engine, mode, counted, end, calls, before=None, after=None):
    """Sorts what a window's calls saw. The rule for requests is their arrival, for tokens the time they came."""
    reactive, failed, unfinished, proactive_failed = [], [], 0, []
    tokens_out = tokens_in = 0
    for call in calls:
        if call.tag.kind == "proactive":
            times = call.token_times()
            tokens_out += sum(counted <= when < end for when in times)
            tokens_in += call.tag.tokens_in if times and counted <= times[0] < end else 0
            if not call.stopped and not (answer := checked(call)).ok:
                proactive_failed.append(answer.error)
        elif counted <= call.begun < end:
            if call.stopped:
                unfinished += 1
                continue
            answer = checked(call)
            (reactive if answer.ok else failed).append(answer if answer.ok else answer.error)
    share = launch_share(before, after, end - counted)
    if share is None and engine.startswith("troika"):  # an engine without that counter: from above, since requests may overlap
        busy_ms = sum(a.timings.get("prefill_ms", 0) + a.timings.get("decode_ms", 0) for a in reactive)
        share = min(busy_ms / 1000 / (end - counted), 1.0)
    return Window(engine, mode, counted, end, reactive, unfinished, failed, tokens_out, tokens_in, proactive_failed, share)


def launch_share(before, after, seconds):
    """By the engine's own counter; None where it has none."""
    ends = [servers.metric(m, "launch_seconds_total", **{"class": "reactive"}) for m in (before or {}, after or {})]
    return None if None in ends else (ends[1] - ends[0]) / seconds


def run_window(load, mode, seconds, settle, period, reactive, proactive, in_flight, rng):
    """One window: reactive requests every `period` seconds (alone, company), so many proactive ones in flight (company, background).
    Load stays on until every reactive request that counts is answered."""
    begin = time.perf_counter() + 0.02
    counted, end = begin + settle, begin + seconds
    if mode != "alone":
        load.closed(in_flight, "proactive", *proactive)
    if mode != "background":
        # Not in step with whatever the background's own rhythm is, and as many in each window.
        when = settle % period + 0.1 * period
        while when < seconds:
            load.loop.at(begin + when + rng.uniform(-0.1, 0.1) * period, lambda: load.post("reactive", *reactive))
            when += period
    asked = []
    if load.server.kind == "troika":
        for when in (counted, end):
            load.loop.at(when, lambda: asked.append(load.ask_metrics()))
    load.loop.sleep_until(end)
    load.loop.run(lambda: not any(c.tag and c.tag.kind == "reactive" for c in load.loop.calls) and all(c.done for c in asked),
                  end + DRAIN_S)
    calls = load.take()
    metrics = [metrics_of(call) for call in asked] + [{}, {}]
    return account(load.server.label, mode, counted, end, calls, metrics[0], metrics[1])


def capacity(load, parallel, proactive, seconds, settle):
    """Proactive requests a second that the engine finishes when `parallel` are always in flight: by tokens, since a window ends in the
    middle of requests, and by those in and those out alike, since it may begin in the middle of a wave of prompts."""
    window = run_window(load, "background", seconds, settle, 1, (0, 0), proactive, parallel, random.Random(0))
    if not window.tokens_out:
        why = window.proactive_failed[0] if window.proactive_failed else "it needs longer (--seconds)"
        raise servers.ServerError(f"{load.server.label} gave no token in the {window.seconds:.0f} s that measure its capacity: {why}")
    return (window.tokens_in / proactive[0] + window.tokens_out / proactive[1]) / 2 / window.seconds


def poisson(rng, rate, seconds):
    """Times of arrival in [0, seconds)."""
    when = rng.expovariate(rate)
    while when < seconds:
        yield when
        when += rng.expovariate(rate)


def open_load(load, begin, times, kind, tokens_in, tokens_out, headers=None):
    """Requests at these times after `begin`, whatever became of the earlier ones."""
    for when in times:
        load.loop.at(begin + when, lambda: load.post(kind, tokens_in, tokens_out, headers=headers))


def watch(load, begin, end, settle, progress, say):
    """Until `end`, and until the reactive requests are answered: (calls, begin of counting, end)."""
    at = begin
    while at < end:
        step = min(30.0, end - at)
        at += step
        load.loop.sleep_until(at)
        progress.say(f"{say}: {sum(c.tag is not None for c in load.loop.calls)} requests open", step)
    load.loop.run(lambda: not any(c.tag and c.tag.kind == "reactive" for c in load.loop.calls), end + DRAIN_S)
    return load.take(), begin + settle, end


@dataclasses.dataclass
class Outcome:
    """What became of the requests of one kind that arrived in a span of time."""
    ok: list            # answers
    refused: int        # HTTP 429: the queue is full, or it would not be done in time; or, while it waited, for a more urgent one
    expired: int        # its deadline passed: HTTP 504, or an error in the stream
    failed: list        # anything else: texts
    open: int           # neither answered nor refused when the client left

    @property
    def arrived(self):
        return len(self.ok) + self.refused + self.expired + len(self.failed) + self.open


def outcome(calls, kind, begin, end, check=checked):
    result = Outcome([], 0, 0, [], 0)
    for call in calls:
        if call.tag.kind != kind or not begin <= call.begun < end:
            continue
        if call.stopped:
            result.open += 1
            continue
        answer = check(call)
        if answer.ok:
            result.ok.append(answer)
        elif answer.status == 429 or answer.code in REFUSALS:
            result.refused += 1
        elif answer.status == 504 or "deadline" in answer.error:
            result.expired += 1
        else:
            result.failed.append(answer.error)
    return result


def grid(title, header, rows):
    """A small table for people, first column to the left."""
    lines = [header] + [[cell if isinstance(cell, str) else report.show(stats.rounded(cell, 3)) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip())
    sys.stdout.flush()


class Figures(report.Report):
    """A report that keeps the samples too: build/reports/TARGET-samples.jsonl, one request a line."""

    def __init__(self, target):
        super().__init__(target)
        self.samples = []
        self.processors = processor_time()

    def figure(self, name, measured, wanted="", spread=None):
        return self.add(name, wanted, stats.rounded(measured, 6), stats.rounded(spread, 2))

    def sample(self, **fields):
        self.samples.append(fields)

    def answers(self, answers, **fields):
        for a in answers:
            self.sample(**fields, ttft_ms=ms(a.ttft), tpot_ms=ms(a.tpot), gap_ms=ms(a.gap), e2e_ms=ms(a.e2e), tokens=a.tokens,
                        timings=a.timings)

    def finish(self):
        path = self.path.with_name(f"{self.target}-samples.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(sample) + "\n" for sample in self.samples))
        busy, total, own = (b - a for a, b in zip(self.processors, processor_time()))
        others = 100 * max(busy - own, 0) / total if total else None
        self.figure("all: processors' time that went to other programs, %", others)
        print(f"\n{machine()}\n")
        code = super().finish()
        print(f"samples: {os.path.relpath(path)}", flush=True)
        if others is not None and others > OTHERS_MAX:
            print(f"bench: other programs took {others:.0f} % of the processors meanwhile: these figures say little", file=sys.stderr)
        return code


def processor_time():
    """Seconds since some time: (busy for anybody or taken by other machines, in all, ours with the engines that have ended)."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    tick, spent = os.sysconf("SC_CLK_TCK"), os.times()
    return (sum(fields) - fields[3] - fields[4]) / tick, sum(fields) / tick, sum(spent[:4])


def ms(seconds):
    return None if seconds is None else round(seconds * 1000, 3)


def machine():
    found = re.search(r"^model name\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return (f"{time.strftime('%Y-%m-%d %H:%M')}, {found[1] if found else os.uname().machine}, "
            f"{len(os.sched_getaffinity(0))} cores for this process, load average {os.getloadavg()[0]:.1f} "
            f"(the benchmark's own included)")


def first_launch_wait_ms(answer):
    """(arrival in the mailbox to first launch) + (time preempted), by the engine's own clock; None where it gives no timings."""
    t = answer.timings
    first = t.get("first_launch_ms", t.get("queue_ms"))
    return None if first is None else first + t.get("preempted_ms", 0)


def parser_of(doc, **defaults):
    """Options that all benchmarks have; `defaults` change or remove (None) some."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", metavar="NAME", help="smollm2, gemma3 or a GGUF file; may be given again"
                        f" (default: {' and '.join(defaults['models'])})")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)), help="of each engine (default: all, %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and times of arrival")
    parser.add_argument("--quick", action="store_true", help="a trial of about two minutes: shows that it works, proves nothing")
    parser.add_argument("--seconds", type=positive, help=defaults["seconds"])
    if defaults.get("peers"):
        parser.add_argument("--peer-server", metavar="PATH", action="append", default=[],
                            help="a llama-server that you have built, measured beside the others; may be given again")
        parser.add_argument("--no-peer", action="store_true", help="leave out the peer of bench/peers")
        parser.add_argument("--folder", type=pathlib.Path, default=servers.PEERS, help="where bench/peers put it")
    return parser


def positive(text):
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def model_of(name):
    """(label, path)"""
    if name in LABELS:
        path = fetch.path_of(name)
        if not os.path.isfile(path):
            raise servers.ServerError(f"{name} is not there: tools/fetch.py {name}")
        return LABELS[name], pathlib.Path(path)
    path = pathlib.Path(name)
    if not path.is_file():
        raise servers.ServerError(f"there is no model {name}")
    return path.stem, path


def synth(shape, quant):
    """(label, path) of a model with random weights, made by `troika synth` if it is not there."""
    label = f"{shape} {quant} (random weights)"
    path = servers.CACHE / "models" / f"synth-{shape}-{quant}.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".part")
        fresh.unlink(missing_ok=True)  # of a run that was interrupted
        print(f"making {path.name} ...", file=sys.stderr, flush=True)
        run = subprocess.run([servers.BINARY, "synth", "--shape", shape, "--type", quant, "-o", fresh], stdin=subprocess.DEVNULL,
                             capture_output=True, text=True)
        if run.returncode:
            fresh.unlink(missing_ok=True)
            raise servers.ServerError(f"troika synth failed (exit code {run.returncode}): {run.stderr.strip()[-300:]}")
        os.replace(fresh, path)
    return label, path


def peers_of(options, *arguments):
    """The peers that were asked for, not yet started."""
    found = [] if options.no_peer else [servers.Xllamacpp(*arguments, folder=options.folder)]
    return found + [servers.PeerServer(path, *arguments) for path in options.peer_server]


def interrupted(*_):
    raise KeyboardInterrupt


def run_main(main):
    """The exit code; what a person has to mend is one sentence, Ctrl-C and SIGTERM end the servers too."""
    signal.signal(signal.SIGTERM, interrupted)
    try:
        return main()
    except servers.ServerError as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
