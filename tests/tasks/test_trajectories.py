"""Recorded conversations: every answer is a request after what was recorded before it, and tool calls stay."""

import json

import jinja2
import pytest
from refusals import one_line_error

from specbench.config import trajectories
from specbench.config.prompts import prompt_lines, read_file
from specbench.tasks.prompts import PromptFile

CALL = {"name": "open_file", "arguments": '{"path": "a.py", "line": 3}'}
AGENT = [
    {"role": "system", "content": "You mend code."},
    {"role": "user", "content": "Here is a demonstration."},
    {"role": "user", "content": "Mend a.py."},
    {"role": "assistant", "content": "I look at it.", "tool_calls": [CALL]},
    {"role": "tool", "content": "1: def f()\n2:   return 1", "tool_call_id": "c1"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c2", "type": "function", "function": CALL}]},
    {"role": "tool", "content": ""},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
]
# As SmolLM2's, which knows no calls, and as Qwen2.5's, which does.
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if ask %}<assistant>{% endif %}"
CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}</>{% endfor %}"
    "{% if ask %}<assistant>{% endif %}"
)
SHOWN = '<tool_call>\n{"name": "open_file", "arguments": {"path": "a.py", "line": 3}}\n</tool_call>'


def written(folder, *lines):
    path = folder / "agent.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def template(text):
    made = jinja2.Environment().from_string(text)
    return lambda messages, tools=None, ended=False: made.render(messages=messages, ask=not ended)


def opened(path, chat=None, **more):
    return PromptFile(path, ["agent"], None, {"agent": 8}, chat, recorded=True, **more)


def test_every_answer_is_a_first_turn_after_the_recorded_messages(tmp_path):
    file = opened(written(tmp_path, {"id": "x", "messages": AGENT}), template(PLAIN))
    first, second, third = file.requests()
    assert [r.doc_id for r in file.requests()] == [0, 1, 2] and {r.turn for r in file.requests()} == {0}
    asked = "<system>You mend code.</><user>Here is a demonstration.</><user>Mend a.py.</>"
    assert first.prompt == f"{asked}<assistant>"
    seen = f"{asked}<assistant>I look at it.\n{SHOWN}</><tool>1: def f()\n2:   return 1</>"
    assert second.prompt == f"{seen}<assistant>"
    assert third.prompt == f"{seen}<assistant>{SHOWN}</><tool></><user>Go on.</><assistant>"
    assert file.places() == [["x", "", 0], ["x", "", 1], ["x", "", 2]]
    assert [file.about(r)[0] for r in file.requests()] == [f"I look at it.\n{SHOWN}", SHOWN, "Done."]
    assert [file.recorded(r) for r in file.requests()] == [f"I look at it.\n{SHOWN}</>", f"{SHOWN}</>", "Done.</>"]
    assert len({r.doc_hash for r in file.requests()}) == 3


def test_a_template_that_knows_calls_gets_them_as_objects(tmp_path):
    file = opened(written(tmp_path, {"messages": AGENT}), template(CALLS))
    _, second, third = file.requests()
    assert '<assistant>I look at it.[open_file {"line": 3, "path": "a.py"}]</><tool>1: def' in second.prompt
    assert '<assistant>[open_file {"line": 3, "path": "a.py"}]</><tool></>' in third.prompt
    assert file.recorded(second) == '[open_file {"line": 3, "path": "a.py"}]</>'
    assert json.loads(file.messages(third, [])[3]["tool_calls"][0]["function"]["arguments"])["line"] == 3


def test_without_a_template_messages_are_joined(tmp_path):
    file = opened(written(tmp_path, {"messages": AGENT[1:6]}))
    first, second = (r.prompt for r in file.requests())
    assert first == "Here is a demonstration.\n\nMend a.py."
    assert second == f"{first}I look at it.\n{SHOWN}\n\n1: def f()\n2:   return 1"


def test_a_template_that_drops_results_of_tools_is_refused(tmp_path):
    deaf = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content or '' }}{% endif %}{% endfor %}"
    with one_line_error("messages of tools, and the chat template leaves them out", "--no-apply-chat-template"):
        opened(written(tmp_path, {"messages": AGENT}), template(deaf))


def test_what_a_line_says_besides(tmp_path):
    line = {"category": "mend", "messages": AGENT, "stop": "\n", "max_tokens": 3, "reference": "x", "model": "y"}
    path = written(tmp_path, line)
    read = read_file(path, recorded=True)
    assert [task.task for task in prompt_lines(path, None, recorded=True)] == ["mend"]
    assert read.unread == {"reference": 1, "model": 1}
    request = PromptFile(path, ["mend"], None, {"mend": 8}, None, recorded=True).requests()[0]
    assert (request.until, request.max_new_tokens) == (("\n",), 3)


@pytest.mark.parametrize("own", [True, False])
def test_a_system_prompt_of_the_command_line_is_for_those_without_one(tmp_path, own):
    file = opened(written(tmp_path, {"messages": AGENT[0 if own else 1 :]}), template(PLAIN), system="Be brief.")
    assert file.requests()[0].prompt.startswith("<system>You mend" if own else "<system>Be brief.</><user>Here")


def test_sharegpts_words_are_read(tmp_path):
    said = [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]
    assert opened(written(tmp_path, {"conversations": said})).requests()[0].prompt == "Hi."


def user(text="a"):
    return {"role": "user", "content": text}


def answer(text="b", **more):
    return {"role": "assistant", "content": text, **more}


def tool(text="c"):
    return {"role": "tool", "content": text}


BAD = {
    "no object": ([1], "line 1 has no messages"),
    "no messages": ({"prompt": "a"}, "line 1 has no messages"),
    "a prompt, too": ({"prompt": "a", "messages": [user(), answer()]}, "both 'messages' and 'prompt'"),
    "messages of texts": ({"messages": ["a"]}, "list of objects"),
    "no answer": ({"messages": [user(), user()]}, "no message of assistant"),
    "an answer first": ({"messages": [answer()]}, "message 1 of assistant is out of order: an answer follows"),
    "two answers": ({"messages": [user(), answer(), answer()]}, "message 3 of assistant is out of order"),
    "an answer to the system": (
        {"messages": [{"role": "system", "content": "s"}, answer()]},
        "message 2 of assistant is out of order",
    ),
    "a system that comes late": (
        {"messages": [user(), answer(), {"role": "system", "content": "s"}]},
        "message 3 of system is out of order: the system speaks first",
    ),
    "a tool that nobody called": ({"messages": [user(), answer(), tool()]}, "message 3 of tool is out of order"),
    "a tool first": ({"messages": [tool(), answer()]}, "message 1 of tool is out of order"),
    "another role": ({"messages": [{"role": "critic", "content": "a"}]}, "message 1: the role 'critic'"),
    "an empty answer": ({"messages": [user(), answer("")]}, "message 2: an answer has neither"),
    "thoughts": ({"messages": [user(), answer(reasoning="hm")]}, "message 2 has 'reasoning', which is not read"),
    "calls of a user": ({"messages": [user() | {"tool_calls": [CALL]}]}, "message 1 has 'tool_calls'"),
    "calls that are none": ({"messages": [user(), answer(tool_calls="x")]}, "message 2: `tool_calls` are 'x'"),
    "a call without a name": ({"messages": [user(), answer(tool_calls=[{"arguments": "{}"}])]}, "a tool call is"),
    "a picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts that are no text"),
    "a limit that is none": ({"messages": [user(), answer()], "max_tokens": 0}, "`max_tokens` is 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_conversation_is_refused_in_one_line(tmp_path, case):
    line, words = BAD[case]
    with one_line_error(words):
        read_file(written(tmp_path, line), recorded=True)


def test_a_gigabyte_on_one_line_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "agent.jsonl"
    with path.open("wb") as file:  # it takes no room on the disk
        file.truncate(2**30)
    with one_line_error("line 1", f"more than {8 * 2**20} bytes"):
        read_file(path, recorded=True)


def test_prompts_that_would_grow_without_bound_are_refused(tmp_path, monkeypatch):
    """Each message is in the prompts of all later answers."""
    monkeypatch.setattr(trajectories, "MOST_READ", 10_000)
    long = [user("x" * 1000), answer()]
    read_file(written(tmp_path, {"messages": long * 3}), recorded=True)
    with one_line_error("10000 characters of their prompts"):
        read_file(written(tmp_path, {"messages": long * 5}), recorded=True)


def test_the_real_conversations(real_data):
    path = real_data / "agent_trajectories.jsonl"
    if not path.exists():
        pytest.skip("no recorded conversations")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    file = PromptFile(path, [path.stem], None, {path.stem: 8}, template(PLAIN), recorded=True)
    requests, at = file.requests(), 0
    assert len(requests) == sum(message["role"] == "assistant" for line in lines for message in line["messages"])
    for line in lines:
        for place, message in enumerate(line["messages"]):
            if message["role"] != "assistant":
                continue
            prompt, at = requests[at].prompt, at + 1
            assert all(before["content"] in prompt for before in line["messages"][:place])
            calls = [call for before in line["messages"][:place] for call in before.get("tool_calls", ())]
            assert prompt.count("<tool_call>\n") == len(calls)
            for call in calls:
                assert json.dumps(json.loads(call["arguments"]), ensure_ascii=False) in prompt
