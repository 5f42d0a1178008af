# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases T7 to T10: text as it comes in and goes out."""
import json
import pathlib
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import (CHAT, COMPLETIONS, ENDPOINTS, Templated, body_for, prompt_text, schema_format, text_of,  # noqa: E402
                           tokens_of, user)
from support_server import Server, run_checks  # noqa: E402

API_MD = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "API.md"
BOS = 2  # Gemma's


def prompt_tokens(s, path, body):
    status, _, answer = s.ask(path, body | {"max_tokens": 1})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens"]


def check_T7_template_and_add_bos(gemma):
    """The template writes a begin token, and the tokenizer would put one before every text: one of them is enough."""
    answer = [{"role": "assistant", "content": "b"}]
    conversations = [user("hi"), [{"role": "system", "content": "s"}] + user("hi"), user("a") + answer + user("c"), user("a") + answer]
    for messages in conversations:
        tokens = tokens_of(gemma, messages=messages)
        assert tokens[0] == BOS and tokens.count(BOS) == 1, tokens
        assert prompt_text(gemma, messages).count("<bos>") == 1
        assert prompt_tokens(gemma, CHAT, {"messages": messages}) == len(tokens)
    assert tokens_of(gemma, messages=user("<bos>hi")).count(BOS) == 1  # content is text, whatever it says


def check_T7_raw_text(gemma, plain):
    bare = tokens_of(gemma, prompt="hi", add_special=False)
    assert BOS not in bare and tokens_of(gemma, prompt="hi") == [BOS] + bare
    assert prompt_tokens(gemma, COMPLETIONS, {"prompt": "hi"}) == 1 + len(bare)
    assert prompt_tokens(gemma, COMPLETIONS, {"prompt": ["hi"]}) == 1 + len(bare)
    assert prompt_tokens(gemma, COMPLETIONS, {"prompt": [BOS] + bare}) == 1 + len(bare)  # tokens are taken as they are
    assert prompt_tokens(gemma, COMPLETIONS, {"prompt": bare}) == len(bare)
    text = text_of(gemma.ask(COMPLETIONS, body_for(COMPLETIONS, prompt="hi", max_tokens=4)))
    assert text == text_of(gemma.ask(COMPLETIONS, body_for(COMPLETIONS, prompt=[BOS] + bare, max_tokens=4)))
    # SmolLM2 has none in front; names of control tokens are text unless asked for.
    assert prompt_tokens(plain, COMPLETIONS, {"prompt": "hi"}) == 1 and len(tokens_of(plain, prompt="hi")) == 1
    assert prompt_tokens(plain, COMPLETIONS, {"prompt": "<|im_end|>"}) > 1
    assert prompt_tokens(plain, COMPLETIONS, {"prompt": "<|im_end|>", "parse_special": True}) == 1


def check_T7_rendered_by_the_client(gemma):
    """A client that renders the template itself sends its begin token as text: still exactly one."""
    rendered = prompt_text(gemma, user("hi"))
    assert rendered.startswith("<bos>"), rendered
    tokens = tokens_of(gemma, prompt=rendered, parse_special=True)
    assert tokens == tokens_of(gemma, messages=user("hi")), tokens
    assert prompt_tokens(gemma, COMPLETIONS, {"prompt": rendered, "parse_special": True}) == len(tokens)


def check_T8_bytes_that_are_no_utf8(s):
    wrong = (b"\xc4\xe3", b"\xc4\xe3\xba\xc3", b"caf\xe9", b"\x80", b"\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\xbd\xed\xb8\x80",
             b"\xf4\x90\x80\x80", b"\xf0\x9f\x98", b"\xe6\x97")
    for bad in wrong:
        for path, body in ((CHAT, b'{"messages":[{"role":"user","content":"a%s"}]}'), (COMPLETIONS, b'{"prompt":"a%s"}'),
                           (CHAT, b'{"messages":[{"role":"user","content":"a"}],"%s":1}'),
                           (COMPLETIONS, b'{"prompt":"a","stop":"%s","stream":true}'),
                           ("/tokenize", b'{"prompt":"%s"}'), (CHAT, b'%s')):
            status, headers, answer = s.ask(path, body % bad)
            assert status == 400 and headers["Content-Type"] == "application/json", (bad, path, status)
            assert "not valid UTF-8" in answer["error"]["message"], answer
    for encoding in ("utf-16", "utf-16-le", "utf-32", "gb18030"):
        body = json.dumps({"prompt": "你好", "max_tokens": 1}, ensure_ascii=False).encode(encoding)
        assert s.ask(COMPLETIONS, body)[0] == 400, encoding
    assert s.ask(CHAT, b'{"messages":[{"role":"user","content":"\xe4\xbd\xa0"}],"max_tokens":1}')[0] == 200
    s.check_idle()


def check_T9_lone_surrogates(s):
    for half in (rb"\ud83d", rb"\ude00", rb"\ud83dx", rb"x\ude00y", rb"\ud83d\ud83d", rb"\ude00\ud83d", rb"\ud83d\u0041", rb"\uDBFF"):
        for path, body in ((CHAT, b'{"messages":[{"role":"user","content":"%s"}]}'), (COMPLETIONS, b'{"prompt":"%s","stream":true}'),
                           (CHAT, b'{"messages":[{"role":"user","content":"a"}],"stop":"%s"}'), ("/tokenize", b'{"prompt":"%s"}')):
            status, _, answer = s.ask(path, body % half)
            assert status == 400 and answer["error"]["type"] == "invalid_request_error", (half, path, status, answer)
    assert s.ask("/tokenize", rb'{"prompt":"\ud83d\ude00"}')[2]["tokens"] == tokens_of(s, prompt="😀")
    assert s.ask(CHAT, rb'{"messages":[{"role":"user","content":"\ud83d\ude00"}],"max_tokens":1}')[0] == 200


def check_T9_documented():
    assert "surrogate" in API_MD.read_text(), "docs/API.md does not say what happens to half a surrogate pair"


def read(s, path, body):
    """The answer's bytes, of any status, which have to be UTF-8."""
    request = urllib.request.Request(s.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode("utf-8", "strict")


def check_T10_two_hundred_wild_answers(s):
    """What a small model says at temperature 2 is far from text; what the server says is JSON all the same."""
    odd = 0
    for i in range(8):
        path = ENDPOINTS[i % 2]
        body = body_for(path, temperature=2 - i % 3 / 4, top_k=100, n=25, max_tokens=24, seed=i, ignore_eos=i % 4 > 1)
        if i < 4:
            answer = json.loads(read(s, path, body))
            texts = [c["text"] if path == COMPLETIONS else c["message"]["content"] for c in answer["choices"]]
        else:
            lines = [line for line in read(s, path, body | {"stream": True, "logprobs": True if path == CHAT else 5}).split("\n") if line]
            assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
            texts = [""] * 25
            for line in lines[:-1]:
                for c in json.loads(line[6:])["choices"]:
                    texts[c["index"]] += c["text"] if path == COMPLETIONS else c["delta"].get("content", "")
        assert len(texts) == 25
        for text in texts:
            text.encode("utf-8", "strict")
            odd += not text.isascii()
    assert odd, "nothing but ASCII: this tested little"


def check_T10_errors_echo_no_raw_bytes(s):
    """Whatever a request holds, the answer that refuses it is JSON in UTF-8 without control characters."""
    nasty = "\x00\x01\x1b[31m\x7f\n\"\\\u202e\ud7ff\U0010ffff" + "é" * 200
    bodies = [{"messages": [{"role": nasty, "content": "x"}]}, {"messages": [{"role": "user", "content": [{"type": nasty}]}]},
              {"messages": user("x"), "stop": [nasty * 20]}, {"messages": user("x"), "response_format": {"type": nasty}},
              {"messages": user("x"), "logit_bias": {nasty: 1}}, {"messages": user("x"), "tool_choice": nasty}, {"messages": nasty},
              {"messages": user("x"), "model": 1, nasty: 2}, {"messages": user("x"), "temperature": nasty},
              {"messages": user("x"), "response_format": schema_format({"type": nasty})},
              {"messages": user("x"), "response_format": schema_format({"properties": {nasty: nasty}})},
              {"messages": user("x"), "response_format": schema_format({"type": "string", "pattern": "(" + nasty})},
              {"messages": user("x"), "response_format": {"type": "grammar", "syntax": "regex", "definition": "(" + nasty}},
              {"messages": user("x"), "response_format": {"type": "grammar", "syntax": "lark", "definition": nasty}}]
    broken = [b"{\xff\xfe\x00\x01}", b'{"a":"\x01"}', b'{"\xe2\x80\xae":}', b'{"a" 1}\x7f']
    raw = [b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
           for data in [json.dumps(body).encode() for body in bodies] + broken]
    raw += [b"GET /v1/models/%s HTTP/1.1\r\nHost: t\r\n\r\n" % name
            for name in (b"%FF%FE", b"%0d%0aX:%20y", b"%1b[31m", b"%E2%80%AE", b"%00", b"a" * 5000)]
    raw += [b"GET /%s HTTP/1.1\r\nHost: t\r\n\r\n" % name for name in (b"%ff%c3", b"%0a%0d", b"\xc4\xe3", b"%22%5c", "é".encode() * 200)]
    for sent in raw:
        status, headers, answer = s.raw(sent)
        assert 400 <= status < 500, (status, sent, answer)
        if headers["Content-Type"] != "application/json":  # what the library refuses itself: a page that is always the same
            assert b"\xc4\xe3" in sent and answer.isascii(), (sent, answer)
            continue
        text = answer.decode("utf-8", "strict")
        assert not any(ord(c) < 32 or ord(c) == 127 for c in text), (sent, text)
        assert json.loads(text)["error"]["message"], text
    assert not any("\x1b" in line or "\x01" in line for line in s.log), [line for line in s.log if "\x1b" in line]
    lines = [line for line in s.log if line.strip()]
    assert all(line[2] == line[5] == ":" for line in lines), [line for line in lines if line[2] != ":"]  # one message, one line
    assert s.ask("/health")[0] == 200


def main():
    with (Server("--context", "256", "--parallel", "32") as s,
          Templated("turns", "--model", "gemma3", "--context", "256", "--parallel", "2") as gemma):
        run_checks([(check_T7_template_and_add_bos, gemma), (check_T7_raw_text, gemma, s), (check_T7_rendered_by_the_client, gemma),
                    (check_T8_bytes_that_are_no_utf8, s), (check_T9_lone_surrogates, s), (check_T9_documented,),
                    (check_T10_two_hundred_wild_answers, s), (check_T10_errors_echo_no_raw_bytes, s)])


if __name__ == "__main__":
    main()
