# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""LangChain's ChatOpenAI."""
import asyncio
import json
import time
from typing import Literal, Optional

from support_clients import (ASK, CUT, FOREVER, KEY, MODEL, TELL, TOO_LONG, Full, all_checks, answered_once, answers_in_log, busy_server,
                             is_gone, is_running, key_server, middle_of, plain_server, raises, run_checks)

import openai
import pydantic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

LOOP = asyncio.Runner()  # one for all: LangChain keeps its connections for as long as the process lives


class Friend(pydantic.BaseModel):
    """A friend of the animal."""
    name: str = pydantic.Field(max_length=8)
    kind: Literal["dog", "cat"]


class Animal(pydantic.BaseModel):
    """An animal."""
    name: str = pydantic.Field(max_length=8, description="what it is called")
    age: int = pydantic.Field(ge=0, le=30)
    owner: Optional[Friend]
    friends: list[Friend] = pydantic.Field(max_length=1)


class Colour(pydantic.BaseModel):
    colour: str


def llm(server, **more):
    return ChatOpenAI(**({"base_url": server.url + "/v1", "api_key": "any", "model": MODEL, "temperature": 0, "max_tokens": 16,
                          "max_retries": 0, "timeout": 120} | more))


def forever(server, **more):
    return llm(server, max_tokens=FOREVER, extra_body={"ignore_eos": True}, **more)


def check_chat(s):
    a = llm(s).invoke(ASK)
    assert isinstance(a, AIMessage) and len(a.content) > 5 and a.response_metadata["model_name"] == MODEL, a
    assert a.response_metadata["finish_reason"] in ("stop", "length")
    used = a.usage_metadata
    assert 0 < used["output_tokens"] <= 16 and used["total_tokens"] == used["input_tokens"] + used["output_tokens"], used
    assert [b.content for b in llm(s).batch([ASK] * 3)] == [a.content] * 3
    talk = [SystemMessage("Answer in French."), HumanMessage("Name three colours.", name="Ann"), AIMessage("Rouge."),
            HumanMessage("Go on.")]
    assert llm(s).invoke(talk).content
    assert llm(s).invoke([HumanMessage([{"type": "text", "text": "Name three colours."}])]).content == a.content


def check_chat_async(s):
    async def both():
        return await asyncio.gather(llm(s).ainvoke(ASK), llm(s).ainvoke(ASK))
    assert {a.content for a in LOOP.run(both())} == {llm(s).invoke(ASK).content}


def check_stream(s):
    whole = llm(s).invoke(ASK)
    chunks = list(llm(s, stream_usage=True).stream(ASK))
    total = chunks[0]
    for c in chunks[1:]:
        total += c
    assert total.content == whole.content and len(chunks) > 4, total
    assert total.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert total.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]
    bare = list(llm(s, stream_usage=False).stream(ASK))
    assert "".join(c.content for c in bare) == whole.content and not any(c.usage_metadata for c in bare)

    async def read():
        return "".join([c.content async for c in llm(s).astream(ASK)])
    assert LOOP.run(read()) == whole.content


def check_stop(s):
    stop, cut = middle_of(llm(s).invoke(ASK).content)
    for model, given in ((llm(s), {"stop": [stop]}), (llm(s, stop=[stop]), {}), (llm(s).bind(stop=["never in here", stop]), {})):
        a = model.invoke(ASK, **given)
        assert a.content == cut and a.response_metadata["finish_reason"] == "stop", (a, cut)
        assert "".join(c.content for c in model.stream(ASK, **given)) == cut


def check_logprobs(s):
    model = llm(s, max_tokens=6, logprobs=True, top_logprobs=3)
    a = model.invoke(ASK)
    content = a.response_metadata["logprobs"]["content"]
    assert len(content) == a.usage_metadata["output_tokens"] and bytes(b for c in content for b in c["bytes"]).decode() == a.content
    assert all(len(c["top_logprobs"]) == 3 and c["top_logprobs"][0]["logprob"] == c["logprob"] <= 0 for c in content), content
    streamed = [c for chunk in model.stream(ASK) for c in (chunk.response_metadata.get("logprobs") or {}).get("content") or []]
    assert [(c["token"], c["logprob"]) for c in streamed] == [(c["token"], c["logprob"]) for c in content], streamed


def check_seed(s):
    texts = []
    for seed in (7, 8, 9):
        model = llm(s, temperature=1, seed=seed, max_tokens=16)
        first = model.invoke(TELL).content
        assert model.invoke(TELL).content == first
        texts.append(first)
    assert len(set(texts)) == 3, texts


def check_n(s):
    asked = {"temperature": 1, "seed": 5, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    one = llm(s, **asked).invoke(TELL).usage_metadata["input_tokens"]
    for n in (2, 3):
        result = llm(s, n=n, **asked).generate([[HumanMessage(TELL[0]["content"])]])
        texts = [g.text for g in result.generations[0]]
        assert len(texts) == n == len(set(texts)), texts
        used = result.llm_output["token_usage"]
        assert used["prompt_tokens"] == one and used["completion_tokens"] == 12 * n, used
        again = llm(s, n=n, **asked).generate([[HumanMessage(TELL[0]["content"])]])
        assert [g.text for g in again.generations[0]] == texts


def check_schema_json_schema(s):
    for seed, strict in enumerate((True, False, True)):
        model = llm(s, temperature=seed / 2, seed=seed, max_tokens=400)
        got = model.with_structured_output(Animal, method="json_schema", strict=strict).invoke(CUT)
        assert isinstance(got, Animal), got
    raw = llm(s, max_tokens=400).with_structured_output(Animal, method="json_schema", include_raw=True).invoke(CUT)
    assert raw["parsing_error"] is None and isinstance(raw["parsed"], Animal), raw


def check_schema_plain_dict(s):
    schema = {"title": "colour", "type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "dark": {"type": "boolean"}},
              "required": ["colour", "dark"], "additionalProperties": False}
    got = llm(s, max_tokens=100).with_structured_output(schema, method="json_schema").invoke(ASK)
    assert set(got) == {"colour", "dark"} and got["colour"] in ("red", "green") and isinstance(got["dark"], bool), got


def check_schema_stream(s):
    parts = list(llm(s, max_tokens=400).with_structured_output(Animal, method="json_schema").stream(CUT))
    assert isinstance(parts[-1], Animal), parts


def check_schema_json_mode(s):
    ask = [{"role": "user", "content": 'Answer with the JSON object {"colour": "red"} and nothing else.'}]
    got = llm(s, max_tokens=300).with_structured_output(None, method="json_mode", include_raw=True).invoke(ask)
    assert got["parsing_error"] is None and isinstance(got["parsed"], dict), got
    assert isinstance(json.loads(got["raw"].content), dict)


def check_errors_wrong_field(s):
    for more, param in (({"temperature": 1.0, "top_p": 3}, "top_p"), ({"extra_body": {"min_p": -1}}, "min_p"),
                        ({"frequency_penalty": 5}, "frequency_penalty")):
        error = raises(openai.BadRequestError, lambda: llm(s, max_retries=3, **more).invoke(ASK))
        assert error.param == param and error.status_code == 400 and "code" in error.body, error.body
    with answered_once(s, 400):
        raises(openai.BadRequestError, lambda: llm(s, max_retries=3, extra_body={"min_p": -1}).invoke(ASK))


def check_errors_too_long(s):
    for call in (lambda: llm(s).invoke(TOO_LONG), lambda: list(llm(s).stream(TOO_LONG))):
        error = raises(openai.BadRequestError, call)
        assert error.code == "context_length_exceeded", error.body
        assert isinstance(error, ContextOverflowError), type(error)  # LangChain has recognised it


def check_errors_key():
    with key_server() as keyed:
        assert llm(keyed, api_key=KEY).invoke(ASK).content
        for call in (lambda: llm(keyed, api_key="sk-wrong", max_retries=2).invoke(ASK),
                     lambda: list(llm(keyed, api_key="sk-wrong").stream(ASK))):
            error = raises(openai.AuthenticationError, call)
            assert error.code == "invalid_api_key", error.body


def check_errors_queue_full():
    with busy_server() as busy, Full(busy) as full:
        error = raises(openai.RateLimitError, lambda: llm(busy).invoke(ASK))
        assert error.code == "queue_full" and float(error.response.headers["retry-after"]) >= 1, error.body
        before = answers_in_log(busy, "429|gone")
        full.free_after(2.3)
        begun = time.monotonic()
        assert llm(busy, max_retries=6).invoke(ASK).content
        took = time.monotonic() - begun
        assert took >= 2, took
        time.sleep(0.2)
        assert 2 <= answers_in_log(busy, "429|gone") - before <= 4


def check_timeouts(s):
    begun = time.monotonic()
    raises(openai.APITimeoutError, lambda: forever(s, timeout=0.5).invoke(ASK))
    assert 0.4 < time.monotonic() - begun < 3
    is_gone(s)


def check_abort_stream(s):
    stream = forever(s).stream(ASK)
    for _, _ in zip(range(4), stream):
        pass
    is_running(s)
    stream.close()
    is_gone(s)


def check_abort_task(s):
    async def ask_and_leave():
        task = asyncio.create_task(forever(s).ainvoke(ASK))
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
