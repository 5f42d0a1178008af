# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The server through the official openai client and raw HTTP, with SmolLM2. Known cases are in check_cases_*.py."""
import json
import pathlib
import signal
import subprocess
import sys
import time

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"messages": ASK, "temperature": 0, "max_tokens": 24}


def text_of(answer):
    return answer[2]["choices"][0]["message"]["content"]


def check_models(s, client):
    listed = client.models.list().data
    assert [m.id for m in listed] == ["smollm2"], listed
    assert client.models.retrieve("smollm2").object == "model"
    try:
        client.models.retrieve("gpt-9")
        raise AssertionError("a model that is not there was found")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"


def check_chat(s, client):
    a = client.chat.completions.create(model="smollm2", messages=ASK, temperature=0, max_tokens=24)
    assert a.choices[0].message.role == "assistant" and len(a.choices[0].message.content) > 5
    assert a.usage.completion_tokens <= 24 and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens
    assert a.choices[0].finish_reason in ("stop", "length")


def check_logit_bias(s, client):
    first = s.ask(CHAT, GREEDY | {"max_tokens": 1, "logprobs": True})[2]["choices"][0]["logprobs"]["content"][0]["token"]
    ids = json.loads(subprocess.run([BINARY, "tokenize", "--json", first], env=ENVIRONMENT, capture_output=True, check=True).stdout)
    assert ids["count"] == 1, ids
    other = s.ask(CHAT, GREEDY | {"max_tokens": 1, "logit_bias": {str(ids["tokens"][0]["id"]): -100}})
    assert text_of(other) != first


def check_errors(s, client):
    for bad, kind in (({"temperature": 9}, "temperature"), ({"n": 129}, "n"), ({"stop": [""]}, "stop")):
        try:
            client.chat.completions.create(model="x", messages=ASK, **bad)
            raise AssertionError(f"{bad} was taken")
        except openai.BadRequestError as error:
            assert error.param == kind and error.type == "invalid_request_error", error
    assert s.ask(CHAT, b"{")[0] == 400
    status, headers, _ = s.ask(CHAT)
    assert status == 405 and headers["Allow"] == "POST, OPTIONS"
    assert s.ask("/v1/nothing")[0] == 404 and s.ask("/health", {})[0] == 405
    assert s.ask("/v1/chat/completions/", {})[0] == 404


def check_metrics_of_answers(s, client):
    a = s.ask(CHAT, GREEDY)[2]
    t = a["timings"]
    assert t["prefill_ms"] > 0 and t["decode_ms"] > 0 and t["preprocess_ms"] > 0 and t["queue_ms"] >= 0
    data, _ = s.events(CHAT, GREEDY | {"stream": True})
    assert json.loads(data[-2])["timings"]["decode_ms"] > 0


def check_drain():
    with Server("--context", "1024") as s:
        stream = s.open_stream(CHAT, {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 20})
        assert s.wait_running(1, 20) is not None
        s.process.send_signal(signal.SIGTERM)
        seen = b""
        while True:
            more = stream.recv(4096)
            if not more:
                break
            seen += more
            if b"data: [DONE]" in seen:
                break
        assert b"data: [DONE]" in seen and s.process.wait(10) == 0
    with Server("--context", "1024") as s:  # a second signal ends what runs, and says so in the stream
        stream = s.open_stream(CHAT, {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 900})
        assert s.wait_running(1, 20) is not None
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        begun = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(10) == 0 and time.monotonic() - begun < 3
        stream.close()


def check_port_in_use():
    with Server() as s:
        second = subprocess.run([BINARY, "serve", "--port", str(s.port)], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1 and f"port {s.port} of 127.0.0.1 is in use" in second.stderr, second


def check_curl_line():
    with Server() as s:
        assert s.curl.startswith(f"curl {s.url}/v1/chat/completions "), s.curl
        ran = subprocess.run(s.curl.replace("curl ", "curl -sS ", 1), shell=True, capture_output=True, text=True, timeout=300)
        assert json.loads(ran.stdout)["choices"][0]["message"]["content"], ran


def main():
    with Server("--context", "1024") as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=300)
        shared = [check_models, check_chat, check_logit_bias, check_errors, check_metrics_of_answers]
        run_checks([(check, s, client) for check in shared] + [(check,) for check in (check_drain, check_port_in_use, check_curl_line)])


if __name__ == "__main__":
    main()
