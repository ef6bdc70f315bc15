"""Commands that say what serving many texts costs."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.analyze import Printed
from specbench.cli.options import (
    AllowEntryPoint,
    AllowPickle,
    DataDir,
    Device,
    Dtype,
    Pair,
    Seed,
    Set,
    TrustRemoteCode,
    folder,
    known,
    user_errors,
)


def throughput(
    method: Annotated[
        list[str] | None,
        typer.Option(help="cospec or sps, or a YAML file of theirs; default: cospec", autocompletion=known("methods")),
    ] = None,
    pair: Pair = "pocket",
    suite: Annotated[
        str | None,
        typer.Option(
            help="whose prompts; default: pocket for the bundled pair, else smoke", autocompletion=known("suites")
        ),
    ] = None,
    batch: Annotated[str, typer.Option(help="how many texts are decoded together")] = "1,2,4,8,16,32",
    batches: Annotated[int, typer.Option(min=2, help="batches of each size, at least; prompts may come again")] = 6,
    limit: Annotated[int, typer.Option(min=1, help="documents of each task")] = 8,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the suite's")] = None,
    seed: Seed = 0,
    set_: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="a CSV file for `specbench tables`")] = None,
    format: Annotated[Printed, typer.Option(help="how to print it")] = Printed.table,
) -> None:
    """Tokens per second in fixed batches, by the target alone and by methods that speculate, interleaved.

    A batch begins as one and ends with its longest text. Exit code 1 if a lossless greedy text is not vanilla's.

    `specbench throughput --method cospec --batch 1,2,4,8,16,32`

    `specbench throughput --method sps --method cospec --set sps.gamma=4 --set cospec.arbiter=always`
    """
    from specbench import commands
    from specbench.report import throughput_view

    with user_errors():
        own = "pocket" if pair == "pocket" else "smoke"
        plan = commands.plan(
            method or ["cospec"],
            suite or own,
            pair,
            set_ or [],
            "vanilla",
            limit,
            temperature=temperature,
            seed=seed,
            device=device,
            dtype=dtype,
            data_dir=folder(data_dir),
        )
        raise typer.Exit(throughput_view.main(plan, batch, batches, out, format.value))


def serving(
    run: Annotated[Path, typer.Argument(help="a finished run folder, with vanilla among its methods")],
    out: Annotated[Path | None, typer.Option(help="a CSV file for `specbench tables`")] = None,
    format: Annotated[Printed, typer.Option(help="how to print it")] = Printed.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_entry_point: AllowEntryPoint = None,
) -> None:
    """What the methods of a run cost to serve: memory by part, and how much later the first token comes.

    Times are the run's own; for memory its models are loaded again, and its longest text is decoded by each method.

    `specbench serving runs/one --out runs/tables/measured/cospec-table11.csv`
    """
    from specbench.permissions import permitted
    from specbench.report import serving_view

    with user_errors(), permitted(trust_remote_code, allow_pickle, entry_points=allow_entry_point):
        serving_view.main(run, out, format.value)
