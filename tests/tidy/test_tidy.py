#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/tidy/test_tidy.py - each rule of tidy on a tree that keeps it and on trees that break it.

A case is (rule, files that differ from the good tree, what a finding must say; None: there must be none).
"""
import contextlib
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import built_rules  # noqa: E402
import csource  # noqa: E402
import tidy  # noqa: E402
from tree import Tree  # noqa: E402

SPDX = "SPDX-License-Identifier: " + "Apache-2.0"
TABLE = """# Rooms

| room | may include | libraries | pure |
| --- | --- | --- | --- |
| `base` | | `sys/*.h` | |
| `kernel` | `base` | `*intrin.h` | yes |
| `device` | `base` | | |
| `device/cpu` | `base` `device` `kernel` | | |
| `model` | `base` `device/device.h` | | |
| `cli` | `base` `troika/*.h` | | |
"""


def header(path, body="int %s(void);", include=""):
    name = path.split("/", 1)[1]
    guard = name.replace("/", "_").replace(".", "_").upper()
    text = body.replace("%s", name.replace("/", "_").split(".")[0]) if "%s" in body else body
    return f"/* {SPDX} */\n#ifndef {guard}\n#define {guard}\n\n{include}{text}\n\n#endif\n"


def source(text):
    return f"/* {SPDX} */\n{text}"


GOOD = {
    "docs/ARCHITECTURE.md": TABLE + "\nSee `src/base/os.h`, [the rooms](#rooms) and `src/base/*.c`.\n",
    "README.md": "# House\n\nRun `make run`; read [the plan](docs/ARCHITECTURE.md#rooms).\n",
    "Makefile": f"# {SPDX}\n.PHONY: run\nrun: ## runs\n\t@true\n",
    ".clang-format": "BasedOnStyle: Google\nColumnLimit: 100\n",
    "include/troika/status.h": header("include/troika/status.h", "int troika_status(void);"),
    "src/base/os.h": header("src/base/os.h"),
    "src/base/os.c": source('#include "base/os.h"\n\n#include <sys/mman.h>\n\nint base_os(void) { return 1; }\n'),
    "src/base/check.c": source("#include <stdlib.h>\n\nvoid check_failed(void) { abort(); }\n"),
    "src/kernel/mm.c": source('#include <immintrin.h>\n\n#include "base/os.h"\n\nint mm(void) { return 2; }\n'),
    "src/device/device.h": header("src/device/device.h"),
    "src/device/cpu/pool.c": source('#include "device/device.h"\n\nint pool(void) { return 3; }\n'),
    "src/device/cpu/pool.h": header("src/device/cpu/pool.h"),
    "src/model/llama.c": source('#include "device/device.h"\n#include "troika/status.h"\n'),
    "src/cli/options.c": source("#include <stdlib.h>\n\nconst char *option(void) { return getenv(\"A\"); }\n"),
}
LONG = "int long_one(int x) {\n" + "  x++;\n" * 99 + "  return x;\n}\n"
CASES = [
    ("includes", {"src/model/llama.c": source('#include "kernel/none.h"\n')},
     "model may not include kernel/none.h"),
    ("includes", {"src/kernel/mm.h": header("src/kernel/mm.h"), "src/model/llama.c": source('#include "kernel/mm.h"\n')},
     "model may not include kernel/mm.h"),
    ("includes", {"src/device/device.h": header("src/device/device.h", include='#include "device/cpu/pool.h"\n')},
     "device may not include device/cpu/pool.h"),
    ("includes", {"src/device/plan.h": header("src/device/plan.h"), "src/model/llama.c": source('#include "device/plan.h"\n')},
     "model may not include device/plan.h"),
    ("includes", {"src/model/llama.c": source("#include <pthread.h>\n")}, "model may not include <pthread.h>"),
    ("includes", {"src/kernel/mm.c": source("#include <time.h>\n")}, "kernel is pure"),
    ("includes", {"include/troika/model.h": header("include/troika/model.h"),
                  "src/model/llama.c": source('#include "troika/model.h"\n')}, "model may not include troika/model.h"),
    ("includes", {"src/model/llama.c": source('#include "../base/os.h"\n')}, "written from src/"),
    ("includes", {"src/base/os.c": source('#include "os.h"\n')}, "written from src/"),
    ("includes", {"src/attic/old.c": source("int x;\n")}, "no room"),
    ("includes", {"src/model/llama.c": source('// #include "kernel/mm.h"\n/* #include <pthread.h> */\n')}, None),
    ("includes", {"docs/ARCHITECTURE.md": "nothing\n"}, "no table"),
    ("includes", {"include/troika/status.h": header("include/troika/status.h", include='#include "base/os.h"\n')},
     "public header may not include base/os.h"),
    ("banned", {"src/base/os.c": source("#include <string.h>\nvoid f(char *a, char *b) { strcpy(a, b); }\n")}, "call of strcpy"),
    ("banned", {"src/base/os.c": source("void f(void) { exit(1); }\n")}, "call of exit (only src/base/check.c may)"),
    ("banned", {"src/base/os.c": source("void f(void) { getenv(\"A\"); }\n")}, "call of getenv"),
    ("banned", {"src/base/os.c": source("/* strcpy(a, b) */ const char *t = \"exit(1) abort()\"; int my_exit(int); "
                                        "void f(struct s *s) { s->exit(1); my_exit(2); }\n")}, None),
    ("banned", {"src/kernel/mm.c": source("void f(void) { malloc(1); }\n")}, "kernel is pure"),
    ("sizes", {"src/base/os.c": source(LONG)}, "long_one has 102 lines, at most 100"),
    ("sizes", {"src/base/os.c": source(LONG.replace("  x++;\n" * 99, "  x++;\n" * 90))}, None),
    ("sizes", {"src/base/os.c": source("int x;\n" * 900)}, "901 lines, at most 900"),
    ("sizes", {"src/base/os.c": source("int x; //" + "y" * 95 + "\n")}, "104 columns, at most 100"),
    ("sizes", {"src/base/os.c": source("#ifdef A\nint f(int x) {\n#else\nint f(long x) {\n#endif\n  return 1;\n}\n" + LONG)},
     "long_one has 102 lines"),
    ("guards", {"src/base/os.h": f"/* {SPDX} */\n#pragma once\nint x;\n"}, "does not begin with #ifndef BASE_OS_H"),
    ("guards", {"tests/base/support.h": f"/* {SPDX} */\n#ifndef ANY_NAME\n#define ANY_NAME\nint x;\n#endif\n"}, None),
    ("guards", {"src/base/os.h": header("src/base/os.h") + "int y;\n"}, "does not end with its guard"),
    ("alone", {"include/troika/status.h": header("include/troika/status.h", "size_t troika_size(void);")}, "gcc c17"),
    ("alone", {"include/troika/status.h": header("include/troika/status.h", "int troika_new(int new);")}, "gcc c++17"),
    ("format", {"src/base/os.c": source("int   x  ;\n")}, "not as clang-format has them"),
    ("spdx", {"src/base/os.c": f"int x;\n/* {SPDX} */\n"}, "in its first comment"),
    ("spdx", {"tools/x.sh": "#!/bin/sh\n# nothing\n"}, "in its first comment"),
    ("spdx", {"tools/x.sh": f"#!/bin/sh\n# {SPDX}\n"}, None),
    ("places", {"docs/A.md": "in /" + "work/main\n"}, "only one machine has"),
    ("places", {"docs/A.md": "from https://registry." + "npmjs.org/x\n"}, "only one machine has"),
    ("places", {"tools/a.py": "x = '/" + "home/ann/models'\n"}, "only one machine has"),
    ("places", {"docs/A.md": "the /usr/lib folder, build/work/x, $HOME/x, /tmp/x\n"}, None),
    ("documents", {"README.md": "See `src/base/none.h`.\n"}, "names src/base/none.h"),
    ("documents", {"README.md": "See src/kernel/*.S here.\n"}, "names src/kernel/*.S"),
    ("documents", {"README.md": "See [it](docs/NONE.md).\n"}, "links to docs/NONE.md"),
    ("documents", {"README.md": "See [it](docs/ARCHITECTURE.md#none).\n"}, "no such heading"),
    ("documents", {"README.md": "See `CHANGELOG.md`.\n"}, "names CHANGELOG.md"),
    ("documents", {"README.md": "See src/base/os.{c,h}, src/<room>/ and https://example.org/src/x.\n"}, None),
    ("targets", {"Makefile": f"# {SPDX}\n.PHONY: run stop\nrun: ## runs\n\t@true\nstop:\n\t@true\n"}, "target stop has no ##"),
    ("targets", {"README.md": "Type `make fly`.\n"}, "names make fly"),
]


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def findings(rules, name, tree):
    return [str(finding) for finding in rules[name](tree) if not finding.soft]


def check_case(rule, change, want):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write(root, {**GOOD, **change})
        found = findings(tidy.RULES, rule, Tree(root))
        if want is None:
            return f"found {found}" if found else None
        if not any(want in finding for finding in found):
            return f"wanted a finding with {want!r}, found {found}"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = tidy.main(["--root", folder, rule])
        if code != 1 or f"not ok {rule}: " not in out.getvalue():
            return f"exit code {code}, printed {out.getvalue()!r}"
    return None


def check_good(rule):
    return check_case(rule, {}, None)


def check_functions():
    text = "static int a(int x)\n{\n  char c = '{'; /* { */\n  return \"}\"[0] + c;\n}\nstruct s { int x; };\nint t[] = {1, 2};\n"
    found = csource.functions(text)
    return None if found == [("a", 1, 5)] else f"found {found}"


def compile_library(root, flags):
    subprocess.run(["gcc", "-c", *flags, "-fPIC", "-I", "include", "-o", "build/a.o", "a.c"], cwd=root, check=True)
    subprocess.run(["gcc", "-shared", "-o", "build/libtroika.so", "build/a.o"], cwd=root, check=True)


def check_exports(flags, promise, want):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        api = '#define TROIKA_API __attribute__((visibility("default")))\n'
        write(root, {"include/troika/a.h": f"{api}TROIKA_API int troika_one(void);\n{promise}",
                     "a.c": '#include "troika/a.h"\nint inner(void);\nint inner(void) { return 1; }\n'
                            "int troika_one(void) { return inner(); }\n", "build/x": ""})
        compile_library(root, flags)
        found = findings(built_rules.RULES, "exports", Tree(root, root / "build"))
        if want is None:
            return f"found {found}" if found else None
        return None if any(want in finding for finding in found) else f"wanted {want!r}, found {found}"


def check_options(page, want):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write(root, {"docs/CLI.md": page, "build/troika":
                     "#!/bin/sh\ncase $1 in serve) echo ' --port N  the port';; *) echo 'commands:'; "
                     "echo '  serve   serves'; echo 'options: --quiet';; esac\n"})
        (root / "build/troika").chmod(0o755)
        found = findings(built_rules.RULES, "options", Tree(root, root / "build"))
        if want is None:
            return f"found {found}" if found else None
        return None if any(want in finding for finding in found) else f"wanted {want!r}, found {found}"


def main():
    checks = [(f"{rule} keeps quiet on a good tree", lambda rule=rule: check_good(rule)) for rule in tidy.RULES]
    for number, (rule, change, want) in enumerate(CASES, 1):
        checks.append((f"{rule} case {number}", lambda rule=rule, change=change, want=want: check_case(rule, change, want)))
    checks += [
        ("functions are found by their braces", check_functions),
        ("exports of a hidden build", lambda: check_exports(["-fvisibility=hidden"], "", None)),
        ("exports of a visible build", lambda: check_exports([], "", "shows inner")),
        ("exports lack a promise", lambda: check_exports(
            ["-fvisibility=hidden"], "TROIKA_API const char *troika_two(int a);\n", "promises troika_two")),
        ("options documented", lambda: check_options("`--port` and `--quiet`\n", None)),
        ("option without a document", lambda: check_options("`--quiet`\n", "--port is in no document")),
        ("option that is none", lambda: check_options("`--port` `--quiet` `--fast`\n", "--fast is no option")),
    ]
    failed = 0
    for name, check in checks:
        problem = check()
        failed += problem is not None
        print(f"not ok {name}: {problem}" if problem else f"ok {name}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if not shutil.which("gcc"):
        sys.exit("gcc is missing")
    sys.exit(main())
