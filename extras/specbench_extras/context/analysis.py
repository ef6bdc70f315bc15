"""Acceptance and time by the place in the context, and what a prompt costs: prefill, memory and decode separately.

A round belongs to the number of tokens before it: those of the prompt, and those that are committed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from specbench.analysis import metrics
from specbench.analysis.drafts import tokens_before
from specbench.config import UserError
from specbench.results.stored import StoredRun

EDGES = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ROUND = [*metrics.SAMPLE, "round", "committed", "draft_forwards", "target_seconds", "draft_seconds", "seconds"]
COUNTS = {name: pc.field(name) for name in ROUND} | {name: metrics.COUNTS[name] for name in ("A", "J")}


@dataclass(frozen=True)
class Context:
    """Two tables, of all tasks together, with a row for each method and span of tokens, `from` up to below `to`.

    `places`: rounds that begin there: documents, rounds, tokens, tau, alpha with its interval over documents; medians
    in seconds: target (a target forward), draft (a draft forward), and token (a round's seconds over its tokens).
    `prompts`: texts whose prompt is so long: documents, prefill and prefill_token (medians in seconds, of a prompt and
    of one of its tokens), token (decode seconds of a token, pooled), and memory (peak in bytes, the median).
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
    rounds = run.rounds().to_table(COUNTS, filter=~pc.field("warmup")).to_pandas()
    rounds = rounds.join(prompts, on=metrics.SAMPLE, how="inner")
    rounds["context"] = rounds.prompt_tokens + 1 + tokens_before(rounds)  # 1: the prefill's token
    methods = [spec.name for spec in run.plan.methods]
    decoding = rounds[rounds["round"] > 0]
    return Context(
        _spans(decoding, decoding.context, methods, _places), _spans(texts, texts.prompt_tokens, methods, _prompts)
    )


def _spans(
    rows: pd.DataFrame,
    lengths: "pd.Series[float]",
    methods: Sequence[str],
    figures: Callable[[pd.DataFrame], dict[str, object]],
) -> pd.DataFrame:
    """A row of `figures` for each method and span that has any rows."""
    span = pd.cut(lengths.astype(float), [*EDGES, np.inf], right=False, labels=False)
    table = []
    for method in methods:
        mine = rows.method == method
        for at in sorted(span[mine].dropna().unique()):
            bounds = (*EDGES, np.inf)[int(at) : int(at) + 2]
            table.append({"method": method, "from": bounds[0], "to": bounds[1]} | figures(rows[mine & (span == at)]))
    return pd.DataFrame(table)


def _places(rounds: pd.DataFrame) -> dict[str, object]:
    """The figures of rounds that begin in one span."""
    documents = rounds.groupby(["task", "doc_id"])[["A", "J"]].sum()
    drafting = rounds[rounds.draft_forwards > 0]
    return {
        "documents": len(documents),
        "rounds": len(rounds),
        "tokens": int(rounds.committed.sum()),
        "tau": rounds.committed.sum() / len(rounds),
        **metrics.share_columns("alpha", documents.A, documents.A + documents.J),
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
        "prefill_token": (texts.prefill / texts.prompt_tokens).median(),
        "token": timed.decode.sum() / tokens if tokens else np.nan,
        "memory": texts.memory.median(),
    }
