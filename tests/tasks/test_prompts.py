"""Files of prompts: the three forms that are read, and one line for each that is not one."""

import json
import re

import pytest
from refusals import one_line_error

from specbench.base.errors import UserError
from specbench.config import prompts as files
from specbench.config.prompts import prompt_constraint, prompt_lines, read_prompts
from specbench.config.specs import Constraint, ConstraintSpec
from specbench.tasks.prompts import PromptFile


def written(folder, *lines):
    path = folder / "asked.jsonl"
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def test_the_own_form(tmp_path):
    path = written(
        tmp_path,
        {"id": "a", "prompt": "One.", "category": "short", "reference": "1"},
        b"  ",
        {"prompt": ["One.", "Two."], "further": [1, 2]},
        {"id": 5, "prompt": "Five.", "category": "short"},
    )
    results = [(p.id, p.category, p.task, p.turns, p.reference) for p in read_prompts(path)]
    assert results == [
        ("a", "short", "short", ("One.",), ("1",)),
        ("1", "", "asked", ("One.", "Two."), ()),
        ("5", "short", "short", ("Five.",), ()),
    ]
    assert [line.task for line in prompt_lines(path, 9)] == ["short", "asked"]
    assert {line.own.max_new_tokens for line in prompt_lines(path, 9)} == {9}


def test_spec_benchs_questions_have_mt_bench_as_one_task(tmp_path):
    of_mt_bench = [{"question_id": n, "category": name, "turns": ["a", "b"]} for n, name in enumerate(files.MT_BENCH)]
    others = [{"question_id": 100 + n, "category": name, "turns": ["a"]} for n, name in enumerate(files.SPEC_BENCH)]
    assert {p.task for p in read_prompts(written(tmp_path, *of_mt_bench))} == files.MT_BENCH
    assert {p.task for p in read_prompts(written(tmp_path, *of_mt_bench, *others))} == {"mt_bench", *files.SPEC_BENCH}


def test_mt_benchs_real_questions(real_data):
    result = read_prompts(real_data / "mt_bench.jsonl")
    assert len(result) == 80 and {len(p.turns) for p in result} == {2} and {p.task for p in result} == files.MT_BENCH


BAD = {
    "not json": ([{"prompt": "a"}, b"{oops"], "line 2 .*not JSON"),
    "no object": ([["a"]], "line 1 is not a JSON object"),
    "no prompt": ([{"prompt": "a"}, {"words": "b"}], 'line 2 has no "prompt"'),
    "empty prompt": ([{"prompt": ""}], "line 1: .*none is empty"),
    "no turns": ([{"prompt": []}], "line 1: .*one for each turn"),
    "turns of numbers": ([{"turns": ["a", 1]}], "line 1: .*list of texts"),
    "turns of lists": ([{"turns": [["a"]]}], "line 1: .*list of texts"),
    "too many turns": ([{"turns": ["a"] * 101}], "line 1: 101 turns"),
    "the same id": (
        [{"id": 1, "prompt": "a"}, {"prompt": "b", "question_id": "1"}],
        "line 2: .*'1' is there twice.*line 1",
    ),
    "an id that is none": ([{"id": [1], "prompt": "a"}], "line 1: `id` is"),
    "a category that is none": ([{"category": {}, "prompt": "a"}], "line 1: `category` is"),
    "a long id": ([{"id": "x" * 201, "prompt": "a"}], "line 1: `id` is"),
    "a reserved category": ([{"category": "average", "prompt": "a"}], "line 1: .*rename this category"),
    "a reference that is none": ([{"reference": 3, "prompt": "a"}], "line 1: `reference`"),
    "an empty stop": ([{"stop": ["a", ""], "prompt": "a"}], "line 1: `stop`.*none is empty"),
    "a stop that is none": ([{"stop": 3, "prompt": "a"}], "line 1: `stop`"),
    "a limit of nothing": ([{"max_new_tokens": 0, "prompt": "a"}], "line 1: `max_new_tokens` is 0"),
    "a limit that is none": ([{"max_new_tokens": True, "prompt": "a"}], "line 1: `max_new_tokens` is True"),
    "half a character": ([b'{"prompt": "\\ud800"}'], "line 1 .*unpaired surrogates"),
    "no text": ([b'{"prompt": "\xff"}'], "line 1 .*UTF-8"),
    "nothing": ([], "holds no prompts"),
    "blank lines": ([b"", b" "], "holds no prompts"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line_with_its_number(tmp_path, name):
    lines, words = BAD[name]
    with one_line_error(match=re.compile(words)):
        read_prompts(written(tmp_path, *lines))


def test_a_huge_line_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "asked.jsonl"
    with path.open("wb") as file:  # a gigabyte that takes no room on the disk
        file.write(b'{"prompt": "')
        file.truncate(10**9)
    with one_line_error("line 1", f"more than {8 * 2**20} bytes"):
        read_prompts(path)


def test_a_line_of_many_small_values_is_refused(tmp_path):
    """A list takes 2 bytes in a line, and 60 in memory."""
    (tmp_path / "asked.jsonl").write_text('{"prompt": "a", "more": [' + "[]," * 200_000 + "[]]}")
    with one_line_error("line 1", "values"):
        read_prompts(tmp_path / "asked.jsonl")


def test_a_huge_file_of_short_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_FILE", 100)
    with one_line_error("bytes of prompts"):
        read_prompts(written(tmp_path, *[{"prompt": "abcdefgh"}] * 9))


def test_a_chat_template_is_given_the_whole_conversation(tmp_path):
    path = written(tmp_path, {"prompt": ["One.", "Two."]})
    file = PromptFile(path, ["asked"], None, {"asked": 8}, lambda messages: "|".join(m["content"] for m in messages))
    first, second = file.requests()
    assert (first.prompt, second.prompt) == ("One.", "One.||Two.")
    assert file.prompt(second, ["Yes."]) == "One.|Yes.|Two."
    roles = PromptFile(path, ["asked"], None, {"asked": 8}, lambda messages: " ".join(m["role"] for m in messages))
    assert roles.requests()[1].prompt == "user assistant user"


def test_a_limit_keeps_whole_conversations(tmp_path):
    path = written(tmp_path, {"prompt": ["One.", "Two."]}, {"prompt": "Three."})
    kept = PromptFile(path, ["asked"], 1, {"asked": 8}, None).requests()
    assert [(request.doc_id, request.turn) for request in kept] == [(0, 0), (1, 1)]


def test_a_prompt_may_have_stops_and_a_limit_of_its_own(tmp_path):
    path = written(
        tmp_path, {"prompt": "One.", "stop": "\n", "max_new_tokens": 3}, {"prompt": "Two.", "stop": ["a", "b"]}
    )
    first, second = PromptFile(path, ["asked"], None, {"asked": 8}, None).requests()
    assert (first.until, first.max_new_tokens) == (("\n",), 3)
    assert (second.until, second.max_new_tokens) == (("a", "b"), 8)
    plain, other = (
        PromptFile(written(tmp_path, {"prompt": "One."} | more), ["asked"], None, {"asked": 8}, None).requests()[0]
        for more in ({}, {"max_new_tokens": 3})
    )
    assert len({request.doc_hash for request in (first, plain, other)}) == 3


def file_of(folder, *lines, chat=None, constraint=None):
    path = written(folder, *lines)
    return PromptFile(path, [line.task for line in prompt_lines(path, 9)], None, {"asked": 9}, chat, None, constraint)


SCHEMA = {"type": "integer"}
LINES = (
    {"prompt": "One.", "schema": SCHEMA},
    {"prompt": "Two.", "schema": json.dumps(SCHEMA)},
    {"prompt": "Three.", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"prompt": "Four.", "response_format": {"type": "json_object"}},
    {"prompt": "Five.", "response_format": {"type": "text"}},
    {"prompt": "Six."},
)


def test_a_line_may_say_what_its_answer_must_be(tmp_path):
    of_file = prompt_constraint(written(tmp_path, *LINES), None)
    assert of_file == ConstraintSpec(kind="schema", field="schema")
    asked = [request.constraint for request in file_of(tmp_path, *LINES, constraint=of_file).requests()]
    integer = Constraint("schema", '{"type": "integer"}')
    assert asked == [integer, integer, integer, Constraint("schema", '{"type": "object"}'), None, None]


def test_a_schema_changes_the_hash_of_its_prompt(tmp_path):
    with_schema, without = (
        file_of(tmp_path, {"prompt": "One."} | more).requests()[0].doc_hash for more in ({"schema": SCHEMA}, {})
    )
    assert with_schema != without


def test_one_constraint_is_of_all_prompts(tmp_path):
    asked = ConstraintSpec(kind="regex", text="a+")
    assert prompt_constraint(written(tmp_path, {"prompt": "One."}), asked) == asked
    (request,) = file_of(tmp_path, {"prompt": "One."}, constraint=asked).requests()
    assert request.constraint == Constraint("regex", "a+")
    assert prompt_constraint(written(tmp_path, {"prompt": "One."}), None) is None
    with pytest.raises(UserError, match="have schemas of their own"):
        prompt_constraint(written(tmp_path, *LINES), asked)
    with pytest.raises(UserError, match="have their schemas in the field 'schema', not 'form'"):
        prompt_constraint(written(tmp_path, *LINES), ConstraintSpec(kind="schema", field="form"))
    with pytest.raises(UserError, match=r"no line .* has a schema"):
        prompt_constraint(written(tmp_path, {"prompt": "One."}), ConstraintSpec(kind="schema", field="schema"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"schema": "oops"}, "line 1, schema.*not JSON"),
        ({"schema": SCHEMA, "response_format": {"type": "text"}}, "both 'schema' and 'response_format'"),
        ({"response_format": {"type": "regex"}}, "no JSON schema that is read"),
        ({"response_format": {"type": "json_schema"}}, "no JSON schema that is read"),
        ({"tools": "search"}, "`tools` are 'search'"),
        ({"tools": ["search"]}, r"`tools` are \['search'\]"),
    ],
)
def test_schemas_and_tools_that_are_none(tmp_path, more, says):
    with pytest.raises(UserError, match=says):
        read_prompts(written(tmp_path, {"prompt": "One."} | more))


TOOLS = [{"type": "function", "function": {"name": "search"}}]


def template(messages, tools=None):
    return f"{json.dumps(tools)} {messages[-1]['content']}" if tools else messages[-1]["content"]


def test_the_chat_template_shows_tools(tmp_path):
    shown = file_of(tmp_path, {"prompt": "One.", "tools": TOOLS}, {"prompt": "Two.", "tools": []}, chat=template)
    one, two = shown.requests()
    assert (one.prompt, two.prompt) == (f"{json.dumps(TOOLS)} One.", "Two.")
    assert (shown.tools(one), shown.tools(two)) == (TOOLS, [])


@pytest.mark.parametrize("chat", [None, lambda messages, tools=None: "always the same"])
def test_tools_that_no_template_shows_are_refused(tmp_path, chat):
    with pytest.raises(UserError, match=r"the prompt '0' has tools, and the chat template"):
        file_of(tmp_path, {"prompt": "One.", "tools": TOOLS}, chat=chat)
