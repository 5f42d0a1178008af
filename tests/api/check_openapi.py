#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""docs/openapi.json is what the server serves, names all that it answers, and says the truth: schemathesis tries to refute it.

    check_openapi.py                            as a test
    check_openapi.py --report EXAMPLES [SEED]   schemathesis alone, with so many examples for each operation; writes
                                                build/reports/openapi.json
"""
import copy
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import jsonschema
import schemathesis

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT / "tools"))
os.environ.setdefault("TROIKA_BINARY", str(ROOT / "build/release/troika"))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

PATH = ROOT / "docs/openapi.json"
DOCUMENT = json.loads(PATH.read_text())
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance,"
          "negative_data_rejection,positive_data_acceptance,unsupported_method,allow_header_conformance,missing_required_header")
EXAMPLES, SEED = 20, 4
KEY = "sk-of-the-openapi-test"
NO_STREAM = "stream-" + "0" * 32


def operations():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path.replace("{model}", "smollm2").replace("{stream}", NO_STREAM), method.upper(), operation


def resolve(value):
    while "$ref" in value:
        place = DOCUMENT
        for step in value["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        value = place
    return value


def walk(value):
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        yield from walk(item)


def closed(document):
    """The same with "nothing else" at each object that lists its fields: finds fields that are not described."""
    document = copy.deepcopy(document)
    for name, schema in document["components"]["schemas"].items():
        for part in walk(schema):
            if "properties" in part:
                part.setdefault("additionalProperties", False)
    return document


CLOSED = closed(DOCUMENT)


def conforms(value, schema):
    jsonschema.Draft202012Validator(schema | {"components": CLOSED["components"]}).validate(value)


def raw(port, request):
    """Status, headers (lower case) and body of the answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def plain(method, path, *headers):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: t", "Connection: close", *headers, "", ""]).encode()


def check_served(s):
    status, headers, body = raw(s.port, plain("GET", "/openapi.json"))
    assert status == 200 and body == PATH.read_bytes(), "build again: the program holds an older docs/openapi.json"
    assert headers["content-type"] == "application/json" and headers["cache-control"] == "no-cache", headers
    assert raw(s.port, plain("GET", "/openapi.json", f"If-None-Match: {headers['etag']}"))[0] == 304
    assert raw(s.port, plain("HEAD", "/openapi.json"))[2] == b""
    version = subprocess.run([BINARY, "version"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert DOCUMENT["info"]["version"] in version.split(), version


def check_valid():
    loaded = schemathesis.openapi.from_path(str(PATH))
    assert loaded.specification.name == "Open API 3.1.0", loaded.specification
    loaded.validate()
    assert loaded.statistic.operations.total == len(list(operations()))
    references = {part["$ref"] for part in walk(DOCUMENT) if "$ref" in part}
    components = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses", "headers") for name in DOCUMENT["components"][kind]}
    assert references == components, references ^ components
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)


def named(path):
    return path.replace("{model}", "NAME").replace("{stream}", "NAME")


def check_routes(s):
    message = s.ask("/nothing-is-here")[2]["error"]["message"]
    listed = set(message.split("there are ", 1)[1].split(", "))
    described = {named(path) for path in DOCUMENT["paths"]}
    assert listed == described, listed ^ described


def check_methods(s):
    taken = {}
    for path, method, operation in operations():
        taken.setdefault(path, []).extend({"GET": ["GET", "HEAD"]}.get(method, [method]))
    for path, method, operation in operations():
        allowed = ", ".join(taken[path] + ["OPTIONS"])
        for other in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"):
            if other in allowed.split(", "):
                continue
            status, headers, body = raw(s.port, plain(other, path))
            assert status == 405 and headers["allow"] == allowed, (path, other, status, headers)
            if other != "HEAD":
                check_answer(operation, status, headers, body)
        assert raw(s.port, plain("OPTIONS", path))[0] == 204, path
        if method == "GET":
            assert raw(s.port, plain("HEAD", path))[0] == (404 if NO_STREAM in path else 200), path


def check_answer(operation, status, headers, body):
    """The answer is described: its status, required headers, type and each of its fields."""
    described = resolve(operation["responses"][str(status)])
    for name, header in described.get("headers", {}).items():
        header = resolve(header)
        assert name.lower() in headers or not header["required"], (status, name, headers)
        if name.lower() in headers:
            jsonschema.Draft202012Validator(header["schema"]).validate(headers[name.lower()])
    media = headers.get("content-type", "").split(";")[0]
    content = described.get("content", {})
    assert media in content or not content, (status, media)
    if media == "application/json":
        conforms(json.loads(body), content[media]["schema"])
    elif media == "text/event-stream":
        check_events(content[media]["schema"], body.decode())


def check_events(schema, text):
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    chunks = next(part["contentSchema"] for part in walk(schema) if "contentSchema" in part)
    assert lines.pop() == "[DONE]" and lines, text
    for line in lines:
        conforms(json.loads(line), chunks)


def post(port, path, body, *headers, method="POST"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return raw(port, plain(method, path, "Content-Type: application/json", f"Content-Length: {len(data)}", *headers) + data)


def unchunked(headers, body):
    if headers.get("transfer-encoding") != "chunked":
        return body
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[:int(size, 16)], body[int(size, 16) + 2:]
    return whole


def check_examples(s):
    count = 0
    for path, method, operation in operations():
        if method in ("GET", "DELETE"):
            check_answer(operation, *raw(s.port, plain(method, path)))
            continue
        if method == "PATCH":  # of a stream: see check_streams
            continue
        for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items():
            status, headers, body = post(s.port, path, example["value"])
            assert status == 200, (path, name, body)
            wanted = "text/event-stream" if example["value"].get("stream") else "application/json"
            assert headers["content-type"].startswith(wanted), (path, name, headers)
            check_answer(operation, status, headers, unchunked(headers, body))
            count += 1
    assert count >= 12, count


def operation_at(path, method):
    return DOCUMENT["paths"][path][method]


def check_statuses(s):
    chat, models = operation_at("/v1/chat/completions", "post"), operation_at("/v1/models", "get")
    path = "/v1/chat/completions"
    too_long = {"messages": [{"role": "user", "content": "word " * 2000}]}
    cases = [
        (400, chat, lambda: post(s.port, path, {"messages": []})),
        (400, chat, lambda: post(s.port, path, too_long)),
        (400, models, lambda: raw(s.port, plain("GET", "/v1/models", "Bad header: x"))),
        (403, chat, lambda: post(s.port, path, {}, "Origin: http://example.com")),
        (403, models, lambda: raw(s.port, plain("GET", "/v1/models", "Origin: null"))),
        (404, operation_at("/v1/models/{model}", "get"), lambda: raw(s.port, plain("GET", "/v1/models/gpt-9"))),
        (413, chat, lambda: raw(s.port, plain("POST", path, "Content-Length: 8388609"))),
        (431, models, lambda: raw(s.port, plain("GET", "/v1/models", "X-Long: " + "x" * 33000))),
        (408, chat, lambda: raw(s.port, plain("POST", path, "Content-Length: 10") + b"{")),
    ]
    for wanted, operation, ask in cases:
        status, headers, body = ask()
        assert status == wanted, (wanted, status, body)
        check_answer(operation, status, headers, body)


def open_named(s, tokens=900):
    """A stream that runs for long, and its name."""
    stream = s.open_stream("/v1/completions", {"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": tokens})
    head = b""
    while b"\r\n\r\n" not in head:
        head += stream.recv(65536)
    return stream, re.search(rb"x-troika-stream: (\S+)", head)[1].decode()


def check_streams(s):
    """A stream in each way in which it can be asked for, with the examples of PATCH, until it is cancelled and after that."""
    path = "/v1/streams/{stream}"
    examples = operation_at(path, "patch")["requestBody"]["content"]["application/json"]["examples"]
    stream, name = open_named(s)
    with stream:
        check_answer(operation_at("/v1/streams", "get"), *raw(s.port, plain("GET", "/v1/streams")))
        asks = [("get", lambda: raw(s.port, plain("GET", f"/v1/streams/{name}")))]
        asks += [("patch", lambda e=e: post(s.port, f"/v1/streams/{name}", e["value"], method="PATCH")) for e in examples.values()]
        asks += [("delete", lambda: raw(s.port, plain("DELETE", f"/v1/streams/{name}")))]
        for method, ask in asks:
            status, headers, answer = ask()
            assert status == 200, (method, status, answer)
            check_answer(operation_at(path, method), status, headers, answer)
        for method in ("patch", "delete"):
            status, headers, answer = post(s.port, f"/v1/streams/{name}", {"class": "reactive"}, method=method.upper())
            assert status == 409, (method, status, answer)
            check_answer(operation_at(path, method), status, headers, answer)
    status, headers, answer = raw(s.port, plain("GET", f"/v1/streams/{name}"))
    assert status == 200 and json.loads(answer)["state"] in ("ending", "cancelled"), answer
    for wrong in ({}, {"class": "high"}, {"state": "stopped"}, {"class": None, "state": None}, [], {"class": 1}):
        status, headers, answer = post(s.port, f"/v1/streams/{name}", wrong, method="PATCH")
        assert status == 400, (wrong, status, answer)
        check_answer(operation_at(path, "patch"), status, headers, answer)


def check_origins(s):
    for origin, wanted in (("http://localhost:3000", 200), (f"http://127.0.0.1:{s.port}", 200), ("http://example.org", 200),
                           ("http://example.com", 403)):
        status, headers, _ = raw(s.port, plain("GET", "/v1/models", f"Origin: {origin}"))
        assert status == wanted and headers["vary"] == "Origin", (origin, status, headers)
        assert headers.get("access-control-allow-origin") == (origin if wanted == 200 else None), (origin, headers)


def check_keys():
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write(f"# one\n{KEY}\n")
        keys.flush()
        with Server("--context", "512", "--parallel", "2", "--api-key-file", keys.name) as s:
            for path, method, operation in operations():
                def ask(port, path, body, *more, method=method):
                    if method in ("POST", "PATCH"):
                        return post(port, path, body, *more, method=method)
                    return raw(port, plain(method, path, *more))
                status, headers, body = ask(s.port, path, {}, "Authorization: Bearer sk-other")
                if operation.get("security") == []:
                    assert status == 200, (path, status)
                    continue
                assert status == 401, (path, status)
                check_answer(operation, status, headers, body)
                status = ask(s.port, path, {}, f"Authorization: Bearer {KEY}")[0]
                wanted = 400 if method in ("POST", "PATCH") else 404 if NO_STREAM in path else 200
                assert status == wanted, (path, status)


def check_draining():
    with Server("--context", "512", "--parallel", "2") as s:
        stream = s.open_stream("/v1/completions", {"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 200})
        assert s.wait_running(1, 20) is not None
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as old:  # accepted before the signal
            old.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
            assert b"200 OK" in old.recv(65536)
            s.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            old.sendall(plain("GET", "/health"))
            answer = b""
            while more := old.recv(65536):
                answer += more
        assert answer.startswith(b"HTTP/1.1 503"), answer
        health = json.loads(answer.split(b"\r\n\r\n", 1)[1])
        conforms(health, resolve(operation_at("/health", "get")["responses"]["503"])["content"]["application/json"]["schema"])
        assert health["status"] == "draining", health
        stream.close()


def check_words():
    """docs/API.md names every path, field, header, error code and option that the description has."""
    words = (ROOT / "docs/API.md").read_text()
    names = {named(path) for path in DOCUMENT["paths"]} | set(DOCUMENT["components"]["headers"])
    for part in walk(DOCUMENT["components"]):
        names |= set(part["properties"]) if isinstance(part.get("properties"), dict) else set()
    names |= {code for code in DOCUMENT["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"] if code}
    names |= set(re.findall(r"--[a-z-]+", json.dumps(DOCUMENT)))
    missing = {name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", words)}
    assert not missing, sorted(missing)


BODIES = {"/v1/completions": ("CompletionRequest", {"prompt": "One, two,", "max_tokens": 1}),
          "/v1/chat/completions": ("ChatRequest", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "logprobs": True})}
SLOW = {"n", "best_of", "max_tokens", "max_completion_tokens"}  # check_limits has them


def fields(name):
    """{name: schema} of a request body, those of both kinds included."""
    schema, found = DOCUMENT["components"]["schemas"][name], {}
    for part in schema["allOf"]:
        found |= resolve(part)["properties"]
    return found


def check_ranges(s):
    """Each number may be as small and as large as it says, and no more; null is taken where it says so, and nowhere else."""
    count = 0
    for path, (name, body) in BODIES.items():
        for field, schema in fields(name).items():
            if field != "prompt" and field != "messages":
                assert s.ask(path, body | {field: None} | {"max_tokens": 1})[0] == 200, (path, field, None)
            if "minimum" not in schema or field in SLOW:
                continue
            step = 1 if "integer" in schema["type"] else 0.005
            for value, wanted in ((schema["minimum"], 200), (schema["maximum"], 200), (schema["minimum"] - step, 400),
                                  (schema["maximum"] + step, 400)):
                status, _, answer = s.ask(path, body | {field: value})
                assert status == wanted, (path, field, value, answer)
                count += 1
        assert s.ask(path, {k: v for k, v in body.items() if k not in ("prompt", "messages")})[0] == 400, path
    assert count >= 70, count


def check_defaults(s):
    """A field with its default is the same as the field left out: many tokens drawn at random agree."""
    for path, (name, body) in BODIES.items():
        defaults = {field: schema["default"] for field, schema in fields(name).items() if "default" in schema and field not in body}
        assert len(defaults) >= 12, defaults
        plainly, fully = (s.ask(path, more | body | {"seed": 7, "max_tokens": 24}) for more in ({}, defaults))
        assert plainly[0] == fully[0] == 200 and plainly[2]["choices"] == fully[2]["choices"], (plainly, fully)


def nested(levels):
    """That many brackets."""
    return b"[" * levels + b"]" * levels


def check_limits(s):
    """What docs/API.md calls a limit is taken, one more is not."""
    chat, completions, user = "/v1/chat/completions", "/v1/completions", {"role": "user", "content": "Hi"}
    form = {"response_format": {"type": "grammar", "syntax": "regex", "definition": "a"}}  # the answer is short

    def message(levels):  # the message is one level, its extra field the others
        return b'{"max_tokens":0,"messages":[{"role":"user","content":"Hi","x":' + nested(levels - 1) + b"}]}"

    def tools(levels):  # the array, the tool, its function, and what its parameters have
        return (b'{"max_tokens":0,"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"f",'
                b'"parameters":' + nested(levels - 3) + b"}}]}")

    def regex(text, syntax="regex"):
        return {"prompt": "a", "max_tokens": 1, "response_format": {"type": "grammar", "syntax": syntax, "definition": text}}

    def lark(text):
        return regex("start: " + text, "lark")

    def schema(levels):
        inner = {} if levels == 1 else {"items": {}}
        for _ in range(levels - 2):
            inner = {"items": inner}
        return {"prompt": "a", "max_tokens": 1, "response_format": {"type": "json_schema", "json_schema": {"schema": inner}}}

    cases = [  # path, field, body of a number, the limit
        (completions, "n", lambda n: {"prompt": "a", "max_tokens": 1, "n": n}, 128),
        (completions, "prompt", lambda n: {"prompt": [[1]] * n, "max_tokens": 1, "n": 2}, 64),
        (completions, "max_tokens", lambda n: {"prompt": "a", "max_tokens": n} | form, 2**32 - 2),
        (completions, "max_completion_tokens", lambda n: {"prompt": "a", "max_completion_tokens": n} | form, 2**32 - 2),
        (completions, "stop", lambda n: {"prompt": "a", "max_tokens": 1, "stop": ["x"] * n}, 16),
        (completions, "stop", lambda n: {"prompt": "a", "max_tokens": 1, "stop": "x" * n}, 256),
        (completions, "stop", lambda n: {"prompt": "a", "max_tokens": 1, "stop": "\u00e9" * (n // 2) + "x" * (n % 2)}, 256),
        (completions, "logit_bias", lambda n: {"prompt": "a", "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(n)}}, 1024),
        (completions, "logprobs", lambda n: {"prompt": "a", "max_tokens": 1, "logprobs": n}, 20),
        (completions, "repeat_last_n", lambda n: {"prompt": "a", "max_tokens": 1, "repeat_last_n": n}, 1 << 20),
        (completions, "seed", lambda n: {"prompt": "a", "max_tokens": 1, "seed": n}, 2**63 - 1),
        (completions, "response_format", lambda n: regex("a" * n + "?"), 128 * 1024 - 1),
        (completions, "response_format", lambda n: regex("(" * n + "a" + ")" * n), 250),
        (completions, "response_format", lambda n: lark('"a"' + " " * (n - 10)), 64 * 1024),
        (completions, "response_format", lambda n: lark("(" * n + '"a"' + ")" * n), 28),
        (completions, "response_format", lambda n: lark("A0\n" + "\n".join(f'A{i}: "a{i}"' for i in range(n - 1))), 1000),
        (completions, "response_format", schema, 100),
        (chat, "messages[0]", message, 100),
        (chat, "tools", tools, 100),
        (chat, None, lambda n: b'{"max_tokens":0,"messages":[{"role":"user","content":"Hi"}],"x":' + nested(n - 1) + b"}", 2048),
        ("/tokenize", "prompt", lambda n: {"prompt": "x" * n}, 4 * 1024 * 1024),
    ]
    for path, field, make, limit in cases:
        assert s.ask(path, make(limit))[0] == 200, (path, field, limit, s.ask(path, make(limit))[2])
        status, _, answer = s.ask(path, make(limit + 1))
        wanted = None if field == "seed" else field  # beyond 64 bits it is no JSON that we read
        assert status == 400 and answer["error"]["param"] == wanted, (path, field, limit, status, answer)
    for text in ('{"prompt":"a","x":1,"x":1}', '{"prompt":"a","x\\u0000":1}', '{"prompt":"\\ud83d"}', '{"prompt":"a","x":1e999}',
                 '{"prompt":"a","x":99999999999999999999}', '[]', '', '{"prompt":"a"} x'):
        assert s.ask(completions, text.encode())[0] == 400, text


def check_curl_lines(s):
    """Each curl command of docs/API.md does what it should."""
    text = (ROOT / "docs/API.md").read_text()
    commands = [block for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE) if block.startswith("    curl ")]
    commands = [command for block in commands for command in re.split(r"\n(?=    curl )", block.rstrip())]
    assert len(commands) >= 9, commands
    for command in commands:
        stream, name = open_named(s) if "/v1/streams/NAME" in command else (None, "")
        command = command.strip().replace("http://127.0.0.1:8080", s.url).replace("/NAME", "/" + name)
        command = command.replace("curl ", "curl -q -sS -f --noproxy '*' ", 1)
        done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (command, done)
        if "data: " in done.stdout:
            assert "data: [DONE]" in done.stdout, (command, done)
        else:
            assert "error" not in json.loads(done.stdout), (command, done)
        if stream:
            stream.close()


def run_schemathesis(s, examples, seed, folder):
    """(exit code, the run's own report, refusals of valid bodies that were let pass: {why: how many})"""
    vocab = s.ask("/v1/models")[2]["data"][0]["meta"]["vocab"]
    report, excused = folder / "report.json", folder / "excused.json"
    excused.write_text("{}")
    command = [sys.executable, "-B", "-m", "schemathesis.cli", "run", str(PATH), "--url", s.url, "--phases", "examples,coverage,fuzzing",
               "--checks", CHECKS, "--max-examples", str(examples), "--seed", str(seed), "--generation-database", "none",
               "--request-timeout", "60", "--continue-on-failure", "--no-shrink", "--suppress-health-check", "all", "--output-sanitize",
               "false", "--report", "json", "--report-json-path", str(report), "--no-color"]
    environment = ENVIRONMENT | {"SCHEMATHESIS_HOOKS": "support_openapi", "PYTHONPATH": str(HERE), "TROIKA_VOCAB": str(vocab),
                                 "TROIKA_EXCUSED": str(excused), "NO_PROXY": "*"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    if not report.is_file():
        raise AssertionError(done.stdout[-4000:] + done.stderr[-4000:])
    return done, json.loads(report.read_text()), json.loads(excused.read_text())


def check_schemathesis(s):
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done, report, excused = run_schemathesis(s, EXAMPLES, SEED, pathlib.Path(folder))
    print(f"schemathesis: {report['test_cases']['generated']} cases in {time.monotonic() - begun:.0f} s; let pass: {excused}")
    assert done.returncode == 0 and not report["failures"] and not report["errors"], "\n" + done.stdout[-20000:]
    assert report["operations"]["tested"] == len(list(operations())), report["operations"]
    assert report["test_cases"]["generated"] > 500, report["test_cases"]
    assert s.process.poll() is None


def figures(examples, seed=SEED):
    from report import Report
    begun = time.monotonic()
    with Server(*OPTIONS) as s, tempfile.TemporaryDirectory() as folder:
        done, run, excused = run_schemathesis(s, examples, seed, pathlib.Path(folder))
        alive = s.process.poll() is None
    print(done.stdout[-20000:] if done.returncode else f"valid bodies whose refusal is right: {excused}")
    server_errors = sum(f["count"] for f in run["failures"] if f["type"] in ("ServerError",))
    result = Report("openapi")
    result.add("operations described", "", len(list(operations())))
    result.add("operations tested", f"== {len(list(operations()))}", run["operations"]["tested"])
    result.add("cases run", ">= 500", run["test_cases"]["generated"])
    result.add("failures", "== 0", sum(f["count"] for f in run["failures"]))
    result.add("server errors", "== 0", server_errors)
    result.add("answers that did not come", "== 0", sum(e["count"] for e in run["errors"]))
    result.add("valid bodies refused rightly", "", sum(excused.values()))
    result.add("the server lives", "== 1", int(alive))
    result.add("seconds", "", time.monotonic() - begun)
    return result.finish()


OPTIONS = ("--context", "1024", "--parallel", "8", "--ttft-target", "1e7",  # whatever is asked at once, nothing is refused for it
            "--body-max", "8M", "--request-time", "5", "--cors-origin", "http://example.org")


def main():
    if sys.argv[1:2] == ["--report"]:
        sys.exit(figures(*map(int, sys.argv[2:4])))
    with Server(*OPTIONS) as s:
        shared = [check_served, check_routes, check_methods, check_examples, check_statuses, check_streams, check_origins, check_ranges,
                  check_defaults, check_limits, check_curl_lines, check_schemathesis]
        run_checks([(check_valid,), (check_words,)] + [(check, s) for check in shared] + [(check_keys,), (check_draining,)])


if __name__ == "__main__":
    main()
