"""The everyday tasks: documents that can be answered from their texts, prompts in the chat template, scores by hand."""

import importlib.util
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import refused

from specbench.config import UserError, load_suite, own_pair, task_info
from specbench.measure.prompts import load_tasks
from specbench.plan import resolve_plan
from specbench.tasks.harness import TaskChoice, Tasks, scorer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "suites" / "tasks" / "everyday"
TASKS = ("reading", "summary", "editing")
SPLITS = ("train", "test")
TEXT = {"reading": "passage", "summary": "passage", "editing": "text"}

spec = importlib.util.spec_from_file_location("everyday_utils", FOLDER / "utils.py")
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)


def documents(task: str, split: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / f"{task}_{split}.jsonl").read_text("utf-8").splitlines()]


def everyday(*names: str, split: str | None = None, **options) -> Tasks:
    options = {"data_dir": None, "limit": None, "seed": 0, "chat": None} | options
    choices = [TaskChoice(f"everyday_{name}", None, 96, None, "", None, split) for name in names]
    return Tasks(choices, task_folder=ROOT / "suites" / "tasks", **options)


# Documents


@pytest.mark.parametrize("task", TASKS)
def test_counts_and_kinds(task):
    assert [len(documents(task, split)) for split in SPLITS] == [6, 40]
    kinds = {document["category"] for document in documents(task, "test")}
    assert kinds == {"email", "howto", "letter", "minutes", "news", "product", "science", "story", "travel"} | (
        {"recipe"} if task != "summary" else set()
    )


def test_no_text_comes_twice_and_no_two_are_alike():
    """No two share eight words in a row, as texts of one template would."""
    seen: dict[tuple[str, ...], tuple] = {}
    for task, split in itertools.product(TASKS, SPLITS):
        for number, document in enumerate(documents(task, split)):
            words = re.findall(r"\w+", document[TEXT[task]].lower())
            for place in range(len(words) - 7):
                owner = seen.setdefault(tuple(words[place : place + 8]), (task, split, number))
                assert owner == (task, split, number), words[place : place + 8]


@pytest.mark.parametrize("split", SPLITS)
def test_an_answer_is_once_in_its_passage_and_not_in_its_question(split):
    for document in documents("reading", split):
        first = document["answers"][0]
        assert len(re.findall(rf"\b{re.escape(first)}\b", document["passage"], re.IGNORECASE)) == 1, first
        assert document["question"].endswith("?") and 80 <= len(document["passage"].split()) <= 150
        for answer in document["answers"]:
            assert not utils.contains(document["question"], answer)


@pytest.mark.parametrize("split", SPLITS)
def test_a_summary_is_much_shorter_than_its_text(split):
    for document in documents("summary", split):
        assert 150 <= len(document["passage"].split()) <= 250
        assert 20 <= len(document["summary"].split()) <= 45 and document["summary"].endswith(".")


@pytest.mark.parametrize("split", SPLITS)
def test_a_corrected_text_has_few_changes_and_small_ones(split):
    for document in documents("editing", split):
        changes = utils.edits(document["text"], document["answer"])
        assert 3 <= len(changes) <= 7, document["text"]
        assert all(end - start <= 2 and len(new) <= 2 for start, end, new in changes), changes


# Scores


@pytest.mark.parametrize(
    ("text", "answers", "found"),
    [
        ("It weighs 2.4 kilograms.", ["2.4 kilograms"], 1),
        ("It weighs 24 kilograms.", ["2.4 kilograms"], 0),
        ("The third man repaired it, an old Electrician.", ["the electrician"], 1),
        ("Sometime before noon", ["time"], 0),
        ("About 12 pegs", ["twelve", "12"], 1),
        ("The baker’s daughter!", ["the baker's daughter"], 1),
        ("A slice, of cake", ["a slice of cake"], 1),
        ("cake of slice", ["a slice of cake"], 0),
        ("", ["Tom"], 0),
    ],
)
def test_an_answer_is_found_by_its_words(text, answers, found):
    assert utils.score_reading({"answers": answers}, [text]) == {"contains": found}


WRONG, RIGHT = "Our cat sleep all day. he lies on the the sofa", "Our cat sleeps all day. He lies on the sofa"


@pytest.mark.parametrize(
    ("answer", "f1"),
    [
        (RIGHT, 1),
        (WRONG, 0),  # copied: no edit was made
        ("Our cat sleeps all day. he lies on the the sofa", 2 * 1 / (3 + 1)),
        ("Our cat sleeps all day. He lies on the the chair", 2 * 2 / (3 + 3)),  # two of three, and one of its own
        ("", 0),
        ("I am sorry, I cannot.", 0),
    ],
)
def test_edits_are_scored_by_those_of_the_reference(answer, f1):
    assert utils.edit_f1(WRONG, RIGHT, answer) == pytest.approx(f1)


def test_rouge_of_a_summary_worked_by_hand():
    """The longest common subsequence `dogs run home` has three words, of four and of six: P = 3/4, R = 3/6."""
    scored = utils.score_summary({"summary": "Two dogs run quickly back home"}, ["The dogs run home"])
    assert scored == {"rougeL": pytest.approx(2 * (3 / 4) * (3 / 6) / (3 / 4 + 3 / 6))}


# In the harness


@pytest.mark.parametrize("split", [None, "train"])
def test_references_score_full_marks_and_copies_none(split):
    loaded = everyday(*TASKS, split=split)
    requests, count = loaded.requests(), 6 if split else 40
    assert [sum(request.task == f"everyday_{task}" for request in requests) for task in TASKS] == [count] * 3
    assert all(request.max_new_tokens == task_info(request.task).max_new_tokens for request in requests)
    right = {(request.task, request.doc_id): loaded.about(request)[0] for request in requests}
    scores = {(s.task, s.metric): s.value for s in loaded.score(right) if s.doc_id is None}
    assert set(scores.values()) == {1} and len(scores) == 4
    copied = {
        ("everyday_editing", number): document["text"]
        for number, document in enumerate(documents("editing", split or "test"))
    }
    unchanged = {s.metric: s.value for s in loaded.score(copied) if s.doc_id is None}
    assert unchanged["edit_f1"] == 0 and unchanged["rougeL"] > 0.8


def test_headlines_are_scores_of_the_tasks():
    loaded = everyday(*TASKS, limit=1)
    for request in loaded.requests():
        assert scorer(loaded, request.task, 0, task_info(request.task).metric)(loaded.about(request)[0]) == 1


# In the chat template


def plan_of(**options):
    return resolve_plan(["vanilla"], "everyday", own_pair("some-chat-model", None), limit=1, **options)


def pair(template: str | None) -> SimpleNamespace:
    def apply_chat_template(messages, **_):
        return "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>"

    tokenizer = SimpleNamespace(chat_template=template, apply_chat_template=apply_chat_template)
    return SimpleNamespace(name="some-chat-model", tokenizer=tokenizer)


def test_the_suite_wraps_its_prompts_unless_the_user_says_no():
    assert load_suite("everyday").chat_template and plan_of().chat_template
    wrapped = [request.prompt for request in load_tasks(plan_of(), pair("t")).requests()]
    plain = [request.prompt for request in load_tasks(plan_of(chat_template=False), pair(None)).requests()]
    assert wrapped == [f"<user>{prompt}<assistant>" for prompt in plain] and len(plain) == 3


def test_a_pair_without_a_chat_template_is_told_what_to_do():
    with pytest.raises(UserError, match=r"some-chat-model has no chat template.*--no-apply-chat-template") as caught:
        load_tasks(plan_of(), pair(None))
    assert "\n" not in str(caught.value)
    assert "--no-apply-chat-template" in refused("run", "--suite", "everyday", "--method", "pld", "--limit", "1")
