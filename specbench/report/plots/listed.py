"""The list of plots: `specbench plot`, its help, completion and the Python API come from it. A plot is added here.

The functions are named, not imported: that takes a second, and help and misspelt names need not wait for it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A plot: the function that draws it, as `MODULE.FUNCTION` next to this file, its title, and what it shows."""

    draws: str  # from PlotData to a Figure
    title: str  # of the figure
    shows: str
    reads_depths: bool = False  # acceptance by depth
    reads_logs: bool = False  # logs of trainings instead of runs: from their paths to a Figure
    over: tuple[str, ...] = ()  # what it draws runs over: they may differ in it


KINDS = {
    "speed-accuracy": Kind(
        "summary.speed_accuracy",
        "Score against decode speedup",
        "score against decode speedup, with intervals, a panel for each task and one for their average",
    ),
    "discard-verification": Kind(
        "discards.discard_verification",
        "Target forwards against discarded drafts",
        "verification rate against discard rate, with lines of equal speed by the measured forwards",
    ),
    "depth": Kind(
        "rounds.depth",
        "Acceptance by draft position",
        "how often a draft token was accepted, of those that were tested, by its position in the draft",
        reads_depths=True,
    ),
    "lengths": Kind(
        "rounds.lengths",
        "Drafts accepted in a round",
        "shares of the rounds by how many of their draft tokens were accepted, without those that ended a text",
        reads_depths=True,
    ),
    "sweep": Kind(
        "summary.sweep", "Speedup and score by setting", "speedup and score by the setting that a sweep changed"
    ),
    "history": Kind(
        "history.history",
        "Speedup from run to run",
        "speedup of each method in runs that repeat each other, with intervals, in the order in which they began",
    ),
    "time": Kind(
        "rounds.time",
        "Where decode time goes",
        "milliseconds of decoding per token, in the forwards of each model and outside of them",
    ),
    "forwards": Kind(
        "rounds.forwards",
        "Time of a target forward",
        "milliseconds of a target forward by the width of its block and by its context",
    ),
    "context": Kind(
        "context.context",
        "Acceptance and speed along the context",
        "α, τ and speedup by the tokens before a round, of prompt and text, with intervals",
    ),
    "reliability": Kind(
        "calibration.reliability",
        "How reliable predictions are",
        "predicted chance of draft tokens against the share that was accepted",
    ),
    "strength": Kind(
        "strength.strength",
        "What a stronger draft changes",
        "accuracy kept and speedup against the strength of the draft, of runs with other drafts of one target",
    ),
    "requests": Kind(
        "requests.requests",
        "Speed of one user against that of all",
        "tokens/s of a user against tokens/s of all, of servers, over runs at several concurrencies or rates",
        over=("requests",),
    ),
    "drift": Kind(
        "training.drift",
        "Acceptance from text to text",
        "acceptance (α) from text to text, in the run's order, such as of a draft that learns (osd)",
    ),
    "training": Kind(
        "training.training",
        "Loss and held-out acceptance",
        "loss and held-out acceptance by step, of logs of `train --method draft` (NAME.log.parquet) instead of runs",
        reads_logs=True,
    ),
}
