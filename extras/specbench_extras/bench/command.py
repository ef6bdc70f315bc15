"""The command `specbench bench`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from specbench.cli.errors import check_names, user_errors
from specbench.cli.groups import Models, fetching, with_groups
from specbench.cli.options import Device, Dtype
from specbench.config import UserError


@with_groups
def bench(
    *,
    models: Models,
    runtime: Annotated[
        list[str] | None, Option(help="eager, static, graph or openvino; may be repeated; default: all that work here")
    ] = None,
    documents: Annotated[int, Option(min=2, help="documents of each task; with --shapes, random prompts")] = 10,
    runs: Annotated[
        int, Option(min=1, help="decode everything so many times, 3 or more: intervals over documents and runs")
    ] = 1,
    gamma: Annotated[int, Option(min=1, help="draft length")] = 4,
    shapes: Annotated[
        str | None, Option(help="SYNTHETIC: random weights in the shape of 160m-1b or 1b-8b (or tiny), without a pair")
    ] = None,
    force_acceptance: Annotated[
        float | None,
        Option(min=0, max=1, help="SYNTHETIC: with --shapes, each drafted token passes with this probability"),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Annotated[Path | None, Option(help="also write the figures to this JSON file")] = None,
) -> None:
    """Compare the engine's runtimes with each other and with other engines, interleaved in one process.

    Peers are transformers' own generation and, where installed, OpenVINO GenAI (make bench-peers) and, on CUDA, vLLM.
    With --shapes, only the cost of an engine is measured: weights are random, and so is the acceptance of drafts.

    `specbench bench --documents 20`

    `specbench bench --runtime static --documents 5 --out bench.json`

    `specbench bench --documents 5 --runs 3`

    `specbench bench --shapes 160m-1b --force-acceptance 0.8`
    """
    with user_errors(), fetching():
        if shapes is None and force_acceptance is not None:
            raise UserError(
                "--force-acceptance is for --shapes: the acceptance rate of a real pair is measured, not chosen"
            )
        if shapes is not None and force_acceptance is None:
            raise UserError("--shapes makes random models, which never agree; add --force-acceptance, such as 0.8")
        if shapes is not None and models.chosen != "pocket":
            raise UserError("--shapes make their own models; leave out --pair")
        if runs == 2:
            raise UserError("--runs 2: two runs do not tell how much runs differ; use 3 or more, or 1")
        check_names(models.chosen)

        from specbench_extras.bench import main as module

        if shapes is None or force_acceptance is None:
            raise typer.Exit(module.main(models.chosen, runtime or [], documents, runs, gamma, device, dtype, out))
        raise typer.Exit(
            module.main_of_shapes(shapes, force_acceptance, runtime or [], documents, runs, gamma, device, dtype, out)
        )
