"""`specbench simulate --heads`: the throughput that each of many acceptance heads would reach, from one run's drafts.

The run drafted at a fixed, large length. The draft model reads its drafts again, every head scores the states after the
drafted tokens, and the rounds are replayed under each threshold (SpecDec++, arXiv 2405.19715, Table 3).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from specbench.analysis import forward_times
from specbench.analysis.drafts import TEXT, drafting_method, endings, recorded_rounds, recorded_times
from specbench.analysis.lengths_to_try import THRESHOLDS, policy
from specbench.analysis.metrics import timed_samples
from specbench.analysis.replay import Rule, replay, texts_of, unknown
from specbench.config import UserError, load_method, task_info
from specbench.engine.models.heads import Head, hidden_size, read_head
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import probabilities
from specbench.engine.session import LAST
from specbench.engine.types import Sampling
from specbench.measure.prepare import load_models_of
from specbench.measure.prompts import encode, stored_requests
from specbench.methods.lengths.specdecpp import KIND, SHAPES, AcceptanceHead, acceptance_head, features
from specbench.results.stored import StoredRun
from specbench.studies.profile_pair import write_table

MIXTURE = "alpaca"  # the paper's training data; here the mixture of all families
REMEDY = "specbench run --method specdecpp --set specdecpp.shortest=20 --set specdecpp.longest=20"


@dataclass(frozen=True)
class Drafts:
    """The recorded rounds of a method, in order, and the draft model's view of their drafted tokens."""

    rounds: list[dict[str, Any]]
    hidden: Tensor  # [n, H]: the draft's last hidden state after each drafted token of all rounds
    confidence: Tensor  # [n]: q of each


def study(
    run: StoredRun,
    folder: Path,
    method: str | None = None,
    given: str | None = None,
    thresholds: Sequence[float] = (),
    advance: Callable[[int], None] = lambda count: None,
) -> pd.DataFrame:
    """Tokens per second by head, threshold and task.

    Columns: head, depth, weight, train_kl, eval_kl, threshold, task, tokens_per_s. `folder` holds the files of the
    heads, and `given` names forward times as in `simulate`. `advance` is called after each head. Raises UserError for a
    run that did not draft at a fixed length, and for heads of another pair.
    """
    spec = drafting_method(run, method)
    length = policy(run, spec)
    if length is None or length.method != KIND or length.values["shortest"] != length.values["longest"]:
        raise UserError(f"{spec.name} did not draft a fixed length under a head; a run that did: {REMEDY}")
    pair = load_models_of(run)
    heads = {path.stem: read_head(path, KIND, pair, SHAPES, "draft") for path in sorted(folder.glob("*.safetensors"))}
    if not heads:
        raise UserError(
            f"{folder} has no heads; `specbench train --method specdecpp --grid … --out {folder}` makes some"
        )
    samples = timed_samples(run.samples([*TEXT, "method", "warmup", "finish", "tokens"]))
    samples = samples[samples.method == spec.name]
    drafts = read_again(run, spec.name, samples, pair)
    finish, eos = endings(samples, spec.name)
    times = forward_times.from_option(given, run.manifest["models"]) if given else recorded_times(run, [spec.name])
    shortest = min(load_method(KIND).values["shortest"], length.values["longest"])
    rows = []
    for name, head in heads.items():
        texts = [text for text in texts_of(with_predictions(drafts, head, pair), finish, eos) if text.agree]
        missing = unknown(texts)
        for threshold in thresholds or THRESHOLDS:
            rule = Rule(KIND, length.values["longest"], shortest, threshold, bool(length.values["stop_at_eos"]))
            facts = {"head": name} | {key: head.trained.get(key) for key in ("depth", "weight", "train_kl", "eval_kl")}
            totals: dict[str, tuple[int, float]] = {}  # tokens and seconds by task
            for text in texts:
                replayed, (tokens, seconds) = replay(text, rule, missing), totals.get(text.key[1], (0, 0.0))
                seconds += sum(count * times.round(drafted) for drafted, count in replayed.lengths.items())
                totals[text.key[1]] = tokens + replayed.tokens, seconds
            for task, (tokens, seconds) in totals.items():
                rows.append({**facts, "threshold": threshold, "task": task, "tokens_per_s": tokens / seconds})
        advance(1)
    return pd.DataFrame(rows)


@torch.inference_mode()
def read_again(run: StoredRun, method: str, samples: pd.DataFrame, pair: Pair) -> Drafts:
    """Feed the draft model the context of each round and the complete draft."""
    prompts = {(r.task, r.doc_id): encode(pair, r.prompt) for r in stored_requests(run, pair)}
    tokens = {(row.repeat, row.task, row.doc_id): list(row.tokens) for row in samples.itertuples()}
    session = pair.session("draft")
    rounds, hidden, confidence = [], [], []
    for key, group in groupby(recorded_rounds(run, method), key=lambda row: tuple(row[name] for name in TEXT)):
        if key not in tokens:
            continue
        committed = 0
        for row in sorted(group, key=lambda row: row["round"]):
            rounds.append(row)
            if row["drafted"]:
                context = [*prompts[key[1:]], *tokens[key][:committed]]
                before = session.catch_up(context).logits[-1:]
                scored = session.forward(row["draft_tokens"], hidden=LAST)
                assert scored.hidden is not None
                hidden.append(scored.hidden.float())
                confidence.append(_confidence(row, torch.cat([before, scored.logits[:-1]])))
            committed += row["committed"]
    return Drafts(rounds, torch.cat(hidden), torch.cat(confidence))


def _confidence(row: dict[str, Any], logits: Tensor) -> Tensor:
    """q of the drafted tokens [K], as recorded, or from the logits [K, V] that greedy ones were chosen by."""
    if row["confidences"] is not None:
        return torch.tensor(row["confidences"], device=logits.device)
    drafted = torch.tensor(row["draft_tokens"], device=logits.device)
    return probabilities(logits, Sampling(1.0)).gather(-1, drafted[:, None])[:, 0]


@torch.inference_mode()
def with_predictions(drafts: Drafts, head: Head, pair: Pair) -> Iterator[dict[str, Any]]:
    """The rounds with a head's predictions in place of the recorded ones."""
    loaded: AcceptanceHead = acceptance_head(head, drafts.hidden.device)
    confident = loaded.out_weight.shape[1] > hidden_size(pair.models["draft"])
    inputs = features(drafts.hidden, drafts.confidence[:, None]) if confident else drafts.hidden
    predictions, at = loaded.log_odds(inputs).sigmoid().tolist(), 0
    for row in drafts.rounds:
        yield {**row, "predictions": predictions[at : at + row["drafted"]]}
        at += row["drafted"]


def best(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest threshold of each head and task; the mixture of all tasks counts as their unweighted mean."""
    keys = ["head", "depth", "weight", "train_kl", "eval_kl"]
    tasks = set(table.task)
    if tasks == set(task_info(MIXTURE).counterparts):
        mean = table.groupby([*keys, "threshold"], sort=False, dropna=False).tokens_per_s.mean().reset_index()
        table = pd.concat([mean.assign(task=MIXTURE), table], ignore_index=True)
    return table.loc[table.groupby(["head", "task"], sort=False).tokens_per_s.idxmax()].reset_index(drop=True)


def write(table: pd.DataFrame, run: StoredRun, path: Path) -> None:
    """Write the best throughputs and the divergences in the form of the paper's Table 3."""
    start = ["specdecpp", 3, run.plan.pair.name]
    rows = []
    for row in best(table).to_dict("records"):
        setting = f"weight={row['weight']:g};depth={row['depth']}"
        labels = [f"{run.plan.temperature:g}", "SpecDec++", setting]
        rows.append([*start, row["task"], *labels, "throughput", f"{row['tokens_per_s']:.4g}", "tokens/s"])
        if row["task"] == table.task.iloc[0]:
            for key, name in (("train_kl", "train/KL"), ("eval_kl", "eval/KL")):
                rows.append([*start, MIXTURE, *labels, name, f"{row[key]:.4f}", "nats"])
    write_table(path, rows)
