"""Draft lengths over a modelled channel between a draft on the user's device and a target in the cloud."""

from collections.abc import Iterator

from specbench.analysis.simulated_rows import ALL
from specbench.report.finding import Finding, Sheet, number
from specbench.report.views.simulate import assumptions, basis, marked
from specbench_extras.network.analysis import CHANNEL, Network, OverNetwork

HEADINGS = ["setting", "τ", "accept", "without", "modelled tok/s", "modelled speedup", "network"]


def view(figures: OverNetwork) -> Finding:
    """The settings on all tasks together."""
    base = figures.simulation
    return Finding(
        "network",
        f"MODELLED NETWORK: {base.method}, {base.sampling}, {base.texts} texts replayed",
        [_sheet(figures)],
        notes=[*notes(figures)],
        facts={
            "method": base.method,
            "sampling": base.sampling,
            "source": f"{base.source}, over a modelled network",
            "alpha": base.alpha,
            "times": vars(base.times),
            "network": figures.network.source,
            "bits": figures.network.bits,
            "states": [state.model_dump() for state in figures.network.states],
            "chosen": list(figures.chosen),
            "table": figures.table,
        },
        frame=figures.table,
    )


def _sheet(figures: OverNetwork) -> Sheet:
    rows = []
    for row in figures.table[figures.table.task == ALL].to_dict("records"):
        cells = [marked(row), f"{row['tau']:.2f}", number(100 * row["acceptance_rate"], ".1f")]
        cells += [number(row["speedup"]), f"{row['modelled_tokens_per_s']:.1f}"]
        cells += [("*" if row["best"] else "") + number(row["modelled_speedup"]), f"{row['network_share']:.0%}"]
        rows.append(cells)
    return Sheet(HEADINGS, rows)


def notes(figures: OverNetwork) -> Iterator[str]:
    """What is modelled, and what is not."""
    yield f"{channel(figures.network)}; {figures.network.bits:g} bits a drafted token"
    yield (
        "modelled, not measured: every round also takes a round trip and the time to send its draft; speedup: over the "
        "target alone in the cloud, whose tokens come in a stream and wait for no round trip; no prefill, no energy"
    )
    source = figures.simulation.source
    yield f"without: the speedup without a network, {source}; network: its share of the time; *: the best fixed length"
    if figures.chosen:
        lengths = sorted(set(figures.chosen))
        chosen = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
        yield (
            f"{CHANNEL}: in each state of the channel the length that is best if tokens were independent with "
            f"α = {figures.simulation.alpha:.3f}; here {chosen}"
        )
    table = figures.simulation.table
    rows = table[table.task == ALL]
    yield from assumptions(figures.simulation, rows)
    yield from basis(figures.simulation, rows)


def channel(network: Network) -> str:
    """The states of a channel in words."""
    spans = []
    for name, values, unit in (
        ("round trip", [1000 * state.rtt for state in network.states], "ms"),
        ("rate", [state.rate / 1e6 for state in network.states], "Mbit/s"),
    ):
        low, high = min(values), max(values)
        spans.append(f"{name} {low:.3g}{'' if low == high else f' to {high:.3g}'} {unit}")
    count = len(network.states)
    return ", ".join(spans) + (f", in {count} states of a trace" if count > 1 else "")
