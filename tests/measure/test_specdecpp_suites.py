"""SpecDec++'s suites and their task: what they ask for, Alpaca's splits and prompts, and texts of bounded length."""

import hashlib
import json
from pathlib import Path

import datasets
import pytest
from refusals import one_line_error

from specbench import config
from specbench.config import SUITES
from specbench.measure import command
from specbench.plan import resolve_plan
from specbench.report import comparison
from specbench.results.stored import StoredRun
from specbench.tasks.harness import TaskChoice, Tasks

POCKET = [f"pocket_{family}" for family in ("gsm8k", "math500", "humaneval", "cnndm", "ifeval", "ruler")]
DOCUMENTS = [
    {"instruction": "Name a cat.", "input": "", "output": "the cat sat"},
    {"instruction": "Add them.", "input": "2 and 3", "output": "5"},
]
EXAMPLE = {"instruction": "Say hello.", "input": "", "output": "Hello."}
# Written out from the template that came with the data set.
BARE = """Below is an instruction that describes a task. Write a response that appropriately completes the request.

### Instruction:
Name a cat.

### Response:"""
WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    """Write a response that appropriately completes the request.

### Instruction:
Add them.

### Input:
2 and 3

### Response:"""
)
pytestmark = pytest.mark.usefixtures("own_cache")
CHOICE = TaskChoice("alpaca", 0, 512, "alpaca", "tatsu-lab/alpaca", tuple(POCKET))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with Alpaca's test and train files."""
    for split, rows in {"test": DOCUMENTS, "train": [EXAMPLE]}.items():
        (tmp_path / f"alpaca_{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def tasks(data: Path | None, choice: TaskChoice = CHOICE, **changes) -> Tasks:
    settings = {"data_dir": data, "limit": None, "seed": 1, "chat": None} | changes
    return Tasks([choice], task_folder=SUITES / "tasks", **settings)


# The suites


def test_the_suite_of_the_paper():
    plan = resolve_plan([], "specdecpp", "llama-2-chat-70b-7b", [], "vanilla", None)
    assert (plan.temperature, plan.top_k, plan.top_p, plan.max_length) == (1.0, 50, 1.0, 512)
    assert plan.sampling.name == "T=1 top-k=50"
    assert [(line.task, line.fewshot) for line in plan.tasks] == [("alpaca", 0), ("humaneval", 0), ("gsm8k", 0)]
    # every text may use all that its prompt leaves of the 512
    assert all(line.max_new_tokens == 512 for line in plan.tasks)
    names = ["vanilla", "sps", "specdecpp", "confidence", "cumulative", "entropy", "heuristic"]
    assert [spec.name for spec in plan.methods] == names
    on_pocket = resolve_plan([], "specdecpp", "pocket", [], "vanilla", None)
    assert [(line.task, line.fewshot) for line in on_pocket.tasks] == [(name, 0) for name in POCKET]


def test_the_frontier_sweeps_both_kinds_of_draft():
    plan = resolve_plan([], "specdecpp-frontier", "pocket", [], "vanilla", None)
    assert (plan.temperature, plan.top_k, plan.max_length) == (1.0, 50, 512)
    result: dict[str, list] = {"sps": [], "specdecpp": []}
    for spec in plan.methods[1:]:
        result[spec.method].append(spec.values["gamma" if spec.method == "sps" else "threshold"])
        assert spec.values["stop_at_eos"] is True
    assert result == {"sps": [1, 2, 4, 6, 8, 10, 12, 14, 20], "specdecpp": [0.05, 0.1, 0.3, 0.5, 0.7, 0.9]}
    assert [line.task for line in plan.tasks] == POCKET


# Alpaca


def test_prompts_and_limits(data):
    asked = tasks(data).requests()
    assert [one.prompt for one in asked] == [BARE, WITH_INPUT]
    assert {one.max_new_tokens for one in asked} == {512} and asked[0].until == ("### Instruction:",)


def test_shots_come_from_the_training_documents(data):
    choice = TaskChoice("alpaca", 1, 512, "alpaca", "tatsu-lab/alpaca", None)
    example = BARE.replace("Name a cat.", "Say hello.") + "\nHello."
    assert tasks(data, choice).requests()[0].prompt == f"{example}\n\n{BARE}"


def test_the_score_is_the_overlap_with_the_reference(data):
    scores = tasks(data).score({("alpaca", 0): " the cat", ("alpaca", 1): "5"})
    by_name = {(score.doc_id, score.metric): score.value for score in scores}
    assert by_name[0, "rougeL"] == pytest.approx(0.8)  # 2 of 2 words are right, of 3 wanted
    assert by_name[1, "rougeL"] == 1.0 and by_name[None, "rougeL"] == pytest.approx(0.9)
    info = config.task_info("alpaca")
    assert info.metric == "rougeL,none" and "not an accuracy" in info.description


def part(instruction: str) -> str:
    """The split of an instruction, worked out in another way: the hash's first 16 hex digits, in 52 parts."""
    number = int(hashlib.sha256(instruction.encode("utf-8")).hexdigest()[:16], 16) % 52
    return (["test"] * 2 + ["validation"] * 10 + ["train"] * 40)[number]


@pytest.fixture
def hub(monkeypatch):
    """A data set in one piece, as the hub has it: 520 instructions, each with two inputs."""
    rows = [{"instruction": f"Do {i}.", "input": text, "output": str(i)} for text in ("", "x") for i in range(520)]
    asked = []

    def load_dataset(path, split):
        asked.append((path, split))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize("split", [None, "validation", "train"])
def test_splits_of_the_hubs_data_set(hub, split):
    """The same instruction is in one split only, whatever its input; and each split is in the data set's own order."""
    choice = TaskChoice("alpaca", 0, 512, "alpaca", "tatsu-lab/alpaca", None, split)
    asked = tasks(None, choice).requests()
    wanted = [i for _ in range(2) for i in range(520) if part(f"Do {i}.") == (split or "test")]
    assert [int(one.prompt.split("Do ")[1].split(".")[0]) for one in asked] == wanted
    assert hub == [("tatsu-lab/alpaca", "train")]
    share = {None: 2, "validation": 10, "train": 40}[split] / 52
    assert len(wanted) == pytest.approx(1040 * share, rel=0.35)


def test_a_split_that_is_not_there(hub):
    with pytest.raises(ValueError, match="no documents of a split 'dev'"):
        tasks(None, TaskChoice("alpaca", 0, 512, "alpaca", "tatsu-lab/alpaca", None, "dev"))


# Texts of bounded length


def test_a_prompt_leaves_less_room_or_none(data):
    """By the words of the prompts, 23 and 35 of them: 30 leave 7 and none, 36 leave 13 and 1."""
    bounded = tasks(data, room=lambda prompt: 30 - len(prompt.split()))
    (only,) = bounded.requests()
    assert (only.doc_id, only.max_new_tokens) == (0, 7)
    assert bounded.left_out == {"alpaca": 1}
    assert tasks(data, room=lambda prompt: 4000).left_out == {}
    assert {request.max_new_tokens for request in tasks(data, room=lambda prompt: 4000).requests()} == {512}
    exact = tasks(data, room=lambda prompt: 36 - len(prompt.split()))
    assert [request.max_new_tokens for request in exact.requests()] == [13, 1] and exact.left_out == {}


def test_documents_without_room_are_not_scored(data):
    bounded = tasks(data, room=lambda prompt: 30 - len(prompt.split()))
    assert {one.doc_id for one in bounded.score({("alpaca", 0): "the cat sat"})} == {0, None}


def test_a_task_without_any_room_is_refused(data):
    with one_line_error("prompts of alpaca leave no room", kind=ValueError):
        tasks(data, room=lambda prompt: 0)


@pytest.mark.long
def test_no_text_of_a_run_is_longer_than_its_suite_allows(tmp_path, capsys):
    """With the bundled pair: prompts of 98, 124, 82 and 103 tokens, and of 112 and more, in 120.

    The run says how it samples, and in one line of each task how many documents it left out.
    """
    suite = tmp_path / "short.yaml"
    lines = "{task: pocket_gsm8k, fewshot: 1}, {task: pocket_ruler}"
    suite.write_text(f"description: d\nlimit: 4\nmax_length: 120\nsampling: {{temperature: 1}}\ntasks: [{lines}]\n")
    plan = resolve_plan(["sps"], str(suite), "pocket", [], "vanilla", None)
    assert comparison.finish(command.run(plan, tmp_path / "run", None)) == 0
    printed = capsys.readouterr().out
    assert "sampled: T=1" in printed
    lines = [line for line in printed.splitlines() if "left out" in line]
    assert [line.removeprefix("warning: ").split(": ")[:2] for line in lines] == [
        ["pocket_gsm8k", "1 documents left out"],
        ["pocket_ruler", "3 documents left out"],
    ]
    assert all("120 tokens" in line for line in lines)
    run = StoredRun(tmp_path / "run")
    assert run.manifest["left_out"] == {"pocket_gsm8k": 1, "pocket_ruler": 3}
    samples = run.samples()
    samples = samples[~samples.warmup]
    sizes = {("pocket_gsm8k", 0): 98, ("pocket_gsm8k", 2): 82, ("pocket_gsm8k", 3): 103, ("pocket_ruler", 0): 112}
    assert set(zip(samples.task, samples.doc_id, strict=True)) == set(sizes)
    for _, row in samples.iterrows():
        bound = 120 - sizes[row.task, row.doc_id]
        assert row.prompt_tokens == 120 - bound and len(row.tokens) <= bound
        assert row.finish != "length" or len(row.tokens) == bound
    assert "length" in set(samples.finish)
    assert run.manifest["generation"]["pocket_gsm8k"]["max_length"] == 120
    assert set(run.scores().dropna(subset="doc_id").doc_id) == {0, 2, 3}
