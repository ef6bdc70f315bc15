"""The family `mmlu`: every answer follows from the question by other code, and scoring sees what is wrong."""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from pocket.corpus import FAMILIES, prompt_and_completion
from pocket.problems import SPLITS, Content, Problem, Template, problems
from specbench.tasks.harness import DataUnavailable, TaskChoice, Tasks

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "suites" / "tasks"
WEIGHTS = ROOT / "suites" / "pairs" / "weights" / "target"
WEEK = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NAME = "Tom|Ben|Sam|Max|Leo|Anna|Mia|Lily|Emma|Sara"


def _ints(text: str) -> list[int]:
    return [int(matches) for matches in re.findall(r"\d+", text)]


def _percentages(question: str) -> object:
    price, percent, box = _ints(question)
    share = percent if re.search("rises|goes up", question) else -percent
    return price * (100 + share) // 100 + box


def _equation(question: str) -> object:
    a, sign, b, total, times = re.search(r"(\d+)x ([+-]) (\d+) = (-?\d+)\D+(\d+)x", question).groups()
    [x] = [x for x in range(-99, 100) if int(a) * x + int(sign + b) == int(total)]
    return int(times) * x


def _sequence(question: str) -> object:
    first, second, third, wanted = _ints(question)
    assert third - second == second - first
    return first + (wanted - 1) * (second - first)


def _sharing(question: str) -> object:
    had, gone, children = _ints(question)
    return (had - gone) % children if "left over" in question else (had - gone) // children


def _python(question: str) -> object:
    """What Python itself says of the expression, with the question's definitions."""
    first, *code = question.split("\n")
    expression = re.match(r"What (?:is the value of|is|does) (.+?)(?: with| after| return| for| if|\?)", first)[1]
    if (given := re.search(r"(?: for| if) (\w+ = \[.+\])\?", first)) is not None:
        code = [given[1]]
    scope: dict[str, object] = {}
    exec("\n".join(code), scope)
    return eval(expression, scope)


def _calendar(question: str) -> object:
    days, moved = _ints(question)
    today = next(day for day in WEEK if f"Today is {day}." in question)
    return WEEK[(WEEK.index(today) + days + (moved if "later" in question else -moved)) % 7]


def _order(question: str) -> object:
    pairs = []
    for sentence in question.split(".")[:-1]:
        a, b = re.findall(NAME, sentence)
        pairs.append((a, b) if "before" in sentence else (b, a))
    [order] = [
        order
        for order in itertools.permutations({name for pair in pairs for name in pair})
        if all(order.index(a) < order.index(b) for a, b in pairs)
    ]
    return order[["first", "second", "third", "last"].index(question.split()[-1].rstrip("?"))]


def _trades(question: str) -> object:
    start, *rest = question.split(". ")
    owner = {color: name for name, color in re.findall(rf"({NAME}) has a (\w+)", start)}
    for sentence in rest[:2]:
        a, b = re.findall(NAME, sentence)
        owner = {color: {a: b, b: a}.get(name, name) for color, name in owner.items()}
    if match := re.search(rf"does ({NAME}) have", rest[2]):
        return next(color for color, name in owner.items() if name == match[1])
    return owner[re.search(r"Who has the (\w+)", rest[2])[1]]


def _comparison(question: str) -> object:
    *facts, asked = re.split(r"(?<=\.) ", question)
    counts = sorted((_ints(fact)[0], re.search(r"(?:^The|in the) (\w+)", fact)[1]) for fact in facts)
    return counts[0 if "fewest" in asked else -2 if "second most" in asked else -1][1]


SOLVERS: dict[str, Callable[[str], object]] = {
    "percentages": _percentages,
    "linear_equations": _equation,
    "sequences": _sequence,
    "remainders": _sharing,
    "list_items": _python,
    "function_calls": _python,
    "conditions": _python,
    "list_methods": _python,
    "calendar": _calendar,
    "order_of_events": _order,
    "trades": _trades,
    "comparisons": _comparison,
}


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return list(itertools.islice(problems("mmlu", FAMILIES["mmlu"], "train", 21), 2400))


@pytest.fixture(scope="module")
def task() -> ConfigurableTask:
    return TaskManager(include_path=str(TASKS), include_defaults=False).load(["pocket_mmlu"])["tasks"]["pocket_mmlu"]


def _score(task: ConfigurableTask, doc: dict[str, str], text: str) -> float:
    return task.process_results(doc, [text])["exact_match"]


def test_the_right_option_follows_from_the_question(drawn: list[Problem]) -> None:
    assert {problem.template for problem in drawn} == set(SOLVERS)
    for problem in drawn:
        fields = problem.fields
        assert fields["subject"] == problem.template
        assert fields[fields["answer"]] == str(SOLVERS[problem.template](fields["question"])), fields
        assert len({fields[letter] for letter in "ABCD"}) == 4, fields


def test_equations_in_the_reasoning_hold_and_it_ends_with_the_answer(drawn: list[Problem]) -> None:
    checked = 0
    for problem in drawn:
        reasoning = problem.fields["reasoning"]
        assert re.search(rf"\b{re.escape(problem.fields[problem.fields['answer']])}\.$", reasoning), reasoning
        for chain in re.findall(r"(?<![\dx] )-?\d+(?: [-+*/] \d+)+(?: = -?\d+(?: [-+*/] \d+)*)+", reasoning):
            values = {eval(side) for side in chain.split(" = ")}
            assert len(values) == 1, chain
            checked += 1
    assert checked > 2000


def test_letters_are_equally_often_right(drawn: list[Problem]) -> None:
    counts = Counter(problem.fields["answer"] for problem in drawn[:2000])
    assert sum((counts[letter] - 500) ** 2 / 500 for letter in "ABCD") < 16.27  # chi-square of 3 degrees, p = 0.001


@pytest.mark.long
def test_a_question_is_in_one_split_only() -> None:
    """Not only the content: the options, their order and the letter make no other problem of the same question."""
    asked = {
        split: {p.fields["question"] for p in itertools.islice(problems("mmlu", FAMILIES["mmlu"], split, 3), 4000)}
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not asked[one] & asked[other]


@pytest.mark.parametrize("template", FAMILIES["mmlu"])
def test_other_words_leave_the_numbers(template: Template) -> None:
    """What makes a problem is its content; else one problem could be in two splits."""
    for seed in range(40):
        one, other = (template(Content(random.Random(seed)), random.Random(wording))["question"] for wording in (1, 2))
        assert sorted(_ints(one)) == sorted(_ints(other))


def test_lengths_in_tokens(drawn: list[Problem]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    texts = [prompt_and_completion("mmlu", problem.fields) for problem in drawn]
    sizes = [
        [len(ids) for ids in tokenizer(list(part), add_special_tokens=False)["input_ids"]]
        for part in zip(*texts, strict=True)
    ]
    assert min(sizes[0]) >= 50 and max(sizes[0]) <= 110
    assert min(sizes[1]) >= 23 and max(sizes[1]) <= 70


def test_scores(task: ConfigurableTask) -> None:
    doc = {"A": "12", "B": "21", "C": "2", "D": "red", "answer": "B"}
    right = [
        " 3 * 7 = 21. The answer is 21.",
        " The answer is (B).",
        " The answer is 21",
        " The answer is 21.\n\nThe answer is 2.",
    ]
    wrong = [" The answer is 2.", " The answer is (A).", " The answer is 121.", " The answer is 21 or 2.", "",
             " 3 * 7 = 21.", " The answer is 2.\n\nThe answer is 21.", " The answer is .", " (B)",
             " The answer is red."]  # fmt: skip
    assert [_score(task, doc, text) for text in right] == [1] * len(right)
    assert [_score(task, doc, text) for text in wrong] == [0] * len(wrong)


def test_bundled_references_score_one_and_every_other_option_none(task: ConfigurableTask) -> None:
    for doc in [*task.dataset["test"], *task.dataset["train"]]:
        reference = prompt_and_completion("mmlu", doc)[1]
        assert task.doc_to_target(doc) == reference[1:] and _score(task, doc, reference) == 1
        assert _score(task, doc, reference.partition(" The answer")[0]) == 0
        for letter in {*"ABCD"} - {doc["answer"]}:
            assert _score(task, doc, f" {doc['reasoning']} The answer is {doc[letter]}.") == 0
            assert _score(task, doc, f" {doc['reasoning']} The answer is ({letter}).") == 0


REAL = [
    {"question": "2 + 2 = ", "subject": "s", "choices": ["3", "4", "5", "6"], "answer": 1},
    {"question": "Red?", "subject": "s", "choices": ["a (D)", "b", "c", "d"], "answer": 2},
]


def _real(folder: Path, split: str | None = None) -> Tasks:
    choice = TaskChoice("mmlu", None, 256, "mmlu", "cais/mmlu", "pocket_mmlu", split)
    return Tasks([choice], task_folder=TASKS, data_dir=folder, limit=None, seed=1, chat=None)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (" Two and two are 4. The answer is (B).", 1, 1),
        (" The answer is (C).", 0, 0),
        (" The answer is B.", 0, 1),
        (" Answer: **B**", 0, 1),
        (" It is not (A) but (B)", 0, 1),
        (" It is four.", 0, 0),
        ("", 0, 0),
    ],
)
def test_mmlu_itself(text: str, strict: int, flexible: int, tmp_path: Path) -> None:
    (tmp_path / "mmlu_val.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in REAL))
    tasks = _real(tmp_path)
    first, second = tasks.requests()
    assert first.prompt == "Question: 2 + 2 =\n(A) 3\n(B) 4\n(C) 5\n(D) 6\nAnswer: Let's think step by step."
    assert "\n(A) a (D)\n(B) b" in second.prompt
    assert (first.until, first.max_new_tokens) == (("Question:",), 256)
    values = {s.filter: s.value for s in tasks.score({("mmlu", 0): text}) if s.doc_id == 0}
    assert values == {"strict-match": strict, "flexible-extract": flexible}


def test_test_documents_come_before_validation_ones_and_other_splits_have_no_stand_in(tmp_path: Path) -> None:
    (tmp_path / "mmlu_val.jsonl").write_text(json.dumps(REAL[0]) + "\n")
    with pytest.raises(DataUnavailable, match=r"put mmlu_dev\.jsonl"):
        _real(tmp_path, "dev")
    (tmp_path / "mmlu_test.jsonl").write_text(json.dumps(REAL[1]) + "\n")
    assert [request.prompt.split("\n")[0] for request in _real(tmp_path).requests()] == ["Question: Red?"]
