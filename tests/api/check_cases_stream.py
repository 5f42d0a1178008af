# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases S1 to S3 and S6 to S9: streams."""
import json
import math
import pathlib
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time

import gguf
import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import (ASK, CHAT, COMPLETIONS, ENDPOINTS, body_for, choice_text, finish_of, forced, joined, model_file,  # noqa: E402
                           text_both, text_of)
from support_server import Server, run_checks  # noqa: E402

LONG = {"stream": True, "ignore_eos": True, "max_tokens": 900}
SPLIT = "😀日本語"  # every character of it takes several tokens
FOX = "The quick brown fox"


def check_S1_characters_over_tokens(s):
    for path in ENDPOINTS:
        for text in (SPLIT, "A 😀 b 👩‍👩‍👧 日本語 é, and on."):
            body = body_for(path, max_tokens=100, response_format=forced(text))
            assert text_both(s, path, body) == (text, "stop")
            pieces = [choice_text(c["choices"][0]) for c in s.chunks(path, body)]
            assert not any("\ufffd" in p for p in pieces), pieces
            assert len([p for p in pieces if p]) >= 4, pieces  # nothing waits for the end once a character was split


def check_S1_free_answer(s):
    body = {"messages": [{"role": "user", "content": "Repeat: 😀 日本語 😀"}], "temperature": 0, "max_tokens": 32}
    text, finish = text_both(s, CHAT, body)
    if finish == "length":  # the last character may be half one, see S2
        text = text.removesuffix("\ufffd")
    assert text and "\ufffd" not in text, text


def check_S1_choices_apart(s):
    """Two answers in one stream: the half characters of one are not finished by the other."""
    body = body_for(CHAT, n=2, temperature=1, max_tokens=100, response_format=forced(SPLIT))
    chunks = s.chunks(CHAT, body)
    assert [joined(chunks, i) for i in (0, 1)] == [SPLIT] * 2 and [finish_of(chunks, i) for i in (0, 1)] == ["stop"] * 2


def check_S2_cut_in_a_character(s):
    inside = 0
    for path in ENDPOINTS:
        logprobs = {"logprobs": True} if path == CHAT else {"logprobs": 0}
        for limit in (1, 2, 3):
            body = body_for(path, max_tokens=limit, response_format=forced(SPLIT))
            whole, chunks = s.ask(path, body)[2], s.chunks(path, body | {"stream_options": {"include_usage": True}})
            assert whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"] == limit, whole
            text, finish = text_both(s, path, body)
            assert finish == "length", finish
            characters = text[:-1] if text.endswith("\ufffd") else text
            assert SPLIT.startswith(characters) and "\ufffd" not in characters, text
            # Whether the cut was inside is seen from the bytes of its tokens.
            choice = s.ask(CHAT, body_for(CHAT, max_tokens=limit, response_format=forced(SPLIT), logprobs=True))[2]["choices"][0]
            raw = bytes(b for t in choice["logprobs"]["content"] for b in t["bytes"])
            if path == CHAT:
                inside += raw.decode(errors="ignore").encode() != raw
                assert characters == raw.decode(errors="ignore"), (text, raw)
            assert text_of(s.ask(path, body | logprobs)) == text
    assert inside, "no limit cut a character"


def check_S3_stop_over_tokens(s):
    for path in ENDPOINTS:
        body = body_for(path, max_tokens=40, response_format=forced(FOX + " jumps"))
        for stop in (["own fox"], "own fox", ["never", "own fox", "own fox jumps"], ["fox", "own fox"], ["n fox", "own fox"]):
            assert text_both(s, path, body | {"stop": stop}) == ("The quick br", "stop"), (path, stop)
        assert text_both(s, path, body | {"stop": ["The"]}) == ("", "stop")
        assert text_both(s, path, body_for(path, max_tokens=40, response_format=forced(SPLIT), stop=["本"])) == ("😀日", "stop")


def check_S3_what_only_began_is_given_out(s):
    for path in ENDPOINTS:
        body = body_for(path, max_tokens=40, response_format=forced(FOX))
        for stop in (["own foxes"], ["own fix"], ["x!"], [FOX + "."]):
            assert text_both(s, path, body | {"stop": stop}) == (FOX, "stop"), (path, stop)


def check_S3_nothing_is_held_back_for_its_length(s):
    """A stop string that does not begin in the text delays no token of it."""
    body = body_for(COMPLETIONS, max_tokens=40, response_format=forced(FOX))
    plain = [choice_text(c["choices"][0]) for c in s.chunks(COMPLETIONS, body)]
    held = [choice_text(c["choices"][0]) for c in s.chunks(COMPLETIONS, body | {"stop": ["Z" * 200, "fox is long gone"]})]
    cut = plain.index(next(p for p in plain if "f" in p)) + 1  # from "f" on the second one may begin
    assert held[:cut - 1] == plain[:cut - 1] and "".join(held) == "".join(plain), (plain, held)


def check_S6_usage_off(s):
    for path in ENDPOINTS:
        for options in ({}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
            chunks = s.chunks(path, body_for(path, max_tokens=4) | options)
            assert all(c["choices"] and "usage" not in c for c in chunks), chunks


def check_S6_usage_on(s):
    for path in ENDPOINTS:
        for n in (1, 2):
            body = body_for(path, max_tokens=4, n=n)
            chunks = s.chunks(path, body | {"stream_options": {"include_usage": True}})
            assert all(c["choices"] and "usage" in c and c["usage"] is None for c in chunks[:-1]), chunks
            last = chunks[-1]
            assert last["choices"] == [] and last["id"] == chunks[0]["id"], last
            usage, whole = last["usage"], s.ask(path, body)[2]["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["completion_tokens"] == whole["completion_tokens"] == 4 * n, (usage, whole)
            assert usage["prompt_tokens"] == whole["prompt_tokens"]


def check_S7_shape_of_chunks(s):
    kinds = {CHAT: "chat.completion.chunk", COMPLETIONS: "text_completion"}
    for path in ENDPOINTS:
        for n in (1, 2):
            chunks = s.chunks(path, body_for(path, n=n, max_tokens=6))
            assert all({"id", "object", "created", "model", "choices"} <= set(c) for c in chunks), chunks
            for key in ("id", "object", "created", "model"):
                assert len({c[key] for c in chunks}) == 1, key
            assert chunks[0]["object"] == kinds[path] and chunks[0]["id"] and chunks[0]["model"] == "smollm2"
            for index in range(n):
                choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
                assert finish_of(chunks, index) in ("stop", "length")
                assert all("finish_reason" in c and ("delta" if path == CHAT else "text") in c for c in choices), choices
                if path == CHAT:
                    assert choices[0]["delta"]["role"] == "assistant" and choices[0]["delta"]["content"] == "", choices[0]
                    assert not any("role" in c["delta"] for c in choices[1:]), choices


def check_S7_official_client(s):
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=300)
    whole = client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=8)
    chunks = list(client.chat.completions.create(model="x", messages=ASK, temperature=0, max_tokens=8, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant" and all(c.choices[0].delta.role is None for c in chunks[1:])
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def read_to_end(connection):
    seen = b""
    while True:
        more = connection.recv(65536)
        if not more:
            return seen
        seen += more


def check_error_event(seen):
    """The bytes of a stream that failed after its headers: every line is SSE, the last event is the error, and it is cut."""
    head, _, rest = seen.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head, head
    body = b""
    while True:  # chunks of HTTP
        size, _, after = rest.partition(b"\r\n")
        if not size:
            break
        assert int(size, 16) > 0, "the failed stream ended as if it were whole"
        body += after[:int(size, 16)]
        rest = after[int(size, 16) + 2:]
    lines = [line for line in body.decode().split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: {") for line in lines), lines[-3:]
    events = [json.loads(line[6:]) for line in lines]
    assert not any("error" in e for e in events[:-1])
    assert set(events[-1]) == {"error"} and {"message", "type", "param", "code"} <= set(events[-1]["error"]), events[-1]
    return events, events[-1]["error"]


def stop_hard(s):
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    s.process.send_signal(signal.SIGTERM)


def check_S8_cut_while_it_runs_or_waits():
    """A server that must stop: streams that run, that wait, and the official client each hear of it."""
    with Server("--context", "1024", "--parallel", "3", "--keep-alive", "1") as s:
        bodies = [(CHAT, {"messages": ASK} | LONG), (COMPLETIONS, {"prompt": "One"} | LONG)]
        streams = [s.open_stream(path, body) for path, body in bodies]
        raised = []

        def official():
            client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=60)
            try:
                for _ in client.chat.completions.create(model="x", messages=ASK, stream=True, max_tokens=900,
                                                        extra_body={"ignore_eos": True}):
                    pass
                raised.append("nothing")
            except openai.APIError as error:
                raised.append(error)

        thread = threading.Thread(target=official)
        thread.start()
        assert s.wait_running(3) is not None
        streams.append(s.open_stream(CHAT, {"messages": ASK} | LONG))  # waits
        seen = b""
        while b": keep-alive" not in seen:
            seen += streams[2].recv(4096)
        stop_hard(s)
        for i, connection in enumerate(streams):
            events, error = check_error_event((seen if i == 2 else b"") + read_to_end(connection))
            assert error["type"] == "server_error" and error["message"] == "the server is stopping", error
            assert i == 2 or len(events) > 2, events  # it had begun
        thread.join(30)
        assert len(raised) == 1 and isinstance(raised[0], openai.APIError), raised
        assert "the server is stopping" in str(raised[0]), raised
        assert s.process.wait(10) == 0


def check_S8_model_that_fails():
    """A model whose output is not a number: found when the first token is drawn, after the headers of a stream."""
    with tempfile.TemporaryDirectory() as folder:
        broken = pathlib.Path(folder) / "broken.gguf"
        shutil.copyfile(model_file("SmolLM2-135M-Instruct.Q4_1.gguf"), broken)
        norm = next(t for t in gguf.GGUFReader(broken).tensors if t.name == "output_norm.weight")
        with open(broken, "r+b") as file:
            file.seek(norm.data_offset)
            file.write(struct.pack("<f", math.nan))
        with Server("--model", str(broken), "--context", "256", "--parallel", "2") as s:
            for path in ENDPOINTS:
                status, headers, answer = s.ask(path, body_for(path))
                assert status == 500 and headers["x-should-retry"] == "false", (status, headers, answer)
                assert answer["error"]["type"] == "server_error" and answer["error"]["message"], answer
                connection = s.open_stream(path, body_for(path, stream=True))
                _, error = check_error_event(read_to_end(connection))
                assert error == answer["error"], (error, answer)
            s.check_idle()


def check_S8_grammar_that_fails_midway(s):
    """A source that passes, and whose steps then need more than is allowed."""
    source = {"type": "grammar", "syntax": "regex", "definition": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}
    for path in ENDPOINTS:
        body = body_for(path, max_tokens=200, stream=True, response_format=source)
        with s.open_stream(path, body) as connection:
            connection.settimeout(60)
            head = connection.recv(12)
            if head.startswith(b"HTTP/1.1 400"):  # seen before anything was sent: better still
                continue
            events, error = check_error_event(head + read_to_end(connection))
        assert len(events) > 3 and error["message"] and error["type"], events
        status, _, answer = s.ask(path, body | {"stream": False})
        assert status == 400 and answer["error"]["param"] == "response_format", (status, answer)
    s.check_idle()


def check_S9_refused_before_the_stream(s):
    wrong = ({"n": 0}, {"n": -1}, {"temperature": 9}, {"stop": [""]}, {"max_tokens": "x"}, {"logit_bias": {"a": 1}},
             {"response_format": {"type": "grammar", "syntax": "regex", "definition": "("}})
    for path in ENDPOINTS:
        for fields in wrong:
            data = json.dumps(body_for(path, stream=True) | fields).encode()
            status, headers, body = s.raw(b"POST %s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data))
            assert status == 400 and headers["Content-Type"] == "application/json", (fields, status, headers)
            assert int(headers["Content-Length"]) == len(body) and headers["Transfer-Encoding"] is None
            assert json.loads(body)["error"]["param"].startswith(next(iter(fields))), body
    prompt = body_for(COMPLETIONS, prompt=[5] * 1025, stream=True)
    status, headers, answer = s.ask(COMPLETIONS, prompt)
    assert status == 400 and headers["Content-Type"] == "application/json" and answer["error"]["code"] == "context_length_exceeded"


def main():
    with Server("--context", "1024", "--parallel", "8") as s:
        shared = [check_S1_characters_over_tokens, check_S1_free_answer, check_S1_choices_apart, check_S2_cut_in_a_character,
                  check_S3_stop_over_tokens, check_S3_what_only_began_is_given_out, check_S3_nothing_is_held_back_for_its_length,
                  check_S6_usage_off, check_S6_usage_on, check_S7_shape_of_chunks, check_S7_official_client,
                  check_S8_grammar_that_fails_midway, check_S9_refused_before_the_stream]
        run_checks([(check, s) for check in shared] + [(check_S8_cut_while_it_runs_or_waits,), (check_S8_model_that_fails,)])


if __name__ == "__main__":
    main()
