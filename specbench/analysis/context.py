"""Acceptance and time by the place in the context, and what a prompt costs: prefill, memory and decode separately.

A round belongs to the number of tokens before it: those of the prompt, and those that are committed. Intervals are over
documents; the turns of one conversation, whose contexts are alike, count as one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from specbench.analysis import metrics
from specbench.analysis.drafts import tokens_before
from specbench.base.stats import Interval, Paired, pooled_rate, speedup
from specbench.config import UserError
from specbench.results.stored import StoredRun

EDGES = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ROUND = [*metrics.SAMPLE, "round", "committed", "draft_forwards", "target_seconds", "draft_seconds", "seconds"]
COUNTS = {name: pc.field(name) for name in ROUND} | {name: metrics.COUNTS[name] for name in ("A", "J")}


@dataclass(frozen=True)
class Context:
    """Two tables, of all tasks together, with a row for each method and span of tokens, `from` up to below `to`.

    `places`: rounds that begin there: documents, rounds, tokens; with their 95 % intervals tau, alpha, speed (tokens a
    second) and speedup (over the baseline, in the documents of which both have rounds there); medians in seconds:
    target (a target forward), draft (a draft forward), and token (a round's seconds over its tokens).
    `prompts`: texts whose prompt is so long: documents, prefill and prefill_token (medians in seconds, of a prompt and
    of one of its tokens that were not cached), token (decode seconds of a token, pooled), and memory (peak in bytes,
    the median).
    """

    places: pd.DataFrame
    prompts: pd.DataFrame


def context(run: StoredRun) -> Context:
    """Raises UserError for a run that does not tell how long its prompts are."""
    samples = run.samples([*metrics.TIMED, "prompt_tokens"])
    prompts = metrics.timed_samples(samples).set_index(metrics.SAMPLE).prompt_tokens.dropna()
    if prompts.empty:
        raise UserError(f"{run.folder} does not tell how many tokens its prompts have; choose a run of specbench's own")
    texts = metrics.per_document(samples, run.rounds()).join(prompts, how="inner").reset_index()
    names, kept = _conversations(run), _kept(run)
    texts["read"] = texts.prompt_tokens - [kept.get(key, 0) for key in zip(texts.task, texts.doc_id, strict=True)]
    rounds = run.rounds().to_table(COUNTS, filter=~pc.field("warmup")).to_pandas()
    rounds = rounds.join(prompts, on=metrics.SAMPLE, how="inner")
    rounds["context"] = rounds.prompt_tokens + 1 + tokens_before(rounds)  # 1: the prefill's token
    methods = [spec.name for spec in run.plan.methods]
    rounds["text"] = [names.get(key, key[1]) for key in zip(rounds.task, rounds.doc_id, strict=True)]
    decoding = rounds[rounds["round"] > 0]
    if decoding.empty:
        raise UserError(f"{run.folder} has no rounds after the prefill; let answers be longer (--max-new-tokens)")
    places = _spans(decoding, decoding.context, methods, _places)
    faster = pd.DataFrame(
        {
            **dict(zip(("method", "from"), key, strict=True)),
            **metrics.interval_columns("speedup", _speedup(decoding, run.plan.against(str(key[0])), *key)),
        }
        for key in zip(places.method, places["from"], strict=True)
    )
    places = places.merge(faster, on=["method", "from"])
    return Context(places, _spans(texts, texts.prompt_tokens, methods, _prompts))


def _conversations(run: StoredRun) -> dict[tuple[str, int], str]:
    """The conversation of each turn, by task and document, in runs of prompts of their own."""
    turns = zip(run.manifest["requests"], run.manifest.get("prompts") or [], strict=False)
    return {(task, doc_id): f"conversation {name}" for (task, doc_id, *_), (name, _, _) in turns}


def _kept(run: StoredRun) -> dict[tuple[str, int], int]:
    """How many tokens of each prompt were cached from the turn before, by task and document."""
    turns = zip(run.manifest["requests"], run.manifest.get("kept_tokens") or [], strict=False)
    return {(task, doc_id): count for (task, doc_id, *_), count in turns}


def _speedup(rounds: pd.DataFrame, base: str | None, method: str, start: int) -> Interval | None:
    """Seconds per token of the baseline over the method's, of rounds that begin in the span from `start` on."""
    if base is None or base == method:
        return None
    inside = (rounds.context >= start) & (rounds.context < end_of(start))
    there = rounds[inside & rounds.method.isin([method, base])]
    if there.method.nunique() < 2 or there.seconds.isna().any():
        return None
    both = there.groupby(["task", "text", "method"])[["seconds", "committed"]].sum().unstack("method").dropna()
    columns = [both[what, name].to_numpy(float) for name in (base, method) for what in ("seconds", "committed")]
    return speedup(Paired(*columns)) if len(both) else None


def _spans(
    rows: pd.DataFrame,
    lengths: "pd.Series[float]",
    methods: Sequence[str],
    figures: Callable[[pd.DataFrame], dict[str, object]],
) -> pd.DataFrame:
    """A row of `figures` for each method and span that has any rows."""
    span = spans_of(lengths)
    table = []
    for method in methods:
        mine = rows.method == method
        for start in sorted(span[mine].dropna().unique()):
            bounds = {"from": int(start), "to": end_of(start)}
            table.append({"method": method} | bounds | figures(rows[mine & (span == start)]))
    return pd.DataFrame(table)


def spans_of(lengths: "pd.Series[float]") -> "pd.Series[float]":
    """The first length of the span that each is in."""
    return pd.cut(lengths.astype(float), [*EDGES, np.inf], right=False, labels=EDGES).astype(float)


def end_of(start: float) -> float:
    """The first length after the span that begins at `start`."""
    return float(next(edge for edge in (*EDGES, np.inf) if edge > start))


def _places(rounds: pd.DataFrame) -> dict[str, object]:
    """The figures of rounds that begin in one span."""
    timed = rounds.seconds.notna().all()
    documents = rounds.assign(R=1).groupby(["task", "text"])[["A", "J", "R", "committed", "seconds"]].sum()
    counts = {name: documents[name].to_numpy(float) for name in ("R", "committed", "seconds")}
    drafting = rounds[rounds.draft_forwards > 0]
    return {
        "documents": len(documents),
        "rounds": len(rounds),
        "tokens": int(rounds.committed.sum()),
        **metrics.interval_columns("tau", pooled_rate(counts["committed"], counts["R"])),
        **metrics.share_columns("alpha", documents.A, documents.A + documents.J),
        **metrics.interval_columns("speed", pooled_rate(counts["committed"], counts["seconds"]) if timed else None),
        "target": rounds.target_seconds.median(),
        "draft": (drafting.draft_seconds / drafting.draft_forwards).median(),
        "token": (rounds.seconds / rounds.committed.replace(0, np.nan)).median(),
    }


def _prompts(texts: pd.DataFrame) -> dict[str, object]:
    """The figures of texts whose prompts are about equally long."""
    timed = texts.dropna(subset=["decode"])
    tokens = timed.decoded.sum()
    return {
        "documents": len(texts[["task", "doc_id"]].drop_duplicates()),
        "prefill": texts.prefill.median(),
        "prefill_token": (texts.prefill / texts["read"]).median(),
        "token": timed.decode.sum() / tokens if tokens else np.nan,
        "memory": texts.memory.median(),
    }
