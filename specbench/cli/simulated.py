"""The options of commands that replay a run's rounds with other drafts, and the replay."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from specbench.base.console import console
from specbench.cli.errors import numbers, whole_numbers
from specbench.cli.options import Plain
from specbench.config import UserError

if TYPE_CHECKING:
    from specbench.analysis.simulate import Simulation
    from specbench.results.stored import StoredRun

Replayed = Annotated[str | None, Option(help="the method whose rounds to use; default: the run's first with drafts")]
ForwardTimes = Annotated[
    str | None, Option(help="a profile's FILE.json, or t_draft=SECONDS,t_target=SECONDS,…; default: as in the run")
]
Gammas = Annotated[str | None, Option(help="draft lengths, such as 1,2,4,8")]
Thresholds = Annotated[str | None, Option(help="thresholds of the length policy that made the drafts, such as 0.3,0.5")]
Shortest = Annotated[int | None, Option(min=1, help="with thresholds: the fewest tokens before a draft may stop")]
ByContext = Annotated[
    bool, Option("--by-context", help="let forward times grow with the context, as in the records or the profile")
]
Oracle = Annotated[bool, Option("--oracle", help="add the best length in hindsight, of each text and of each round")]
Second = Annotated[str | None, Option(help="another method: add the better of the two drafters at each position")]
SecondRun = Annotated[Path | None, Option(help="the run folder of --second; default: the same run")]


def simulated(
    stored: "StoredRun",
    method: str | None,
    forward_times: str | None,
    gamma: str | None,
    threshold: str | None,
    shortest: int | None,
    by_context: bool,
    oracle: bool,
    second: str | None,
    second_run: Path | None,
    format: Plain,
    batch: int = 1,
) -> "Simulation":
    """What other drafts would have given in a run, by a command's options. Raises UserError."""
    from specbench.analysis.simulate import Options, simulate
    from specbench.results.stored import StoredRun

    if second_run and not second:
        raise UserError("--second-run goes with --second METHOD, the second drafter")
    gammas, thresholds = whole_numbers("--gamma", gamma), numbers("--threshold", threshold)
    with console.status("replaying the rounds") if format is Plain.table else nullcontext():
        options = Options(batch, by_context, oracle, second, StoredRun(second_run) if second_run else None)
        return simulate(stored, method, forward_times, gammas, thresholds, shortest, options=options)
