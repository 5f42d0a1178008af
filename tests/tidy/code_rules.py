# SPDX-License-Identifier: Apache-2.0
"""Rules over C: who includes whom, banned calls, sizes, guards, headers that stand alone, and clang-format."""
import fnmatch
import re
import shutil
import subprocess

import csource
from tree import Finding

C_FOLDERS = ["src", "include", "tests", "bench", "tools"]
C_SUFFIXES = [".c", ".h", ".inc"]
FILE_LINES, FUNCTION_LINES, FUNCTION_LINES_SOFT, COLUMNS, COLUMNS_SCRIPT = 900, 100, 70, 100, 140

# Function -> the files of src that may call it nevertheless.
BANNED = {
    **dict.fromkeys(["strcpy", "strcat", "stpcpy", "sprintf", "vsprintf", "gets", "alloca", "atoi", "atol", "atoll",
                     "atof", "strtok", "system", "popen", "setjmp", "longjmp"], []),
    **dict.fromkeys(["exit", "_exit", "_Exit", "quick_exit", "abort"], ["src/base/check.c"]),
    **dict.fromkeys(["getenv", "secure_getenv"], ["src/cli/options.c", "src/base/option*.c"]),
    "assert": [],
}
# What a pure room (see the include table) may neither include nor call.
IMPURE_HEADERS = ["pthread.h", "threads.h", "time.h", "unistd.h", "fcntl.h", "signal.h", "sys/*", "linux/*"]
IMPURE_CALLS = ["malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "mmap", "printf", "fprintf", "puts",
                "perror", "fopen", "fread", "fwrite", "open", "read", "write", "os_memory", "os_memory_free", "os_map_open",
                "clock_real_now", "log_line"]
LIBC = {"assert.h", "complex.h", "ctype.h", "errno.h", "fcntl.h", "fenv.h", "float.h", "inttypes.h", "limits.h", "locale.h",
        "math.h", "signal.h", "stdalign.h", "stdarg.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h",
        "stdlib.h", "stdnoreturn.h", "string.h", "strings.h", "tgmath.h", "time.h", "unistd.h", "glob.h", "getopt.h", "poll.h",
        "dirent.h", "termios.h", "wchar.h"}
TABLE_FILE = "docs/ARCHITECTURE.md"


class Room:
    def __init__(self, name, may, libraries, pure):
        self.name, self.may, self.libraries, self.pure = name, may, libraries, pure


def read_table(tree):
    """The include table: room name -> Room. Empty if the document or the table is not there."""
    rooms = {}
    if not tree.exists(TABLE_FILE):
        return rooms
    inside = False
    for line in tree.text(TABLE_FILE).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells[:2] == ["room", "may include"]:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= set("-: "):
            words = [re.findall(r"`([^`]+)`", cell) for cell in [*cells, "", ""][:3]]
            if len(words[0]) == 1:
                rooms[words[0][0]] = Room(words[0][0], words[1], words[2], cells[3:4] == ["yes"])
    return rooms


def room_of(rooms, path):
    """The longest room that a path below src ("base/os.h") lies in, or None."""
    best = None
    for name in rooms:
        if path.startswith(name + "/") and (best is None or len(name) > len(best)):
            best = name
    return best


def include_problem(rooms, room, path, target, headers):
    """Why the file src/`path` may not include `target`; None if it may."""
    own = room_of(rooms, target)
    if target == "troika/status.h":
        return None
    if target.startswith("troika/") or own is not None:
        if own == room.name:
            return None
        for entry in room.may:
            if own is not None and entry == own or fnmatch.fnmatchcase(target, entry):
                return None
        return f"{room.name} may not include {target} (include table in {TABLE_FILE})"
    if target in LIBC or any(fnmatch.fnmatchcase(target, entry) for entry in room.libraries):
        return None
    if target in headers:
        return f"{target}: includes are written from src/, as \"{path.rsplit('/', 1)[0]}/{target}\""
    return f"{room.name} may not include <{target}> (libraries in {TABLE_FILE})"


def rule_includes(tree):
    rooms = read_table(tree)
    if not rooms:
        yield Finding(TABLE_FILE, 0, "no table \"| room | may include | ...\"")
        return
    for room in rooms.values():
        for entry in room.may:
            if "/" not in entry and entry not in rooms:
                yield Finding(TABLE_FILE, 0, f"{room.name} may include {entry}, which is no room")
    names = {path.rsplit("/", 1)[1] for path in tree.files if path.startswith("src/")}
    for path in tree.matching(["src"], C_SUFFIXES):
        inner = path[len("src/"):]
        name = room_of(rooms, inner)
        if name is None:
            yield Finding(path, 0, f"lies in no room of {TABLE_FILE}")
            continue
        for line, target, _ in csource.includes(tree.text(path)):
            if ".." in target.split("/"):
                yield Finding(path, line, f"{target}: includes are written from src/")
                continue
            problem = include_problem(rooms, rooms[name], inner, target, names)
            if problem:
                yield Finding(path, line, problem)
            elif rooms[name].pure and any(fnmatch.fnmatchcase(target, entry) for entry in IMPURE_HEADERS):
                yield Finding(path, line, f"{name} is pure and may not include <{target}>")
    for path in tree.matching(["include"], [".h"]):
        for line, target, _ in csource.includes(tree.text(path)):
            if not target.startswith("troika/") and target not in {"stdbool.h", "stddef.h", "stdint.h"}:
                yield Finding(path, line, f"a public header may not include {target}")


def calls(code, names):
    pattern = re.compile(rf"(?<![\w.])(?<!->)({'|'.join(map(re.escape, names))})\s*\(")
    return ((csource.line_of(code, match.start()), match[1]) for match in pattern.finditer(code))


def rule_banned(tree):
    rooms = read_table(tree)
    for path in tree.matching(["src", "include"], C_SUFFIXES):
        code = csource.code_only(tree.text(path))
        for line, name in calls(code, BANNED):
            if not any(fnmatch.fnmatchcase(path, allowed) for allowed in BANNED[name]):
                where = f" (only {' '.join(BANNED[name])} may)" if BANNED[name] else ""
                yield Finding(path, line, f"call of {name}{where}")
        room = rooms.get(room_of(rooms, path.removeprefix("src/")) or "")
        if room and room.pure:
            for line, name in calls(code, IMPURE_CALLS):
                yield Finding(path, line, f"call of {name}: {room.name} is pure")


def rule_sizes(tree):
    for path in tree.matching(C_FOLDERS, [*C_SUFFIXES, ".py", ".sh", ".rs", ".S", ".cl"]):
        if path.startswith("tests/golden/"):
            continue
        lines = tree.text(path).splitlines()
        if len(lines) > FILE_LINES:
            yield Finding(path, FILE_LINES, f"{len(lines)} lines, at most {FILE_LINES}")
        columns = COLUMNS if path.endswith(tuple(C_SUFFIXES)) else COLUMNS_SCRIPT
        for number, line in enumerate(lines, 1):
            if len(line) > columns:
                yield Finding(path, number, f"{len(line)} columns, at most {columns}")
    for path in tree.matching(C_FOLDERS, C_SUFFIXES):
        for name, first, last in csource.functions(tree.text(path)):
            length = last - first + 1
            if length > FUNCTION_LINES_SOFT:
                most = FUNCTION_LINES if length > FUNCTION_LINES else FUNCTION_LINES_SOFT
                yield Finding(path, first, f"{name} has {length} lines, at most {most}", soft=length <= FUNCTION_LINES)


def guard_of(path):
    """src/base/os.h -> BASE_OS_H, include/troika/status.h -> TROIKA_STATUS_H; elsewhere any name will do (None)."""
    if not path.startswith(("src/", "include/")):
        return None
    return re.sub(r"[^A-Za-z0-9]", "_", path.split("/", 1)[1]).upper()


def rule_guards(tree):
    for path in tree.matching(C_FOLDERS, [".h"]):
        code = csource.code_only(tree.text(path))
        wanted = guard_of(path)
        found = re.match(r"\s*#ifndef (\w+)\n#define (\w+)\n", code)
        if not found or found[1] != found[2] or wanted not in (None, found[1]):
            name = wanted or "NAME"
            yield Finding(path, 1, f"does not begin with #ifndef {name}, #define {name}")
        elif not code.rstrip().endswith("#endif"):
            yield Finding(path, code.count("\n"), "does not end with its guard's #endif")


def rule_alone(tree):
    """Each public header compiles alone, in C17 and C++17, with both compilers, without a warning."""
    for compiler in ["gcc", "clang-14"]:
        if not shutil.which(compiler):
            yield Finding(compiler, 0, "is not there")
            continue
        for path in tree.matching(["include"], [".h"]):
            for language, standard in [("c", "c17"), ("c++", "c++17")]:
                run = subprocess.run([compiler, "-fsyntax-only", "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic",
                                      "-Werror", "-I", "include", "-include", str(tree.root / path), "/dev/null"], cwd=tree.root,
                                     capture_output=True, text=True)
                if run.returncode != 0:
                    yield Finding(path, 0, f"{compiler} {standard}: {run.stderr.strip().splitlines()[0]}")


def rule_format(tree):
    program = shutil.which("clang-format-14")
    if not program:
        yield Finding("clang-format-14", 0, "is not there")
        return
    paths = tree.matching(C_FOLDERS, [".c", ".h"])
    for start in range(0, len(paths), 32):
        run = subprocess.run([program, "--style=file", "--dry-run", *paths[start:start + 32]], cwd=tree.root, capture_output=True,
                             text=True)
        found = re.findall(r"^(\S+?):(\d+):\d+: (?:warning|error): code should be", run.stderr, re.M)
        counts = {}
        for path, line in found:
            first, number = counts.get(path, (int(line), 0))
            counts[path] = (first, number + 1)
        for path, (first, number) in counts.items():
            yield Finding(path, first, f"{number} places are not as clang-format has them (make format)")
        if run.returncode != 0 and not found:
            yield Finding(".clang-format", 0, run.stderr.strip().splitlines()[0])


RULES = {
    "includes": rule_includes,
    "banned": rule_banned,
    "sizes": rule_sizes,
    "guards": rule_guards,
    "alone": rule_alone,
    "format": rule_format,
}
