"""Long documents: as long as they say, apart from training, with one problem that is asked, and scored as it is."""

import pytest
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from pocket import long
from pocket.corpus import prompt_and_completion
from pocket.problems import split_of
from specbench.config import SUITES
from specbench.tasks.sandbox import passes
from specbench.tasks.sandbox.unit_tests import of_prompt

FAMILY = {"needles": "ruler", "news": "cnndm", "code": "humaneval"}
TOKENS = 2000
KINDS = pytest.mark.parametrize("kind", FAMILY)


def prompts(kind, rows):
    return [prompt_and_completion(FAMILY[kind], row) for row in rows]


@KINDS
def test_documents_are_about_as_long_as_they_say(kind):
    tokenizer = AutoTokenizer.from_pretrained(SUITES / "pairs" / "weights" / "target")
    texts = [prompt + answer for prompt, answer in prompts(kind, long.documents(kind, "test", TOKENS)[:30])]
    lengths = sorted(len(ids) for ids in tokenizer(texts)["input_ids"])
    assert lengths[0] > 0.85 * TOKENS and lengths[-1] < 1.15 * TOKENS
    shorter = long.documents(kind, "train", TOKENS // 2)
    assert max(len(prompt) for prompt, _ in prompts(kind, shorter)) < 0.8 * min(map(len, texts))


@KINDS
def test_documents_of_splits_are_apart_and_always_the_same(kind):
    by_split = {split: long.documents(kind, split, TOKENS) for split in long.COUNTS}
    assert {split: len(rows) for split, rows in by_split.items()} == long.COUNTS
    asked = {split: {tuple(row[name] for name in own(kind)) for row in rows} for split, rows in by_split.items()}
    assert all(len(result) == long.COUNTS[split] for split, result in asked.items())
    assert not asked["test"] & asked["calibration"] and not asked["test"] & asked["train"]
    assert long.documents(kind, "test", TOKENS) == by_split["test"]
    first = by_split["test"][:16]
    assert len({row["template"] for row in first}) > 2, "any first few are a fair sample"


def own(kind):
    return {"needles": ("context",), "news": ("highlights", "article"), "code": ("prompt", "test")}[kind]


def test_what_stands_around_is_of_the_training_split(monkeypatch):
    """Stories and functions that are not asked; the asked ones are of the test split, by the hash of their content."""
    drawn = []
    problems = long.problems

    def noted(family, templates, split, seed):
        for problem in problems(family, templates, split, seed):
            drawn.append((split, problem))
            yield problem

    monkeypatch.setattr(long, "problems", noted)
    for kind, text in (("news", "article"), ("code", "prompt")):
        drawn.clear()
        (row, *_) = [next(iter(long.KINDS[kind]("test", TOKENS)))[1]]
        assert {split for split, _ in drawn} == {"test", "train"}
        assert all(split_of(one.template, one.content) == split for split, one in drawn)
        assert sum(one.fields[text] in row[text] for _, one in drawn) > 5


def test_files_of_code_run_and_hold_each_name_once():
    for row in long.documents("code", "test", TOKENS)[:3]:
        tests = of_prompt(row["prompt"], row["test"], row["entry_point"])
        assert passes(row["prompt"] + row["canonical_solution"], tests).passed
        assert not passes(row["prompt"] + "    return None", tests).passed
        names = [line.split("(")[0] for line in row["prompt"].splitlines() if line.startswith("def ")]
        assert len(names) == len(set(names)) > 8 and names[-1] == f"def {row['entry_point']}"


@KINDS
def test_gold_answers_score_one(kind):
    manager = TaskManager(include_path=str(SUITES / "tasks"), include_defaults=False)
    task = manager.load([f"pocket_long_{kind}"])["tasks"][f"pocket_long_{kind}"]
    rows = long.documents(kind, "test", TOKENS)[:3]
    task.build_all_requests(limit=3, rank=0, world_size=1)
    assert [instance.args[0] for instance in task.instances] == [prompt for prompt, _ in prompts(kind, rows)]
    metric = {"needles": "contains", "news": "rougeL", "code": "pass@1"}[kind]
    for i, (_, answer) in enumerate(prompts(kind, rows)):
        assert task.process_results(rows[i], [answer])[metric] == pytest.approx(1)
        other = prompts(kind, rows)[i - 1][1]
        assert task.process_results(rows[i], [other])[metric] < 1


@pytest.mark.parametrize("wrong", [("poems", "test"), ("news", "dev")])
def test_unknown_kinds_and_splits(wrong):
    with pytest.raises(KeyError):
        long.documents(*wrong, TOKENS)
