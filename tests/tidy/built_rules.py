# SPDX-License-Identifier: Apache-2.0
"""Rules over what was built: which names the library shows, and whether every option is documented."""
import re
import subprocess

from tree import Finding

# The page that has to name every option, if the tree has it; else any document will do.
OPTION_PAGE = "docs/CLI.md"


def symbols(path, *options):
    """(name, type) of each defined global symbol."""
    run = subprocess.run(["nm", "--defined-only", "--extern-only", "--format=posix", *options, str(path)], capture_output=True,
                         text=True, check=True)
    found = [line.split() for line in run.stdout.splitlines()]
    return [(words[0], words[1]) for words in found if len(words) >= 2]


def visible(path):
    """Names that an object file would show from a shared library: global and not hidden."""
    run = subprocess.run(["readelf", "--wide", "--symbols", str(path)], capture_output=True, text=True, check=True)
    row = re.compile(r"^\s*\d+:\s+\S+\s+\S+\s+\w+\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+(?!UND)\S+\s+(\S+)", re.M)
    return row.findall(run.stdout)


def rule_exports(tree):
    """libtroika.so shows troika_* only, and at least what the public headers promise; so does every object of our own."""
    libraries = sorted(tree.build.glob("libtroika.so"))
    if not libraries:
        yield Finding(str(tree.build), 0, "no libtroika.so")
    promised = {}
    for path in tree.matching(["include"], [".h"]):
        for name in re.findall(r"TROIKA_API[^;{]*?\b(troika_\w+)\s*\(", tree.text(path)):
            promised[name] = path
    for library in libraries:
        shown = {name for name, kind in symbols(library, "--dynamic") if kind != "A"}
        for name in sorted(shown - set(promised)):
            yield Finding(library.name, 0, f"shows {name}, which no public header promises")
        for name in sorted(set(promised) - shown):
            yield Finding(promised[name], 0, f"promises {name}, which {library.name} does not show")
    for thing in sorted(tree.build.rglob("*.o")):
        if "tests" in thing.relative_to(tree.build).parts:
            continue
        for name in visible(thing):
            if not name.startswith("troika_") and name != "main":
                yield Finding(thing.relative_to(tree.build).as_posix(), 0, f"{name} is visible (built without -fvisibility=hidden?)")


def help_text(program, *words):
    run = subprocess.run([str(program), *words, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    return run.returncode, run.stdout


def options_of(text):
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]*)", text))


def rule_options(tree):
    """Every option that --help prints (of troika and of each subcommand) is in the documents, and every documented one is real."""
    program = tree.build / "troika"
    if not program.is_file():
        yield Finding(str(program), 0, "is not there")
        return
    code, text = help_text(program)
    if code != 0 or not text:
        yield Finding("troika --help", 0, f"exit code {code}, {len(text)} bytes")
        return
    commands = re.findall(r"^  ?([a-z][a-z-]+)  +\S", text, re.M)
    known = {option: "troika" for option in options_of(text)}
    for command in commands:
        code, more = help_text(program, command)
        if code != 0 or not more:
            yield Finding(f"troika {command} --help", 0, f"exit code {code}, {len(more)} bytes")
        for option in options_of(more):
            known.setdefault(option, f"troika {command}")
    pages = [OPTION_PAGE] if OPTION_PAGE in tree.files else [
        path for path in tree.files if re.match(r"^(docs/.*|README)\.md$", path)]
    documented = set()
    for page in pages:
        documented |= options_of(tree.text(page))
    for option in sorted(set(known) - documented - {"--help"}):
        yield Finding(known[option], 0, f"{option} is in no document ({' '.join(pages[:3])})")
    if pages == [OPTION_PAGE]:
        for option in sorted(documented - set(known) - {"--help"}):
            yield Finding(OPTION_PAGE, 0, f"{option} is no option of troika")


RULES = {"exports": rule_exports, "options": rule_options}
