"""Options of all analyses, and how findings are printed."""

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from specbench.cli.options import Plain, Printed

if TYPE_CHECKING:
    from specbench.report.finding import Finding

Run = Annotated[Path, Argument(help="a run folder")]
Method = Annotated[str | None, Option(help="a method of the run; default: the first, or all, that apply")]
PlainFormat = Annotated[Plain, Option(help="how to print it")]
PrintedFormat = Annotated[Printed, Option(help="how to print it")]


def show(
    findings: "Finding | Sequence[Finding]",
    cells: Callable[[], list[dict[str, Any]]],
    format: Enum,
    out: Path | None = None,
) -> None:
    """Print the findings, and write the cells of a paper's table if there is a file for them."""
    from specbench.papers.cells import write_cells
    from specbench.report.finding import show

    show(findings, format.value)
    if out:
        write_cells(out, cells())
