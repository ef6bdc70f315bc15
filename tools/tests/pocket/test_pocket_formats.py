"""The families `ifeval` and `ruler`: what their documents promise, and that scoring sees what breaks the promise."""

import importlib.util
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from lm_eval.tasks.ruler.common_utils import string_match_all
from transformers import AutoTokenizer

from pocket.corpus import FAMILIES, prompt_and_completion
from pocket.families import ruler
from pocket.problems import Problem, problems

ROOT = Path(__file__).parents[3]


def _module(name: str) -> ModuleType:
    """A module next to the task files, which lm-eval loads by its path."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "suites" / "tasks" / "pocket" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


IFEVAL, RULER = _module("ifeval_utils"), _module("ruler_utils")


@pytest.fixture(scope="module")
def instructions() -> list[Problem]:
    return list(itertools.islice(problems("ifeval", FAMILIES["ifeval"], "train", 21), 1600))


@pytest.fixture(scope="module")
def haystacks() -> list[Problem]:
    return list(itertools.islice(problems("ruler", FAMILIES["ruler"], "train", 21), 480))


# Constraints. Every case: constraints, a text that obeys all, and texts that break only the constraint of that number.

LETTER = [
    {"id": "startend:start_checker", "start_phrase": "Dear Ann"},
    {"id": "startend:end_checker", "end_phrase": "Yours, Tom"},
    {"id": "keywords:existence", "keywords": ["Sam", "van"]},
]
LIST = [
    {"id": "detectable_format:number_bullet_lists", "num_bullets": 2},
    {"id": "detectable_format:title", "title": "Paper Moon"},
    {"id": "keywords:forbidden_words", "forbidden_words": ["egg", "ham"]},
]
ITEMS = [
    {"id": "change_case:english_capital"},
    {"id": "detectable_format:comma_separated_items", "num_items": 3},
    {"id": "keywords:existence", "keywords": ["eggs", "hats"]},
]
WORDS = [
    {"id": "keywords:frequency", "keyword": "cup", "frequency": 2},
    {"id": "keywords:frequency", "keyword": "pen", "frequency": 3},
]
SENTENCES = [
    {"id": "length_constraints:number_sentences", "num_sentences": 2},
    {"id": "punctuation:no_comma"},
    {"id": "keywords:existence", "keywords": ["Sam", "Ann"]},
]
QUOTE = [
    {"id": "change_case:english_lowercase"},
    {"id": "startend:quotation"},
    {"id": "keywords:existence", "keywords": ["Sam"]},
]
NOTE = [
    {"id": "detectable_content:postscript", "postscript_marker": "P.S."},
    {"id": "keywords:existence", "keywords": ["Sam", "Ann"]},
]
OBJECT = [
    {"id": "detectable_format:json_format", "keys": ["name", "color"]},
    {"id": "keywords:existence", "keywords": ["Sam", "red"]},
]
CASES = [
    (
        LETTER,
        "Dear Ann\nSam sold a van.\nYours, Tom",
        {
            0: ["dear Ann\nSam sold a van.\nYours, Tom", "So, Dear Ann\nSam sold a van.\nYours, Tom",
                "Dear Anna\nSam sold a van.\nYours, Tom"],
            1: ["Dear Ann\nSam sold a van.\nYours, Tom.", "Dear Ann\nYours, Tom\nSam sold a van.",
                "Dear Ann\nSam sold a van.\nYours, tom"],
            2: ["Dear Ann\nSam sold a bus.\nYours, Tom", "Dear Ann\nSam sold two vans.\nYours, Tom"],
        },
    ),
    (
        LIST,
        "<<Paper Moon>>\n* red pens\n* eggs",
        {
            0: ["<<Paper Moon>>\n* red pens\n* eggs\n* hats", "<<Paper Moon>>\n* red pens",
                "<<Paper Moon>>\npens * hats", "<<Paper Moon>>\n* \n* eggs", "<<Paper Moon>>\n*red pens\n*eggs"],
            1: ["* red pens\n* eggs", "Paper Moon\n* red pens\n* eggs", "<<Paper>>\n* red pens\n* eggs",
                "<<Paper\nMoon>>\n* red pens\n* eggs", "<Paper Moon>\n* red pens\n* eggs"],
            2: ["<<Paper Moon>>\n* red pens\n* egg", "<<Paper Moon>>\n* red pens\n* Egg, boiled"],
        },
    ),
    (
        ITEMS,
        "EGGS, HATS, PENS",
        {
            0: ["EGGS, HATS, pens", "Eggs, Hats, Pens"],
            1: ["EGGS, HATS", "EGGS, HATS, PENS, CUPS", "EGGS HATS PENS", "EGGS, , HATS, PENS", "EGGS, HATS,"],
            2: ["EGGS, CAPS, PENS", "EGG, HATS, PENS"],
        },
    ),
    (
        WORDS,
        "cup cup pen pen pen",
        {
            0: ["cup pen pen pen", "cup cup Cup pen pen pen", "cup cups pen pen pen"],
            1: ["cup cup pen pen", "cup cup pens"],
        },
    ),
    (
        SENTENCES,
        "Sam has a van. Ann has none!",
        {
            0: ["Sam has a van and Ann has none.", "Sam has a van. Ann has none. So it is.",
                "Sam has a van. Ann has none. So"],
            1: ["Sam has a van. Ann, poor Ann, has none."],
            2: ["Sam has a van. Anna has none.", "They have a van. Ann has none."],
        },
    ),
    (
        QUOTE,
        '"sam has a van."',
        {
            0: ['"Sam has a van."', '"SAM HAS A VAN."'],
            1: ["sam has a van.", '"sam has a van.', 'so: "sam has a van."', '"sam has a van".'],
            2: ['"samuel has a van."'],
        },
    ),
    (
        NOTE,
        "Sam sold a van.\nP.S. Ann has it.",
        {
            0: ["Sam sold a van.\nAnn has it.", "P.S. Sam sold a van. Ann has it.", "Sam sold a van. Ann has it. P.S.",
                "Sam sold a van.\nPS Ann has it."],
            1: ["Sam sold a van.\nP.S. Tom has it."],
        },
    ),
    (
        OBJECT,
        '{"name": "Sam", "color": "red"}',
        {
            0: ['{"name": "Sam"; "color": "red"}', '{"name": "Sam red"}', '[["name", "Sam"], ["color", "red"]]',
                '{"name": "Sam", "color": "red", "day": "x"}', 'Sam: {"name": "Sam", "color": "red"}', '"Sam red"',
                '{"name": "Sam", "name": "Sam", "color": "red"}', "Sam red"],
            1: ['{"name": "Tom", "color": "red"}'],
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("constraints", "text", "broken"), CASES)
def test_a_text_that_breaks_one_constraint_breaks_no_other(
    constraints: list[dict[str, object]], text: str, broken: dict[int, list[str]]
) -> None:
    assert set(broken) == set(range(len(constraints)))
    given = json.dumps(constraints)
    assert IFEVAL.followed(given, text) == [True] * len(constraints)
    assert IFEVAL.followed(given, f" \n{text}\n ") == [True] * len(constraints), "space around a text does not count"
    for number, texts in broken.items():
        for other in texts:
            assert IFEVAL.followed(given, other) == [one != number for one in range(len(constraints))], other


def test_every_kind_of_constraint_is_checked_used_and_broken_above(instructions: list[Problem]) -> None:
    used = {one["id"] for problem in instructions for one in json.loads(problem.fields["constraints"])}
    assert (
        set(IFEVAL.CHECKS)
        == used
        == {str(constraint["id"]) for constraints, _, _ in CASES for constraint in constraints}
    )


def test_an_empty_text_obeys_nothing() -> None:
    assert IFEVAL.followed('[{"id": "punctuation:no_comma"}]', " \n") == [False]


def test_scores_are_those_of_ifeval() -> None:
    doc = {"constraints": json.dumps(QUOTE)}
    one = IFEVAL.score_constraints(doc, [' "sam has a van."'])
    other = IFEVAL.score_constraints(doc, [" Sam has a van."])
    assert one == {"prompt_level_strict_acc": 1, "inst_level_strict_acc": [True, True, True]}
    assert other == {"prompt_level_strict_acc": 0, "inst_level_strict_acc": [False, False, True]}
    assert IFEVAL.share_of_constraints([[True, True, True], [False, False], []]) == 3 / 5


def test_every_canonical_answer_obeys_and_its_content_is_in_the_prompt(instructions: list[Problem]) -> None:
    for problem in instructions:
        constraints, answer = json.loads(problem.fields["constraints"]), problem.fields["answer"]
        assert all(IFEVAL.followed(problem.fields["constraints"], answer)), problem.fields
        content = [
            constraint for constraint in constraints if constraint["id"] in ("keywords:existence", "keywords:frequency")
        ]
        words = [word for one in content for word in one.get("keywords", [one.get("keyword")])]
        assert words and all(re.search(rf"\b{word}\b", problem.fields["prompt"]) for word in words), problem.fields
        assert 2 <= len(constraints) <= 4  # what is asked of the form, and that the content is there


def test_no_answer_suits_another_prompt(instructions: list[Problem]) -> None:
    """So a constant text, or one that ignores the prompt, gets nothing."""
    for instruction in instructions[:160]:
        others = [two for two in instructions[:480] if two.content != instruction.content]
        right = sum(all(IFEVAL.followed(two.fields["constraints"], instruction.fields["answer"])) for two in others)
        assert right / len(others) < 0.01
    echoed = {p.template for p in instructions if all(IFEVAL.followed(p.fields["constraints"], p.fields["prompt"]))}
    assert echoed <= {"sentences"}, "only a prompt for one sentence is an answer to itself"


# Needles


def _needles(context: str) -> list[tuple[str, str, str]]:
    """(number or word, whose, value) of all needles of a text."""
    return re.findall(r"The magic (number|word) of the (\w+ \w+) is (\w+)\.", context)


def test_answers_follow_from_the_text_and_only_from_it(haystacks: list[Problem]) -> None:
    kinds = {"single": (1, 1), "multikey": (4, 1), "multiquery": (3, 2), "word": (1, 1)}
    for problem in haystacks:
        fields = problem.fields
        result = _needles(fields["context"])
        needles, wanted = kinds[problem.template.rpartition("_")[0]]
        assert len(result) == len({whose for _, whose, _ in result}) == needles == fields["context"].count("magic")
        words = [word for _, whose, _ in result for word in whose.split()]
        assert len(set(words)) == len(words), "one word of an owner is enough to find its needle"
        asked = [
            (kind, whose, value) for kind, whose, value in result if re.search(rf"\b{whose}\b", fields["question"])
        ]
        assert len(asked) == wanted
        assert sorted(json.loads(fields["values"])) == sorted(value for _, _, value in asked)
        assert sorted(_needles(fields["answer"])) == sorted(asked)
        assert ("word" in fields["question"]) == problem.template.startswith("word") == (asked[0][0] == "word")


def test_templates_tell_the_length_in_tokens(haystacks: list[Problem]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "suites" / "pairs" / "weights" / "target")
    lengths: dict[str, list[int]] = {}
    for problem in haystacks:
        ids = tokenizer("".join(prompt_and_completion("ruler", problem.fields)))["input_ids"]
        lengths.setdefault(problem.template, []).append(len(ids))
    assert len(lengths) == 16
    for name, result in lengths.items():
        length = int(name.rpartition("_")[2])
        assert abs(sum(result) / len(result) - length) < max(0.03 * length, 12), name
        assert max(result) < 1000 and all(abs(one - length) < max(0.1 * length, 40) for one in result), name
    assert Counter(int(name.rpartition("_")[2]) for name in lengths) == dict.fromkeys(ruler.LENGTHS, 4)


def test_needles_lie_anywhere_among_sentences_that_differ(haystacks: list[Problem]) -> None:
    quarters = Counter()
    for problem in haystacks:
        context = problem.fields["context"]
        if problem.template.startswith("single"):
            quarters[4 * context.index("The magic") // len(context)] += 1
        if problem.template.endswith("_900"):
            sentences = context.split(". ")
            assert len(set(sentences)) > 0.9 * len(sentences)
        assert not re.search(r"[\[\]{}|]|  ", context)
    assert len(quarters) == 4 and min(quarters.values()) > 10


@pytest.mark.parametrize(("values", "text"), [
    (["4821"], " The magic number of the gray otter is 4821."),
    (["4821"], " It is 48210."),
    (["4821"], " The magic number of the gray otter is 482."),
    (["lemon"], " LEMON"),
    (["Lemon"], " lemon"),
    (["4821", "7730"], " 7730."),
    (["4821", "7730"], " 7730 4821"),
    (["4821", "7730"], ""),
])  # fmt: skip
def test_contains_is_rulers_string_match(values: list[str], text: str) -> None:
    result = RULER.score_values({"values": json.dumps(values)}, [text])
    assert result == {"contains": string_match_all([text], [values])}
