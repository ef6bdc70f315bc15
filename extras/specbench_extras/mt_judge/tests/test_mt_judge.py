"""Grades of a judge model: worked out by hand and by another route, and how they join the scores of a run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from screens import call
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.analysis import compare
from specbench.config import ModelSpec, PairSpec, UserError
from specbench.engine.models.folders import location
from specbench.engine.models.pair import load_pair
from specbench.measure import loop
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun
from specbench_extras.mt_judge import score as mt_judge
from specbench_extras.mt_judge.score import Judge

TARGET = "bundled:target"
TEN = 300  # the token of "10" in a vocabulary that has one
TEMPLATE = "a chat template"


def made(
    first: dict[str, float], second: dict[str, float], ten: bool = False, template: bool = False, joins: bool = False
) -> tuple[Any, list[list[int]]]:
    """A pair whose tokens are characters, and what it was fed.

    It gives the probabilities `first` behind the beginning of a reply, and `second` behind a 1 there.
    """
    fed: list[list[int]] = []

    class Tokenizer:
        bos_token_id = None
        chat_template = TEMPLATE if template else None

        def __call__(self, text: str) -> dict[str, list[int]]:
            if joins and text[-1].isdigit():
                return {"input_ids": [*map(ord, text[:-2]), 301]}
            return {"input_ids": [*map(ord, text[:-2]), TEN] if ten and text.endswith("10") else [*map(ord, text)]}

        def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> str:
            assert options == {"tokenize": False, "add_generation_prompt": True}
            (message,) = messages
            return f"<{message['role']}>{message['content']}<assistant>"

    class Session:
        def truncate(self, length: int) -> None:
            assert length == 0

        def forward(self, ids: list[int], keep: int) -> Any:
            fed.append(ids)
            logits = torch.full((keep, 400), -math.inf)
            for row, given in zip(logits, (first, second), strict=True):
                for text, p in given.items():
                    row[TEN if text == "10" else ord(text)] = math.log(p)
            return SimpleNamespace(logits=logits)

    return SimpleNamespace(tokenizer=Tokenizer(), context=2000, session=lambda role: Session()), fed


def test_ten_in_two_tokens_takes_its_share_from_one() -> None:
    """p(1) = 0.5 · (1 − 0.5), p(9) = 0.5, p(10) = 0.5 · 0.5."""
    pair, fed = made({"1": 0.5, "9": 0.5}, {"0": 0.5, "]": 0.5})
    assert Judge(pair).grade("What?", "That.") == pytest.approx(0.25 * 1 + 0.5 * 9 + 0.25 * 10)
    (ids,) = fed
    assert "".join(map(chr, ids)).endswith("nothing else.\n\nGrade: [[1")


def test_ten_in_one_token_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is no grade counts for nothing: (0.2 · 1 + 0.2 · 10) / 0.4."""
    pair, _ = made({"1": 0.2, "10": 0.2, "x": 0.6}, {"0": 1.0}, ten=True)
    assert Judge(pair).grade("What?", "That.") == pytest.approx(5.5)


@pytest.mark.parametrize("template", [False, True])
def test_the_judge_reads_question_and_answer(template: bool) -> None:
    pair, fed = made({"7": 1.0}, {"]": 1.0}, template=template)
    assert Judge(pair).grade("Why {this}?", "Because {0}.") == 7
    text = "".join(map(chr, fed[0]))
    assert text.index("Why {this}?") < text.index("Because {0}.") < text.index("Grade: [[1")
    assert text.startswith("<user>" if template else "An assistant")
    assert ("<assistant>Grade: [[" in text) == template


def test_tokenizers_without_tokens_for_grades_are_refused() -> None:
    with pytest.raises(UserError, match="no separate tokens for grades"):
        Judge(made({"1": 1.0}, {"0": 1.0}, joins=True)[0])


def test_what_is_too_long_for_the_judge() -> None:
    judge = Judge(made({"1": 1.0}, {"0": 1.0})[0])
    with pytest.raises(UserError, match="the judge, which reads 2000; take one with a longer context"):
        judge.grade("What?", "x" * 2000)


@pytest.mark.long
def test_grades_of_a_model_by_another_route() -> None:
    """Each grade's text scored by a whole forward of its own, without a session: as tokens, then `]` or not 0."""
    spec = PairSpec(name="judge", description="", target=ModelSpec(model=TARGET))
    judge = Judge(load_pair(spec, "cpu", "float64"))
    model = AutoModelForCausalLM.from_pretrained(location(TARGET), dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(location(TARGET))
    for question, answer in (("What is 2 + 2?", "4"), ("Tom has 3 hats.", "He has 3 hats.\n#### 3")):
        text = mt_judge.REQUEST.format(question=question, answer=answer) + "\n\nGrade: [["

        def odds(text: str, following: str) -> float:
            ids = tokenizer(text, return_tensors="pt").input_ids
            with torch.no_grad():
                p = model(ids).logits[0, -1].softmax(-1)
            return float(p[tokenizer(text + following).input_ids[-1]])

        p = {n: odds(text, str(n)) for n in range(1, 10)}
        zero = odds(text + "1", "0")
        p[10], p[1] = p[1] * zero, p[1] * (1 - zero)
        assert judge.grade(question, answer) == pytest.approx(sum(n * p[n] for n in p) / sum(p.values()), rel=1e-9)


# In a run

CHAT = [
    {"prompt": ["Tom has 3 hats and buys 4. How many?", "And then?"], "reference": [], "category": "math"},
    {"prompt": ["Ann has 9 cups. How many?", "And then?"], "reference": ["9"], "category": "math"},
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of mt_bench and a bundled task by the bundled pair: two documents each, two methods with the same texts."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "mt_bench_train.jsonl").write_text("\n".join(map(json.dumps, CHAT)) + "\n")
    tasks = "[{task: mt_bench, fewshot: 0, max_new_tokens: 12}, {task: pocket_gsm8k, fewshot: 1, max_new_tokens: 30}]"
    (folder / "own.yaml").write_text(f"description: d\nlimit: 2\ntasks: {tasks}\n")
    datasets.config.HF_DATASETS_CACHE, kept = folder / "cache", datasets.config.HF_DATASETS_CACHE
    try:
        plan = resolve_plan(["sps"], str(folder / "own.yaml"), "pocket", [], "vanilla", None, str(folder))
        assert loop.execute(plan, folder / "run", lambda _: True)
        compare.write_summary(folder / "run")
    finally:
        datasets.config.HF_DATASETS_CACHE = kept
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", finished.parent / "cache")
    copy = tmp_path / "run"
    copy.mkdir()
    for path in finished.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is graded; each text is worth 2 for its first document and 7 for the second, by their questions."""
    asked: list[tuple[str, str]] = []

    def grade(self: Judge, question: str, answer: str) -> float:
        asked.append((question, answer))
        return 2.0 if question == CHAT[0]["prompt"][0] else 7.0

    monkeypatch.setattr(Judge, "grade", grade)
    return asked


def test_before_a_judge_the_score_is_not_known(run: Path) -> None:
    summary = pd.read_parquet(run / "summary.parquet")
    summed = summary[summary.task == "mt_bench"]
    assert (
        list(summed.method) == ["vanilla", "sps"] and summed.accuracy.isna().all() and (summed.speedup_decode > 0).all()
    )
    assert StoredRun(run).headline()["mt_bench"] == "judge,none"


def test_grades_join_the_scores(run: Path, graded: list[tuple[str, str]]) -> None:
    before = StoredRun(run).scores()
    grades = mt_judge.score(run, TARGET, [])
    assert grades == {("mt_bench", "vanilla"): [2.0, 7.0], ("mt_bench", "sps"): [2.0, 7.0]}
    samples = StoredRun(run).samples()
    texts = samples[(samples.task == "mt_bench") & ~samples.warmup & (samples.method == "vanilla")].text
    assert graded == list(zip([one["prompt"][0] for one in CHAT], texts, strict=True))  # once for both methods
    after = StoredRun(run).scores()
    pd.testing.assert_frame_equal(after[after.metric != "judge"].reset_index(drop=True), before)
    new = after[after.metric == "judge"]
    assert set(new.task) == {"mt_bench"} and set(new["filter"]) == {"none"} and len(new) == 6
    for _, part in new.groupby("method"):
        assert part[part.doc_id.notna()].set_index("doc_id").value.to_dict() == {0: 0.2, 1: 0.7}
        (whole,) = part[part.doc_id.isna()].itertuples()
        assert whole.value == pytest.approx(0.45)
        assert whole.stderr == pytest.approx(0.25)  # 0.25 · √2 / √2
    summary = pd.read_parquet(run / "summary.parquet")
    assert np.allclose(summary[summary.task == "mt_bench"].accuracy, 0.45)
    report = json.loads((run / "judge.json").read_text())["mt_bench"]
    assert report["model"] == TARGET and report["weights_hash"] and "[The question]" in report["request"]


@pytest.mark.long
def test_grading_again_replaces_the_grades(
    run: Path, graded: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mt_judge.score(run, TARGET, [])
    first = StoredRun(run).scores()
    mt_judge.score(run, TARGET, ["mt_bench"])
    pd.testing.assert_frame_equal(StoredRun(run).scores(), first)
    monkeypatch.setattr(Judge, "grade", lambda self, question, answer: 10.0)
    mt_judge.score(run, TARGET, ["pocket_gsm8k"])
    scores = StoredRun(run).scores()
    wholes = scores[(scores.metric == "judge") & scores.doc_id.isna() & (scores.method == "sps")]
    assert wholes.set_index("task").value.to_dict() == {"mt_bench": pytest.approx(0.45), "pocket_gsm8k": 1.0}
    assert set(json.loads((run / "judge.json").read_text())) == {"mt_bench", "pocket_gsm8k"}


def test_a_question_is_asked_without_shots(run: Path, graded: list[tuple[str, str]]) -> None:
    mt_judge.score(run, TARGET, ["pocket_gsm8k"])
    assert len({question for question, _ in graded}) == 2
    assert all(question.count("Question:") == 1 for question, _ in graded)


@pytest.mark.parametrize(
    ("change", "asked", "message"),
    [
        ("", ["chess"], "has no task 'chess'; it has mt_bench, pocket_gsm8k"),
        ("headline", [], "has no task that needs a judge; name one of mt_bench, pocket_gsm8k with --task"),
        ("scores", [], "has no scores: it is not a finished run"),
        ("documents", [], "document 1 of mt_bench has changed since"),
        ("failed", [], "has no answers to mt_bench"),
    ],
)
def test_what_cannot_be_graded(run: Path, graded: list[Any], change: str, asked: list[str], message: str) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    if change == "headline":
        manifest["headline"]["mt_bench"] = "words,none"
    elif change == "scores":
        (run / "scores.parquet").unlink()
    elif change == "documents":
        manifest["requests"] = [
            [t, d, p, "other" if (t, d) == ("mt_bench", 1) else h] for t, d, p, h in manifest["requests"]
        ]
    elif change == "failed":
        samples = pd.read_parquet(run / "samples.parquet")
        samples.assign(finish="error").to_parquet(run / "samples.parquet")
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError) as caught:
        mt_judge.score(run, TARGET, asked)
    assert message in str(caught.value) and "\n" not in str(caught.value) and graded == []


def test_the_command(run: Path) -> None:
    """With the bundled target as the judge: whatever it thinks, grades are grades."""
    done = call("score", run, "--judge", TARGET)
    assert done.exit_code == 0, done.output
    assert "mt_bench vanilla" in " ".join(done.output.split()) and "score, 1 to 10 [95 %]" in done.output
    scores = StoredRun(run).scores()
    values = scores[scores.metric == "judge"].set_index(["method", "doc_id"]).value
    assert values.between(0.1, 1).all() and values["sps", 0] == values["vanilla", 0] != values["vanilla", 1]
    wrong = call("score", run, "--judge", TARGET, "--task", "chess")
    assert wrong.exit_code == 2
