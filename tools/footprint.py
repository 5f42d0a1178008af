#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/footprint.py [RUNS] - what one run of `troika run` costs: time from start to first token, peak memory.

Each run is a new process. The first token is the first byte on its standard output: process start, reading
and packing the model, prompt and first decode are all in it. Peak memory is the kernel's count of the
process's resident set. Writes build/reports/footprint.json.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402
import report  # noqa: E402

BINARY = ROOT / "build/release/troika"
TOKENS = 64
# name, arguments, KV bytes of one token (F16, all layers), limit of the start in seconds ("" where the issue sets none)
MODELS = [("SmolLM2-135M", "smollm2", [], 2 * 30 * 3 * 64 * 2, "<= 0.5 s"),
          ("Gemma-3-270M", "gemma3", ["--raw"], 2 * 18 * 1 * 256 * 2, "")]


def one_run(path, more):
    began = time.monotonic()
    child = subprocess.Popen([BINARY, "run", "-m", path, "--temp", "0", "-n", str(TOKENS), "--ignore-eos", *more,
                              "Why is the sky blue?"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
    child.stdout.read(1)
    first = time.monotonic() - began
    child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"footprint: troika run ended with {status}")
    return first, usage.ru_maxrss * 1024


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    result = report.Report("footprint")
    for label, name, more, kv_token, limit in MODELS:
        path = fetch.path_of(name)
        size = os.path.getsize(path)
        one_run(path, more)  # the page cache is warm from here on
        samples = [one_run(path, more) for _ in range(runs)]
        starts, peaks = [s[0] for s in samples], [s[1] for s in samples]
        result.add(f"{label}: start to first token, s (median of {runs})", limit,
                   round(statistics.median(starts), 4), round(spread(starts), 3))
        most = 1.1 * size + kv_token * (TOKENS + 64) + 128e6
        result.add(f"{label}: peak memory, MB (limit 1.1 x file + KV + 128 MB)", f"<= {most / 1e6:.1f}",
                   round(max(peaks) / 1e6, 1), round(spread(peaks), 3))
    return result.finish()


if __name__ == "__main__":
    sys.exit(main())
