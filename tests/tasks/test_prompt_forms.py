"""Lines of the prompt files that benchmarks and load generators write: their shapes, with texts of our own."""

import json
import re

import pytest
from refusals import one_line_error

from specbench.config.prompts import read_file, read_prompts
from specbench.tasks.prompts import PromptFile

SPEED = ["coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem", "summarization"]
SPEED += ["writing"]


def written(folder, *lines):
    path = folder / "asked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def speed_row(category, n, **more):
    row = {"question_id": f"{category}-{n}", "category": category, "sub_category": "own", "turns": [f"{category} {n}?"]}
    return row | {"source": "own", "src_id": str(n), "difficulty": "", "multiturn": False} | more


def test_speed_bench_has_eleven_tasks_and_its_columns_are_known(tmp_path):
    rows = [speed_row(category, n) for category in SPEED for n in range(80)]
    rows[7] |= {"turns": ["First?", "Second?", "Third?"], "multiturn": True}
    read = read_file(written(tmp_path, *rows))
    assert [*dict.fromkeys(prompt.task for prompt in read.prompts)] == SPEED
    assert len(read.prompts) == 880 and read.prompts[7].turns == ("First?", "Second?", "Third?") and not read.unread


def test_speed_benchs_throughput_split_keeps_its_categories(tmp_path):
    rows = [speed_row(category, n, sub_category="1k") for category in ("low_entropy", "mixed") for n in range(2)]
    assert {prompt.task for prompt in read_prompts(written(tmp_path, *rows))} == {"low_entropy", "mixed"}


def test_a_text_that_was_not_fetched_is_refused(tmp_path):
    placeholder = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    with one_line_error("line 2", "prepare_data.py"):
        read_prompts(written(tmp_path, speed_row("qa", 0), speed_row("qa", 1, turns=[placeholder])))


def test_spec_bench_with_several_right_answers_and_ids_that_are_texts(tmp_path):
    rows = [{"question_id": str(n), "category": "writing", "turns": ["a?", "b?"]} for n in range(81, 91)]
    rows += [{"question_id": "161", "category": "translation", "turns": ["c?"], "reference": ["d"]}]
    rows += [{"question_id": "481", "category": "rag", "turns": ["e?"], "reference": [["wood", "clean air"]]}]
    prompts = read_prompts(written(tmp_path, *rows))
    assert [prompt.task for prompt in prompts] == ["mt_bench"] * 10 + ["translation", "rag"]
    assert prompts[-1].reference == ("wood\nclean air",) and prompts[0].id == "81"


@pytest.mark.parametrize("more", [{"level": 1}, {"category": "poems"}])
def test_a_file_of_ones_own_is_not_taken_for_spec_bench(tmp_path, more):
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["a?"]},
        {"question_id": 2, "category": "qa", "turns": ["b?"]},
    ]
    last = {"question_id": 3, "category": "rag", "turns": ["c?"]} | more
    tasks = [prompt.task for prompt in read_prompts(written(tmp_path, *rows, last))]
    assert tasks == ["writing", "qa", last["category"]]


def test_eagles_questions(tmp_path):
    rows = [
        {"question_id": n, "category": "humaneval", "turns": [f"def f{n}():"], "reference": ["pass"]} for n in (0, 1)
    ]
    prompts = read_prompts(written(tmp_path, *rows))
    assert [(p.id, p.task, p.reference) for p in prompts] == [
        ("0", "humaneval", ("pass",)),
        ("1", "humaneval", ("pass",)),
    ]


AIPERF = {
    "single turn": ({"text": "How deep?"}, ("How deep?",), None),
    "typed": ({"type": "single_turn", "text": "How deep?", "role": "user"}, ("How deep?",), None),
    "one of a batch": ({"texts": ["How deep?"]}, ("How deep?",), None),
    "multi turn": (
        {"session_id": "s", "turns": [{"text": "One?"}, {"text": "Two?", "delay": 5}]},
        ("One?", "Two?"),
        None,
    ),
    "plain turns": ({"type": "multi_turn", "session_id": "s", "turns": ["One?", "Two?"]}, ("One?", "Two?"), None),
    "trace": ({"text_input": "How deep?", "output_length": 20}, ("How deep?",), 20),
    "vLLM, custom": ({"prompt": "How deep?", "output_tokens": 30}, ("How deep?",), 30),
    "OpenAI, completions": ({"prompt": "How deep?", "max_tokens": 9}, ("How deep?",), 9),
}


@pytest.mark.parametrize(("line", "turns", "limit"), AIPERF.values(), ids=AIPERF)
def test_custom_data_sets_of_load_generators(tmp_path, line, turns, limit):
    read = read_file(written(tmp_path, line))
    (prompt,) = read.prompts
    assert (prompt.turns, prompt.max_new_tokens, read.unread) == (turns, limit, {})


SYSTEM, ASKED = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "How deep?"}
MESSAGES = {
    "one": ([ASKED], (), ("How deep?",), ()),
    "system": ([SYSTEM, ASKED], (("system", "Be brief."),), ("How deep?",), ()),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "How deep?"}]}], (), ("How deep?",), ()),
    "answered": ([ASKED, {"role": "assistant", "content": "Very."}], (), ("How deep?",), ("Very.",)),
    "earlier turns": (
        [SYSTEM, ASKED, {"role": "assistant", "content": "Very."}, {"role": "user", "content": "And wide?"}],
        (("system", "Be brief."), ("user", "How deep?"), ("assistant", "Very.")),
        ("And wide?",),
        (),
    ),
}


@pytest.mark.parametrize(("messages", "before", "turns", "reference"), MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("wrap", ["plain", "batch", "sharegpt"])
def test_messages(tmp_path, messages, before, turns, reference, wrap):
    line = {"messages": messages, "max_tokens": 7}
    if wrap == "batch":
        line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": line}
    elif wrap == "sharegpt":
        names = {"user": "human", "assistant": "gpt", "system": "system"}
        said = [{"from": names[m["role"]], "value": m["content"]} for m in messages]
        line = {"id": "r-1", "conversations": said, "max_new_tokens": 7}
    read = read_file(written(tmp_path, line))
    (prompt,) = read.prompts
    assert (prompt.before, prompt.turns, prompt.reference) == (before, turns, reference)
    assert prompt.max_new_tokens == 7 and prompt.id == ("0" if wrap == "plain" else "r-1") and not read.unread


def test_a_system_prompt_and_earlier_messages_are_in_the_prompt_of_every_turn(tmp_path):
    path = written(tmp_path, {"system": "Answer in one word.", "prompt": ["What do bees collect?", "And ants?"]})
    roles = PromptFile(
        path, ["asked"], None, {"asked": 8}, lambda m: " ".join(x["role"] + ":" + x["content"] for x in m)
    )
    first, second = roles.requests()
    assert first.prompt == "system:Answer in one word. user:What do bees collect?"
    assert roles.messages(second, ["Honey."])[0] == {"role": "system", "content": "Answer in one word."}
    plain = PromptFile(path, ["asked"], None, {"asked": 8}, None)
    assert plain.requests()[0].prompt == "Answer in one word.\n\nWhat do bees collect?"
    assert plain.prompt(second, ["Honey."]) == "Answer in one word.\n\nWhat do bees collect?Honey.\n\nAnd ants?"
    without = PromptFile(written(tmp_path, {"prompt": ["What do bees collect?"]}), ["asked"], None, {"asked": 8}, None)
    assert without.requests()[0].doc_hash != first.doc_hash


def test_keys_that_change_nothing_here_are_counted_by_name(tmp_path):
    lines = [{"prompt": "a", "temperature": 0.7, "seed": 1}, {"prompt": "b", "temperature": 0.2, "note": None}]
    assert read_file(written(tmp_path, *lines)).unread == {"temperature": 2, "seed": 1}
    assert PromptFile(tmp_path / "asked.jsonl", ["asked"], None, {"asked": 8}, None).unread == {
        "temperature": 2,
        "seed": 1,
    }


REFUSED = {
    "lengths without a text": ({"input_length": 200, "output_length": 20, "hash_ids": [1]}, "lengths and no text"),
    "an image": ({"text": "What is it?", "image": "a.png"}, "has 'image', and specbench reads text alone"),
    "parts of an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "parts that are no text",
    ),
    "two texts": ({"texts": ["a", "b"]}, "2 texts of one request"),
    "two prompts": ({"prompt": "a", "messages": [ASKED]}, "both 'prompt' and 'messages'"),
    "two system prompts": ({"system": "a", "messages": [SYSTEM, ASKED]}, "system prompt twice"),
    "two limits": ({"prompt": "a", "max_tokens": 3, "output_tokens": 4}, "different limits"),
    "a limit of none": ({"prompt": "a", "output_tokens": -1}, "`output_tokens` is -1"),
    "no turn of the user": ({"messages": [SYSTEM]}, "not the user's"),
    "a tool's message": ({"messages": [ASKED, {"role": "tool", "content": "3"}]}, "the role 'tool'"),
    "a call of a tool": (
        {"messages": [ASKED, {"role": "assistant", "content": "a", "tool_calls": [1]}, ASKED]},
        "has 'tool_calls'",
    ),
    "an empty message": ({"messages": [{"role": "user", "content": ""}]}, "content of a message is ''"),
    "a turn with an image": ({"turns": [{"text": "a", "image": "b"}]}, "a turn has 'image'"),
    "a turn of the assistant": ({"turns": [{"text": "a", "role": "assistant"}]}, "a turn's `role`"),
    "a system prompt that is none": ({"prompt": "a", "system": 3}, "`system` is 3"),
}


@pytest.mark.parametrize(("line", "words"), REFUSED.values(), ids=REFUSED)
def test_what_asks_for_more_than_text_is_refused(tmp_path, line, words):
    with one_line_error("line 1", match=re.escape(words)):
        read_prompts(written(tmp_path, line))
