"""The bundled pocket documents: apart from training, reproducible, asked and scored through lm-eval as intended."""

import gzip
import hashlib
import itertools
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cases import mostly_long
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from transformers import AutoTokenizer

from pocket import documents
from pocket.corpus import ALGEBRA, ALONE, FAMILIES, LATE, SHARES, prompt_and_completion, stretches
from pocket.documents import as_jsonl, bundled, generated, rows_of, written
from pocket.problems import SPLITS, problems
from specbench.tasks.data import task_manager
from specbench.tasks.sandbox import passes
from specbench.tasks.sandbox.unit_tests import of_prompt

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "suites" / "tasks"
WEIGHTS = ROOT / "suites" / "pairs" / "weights"
BUNDLED = [(family, split, count) for family in FAMILIES for split, count in (("test", 300), ("train", 16))]
HEADLINES = {
    "gsm8k": ["exact_match,strict-match", "exact_match,flexible-extract"],
    "math500": ["exact_match,none", "math_verify,none"],
    "humaneval": ["pass@1,none"],
    "cnndm": ["rougeL,none", "rouge1,none"],
    "ifeval": ["inst_level_strict_acc,none", "prompt_level_strict_acc,none"],
    "ruler": ["contains,none"],
    "mmlu": ["exact_match,none"],
    "long_needles": ["contains,none"],
    "long_news": ["rougeL,none", "rouge1,none"],
    "long_code": ["pass@1,none"],
    "longer_needles": ["contains,none"],
    "longer_news": ["rougeL,none", "rouge1,none"],
    "longer_code": ["pass@1,none"],
}
# SHA-256 of the first 50 stretches as JSON, taken before there were families that SHARES and ALGEBRA do not name.
STREAMS = [
    (SHARES, 0, "ccd892053ea7531e75c8eae08f7a325e2674003fa1ebb5491792bd336b86845f"),
    (ALGEBRA, 1, "36ea23bfe360f712726dde98854a414697e61cfbc7a12d21ace68e9c098b9196"),
]
DRAWN = 2000


def _rows(family: str, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (TASKS / "pocket" / f"{family}_{split}.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    names = [*yaml.safe_load((TASKS / "index.yaml").read_text()), "cnn_dailymail_abisee"]
    return task_manager(names, TASKS)  # reads these tasks only: all of lm-eval's take many seconds


def _task(manager: TaskManager, name: str, **overrides: object) -> ConfigurableTask:
    """The task of that name, some of its settings replaced."""
    spec = load_yaml(manager.task_index[name].yaml_path) | overrides if overrides else name
    return manager.load([spec])["tasks"][name]


def _local(path: Path, cache: Path) -> dict[str, object]:
    """Overrides that read a real task's documents from a local file."""
    files = {"data_files": {"test": str(path)}, "cache_dir": str(cache)}
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": files}


def _scores(task: ConfigurableTask, answers: list[str]) -> dict[str, list[float]]:
    """Scores of `answers` to the first documents by "metric,filter", through lm-eval's filters and metrics. A metric
    of several scores a document gives them all."""
    task.build_all_requests(limit=len(answers), rank=0, world_size=1)
    for instance, answer in zip(task.instances, answers, strict=True):
        instance.resps = [answer]
    task.apply_filters()
    scores: dict[str, list[float]] = {}
    for instance in task.instances:
        for name, response in instance.filtered_resps.items():
            for metric, score in task.process_results(instance.doc, [response]).items():
                scores.setdefault(f"{metric},{name}", []).extend(score if isinstance(score, list) else [score])
    return scores


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_splits_share_no_problem_and_no_prompt(family: str) -> None:
    drawn = {s: list(itertools.islice(problems(family, FAMILIES[family], s, 11), DRAWN)) for s in SPLITS}
    contents = {s: {(p.template, p.content) for p in drawn[s]} for s in SPLITS}
    prompts = {s: {prompt_and_completion(family, p.fields)[0] for p in drawn[s]} for s in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not contents[one] & contents[other]
        assert not prompts[one] & prompts[other]


@pytest.mark.parametrize("family", FAMILIES)
def test_content_does_not_depend_on_the_process(family: str) -> None:
    """A content with an address in it would land in another split in every process."""
    for problem in itertools.islice(problems(family, FAMILIES[family], "train", 0), 200):
        assert " at 0x" not in problem.content


def test_every_file_is_written_by_the_code() -> None:
    assert {name for name, _ in written()} == {path.name for path in (TASKS / "pocket").glob("*.jsonl*")}


@mostly_long("name, rows", written(), lambda name, rows: name.endswith(".jsonl") or name.startswith("gsm8k"))
def test_the_bundled_files_are_what_the_code_writes(name: str, rows: Callable[[], list[dict[str, str]]]) -> None:
    stored = (TASKS / "pocket" / name).read_bytes()
    assert (gzip.decompress(stored) if name.endswith(".gz") else stored) == as_jsonl(rows()).encode()


def test_write_replaces_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "written", lambda: [("a.jsonl", lambda: [{"a": "ä"}]), ("b.jsonl.gz", list)])
    assert [path.name for path in documents.write(tmp_path)] == ["a.jsonl", "b.jsonl.gz"]
    assert (tmp_path / "a.jsonl").read_text() == '{"a": "ä"}\n'
    assert gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()) == b""


@pytest.mark.parametrize(("family", "split", "count"), BUNDLED)
def test_bundled_documents_are_of_their_split_and_all_different(family: str, split: str, count: int) -> None:
    rows = _rows(family, split)
    drawn = bundled(family, split)
    assert as_jsonl(rows_of(family, split)).splitlines() == [json.dumps(row, ensure_ascii=False) for row in rows]
    assert {problem.split for problem in drawn} == {split}
    assert len({(problem.template, problem.content) for problem in drawn}) == count
    assert len({prompt_and_completion(family, row)[0] for row in rows}) == count
    covered = Counter(row["template"] for row in rows)
    assert len(covered) == min(count, len(FAMILIES[family]))
    assert max(covered.values()) - min(covered.values()) <= 1


@pytest.mark.parametrize(("shares", "seed", "digest"), STREAMS)
def test_streams_of_the_first_stages_stay_what_they_were(shares: dict[str, float], seed: int, digest: str) -> None:
    first = json.dumps(list(itertools.islice(stretches("train", seed, shares), 50)), ensure_ascii=False)
    assert hashlib.sha256(first.encode()).hexdigest() == digest


def test_the_last_mixture_of_the_pair_has_its_families_and_those_that_stand_alone_do() -> None:
    assert set(LATE) == set(FAMILIES) - {"mmlu"} and sum(LATE.values()) == pytest.approx(1)
    assert {"ruler"} == ALONE
    sizes: dict[str, set[int]] = {"Instruction": set(), "Read": set()}
    for stretch in itertools.islice(stretches("train", 3, {"ifeval": 0.5, "ruler": 0.5}), 400):
        sizes[stretch[0][0].partition(" ")[0].rstrip(":")].add(len(stretch))
    assert sizes["Read"] == {1} and len(sizes["Instruction"]) > 3


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_answer_fits_the_limit(family: str, manager: TaskManager) -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS / "target")
    some = [*_rows(family, "test"), *generated(family, "validation")]
    answers = [prompt_and_completion(family, row)[1] for row in some]
    longest = max(len(ids) for ids in tokenizer(answers, add_special_tokens=False)["input_ids"])
    limit = _task(manager, f"pocket_{family}").config.generation_kwargs["max_gen_toks"]
    assert 1.1 * longest < limit < 2 * longest


@pytest.mark.long
@pytest.mark.parametrize("split", ["test", "train"])
def test_every_canonical_solution_passes_and_none_does_not(split: str) -> None:
    for row in _rows("humaneval", split):
        tests = of_prompt(row["prompt"], row["test"], row["entry_point"])
        assert passes(row["prompt"] + row["canonical_solution"], tests).passed, row["prompt"]
        if split == "test":
            assert passes(row["prompt"] + "    return None", tests).reason == "failed", row["prompt"]


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_those_of_the_training_stream(family: str, manager: TaskManager) -> None:
    task = _task(manager, f"pocket_{family}")
    train = {
        prompt + completion for prompt, completion in (prompt_and_completion(family, r) for r in task.dataset["train"])
    }
    rows = _rows(family, "test")
    task.build_all_requests(limit=20, rank=0, world_size=1)
    assert [instance.args[0] for instance in task.instances] == [prompt_and_completion(family, r)[0] for r in rows[:20]]
    task.set_config(key="num_fewshot", value=3)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests(limit=20, rank=0, world_size=1)
    asked = []
    for instance, row in zip(task.instances, rows[:20], strict=True):
        prompt = prompt_and_completion(family, row)[0]
        examples = instance.args[0].removesuffix("\n\n" + prompt)
        chosen = [text for text in train if text in examples]
        assert examples in {"\n\n".join(order) for order in itertools.permutations(chosen)} and len(chosen) == 3
        asked.append(examples)
    assert len(set(asked)) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_answers_score_one(family: str, manager: TaskManager) -> None:
    rows = _rows(family, "test")[:40]
    answers = [prompt_and_completion(family, row)[1] for row in rows]
    scores = _scores(_task(manager, f"pocket_{family}"), answers)
    assert sorted(scores) == sorted(HEADLINES[family])
    for metric in HEADLINES[family]:
        assert len(scores[metric]) >= len(rows)
        assert scores[metric] == pytest.approx([1.0] * len(scores[metric])), metric


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_to_another_document_scores_less(family: str, manager: TaskManager) -> None:
    rows = _rows(family, "test")[:12]
    answers = [prompt_and_completion(family, row)[1] for row in [*rows[1:], rows[0]]]
    scores = _scores(_task(manager, f"pocket_{family}"), answers)
    for metric in HEADLINES[family]:
        assert sum(scores[metric]) / len(scores[metric]) < 0.5, metric


@pytest.mark.parametrize(("answer", "right"), [
    (r" So $x = \boxed{\frac{1}{2}}$.", True),
    (r" So $x = \boxed{\frac12}$.", True),
    (r" First $\boxed{3}$, then $\boxed{\frac{1}{2}}$.", True),
    (r" So $x = \boxed{2}$.", False),
    (r" So $x = \boxed{\frac{1}{2", False),
    (r" So $x = \boxed 3$.", False),
    (" I do not know.", False),
    ("", False),
])  # fmt: skip
def test_math_answers_are_read_from_the_last_box(answer: str, right: bool, manager: TaskManager) -> None:
    task = _task(manager, "pocket_math500")
    doc = {"problem": "p", "solution": r"Thus $x = \boxed{\frac{1}{2}}$.", "answer": r"\frac{1}{2}"}
    assert task.process_results(doc, [answer])["exact_match"] == int(right)


def test_rouge_uses_stems_and_the_longest_common_subsequence(manager: TaskManager) -> None:
    scores = _task(manager, "pocket_cnndm").process_results(
        {"highlights": "dogs chase the cat"}, ["the cat chased dog"]
    )
    assert scores["rouge1"] == pytest.approx(1.0)
    assert scores["rougeL"] == pytest.approx(0.5)  # "the cat" of four words


def test_stop_strings_are_not_in_the_gold_answers(manager: TaskManager) -> None:
    for family in FAMILIES:
        until = _task(manager, f"pocket_{family}").config.generation_kwargs["until"]
        for row in _rows(family, "test"):
            assert not any(stop in prompt_and_completion(family, row)[1] for stop in until)


def test_humaneval_is_ours_and_runs_in_the_sandbox(manager: TaskManager, tmp_path: Path) -> None:
    assert manager.task_index["humaneval"].yaml_path == TASKS / "humaneval" / "humaneval.yaml"
    task = _task(manager, "humaneval", **_local(TASKS / "pocket" / "humaneval_test.jsonl", tmp_path))
    rows = _rows("humaneval", "test")[:6]
    answers = [row["canonical_solution"] for row in rows[:3]] + ["    return None"] * 3
    assert _scores(task, answers) == {"pass@1,create_test": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]}
    assert [instance.args[0] for instance in task.instances] == [row["prompt"] for row in rows]


def test_cnn_dailymail_of_lm_eval_needs_local_data_only(manager: TaskManager, tmp_path: Path) -> None:
    path = TASKS / "pocket" / "cnndm_test.jsonl"
    scores = _scores(
        _task(manager, "cnn_dailymail_abisee", **_local(path, tmp_path)), [_rows("cnndm", "test")[0]["highlights"]]
    )
    assert scores["rougeL,none"] == [1.0]


def test_index_names_tasks_metrics_and_counterparts(manager: TaskManager) -> None:
    index = yaml.safe_load((TASKS / "index.yaml").read_text())
    fields = {"description", "hub", "data", "metric", "max_new_tokens", "counterpart"}
    for name, entry in index.items():
        assert name in manager.all_subtasks and set(entry) - {"calibration", "runs_code"} == fields
        counterparts = entry["counterpart"] or []
        assert {*([counterparts] if isinstance(counterparts, str) else counterparts)} <= set(index)
        if entry["hub"] is None:
            task = _task(manager, name)
            assert task.config.generation_kwargs["max_gen_toks"] == entry["max_new_tokens"]
            family = name.removeprefix("pocket_")
            assert family == name or entry["metric"] in HEADLINES[family]
        elif dataset := manager.task_index[name].cfg["dataset_path"]:
            assert dataset == entry["hub"]
        else:  # made by lm-eval
            assert "custom_dataset" in manager.task_index[name].cfg
    assert {f"pocket_{family}" for family in FAMILIES} <= set(index)


def test_pocket_tasks_load_offline_from_any_folder_without_a_cache(tmp_path: Path) -> None:
    script = (
        "import sys; from lm_eval.tasks import TaskManager\n"
        "manager = TaskManager(include_path=sys.argv[1], include_defaults=False)\n"
        "print([len(t.eval_docs) for t in manager.load(sys.argv[2:])['tasks'].values()])"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(TASKS.parents[1])}
    environment = {key: value for key, value in environment.items() if key not in ("HF_DATASETS_CACHE", "HF_HUB_CACHE")}
    command = [sys.executable, "-c", script, str(TASKS), *(f"pocket_{family}" for family in FAMILIES)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert f"{[300] * len(FAMILIES)}" in done.stdout, done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
