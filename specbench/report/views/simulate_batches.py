"""Draft lengths in batches of several sizes, and how far a simulation is from what a server gave."""

from collections.abc import Iterator
from dataclasses import asdict

from specbench.analysis.simulate_batches import FEWEST, SimulatedBatches
from specbench.analysis.simulated_rows import ALL
from specbench.report.finding import Finding, Sheet, number


def view(figures: SimulatedBatches) -> Finding:
    first = figures.first
    return Finding(
        "simulate",
        f"{first.source}: {first.method}, {first.sampling}, {first.texts} texts replayed in batches",
        [_sheet(figures)],
        notes=[*notes(figures)],
        facts={name: value for name, value in asdict(first).items() if name not in ("times", "table", "batch")}
        | {"times": vars(first.times), "load": figures.load, "table": figures.table},
        frame=figures.table,
    )


def _sheet(figures: SimulatedBatches) -> Sheet:
    rows = []
    for row in figures.table[figures.table.task == ALL].to_dict("records"):
        cells = [str(row["batch"]), row["setting"], f"{row['tau']:.2f}", f"{row['tokens_per_s']:.0f}"]
        cells.append(("*" if row["best"] else "") + number(row["speedup"]))
        if figures.load:
            cells += [number(row["served_tokens_per_s"], ".0f"), number(row["served_speedup"])]
            cells.append(number(row["error"], "+.0%"))
        rows.append(cells)
    served = ["served tok/s", "served speedup", "off"] if figures.load else []
    return Sheet(["texts", "setting", "τ", "tok/s", "speedup", *served], rows)


def notes(figures: SimulatedBatches) -> Iterator[str]:
    yield (
        "projected for decoding without prefill, all tasks; speedup: over vanilla in a batch as large; *: the best "
        "length; always as many texts, all with one draft length"
    )
    times = figures.first.times
    widest = "" if times.widest is None else f"; lengths with forwards of over {times.widest:.0f} tokens are left out"
    yield (
        f"ms: draft {1000 * times.t_draft:.3g} and {1000 * (times.draft_width_slope or 0):.3g} for each further token, "
        f"target {1000 * times.t_target:.3g} and {1000 * times.width_slope:.3g}{widest}"
    )
    if figures.load:
        yield (
            f"served: steps of {figures.load} with as many texts in which none joined, where there are {FEWEST} "
            "or more; off: the projected speedup against that one"
        )
        errors = figures.table.error.dropna().abs()
        if len(errors):
            yield f"off by {errors.median():.0%} in the median of {len(errors)}, at most by {errors.max():.0%}"
