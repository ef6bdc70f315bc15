"""CoSpec's suites and the tasks that they brought: what they ask for, prompts, and scores worked out by hand."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from refusals import one_line_error

from specbench import config
from specbench.config import SUITES, SamplingSpec
from specbench.measure import loop
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun
from specbench.tasks.harness import DataUnavailable, TaskChoice, Tasks

pytestmark = pytest.mark.usefixtures("own_cache")

# The tasks

MBPP = [
    {
        "task_id": number,
        "text": f"Write a function {name} that {does} two numbers.",
        "code": f"def {name}(a, b):\r\n    return a {sign} b",
        "test_list": [f"assert {name}(3, 2) == {value}", f"assert {name}(0, 0) == 0", f"assert {name}(1, 0) == 1"],
    }
    for number, (name, does, sign, value) in enumerate(
        [("add", "adds", "+", 5), ("sub", "subtracts", "-", 1), ("both", "ors", "|", 3)], 1
    )
]
TRIVIA = [
    {"question": "Which sea has no shore", "answer": {"aliases": ["Sargasso Sea", "the Sargasso"]}},
    {"question": "Who wrote Emma", "answer": {"aliases": ["Jane Austen", "Austen"]}},
]
GPQA = [
    {
        "Question": f"What is {n} of them?",
        "Correct Answer": f" right {n}\n",
        **{f"Incorrect Answer {i}": f"wrong {n}{i}" for i in (1, 2, 3)},
    }
    for n in range(6)
]
MGSM = [
    {"language": "de", "question": "Anna hat 3 Hüte und kauft 4. Wie viele hat sie?", "answer_number": 7},
    {"language": "zh", "question": "一千二百加四十四是多少？", "answer_number": 1244},
]
CHAT = [
    {"prompt": ["Write a poem.", "Now a shorter one."], "reference": [], "category": "writing"},
    {"prompt": ["What is 2 + 2?", "And twice that?"], "reference": ["4", "8"], "category": "math"},
]
FILES = {"mbpp_test": MBPP[1:], "mbpp_train": MBPP, "triviaqa_validation": TRIVIA, "gpqa_train": GPQA}
FILES |= {"mgsm_test": MGSM, "mt_bench_train": CHAT}
LANGUAGES = ["en", "de", "es", "fr", "ru", "sw", "bn", "te", "th", "ja", "zh"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, rows in FILES.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def tasks(name: str, data: Path | None, fewshot: int | None = 0, seed: int = 1) -> Tasks:
    info = config.task_info(name)
    assert info.hub and info.data
    choice = TaskChoice(name, fewshot, info.max_new_tokens, info.data, info.hub, info.counterpart)
    folder = SUITES / "tasks"
    return Tasks([choice], task_folder=folder, data_dir=data, limit=None, seed=seed, chat=None, run_code=True)


def scored(name: str, data: Path, *texts: str) -> list[float]:
    """The headline metric of each text, then their mean, of the task's first documents."""
    result = tasks(name, data).score({(name, doc): text for doc, text in enumerate(texts)})
    metric = config.task_info(name).metric
    values = {one.doc_id: one.value for one in result if f"{one.metric},{one.filter}" == metric}
    return [values[doc] for doc in [*range(len(texts)), None]]


def test_mbpp_prompts(data: Path) -> None:
    first, second = tasks("mbpp", data).requests()
    assert first.prompt == (
        "You are an expert Python programmer, and here is your task: Write a function sub that subtracts two numbers. "
        "Your code should pass these tests:\n\n"
        "assert sub(3, 2) == 1\nassert sub(0, 0) == 0\nassert sub(1, 0) == 1\n[BEGIN]\n"
    )
    assert first.until == ("[DONE]",) and first.max_new_tokens == 512
    (data / "mbpp_train.jsonl").write_text("\n".join(json.dumps(MBPP[0] | {"task_id": n}) for n in range(1, 6)))
    shot = "[BEGIN]\ndef add(a, b):\r\n    return a + b\n[DONE]\n\n"
    prompts = [request.prompt for request in tasks("mbpp", data, fewshot=None).requests()]
    assert all(prompt.count(shot) == 3 for prompt in prompts) and prompts[1].endswith(second.prompt)


def test_shots_of_mbpp_are_problems_2_to_4(data: Path) -> None:
    """The `prompt` split begins with problem 1, which its paper leaves out."""
    rows = [MBPP[0] | {"task_id": n, "text": f"Number {n}."} for n in range(1, 11)]
    (data / "mbpp_train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    prompt = tasks("mbpp", data, fewshot=3).requests()[0].prompt
    assert re.findall(r"task: Number (\d+)", prompt) == ["2", "3", "4"]


def test_mbpp_runs_the_documents_tests(data: Path) -> None:
    right, other = "def sub(a, b):\n    return a - b\n", "def both(a, b):\n    return a + b\n"
    assert scored("mbpp", data, right, other) == [1.0, 0.0, 0.5]  # 3 | 2 is 3, 3 + 2 is 5
    assert scored("mbpp", data, "def sub(a, b):\n    return 1\n", "this is no program") == [0.0, 0.0, 0.0]
    assert scored("mbpp", data, "import os\nos._exit(0)\n") == [0.0, 0.0]  # leaves before the tests


def test_triviaqa_takes_any_alias(data: Path) -> None:
    first = tasks("triviaqa", data).requests()[0]
    assert first.prompt == "Question: Which sea has no shore?\nAnswer:"
    assert set(first.until) == {"\n", ".", ","} and first.max_new_tokens == 32
    assert scored("triviaqa", data, " The Sargasso", " Jane Austen") == [1.0, 1.0, 1.0]
    assert scored("triviaqa", data, " the Black Sea", " austen") == [0.0, 1.0, 0.5]
    assert scored("triviaqa", data, " Sargasso Sea, of course", " Jane") == [0.0, 0.0, 0.0]


def letters(data: Path, seed: int = 1) -> list[str]:
    """Where each right answer stands, read from the prompts."""
    prompts = [request.prompt for request in tasks("gpqa", data, seed=seed).requests()]
    return [re.search(r"\((.)\) right \d\n", prompt)[1] for prompt in prompts]  # type: ignore[index]


def test_gpqa_prompts(data: Path) -> None:
    requests = tasks("gpqa", data).requests()
    lines = requests[0].prompt.split("\n")
    assert lines[:2] == ["What is the correct answer to this question:What is 0 of them?", "Choices:"]
    assert lines[-1] == "Answer: Let's think step by step."
    assert [line[:4] for line in lines[2:6]] == ["(A) ", "(B) ", "(C) ", "(D) "]
    assert {line[4:] for line in lines[2:6]} == {"right 0", "wrong 01", "wrong 02", "wrong 03"}


def test_the_order_of_options_is_the_questions_own(data: Path, tmp_path: Path, monkeypatch) -> None:
    """Whatever the seed; with a cache of its own, as what is cached would be found again."""
    first = letters(data)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "another")
    assert len(set(first)) > 1 and letters(data, seed=2) == first


def test_gpqa_scores_the_letter(data: Path) -> None:
    right = letters(data)
    wrong = ["ABCD"["ABCD".index(letter) - 1] for letter in right]
    texts = [f" (A) or (B)? The answer is ({right[0]}).", f" so the answer is ({wrong[1]})", f" Answer: {right[2]}"]
    assert scored("gpqa", data, *texts) == [1.0, 0.0, 1.0, pytest.approx(2 / 3)]
    assert scored("gpqa", data, " I do not know.", f" not ({right[1]}) but ({wrong[1]})") == [0.0, 0.0, 0.0]


def test_mgsm_prompts_are_in_their_language(data: Path) -> None:
    german, chinese = tasks("mgsm", data).requests()
    assert german.prompt == "Frage: Anna hat 3 Hüte und kauft 4. Wie viele hat sie?\nStep-by-Step Answer:"
    assert chinese.prompt == "问题： 一千二百加四十四是多少？\nStep-by-Step Answer:"
    assert {"Question:", "Frage:", "问题：", "Задача:"} <= set(german.until)


def test_mgsm_scores_the_last_number(data: Path) -> None:
    assert scored("mgsm", data, " 3 + 4 = 7. The answer is 7.", " 共 1,244 个") == [1.0, 1.0, 1.0]
    assert scored("mgsm", data, " 7 ist falsch, es sind 8", " 1244.5") == [0.0, 0.0, 0.0]


def test_mgsm_from_the_hub_has_the_languages_in_turn(monkeypatch) -> None:
    asked = []

    def load_dataset(path: str, name: str, split: str) -> datasets.Dataset:
        asked.append((path, name, split))
        rows = [{"question": f"{name} {n}", "answer_number": n, "answer": None} for n in range(3)]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    prompts = [request.prompt for request in tasks("mgsm", None).requests()]
    assert asked == [("juletxara/mgsm", name, "test") for name in LANGUAGES]
    assert [re.search(r" (\w\w \d)\n", prompt)[1] for prompt in prompts] == [  # type: ignore[index]
        f"{name} {n}" for n in range(3) for name in LANGUAGES
    ]
    stops = set(tasks("mgsm", None).requests()[0].until)
    assert stops == {prompt.partition(f" {name} ")[0] for prompt, name in zip(prompts, LANGUAGES, strict=False)}


def test_mt_bench_asks_the_first_turn_and_waits_for_its_judge(data: Path) -> None:
    requests = tasks("mt_bench", data).requests()
    assert [request.prompt for request in requests] == ["Write a poem.", "What is 2 + 2?"]
    assert all(request.until == () and request.max_new_tokens == 1024 for request in requests)
    result = tasks("mt_bench", data).score({("mt_bench", 0): "Roses are red.", ("mt_bench", 1): "4"})
    assert {(one.doc_id, one.metric, one.value) for one in result} == {
        (0, "words", 3),
        (1, "words", 1),
        (None, "words", 2),
    }
    assert config.task_info("mt_bench").metric == "judge,none"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("alpaca", ("tatsu-lab/alpaca", "alpaca_test.jsonl", "bundled tasks pocket_gsm8k, pocket_math500")),
        ("mbpp", ("google-research-datasets/mbpp", "mbpp_test.jsonl", "pocket_humaneval")),
        ("triviaqa", ("mandarjoshi/trivia_qa", "triviaqa_validation.jsonl", "pocket_mmlu")),
        ("gpqa", ("Idavidrein/gpqa", "gpqa_train.jsonl", "pocket_mmlu")),
        ("mgsm", ("juletxara/mgsm", "mgsm_test.jsonl", "pocket_gsm8k")),
        ("mt_bench", ("HuggingFaceH4/mt_bench_prompts", "mt_bench_train.jsonl", "pocket_ruler")),
    ],
)
def test_a_hub_that_cannot_be_reached_is_told_with_what_helps(name: str, facts: Any, monkeypatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with one_line_error(*facts, "--data-dir", kind=DataUnavailable):
        tasks(name, None)


# The suites

THREE = [("gsm8k", 0), ("humaneval", 0), ("mbpp", 3)]
BESIDE: list[tuple[str, dict[str, Any]]]
BESIDE = [("sps", {"gamma": 25}), ("rest", {}), ("eagle3", {}), ("fly", {}), ("aasd", {}), ("cospec", {"gamma": 25})]
ABLATIONS = ["sft-only", "no-judge", "draft-judge", "terminal-only", "no-length", "no-risk", "no-rejection"]
ABLATIONS += ["no-rebalancing"]
TRANSFER = ["mt_bench", "triviaqa", "gpqa", "mgsm", "minerva_math500"]
FOUR = [(name, 0) for name in ("gsm8k", "minerva_math500", "humaneval", "cnn_dailymail_abisee")]
SIX = [*FOUR, ("ifeval", 0), ("niah_single_1", 0)]
# By table: tasks with their shots, the temperature, and each method with the settings that it is known by.
PAPER: dict[str, tuple[list[tuple[str, int]], float, list[tuple[str, dict[str, Any]]]]] = {
    "cospec": (THREE, 0.0, BESIDE),
    "cospec-sampled": (THREE, 1.0, BESIDE),
    "cospec-transfer": ([(name, 0) for name in TRANSFER], 0.0, [("sps", {"gamma": 25}), ("cospec", {"gamma": 25})]),
    "cospec-controls": (THREE[:2], 0.0, [("sps", {"gamma": 25}), ("cospec", {"gamma": 25})]),
    "cospec-rewards": (
        THREE[1:2],
        0.0,
        [
            ("cospec", {"arbitrator": f"pocket-work/heads/ablations/{name}.safetensors"})
            for name in (*ABLATIONS, "whole")
            if name != "no-risk"
        ]
        + [("cospec", {"arbitrator": "auto"})],
    ),
    "cospec-draft-length": (THREE[:1], 0.0, [("cospec", {"gamma": gamma}) for gamma in (15, 20, 25)]),
    "cospec-threshold": (THREE[:1], 0.0, [("cospec", {"threshold": threshold}) for threshold in (0.4, 0.6, 0.8)]),
    "cospec-mask": (THREE[:1], 0.0, [("cospec", {"mask": mask}) for mask in ("hybrid", "causal")]),
    "cospec-mask-trained": (
        SIX,
        0.0,
        [
            ("cospec", {"mask": "hybrid"}),
            ("cospec", {"arbitrator": "pocket-work/heads/cospec-causal-pocket-complement.safetensors"}),
        ],
    ),
    "cospec-arbiters": (
        FOUR,
        0.0,
        [("sps", {"gamma": 25})]
        + [("cospec", {"arbiter": one, "gamma": 25}) for one in ("never", "always")]
        + [("cospec", {"arbiter": f"random:{chance}", "gamma": 25}) for chance in ("0.91", "0.7")]
        + [("cospec", {"arbiter": "trained", "gamma": 25})]
        + [("csd", {"gamma": 25}), ("fly", {"gamma": 25})],
    ),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_suite_is_what_the_paper_lists(name: str) -> None:
    tasks, temperature, wanted = PAPER[name]
    suite = config.load_suite(name)
    assert suite.sampling == SamplingSpec(temperature=temperature, top_k=0, top_p=1.0)
    assert suite.paper.startswith("CoSpec (arXiv 2605.24793), Table") == (name != "cospec-arbiters")
    assert [(line.task, line.fewshot) for line in suite.tasks] == tasks
    specs = config.suite_methods(suite)
    results = [
        (spec.method, {key: spec.values[key] for key in known}) for spec, (_, known) in zip(specs, wanted, strict=True)
    ]
    assert results == wanted


@pytest.mark.parametrize("name", PAPER)
def test_a_suite_runs_on_the_papers_pairs(name: str) -> None:
    for pair in ("qwen3-32b-4b", "qwen3-32b-8b", "llama-3.3-70b-3.1-8b"):
        plan = resolve_plan([], name, pair, [], "vanilla", None)
        assert [(line.task, line.fewshot) for line in plan.tasks] == PAPER[name][0]
        assert [spec.method for spec in plan.methods] == ["vanilla", *(method for method, _ in PAPER[name][2])]


def test_the_larger_draft_is_another_pair_with_the_same_target() -> None:
    large, small = config.load_pair("qwen3-32b-8b"), config.load_pair("qwen3-32b-4b")
    assert large.target == small.target and large.draft and large.draft.model == "Qwen/Qwen3-8B"


def test_bundled_tasks_take_the_places_of_the_papers() -> None:
    """MBPP's is HumanEval's, which is run once and as HumanEval says."""
    plan = resolve_plan([], "cospec", "pocket", [], "vanilla", None)
    assert [(line.task, line.fewshot) for line in plan.tasks] == [("pocket_gsm8k", 0), ("pocket_humaneval", 0)]
    plan = resolve_plan([], "cospec-transfer", "pocket", [], "vanilla", None)
    assert {line.task for line in plan.tasks} == set(config.tasks()["alpaca"].counterparts) | {"pocket_mmlu"}
    bounds = {line.task: line.max_new_tokens for line in plan.tasks}  # short answers to trivia bound no other text
    assert set(bounds.values()) == {None}


@pytest.mark.long
def test_a_suite_of_the_paper_decodes(tmp_path: Path) -> None:
    """Table 1's methods but for the arbitrator, which need not be trained yet: `never` is SpS."""
    changes = ["cospec.arbiter=never"]
    plan = resolve_plan([], "cospec", "pocket", changes, "vanilla", 1)
    assert loop.execute(plan, tmp_path / "run", lambda _: True)
    samples = StoredRun(tmp_path / "run").samples()
    assert (samples.finish != "error").all(), samples.error.dropna().tolist()
    texts = samples[~samples.warmup].set_index(["task", "method"]).text
    for task in ("pocket_gsm8k", "pocket_humaneval"):
        assert {texts[task, name] for name in ("vanilla", "sps[gamma=25]", "rest", "eagle3", "cospec")} == {
            texts[task, "vanilla"]
        }
