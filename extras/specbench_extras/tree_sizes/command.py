"""The command `specbench analyze tree`."""

from typing import Annotated

from typer import Option

from specbench.cli.analyze.shared import Method, PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.options import Plain


def tree(
    run: Run,
    method: Method = None,
    nodes: Annotated[int, Option(min=1, max=512, help="the most tokens of a tree")] = 64,
    forward_times: Annotated[
        str | None,
        Option(help="a profile's FILE.json, or KEY=SECONDS,…; default: from the run's records"),
    ] = None,
    format: PlainFormat = Plain.table,
) -> None:
    """How often each rank of a tree's tokens is accepted, and the best tree for that and for this machine (Sequoia).

    `specbench analyze tree runs/ranks --forward-times profile.json`
    """
    with user_errors():
        from specbench.results.stored import stored_run
        from specbench_extras.tree_sizes.analysis import tree_sizes
        from specbench_extras.tree_sizes.view import view

        show(view(tree_sizes(stored_run(run, method), method, nodes, forward_times)), format)
