"""A simulation for the terminal (80 columns are enough), and as CSV or JSON for programs."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from specbench import head_study
from specbench.config import UserError
from specbench.console import console, progress
from specbench.escape import csv_text
from specbench.forward_times import as_json
from specbench.simulate import ALL, Simulation, simulate
from specbench.stored import StoredRun

FORMATS = ("table", "csv", "json")
GUESSED = 0.005  # a larger share of rounds that needed what was not recorded is marked


def main(
    folder: Path,
    method: str | None,
    times: str | None,
    gammas: str | None,
    thresholds: str | None,
    shortest: int | None,
    format: str,
) -> None:
    """Simulate and print. Raises UserError for another format, and as `simulate`."""
    if format not in FORMATS:
        raise UserError(f"--format {format} is not for simulations; choose one of {', '.join(FORMATS)}")
    lengths = [int(x) for x in numbers("--gamma", gammas, whole=True)]
    tried = numbers("--threshold", thresholds)
    run = StoredRun(folder)
    if format == "table":
        with console.status("replaying the rounds"):
            found = simulate(run, method, times, lengths, tried, shortest)
        print_simulation(console, found, bool(times))
        return
    found = simulate(run, method, times, lengths, tried, shortest)
    if format == "csv":
        sys.stdout.write(csv_text(found.table))
    else:
        facts = {name: value for name, value in asdict(found).items() if name not in ("times", "table")}
        rows = json.loads(found.table.to_json(orient="records", double_precision=12))
        sys.stdout.write(json.dumps(facts | {"times": as_json(found.times), "table": rows}, indent=1) + "\n")


def compare_heads(
    folder: Path, heads: Path, method: str | None, times: str | None, thresholds: str | None, out: Path | None
) -> None:
    """Print, and write to `out`, the best threshold and speed of each head in a folder. Raises UserError as `study`."""
    run, tried = StoredRun(folder), numbers("--threshold", thresholds)
    count = len(list(heads.glob("*.safetensors")))
    with progress("replaying heads", max(count, 1)) as advance:
        found = head_study.study(run, heads, method, times, tried, advance)
    rows = head_study.best(found)
    tasks = list(dict.fromkeys(rows.task))
    table = Table(title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("head", overflow="fold")
    for heading in ("train/KL", "eval/KL", *tasks):
        table.add_column(heading.removeprefix("pocket_"), justify="right", overflow="fold")
    for name, mine in rows.groupby("head", sort=False):
        by_task = mine.set_index("task")
        kls = (f"{mine[key].iloc[0]:.3f}" for key in ("train_kl", "eval_kl"))
        speeds = (f"{by_task.tokens_per_s[task]:.0f} ({by_task.threshold[task]:g})" for task in tasks)
        table.add_row(str(name), *kls, *speeds)
    console.print(table)
    console.print("tok/s, and in brackets the threshold that gives it, the best of those tried", style="dim")
    if out:
        head_study.write(found, run, out)
        console.print(f"written: {out}", highlight=False, soft_wrap=True)


def numbers(option: str, text: str | None, whole: bool = False) -> list[float]:
    """`1,2,4` as numbers. Raises UserError for what is none."""
    found: list[float] = []
    for part in (text or "").split(",") if text is not None else []:
        try:
            found.append(int(part) if whole else float(part))
        except ValueError:
            kind = "whole numbers" if whole else "numbers"
            raise UserError(f"{option} {text}: write {kind} with commas between them, not {part!r}") from None
    return found


def print_simulation(console: Console, found: Simulation, given: bool) -> None:
    """Print the rows of all tasks together, and what they rest on."""
    rows = found.table[found.table.task == ALL]
    title = f"{found.method}, {found.sampling}: {found.texts} texts replayed"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("setting", no_wrap=True)
    measured = rows.measured_tokens_per_s.notna().any()
    headings = ["τ", "accept", "discard", "verify", "tok/s", "speedup", "theory"]
    for heading in [*headings, *(["measured", "off"] if measured else [])]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        about = "~" if row["guessed"] > GUESSED else ""
        cells = [f"{row['tau']:.2f}", f"{100 * row['acceptance_rate']:.1f}", f"{row['discard_rate']:.2f}"]
        cells += [f"{row['verification_rate']:.2f}", f"{row['tokens_per_s']:.0f}"]
        cells.append(("*" if row["best"] else "") + f"{row['speedup']:.2f}")
        theory = "-" if pd.isna(row["theory_speedup"]) else f"{row['theory_speedup']:.2f}"
        cells.append(("*" if row["theory_best"] else "") + theory)
        if measured:
            known = not pd.isna(row["measured_tokens_per_s"])
            cells += [f"{row['measured_tokens_per_s']:.0f}", f"{row['time_error']:.0%}"] if known else ["-", "-"]
        table.add_row(about + row["setting"], *cells)
    console.print(table)
    for line in notes(found, rows, given):
        console.print(line, style="dim", highlight=False, markup=False)


def notes(found: Simulation, rows: pd.DataFrame, given: bool) -> Iterator[str]:
    """What the figures mean, and how far they can be trusted."""
    yield "predicted for decoding without prefill, all tasks; speedup: over vanilla; *: the best fixed length"
    yield (
        f"theory: the speedup if tokens were independent (Leviathan et al., Theorem 3.8), α = {found.alpha:.3f}, "
        f"c = {found.times.cost_ratio:.3f}"
    )
    if rows.measured_tokens_per_s.notna().any():
        yield "measured: tok/s of that setting in this run; off: the median error of a document's time"
    source = "given" if given else f"of this run's rounds of {found.method}"
    yield (
        f"ms, {source}: draft {1000 * found.times.t_draft:.3g}, target {1000 * found.times.t_target:.3g}, a round with "
        f"4 drafted {1000 * found.times.round(4):.3g}, a vanilla token {1000 * found.times.token:.3g}"
    )
    if found.untested > 0:
        yield (
            f"{found.untested:.1%} of the positions were not tested; there a draft is accepted with probability "
            f"{found.missing.agree:.3f}, that of the last tokens of drafts"
        )
    if (rows.guessed > GUESSED).any():
        worst = rows.guessed.max()
        yield (
            f"~: an estimate; up to {worst:.0%} of its rounds need predictions that were not recorded (medians stand "
            "in); drafts of a fixed, large length have nearly all"
        )
    if found.rescued:
        yield (
            f"{found.rescued} drafts were accepted against the exact rule: texts of a lossy method depend on where "
            "rounds begin, so this is an approximation"
        )
