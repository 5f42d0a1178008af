#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/figures.py TARGET [--append] PROGRAM... - runs test programs and makes a report of the figures that they print.

A figure is a line "ok NAME | WANTED | MEASURED", as tests/figures.h prints it (or "not ok ...", or with " | SPREAD" behind it); every
other line is passed through. Writes build/reports/TARGET.json and prints the table. Exit code 1 if a figure does
not hold or a program ends badly.
"""
import math
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fetch  # noqa: E402
import report  # noqa: E402

LINE = re.compile(r"^(?:not )?ok ([^|]+) \| ([^|]+) \| (\S+)(?: \| (\S+))?$")


def main():
    arguments = sys.argv[1:]
    append = "--append" in arguments
    arguments = [a for a in arguments if a != "--append"]
    result = report.Report(arguments[0])
    if append:
        result.load()
    for program in arguments[1:]:
        began = time.monotonic()
        child = subprocess.Popen([program], stdout=subprocess.PIPE, text=True,
                                 env=dict(os.environ, TROIKA_CACHE=str(fetch.CACHE)))
        for line in child.stdout:
            match = LINE.match(line.rstrip("\n"))
            if match:
                measured = float(match[3])
                result.add(match[1], match[2], measured if math.isfinite(measured) else None,
                           float(match[4]) if match[4] else None)
            else:
                print(line, end="", flush=True)
        name = os.path.basename(program)
        result.add(f"{name}: exit code", "== 0", child.wait())
        result.add(f"{name}: seconds", "", round(time.monotonic() - began, 1))
    return result.finish()


if __name__ == "__main__":
    sys.exit(main())
