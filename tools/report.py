#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/report.py - figures with what was wanted of them: a table for people, build/reports/TARGET.json for programs.

The JSON is a list of {name, wanted, measured, spread, holds}. `wanted` is text such as ">= 98.5 %", "<= 0.002", "== 0", "1..4" or
"" (nothing was promised: holds is null). `measured` and `spread` are numbers or null; null measured never holds. holds is
computed here from wanted and measured, never given.

In Python:   report = Report("test"); report.add("tests failed", "== 0", 0); sys.exit(report.finish())
In a shell:  tools/report.py add TARGET NAME WANTED MEASURED [SPREAD]    (appends a row to the JSON)
             tools/report.py begin TARGET                                (empties it)
             tools/report.py show TARGET                                 (prints the table; exit code 1 if a row does not hold)
"""
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = pathlib.Path(os.environ.get("TROIKA_REPORTS") or ROOT / "build" / "reports")
NUMBER = r"([-+]?[0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
COMPARE = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


def number(text):
    return float(text.replace("_", "").replace(",", ""))


def holds(wanted, measured):
    """True, False, or None where nothing was wanted. Raises ValueError if `wanted` is no condition."""
    wanted = wanted.strip()
    if not wanted:
        return None
    compare = re.match(rf"(>=|<=|==|<|>)\s*{NUMBER}", wanted)
    between = re.match(rf"{NUMBER}\s*\.\.\s*{NUMBER}", wanted)
    if not compare and not between:
        raise ValueError(f"wanted {wanted!r} is no condition such as '>= 98.5 %' or '1..4'")
    if measured is None or measured != measured:
        return False
    if compare:
        return COMPARE[compare[1]](measured, number(compare[2]))
    return number(between[1]) <= measured <= number(between[2])


def show(value):
    if value is None:
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return f"{value:.0f}"


class Report:
    def __init__(self, target):
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", target):
            raise ValueError(f"target {target!r}")
        self.target = target
        self.rows = []

    @property
    def path(self):
        return FOLDER / f"{self.target}.json"

    def load(self):
        self.rows = json.loads(self.path.read_text()) if self.path.is_file() else []
        return self

    def add(self, name, wanted, measured, spread=None):
        row = {"name": name, "wanted": wanted, "measured": measured, "spread": spread,
               "holds": holds(wanted, measured)}
        self.rows.append(row)
        return row["holds"]

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".json.new")
        fresh.write_text(json.dumps(self.rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        os.replace(fresh, self.path)

    def table(self):
        verdict = {True: "yes", False: "NO", None: ""}
        lines = [("", "wanted", "measured", "spread", "holds")]
        lines += [(row["name"], row["wanted"], show(row["measured"]), show(row["spread"]), verdict[row["holds"]])
                  for row in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        return "\n".join(
            f"{line[0]:<{widths[0]}}  {line[1]:<{widths[1]}}  {line[2]:>{widths[2]}}  {line[3]:>{widths[3]}}  {line[4]}"
            .rstrip() for line in lines)

    def ok(self):
        return all(row["holds"] is not False for row in self.rows)

    def finish(self):
        """Prints, writes, and answers the exit code."""
        self.write()
        print(self.table())
        print(f"written to {os.path.relpath(self.path)}", flush=True)
        return 0 if self.ok() else 1


def figure(text):
    return None if text in ("", "-") else float(text) if re.search(r"[.eEn]", text) else int(text)


def main(arguments):
    match arguments:
        case ["begin", target]:
            Report(target).write()
        case ["add", target, name, wanted, measured, *spread] if len(spread) <= 1:
            report = Report(target).load()
            report.add(name, wanted, figure(measured), figure(spread[0]) if spread else None)
            report.write()
        case ["show", target]:
            report = Report(target).load()
            return report.finish()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
