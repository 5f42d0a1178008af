# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Cases C1 to C9: messages and chat templates. What a template makes of messages is read back through /tokenize and compared with
jinja2's rendering or with a text written here."""
import copy
import json
import pathlib
import sys
import time

import jinja2
import jinja2.sandbox
import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support_cases import CHAT, COMPLETIONS, TEMPLATES, Templated, prompt_text, refused, text_both, text_of, tokens_of, user  # noqa: E402
from support_server import Server, run_checks  # noqa: E402

GREEDY = {"temperature": 0, "max_tokens": 12}
SMALL = ("--context", "1024", "--parallel", "4")
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
NO_SYSTEM = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}
{{- raise_exception('System role not supported') }}
{%- endif %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('""" + ALTERNATE + """') }}{% endif %}
{{- '<|im_start|>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + message['content'] | trim + '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"""
SYSTEM_FIRST = """{% for message in messages %}{% if message.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def jinja(name, messages, **more):
    """As the reference library renders it."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    template = env.from_string((TEMPLATES / f"{name}.jinja").read_text())
    return template.render(messages=messages, add_generation_prompt=True, bos_token="<|im_start|>", eos_token="<|im_end|>", **more)


def history(call=None, answer=None):
    """A question, a call of a tool, its result, a question. call: what the assistant's message holds besides its role."""
    function = {"name": "run", "arguments": '{"command":"date"}'}
    call = {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]} if call is None else call
    answer = {"tool_call_id": "c1"} if answer is None else answer
    called = [{"role": "assistant"} | call, {"role": "tool", "content": "Monday"} | answer]
    return user("What day is it?") + called + user("Thanks. And now?")


def with_arguments(arguments, present=True):
    messages = history()
    function = messages[1]["tool_calls"][0]["function"]
    if present:
        function["arguments"] = arguments
    else:
        del function["arguments"]
    return messages


def check_C1_absent_content(plain, tools):
    calls = history()[1]["tool_calls"]
    kinds = [history({"content": None, "tool_calls": calls}), history({"tool_calls": calls}), history({"content": "", "tool_calls": calls}),
             history({"content": [], "tool_calls": calls})]
    for s in (plain, tools):
        assert len({prompt_text(s, m) for m in kinds}) == 1
        answers = {text_both(s, CHAT, {"messages": m} | GREEDY) for m in kinds[:2]}
        assert len(answers) == 1, answers
    assert '<tool_call>\n{"name": "run", "arguments": {"command": "date"}}\n</tool_call>' in prompt_text(tools, kinds[1])
    for empty in ({}, {"content": None}, {"content": None, "tool_calls": None}):  # nothing but a role
        assert prompt_text(plain, history(empty)) == prompt_text(plain, history({"content": ""}))
    for role in ("user", "system", "tool"):  # an answer to nothing is a mistake
        refused(plain, CHAT, {"messages": [{"role": role, "content": None}]}, "messages[0].content")


def check_C2_null_ids(plain, tools, alternating):
    call = history()[1]["tool_calls"][0]
    without = {key: value for key, value in call.items() if key != "id"}
    for s in (plain, tools):
        wanted = prompt_text(s, history({"tool_calls": [without]}, {}))
        for made in (history({"tool_calls": [call | {"id": None}]}, {"tool_call_id": None}),
                     history({"tool_calls": [call | {"id": None}]}, {}), history(answer={"tool_call_id": None})):
            assert prompt_text(s, made) == wanted
            status, _, answer = s.ask(CHAT, {"messages": made} | GREEDY)
            assert status == 200, answer
    made = history({"tool_calls": [call | {"id": None}]}, {"tool_call_id": None})[:3]  # this template cannot do without
    refused(alternating, CHAT, {"messages": made + user("?")}, "messages")
    assert "c1" in prompt_text(alternating, history()[:3])


def check_C3_arguments_that_are_no_object(plain, tools):
    for s in (plain, tools):
        for arguments in ("{", '{"a":', "[1]", '"x"', "1", "nul", "{} {}", 7, ["a"], True):
            param = "messages[1].tool_calls[0].function.arguments"
            refused(s, CHAT, {"messages": with_arguments(arguments)}, param, "messages[1]")
    second = history()
    second[1]["tool_calls"].append(copy.deepcopy(second[1]["tool_calls"][0]))
    second[1]["tool_calls"][1]["function"]["arguments"] = "{"
    refused(plain, CHAT, {"messages": second}, "messages[1].tool_calls[1].function.arguments")
    time.sleep(0.3)  # the lines of what was asked so far
    asked = len(plain.log)
    client = openai.OpenAI(base_url=plain.url + "/v1", api_key="none", max_retries=2, timeout=60)
    try:
        client.chat.completions.create(model="x", messages=with_arguments("{"))
        raise AssertionError("it was taken")
    except openai.BadRequestError as error:
        assert error.param == "messages[1].tool_calls[0].function.arguments"
    for _ in range(50):
        if len(plain.log) > asked:
            break
        time.sleep(0.05)
    time.sleep(0.7)  # a client that tries again does so within half a second
    assert len(plain.log) == asked + 1, plain.log[asked:]


def check_C4_arguments_are_an_object_for_the_template(tools):
    kinds = {'{"command":"date"}': {"command": "date"}, ' {\n"command" : "date" } ': {"command": "date"}, "{}": {}, "": {},
             '{"b":1,"a":[true,null,{"x":"<y> & \\"z\\""}],"c":{}}': {"b": 1, "a": [True, None, {"x": '<y> & "z"'}], "c": {}},
             '{"n":-0.5,"big":9007199254740993,"tiny":1e-7,"third":0.1,"whole":2.0}':
                 {"n": -0.5, "big": 9007199254740993, "tiny": 1e-7, "third": 0.1, "whole": 2.0},
             '{"text":"日本語 😀 \\u00e9 \\\\ \\n"}': {"text": "日本語 😀 é \\ \n"}}
    for given, wanted in kinds.items():
        rendered = history()
        rendered[1] |= {"content": "", "tool_calls": [{"function": {"name": "run", "arguments": wanted}}]}
        assert prompt_text(tools, with_arguments(given)) == jinja("xml_tools", rendered), given
        assert prompt_text(tools, with_arguments(wanted)) == jinja("xml_tools", rendered), given
    rendered[1]["tool_calls"][0]["function"]["arguments"] = {}
    for made in (with_arguments(None), with_arguments(None, present=False)):
        assert prompt_text(tools, made) == jinja("xml_tools", rendered)
        assert tools.ask(CHAT, {"messages": made} | GREEDY)[0] == 200


def check_C5_roles_that_do_not_alternate(plain, alternating):
    system = [{"role": "system", "content": "Be short."}]
    named = [{"role": "user", "name": "planner", "content": "Hello"}, {"role": "user", "name": "coder", "content": "Write it."}]
    for messages in (system + named, named, system + user("a") + user("b") + user("c"),
                     system + [{"role": "assistant", "content": "a"}] + user("b")):
        refused(alternating, CHAT, {"messages": messages}, "messages", ALTERNATE)
    assert text_both(alternating, CHAT, {"messages": system + user("Hello")} | GREEDY)[1]
    assert plain.ask(CHAT, {"messages": system + named} | GREEDY)[0] == 200  # a template that does not mind
    assert prompt_text(plain, [m | {"name": None} for m in named]) == prompt_text(plain, named)


def check_C6_system_is_folded(no_system):
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Answer in French."}] + user("Capital of Italy?")
        folded = user("Answer in French.\n\nCapital of Italy?")
        more = [{"role": "assistant", "content": "Rome"}] + user("And of Spain?")
        for tail in ([], more):
            a, b = (no_system.ask(CHAT, {"messages": m + tail} | GREEDY) for m in (messages, folded))
            assert a[0] == 200 and a[2]["usage"]["prompt_tokens"] == b[2]["usage"]["prompt_tokens"], (a[2], b[2])
            assert text_of(a) == text_of(b)
            assert text_both(no_system, CHAT, {"messages": messages + tail} | GREEDY)[0] == text_of(a)
    system = [{"role": "system", "content": "Answer in French."}]
    for messages in (system, system + [{"role": "assistant", "content": "Oui"}], user("Hi") + system,
                     user("Hi") + [{"role": "assistant", "content": "Oui"}] + system):
        refused(no_system, CHAT, {"messages": messages}, "messages", "System role not supported")
    refused(no_system, CHAT, {"messages": system + user("a") + user("b")}, "messages")


def check_C6_tokenize_folds_too(no_system):
    system = [{"role": "system", "content": "Answer in French."}]
    assert tokens_of(no_system, messages=system + user("Capital?")) == tokens_of(no_system, messages=user("Answer in French.\n\nCapital?"))


def check_C7_system_in_the_middle(plain, system_first):
    late = user("Hi") + [{"role": "assistant", "content": "Hello"}, {"role": "system", "content": "Be short."}] + user("Why?")
    for role in ("system", "developer"):
        late[2]["role"] = role
        refused(system_first, CHAT, {"messages": late}, "messages", "System message must be at the beginning.")
    assert system_first.ask(CHAT, {"messages": late[2:3] + late[:2] + late[3:]} | GREEDY)[0] == 200
    assert "<|im_start|>system\nBe short.<|im_end|>" in prompt_text(plain, late)  # one that has nothing against it


def check_C8_developer_is_system(plain, tools, alternating):
    question = user("Capital of France?")
    text = [{"type": "text", "text": "Answer only "}, {"type": "text", "text": "BANANA"}]
    for s in (plain, tools, alternating):
        prompts = {prompt_text(s, [{"role": role, "content": content}] + question)
                   for role in ("developer", "system") for content in ("Answer only BANANA", text)}
        assert len(prompts) == 1 and "Answer only BANANA" in next(iter(prompts)), prompts
        answers = [text_both(s, CHAT, {"messages": [{"role": role, "content": "Answer only BANANA"}] + question} | GREEDY)
                   for role in ("developer", "system")]
        assert answers[0] == answers[1], answers


def continues(s, messages, expected):
    """The prompt is this text, and the answer what a completion of it says."""
    wanted = tokens_of(s, prompt=expected, parse_special=True)
    assert tokens_of(s, messages=messages) == wanted, (prompt_text(s, messages), expected)
    chat = text_both(s, CHAT, {"messages": messages} | GREEDY)
    assert chat == text_both(s, COMPLETIONS, {"prompt": expected, "parse_special": True} | GREEDY)
    assert s.ask(CHAT, {"messages": messages, "max_tokens": 1})[2]["usage"]["prompt_tokens"] == len(wanted)
    return chat[0]


def check_C9_answer_goes_on(plain, tools, alternating):
    system = [{"role": "system", "content": "Be short."}]
    started = system + user("Capital of France?") + [{"role": "assistant", "content": "The capital is"}]
    chatml = "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nCapital of France?<|im_end|>\n"
    chatml += "<|im_start|>assistant\nThe capital is"
    assert continues(plain, started, chatml).startswith(" ")
    continues(tools, started, chatml)
    continues(alternating, started, "<|im_start|>[INST] Capital of France?[/INST] The capital is")
    parts = started[:-1] + [{"role": "assistant", "content": [{"type": "text", "text": "The capital"}, {"type": "text", "text": " is"}]}]
    assert tokens_of(plain, messages=parts) == tokens_of(plain, messages=started)
    earlier = system + user("a") + [{"role": "assistant", "content": "b"}] + user("c")  # not the last one: closed as ever
    assert prompt_text(plain, earlier).endswith("<|im_start|>assistant\n")


def check_C9_thinking_template(thinking):
    """Whether it is possible shows in what the template makes of it, here a closed thought before the text."""
    started = user("Capital of France?") + [{"role": "assistant", "content": "The capital is"}]
    head = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    continues(thinking, started, head + "\n</think>\n\nThe capital is")
    started[1]["content"] = "<think>\nEasy.\n</think>\n\nThe capital is"
    continues(thinking, started, head + "Easy.\n</think>\n\nThe capital is")
    started[1] = {"role": "assistant", "content": "The capital is", "reasoning_content": "Easy."}
    continues(thinking, started, head + "Easy.\n</think>\n\nThe capital is")


def check_C9_two_assistants(plain, alternating):
    two = user("Capital of France?") + [{"role": "assistant", "content": "The capital"}, {"role": "assistant", "content": "is"}]
    for s in (plain, alternating):
        refused(s, CHAT, {"messages": two}, "messages[2]", "assistant")
    after_call = history()[:2] + [{"role": "assistant", "content": "It is"}]
    refused(plain, CHAT, {"messages": after_call}, "messages[2]")
    assert plain.ask(CHAT, {"messages": two + user("Go on.")} | GREEDY)[0] == 200  # not at the end: the template's affair


def main():
    with (Server(*SMALL) as plain, Templated("xml_tools", *SMALL) as tools, Templated("alternating", *SMALL) as alternating,
          Templated("thinking", *SMALL) as thinking, Templated(NO_SYSTEM, *SMALL) as no_system,
          Templated(SYSTEM_FIRST, *SMALL) as system_first):
        run_checks([(check_C1_absent_content, plain, tools), (check_C2_null_ids, plain, tools, alternating),
                    (check_C3_arguments_that_are_no_object, plain, tools), (check_C4_arguments_are_an_object_for_the_template, tools),
                    (check_C5_roles_that_do_not_alternate, plain, alternating), (check_C6_system_is_folded, no_system),
                    (check_C6_tokenize_folds_too, no_system), (check_C7_system_in_the_middle, plain, system_first),
                    (check_C8_developer_is_system, plain, tools, alternating), (check_C9_answer_goes_on, plain, tools, alternating),
                    (check_C9_thinking_template, thinking), (check_C9_two_assistants, plain, alternating)])


if __name__ == "__main__":
    main()
