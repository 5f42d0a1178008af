# SPDX-License-Identifier: Apache-2.0
"""Rules over all text: licence lines, places of this machine, and what the documents and the Makefile say."""
import fnmatch
import posixpath
import re

import csource
from tree import Finding

SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCES = [".c", ".h", ".inc", ".S", ".cl", ".py", ".sh", ".rs", ".js", ".mjs", ".cmake", ".map", "/Makefile", "/CMakeLists.txt",
           "/run"]
DOCUMENT = re.compile(r"^(?:docs/.*\.md|[A-Z]+\.md)$")
# Tops of the tree: a path in a document that begins with one of these must exist.
TOPS = ("src/", "include/", "tests/", "tools/", "docs/", "bench/", "web/", "cmake/", ".ci/")
ROOT_FILE = re.compile(r"^(?:[A-Z][A-Za-z]+\.(?:md|txt|json)|Makefile|LICENSE|NOTICE|\.clang-format|\.clang-tidy|\.editorconfig)$")
# Written in parts, so that this file does not find itself.
MACHINE = re.compile("|".join([
    r"(?<![\w.$}])/" + r"work/", r"(?<![\w.$}])/" + r"root/", r"(?<![\w.$}])/" + r"home/(?!\$|<|USER|you|me)\w+", "/" + r"Users/\w+",
    r"(?<![\w-])(?:registry|index|static|files|deb|security|pypi|proxy|mirror|repo1?|ftp)\." + r"(?:[a-z0-9-]+\.)*"
    r"(?:org|com|net|io|dev|cloud|internal|local)\b", r"\bpypi\." + r"org\b", r"\bartifact" + r"ory\b"]))
BINARY = re.compile(r"\.(?:png|jpg|gguf|bin|npz|gz|zst|woff2?|ico|pdf)$|(?:^|/)fuzz/corpus/|^tests/golden/")


def rule_spdx(tree):
    for path in tree.files:
        if not ("/" + path).endswith(tuple(SOURCES)) or BINARY.search(path):
            continue
        # The comment may have been wrapped inside the line.
        if SPDX not in " ".join(re.split(r"[\s*#/]+", csource.first_comment(tree.text(path)))):
            yield Finding(path, 1, f"no \"{SPDX}\" in its first comment")


def rule_places(tree):
    for path in tree.files:
        if BINARY.search(path):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            found = MACHINE.search(line)
            if found:
                yield Finding(path, number, f"names a place that only one machine has: {found[0]}")


def anchors(text):
    """What GitHub makes of headings."""
    found = set()
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        found.add(plain.replace(" ", "-"))
    return found


def named_paths(text):
    """(line, path) of what a document names as a file: in backquotes, or as a word that begins with one of our folders."""
    words = re.compile(r"(?<![\w/.$~-])((?:%s)(?:[\w./*+<>-]|\{[^{}\s]*\})*(?:[\w/]|\{[^{}\s]*\}))" % "|".join(map(re.escape, TOPS)))
    for number, line in enumerate(text.splitlines(), 1):
        for found in words.finditer(re.sub(r"\]\([^)]*\)", "]", line)):
            yield number, found[1].rstrip(".,")
        for quoted in re.findall(r"`([^`\s]+)`", line):
            if ROOT_FILE.match(quoted):
                yield number, quoted


def path_exists(tree, path):
    if "<" in path:
        return True  # a pattern for people, such as src/<room>/
    for choice in expand_braces(path):
        if "*" in choice:
            if not any(fnmatch.fnmatchcase(file, choice) for file in tree.files):
                return False
        elif not tree.exists(choice) and not tree.exists(re.sub(r":\d+$", "", choice)):
            return False
    return True


def expand_braces(path):
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [one for choice in found[1].split(",") for one in expand_braces(path[:found.start()] + choice + path[found.end():])]


def rule_documents(tree):
    for path in tree.files:
        if not DOCUMENT.match(path):
            continue
        text = tree.text(path)
        for number, name in named_paths(text):
            if not path_exists(tree, name):
                yield Finding(path, number, f"names {name}, which does not exist")
        for number, line in enumerate(text.splitlines(), 1):
            for link in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = link.partition("#")
                goal = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
                if not tree.exists(goal):
                    yield Finding(path, number, f"links to {link}, which does not exist")
                elif anchor and goal.endswith(".md") and anchor not in anchors(tree.text(goal)):
                    yield Finding(path, number, f"links to {link}, but {goal} has no such heading")


def rule_targets(tree):
    """Every target of the Makefile has its line in `make help`; every `make X` of a document is a target."""
    if "Makefile" not in tree.files:
        yield Finding("Makefile", 0, "is not there")
        return
    text = tree.text("Makefile")
    phony = set(" ".join(re.findall(r"^\.PHONY:(.*)$", text, re.M)).split())
    helped = set(re.findall(r"^([a-z-]+):.*## \S", text, re.M))
    for name in sorted(phony - helped):
        yield Finding("Makefile", 0, f"target {name} has no ## line for make help")
    for name in sorted(helped - phony):
        yield Finding("Makefile", 0, f"target {name} is not in .PHONY")
    for path in tree.files:
        if DOCUMENT.match(path) or path == ".ci/run":
            for number, line in enumerate(tree.text(path).splitlines(), 1):
                for name in re.findall(r"(?:^|[`$] ?|exec )make ([a-z][a-z-]*)", line):
                    if name not in helped:
                        yield Finding(path, number, f"names make {name}, which is no target")


RULES = {"spdx": rule_spdx, "places": rule_places, "documents": rule_documents, "targets": rule_targets}
