"""`specbench doctor`: what would make the numbers of this machine, of a pair or of a suite wrong, and what to do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from specbench import config
from specbench.config import UserError
from specbench.console import console
from specbench.doctor_machine import Finding, machine_findings
from specbench.doctor_pair import pair_findings, suite_findings, suite_requests
from specbench.harness import Request
from specbench.models import Pair, load_pair

__all__ = ["Finding", "machine_findings", "main", "pair_findings", "quick_lines", "suite_findings"]

RUNS = Path("runs")  # where `run` writes unless told otherwise
MARKS = {"ok": ("✓ ok", "green"), "warning": ("! warning", "yellow"), "error": ("✗ error", "red")}
WIDTH = 80
CHECK_OF_REFUSAL = {
    "the tokenizers of": "vocabulary",
    "share only": "vocabulary",
    "its cache": "cache",
}  # words of a refused pair's error


def main(
    pair: str | None, suite: str | None, device: str, dtype: str, data_dir: Path | None, as_json: bool = False
) -> int:
    """Print the findings; returns an exit code: 1 if one of them is an error.

    A suite without a pair is looked at as `run` would, with the bundled pair. Raises UserError for unknown names.
    """
    spec = config.load_pair(pair or "pocket")
    chosen = config.load_suite(suite) if suite else None
    found: list[Finding] = []

    def tell(title: str, findings: list[Finding]) -> None:
        found.extend(findings)
        if not as_json:
            show(title, findings)

    tell("machine", machine_findings(RUNS, device))
    loaded: Pair | None = None
    if pair:
        try:
            with _waiting(f"loading {spec.name}", as_json):
                loaded = load_pair(spec, device, dtype)
        except UserError as error:
            tell(f"pair {spec.name}", [unloadable(error)])
    shown: list[Request] = []
    of_suite: list[Finding] = []
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
        tell(f"pair {spec.name}", of_pair)
    if chosen:
        tell(f"suite {chosen.name}", of_suite)
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        console.print(summary(found), highlight=False)
    return int(any(one.level == "error" for one in found))


def quick_lines(folder: Path, device: str = "auto") -> list[str]:
    """Warnings of the machine, one line each, for the start of a run into `folder`; errors end it anyway."""
    return [
        f"{one.level}: {one.check}: {one.message}; {one.remedy}"
        for one in machine_findings(folder, device)
        if one.level == "warning"
    ]


def show(title: str, findings: list[Finding]) -> None:
    """Print findings as a table of at most 80 columns, each remedy below its finding."""
    width = min(WIDTH, console.width)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, width=width)
    table.add_column(no_wrap=True, min_width=9)
    table.add_column(no_wrap=True, min_width=13)
    table.add_column(ratio=1, overflow="fold")
    for one in findings:
        mark, style = MARKS[one.level]
        text = Text(one.message)
        if one.remedy:
            text.append(f"\n→ {one.remedy}", style="bold")
        table.add_row(Text(mark, style=style), one.check, text)
    console.print(table)


def summary(findings: list[Finding]) -> str:
    """One line: how many of each level."""
    counts = {level: sum(one.level == level for one in findings) for level in MARKS}
    texts = [f"{n} {level}{'s' * (n != 1)}" for level, n in counts.items() if n and level != "ok"]
    return f"{counts['ok']} checks ok" + "".join(f", {text}" for text in texts)


def unloadable(error: UserError) -> Finding:
    """The refusal to load a pair as a finding, under the check that it failed."""
    check = next((check for words, check in CHECK_OF_REFUSAL.items() if words in str(error)), "loading")
    return _failed(check, error, "choose another pair")


def _failed(check: str, error: UserError, remedy: str) -> Finding:
    """`remedy` is for errors that do not name one themselves."""
    message, _, advice = str(error).rpartition(" -- " if " -- " in str(error) else "; ")
    return Finding(check, "error", message or advice, advice if message else remedy)


@contextmanager
def _waiting(text: str, quiet: bool) -> Iterator[None]:
    """Say what takes time: a spinner on a terminal, a line elsewhere."""
    if not quiet and not console.is_terminal:
        console.print(text, style="dim", highlight=False)
    with console.status(text) if console.is_terminal and not quiet else nullcontext():
        yield
