# SPDX-License-Identifier: Apache-2.0
"""What the check_cases_*.py files share. A case (S1, L2 ...) is an input that broke some engine, with the right behaviour; each
is a function check_<ID>_<what>, and tools/cases.py counts the ids."""
import json
import os
import pathlib
import re
import tempfile

from support_server import Server

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ENDPOINTS = (CHAT, COMPLETIONS)
ASK = [{"role": "user", "content": "Name three colours."}]
TEMPLATES = pathlib.Path(__file__).resolve().parent.parent / "text" / "templates"


def user(text):
    return [{"role": "user", "content": text}]


def body_for(path, **fields):
    """A short request at temperature 0."""
    return ({"messages": ASK} if path == CHAT else {"prompt": "One, two,"}) | {"temperature": 0, "max_tokens": 16} | fields


def forced(text):
    """response_format under which the answer is this text, whatever the model would say."""
    return {"type": "grammar", "syntax": "regex", "definition": re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)}


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "case", "schema": schema} | more}


def choice_text(choice):
    """Of a whole answer's choice, or of one of a chunk."""
    if "text" in choice:
        return choice["text"]
    return choice["message" if "message" in choice else "delta"].get("content") or ""


def text_of(answer, index=0):
    """Of (status, headers, JSON)."""
    assert answer[0] == 200, answer[2]
    return choice_text(answer[2]["choices"][index])


def joined(chunks, index=0):
    return "".join(choice_text(choice) for chunk in chunks for choice in chunk["choices"] if choice["index"] == index)


def finish_of(chunks, index=0):
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    assert reasons and all(r is None for r in reasons[:-1]) and reasons[-1], reasons
    return reasons[-1]


def text_both(s, path, body):
    """Text and finish_reason of a request, asked whole and as a stream, which have to agree."""
    whole = s.ask(path, body)
    chunks = s.chunks(path, body)
    text, finish = text_of(whole), whole[2]["choices"][0]["finish_reason"]
    assert (joined(chunks), finish_of(chunks)) == (text, finish), (joined(chunks), finish_of(chunks), text, finish)
    return text, finish


def refused(s, path, body, param=None, words="", status=400, code=None):
    """Refused with an OpenAI error object and no 200 before it, asked whole and as a stream; the last error."""
    for stream in (False, True):
        got, headers, answer = s.ask(path, body | {"stream": stream})
        error = answer.get("error") if isinstance(answer, dict) else None
        assert got == status and error, f"{got} instead of {status}: {answer}"
        assert headers["Content-Type"] == "application/json", headers["Content-Type"]
        assert set(error) >= {"message", "type", "param", "code"} and error["type"] and error["message"], error
        assert param is None or error["param"] == param, f"param {error['param']!r} instead of {param!r}: {error['message']}"
        assert words in error["message"], f"{words!r} is not in: {error['message']}"
        assert code is None or error["code"] == code, error
    return error


def tokens_of(s, **body):
    status, _, answer = s.ask("/tokenize", body)
    assert status == 200, answer
    assert answer["count"] == len(answer["tokens"])
    return answer["tokens"]


def prompt_text(s, messages, **more):
    """What the messages look like to the model, control tokens by name."""
    status, _, answer = s.ask("/detokenize", {"tokens": tokens_of(s, messages=messages, **more)})
    assert status == 200, answer
    return answer["prompt"]


class Templated(Server):
    """A server with a chat template of our own: a file of tests/text/templates by name, or a text."""

    def __init__(self, template, *options):
        self.folder = tempfile.TemporaryDirectory()
        path = TEMPLATES / f"{template}.jinja"
        if "{" in template:
            path = pathlib.Path(self.folder.name) / "case.jinja"
            path.write_text(template)
        super().__init__("--chat-template", str(path), *options)

    def __exit__(self, *what):
        super().__exit__(*what)
        self.folder.cleanup()


def model_file(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("TROIKA_MODELS") or pathlib.Path(cache) / "troika" / "models") / name


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False
