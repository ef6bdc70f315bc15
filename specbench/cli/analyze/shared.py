"""What all analyses share, those of installed packages too: options, how findings are printed, their group."""

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from specbench.cli import Brought
from specbench.cli.options import Plain, Printed

if TYPE_CHECKING:
    from specbench.report.finding import Finding

Run = Annotated[Path, Argument(help="a run folder")]
Method = Annotated[str | None, Option(help="a method of the run; default: the first, or all, that apply")]
PlainFormat = Annotated[Plain, Option(help="how to print it")]
PrintedFormat = Annotated[Printed, Option(help="how to print it")]


def show(
    findings: "Finding | Sequence[Finding]",
    format: Enum,
    cells: Callable[[], list[dict[str, Any]]] = list,
    out: Path | None = None,
) -> None:
    """Print the findings, and write the cells of a paper's table if there is a file for them."""
    from specbench.papers.cells import write_cells
    from specbench.report.finding import show

    show(findings, format.value)
    if out:
        write_cells(out, cells())


class Analyses(Brought):
    """The analyses of specbench, and those that installed packages bring; each is like those of records.py."""

    entries = "analyses"
