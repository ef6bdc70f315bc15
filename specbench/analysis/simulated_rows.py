"""The rows of a simulation's table: a setting's figures from the rounds that its texts would take."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.analysis.drafts import TEXT
from specbench.analysis.forward_times import Times
from specbench.analysis.lengths_to_try import Candidate
from specbench.analysis.replay import Replayed, ReplayedText

ALL = "all tasks"


@dataclass(frozen=True)
class Recorded:
    """What a simulation needs of a method's texts."""

    texts: list[ReplayedText]
    prompts: "pd.Series[float]"  # tokens, by text
    prefills: pd.DataFrame  # seconds of the method's and of vanilla's, by text; NaN: not known
    measured: pd.DataFrame  # decode seconds and tokens, by method and text; empty if times are of another machine


def by_text(setting: Candidate, known: Recorded, replays: Sequence[Replayed], times: Times, batch: int) -> pd.DataFrame:
    """A row for each text: its counts under a setting, and its seconds and vanilla's."""
    prompts = [float(known.prompts.get(text.key, math.nan)) for text in known.texts]
    seconds = [times.text(laid, prompt, batch) for laid, prompt in zip(replays, prompts, strict=True)]
    return counted(setting, known, replays, seconds, times, batch)


def counted(
    setting: Candidate, known: Recorded, replays: Sequence[Replayed], seconds: Sequence[float], times: Times, batch: int
) -> pd.DataFrame:
    frame = pd.DataFrame([vars(replayed) for replayed in replays]).drop(columns="lengths")
    frame[TEXT] = [text.key for text in known.texts]
    frame[["stood", "tested"]] = [(text.agree.count(1.0), sum(x == x for x in text.agree)) for text in known.texts]
    frame["seconds"] = seconds
    prompts = [float(known.prompts.get(text.key, math.nan)) for text in known.texts]
    frame["vanilla"] = [times.vanilla_text(n, prompt, batch) for n, prompt in zip(frame.tokens, prompts, strict=True)]
    frame = frame.join(known.prefills, on=TEXT)
    if setting.measured and len(known.measured):
        times_of_method = known.measured.loc[[setting.measured]].droplevel("method")
        frame = frame.join(times_of_method, on=TEXT)
    return frame


def rows_of(setting: Candidate, frame: pd.DataFrame, times: Times, batch: int = 1) -> Iterator[dict[str, Any]]:
    """A row for all tasks together, then one for each task if there are several."""
    tasks = list(dict.fromkeys(frame.task))
    blocks = [(task, frame[frame.task == task]) for task in tasks]
    for task, block in [(ALL, frame), *(blocks if len(tasks) > 1 else [])]:
        yield {"task": task, "setting": setting.name} | _row(setting, block, times, batch)


def _row(setting: Candidate, block: pd.DataFrame, times: Times, batch: int) -> dict[str, Any]:
    sums = ["tokens", "rounds", "drafted", "accepted", "guessed", "seconds", "vanilla"]
    total = block[sums].sum(skipna=False)
    alpha = block.stood.sum() / block.tested.sum() if block.tested.sum() else math.nan
    rule = setting.rule
    simple = rule.kind == "fixed" and batch == 1 and not times.context_slope
    theory = iid_speedup(alpha, rule.longest, times.cost_ratio) if simple else None
    prefill, vanilla_prefill = block.prefill.sum(skipna=False), block.vanilla_prefill.sum(skipna=False)
    whole = (vanilla_prefill + total.vanilla) / (prefill + total.seconds) if batch == 1 else math.nan
    row = {
        "tau": total.tokens / total.rounds,
        "acceptance_rate": total.accepted / total.drafted if total.drafted else math.nan,
        "discard_rate": (total.drafted - total.accepted) / total.tokens,
        "drafted_rate": total.drafted / total.tokens,
        "verification_rate": total.rounds / total.tokens,
        "tokens_per_s": batch * total.tokens / total.seconds,
        "speedup": total.vanilla / total.seconds,
        "speedup_e2e": whole,
        "theory_speedup": theory,
        "fixed": rule.kind == "fixed",
        "guessed": total.guessed / total.rounds,
        "measured": setting.measured,
        "measured_tokens_per_s": None,
        "time_error": None,
    }
    if "decode_seconds" in block and block.decode_seconds.notna().any():
        both = block.dropna(subset=["decode_seconds"])
        both = both[(both["size"] > 0) & (both.decode_seconds > 0)]
        both = both.assign(predicted=both.seconds / both.tokens, real=both.decode_seconds / both["size"])
        by_doc = both.groupby(["task", "doc_id"])[["predicted", "real"]].median()
        row["measured_tokens_per_s"] = both["size"].sum() / both.decode_seconds.sum()
        row["time_error"] = float((by_doc.predicted / by_doc.real - 1).abs().median())
    return row


def iid_speedup(alpha: float, gamma: int, c: float, waiting: float = 0.0) -> float:
    """The speedup if each draft token is accepted with probability α, independently (arXiv 2211.17192, Theorem 3.8).

    `c` is the time of a drafted token and `waiting` what a round takes outside forwards, both over a vanilla token's.
    """
    expected = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return float(expected / (gamma * c + 1 + waiting))


def mark_best(table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns `best` and `theory_best`, which mark the fastest fixed length of each task."""
    best = {"best": fastest(table, "speedup"), "theory_best": fastest(table, "theory_speedup")}
    return table.drop(columns="fixed").assign(**best)


def fastest(table: pd.DataFrame, column: str) -> "pd.Series[bool]":
    """Marks the rows with the highest speed in `column` among the fixed lengths (`fixed`) of their task."""
    speeds = table[column].where(table.fixed).astype(float)
    return table.fixed & (speeds == speeds.groupby(table.task).transform("max"))


def fixed_length(setting: str) -> int | None:
    """The draft length of the setting gamma=K; None for other settings."""
    length = setting.removeprefix("gamma=")
    return int(length) if length.isdigit() else None
