# SPDX-License-Identifier: Apache-2.0
"""The servers that are compared: each is started on a free port, waited for, asked, and ended. Whoever starts one ends it (`with`).

    Troika          build/release/troika serve
    Xllamacpp       llama.cpp's server as the package xllamacpp has it, in a process of bench/peer_server.py
    PeerServer      a llama.cpp server that the user has built (--peer-server PATH)
"""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "troika"
PEERS = CACHE / "peers"
BINARY = pathlib.Path(os.environ.get("TROIKA_BINARY") or ROOT / "build/release/troika")
READY_S = 120
END_S = 20
# The environment's and the user's own settings are not part of a measurement.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TROIKA_", "LLAMA_"))} | {
    "XDG_CONFIG_HOME": "/nowhere"}


class ServerError(Exception):
    """What is wrong, in words for the person who typed make."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def first_line(command):
    """What a program prints first when asked for its version, on either of its outputs."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ServerError(f"{command[0]} cannot be run: {problem}") from None
    return next((line for line in (run.stdout + run.stderr).splitlines() if "version" in line or "troika" in line), "")


class Server:
    """`kind` is "troika" or "llama.cpp"; `label` names the build and stands in every row."""
    kind = label = None
    command = ()
    metrics_prefix = ""

    def __enter__(self):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen([str(word) for word in self.arguments()], stdin=subprocess.DEVNULL, stdout=self.log,
                                            stderr=self.log, env=ENVIRONMENT)
        except OSError as problem:
            raise ServerError(f"{self.label} cannot be started: {problem}") from None
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGTERM)  # the second one does not wait for what runs
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def log_tail(self):
        self.log.seek(0)
        return "\n".join(self.log.read().decode("utf-8", "replace").splitlines()[-12:])

    def wait_ready(self):
        begun = time.monotonic()
        while time.monotonic() - begun < READY_S:
            if self.process.poll() is not None:
                raise ServerError(f"{self.label} ended with {self.process.returncode} at its start:\n{self.log_tail()}")
            try:
                if self.ask("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise ServerError(f"{self.label} is not ready after {READY_S} s:\n{self.log_tail()}")

    def ask(self, path, body=None, timeout=60):
        """(status, bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as problem:
            raise OSError(f"{self.label}: {problem}") from None
        finally:
            connection.close()

    def tokenize(self, text, special=False):
        status, data = self.ask("/tokenize", {"content": text, "add_special": special})
        if status != 200:
            raise ServerError(f"{self.label} does not tokenize (HTTP {status}): {data[:200]!r}")
        return json.loads(data)["tokens"]

    def metrics(self):
        """Of /metrics: name with its labels -> value; {} where the server has none."""
        status, data = self.ask("/metrics")
        return parse_metrics(data.decode()) if status == 200 else {}

    def cpu_seconds(self):
        """User and system time of its process so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self):
        found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) * 1024 if found else None

    def wait_idle(self, seconds=30):
        """Until it works for nobody; False if it still does."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            try:
                if not self.busy():
                    return True
            except OSError as problem:
                try:
                    self.process.wait(2)  # one that has just died is not yet seen to be dead
                except subprocess.TimeoutExpired:
                    print(f"{self.label} does not answer: {problem}", file=sys.stderr, flush=True)
            if self.process.poll() is not None:
                raise ServerError(f"{self.label} ended with {self.process.returncode} under load:\n{self.log_tail()}")
            time.sleep(0.05)
        return False


def parse_metrics(text):
    result = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            result[name] = float(value)
    return result


def metric(metrics, name, **labels):
    """The value of one metric of troika; None if it has none such. Labels that are not asked for may be any: their values are added."""
    found = None
    for key, value in metrics.items():
        plain, _, rest = key.partition("{")
        if plain != f"troika_{name}":
            continue
        have = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if all(have.get(label) == want for label, want in labels.items()):
            found = value if found is None else found + value
    return found


def metric_ms(metrics, name):
    """A time that a metric has in seconds or milliseconds, as its name says."""
    seconds, ms = metric(metrics, f"{name}_seconds"), metric(metrics, f"{name}_ms")
    return ms if ms is not None else None if seconds is None else seconds * 1000


class Troika(Server):
    kind = "troika"

    def __init__(self, model, threads, parallel, context, *options, binary=BINARY):
        if not pathlib.Path(binary).is_file():
            raise ServerError(f"there is no {binary}: make build")
        self.model, self.threads, self.parallel, self.context, self.options = model, threads, parallel, context, options
        self.binary = binary
        found = re.search(r"troika (\S+)(?: \((\w{1,8})\w*(-\w+)?\))?", first_line([binary, "--version"]))
        self.label = "troika" if not found else f"troika {found[2]}{found[3] or ''}" if found[2] else f"troika {found[1]}"

    def arguments(self):
        return [self.binary, "serve", "-m", self.model, "--host", "127.0.0.1", "--port", self.port, "--threads", self.threads,
                "--parallel", self.parallel, "--context", self.context, "--log-level", "warn", *self.options]

    def has_option(self, name):
        run = subprocess.run([self.binary, "serve", "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", run.stdout) is not None

    def busy(self):
        state = json.loads(self.ask("/health")[1])
        return state.get("running", 0) + state.get("queued", 0) > 0

    def bound_ms(self):
        """The longest that background work keeps the processor from a reactive request: what the server itself says."""
        return metric_ms(self.metrics(), "preempt_bound")


class LlamaServer(Server):
    """What both peers have in common: llama.cpp's server."""
    kind = "llama.cpp"

    def __init__(self, model, threads, parallel, context):
        self.model, self.threads, self.parallel, self.context = model, threads, parallel, context

    def busy(self):
        status, data = self.ask("/slots")
        if status != 200:
            time.sleep(1)  # it does not tell
            return False
        return any(slot.get("is_processing") for slot in json.loads(data))


class Xllamacpp(LlamaServer):
    def __init__(self, *arguments, folder=PEERS):
        super().__init__(*arguments)
        self.python = pathlib.Path(folder) / "xllamacpp/bin/python"
        if not self.python.is_file():
            raise ServerError(f"there is no xllamacpp in {folder}: run bench/peers, or leave the peer out with --no-peer")
        run = subprocess.run([self.python, HERE / "peer_server.py", "--version"], capture_output=True, text=True, env=ENVIRONMENT,
                             stdin=subprocess.DEVNULL)
        if run.returncode:
            raise ServerError(f"xllamacpp does not load: {run.stderr.strip()[-400:]}")
        self.label = run.stdout.strip()

    def arguments(self):
        return [self.python, "-B", HERE / "peer_server.py", "--model", self.model, "--port", self.port, "--threads", self.threads,
                "--parallel", self.parallel, "--context", self.context]


class PeerServer(LlamaServer):
    """llama-server's own options; those that only newer ones have are given if its help names them."""

    def __init__(self, path, *arguments):
        super().__init__(*arguments)
        self.path = path
        line = first_line([path, "--version"])
        found = re.search(r"version:?\s*(\S+)(?:\s*\((\w+)\))?", line)
        if not found:
            raise ServerError(f"{path} --version says no version of a llama.cpp server")
        self.label = f"{pathlib.Path(path).name} {found[1]}" + (f" {found[2][:8]}" if found[2] else "")
        run = subprocess.run([path, "--help"], capture_output=True, text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
        self.help = run.stdout + run.stderr

    def arguments(self):
        words = [self.path, "-m", self.model, "--host", "127.0.0.1", "--port", self.port, "-c", self.context * self.parallel,
                 "-np", self.parallel, "-t", self.threads, "-tb", self.threads]
        # As the other peer: no copies of finished prompts in memory, since no prompt comes twice.
        for option, value in (("--cache-ram", "0"), ("--slots", None), ("--no-kv-unified", None)):
            if re.search(rf"(?<![\w-]){option}(?![\w-])", self.help):
                words += [option] if value is None else [option, value]
        return words
