# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The official openai client for Python."""
import asyncio
import enum
import threading
import time
from typing import Literal, Optional

from support_clients import (ASK, CUT, FOREVER, KEY, MODEL, TELL, TOO_LONG, Full, all_checks, answered_once, answers_in_log, busy_server,
                             is_gone, is_running, key_server, middle_of, plain_server, raises, run_checks)

import openai
import pydantic
import pydantic_core

LONG = {"messages": ASK, "model": MODEL, "max_tokens": FOREVER, "extra_body": {"ignore_eos": True}}
GREEDY = {"messages": ASK, "model": MODEL, "max_tokens": 16, "temperature": 0}


class Kind(str, enum.Enum):
    dog = "dog"
    cat = "cat"


class Friend(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    kind: Kind


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=30)
    size: Literal["small", "large"]
    owner: Optional[Friend]
    friends: list[Friend] = pydantic.Field(max_length=1)


class Tree(pydantic.BaseModel):
    value: Literal[1, 2]
    left: Optional["Tree"]


def client_of(server, **more):
    return openai.OpenAI(**({"base_url": server.url + "/v1", "api_key": "any", "max_retries": 0, "timeout": 120} | more))


def async_client_of(server, **more):
    return openai.AsyncOpenAI(**({"base_url": server.url + "/v1", "api_key": "any", "max_retries": 0, "timeout": 120} | more))


def joined(chunks, index=0):
    return "".join(choice.delta.content or "" for c in chunks for choice in c.choices if choice.index == index)


def check_chat(s, client):
    a = client.chat.completions.create(**GREEDY)
    choice = a.choices[0]
    assert a.object == "chat.completion" and a.model == MODEL and a.id and abs(a.created - time.time()) < 60, a
    assert choice.index == 0 and choice.message.role == "assistant" and len(choice.message.content) > 5, choice
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None, choice
    assert 0 < a.usage.completion_tokens <= 16 and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens
    assert a._request_id == a.id, (a._request_id, a.id)  # the header x-request-id


def check_chat_messages(s, client):
    parts = [{"type": "text", "text": "Name three "}, {"type": "text", "text": "colours."}]
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    assert client.chat.completions.create(**GREEDY | {"messages": [{"role": "user", "content": parts}]}).choices[
        0].message.content == whole
    rule = "Answer in French."
    system, developer = (client.chat.completions.create(**GREEDY | {"messages": [{"role": role, "content": rule}, *ASK]})
                         for role in ("system", "developer"))
    assert system.choices[0].message.content == developer.choices[0].message.content != whole
    talk = [*ASK, {"role": "assistant", "content": None}, {"role": "user", "content": "Go on.", "name": "Ann"}]
    assert client.chat.completions.create(**GREEDY | {"messages": talk}).choices[0].message.content


def check_chat_async(s, client):
    async def all_of_them():
        async with async_client_of(s) as c:
            return await asyncio.gather(*(c.chat.completions.create(**GREEDY) for _ in range(5)))
    texts = {a.choices[0].message.content for a in asyncio.run(all_of_them())}
    assert texts == {client.chat.completions.create(**GREEDY).choices[0].message.content}, texts


def check_chat_legacy_completions(s, client):
    a = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0)
    assert a.object == "text_completion" and len(a.choices) == 1 and a.choices[0].text and a.usage.completion_tokens <= 8, a
    chunks = list(client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == a.choices[0].text
    two = client.completions.create(model=MODEL, prompt=["One, two, three,", "Red, green,"], max_tokens=8, temperature=0)
    assert [c.index for c in two.choices] == [0, 1] and two.choices[0].text == a.choices[0].text != two.choices[1].text, two


def check_stream(s, client):
    whole = client.chat.completions.create(**GREEDY)
    chunks = list(client.chat.completions.create(**GREEDY, stream=True))
    assert joined(chunks) == whole.choices[0].message.content, (joined(chunks), whole)
    assert all(c.object == "chat.completion.chunk" and c.model == MODEL and c.usage is None for c in chunks)
    assert len({c.id for c in chunks}) == 1
    assert [c.choices[0].delta.role for c in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    assert len(chunks) > 4, len(chunks)  # it does come in pieces


def check_stream_usage(s, client):
    whole = client.chat.completions.create(**GREEDY)
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert all(c.usage is None and len(c.choices) == 1 for c in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def check_stream_events(s, client):
    stop, _ = middle_of(client.chat.completions.create(**GREEDY).choices[0].message.content)
    whole = client.chat.completions.create(**GREEDY, stop=stop)  # the client takes an end by length for an error here
    with client.chat.completions.stream(**GREEDY, stop=stop, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage.total_tokens == whole.usage.total_tokens


def check_stream_async(s, client):
    async def read():
        async with async_client_of(s) as c:
            return [chunk async for chunk in await c.chat.completions.create(**GREEDY, stream=True)]
    assert joined(asyncio.run(read())) == client.chat.completions.create(**GREEDY).choices[0].message.content


def check_stop(s, client):
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    stop, cut = middle_of(whole)
    for given in (stop, [stop], ["never in here", stop]):
        a = client.chat.completions.create(**GREEDY, stop=given)
        assert a.choices[0].message.content == cut and a.choices[0].finish_reason == "stop", (a, cut)
    chunks = list(client.chat.completions.create(**GREEDY, stop=[stop], stream=True))
    assert joined(chunks) == cut and chunks[-1].choices[0].finish_reason == "stop", (joined(chunks), cut)


def check_logprobs(s, client):
    asked = GREEDY | {"max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    a = client.chat.completions.create(**asked)
    content = a.choices[0].logprobs.content
    assert len(content) == a.usage.completion_tokens
    assert bytes(b for c in content for b in c.bytes).decode() == a.choices[0].message.content
    for c in content:
        tops = [t.logprob for t in c.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and c.logprob == tops[0] <= 0, c
    chunks = list(client.chat.completions.create(**asked, stream=True))
    streamed = [c for chunk in chunks if chunk.choices[0].logprobs for c in chunk.choices[0].logprobs.content]
    assert [(c.token, c.logprob, len(c.top_logprobs)) for c in streamed] == [(c.token, c.logprob, 3) for c in content]
    bare = client.chat.completions.create(**GREEDY | {"max_tokens": 2}, logprobs=True).choices[0].logprobs.content
    assert [c.top_logprobs for c in bare] == [[]] * len(bare), bare


def check_logprobs_legacy(s, client):
    a = client.completions.create(model=MODEL, prompt="One, two,", max_tokens=3, temperature=0, logprobs=2).choices[0]
    p = a.logprobs
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset) == 3, p
    assert "".join(p.tokens) == a.text and all(1 <= len(t) <= 2 for t in p.top_logprobs), p


def check_seed(s, client):
    asked = {"messages": TELL, "model": MODEL, "max_tokens": 16, "temperature": 1}
    texts = {seed: [client.chat.completions.create(**asked, seed=seed).choices[0].message.content for _ in range(2)]
             for seed in (7, 8, 9)}
    assert all(first == second for first, second in texts.values()), texts
    assert len({first for first, _ in texts.values()}) == 3, texts
    drawn = {client.chat.completions.create(**asked).choices[0].message.content for _ in range(3)}
    assert len(drawn) > 1, drawn


def check_n(s, client):
    asked = {"messages": TELL, "model": MODEL, "max_tokens": 12, "temperature": 1, "seed": 5, "extra_body": {"ignore_eos": True}}
    one = client.chat.completions.create(**asked)
    for n in (2, 3):
        a = client.chat.completions.create(**asked, n=n)
        assert [c.index for c in a.choices] == list(range(n)), a
        texts = [c.message.content for c in a.choices]
        assert len(set(texts)) == n, texts
        assert a.usage.prompt_tokens == one.usage.prompt_tokens and a.usage.completion_tokens == 12 * n, a.usage
        again = client.chat.completions.create(**asked, n=n)
        assert [c.message.content for c in again.choices] == texts, "the same seed, other answers"
        chunks = list(client.chat.completions.create(**asked, n=n, stream=True, stream_options={"include_usage": True}))
        assert [joined(chunks, i) for i in range(n)] == texts, (texts, [joined(chunks, i) for i in range(n)])
        last = [(c.index, c.finish_reason) for chunk in chunks for c in chunk.choices if c.finish_reason]
        assert sorted(last) == [(i, "length") for i in range(n)], last
        roles = [c.index for chunk in chunks for c in chunk.choices if c.delta.role]
        assert sorted(roles) == list(range(n)), roles
        assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1) and chunks[-1].usage == a.usage, chunks[-1]
        assert len({c.id for c in chunks}) == 1


def check_n_greedy_and_logprobs(s, client):
    a = client.chat.completions.create(**GREEDY | {"max_tokens": 6}, n=3, logprobs=True, top_logprobs=2)
    assert len({c.message.content for c in a.choices}) == 1, a
    for c in a.choices:
        assert bytes(b for t in c.logprobs.content for b in t.bytes).decode() == c.message.content
    stop, cut = middle_of(client.chat.completions.create(**GREEDY).choices[0].message.content)
    a = client.chat.completions.create(**GREEDY, n=2, stop=stop)
    assert [(c.message.content, c.finish_reason) for c in a.choices] == [(cut, "stop")] * 2, (a, cut)


def check_n_legacy(s, client):
    a = client.completions.create(model=MODEL, prompt=["One,", "Red,"], n=2, max_tokens=6, temperature=1, seed=3)
    assert [c.index for c in a.choices] == [0, 1, 2, 3], a
    chunks = list(client.completions.create(model=MODEL, prompt="One,", n=2, max_tokens=6, temperature=1, seed=3, stream=True))
    texts = ["".join(c.text for chunk in chunks for c in chunk.choices if c.index == i) for i in range(2)]
    b = client.completions.create(model=MODEL, prompt="One,", n=2, max_tokens=6, temperature=1, seed=3)
    assert [c.text for c in b.choices] == texts, (b, texts)


def check_schema_parse(s, client):
    for seed in range(4):
        a = client.chat.completions.parse(model=MODEL, messages=CUT, response_format=Animal, temperature=seed / 3, seed=seed,
                                          max_tokens=400)
        assert isinstance(a.choices[0].message.parsed, Animal) and a.choices[0].finish_reason == "stop", a
    a = client.chat.completions.parse(model=MODEL, messages=CUT, response_format=Animal, temperature=1, seed=2, max_tokens=400, n=2)
    assert all(isinstance(c.message.parsed, Animal) for c in a.choices), a


def check_schema_recursive(s, client):
    ask = [{"role": "user", "content": 'Answer with {"value": 1, "left": {"value": 2, "left": null}} and nothing else.'}]
    for seed in range(3):
        a = client.chat.completions.parse(model=MODEL, messages=ask, response_format=Tree, temperature=seed / 5, seed=seed, max_tokens=200)
        assert isinstance(a.choices[0].message.parsed, Tree), a


def check_schema_stream(s, client):
    asked = {"model": MODEL, "messages": CUT, "temperature": 0, "max_tokens": 400}
    whole = client.chat.completions.parse(**asked, response_format=Animal).choices[0].message
    with client.chat.completions.stream(**asked, response_format=Animal) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert isinstance(message.parsed, Animal) and message.content == whole.content, (message, whole)


def check_schema_json_object(s, client):
    """A warm model may never come to an end; then the text is at least the begin of a JSON object."""
    ask = [{"role": "user", "content": 'Answer with the JSON object {"colour": "red"} and nothing else.'}]
    for seed in range(3):
        choice = client.chat.completions.create(model=MODEL, messages=ask, response_format={"type": "json_object"}, seed=seed,
                                                temperature=seed / 3, max_tokens=120).choices[0]
        partial = "trailing-strings" if choice.finish_reason == "length" and seed else False
        assert isinstance(pydantic_core.from_json(choice.message.content, allow_partial=partial), dict), choice


def check_schema_refused(s, client):
    bad = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {"type": "no such type"}}}
    error = raises(openai.BadRequestError, lambda: client.chat.completions.create(**GREEDY, response_format=bad))
    assert error.param and error.param.startswith("response_format") and error.type == "invalid_request_error", error.body
    error = raises(openai.BadRequestError, lambda: client.chat.completions.create(**GREEDY, response_format={"type": "yaml"}))
    assert error.param and error.param.startswith("response_format"), error.body


def check_errors_wrong_field(s, client):
    patient = client.with_options(max_retries=3)
    for bad, param in (({"temperature": 9}, "temperature"), ({"n": 0}, "n"), ({"stop": [""]}, "stop"), ({"seed": "42"}, "seed"),
                       ({"top_logprobs": 3}, "top_logprobs"), ({"max_tokens": -2}, "max_tokens"), ({"messages": []}, "messages"),
                       ({"stream": "yes"}, "stream")):
        error = raises(openai.BadRequestError, lambda: patient.chat.completions.create(**GREEDY | bad))
        assert error.status_code == 400 and error.param == param and error.type == "invalid_request_error", (bad, error.body)
        assert set(error.body) >= {"message", "type", "param", "code"} and error.request_id, error.body
    with answered_once(s, 400):
        raises(openai.BadRequestError, lambda: patient.chat.completions.create(**GREEDY | {"temperature": 9}))


def check_errors_too_long(s, client):
    for stream in (False, True):
        error = raises(openai.BadRequestError,
                       lambda: client.chat.completions.create(**GREEDY | {"messages": TOO_LONG}, stream=stream))
        assert error.code == "context_length_exceeded" and "2048" in error.message, error.body


def check_errors_not_found(s, client):
    assert [m.id for m in client.models.list()] == [MODEL] and client.models.retrieve(MODEL).object == "model"
    error = raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-9"))
    assert error.code == "model_not_found" and error.status_code == 404, error.body
    raises(openai.NotFoundError, lambda: client.get("/nothing", cast_to=object))


def check_errors_key():
    with key_server() as keyed:
        assert client_of(keyed, api_key=KEY).chat.completions.create(**GREEDY).choices[0].message.content
        assert client_of(keyed, api_key=KEY).models.retrieve(MODEL).id == MODEL
        without = {"extra_headers": {"Authorization": openai.Omit()}}
        for key, more in (("sk-wrong", {}), (KEY[:-1], {}), (KEY + "x", {}), (KEY, without)):
            c = client_of(keyed, max_retries=2, api_key=key)
            for call in (lambda: c.chat.completions.create(**GREEDY, **more),
                         lambda: c.chat.completions.create(**GREEDY, stream=True, **more), lambda: c.models.list(**more)):
                error = raises(openai.AuthenticationError, call)
                assert error.code == "invalid_api_key" and error.status_code == 401, error.body
                assert KEY not in str(error.body), error.body


def check_errors_queue_full():
    with busy_server() as busy:
        with Full(busy) as full:
            refused = "429|gone"  # before it tries again, the client closes the connection without reading the body
            before = answers_in_log(busy, refused)
            error = raises(openai.RateLimitError, lambda: client_of(busy).chat.completions.create(**GREEDY))
            assert error.code == "queue_full" and float(error.response.headers["retry-after"]) >= 1, error.body
            full.free_after(2.3)
            begun = time.monotonic()
            a = client_of(busy, max_retries=6).chat.completions.create(**GREEDY)
            took = time.monotonic() - begun
            assert a.choices[0].message.content and took >= 2, took  # two waits of a second or two, as the server had said
            time.sleep(0.2)
            assert 2 <= answers_in_log(busy, refused) - before <= 4, "not as many tries as Retry-After asks for"


def check_timeouts(s, client):
    begun = time.monotonic()
    raises(openai.APITimeoutError, lambda: client.with_options(timeout=0.5).chat.completions.create(**LONG))
    assert 0.4 < time.monotonic() - begun < 3
    is_gone(s)


def check_timeouts_stream_that_waits():
    """Comments hold a client that is patient for 2.5 s between two pieces while it waits for longer."""
    with busy_server() as busy:
        with Full(busy) as full:
            full.connections.pop().close()  # only the first runs on
            begun = time.monotonic()
            while busy.ask("/health")[2]["queued"]:
                assert time.monotonic() - begun < 5
                time.sleep(0.01)
            full.free_after(4)
            begun = time.monotonic()
            chunks = list(client_of(busy, timeout=2.5).chat.completions.create(**GREEDY, stream=True))
            assert joined(chunks) and chunks[-1].choices[0].finish_reason, chunks
            assert time.monotonic() - begun > 3, "it did not wait"


def check_abort_stream(s, client):
    stream = client.chat.completions.create(**LONG, stream=True)
    for _, _ in zip(range(4), stream):
        pass
    is_running(s)
    stream.close()
    is_gone(s)
    with client.chat.completions.create(**LONG, stream=True, n=3) as stream:
        next(iter(stream))
    is_gone(s)


def check_abort_task(s, client):
    async def ask_and_leave():
        async with async_client_of(s) as c:
            task = asyncio.create_task(c.chat.completions.create(**LONG))
            await asyncio.to_thread(is_running, s)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return
            raise AssertionError("not cancelled")
    asyncio.run(ask_and_leave())
    is_gone(s)


def check_abort_company(s, client):
    """One that leaves does not disturb another."""
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    result = []
    stream = client.chat.completions.create(**LONG, stream=True)
    next(iter(stream))
    other = threading.Thread(target=lambda: result.append(client.chat.completions.create(**GREEDY)))
    other.start()
    stream.close()
    other.join(60)
    assert result and result[0].choices[0].message.content == whole
    is_gone(s)


def main():
    with plain_server() as s, client_of(s) as client:
        run_checks(all_checks(globals(), s, client))


if __name__ == "__main__":
    main()
