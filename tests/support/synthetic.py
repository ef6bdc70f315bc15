"""Run folders made of rows that a test writes down, so that what is read from them can be worked out by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specbench.base import files
from specbench.results import records
from specbench.results.stored import StoredRun

ENVIRONMENT = {"device": "cpu", "cpu": "abacus", "cores": 2, "threads": 2, "driver": "", "versions": {"torch": "1"}}
ENVIRONMENT |= {"load": 0.1}
SINGLE, CHAIN = ((0, 0),) * 4, ((3, 1),) * 2  # rounds (D, A) of 4 tokens: without drafts, and with drafts of 3


def sample(method, doc_id, decode=1.0, *, task="one", repeat=0, prefill=0.25, **others):
    row = {"repeat": repeat, "task": task, "doc_id": doc_id, "method": method, "warmup": False, "finish": "length"}
    return row | {"prefill_seconds": prefill, "decode_seconds": decode, "peak_memory": 10} | others


def rounds(sample_row, *drafted_accepted, seconds=(0.1, 0.05)):
    """A prefill and one round for each (D, A), each of which commits A + 1 tokens."""
    key = {name: sample_row[name] for name in ("repeat", "task", "doc_id", "method", "warmup")}
    prefill = {"round": 0, "drafted": 0, "accepted": 0, "rescued": 0, "committed": 1, "truncated": 0}
    prefill |= {"target_forwards": 7, "draft_forwards": 7, "target_seconds": 50.0, "draft_seconds": 50.0}
    rows = [key | prefill]
    for number, (drafted, accepted) in enumerate(drafted_accepted, 1):
        row = {"round": number, "drafted": drafted, "accepted": accepted, "rescued": 0, "committed": accepted + 1}
        row |= {"truncated": 0, "target_forwards": 1, "draft_forwards": drafted}
        rows.append(key | row | {"target_seconds": seconds[0], "draft_seconds": seconds[1] if drafted else 0.0})
    return rows


def scores(method, values, *, task="one", repeat=0, metric="hit", filter="strict"):
    """Per-document scores [documents] and the task's mean, with a made-up standard error of 0.125."""
    key = {"repeat": repeat, "task": task, "method": method, "metric": metric, "filter": filter}
    rows = [key | {"doc_id": doc_id, "value": float(value), "stderr": None} for doc_id, value in enumerate(values)]
    return [*rows, key | {"doc_id": None, "value": sum(values) / len(values), "stderr": 0.125}]


def write_run(
    folder: Path, samples, all_rounds, score_rows, *, settings=None, environment=None, prompts=None, **plan
) -> Path:
    """A finished run; `settings` are those of its methods by name, `prompts` a hash for each task and document."""
    tasks = list(dict.fromkeys(row["task"] for row in samples))
    methods = list(dict.fromkeys(row["method"] for row in samples))
    documents = list(dict.fromkeys((row["task"], row["doc_id"]) for row in samples))
    prompts = prompts or {}
    folder.mkdir(parents=True)
    records.write_table(folder / "samples.parquet", samples, records.SAMPLES)
    records.write_table(folder / "rounds.parquet", all_rounds, records.ROUNDS)
    records.write_table(folder / "scores.parquet", score_rows, records.SCORES)
    specs = []
    for name in methods:
        given = {key: {"value": value} for key, value in (settings or {}).get(name, {}).items()}
        specs.append({"name": name, "method": name.partition("[")[0], "settings": given})
    model = {"model": "bundled:target"}
    files.write_json(
        folder / "manifest.json",
        {
            "schema": records.VERSION,
            "plan": {
                "pair": {"name": "tiny", "description": "", "target": model, "draft": model},
                "methods": specs,
                "baseline": "plain",
                "suite": "synthetic",
                "tasks": [{"task": task} for task in tasks],
                **plan,
            },
            "models": {
                "target": {
                    "dtype": "float32",
                    "weights_hash": "aa",
                    "config_hash": "bb",
                    "generation_hash": "cc",
                    "tokenizer_state": "dd",
                }
            },
            "tokenizer_hash": "bb",
            "inputs": {},
            "requests": [[t, d, prompts.get((t, d), f"{t}/{d}"), ""] for t, d in documents],
            "generation": {task: {"until": [], "max_new_tokens": 9} for task in tasks},
            "headline": dict.fromkeys(tasks, "hit,strict"),
            "environment": ENVIRONMENT | (environment or {}),
        },
    )
    return folder


def change_manifest(folder: Path, **changes: Any) -> StoredRun:
    """Change a manifest of a run; returns the run as it is read again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files.write_json(folder / "manifest.json", manifest | changes)
    return StoredRun(folder)


class Rows:
    """A run that is put together row by row; methods whose texts are not scored are right throughout."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.rounds: list[dict[str, Any]] = []
        self.scores: list[dict[str, Any]] = []

    def add(self, method: str, doc_id: int, decode: float = 1.0, shapes=(), seconds=(0.1, 0.05), **others: Any) -> list:
        """Add a sample and its rounds (D, A), or what `shapes` makes of the sample; returns the rows of its rounds."""
        self.samples.append(sample(method, doc_id, decode, **others))
        own = shapes(self.samples[-1]) if callable(shapes) else rounds(self.samples[-1], *shapes, seconds=seconds)
        self.rounds += own
        return own

    def run(self, folder: Path, **options: Any) -> StoredRun:
        scored = {(row["task"], row["method"]) for row in self.scores}
        counts = {(row["task"], row["method"]): row["doc_id"] + 1 for row in self.samples}
        for (task, method), count in counts.items():
            if (task, method) not in scored:
                self.scores += scores(method, [1] * count, task=task)
        return StoredRun(write_run(folder, self.samples, self.rounds, self.scores, **options))


class Timed(NamedTuple):
    """A method of a made run: its seconds for each document, its rounds there, and what its texts score."""

    seconds: float | Callable[[str, int], float]  # or of a task and a document
    shapes: Sequence[tuple[int, int]] = CHAIN
    right: int | Sequence[float] | Mapping[str, Sequence[float]] | None = None  # so many of them, each, or each by task


def timed_run(
    folder: Path,
    methods: Mapping[str, Timed],
    *,
    tasks: Sequence[str] = ("one",),
    documents: int | Mapping[str, int] = 4,
    of_samples: Mapping[str, Any] | None = None,
    **options: Any,
) -> StoredRun:
    """A run in which all methods decode all documents; without `right` all of a method's texts are."""
    rows = Rows()
    for task in tasks:
        count = documents if isinstance(documents, int) else documents[task]
        for doc in range(count):
            for name, one in methods.items():
                seconds = one.seconds(task, doc) if callable(one.seconds) else one.seconds
                rows.add(name, doc, seconds, one.shapes, task=task, **(of_samples or {}))
        for name, one in methods.items():
            right = one.right[task] if isinstance(one.right, Mapping) else one.right
            right = count if right is None else right
            values = [1] * right + [0] * (count - right) if isinstance(right, int) else right
            rows.scores += scores(name, values, task=task)
    return rows.run(folder, **options)
