"""Warnings of times that cannot be taken as they stand: late clients, busy moments, and unlike machines."""

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from specbench.analysis import answers, metrics, widths, workers
from specbench.analysis.pooled import Measured
from specbench.results.stored import StoredRun

# Methods whose target reads, in the one forward of a round, the tokens that were drafted and the one before.
WHOLE = ("csd", "pld", "sps", "suffix", "vanilla")
STALL = 5  # a text that took over this many times the median time per token of its row was held up


def uneven(runs: Measured) -> list[str]:
    """Warnings for tasks whose baseline was much faster in one run, or at one worker of a run, than at another."""
    lines = []
    for key, counts in runs.by_row.items():
        if key[3] in runs.baselines.values():
            sums = metrics.timed_alone(counts).groupby(["run", "worker"])[["decode", "decoded"]].sum()
            speeds = sums.decoded / sums.decode
            if len(speeds) > 1 and speeds.max() > (1 + metrics.DRIFT_BOUND) * speeds.min():
                lines.append(
                    f"{key[2]}: {key[3]} ran at {speeds.min():.0f} to {speeds.max():.0f} tokens/s in these "
                    f"{'runs' if counts.worker.max() == 0 else 'workers'}: compare speedups, not tokens/s"
                )
    return lines


def unpooled(runs: Measured) -> list[str]:
    """Warnings for tasks with texts of unlike hardware, whose tokens/s are not pooled."""
    unlike: dict[str, list[str]] = {}
    for key, counts in runs.by_row.items():
        if differing := workers.unlike(counts):
            unlike.setdefault(key[2], differing)
    return [
        f"{task}: machines of different {', '.join(keys)} decoded it, so it has no tokens/s; --by worker has them"
        for task, keys in unlike.items()
    ]


UNTIMED = {
    answers.LATE: "the first token came with later ones, so no time per token is known: the client was late, or the "
    "server holds tokens back",
    answers.WHOLE: "all came in one part, so no time per token is known: the server does not stream its tokens",
    answers.HIDDEN: "tokens were thought that the server did not send, so no time per token is known",
}


def untimed(runs: Measured) -> Iterator[str]:
    """Servers of whose texts some have no time per token, and why."""
    for name, counts in runs.counts.groupby("method", sort=False):
        for why, words in UNTIMED.items():
            if number := int((counts.untimed == why).sum()):
                yield f"{name}: in {number} of {len(counts)} texts {words}"


def unfit(runs: Measured) -> Iterator[str]:
    """A line for each row with answers that no speed is compared on, or that have no text."""
    for key, counts in runs.by_row.items():
        for name, what in (
            ("empty", "empty; speeds are compared without them"),
            ("loops", "one string over and over, up to the limit of new tokens; speeds are compared without them"),
            ("no_text", "thoughts or tool calls alone, without a text; raise --max-new-tokens if the limit cut them"),
        ):
            if number := int(counts[name].sum()):
                share = f"all {len(counts)}" if number == len(counts) else f"{number} of {len(counts)}"
                yield f"{key[2]}, {key[3]}: {share} answers are {what}"


def stalled(runs: Measured) -> list[str]:
    """Warnings for rows with documents that took far longer per token than the rest: the machine was busy."""
    lines = []
    for key, counts in runs.by_row.items():
        per_token = counts.decode / counts.decoded.replace(0, np.nan)
        slow = per_token > STALL * per_token.median()
        if slow.any():
            share = counts.decode[slow].sum() / counts.decode.sum()
            lines.append(
                f"{key[2]}, {key[3]}: {int(slow.sum())} of {len(counts)} texts took over {STALL} times the median per "
                f"token, {share:.0%} of the time; measure again on an idle machine"
            )
    return lines


def uneven_widths(run: StoredRun) -> Iterator[str]:
    """A line if the run's forwards of the target cost much more or less for a few tokens than for a few others."""
    if run.plan.batch > 1 or not run.manifest["models"]:  # times are shares, or of an engine that is not known
        return
    names = [spec.name for spec in run.plan.methods if spec.method in WHOLE]
    if not names:
        return
    alone = (pc.field("round") > 0) & ~pc.field("warmup") & (pc.field("target_forwards") == 1)
    columns = ["method", "drafted", "target_seconds"]
    rows = run.rounds().to_table(columns, alone & pc.field("method").isin(names)).to_pandas().dropna()
    by_width = rows.groupby("drafted").target_seconds.agg(["median", "size"])
    seconds = {
        int(drafted) + 1: float(row["median"]) for drafted, row in by_width.iterrows() if row["size"] >= widths.FEWEST
    }
    if line := widths.uneven("target", seconds):
        yield f"{line}; specbench profile --widths measures it"
