"""Commands that check this machine, this engine and its methods."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import DataDir, Device, Dtype, Pair, Set, folder, known, user_errors


def bench(
    pair: Pair = "pocket",
    documents: Annotated[int, typer.Option(min=2, help="documents of each bundled task")] = 10,
    gamma: Annotated[int, typer.Option(min=1, help="draft length")] = 4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Annotated[Path | None, typer.Option(help="also write the figures to this JSON file")] = None,
) -> None:
    """Compare this engine with transformers' own generation, in one process, interleaved; and weigh the instruments.

    `specbench bench --documents 20`
    """
    from specbench import bench as module

    with user_errors():
        raise typer.Exit(module.main(pair, documents, gamma, device, dtype, out))


def audit(
    pair: Pair = "pocket",
    method: Annotated[
        list[str] | None,
        typer.Option(help="a method by name, or a YAML file; default: all", autocompletion=known("methods")),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="whose prompts; default: pocket for the bundled pair, else smoke")
    ] = None,
    documents: Annotated[int, typer.Option(min=1, help="documents of each task")] = 3,
    length: Annotated[int, typer.Option(min=4, help="tokens of each greedy text")] = 96,
    draws: Annotated[int, typer.Option(min=1, help="sampled texts of each document, of a few tokens")] = 25,
    set_: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="also write the findings to this JSON file")] = None,
) -> None:
    """Is a method lossless on this pair, on this machine? Exit code 1 if one that should be is not.

    Greedy texts are compared with vanilla's, and sampled tokens are tested against the target's distribution.

    `specbench audit --pair pocket`

    `specbench audit --method sps --set sps.gamma=8 --draws 100`
    """
    from specbench import commands, config

    with user_errors():
        own = "pocket" if pair == "pocket" else "smoke"
        plan = commands.plan(
            method or config.names("methods"),
            suite or own,
            pair,
            set_ or [],
            None,
            documents,
            folder(data_dir),
            device=device,
            dtype=dtype,
        )
        raise typer.Exit(commands.audit(plan, length, draws, out, named=bool(method)))


def doctor(
    pair: Annotated[str | None, typer.Option(help="also look at this pair", autocompletion=known("pairs"))] = None,
    suite: Annotated[str | None, typer.Option(help="also look at a suite", autocompletion=known("suites"))] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="print the findings as JSON and nothing else")] = False,
) -> None:
    """What would make the numbers of this machine, a pair or a suite wrong, and what to do. Exit code 1 on an error.

    `specbench doctor`

    `specbench doctor --pair pocket --suite math`
    """
    from specbench import doctor as module

    with user_errors():
        raise typer.Exit(module.main(pair, suite, device, dtype, data_dir, json))
