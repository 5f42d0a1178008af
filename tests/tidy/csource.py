# SPDX-License-Identifier: Apache-2.0
"""A C file as the rules see it: comments and strings blanked, functions found by their braces.

Not a parser: it knows comments, literals, line continuations, conditional blocks and braces. That is enough because the tree is formatted
by clang-format; what it cannot know (macros that hold half a function) has no place under src/.
"""
import re

TOKEN = re.compile(
    r"""(?P<line>//(?:[^\\\n]|\\.|\\\n)*)|(?P<block>/\*.*?(?:\*/|\Z))|(?P<string>"(?:[^"\\\n]|\\.|\\\n)*"?)"""
    r"""|(?P<char>(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)*'?)""", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)


def blank(text):
    """Spaces for everything but line ends."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    return TOKEN.sub(lambda m: blank(m[0]) if m["line"] or m["block"] else m[0], text)


def code_only(text):
    """Comments and the insides of literals blanked; offsets and lines stay as they are."""
    def replace(match):
        if match["line"] or match["block"]:
            return blank(match[0])
        quote = match[0][0]
        return quote + blank(match[0][1:-1]) + quote if len(match[0]) > 1 else match[0]
    return TOKEN.sub(replace, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def first_comment(text):
    """The comment, or the run of line comments, that a file begins with (after a #! line); empty if it begins otherwise."""
    start = re.match(r"(?:#![^\n]*\n)?\s*", text).end()
    if text.startswith("/*", start):
        end = text.find("*/", start)
        return text[start:end if end >= 0 else len(text)]
    run = re.match(r"(?:[ \t]*(?://|#)[^\n]*\n?)+", text[start:])
    return run[0] if run else ""


def includes(text):
    """(line, path, quoted) of each include."""
    bare = without_comments(text)
    return [(line_of(bare, m.start()), m[1] or m[2], m[1] is not None) for m in INCLUDE.finditer(bare)]


def without_directives(code):
    """Preprocessor lines blanked, and of each conditional only the first branch kept, so that braces balance."""
    out = []
    keep = [True]
    continued = False
    for line in code.split("\n"):
        directive = re.match(r"[ \t]*#[ \t]*(\w*)", line)
        if continued or directive:
            word = None if continued else directive[1]
            if word in ("if", "ifdef", "ifndef"):
                keep.append(keep[-1])
            elif word in ("else", "elif", "elifdef", "elifndef"):
                keep[-1] = False
            elif word == "endif" and len(keep) > 1:
                keep.pop()
            continued = line.rstrip().endswith("\\")
            out.append("")
        else:
            out.append(line if keep[-1] else "")
    return "\n".join(out)


def functions(text):
    """(name, first line, last line) of each function body, by braces at depth 0 that follow a ')'."""
    code = without_directives(code_only(text))
    code = re.sub(r'extern\s+"\s*"\s*\{', lambda m: blank(m[0]), code)
    found = []
    depth = 0
    start = None
    for match in re.finditer(r"[{}]", code):
        if match[0] == "{":
            if depth == 0:
                head = code[max(code.rfind(";", 0, match.start()), code.rfind("}", 0, match.start())) + 1:match.start()]
                name = re.search(r"([A-Za-z_]\w*)\s*\(", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", head, flags=re.S))
                if head.rstrip().endswith(")") and name:
                    begin = match.start() - len(head.lstrip("\n \t"))
                    start = (name[1], line_of(code, begin))
            depth += 1
        else:
            depth = max(depth - 1, 0)
            if depth == 0 and start:
                found.append((*start, line_of(code, match.start())))
                start = None
    return found
