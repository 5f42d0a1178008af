#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/run_tests.py [--long] [STEP...] - builds every preset and runs all tests; `make test` calls it after tools/setup.sh test.

Steps, in this order:
    tidy      tests/tidy: its own tests, then the rules over the tree (the parts that need a build come with `rules`)
    release   gcc: everything
    rules     tidy once more, with what release built: exported symbols, documented options
    asan      gcc with AddressSanitizer and UBSan: everything
    tsan      gcc with ThreadSanitizer: the rooms that have threads, without the tests marked slow; and what is marked tsan
    clang     clang-14: no warning, and the tests that are not marked slow
    fuzz      clang-14 with libFuzzer: each fuzzer for 60 s, two at a time
With --long, which `make test-long` gives, what takes too long for every day:
    fuzz      each fuzzer for 300 s
    long      gcc: what is marked long; nothing else runs that
    lint      clang-tidy

A count is a test function, not a program: cmocka's own lines are read where a program prints them, "ok" and "not ok" lines of the Python
checks too. A program that fails without such lines counts one; so does a step that cannot be built, or that ran nothing. The last
line is "N passed, N failed" over all steps; figures go to build/reports/test.json, logs to build/reports/logs.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402
import report  # noqa: E402

LOGS = report.FOLDER / "logs"
THREADED = "^(base|device|runtime|api|http)"
SANITIZER = re.compile(r"ERROR: (?:Address|Leak)Sanitizer|runtime error: |WARNING: ThreadSanitizer|FATAL: \w+Sanitizer")
# Two programs side by side: most tests use one core, those that measure time ask to run alone.
JOBS = str(os.cpu_count() or 2)


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = self.findings = 0
        self.notes = []

    def add(self, other):
        for field in ("passed", "failed", "skipped", "findings"):
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.notes += other.notes

    def fail(self, note):
        self.failed += 1
        self.notes.append(note)

    def __str__(self):
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def environment(**more):
    result = dict(os.environ)
    result.update(
        TROIKA_CACHE=str(fetch.CACHE), TROIKA_PYTHON=str(ROOT / "build/venv/bin/python"),
        ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1",
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1", TSAN_OPTIONS="second_deadlock_stack=1",
        PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8")
    result.update(more)
    return result


def call(name, command, **more):
    """Runs, with the output in a log; answers exit code and log."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    with open(log, "w") as out:
        out.write(f"$ {shlex.join(map(str, command))}\n")
        out.flush()
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                              env=environment(**more)).returncode
    return code, log


def tail(path, lines=40):
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def build(preset, *targets):
    code, log = call(f"build-{preset}", [ROOT / "tools/build.sh", preset, *targets])
    if code == 0:
        return None
    return f"{preset} does not build:\n{tail(log)}"


def count_output(text, failed_program):
    """What a test program's own lines say; one test where it prints none."""
    result = Tally()
    for word, field in (("PASSED", "passed"), ("FAILED", "failed"), ("SKIPPED", "skipped")):
        for number in re.findall(rf"^\[\s*{word}\s*\] (\d+) test\(s\)", text, re.M):
            setattr(result, field, getattr(result, field) + int(number))
    result.passed += len(re.findall(r"^ok\b", text, re.M))
    result.failed += len(re.findall(r"^not ok\b", text, re.M))
    result.skipped += len(re.findall(r"^skip\b", text, re.M))
    if failed_program:
        result.failed = max(result.failed, 1)
    elif not result.failed and not result.passed and not result.skipped:
        result.passed = 1
    result.findings = len(SANITIZER.findall(text))
    return result


def ctest(preset, *selection, name=None, **more):
    """Runs a selection of tests; `name` is that of the log, for a second one of the same preset."""
    name = name or preset
    junit = LOGS / f"{name}.xml"
    junit.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", ROOT / "build" / preset, "--output-junit", junit, "-j", JOBS,
               "--test-output-size-passed", "4000000", "--test-output-size-failed", "4000000", "--no-tests=error",
               *selection]
    if preset == "tsan":
        command = [*no_randomization(), *command]
    code, log = call(f"ctest-{name}", command, **more)
    result = Tally()
    try:
        cases = list(xml.etree.ElementTree.parse(junit).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        result.fail(f"ctest wrote no result that can be read ({error}):\n{tail(log)}")
        return result
    for case in cases:
        text = case.findtext("system-out") or ""
        failed = case.get("status") != "run"
        result.add(count_output(text, failed))
        if failed:
            shown = "\n".join(text.splitlines()[-60:])
            result.notes.append(f"{preset}: {case.get('name')} failed ({case.get('status')}):\n{shown}")
    if code != 0 and not result.failed:
        result.fail(f"ctest failed:\n{tail(log)}")
    if not cases:
        result.fail(f"{preset}: no tests")
    return result


def no_randomization():
    """The ThreadSanitizer of gcc 12 cannot place its shadow where a kernel randomizes more than 28 bits of addresses."""
    try:
        bits = int(pathlib.Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    except (OSError, ValueError):
        bits = 0
    return ["setarch", "-R"] if bits > 28 else []


def step_tidy(options):
    return tidy("tidy", [])


def step_rules(options):
    return tidy("rules", ["--build", ROOT / "build" / "release"])


def tidy(name, arguments):
    result = Tally()
    commands = [[sys.executable, ROOT / "tests/tidy/tidy.py", *arguments]]
    if name == "tidy":
        commands.insert(0, [sys.executable, ROOT / "tests/tidy/test_tidy.py"])
    for command in commands:
        code, log = call(f"{name}-{command[1].stem}", command)
        result.add(count_output(log.read_text(errors="replace"), code != 0))
        if code != 0:
            result.notes.append(f"{name}:\n{tail(log, 80)}")
    return result


def step_preset(preset, *selection):
    def run(options):
        result = Tally()
        problem = build(preset)
        if problem:
            result.fail(problem)
            return result
        return ctest(preset, *selection, "-LE", "^long$")
    return run


def step_long(options):
    """In release only: long tests measure, and what they say under a sanitizer is of no use to anybody."""
    problem = build("release")
    if problem:
        result = Tally()
        result.fail(problem)
        return result
    return ctest("release", "-L", "^long$", name="long")


def step_quick(preset, *selection):
    """As step_preset, without what is marked slow."""
    def run(options):
        result = Tally()
        problem = build(preset)
        if problem:
            result.fail(problem)
            return result
        result.passed += 1  # it built: no warnings
        result.add(ctest(preset, *selection, "-LE", "^(slow|long)$"))
        return result
    return run


def step_tsan(options):
    """What has threads, and what is slow but asks for it."""
    result = step_quick("tsan", "-L", THREADED)(options)
    if result.passed:  # it was built
        result.add(ctest("tsan", "-L", "^tsan$", "-LE", "^long$", name="tsan-slow"))
    return result


def fuzz_one(name, seconds):
    """Starts from tests/fuzz/corpus/<name without fuzz_>/ and tests/fuzz/<name>.dict, where there are any."""
    program = ROOT / "build/fuzz/tests" / name
    seeds = ROOT / "tests/fuzz/corpus" / name.removeprefix("fuzz_")
    words = ROOT / "tests/fuzz" / f"{name}.dict"
    work = ROOT / "build/fuzz/corpus" / name
    work.mkdir(parents=True, exist_ok=True)
    findings = ROOT / "build/fuzz/findings"
    findings.mkdir(parents=True, exist_ok=True)
    command = [program, f"-max_total_time={seconds}", "-timeout=25", "-rss_limit_mb=4096", "-print_final_stats=1",
               f"-artifact_prefix={findings}/{name}-", work]
    command += [seeds] if seeds.is_dir() else []
    command += [f"-dict={words}"] if words.is_file() else []
    code, log = call(name, command)
    text = log.read_text(errors="replace")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    return name, code, int(runs[1]) if runs else 0, log


def step_fuzz(options):
    result = Tally()
    problem = build("fuzz", "fuzzers")
    if problem:
        result.fail(problem)
        return result
    fuzzers = (ROOT / "build/fuzz/tests/fuzzers.txt").read_text().split()
    if not fuzzers:
        result.fail("fuzz: no fuzzers")
    seconds = options.fuzz_seconds or (300 if options.long else 60)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, code, runs, log in pool.map(lambda name: fuzz_one(name, seconds), fuzzers):
            options.report.add(f"fuzz {name}, inputs in {seconds} s", ">= 100", runs)
            if code == 0 and runs >= 100:
                result.passed += 1
            else:
                result.findings += code != 0
                result.fail(f"{name} (exit code {code}, {runs} inputs):\n{tail(log)}")
    options.fuzz_findings = result.findings
    return result


def step_lint(options):
    result = Tally()
    problem = build("clang")
    if problem:
        result.fail(problem)
        return result
    code, log = call("lint", [ROOT / "tools/lint.sh"])
    if code == 0:
        result.passed += 1
    else:
        result.fail(f"clang-tidy:\n{tail(log, 80)}")
    return result


STEPS = {
    "tidy": step_tidy,
    "release": step_preset("release"),
    "rules": step_rules,
    "asan": step_preset("asan"),
    "tsan": step_tsan,
    "clang": step_quick("clang"),
    "fuzz": step_fuzz,
    "long": step_long,
    "lint": step_lint,
}
DAILY = ("tidy", "release", "rules", "asan", "tsan", "clang", "fuzz")
LONG = ("fuzz", "long", "lint")


def add_rows(options, name, tally, seconds):
    rows = options.report
    rows.add(f"{name}: passed", ">= 1", tally.passed)
    rows.add(f"{name}: failed", "== 0", tally.failed)
    if tally.skipped:
        rows.add(f"{name}: skipped", "", tally.skipped)
    if name in ("asan", "tsan"):
        rows.add(f"{name}: sanitizer findings", "== 0", tally.findings)
    if name == "fuzz":
        rows.add("fuzz: findings", "== 0", tally.findings)
    rows.add(f"{name}: time, s", "", round(seconds, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="what takes too long for every day: " + ", ".join(LONG))
    parser.add_argument("--fuzz-seconds", type=int, default=0)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"only these: {' '.join(STEPS)}")
    options = parser.parse_args()
    unknown = set(options.steps) - set(STEPS)
    if unknown:
        parser.error(f"no such step: {' '.join(sorted(unknown))}")
    names = [name for name in STEPS if name in options.steps] or (LONG if options.long else DAILY)
    options.report = report.Report("test-long" if options.long else "test")
    total = Tally()
    begun = time.monotonic()
    for index, name in enumerate(names):
        start = time.monotonic()
        print(f"[{index + 1}/{len(names)}] {name} ...", flush=True)
        tally = STEPS[name](options)
        seconds = time.monotonic() - start
        for note in tally.notes:
            print(note, flush=True)
        print(f"[{index + 1}/{len(names)}] {name}: {tally} in {seconds:.0f} s", flush=True)
        add_rows(options, name, tally, seconds)
        total.add(tally)
    options.report.add("all: time, s", "", round(time.monotonic() - begun, 1))
    if options.report.finish() != 0 and not total.failed:
        total.fail("a figure does not hold")
    # Once more, in short: of a long log people keep the end.
    for note in total.notes:
        lines = note.splitlines()
        told = [line for line in lines[1:] if re.match(r"not ok|\[  FAILED|.*(internal error|ERROR|SUMMARY|Sanitizer)", line)]
        print("\n".join(line[:400] for line in lines[:1] + told[:6]), flush=True)
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
