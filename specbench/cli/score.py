"""The command that has a judge model grade the answers of a run."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specbench.cli.errors import user_errors
from specbench.cli.options import Device, Dtype
from specbench.config import UserError, plugins
from specbench.permissions import permitted


def score(
    run: Annotated[Path, Argument(help="a finished run folder")],
    judge: Annotated[str, Option(help="the model that grades: a hub name, a folder, or bundled:NAME")],
    task: Annotated[
        list[str] | None, Option(help="a task to grade; may be repeated; default: those that only a judge can score")
    ] = None,
    form: Annotated[str, Option(help="how it grades: mt-bench, or by what an installed package brings")] = "mt-bench",
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Have a model grade the stored answers of a run from 1 to 10, as MT-Bench does; its scores join the run's.

    `specbench score runs/transfer --judge Qwen/Qwen3-32B`
    """
    from specbench.report.finding import show
    from specbench.results.stored import stored_run

    with user_errors(), permitted(fetch_models=[judge]):
        stored_run(run)
        forms = plugins.entries("judges")
        if form not in forms:
            known = f"there are {', '.join(forms)}" if forms else f"the package {plugins.EXTRAS} brings mt-bench"
            raise UserError(f"--form {form}: nothing here grades so; {known}")
        grade = forms[form].load()  # after the run is found, as this import takes seconds
        show(grade(run, judge, task or [], device, dtype))
