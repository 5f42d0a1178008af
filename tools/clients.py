#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/clients.py [--binary PATH] [CLIENT...] - the clients of tests/clients against a real server, with a report of what each covers.

A client covers a thing (THINGS of tests/clients/support_clients.py) if it has checks of it, named by it, and all of them pass. Logs go
to build/reports/logs/client-NAME.log, figures to build/reports/clients.json (only where all clients were run).
"""
import argparse
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import report  # noqa: E402
from run_tests import ROOT, call  # noqa: E402

FOLDER = ROOT / "tests" / "clients"
THINGS = re.search(r"^THINGS = \((.*)\)", (FOLDER / "support_clients.py").read_text(), re.M)[1].replace('"', "").split(", ")


def run(name, binary, rows):
    start = time.monotonic()
    code, log = call(f"client-{name}", [ROOT / "build/venv/bin/python", "-B", FOLDER / f"check_{name}.py"], TROIKA_BINARY=str(binary),
                     PYTHONPATH=str(ROOT / "tools"))
    text = log.read_text(errors="replace")
    passed = re.findall(r"^ok (\w+)", text, re.M)
    failed = re.findall(r"^not ok (\S+?):? ", text, re.M)
    if code and not failed:
        failed = [f"exit code {code}"]
    for line in re.findall(r"^not ok .*", text, re.M):
        print(f"{name}: {line}", flush=True)

    def of(thing, names):
        return [n for n in names if n == thing or n.startswith(thing + "_")]
    covered = [thing for thing in THINGS if of(thing, passed) and not of(thing, failed)]
    rows.add(f"{name}: checks passed", ">= 1", len(passed))
    rows.add(f"{name}: checks failed", "== 0", len(failed))
    rows.add(f"{name}: things covered", f">= {len(THINGS)}", len(covered))
    rows.add(f"{name}: time, s", "", round(time.monotonic() - start, 1))


def main():
    names = sorted(path.stem.removeprefix("check_") for path in FOLDER.glob("check_*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/troika")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"only these: {' '.join(names)}")
    options = parser.parse_args()
    unknown = set(options.clients) - set(names)
    if unknown:
        parser.error(f"no such client: {' '.join(sorted(unknown))}")
    rows = report.Report("clients")
    for name in options.clients or names:
        run(name, options.binary.resolve(), rows)
    if options.clients:
        print(rows.table())
        return 0 if rows.ok() else 1
    return rows.finish()


if __name__ == "__main__":
    sys.exit(main())
