"""The group `specbench analyze`: a command for each analysis of a run, with only its own options."""

from collections.abc import Callable

import typer

from specbench.cli.analyze import records
from specbench.cli.analyze.shared import Analyses
from specbench.config import plugins

HELP = (
    "What a run rejected and rescued, how good its predictions were, which method discards less, what an arbitrator or "
    "a stronger draft is worth."
)
ANALYSES = (
    records.requests,
    records.rejections,
    records.acceptance,
    records.frontier,
    records.complementarity,
    records.strength,
)

group = typer.Typer(cls=Analyses, no_args_is_help=True, rich_markup_mode="markdown", add_completion=False, help=HELP)
for command in ANALYSES:
    group.command(command.__name__.replace("_", "-"))(command)


def all_analyses() -> tuple[Callable[..., None], ...]:
    """Those here and those of the extras."""
    return (*ANALYSES, *(entry.load() for entry in plugins.extras("analyses").values()))
