"""Commands that measure: run and sweep."""

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
    Limit,
    Pair,
    Repeats,
    RunOut,
    Runtime,
    Seed,
    Set,
    Split,
    Suite,
    TrustRemoteCode,
    folder,
    known,
    user_errors,
)
from specbench.config import UserError

PERMISSIONS = {"trust_remote_code", "allow_pickle", "allow_code_execution", "allow_entry_point"}  # never a run's own
# Without a value here the suite's own is taken.
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; default: the suite's, which is 0 for most")]
TopP = Annotated[float | None, typer.Option(help="1 is off; default: the suite's, which is 1 for most")]
TopK = Annotated[int | None, typer.Option(help="0 is off; default: the suite's, which is 0 for most")]


def run(
    context: typer.Context,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="a method by name, or a YAML file; may be repeated; default: those that the suite brings",
            autocompletion=known("methods"),
        ),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="a suite by name, or a YAML file", autocompletion=known("suites"))
    ] = None,
    pair: Pair = "pocket",
    limit: Limit = None,
    split: Split = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    set_: Set = None,
    baseline: Annotated[
        str, typer.Option(help="the method that speedups are against, none, or each: every method's own")
    ] = "each",
    device: Device = "auto",
    dtype: Dtype = "auto",
    runtime: Runtime = "eager",
    data_dir: DataDir = None,
    out: RunOut = None,
    resume: Annotated[Path | None, typer.Option(help="go on with an unfinished run")] = None,
    apply_chat_template: Annotated[bool, typer.Option(help="wrap prompts in the tokenizer's chat template")] = False,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_code_execution: AllowCodeExecution = False,
    allow_entry_point: AllowEntryPoint = None,
    share_prefix: Annotated[
        bool, typer.Option(help="read once what the prompts of a task begin with alike, such as few-shot examples")
    ] = True,
) -> None:
    """Decode a suite with one or more methods, time every forward, score the texts, and print a table.

    `specbench run --method csd --suite math`

    `specbench run --method sps --method csd --suite csd --set csd.gamma=4 --limit 20`

    `specbench run --suite csd-ablation`

    `specbench run --suite specdecpp --limit 10`

    `specbench run --method sps --suite math --runtime auto`

    `specbench run --resume runs/20260101-120000-math-csd`

    What lets code run that specbench did not bring (models' own, pickles, generated programs, functions of your own) is
    never taken from a run or a file: name it again where a run goes on.
    """
    from specbench import commands
    from specbench.permissions import permitted

    allowed = permitted(trust_remote_code, allow_pickle, allow_code_execution, allow_entry_point, set_)
    with user_errors(), allowed:
        given = None
        if resume and not suite and (named := _given(context) - {"resume"} - PERMISSIONS):
            raise UserError(f"--resume takes its settings from the run; leave out --{named.pop().replace('_', '-')}")
        if suite:
            given = commands.plan(
                methods=method or [],
                suite=suite,
                pair=pair,
                assignments=set_ or [],
                baseline=None if baseline == "none" else baseline,
                limit=limit,
                split=split,
                repeats=repeats,
                seed=seed,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                device=device,
                dtype=dtype,
                runtime=runtime,
                data_dir=folder(data_dir),
                chat_template=apply_chat_template,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
                share_prefix=share_prefix,
            )
        elif not resume:
            raise UserError("run needs --suite (and --method): specbench run --method csd --suite math")
        raise typer.Exit(commands.run(given, out, resume))


def sweep(
    method: Annotated[str, typer.Option(help="a method by name, or a YAML file", autocompletion=known("methods"))],
    param: Annotated[list[str], typer.Option(metavar="KEY=V1,V2,…", help="a setting and its values; may be repeated")],
    suite: Suite,
    pair: Pair = "pocket",
    limit: Limit = None,
    split: Split = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    set_: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    runtime: Runtime = "eager",
    data_dir: DataDir = None,
    out: RunOut = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_code_execution: AllowCodeExecution = False,
    allow_entry_point: AllowEntryPoint = None,
) -> None:
    """Run a method under every combination of some settings, as one run that can be resumed.

    `specbench sweep --method csd --param gamma=2,4,6,8 --suite math`

    `specbench sweep --method csd --param gamma=4,8 --param gate_threshold=0.01,0.1 --suite math --limit 50`
    """
    from specbench import commands
    from specbench.permissions import permitted

    typed = [*(set_ or []), *param]
    with (
        user_errors(),
        permitted(trust_remote_code, allow_pickle, allow_code_execution, allow_entry_point, typed),
    ):
        given = commands.plan(
            [method],
            suite,
            pair,
            set_ or [],
            "each",
            limit,
            folder(data_dir),
            params=param,
            split=split,
            repeats=repeats,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            device=device,
            dtype=dtype,
            runtime=runtime,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )
        raise typer.Exit(commands.run(given, out, None))


def _given(context: typer.Context) -> set[str]:
    """The options that stand on the command line, as opposed to defaults."""
    return {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
