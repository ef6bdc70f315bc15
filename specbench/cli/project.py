"""Commands that say what other settings, and other machines, would give."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import (
    AllowCodeExecution,
    AllowEntryPoint,
    AllowPickle,
    DataDir,
    Device,
    Dtype,
    Pair,
    Plain,
    Seed,
    Set,
    TrustRemoteCode,
    folder,
    known,
    user_errors,
)
from specbench.config import UserError


def profile(
    run: Annotated[
        Path | None, typer.Argument(help="a run folder to read, instead of running", show_default=False)
    ] = None,
    pair: Pair = "pocket",
    suite: Annotated[
        str | None,
        typer.Option(help="default: pocket for the bundled pair, else smoke", autocompletion=known("suites")),
    ] = None,
    documents: Annotated[int, typer.Option(min=2, help="documents of each task")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="how often to decode every document; the median counts")] = 5,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="a method by name, or a YAML file; default: sps and specdecpp", autocompletion=known("methods")
        ),
    ] = None,
    gamma: Annotated[str, typer.Option(help="draft lengths of methods with a fixed one; at least two")] = "2,4,8",
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the suite's")] = None,
    seed: Seed = 0,
    set_: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    runtime: Annotated[
        list[str] | None, typer.Option(help="how forwards are computed; may be repeated: the runs are at the first")
    ] = None,
    ceilings: Annotated[
        bool, typer.Option("--ceilings", help="measure anew what the machine can do at best, and do nothing else")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file to write; default: profile-PAIR.json")] = None,
    allow_code_execution: AllowCodeExecution = False,
    allow_entry_point: AllowEntryPoint = None,
) -> None:
    """Forward times of a pair by block width and context, and the time model that SpecDec++ fits to decoding.

    Beside the times stands the least that a forward can take at the machine's ceilings: the bandwidth of its memory,
    and the speed of a large matrix product. They are measured once; runs that come later record them.

    Writes FILE.json, which `simulate --forward-times` reads, FILE.csv with the fits, and the runs in the folder FILE.

    `specbench profile --pair pocket --documents 20 --repeats 5 --out pocket.json`

    `specbench profile runs/one`

    `specbench profile --ceilings`
    """
    from specbench import profiling
    from specbench.permissions import permitted

    with user_errors(), permitted(False, False, allow_code_execution, allow_entry_point, set_):
        if ceilings:
            if run:
                raise UserError("--ceilings measures this machine, not a run; leave out the run folder")
            profiling.measure_ceilings(pair, device, dtype)
            return
        if run:
            profiling.read(run, out)
            return
        code = profiling.main(
            pair,
            suite,
            documents,
            repeats,
            method,
            gamma,
            set_ or [],
            out,
            runtime or (),
            temperature=temperature,
            seed=seed,
            device=device,
            dtype=dtype,
            data_dir=folder(data_dir),
        )
        raise typer.Exit(code)


def simulate(
    run: Annotated[Path, typer.Argument(help="a run folder with drafts", show_default=False)],
    method: Annotated[
        str | None, typer.Option(help="whose rounds; default: the run's first method with drafts")
    ] = None,
    forward_times: Annotated[
        str | None,
        typer.Option(help="a profile's FILE.json, or t_draft=SECONDS,t_target=SECONDS,…; default: as in the run"),
    ] = None,
    gamma: Annotated[str | None, typer.Option(help="draft lengths, such as 1,2,4,8")] = None,
    threshold: Annotated[
        str | None, typer.Option(help="thresholds of the length policy that made the drafts, such as 0.3,0.5")
    ] = None,
    shortest: Annotated[int | None, typer.Option(min=1, help="with thresholds: no stop before so many tokens")] = None,
    heads: Annotated[
        Path | None, typer.Option(help="a folder of acceptance heads: the best threshold and speed of each")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="with --heads: CSV file to write, in the form of results/published")
    ] = None,
    format: Annotated[Plain, typer.Option(help="how to print; csv and json have each task")] = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:
    """What other draft lengths would have given, from one run's records, and on other hardware; without a model.

    With --heads the draft model reads a run's drafts once more, which must be of a fixed length, for heads to score.

    Further forward times are width_slope (seconds for each further token that the target reads), draft_start (of a
    round's first draft forward), overhead (of a round), draft_overhead (of a drafted token) and vanilla (of a token).

    `specbench simulate runs/one --method sps --gamma 1,2,4,8`

    `specbench simulate runs/one --forward-times t_draft=0.0234,t_target=0.112,vanilla=0.108`

    `specbench simulate runs/long --method specdecpp --heads heads --out table3.csv`
    """
    from specbench.permissions import permitted
    from specbench.report import simulate_view

    with user_errors(), permitted(trust_remote_code, allow_pickle):
        if heads:
            if gamma or shortest or format is not Plain.table:
                raise UserError("--heads goes with --method, --forward-times, --threshold and --out only")
            simulate_view.compare_heads(run, heads, method, forward_times, threshold, out)
            return
        if out:
            raise UserError("--out goes with --heads; write `--format csv > FILE` for a simulation")
        simulate_view.main(run, method, forward_times, gamma, threshold, shortest, format.value)
