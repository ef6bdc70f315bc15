"""A simulation of other draft lengths, and the best threshold of each of many heads."""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from specbench.analysis.lengths_to_try import ORACLE
from specbench.analysis.simulate import FEWEST_DRAFTED, HIDDEN, LARGEST_ERROR, PROJECTED, UNTOLD, Simulation
from specbench.analysis.simulated_rows import ALL
from specbench.report.finding import Finding, Sheet, number

EAGLE = (
    "tokens a round come out 1 to 3 % low: a replay assumes drafts depend on the text alone, and EAGLE's also depend "
    "on the hidden states since the round began"
)
UNKNOWN = "its error is not known: this run has no other length of the same drafts"
GUESSED = 0.005  # a larger share of rounds that needed what was not recorded is marked


def view(figures: Simulation) -> Finding:
    """The settings on all tasks together."""
    rows = figures.table[figures.table.task == ALL]
    return Finding(
        "simulate",
        f"{figures.source}: {figures.method}, {figures.sampling}, {figures.texts} texts replayed{_error(figures)}",
        [_settings(rows)],
        notes=[*notes(figures, rows)],
        facts={name: value for name, value in asdict(figures).items() if name not in ("times", "table")}
        | {"times": vars(figures.times), "table": figures.table},
        frame=figures.table,
    )


def _error(figures: Simulation) -> str:
    """What the head says of the simulation's error for its own run, and of the machine."""
    if figures.source == PROJECTED:
        return ""
    known = not math.isnan(figures.error)
    parts = [f"tok/s of other lengths in this run are off by up to {figures.error:.0%}" if known else UNKNOWN]
    if figures.error > LARGEST_ERROR:
        parts.append(f"more than {LARGEST_ERROR:.0%}, so no speedup is given")
    if figures.load is not None:
        parts.append(f"the machine was busy (load {figures.load:.1f}): repeat the run on an idle one")
    return "; ".join(["", *parts])


def heads_view(best: pd.DataFrame) -> Finding:
    """The rows of `studies.heads.best`: a head's speed on each task, at its best threshold."""
    tasks = list(dict.fromkeys(best.task))
    rows = []
    for name, of_head in best.groupby("head", sort=False):
        by_task = of_head.set_index("task")
        divergences = (f"{of_head[key].iloc[0]:.3f}" for key in ("train_kl", "eval_kl"))
        speeds = (f"{by_task.tokens_per_s[task]:.0f} ({by_task.threshold[task]:g})" for task in tasks)
        rows.append([str(name), *divergences, *speeds])
    headings = ["head", "train/KL", "eval/KL", *(task.removeprefix("pocket_") for task in tasks)]
    notes = ["tok/s, and in brackets the threshold that gives it, the best of those tried"]
    return Finding("heads", sheets=[Sheet(headings, rows)], notes=notes)


def _settings(table: pd.DataFrame) -> Sheet:
    measured, whole = table.measured_tokens_per_s.notna().any(), table.speedup_e2e.notna().any()
    rows = []
    for row in table.to_dict("records"):
        rates = [f"{row['tau']:.2f}", number(100 * row["acceptance_rate"], ".1f")]
        rates += [] if whole else [f"{row['discard_rate']:.2f}", f"{row['verification_rate']:.2f}"]  # to leave room
        rates += [number(row["tokens_per_s"], ".0f")]
        speedups = [("*" if row["best"] else "") + number(row["speedup"])]
        speedups += [number(row["speedup_e2e"])] if whole else []
        speedups += [("*" if row["theory_best"] else "") + number(row["theory_speedup"])]
        if measured:
            known = not pd.isna(row["measured_tokens_per_s"])
            speedups += [f"{row['measured_tokens_per_s']:.0f}", f"{row['time_error']:.0%}"] if known else ["-", "-"]
        rows.append([marked(row), *rates, *speedups])
    headings = ["setting", "τ", "accept", *([] if whole else ["discard", "verify"]), "tok/s", "speedup"]
    headings += [*(["whole"] if whole else []), "theory"]
    return Sheet([*headings, *(["measured", "off"] if measured else [])], rows)


def marked(row: Mapping[Hashable, Any]) -> str:
    """The setting of a row, with ~ if the row is an estimate."""
    return ("~" if row["guessed"] > GUESSED else "") + str(row["setting"])


def assumptions(figures: Simulation, rows: pd.DataFrame) -> Iterator[str]:
    """What a simulation takes for granted next to the replay's rules."""
    if figures.batch > 1:
        yield (
            f"batch {figures.batch}: always as many texts, all with one draft length; their tokens cost what the "
            "profile measured for as many tokens of one text, and each text's cache what it costs alone"
        )
    if figures.times.context_slope is not None:
        slope, draft = figures.times.context_slope, figures.times.draft_context_slope or 0.0
        yield f"forward times grow with the context: by {1e6 * slope:.3g} µs a token, the draft's by {1e6 * draft:.3g}"
    if rows.setting.str.startswith(ORACLE).any():
        yield (
            "oracle text: each text at its own best length of those above; oracle round: each draft ends with its last "
            "accepted token. Both are known only in hindsight"
        )
    if figures.second:
        shares = rows.second_share.dropna()
        yield (
            f"of two: at each position {figures.method} or {figures.second} drafts, whichever is accepted further; "
            f"{figures.second} in {shares.min():.0%} to {shares.max():.0%} of the rounds. Known only in hindsight"
        )
    if figures.reads == HIDDEN:
        yield EAGLE
    elif figures.reads == UNTOLD:
        yield f"if the drafts are an EAGLE head's: {EAGLE}"


def notes(figures: Simulation, rows: pd.DataFrame) -> Iterator[str]:
    """What the figures mean, and how far they can be trusted."""
    yield (
        f"{figures.source} for decoding without prefill, all tasks; speedup: over vanilla; *: the best fixed length"
        + ("; whole: the speedup with it" if rows.speedup_e2e.notna().any() else "")
    )
    yield from assumptions(figures, rows)
    if rows.theory_speedup.notna().any():
        yield (
            f"theory: the speedup if tokens were independent (Leviathan et al., Theorem 3.8), α = {figures.alpha:.3f}, "
            f"c = {figures.times.cost_ratio:.3f}"
        )
    if rows.measured_tokens_per_s.notna().any():
        yield "measured: tok/s of that setting in this run; off: the median error of a document's time"
    yield from basis(figures, rows)


def basis(figures: Simulation, rows: pd.DataFrame) -> Iterator[str]:
    """The forward times, and where the records do not say what would have happened."""
    source = "given" if figures.source == PROJECTED else f"of this run's rounds of {figures.method}"
    times = figures.times
    yield (
        f"ms, {source}: draft {1000 * times.t_draft:.3g}, the first of a round "
        f"{1000 * (times.t_draft + times.draft_start):.3g}, target {1000 * times.t_target:.3g}, a round with "
        f"4 drafted {1000 * times.round(4):.3g}, a vanilla token {1000 * times.token:.3g}"
    )
    if figures.source != PROJECTED and rows.tokens_per_s.isna().any():
        yield (
            f"recorded drafts have {times.early_tokens:.0f} tokens and do not tell what further forwards of the draft "
            f"take: no speed is given for longer ones; replay drafts of {FEWEST_DRAFTED} tokens or more"
        )
    if figures.untested > 0:
        yield (
            f"{figures.untested:.1%} of the positions were not tested; there a draft is accepted with probability "
            f"{figures.missing.agree:.3f}, that of the last tokens of drafts"
        )
    if (rows.guessed > GUESSED).any():
        yield (
            f"~: an estimate; up to {rows.guessed.max():.0%} of its rounds need predictions that were not recorded "
            "(medians stand in); drafts of a fixed, large length have nearly all"
        )
    if figures.rescued:
        yield (
            f"{figures.rescued} drafts were accepted against the exact rule: texts of a lossy method depend on where "
            "rounds begin, so this is an approximation"
        )
