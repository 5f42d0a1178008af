#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench_kv.py [OPTION...] - whether pages of KV memory pay: `troika bench kv` for both models (or with the options given: one run
with these), shown as it prints itself, and its figures as build/reports/bench-kv.json.

Spread is (most - least) / median of the runs. Wanted is only what must not change unseen: that pages of 32, which the engine has, have
the smallest product of bytes and time with 8 sequences.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402
import report  # noqa: E402

BINARY = ROOT / "build/release/troika"
RUNS = [("SmolLM2-135M", "smollm2"), ("Gemma-3-270M", "gemma3")]


def measure(options):
    """The record; what a person reads goes to standard output on the way."""
    record = json.loads(subprocess.run([BINARY, "bench", "kv", "--json", *options], check=True, stdout=subprocess.PIPE).stdout)
    print(f"\n{record['model']}, longest sequence {record['context']} tokens, {record['repetitions']} runs, commit {record['commit']}, "
          f"{record['machine']['cpu']}")
    for result in record["results"]:
        used = result["used_bytes"]
        print(f"\n{result['sequences']} at once, {result['tokens']} tokens, {used / 1e6:.2f} MB that can be seen; "
              f"smallest bytes x time: {result['verdict']}")
        print(f"{'':22}{'wasted MB':>11}{'of used':>10}{'overhead kB':>13}{'copied MB':>11}{'us a token':>12}{'min':>9}{'max':>9}")
        for layout in result["layouts"]:
            us = layout["us_per_token"]
            print(f"{layout['name']:22}{layout['wasted_bytes'] / 1e6:11.2f}{100 * layout['wasted_bytes'] / used:9.1f}%"
                  f"{layout['overhead_bytes'] / 1e3:13.1f}{layout['copied_bytes'] / 1e6:11.2f}{us['median']:12.1f}{us['min']:9.1f}"
                  f"{us['max']:9.1f}")
    return record


def add(figures, label, record):
    for result in record["results"]:
        n, used = result["sequences"], result["used_bytes"]
        layouts = {layout["name"]: layout for layout in result["layouts"]}
        contiguous = layouts["contiguous, reserved"]["us_per_token"]["median"]
        for name, layout in layouts.items():
            us = layout["us_per_token"]
            where = f"{label}, {n} at once, {name}"
            figures.add(f"{where}: wasted, % of used", "", round(100 * layout["wasted_bytes"] / used, 1))
            figures.add(f"{where}: tables and tree, % of used", "", round(100 * layout["overhead_bytes"] / used, 2))
            if name != "contiguous, doubled":  # reads memory as the reserved one does
                figures.add(f"{where}: attention, us a token", "", us["median"], round((us["max"] - us["min"]) / us["median"], 3))
                figures.add(f"{where}: attention, of contiguous", "", round(us["median"] / contiguous, 3))
            else:
                figures.add(f"{where}: copied in growing, % of used", "", round(100 * layout["copied_bytes"] / used, 1))
        if n == 8:
            figures.add(f"{label}, {n} at once: pages of 32 have the smallest bytes x time", "== 1", int(result["verdict"] == "paged 32"))


def main():
    figures = report.Report("bench-kv")
    if sys.argv[1:]:
        record = measure(sys.argv[1:])
        add(figures, record["model"], record)
    else:
        for label, name in RUNS:
            add(figures, label, measure(["--model", str(fetch.path_of(name)), "--repetitions", "7"]))
    print()
    return figures.finish()


if __name__ == "__main__":
    sys.exit(main())
