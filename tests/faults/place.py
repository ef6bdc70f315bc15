"""A tiny pair and a suite of few short documents, and what of a run must not depend on what went wrong meanwhile."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from specbench.config import UserError
from specbench.results import records

TASKS = {"pocket_gsm8k": 12, "pocket_mmlu": 10}  # new tokens
LIMIT = 4  # documents of each
METHODS = ("csd", "bandit", "swift", "sps")  # the first three learn from document to document; vanilla joins them
SETTINGS = (
    *("csd.gamma=3", "csd.count_threshold=1", "csd.gate_threshold=0", "sps.gamma=3"),
    *("bandit.choices=[1,2,4]", "swift.gamma=4", "swift.branches=[1,2,2,2]", "swift.context_window=8"),
)
TIMES = ("seconds", "load", "clock_mhz", "temperature_c", "peak_memory")  # in names of columns that may differ
TIMES += ("host", "device", "worker", "attempt")  # who decoded a text
KEY = ["repeat", "task", "doc_id", "method", "warmup"]
TRIES = 20  # to read a run that another process writes


def make(folder: Path) -> Path:
    """Write `folder`/target and /draft, which agree now and then, and `folder`/few.yaml; returns `folder`."""
    import oracle
    import torch
    from transformers import AutoTokenizer

    from specbench.config import SUITES

    tokenizer = AutoTokenizer.from_pretrained(SUITES / "pairs" / "weights" / "target")
    target = oracle.tiny("llama", 0, len(tokenizer), num_hidden_layers=4)
    draft = oracle.tiny("llama", 0, len(tokenizer), num_hidden_layers=4)
    rng = torch.Generator().manual_seed(0)
    for name, model in (("target", target), ("draft", draft)):
        model.config.max_position_embeddings = 2048
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.lm_head.weight[:300] = 0  # only some tokens are ever likely, so that mismatches repeat
        model.lm_head.weight[312:] = 0
        if name == "draft":
            model.lm_head.weight[300:312] += torch.randn(12, 32, generator=rng) / 8
        model.float().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    lines = [{"task": task, "max_new_tokens": count} for task, count in TASKS.items()]
    (folder / "few.yaml").write_text(yaml.safe_dump({"description": "few", "limit": LIMIT, "tasks": lines}))
    return folder


def pair(place: Path) -> str:
    return f"target={place / 'target'},draft={place / 'draft'}"


def run_words(place: Path, out: Path, *more: object, methods: tuple[str, ...] = METHODS) -> list[str]:
    """The words of a run command over all documents of the place."""
    words: list[object] = ["run", "--pair", pair(place), "--suite", place / "few.yaml", "--device", "cpu", "--out", out]
    for name in methods:
        words += ["--method", name]
    for setting in SETTINGS:
        words += ["--set", setting] if setting.split(".")[0] in methods else []
    return [str(word) for word in (*words, *more)]


def facts(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The timed rows of a finished run without times: samples, rounds and scores, each sorted."""
    result = {}
    for name in ("samples", "rounds", "scores"):
        table = pq.read_table(folder / f"{name}.parquet")
        kept = [column for column in table.column_names if not any(word in column for word in TIMES)]
        rows = [row for row in table.select(kept).to_pylist() if not row.get("warmup")]
        result[name] = sorted(tuple(repr(value) for value in row.values()) for row in rows)
    return result


def doubled(folder: Path) -> int:
    """How many rows of a run have a key that another row has too, warm-ups among them."""
    count = 0
    for name, key in (("samples", KEY), ("rounds", [*KEY, "round"])):
        rows = records.read_rows(folder, name, key).to_pylist()
        count += len(rows) - len({tuple(row.values()) for row in rows})
    return count


def lost(folder: Path, wanted: dict[str, list[tuple[Any, ...]]]) -> int:
    """How many rows are missing, other than in the uninterrupted run, or there twice."""
    try:
        info = facts(folder)
    except (OSError, ValueError):
        return sum(map(len, wanted.values()))
    differing = 0
    for name in wanted:
        one, other = Counter(wanted[name]), Counter(info[name])
        differing += max(sum((one - other).values()), sum((other - one).values()))
    return differing + doubled(folder)


def kept(folder: Path) -> dict[tuple[Any, ...], float]:
    """Seconds of the samples that a run has on the disk, by their key; empty where nothing can be read."""
    for _ in range(TRIES):
        try:
            rows = records.read_rows(folder, "samples", [*KEY, "decode_seconds"]).to_pylist()
        except UserError:  # a run under way may just have joined the parts that were listed
            continue
        except (OSError, ValueError):
            break
        return {tuple(row[name] for name in KEY): row["decode_seconds"] for row in rows}
    return {}


def plain_end(folder: Path) -> bool:
    """Whether a finished folder holds nothing that is on the way: no parts, no unfinished files, no lock."""
    left = [path.name for path in folder.iterdir() if path.name.endswith(".new") or path.name in ("parts", ".lock")]
    return not left and (folder / "summary.parquet").exists()


def removed(folder: Path) -> None:
    """Away with a folder, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
