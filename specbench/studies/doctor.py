"""`specbench doctor`: find what would falsify the figures of this machine, a pair or a suite, and say what to do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from specbench import config
from specbench.base.console import console
from specbench.config import PairSpec, UserError
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes import choose
from specbench.measure.machine import Diagnosis, machine_findings
from specbench.studies.doctor_pair import pair_findings, suite_findings, suite_requests
from specbench.tasks.harness import Request

__all__ = ["Diagnosis", "machine_findings", "main", "pair_findings", "suite_findings"]

RUNS = Path("runs")  # where `run` writes by default
MARKS = {"ok": ("✓ ok", "green"), "warning": ("! warning", "yellow"), "error": ("✗ error", "red")}
WIDTH = 80
# The check that a pair failed, by words in the error of loading it.
CHECK_OF_REFUSAL = {"the tokenizers of": "vocabulary", "share only": "vocabulary", "its cache": "cache"}


def main(
    pair: str | PairSpec | None,
    suite: str | None,
    device: str,
    dtype: str,
    data_dir: Path | None,
    as_json: bool = False,
    runtime: str = "auto",
) -> int:
    """Print the findings; return the exit code, 1 if one of them is an error.

    A suite without a pair is checked with the bundled pair, the default of `run`. Raises UserError for unknown names.
    """
    spec = config.load_pair(pair or "pocket")
    chosen = config.load_suite(suite) if suite else None
    every: list[Diagnosis] = []

    def report(title: str, findings: list[Diagnosis]) -> None:
        every.extend(findings)
        if not as_json:
            show(title, findings)

    report("machine", machine_findings(RUNS, device))
    loaded: Pair | None = None
    if pair:
        try:
            with _waiting(f"loading {spec.name}", as_json):
                loaded = choose.placed(runtime, load_pair(spec, device, dtype, runtime=runtime))
        except UserError as error:
            report(f"pair {spec.name}", [unloadable(error)])
    shown: list[Request] = []
    of_suite: list[Diagnosis] = []
    if chosen:
        try:
            with _waiting(f"reading the documents of {chosen.name}", as_json):
                shown, bare = suite_requests(chosen, spec, loaded, data_dir)
                of_suite = suite_findings(shown, bare)
        except UserError as error:
            of_suite = [_failed("documents", error, "choose another suite, or --data-dir")]
    if loaded:
        with _waiting(f"looking at {spec.name}", as_json):
            of_pair = pair_findings(loaded, shown)
        report(f"pair {spec.name}", of_pair)
    if chosen:
        report(f"suite {chosen.name}", of_suite)
    if as_json:
        print(json.dumps([asdict(finding) for finding in every], indent=1))
    else:
        console.print(summary(every), highlight=False)
    return int(any(finding.level == "error" for finding in every))


def show(title: str, findings: list[Diagnosis]) -> None:
    """Print findings as a table of at most 80 columns, each remedy below its finding."""
    width = min(WIDTH, console.width)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, width=width)
    table.add_column(no_wrap=True, min_width=9)
    table.add_column(no_wrap=True, min_width=13)
    table.add_column(ratio=1, overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.level]
        text = Text(finding.message)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(mark, style=style), finding.check, text)
    console.print(table)


def summary(findings: list[Diagnosis]) -> str:
    """One line with the number of findings at each level."""
    counts = {level: sum(finding.level == level for finding in findings) for level in MARKS}
    texts = [f"{n} {level}{'s' * (n != 1)}" for level, n in counts.items() if n and level != "ok"]
    return f"{counts['ok']} checks ok" + "".join(f", {text}" for text in texts)


def unloadable(error: UserError) -> Diagnosis:
    """The error of loading a pair, as a finding under the check that failed."""
    check = next((check for words, check in CHECK_OF_REFUSAL.items() if words in str(error)), "loading")
    return _failed(check, error, "choose another pair")


def _failed(check: str, error: UserError, remedy: str) -> Diagnosis:
    """An error as a finding; `remedy` is for errors that do not name one themselves."""
    message, _, advice = str(error).rpartition(" -- " if " -- " in str(error) else "; ")
    return Diagnosis(check, "error", message or advice, advice if message else remedy)


@contextmanager
def _waiting(text: str, quiet: bool) -> Iterator[None]:
    """Show what takes time: a spinner on a terminal, a line elsewhere."""
    if not quiet and not console.is_terminal:
        console.print(text, style="dim", highlight=False)
    with console.status(text) if console.is_terminal and not quiet else nullcontext():
        yield
