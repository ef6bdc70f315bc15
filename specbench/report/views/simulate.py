"""A simulation of other draft lengths, and the best threshold of each of many heads."""

from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd

from specbench.analysis.simulate import ALL, Simulation
from specbench.report.finding import Finding, Sheet, number

GUESSED = 0.005  # a larger share of rounds that needed what was not recorded is marked


def view(figures: Simulation, given: bool) -> Finding:
    """The settings on all tasks together; `given`: the forward times are the user's, not the run's."""
    rows = figures.table[figures.table.task == ALL]
    return Finding(
        "simulate",
        f"{figures.method}, {figures.sampling}: {figures.texts} texts replayed",
        [_settings(rows)],
        notes=[*notes(figures, rows, given)],
        facts={name: value for name, value in asdict(figures).items() if name not in ("times", "table")}
        | {"times": vars(figures.times), "table": figures.table},
        frame=figures.table,
    )


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
    measured = table.measured_tokens_per_s.notna().any()
    rows = []
    for row in table.to_dict("records"):
        setting = ("~" if row["guessed"] > GUESSED else "") + row["setting"]
        rates = [f"{row['tau']:.2f}", f"{100 * row['acceptance_rate']:.1f}", f"{row['discard_rate']:.2f}"]
        rates += [f"{row['verification_rate']:.2f}", f"{row['tokens_per_s']:.0f}"]
        speedups = [("*" if row["best"] else "") + f"{row['speedup']:.2f}"]
        speedups += [("*" if row["theory_best"] else "") + number(row["theory_speedup"])]
        if measured:
            known = not pd.isna(row["measured_tokens_per_s"])
            speedups += [f"{row['measured_tokens_per_s']:.0f}", f"{row['time_error']:.0%}"] if known else ["-", "-"]
        rows.append([setting, *rates, *speedups])
    headings = ["setting", "τ", "accept", "discard", "verify", "tok/s", "speedup", "theory"]
    return Sheet([*headings, *(["measured", "off"] if measured else [])], rows)


def notes(figures: Simulation, rows: pd.DataFrame, given: bool) -> Iterator[str]:
    """What the figures mean, and how far they can be trusted."""
    yield "predicted for decoding without prefill, all tasks; speedup: over vanilla; *: the best fixed length"
    yield (
        f"theory: the speedup if tokens were independent (Leviathan et al., Theorem 3.8), α = {figures.alpha:.3f}, "
        f"c = {figures.times.cost_ratio:.3f}"
    )
    if rows.measured_tokens_per_s.notna().any():
        yield "measured: tok/s of that setting in this run; off: the median error of a document's time"
    source = "given" if given else f"of this run's rounds of {figures.method}"
    times = figures.times
    yield (
        f"ms, {source}: draft {1000 * times.t_draft:.3g}, target {1000 * times.t_target:.3g}, a round with "
        f"4 drafted {1000 * times.round(4):.3g}, a vanilla token {1000 * times.token:.3g}"
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
