"""The command `specbench analyze losses`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specbench import config
from specbench.base.console import progress
from specbench.cli.analyze.shared import PlainFormat, show
from specbench.cli.errors import user_errors
from specbench.cli.groups import ReadAgain, with_groups
from specbench.cli.options import Device, Dtype, Pair, Plain


@with_groups
def losses(
    drafts: Annotated[list[Path], Argument(help="drafts that `specbench train --method draft` wrote, from one pair")],
    pair: Pair = "pocket",
    temperature: Annotated[
        list[float] | None, Option(min=0, help="measure at this one; 0 is greedy; may be repeated; default: 0 and 1")
    ] = None,
    suite: Annotated[
        str | None, Option(help="measure on test documents of this suite; default: on those held out from training")
    ] = None,
    documents: Annotated[int, Option(min=1, help="with --suite: documents of each task")] = 25,
    device: Device = "auto",
    dtype: Dtype = "auto",
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """Which loss, on which texts, makes a draft accepted: Σ min(p, q) by task on documents that none was trained on.

    Each draft is a folder with its NAME.held-out.jsonl next to it. Several seeds of one loss and texts are one row.

    `specbench analyze losses by-tvd by-rkl --pair pocket-weak --suite pocket`
    """
    with user_errors(), allowed.permitted():
        chosen = config.load_pair(pair)
        from specbench.plan import preparing
        from specbench_extras.draft_losses import compare as study
        from specbench_extras.draft_losses.view import view

        test = preparing(chosen, suite, config.load_method("vanilla"), documents, 0, None) if suite else None
        with progress("measuring drafts", len(drafts), format is not Plain.table) as advance:
            temperatures = temperature or [0.0, 1.0]
            show(view(study.losses(chosen, drafts, temperatures, device, dtype, test, advance)), format)
