"""The command `specbench analyze network`."""

from typing import Annotated

from typer import Option

from specbench.cli.analyze.shared import PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.options import Plain
from specbench.cli.simulated import (
    ByContext,
    ForwardTimes,
    Gammas,
    Oracle,
    Replayed,
    Second,
    SecondRun,
    Shortest,
    Thresholds,
    simulated,
)


def network(
    run: Run,
    channel: Annotated[
        str, Option(help="rtt=SECONDS,rate=BITS_PER_SECOND, or a trace: a CSV file with seconds, rtt and rate")
    ],
    method: Replayed = None,
    forward_times: ForwardTimes = None,
    gamma: Gammas = None,
    threshold: Thresholds = None,
    shortest: Shortest = None,
    by_context: ByContext = False,
    oracle: Oracle = False,
    second: Second = None,
    second_run: SecondRun = None,
    format: PlainFormat = Plain.table,
) -> None:
    """Draft lengths with the draft on a user's device and the target in the cloud; the channel is modelled (FlexSpec).

    Each round of `simulate` also waits for a round trip (rtt) and for its draft to be sent at the rate; bits=BITS of a
    drafted token, by default an id's 32. The other options are those of `simulate`.

    `specbench analyze network runs/one --method sps --channel rtt=0.05,rate=1e6`

    `specbench analyze network runs/one --gamma 1,2,4,8 --channel channel.csv`
    """
    with user_errors():
        from specbench.results.stored import StoredRun
        from specbench_extras.network.analysis import from_option, over_network
        from specbench_extras.network.view import view

        stored = StoredRun(run)
        states = from_option(channel, stored.sampling == "greedy")
        drafts = method, forward_times, gamma, threshold, shortest
        figures = simulated(stored, *drafts, by_context, oracle, second, second_run, format)
        show(view(over_network(figures, states)), format)
