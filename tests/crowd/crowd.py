#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/crowd/crowd.py [--seconds N] [--clients N] [--seed N] [--light] [--report] - a crowd of badly behaved clients at `troika serve`.

Starts a server, asks it a few things whose answers are kept, lets the crowd loose (clients.py) with a prober of /health beside it
(prober.py), and looks at what is left when all have gone: requests, streams, descriptors, threads, memory, the same answers to the same
questions, an orderly end without a sanitizer's finding. The clients are of both classes, by all that can say so, with keys of several
kinds. Prints "ok NAME | WANTED | MEASURED" (or "not ok ...") for each figure; --report also writes build/reports/crowd.json.

--light is for servers built with sanitizers: the same behaviours with fewer tokens of a model with fewer layers (shallow.py), more
patience, and no bounds on time and memory. Who asks pauses longer, as the server takes longer: where people alone ask for more than it can
do, the background has next to nothing, and little of it is tested.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(HERE)]
import report  # noqa: E402
import shallow  # noqa: E402
from who import KEYS, NIGHTLY  # noqa: E402
from wire import KEY  # noqa: E402

BODY_MAX = 1024 * 1024
TICKS = os.sysconf("SC_CLK_TCK")
FINDING = re.compile(r"ERROR: (?:Address|Leak)Sanitizer|runtime error: |WARNING: ThreadSanitizer|FATAL: \w+Sanitizer|check failed")
QUESTIONS = ["Name three colours.", "What is the capital of France?", "Say hello.", "Why is the sky blue?", "Count to five.",
             "What do cats eat?"]
BEGINNINGS = ["Once upon a time", "The sea is", "One, two, three,"]
# The heap is not flat under 200 clients: which thread serves whom is chance, and glibc's arenas keep what a burst of bodies (1 MiB), rings
# (64 KiB), templates and grammars needed. Measured: up to 1.2 MiB in one minute and 5.6 in ten, while the same requests one after another
# are flat. 8 MiB are 2 KiB for each request of the last two thirds of a minute, or 280 bytes in ten; smaller leaks are AddressSanitizer's.
GROWTH_MIB = 8
# Pages for half of the places at full context, so that pages are taken from the background, too; a target that a crowd on few
# processors meets now and then, so that levels of pressure go up and down and not all is refused; and promotions within a minute.
POLICY = ["--ttft-target", "30000", "--age-limit", "2"]
KV_SIZE, KV_SIZE_SHALLOW = "96M", "7M"


class Server:
    def __init__(self, binary, folder, options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TROIKA_")} | {"XDG_CONFIG_HOME": "/nowhere"}
        self.log_path = pathlib.Path(folder) / "serve.log"
        self.log = open(self.log_path, "w")
        keys = pathlib.Path(folder) / "keys"
        keys.write_text("".join(f"{key} {rules}".strip() + "\n" for key, rules in KEYS.items()))
        keys.chmod(0o600)
        self.process = subprocess.Popen([binary, "serve", "--port", "0", "--api-key-file", keys, *options], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        self.ready = self.process.stdout.readline()
        found = re.search(r" at http://127\.0\.0\.1:(\d+)$", self.ready.strip())
        if not found:
            self.process.kill()
            raise RuntimeError(f"no server: {self.ready!r} {self.log_path.read_text()[-2000:]}")
        self.port = int(found[1])

    def open(self, path, body=None, key=KEY, timeout=600):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        return urllib.request.urlopen(request, timeout=timeout)

    def ask(self, path, body=None, key=KEY):
        """Its JSON. Pressure falls step by step: one that is refused because of it comes back."""
        end = time.monotonic() + 60
        while True:
            try:
                with self.open(path, body, key) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 429 or time.monotonic() > end:
                    raise
                time.sleep(1)

    def metrics(self):
        """Name with its labels -> value."""
        with self.open("/metrics") as answer:
            lines = answer.read().decode().split("\n")
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and not line.startswith("#")}

    def status(self, field):
        """A number of /proc/PID/status; memory is in KiB."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+)", text, re.M)[1])

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def processor_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self, patience_s):
        """The exit code after SIGTERM; None if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            self.log.close()


def shallow_model(folder):
    """As options of serve."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    models = pathlib.Path(os.environ.get("TROIKA_MODELS") or pathlib.Path(cache) / "troika" / "models")
    shallow.write(models / "SmolLM2-135M-Instruct.Q4_1.gguf", folder / "shallow.gguf", 2)
    return ["--model", folder / "shallow.gguf", "--kv-size", KV_SIZE_SHALLOW]


def ask_known(server, light):
    """Requests with the answers that the server gives when it is alone."""
    known = {"chat": [], "completion": [], "long": []}
    for i, question in enumerate(QUESTIONS):
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 2 if light else 4 + 2 * i}
        known["chat"].append({"body": body, "text": server.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"]})
    for question in QUESTIONS[:3]:  # long enough to be steered
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 6 if light else 40, "ignore_eos": True}
        known["long"].append({"body": body, "text": server.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"]})
    for beginning in BEGINNINGS:
        body = {"prompt": beginning, "temperature": 0, "max_tokens": 2 if light else 8}
        known["completion"].append({"body": body, "text": server.ask("/v1/completions", body)["choices"][0]["text"]})
    # Of a form, so that the thread that watches over the steps of forms is there from the beginning.
    body = {"prompt": "A", "response_format": {"type": "grammar", "syntax": "regex", "definition": "yes|no"}, "temperature": 0}
    known["completion"].append({"body": body, "text": server.ask("/v1/completions", body)["choices"][0]["text"]})
    return known


def touch_all_pages(server, parallel, context):
    """KV pages, activation slots and logits are given by the system when they are first written: with all places full at once, of each
    class, and with one that is promoted, all have been."""
    def fill(i, key):
        body = {"prompt": [100 + i] * (context - 40), "max_tokens": 40, "ignore_eos": True}
        server.ask("/v1/completions", body, key)

    def fill_all(first, keys):
        threads = [threading.Thread(target=fill, args=(first + i, key)) for i, key in enumerate(keys)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    fill_all(0, [KEY] * parallel)
    fill_all(50, [NIGHTLY] * parallel)
    for i in range(5):
        if not server.metrics()["troika_promotions_total"]:
            fill_all(100 + 50 * i, [NIGHTLY] * parallel + [KEY] * 4)


def start_python(script, *arguments):
    return subprocess.Popen([sys.executable, "-B", HERE / script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def machine_processor_s():
    """What all processes of this machine have used."""
    user, nice, system, _, _, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


def wait_until(true, seconds):
    end = time.monotonic() + seconds
    while not (value := true()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def least(number):
    """Over a second: connections and threads of what was just asked may still be ending, and an idle server measures launches and writes
    them to a file now and then. What leaks is there all the time."""
    values = []
    for _ in range(20):
        values.append(number())
        time.sleep(0.05)
    return min(values)


def median_near(samples, at, width):
    near = [kib for t, kib in samples if at - width <= t <= at]
    return statistics.median(near) if near else None


def let_loose(server, options, known):
    """Crowd and prober; what they counted, and the server's memory over time."""
    settings = {"port": server.port, "clients": options.clients, "seconds": options.seconds, "seed": options.seed, "known": known,
                "body_max": BODY_MAX, "patience_s": 180 if options.light else 60, "tokens_share": 0.05 if options.light else 1,
                "pauses": 10 if options.light else 1}
    prober = start_python("prober.py", str(server.port))
    crowd = start_python("clients.py")
    try:
        crowd.stdin.write(json.dumps(settings))
        crowd.stdin.close()
        begun, samples = time.monotonic(), []
        last = begun + options.seconds + 3 * settings["patience_s"] + 30  # each client may still be in its last answer
        while crowd.poll() is None and server.process.poll() is None and time.monotonic() < last:
            samples.append((time.monotonic() - begun, server.status("RssAnon")))
            time.sleep(0.5)
        crowd_says = json.loads(crowd.stdout.read()) if crowd.poll() == 0 else None
        time.sleep(1)  # the prober sees how all of them leave at once
        prober.stdin.close()
        prober_says = json.loads(prober.stdout.read() or "null")
        return crowd_says, prober_says, samples
    finally:
        for process in (prober, crowd):
            process.kill()
            process.wait()


def run(options, rows):
    """Adds to `rows` (name, wanted, measured); True if the log is worth keeping."""
    context, parallel = 1024, 8
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crowd-"))
    model = shallow_model(folder) if options.light else ["--kv-size", KV_SIZE]
    server = Server(options.binary, folder, ["--context", str(context), "--parallel", str(parallel), "--queue-max", "32",
                                             "--body-max", str(BODY_MAX), "--keep-alive", "2", *POLICY, *model, *options.serve])
    print(server.ready.strip(), flush=True)
    print(f"# seed {options.seed}, {options.clients} clients, {options.seconds} s; log {server.log_path}", flush=True)
    patience = 60 if options.light else 5
    try:
        known = ask_known(server, options.light)
        if not options.light:
            touch_all_pages(server, parallel, context)
        descriptors, threads = least(server.descriptors), least(lambda: server.status("Threads"))
        used, used_by_all = server.processor_s(), machine_processor_s()
        crowd, prober, samples = let_loose(server, options, known)
        used, used_by_all = server.processor_s() - used, machine_processor_s() - used_by_all
        add_figures(options, rows, crowd, prober, samples)
        rows.append(("processor time of the server, of one core", "", used / options.seconds))
        if crowd:
            rows.append(("processor time of the clients, of one core", "", crowd["processor_s"] / options.seconds))
            rows.append(("processor time of others, of one core", "",
                         max(0.0, used_by_all - used - crowd["processor_s"]) / options.seconds))
        left = {}

        def gone():
            left.update(server.ask("/health"))
            return not left["running"] and not left["queued"]
        wait_until(gone, patience)
        rows.append((f"running left after {patience} s", "== 0", left.get("running")))
        rows.append((f"queued left after {patience} s", "== 0", left.get("queued")))
        wait_until(lambda: server.descriptors() <= descriptors, patience)
        rows.append((f"streams left after {patience} s", "== 0",
                     sum(len(server.ask("/v1/streams", key=key)["data"]) for key in KEYS)))
        rows.append(("descriptors left", "== 0", least(server.descriptors) - descriptors))
        wait_until(lambda: server.status("Threads") <= threads, patience)
        rows.append(("threads left", "== 0", least(lambda: server.status("Threads")) - threads))
        add_metrics(rows, server.metrics())
        again = ask_known(server, options.light)
        rows.append(("answers that are not what they were", "== 0",
                     sum(a["text"] != b["text"] for kind in known for a, b in zip(known[kind], again[kind]))))
    finally:
        code = server.stop(120)
    rows.append(("exit code after SIGTERM", "== 0", code))
    log = server.log_path.read_text(errors="replace")
    rows.append(("sanitizer findings", "== 0", len(FINDING.findall(log))))
    if FINDING.search(log) or code != 0:
        print(log[max(0, (FINDING.search(log) or re.search("$", log)).start() - 200):][:8000], flush=True)
    return server.log_path


def add_metrics(rows, m):
    """What the server itself counted, when all have gone."""
    for class_ in ("reactive", "proactive"):
        rows.append((f"whole answers, {class_}", ">= 1", m[f'troika_request_seconds_count{{class="{class_}"}}']))
    for name in ("preemptions", "suspensions", "iterations_dropped", "piggybacked_rows", "promotions", "prefix_hits", "kv_evictions"):
        rows.append((name.replace("_", " "), ">= 1" if name == "preemptions" else "", m[f"troika_{name}_total"]))
    for reason in ("queue_full", "overloaded", "key_limit", "deadline_exceeded", "superseded", "cancelled"):
        rows.append((f"refused or given up: {reason}", "", m[f'troika_refused_total{{reason="{reason}"}}']))
    rows.append(("bytes copied", "== 0", m["troika_bytes_copied_total"]))
    counts = [f'troika_class_requests_{state}{{class="{class_}"}}'
              for state in ("running", "queued") for class_ in ("reactive", "proactive")]
    rows.append(("running or queued by the metrics", "== 0",
                 sum(m[name] for name in ("troika_requests_running", "troika_requests_queued", *counts))))


def add_figures(options, rows, crowd, prober, samples):
    if not crowd or not prober:
        rows.append(("clients and prober that came to their end", "== 2", bool(crowd) + bool(prober)))
        return
    for text, n in crowd["examples"]:
        print(f"# mistake, {n} times: {text}")
    for text in prober["examples"]:
        print(f"# mistake: {text}")
    print(f"# behaviours: {crowd['behaviours']}\n# answers: {crowd['statuses']}", flush=True)
    timed = not options.light
    rows.append(("clients", "== 200" if options.clients == 200 else "", options.clients))
    rows.append(("seconds", "", options.seconds))
    rows.append(("requests and connections", f">= {options.clients}", crowd["requests"]))
    rows.append(("answers 200", ">= 1", crowd["statuses"].get("200", 0)))
    rows.append(("answers 429", "", crowd["statuses"].get("429", 0)))
    for what in ("200 reactive", "200 proactive", "attached", "superseded", "504"):
        rows.append((what, ">= 1" if what.startswith("200") else "", crowd["statuses"].get(what, 0)))
    rows.append(("mistakes", "== 0", crowd["mistakes"]))
    rows.append(("/health: probes", ">= 10", prober["probes"]))
    rows.append(("/health: mistakes", "== 0", prober["mistakes"]))
    rows.append(("/health: P50, ms", "", prober["p50_ms"]))
    rows.append(("/health: P99, ms", "< 50" if timed else "", prober["p99_ms"]))
    rows.append(("/health: most, ms", "< 1000" if timed else "", prober["max_ms"]))
    third, end = median_near(samples, options.seconds / 3, 5), median_near(samples, options.seconds, 5)
    rows.append(("memory after a third, MiB", "", third and third / 1024))
    rows.append(("memory growth from there to the end, MiB", f"<= {GROWTH_MIB}" if timed else "",
                 (end - third) / 1024 if third and end else None))


def show(rows):
    """Prints a line for each figure; the number of those that do not hold."""
    failed = 0
    for name, wanted, measured in rows:
        holds = report.holds(wanted, measured)
        failed += holds is False
        value = "-" if measured is None else f"{measured:.4g}"
        if wanted:
            print(f"{'ok' if holds else 'not ok'} {name} | {wanted} | {value}", flush=True)
        else:
            print(f"# {name} | {value}", flush=True)
    return failed


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.environ.get("TROIKA_BINARY") or ROOT / "build/release/troika")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of what the clients draw; absent is a new one, printed")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("serve", nargs="*", help="further options of troika serve, after --")
    options = parser.parse_args(arguments)
    options.seed = options.seed if options.seed is not None else random.randrange(1 << 31)
    rows = []
    log = run(options, rows)
    failed = show(rows)
    if not failed:
        shutil.rmtree(log.parent)
    if options.report:
        written = report.Report("crowd")
        for row in rows:
            written.add(*row)
        failed += written.finish() != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
