"""The command `specbench analyze network`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from typer import Option

from specbench.base.console import console
from specbench.cli.analyze.shared import PlainFormat, Run, show
from specbench.cli.errors import numbers, user_errors, whole_numbers
from specbench.cli.options import Plain
from specbench.config import UserError


def network(
    run: Run,
    channel: Annotated[
        str, Option(help="rtt=SECONDS,rate=BITS_PER_SECOND, or a trace: a CSV file with seconds, rtt and rate")
    ],
    method: Annotated[
        str | None, Option(help="the method whose rounds to use; default: the run's first with drafts")
    ] = None,
    forward_times: Annotated[
        str | None, Option(help="a profile's FILE.json, or t_draft=SECONDS,t_target=SECONDS,…; default: as in the run")
    ] = None,
    gamma: Annotated[str | None, Option(help="draft lengths, such as 1,2,4,8")] = None,
    threshold: Annotated[
        str | None, Option(help="thresholds of the length policy that made the drafts, such as 0.3,0.5")
    ] = None,
    shortest: Annotated[
        int | None, Option(min=1, help="with thresholds: the fewest tokens before a draft may stop")
    ] = None,
    by_context: Annotated[
        bool, Option("--by-context", help="let forward times grow with the context, as in the records or the profile")
    ] = False,
    oracle: Annotated[
        bool, Option("--oracle", help="add the best length in hindsight, of each text and of each round")
    ] = False,
    second: Annotated[
        str | None, Option(help="another method: add the better of the two drafters at each position")
    ] = None,
    second_run: Annotated[Path | None, Option(help="the run folder of --second; default: the same run")] = None,
    format: PlainFormat = Plain.table,
) -> None:
    """Draft lengths with the draft on a user's device and the target in the cloud; the channel is modelled (FlexSpec).

    Each round of `simulate` also waits for a round trip (rtt) and for its draft to be sent at the rate; bits=BITS of a
    drafted token, by default an id's 32. The other options are those of `simulate`.

    `specbench analyze network runs/one --method sps --channel rtt=0.05,rate=1e6`

    `specbench analyze network runs/one --gamma 1,2,4,8 --channel channel.csv`
    """
    with user_errors():
        from specbench.analysis.simulate import Options, simulate
        from specbench.results.stored import StoredRun
        from specbench_extras.network.analysis import from_option, over_network
        from specbench_extras.network.view import view

        if second_run and not second:
            raise UserError("--second-run goes with --second METHOD, the second drafter")
        gammas, tried = whole_numbers("--gamma", gamma), numbers("--threshold", threshold)
        stored = StoredRun(run)
        states = from_option(channel, stored.sampling == "greedy")
        with console.status("replaying the rounds") if format is Plain.table else nullcontext():
            other = StoredRun(second_run) if second_run else None
            options = Options(1, by_context, oracle, second, other)
            figures = simulate(stored, method, forward_times, gammas, tried, shortest, options=options)
        show(view(over_network(figures, states)), format)
