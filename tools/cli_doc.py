#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/cli_doc.py [TROIKA] - writes docs/CLI.md from the program's own --help, so that page and program cannot drift apart.

tests/tidy compares the two (rule "options") whenever a release build is there.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def said(program, *words):
    return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout.rstrip()


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/troika"
    top = said(program)
    page = ["# Commands and options", "", "Made by `tools/cli_doc.py` from the program's own help; do not edit by hand.", "",
            "```text", top, "```"]
    for command in re.findall(r"^  ?([a-z][a-z-]+)  +\S", top, re.M):
        if command in ("help", "version"):
            continue
        text = "\n".join(line.rstrip() for line in said(program, command).splitlines())
        page += ["", f"## troika {command}", "", "```text", text, "```"]
    (ROOT / "docs/CLI.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
