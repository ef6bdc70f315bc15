"""Runs of tiny models from folders: the models, suites and plans, and what must not depend on how a run went."""

from pathlib import Path

import torch
import yaml
from made_runs import TOKENIZER
from oracle import tiny_pair
from transformers import PreTrainedModel

from specbench.plan import Plan, resolve_plan
from specbench.results import records

TASKS = {"pocket_gsm8k": 28, "pocket_mmlu": 20}  # new tokens; the texts make no sense, and are scored in no time
SETTINGS = ["sps.gamma=3", "csd.gamma=3", "csd.count_threshold=1", "csd.gate_threshold=0"]
SAME = ["repeat", "task", "doc_id", "method", "order", "seed", "tokens", "text", "finish", "error", "state_hash"]
COUNTS = ["round", "drafted", "accepted", "rescued", "committed", "truncated", "target_forwards", "draft_forwards"]


def save_pair(folder: Path, words: int) -> dict[str, PreTrainedModel]:
    """A tiny target and draft that agree now and then: few tokens are ever likely, so that mismatches repeat."""
    both = dict(zip(("target", "draft"), tiny_pair("llama", vocab=len(TOKENIZER)), strict=True))
    likely = slice(300, 300 + words)
    for name, model in both.items():
        model.config.max_position_embeddings = 2048
        model.config.eos_token_id = model.generation_config.eos_token_id = TOKENIZER.eos_token_id
        model.lm_head.weight[: likely.start] = 0
        model.lm_head.weight[likely.stop :] = 0
        if name == "draft":
            model.lm_head.weight[likely] += torch.randn(words, 32, generator=torch.Generator().manual_seed(0)) / 8
        model.float().save_pretrained(folder / name)
        TOKENIZER.save_pretrained(folder / name)
    return both


def write_suite(folder: Path, tasks: dict[str, int], limit: int) -> str:
    """The path of a suite of some tasks, by the most new tokens of each."""
    lines = [{"task": task, "max_new_tokens": count} for task, count in tasks.items()]
    path = folder / "few.yaml"
    path.write_text(yaml.safe_dump({"description": "few", "limit": limit, "tasks": lines}))
    return str(path)


def plan_of(place: Path, methods, **options) -> Plan:
    """A plan of the pair and the suite in a folder."""
    given = {
        "methods": methods,
        "suite": str(place / "few.yaml"),
        "pair": f"target={place / 'target'},draft={place / 'draft'}",
        "assignments": [],
        "baseline": "vanilla",
        "limit": None,
        "data_dir": None,
        "device": "cpu",
    }
    return resolve_plan(**(given | options))


def always(progress):
    return True


def samples_of(folder, warmup=False):
    frame = records.read_rows(folder, "samples").to_pandas()
    return frame[frame.warmup == warmup].reset_index(drop=True)


def rounds_of(folder, method=None):
    frame = records.read_rows(folder, "rounds").to_pandas()
    return frame[~frame.warmup & ((frame.method == method) | (method is None))].reset_index(drop=True)


def facts(folder):
    """All that must not depend on interruptions, as plain lists."""
    samples = [[list(x) if hasattr(x, "tolist") else x for x in row] for row in samples_of(folder)[SAME].values]
    return samples, rounds_of(folder)[COUNTS].values.tolist()
