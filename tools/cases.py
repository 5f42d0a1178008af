#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tests/api/check_cases_*.py with the release build, and writes build/reports/cases.json: for each case how many of its checks
failed. A case is an input that broke some server of this kind; its id is the begin of its checks' names.

    tools/cases.py [WORD...]     only files whose name holds one of the words: nothing is written then
"""
import os
import pathlib
import re
import subprocess
import sys
import time

import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
CASES = ["S1", "S2", "S3", "S6", "S7", "S8", "S9", "S10", *(f"C{i}" for i in range(1, 10)),
         *(f"L{i}" for i in (1, 2, 3, 4, 5, 6, 7, 9, 11)), *(f"J{i}" for i in (1, 2, 4, 5, 6, 7, 8)),
         *(f"H{i}" for i in range(1, 8)), *(f"T{i}" for i in range(7, 11))]
LINE = re.compile(r"(not )?ok ([A-Z][0-9]+)_(\w+)")


def run(file, passed, failed):
    """Counts a file's checks by case; its exit code and seconds."""
    begun = time.monotonic()
    environment = os.environ | {"TROIKA_BUILD": str(BUILD), "TROIKA_BINARY": str(BUILD / "troika"), "PYTHONPATH": str(ROOT / "tools")}
    child = subprocess.run([ROOT / "build/venv/bin/python", "-B", file], stdout=subprocess.PIPE, text=True, env=environment, timeout=900)
    print(child.stdout, end="", flush=True)
    for line in child.stdout.splitlines():
        if match := LINE.match(line):
            counts = failed if match[1] else passed
            counts[match[2]] = counts.get(match[2], 0) + 1
    return child.returncode, round(time.monotonic() - begun, 1)


def main():
    words = sys.argv[1:]
    files = sorted((ROOT / "tests" / "api").glob("check_cases_*.py"))
    files = [file for file in files if not words or any(word in file.name for word in words)]
    passed, failed, codes = {}, {}, {}
    for file in files:
        codes[file.name] = run(file, passed, failed)
    if words:
        return 1 if any(code for code, _ in codes.values()) else 0
    result = report.Report("cases")
    for case in CASES:
        seen = case in passed or case in failed
        result.add(f"{case}: failed checks", "== 0", failed.get(case, 0) if seen else None)
    result.add("cases covered", f">= {len(CASES)}", len(set(CASES) & (set(passed) | set(failed))))
    result.add("checks", "", sum(passed.values()) + sum(failed.values()))
    for name, (code, seconds) in codes.items():
        result.add(f"{name}: exit code", "== 0", code)
        result.add(f"{name}: seconds", "", seconds)
    return result.finish()


if __name__ == "__main__":
    sys.exit(main())
