# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases J1, J2 and J4 to J8: JSON schemas and grammars through response_format. Whole answers are checked by an independent
validator; where an answer was cut by its limit, what is there has to be the begin of a legal one."""
import json
import pathlib
import re
import sys
import threading
import time

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import (ASK, CHAT, COMPLETIONS, ENDPOINTS, body_for, forced, is_json, joined, refused, schema_format,  # noqa: E402
                           text_both, text_of, tokens_of, user)
from support_server import Server, run_checks  # noqa: E402

WORDS = user("Give me an example.")
BLANKS_MAX = 21  # a newline and 20 blanks, as src/text/grammar.h has it
TWO_SECONDS = 2.0


def asked(s, schema, **fields):
    """The answer under this schema; whole unless its limit came first."""
    body = {"messages": WORDS, "temperature": 0, "max_tokens": 120, "response_format": schema_format(schema)} | fields
    return s.ask(CHAT, body)


def value_of(s, schema, **fields):
    """The answer as a value that the schema allows; it has to be whole."""
    answer = asked(s, schema, **fields)
    text = text_of(answer)
    assert answer[2]["choices"][0]["finish_reason"] == "stop", text
    value = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


def object_of(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False} | more


def refuses(s, schema, *words):
    for path in ENDPOINTS:
        error = refused(s, path, body_for(path, response_format=schema_format(schema)), "response_format")
        assert all(w in error["message"] for w in words), f"{words} are not all in: {error['message']}"


def check_J1_pattern_is_kept_or_refused(s):
    for pattern, wanted in ((r"^hello there indeed\!$", "hello there indeed!"), (r"^hello there indeed\\!$", "hello there indeed\\!")):
        schema = object_of({"a": {"type": "string", "pattern": pattern}})
        answer = asked(s, schema, temperature=1, seed=3)
        if answer[0] == 200:
            assert json.loads(text_of(answer)) == {"a": wanted}, answer
            body = {"messages": WORDS, "max_tokens": 60, "response_format": schema_format(schema, strict=True)}
            assert json.loads(joined(s.chunks(CHAT, body))) == {"a": wanted}
        else:
            refuses(s, schema, "pattern", "$.properties.a")


def check_J1_what_cannot_be_kept_is_named(s):
    for pattern in (r"^(?=a)b$", r"^(?!a)b$", r"(?<=x)+", r"^(a)\1$", r"\bword\b", "(", "[z-a]"):
        refuses(s, object_of({"a": {"type": "string", "pattern": pattern}}), "pattern", "$.properties.a")
        nested = object_of({"list": {"type": "array", "items": object_of({"a": {"type": "string", "pattern": pattern}})}})
        refuses(s, nested, "pattern", "$.properties.list.items.properties.a")
    for keyword, value in (("not", {"type": "null"}), ("if", {"type": "string"}), ("uniqueItems", True), ("contains", {"type": "null"}),
                           ("dependentRequired", {"a": ["b"]}), ("propertyNames", {"pattern": "^a"}), ("unevaluatedProperties", False)):
        kind = {"type": "array"} if keyword in ("uniqueItems", "contains") else {"type": "object"}
        refuses(s, kind | {keyword: value}, keyword, "$")
        refuses(s, object_of({"deep": {"anyOf": [{"type": "null"}, kind | {keyword: value}]}}), keyword, "$.properties.deep")
    refuses(s, object_of({"a": {"type": "string", "format": "iban"}}), "format", "$.properties.a")


def check_J2_patterns_of_tools(s):
    array = {"type": "array", "items": {"type": "string", "pattern": r"^(\d+|imap:[A-Za-z0-9_-]+)$"}, "minItems": 1, "maxItems": 2}
    value = value_of(s, object_of({"ids": array}), messages=user("Give ids 12 and 7."), temperature=0.8, seed=1)
    assert all(re.fullmatch(r"\d+|imap:[A-Za-z0-9_-]+", v) for v in value["ids"])
    for seed in (1, 2):  # unanchored: searched for in whatever stands around
        for pattern in (r"\d{4,4}", r"\S"):
            top, inside = {"type": "string", "pattern": pattern}, object_of({"a": {"type": "string", "pattern": pattern}})
            for schema in (top, inside):
                answer = asked(s, schema, temperature=0.7, seed=seed, max_tokens=60, messages=user("In which year did Rome fall?"))
                text, finish = text_of(answer), answer[2]["choices"][0]["finish_reason"]
                assert finish == "length" or re.search(pattern, json.loads(text)["a"] if schema is inside else json.loads(text)), text
                assert finish == "stop" or not is_json(text), text
    for pattern in (r"^\d{4,4}$", r"^[^\s]$"):  # anchored: to the letter, at the top and inside
        top, inside = {"type": "string", "pattern": pattern}, object_of({"a": {"type": "string", "pattern": pattern}})
        assert re.search(pattern, value_of(s, top)) and re.search(pattern, value_of(s, inside)["a"])


def check_J4_additional_properties(s):
    known, answers = {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, []
    for more in ({}, {"additionalProperties": True}, {"additionalProperties": {"type": "boolean"}}):
        # A required name that is not among the properties can only be an additional one.
        schema = {"type": "object", "properties": known, "required": ["a", "extra"]} | more
        answer = asked(s, schema, max_tokens=60)
        text = text_of(answer)
        assert re.match(r'\{\s*"a":\s*[0-9],\s*"extra":', text), text
        if answer[2]["choices"][0]["finish_reason"] == "stop":
            jsonschema.validate(json.loads(text), schema)
        answers.append(text)
    assert re.search(r'"extra":\s*(true|false)', answers[2]), answers
    refuses(s, {"type": "object", "properties": known, "required": ["a", "extra"], "additionalProperties": False}, "extra")
    for seed in range(3):
        closed = {"type": "object", "properties": known, "additionalProperties": False}
        value = value_of(s, closed, temperature=1.5, seed=seed, max_tokens=90)
        assert set(value) <= {"a"}, value


def check_J4_strict(s):
    open_object = {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}
    for schema, place in ((open_object, "$"), (object_of({"a": open_object}), "$.properties.a"),
                          (object_of({"a": {"type": "array", "items": open_object}}), "$.properties.a.items"),
                          (object_of({"a": {"$ref": "#/$defs/x"}}) | {"$defs": {"x": open_object}}, "$.$defs.x"),
                          (open_object | {"additionalProperties": True}, "$")):
        body = body_for(CHAT, response_format=schema_format(schema, strict=True))
        error = refused(s, CHAT, body, "response_format", "additionalProperties")
        assert place in error["message"], error
        for loose in (False, None):
            assert s.ask(CHAT, body_for(CHAT, max_tokens=1, response_format=schema_format(schema, strict=loose)))[0] == 200
    closed = object_of({"a": object_of({"b": {"type": "boolean"}})})
    text = text_of(s.ask(CHAT, body_for(CHAT, max_tokens=90, response_format=schema_format(closed, strict=True))))
    jsonschema.validate(json.loads(text), closed)
    refused(s, CHAT, body_for(CHAT, response_format=schema_format(closed, strict="yes")), "response_format.json_schema.strict")


def check_J5_references(s):
    enum = {"enum": ["north", "south"]}
    schema = object_of({"to": {"$ref": "#/$defs/direction"}}) | {"$defs": {"direction": enum}}
    for seed in range(3):
        assert value_of(s, schema, temperature=1.8, seed=seed)["to"] in enum["enum"]
    branch = object_of({"leaf": {"enum": ["x", "y"]}})
    tree = object_of({"left": {"anyOf": [branch, {"type": "null"}]}, "right": {"$ref": "#/properties/tree/properties/left/anyOf/0"}})
    for seed in range(2):
        value = value_of(s, object_of({"tree": tree}), temperature=1.5, seed=seed)
        assert value["tree"]["right"]["leaf"] in ("x", "y"), value
    escaped = object_of({"v": {"$ref": "#/$defs/a~1b%20c~0d"}}) | {"$defs": {"a/b c~d": {"const": 5}}}
    answer = asked(s, escaped)
    assert answer[0] == 400 and answer[2]["error"]["param"] == "response_format" or json.loads(text_of(answer)) == {"v": 5}, answer[2]


def check_J5_recursion(s):
    pair = {"a": object_of({"b": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}}),
            "b": object_of({"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}})}
    schema = {"$ref": "#/$defs/a", "$defs": pair}
    for seed in range(3):
        answer = asked(s, schema, temperature=1, seed=seed)
        text = text_of(answer)
        if answer[2]["choices"][0]["finish_reason"] == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        assert re.match(r'\{\s*"b"', text), text
    refuses(s, object_of({"a": {"$ref": "#/$defs/none"}}))
    for far in ("https://example.org/schema.json", "file:///etc/passwd", "other.json#/a"):
        refuses(s, object_of({"a": {"$ref": far}}), "$ref")
    for loop in ({"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
                 {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}):
        answer = asked(s, loop, max_tokens=20)
        assert answer[0] in (200, 400), answer


def longest_blanks(text):
    """The longest run of blanks outside of strings."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*("|$)', '""', text)
    return max((len(run) for run in re.findall(r"\s+", outside)), default=0)


def check_J6_blanks_are_bounded(s):
    """Nothing is likelier than blanks, and still they end."""
    blanks = ["\n", "\n\n", "\n\n\n", " ", "  ", "   ", "    ", "\t", "\t\t", "\r\n", "        ", " \n"]
    bias = {str(t[0]): 60 for t in (tokens_of(s, prompt=b) for b in blanks) if len(t) == 1}
    assert len(bias) >= 4, bias
    schema = object_of({"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2},
                        "c": object_of({"d": {"type": "null"}})})
    for seed in range(2):
        answer = asked(s, schema, temperature=1, seed=seed, max_tokens=400, logit_bias=bias)
        text = text_of(answer)
        assert 1 < longest_blanks(text) <= BLANKS_MAX, (longest_blanks(text), text)
        assert answer[2]["choices"][0]["finish_reason"] == "stop" and text == text.strip(), text
        jsonschema.validate(json.loads(text), schema)
    free = s.ask(CHAT, {"messages": WORDS, "temperature": 1, "seed": 5, "max_tokens": 150, "logit_bias": bias,
                        "response_format": {"type": "json_object"}})
    assert longest_blanks(text_of(free)) <= BLANKS_MAX, free


def check_J6_weak_model_long_string(s):
    schema = object_of({"story": {"type": "string"}})
    body = {"messages": user("x"), "temperature": 0, "max_tokens": 2048, "response_format": schema_format(schema)}
    text, finish = text_both(s, CHAT, body)
    assert longest_blanks(text) <= BLANKS_MAX and (finish == "stop") == is_json(text), (text, finish)


def check_J7_no_schema_at_all(s):
    foo = {"type": "object", "properties": {"foo": "bar"}}
    refuses(s, foo, "foo")
    for wrong in ({"type": "object", "properties": []}, {"type": "object", "required": "a"}, {"type": 7}, {"type": "obj"},
                  {"enum": []}, {"enum": "x"}, {"anyOf": []}, {"items": 3, "type": "array"}, {"type": "string", "minLength": -1},
                  {"type": "string", "pattern": 1}, {"type": "array", "minItems": 3, "maxItems": 2}, {"$ref": 4},
                  {"type": "integer", "minimum": "a"}, {"type": "integer", "minimum": 5, "maximum": 4}):
        refuses(s, wrong)
    for path in ENDPOINTS:
        for wrong, param in (({"type": "json_schema"}, "response_format.json_schema"),
                             ({"type": "json_schema", "json_schema": None}, "response_format.json_schema"),
                             ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
                             ({"type": "json_schema", "json_schema": {"name": "n", "schema": None}}, "response_format.json_schema.schema"),
                             ({"type": "json_schema", "json_schema": {"name": "n", "schema": "x"}}, "response_format.json_schema.schema"),
                             ({"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}, "response_format.json_schema.name"),
                             ({"type": "xml"}, "response_format.type"), ({}, "response_format.type"), ([], "response_format"),
                             ("json_object", "response_format"), ({"type": "grammar"}, "response_format.syntax"),
                             ({"type": "grammar", "syntax": "gbnf", "definition": ""}, "response_format.syntax"),
                             ({"type": "grammar", "syntax": "lark"}, "response_format.definition")):
            refused(s, path, body_for(path, response_format=wrong), param)
    assert s.ask("/health")[0] == 200
    for anything in ({}, True):  # {} allows any value; true is no object here
        answer = asked(s, anything, max_tokens=2)
        assert answer[0] == (200 if anything == {} else 400), answer


def nested(text, depth, close):
    return text * depth + close * depth


def check_J8_hostile_sources(s):
    """Each is refused soon, and a request that runs meanwhile gives what it gives alone."""
    body = body_for(CHAT, max_tokens=1000, ignore_eos=True)
    deep, regex = {"type": "null"}, lambda d: {"type": "grammar", "syntax": "regex", "definition": d}  # noqa: E731
    for _ in range(200):
        deep = {"anyOf": [deep, {"type": "array", "items": {"type": "null"}}]}
    lark = lambda d: {"type": "grammar", "syntax": "lark", "definition": d}  # noqa: E731
    doubling = {f"d{i}": object_of({"l": {"$ref": f"#/$defs/d{i + 1}"}, "r": {"$ref": f"#/$defs/d{i + 1}"}}) for i in range(40)}
    hostile = {
        "array of 3,000 levels": b'{"messages":[{"role":"user","content":"x"}],"a":' + nested("[", 3000, "]").encode() + b"}",
        "3,000 brackets, never closed": b'{"messages":' + b"[" * 3000,
        "3,000 objects": b'{"messages":' + nested('{"a":', 3000, "}").replace(":}", ":1}").encode() + b"}",
        "60,000 brackets in a regex": regex("(" * 60000), "60,000 brackets in Lark": lark("start: " + "(" * 60000),
        "closed ones": regex(nested("(", 60000, ")")), "closed ones in Lark": lark("start: " + nested("(", 60000, ")")),
        "look-behind": regex("(?<=x)+"), "look-behind in a schema": schema_format({"type": "string", "pattern": "(?<=x)+"}),
        "left recursion without end": lark("start: start start"), "nothing to begin with": lark("stop: /a/"),
        "schema of 400 levels": schema_format(deep),
        "imports": lark('%import os.path\nstart: path'), "special token": lark("start: <|im_end|>"),
        "a regex that is none": regex("a{2,1}"), "NUL": regex("a\0("), "not text": lark("start: \"\ud7ff\\u{110000}\"x("),
    }
    alone = text_of(s.ask(CHAT, body | {"max_tokens": 60}))
    running = s.open_stream(CHAT, body | {"stream": True})
    try:
        for name, source in hostile.items():
            begun = time.monotonic()
            if isinstance(source, bytes):
                status, _, answer = s.ask(CHAT, source)
            else:
                status, _, answer = s.ask(COMPLETIONS, body_for(COMPLETIONS, max_tokens=1, response_format=source))
            took = time.monotonic() - begun
            assert status == 400 and answer["error"]["message"] and len(answer["error"]["message"]) < 2000, (name, status, answer)
            assert isinstance(source, bytes) or answer["error"]["param"].startswith("response_format"), (name, answer)
            assert took < TWO_SECONDS, f"{name} took {took:.2f} s"
        # Hostile by what it describes: taken or not, but soon.
        counts = "(((a{1,1000}){1,1000}){1,1000}){1,1000}"
        for name, source in {"counts of counts": regex(counts), "a great count": regex("(a|b){1000000000}"),
                             "counts of counts in a schema": schema_format({"type": "string", "pattern": f"^{counts}$"}),
                             "minItems of a billion": schema_format({"type": "array", "items": {"type": "null"}, "minItems": 10**9}),
                             "long regex": regex("a|" * 100_000 + "b"), "many states": regex("(a|b)*a(a|b){200}"),
                             "doubling references": schema_format({"$ref": "#/$defs/d0", "$defs": doubling | {"d40": {"type": "null"}}}),
                             "2,000 properties": schema_format(object_of({f"p{i}": {"type": "null"} for i in range(2000)})),
                             "5,000 words": schema_format({"enum": [f"w{i}" for i in range(5000)]})}.items():
            begun = time.monotonic()
            status, _, answer = s.ask(COMPLETIONS, body_for(COMPLETIONS, max_tokens=4, response_format=source))
            took = time.monotonic() - begun
            assert status in (200, 400) and took < 2 * TWO_SECONDS, f"{name}: {status} in {took:.2f} s"
    finally:
        seen = b""
        while len(re.findall(rb"\ndata: ", seen)) < 62:
            seen += running.recv(65536)
        running.close()
    text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in
                   re.findall(rb"data: \{.*\}(?=\n)", seen))
    assert text.startswith(alone) or alone.startswith(text), (text, alone)
    assert text_of(s.ask(COMPLETIONS, body_for(COMPLETIONS, response_format=forced("fine")))) == "fine"


def check_J8_others_go_on(s):
    """Sources at the edge of what is taken, from four clients at once: /health and a short request do not notice."""
    stop = threading.Event()
    source = {"type": "grammar", "syntax": "regex", "definition": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"}

    def attack():
        while not stop.is_set():
            s.ask(COMPLETIONS, body_for(COMPLETIONS, max_tokens=1, response_format=source))

    threads = [threading.Thread(target=attack) for _ in range(4)]
    alone = text_of(s.ask(CHAT, body_for(CHAT)))
    for t in threads:
        t.start()
    try:
        for _ in range(3):
            begun = time.monotonic()
            assert s.ask("/health")[0] == 200 and time.monotonic() - begun < 1
            assert text_of(s.ask(CHAT, {"messages": ASK, "temperature": 0, "max_tokens": 16})) == alone
    finally:
        stop.set()
        for t in threads:
            t.join(30)


def check_J8_costly_steps_hold_up_nobody(s):
    """An ambiguous grammar, each of whose steps is dearer than the one before: others answer as soon as without it."""
    alone = min(seconds_of(s, body_for(CHAT)) for _ in range(2))
    source = {"type": "grammar", "syntax": "lark", "definition": 'start: s\ns: s s | s s s | "a" | "a" s | s "a"'}
    body = body_for(COMPLETIONS, prompt="a", max_tokens=600, stream=True, response_format=source,
                    logit_bias={str(tokens_of(s, prompt="a")[0]): 60})
    with s.open_stream(COMPLETIONS, body) as connection:
        seen, begun = b"", time.monotonic()
        while seen.count(b"data: ") < 110 and time.monotonic() - begun < 20:
            more = connection.recv(65536)
            seen += more
            if not more or b"[DONE]" in seen:
                break
        beside = seconds_of(s, body_for(CHAT))
    assert beside < max(2, 5 * alone), f"{beside:.1f} s beside it, {alone:.1f} s alone"


def seconds_of(s, body):
    begun = time.monotonic()
    assert s.ask(CHAT, body)[0] == 200
    return time.monotonic() - begun


def main():
    with Server("--context", "2200", "--parallel", "8") as s:
        run_checks([(check, s) for check in (
            check_J1_pattern_is_kept_or_refused, check_J1_what_cannot_be_kept_is_named, check_J2_patterns_of_tools,
            check_J4_additional_properties, check_J4_strict, check_J5_references, check_J5_recursion, check_J6_blanks_are_bounded,
            check_J6_weak_model_long_string, check_J7_no_schema_at_all, check_J8_hostile_sources, check_J8_others_go_on,
            check_J8_costly_steps_hold_up_nobody)])


if __name__ == "__main__":
    main()
