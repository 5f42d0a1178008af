# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""LiteLLM, with the server as an OpenAI-compatible one."""
import asyncio
import json
import time
from typing import Literal, Optional

from support_clients import (ASK, CUT, FOREVER, KEY, MODEL, TELL, TOO_LONG, Full, all_checks, answered_once, answers_in_log, busy_server,
                             is_gone, is_running, key_server, middle_of, plain_server, raises, run_checks)

import litellm
import pydantic

litellm.telemetry = False
litellm.suppress_debug_info = True
GREEDY = {"messages": ASK, "temperature": 0, "max_tokens": 16}
LONG = {"messages": ASK, "max_tokens": FOREVER, "extra_body": {"ignore_eos": True}}
LOOP = asyncio.Runner()  # one for all: its connections are kept for as long as the process lives


class Friend(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    kind: Literal["dog", "cat"]


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=30)
    owner: Optional[Friend]
    friends: list[Friend] = pydantic.Field(max_length=1)


def where(server, **more):
    return {"model": "openai/" + MODEL, "api_base": server.url + "/v1", "api_key": "any", "timeout": 120, "max_retries": 0} | more


def ask(server, body=GREEDY, **more):
    return litellm.completion(**where(server) | body | more)


def joined(chunks, index=0):
    return "".join(choice.delta.content or "" for c in chunks for choice in c.choices if choice.index == index)


def text_of(answer):
    return answer.choices[0].message.content


def check_chat(s):
    a = ask(s)
    assert a.choices[0].message.role == "assistant" and len(text_of(a)) > 5 and a.choices[0].finish_reason in ("stop", "length"), a
    assert 0 < a.usage.completion_tokens <= 16 and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens, a.usage

    async def both():
        return await asyncio.gather(*(litellm.acompletion(**where(s) | GREEDY) for _ in range(3)))
    assert {text_of(b) for b in LOOP.run(both())} == {text_of(a)}
    parts = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert text_of(ask(s, messages=parts))


def check_chat_legacy_completions(s):
    a = litellm.text_completion(**where(s, model="text-completion-openai/" + MODEL), prompt="One, two, three,", max_tokens=8, temperature=0)
    assert a.choices[0].text and a.usage.completion_tokens <= 8, a


def check_stream(s):
    whole = ask(s)
    chunks = list(ask(s, stream=True))
    assert joined(chunks) == text_of(whole) and len(chunks) > 4, (joined(chunks), whole)
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [whole.choices[0].finish_reason]
    chunks = list(ask(s, stream=True, stream_options={"include_usage": True}))
    used = [c.usage for c in chunks if getattr(c, "usage", None)]
    assert len(used) == 1 and used[0].completion_tokens == whole.usage.completion_tokens, used
    assert used[0].prompt_tokens == whole.usage.prompt_tokens
    assert text_of(litellm.stream_chunk_builder(chunks)) == text_of(whole)

    async def read():
        return [c async for c in await litellm.acompletion(**where(s) | GREEDY, stream=True)]
    assert joined(LOOP.run(read())) == text_of(whole)


def check_stop(s):
    stop, cut = middle_of(text_of(ask(s)))
    for given in (stop, [stop], ["never in here", stop]):
        a = ask(s, stop=given)
        assert text_of(a) == cut and a.choices[0].finish_reason == "stop", (a, cut)
        assert joined(list(ask(s, stop=given, stream=True))) == cut


def check_logprobs(s):
    a = ask(s, max_tokens=6, logprobs=True, top_logprobs=3)
    content = a.choices[0].logprobs.content
    assert len(content) == a.usage.completion_tokens and bytes(b for c in content for b in c.bytes).decode() == text_of(a)
    assert all(len(c.top_logprobs) == 3 and c.top_logprobs[0].logprob == c.logprob <= 0 for c in content), content


def check_seed(s):
    texts = []
    for seed in (7, 8, 9):
        first, second = (text_of(ask(s, messages=TELL, temperature=1, seed=seed, max_tokens=16)) for _ in range(2))
        assert first == second
        texts.append(first)
    assert len(set(texts)) == 3, texts


def check_n(s):
    asked = {"messages": TELL, "temperature": 1, "seed": 5, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    one = ask(s, asked)
    for n in (2, 3):
        a = ask(s, asked, n=n)
        texts = [c.message.content for c in a.choices]
        assert [c.index for c in a.choices] == list(range(n)) and len(set(texts)) == n, a
        assert a.usage.prompt_tokens == one.usage.prompt_tokens and a.usage.completion_tokens == 12 * n, a.usage


def check_schema_response_format(s):
    for seed in range(3):
        a = ask(s, messages=CUT, response_format=Animal, temperature=seed / 2, seed=seed, max_tokens=400)
        Animal.model_validate_json(text_of(a))
        assert a.choices[0].finish_reason == "stop", a
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": schema}}
    got = json.loads(text_of(ask(s, response_format=form)))
    assert got in ({"colour": "red"}, {"colour": "green"}), got
    Animal.model_validate_json(joined(list(ask(s, messages=CUT, response_format=Animal, max_tokens=400, stream=True))))


def check_schema_json_object(s):
    messages = [{"role": "user", "content": 'Answer with the JSON object {"colour": "red"} and nothing else.'}]
    a = ask(s, messages=messages, response_format={"type": "json_object"}, max_tokens=300)
    assert isinstance(json.loads(text_of(a)), dict), a


def check_errors_wrong_field(s):
    for bad, param in (({"temperature": 9}, "temperature"), ({"n": 0}, "n"), ({"presence_penalty": 5}, "presence_penalty")):
        error = raises(litellm.BadRequestError, lambda: ask(s, **bad))
        assert error.status_code == 400 and param in error.message, error
        assert not isinstance(error, litellm.ContextWindowExceededError)
    with answered_once(s, 400):
        raises(litellm.BadRequestError, lambda: ask(s, temperature=9, max_retries=2))


def check_errors_too_long(s):
    for stream in (False, True):
        raises(litellm.ContextWindowExceededError, lambda: ask(s, messages=TOO_LONG, stream=stream))


def check_errors_key():
    with key_server() as keyed:
        assert text_of(ask(keyed, api_key=KEY))
        for stream in (False, True):
            error = raises(litellm.AuthenticationError, lambda: ask(keyed, api_key="sk-wrong", stream=stream))
            assert error.status_code == 401, error


def check_errors_queue_full():
    with busy_server() as busy, Full(busy) as full:
        error = raises(litellm.RateLimitError, lambda: ask(busy))
        assert error.status_code == 429, error
        before = answers_in_log(busy, "429|gone")
        full.free_after(2.3)
        begun = time.monotonic()
        assert text_of(ask(busy, max_retries=6))
        took = time.monotonic() - begun
        assert took >= 2, took
        time.sleep(0.2)
        assert 2 <= answers_in_log(busy, "429|gone") - before <= 4


def check_timeouts(s):
    begun = time.monotonic()
    raises(litellm.Timeout, lambda: ask(s, LONG, timeout=0.5))
    assert 0.4 < time.monotonic() - begun < 3
    is_gone(s)


def check_abort_stream(s):
    async def read_and_leave():
        stream = await litellm.acompletion(**where(s) | LONG, stream=True)
        n = 0
        async for _ in stream:
            n += 1
            if n == 4:
                break
        await asyncio.to_thread(is_running, s)
        await stream.aclose()
    LOOP.run(read_and_leave())
    is_gone(s)


def check_abort_task(s):
    async def ask_and_leave():
        task = asyncio.create_task(litellm.acompletion(**where(s) | LONG))
        await asyncio.to_thread(is_running, s)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return
        raise AssertionError("not cancelled")
    LOOP.run(ask_and_leave())
    is_gone(s)


def main():
    with plain_server() as s:
        run_checks(all_checks(globals(), s))  # ends this process


if __name__ == "__main__":
    main()
