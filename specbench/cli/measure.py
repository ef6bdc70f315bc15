"""Commands that measure: run, join, sweep and score."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from specbench.base.console import console, say
from specbench.base.environment import MUST_AGREE
from specbench.cli.errors import user_errors
from specbench.cli.groups import Allowed, Decoding, Documents, Machine, Pooled, with_groups
from specbench.cli.options import (
    AllowCodeExecution,
    AllowKey,
    ArrivalTimes,
    Concurrency,
    FetchModels,
    NoPrompts,
    PlanShards,
    Rate,
    RowsTogether,
    RunOut,
    Server,
    ShardOption,
    TimeDocuments,
    known,
)
from specbench.config import UserError
from specbench.permissions import permitted
from specbench.plan import Plan, resolve_plan

if TYPE_CHECKING:
    from specbench.measure.staffing import Staffing

STOPPED = 130  # the exit code of a run that the user stopped
MACHINE = ", ".join(key for key in MUST_AGREE if key != "versions")


@with_groups
def run(
    context: typer.Context,
    *,
    method: Annotated[
        list[str] | None,
        Option(
            help="a method by name, a YAML file, or a FILE.py of your own; may be repeated; default: the suite's",
            autocompletion=known("methods"),
        ),
    ] = None,
    documents: Documents,
    decoding: Decoding,
    baseline: Annotated[
        str,
        Option(help="compute all speedups against this method; each: each method's own baseline; none: no baselines"),
    ] = "each",
    machine: Machine,
    batch: RowsTogether = 1,
    time_documents: TimeDocuments = 0,
    out: RunOut = None,
    resume: Annotated[Path | None, Option(help="continue an unfinished run")] = None,
    apply_chat_template: Annotated[
        bool,
        Option("--apply-chat-template", help="wrap prompts in the tokenizer's chat template; default: the suite's"),
    ] = False,
    no_apply_chat_template: Annotated[
        bool,
        Option(
            "--no-apply-chat-template",
            help="do not wrap prompts: those of --prompts (wrapped if there is a template) and of chat suites",
        ),
    ] = False,
    system_instruction: Annotated[
        str | None, Option(metavar="TEXT", help="a system prompt for all prompts, as lm-eval's --system_instruction")
    ] = None,
    no_fewshot_multiturn: Annotated[
        bool,
        Option("--no-fewshot-multiturn", help="in a chat template, put few-shot examples into the user's one turn"),
    ] = False,
    allowed: Allowed,
    fetch_models: FetchModels = False,
    no_share_prefix: Annotated[
        bool,
        Option(
            "--no-share-prefix",
            help="for each text, read again the beginning that all prompts of a task share, such as few-shot examples, "
            "or a turn of --trajectories with the one before it",
        ),
    ] = False,
    no_prompts: NoPrompts = False,
    server: Server = None,
    allow_key: AllowKey = None,
    concurrency: Concurrency = 1,
    rate: Rate = None,
    arrivals: ArrivalTimes = None,
    shard: ShardOption = None,
    plan_shards: PlanShards = None,
    pooled: Pooled,
) -> None:
    """Decode a suite with one or more methods, time every forward, score the texts, and print a table.

    `specbench run --method csd --suite math`

    `specbench run --method sps --method csd --suite csd --set csd.gamma=4 --limit 20`

    `specbench run --suite csd-ablation`

    `specbench run --suite specdecpp --limit 10`

    `specbench run --method sps --suite math --runtime auto`

    `specbench run --method pld --task-dir my-tasks --allow-code-execution`

    `specbench run --target my-model --draft my-draft --method sps --task gsm8k --data-dir data`

    `specbench run --method sps --prompts question.jsonl --max-new-tokens 64`

    `specbench run --method sps --method pld --trajectories conversations.jsonl --max-new-tokens 64`

    `specbench run --method sps --method csd --suite math --batch 16 --time-documents 20`

    `specbench run --server vanilla=http://127.0.0.1:8000 --server eagle3=http://127.0.0.1:8001 --suite math`

    `specbench run --method csd --suite math --shard 2/4 --out runs/cut`

    `specbench run --method csd --suite math --workers 2 --untimed`

    `specbench run --method csd --suite math --workers 2 --ray local --untimed`

    `specbench run --method csd --pair large.yaml --suite math --workers 2 --gpus-per-worker 4`

    `specbench run --resume runs/20260101-120000-math-csd`

    Permissions to run other code (of models, in pickles, generated programs, your own functions) are never taken from a
    run or a file: give them again when you resume a run. Models and data sets that you name are fetched from the hub if
    they are missing here; those that only a run names need --fetch-models.
    """
    fetching = fetch_models or resume is None or documents.any
    with (
        user_errors(),
        allowed.permitted(decoding.set_ or [], fetching, method or [], documents.folders, allow_key or []),
    ):
        plan = None
        permissions = {
            "fetch_models",
            "task_dir",
            "workers",
            "ray",
            "gpus_per_worker",
            "allow_key",
            *(field.name for field in fields(Allowed)),
        }
        if resume and not documents.any and (typed := _typed(context) - {"resume"} - permissions):
            raise UserError(f"--resume takes its settings from the run; leave out --{typed.pop().replace('_', '-')}")
        if documents.any or not resume:
            if apply_chat_template and no_apply_chat_template:
                raise UserError("give --apply-chat-template or --no-apply-chat-template, not both")
            plan = resolve_plan(
                method or [],
                baseline=None if baseline == "none" else baseline,
                chat_template=apply_chat_template or (False if no_apply_chat_template else None),
                system_instruction=system_instruction,
                fewshot_as_multiturn=not no_fewshot_multiturn,
                share_prefix=not no_share_prefix,
                batch=batch,
                time_documents=time_documents,
                keep_prompts=not no_prompts,
                untimed=pooled.untimed,
                servers=server or [],
                concurrency=concurrency,
                rate=rate,
                arrivals=arrivals,
                **documents.of_plan(),
                **decoding.of_plan(),
                **machine.of_plan(),
                **allowed.of_plan(),
            )
        if plan_shards:
            raise typer.Exit(_say_how_cut(plan, plan_shards))
        raise typer.Exit(_run_plan(plan, out, resume, shard, pooled.staffing()))


@with_groups
def sweep(
    *,
    method: Annotated[
        str, Option(help="a method by name, a YAML file, or a FILE.py of your own", autocompletion=known("methods"))
    ],
    param: Annotated[list[str], Option(metavar="KEY=V1,V2,…", help="a setting and its values; may be repeated")],
    documents: Documents,
    decoding: Decoding,
    machine: Machine,
    batch: RowsTogether = 1,
    time_documents: TimeDocuments = 0,
    out: RunOut = None,
    allowed: Allowed,
    no_prompts: NoPrompts = False,
    pooled: Pooled,
) -> None:
    """Run a method under every combination of some settings, as one run; `run --resume` continues it.

    `specbench sweep --method csd --param gamma=2,4,6,8 --suite math`

    `specbench sweep --method csd --param gamma=4,8 --param gate_threshold=0.01,0.1 --suite math --limit 50`

    `specbench sweep --method csd --param gamma=2,4 --suite math --workers 2 --untimed`
    """
    typed = [*(decoding.set_ or []), *param]
    with user_errors(), allowed.permitted(typed, True, [method], documents.folders):
        options = documents.of_plan() | decoding.of_plan() | machine.of_plan() | allowed.of_plan()
        options |= {"keep_prompts": not no_prompts}
        options |= {"batch": batch, "time_documents": time_documents, "untimed": pooled.untimed}
        raise typer.Exit(_run_plan(resolve_plan([method], params=param, **options), out, staffing=pooled.staffing()))


def join(
    run: Annotated[Path, Argument(help="the folder that was given to every shard as --out")],
    allow_mismatch: Annotated[
        list[str] | None, Option(metavar="FIELD", help=f"join shards of machines that differ in this: {MACHINE}")
    ] = None,
    task_dir: Annotated[Path | None, Option(help="folder of your own tasks that the run names")] = None,
    allow_code_execution: AllowCodeExecution = None,
) -> None:
    """Make one run of the shards that `specbench run --shard K/N` decoded, score it, and print its table.

    `specbench join runs/cut`
    """
    with (
        user_errors(),
        permitted(allow_code_execution=allow_code_execution, task_folders=[task_dir] if task_dir else []),
    ):
        from specbench.measure.join import join as joined
        from specbench.report import comparison

        joined(run, allow_mismatch or [])
        raise typer.Exit(comparison.finish(run))


def _run_plan(
    plan: Plan | None,
    out: Path | None,
    resume: Path | None = None,
    shard: str | None = None,
    staffing: "Staffing | None" = None,
) -> int:
    """Run a plan and print its table; returns the exit code. Imports take seconds, so they come here, after names."""
    if staffing and shard:
        raise UserError("--workers cuts the run itself; leave out --shard")
    part = None
    if shard:
        from specbench.results.shard import Shard

        part = Shard.parse(shard)
    from specbench.measure import command
    from specbench.report import comparison
    from specbench.results.stored import StoredRun

    if staffing:
        from specbench.measure import pool

        finished = pool.run(plan, out, resume, staffing)
    else:
        finished = command.run(plan, out, resume, part)
    if finished and (mine := StoredRun(finished).shard):
        say(f"{mine.shard} is done: {finished}; when all are done: specbench join {finished.parent.parent}")
        return 0
    return comparison.finish(finished) if finished else STOPPED


def _say_how_cut(plan: Plan | None, count: int) -> int:
    """Print how a plan is cut into shards; returns the exit code."""
    if plan is None:
        raise UserError("--plan-shards is for a run that has not begun; leave out --resume")
    from specbench.measure.gate import admit
    from specbench.measure.prepare import prepare
    from specbench.measure.shards import cut
    from specbench.methods import with_defaults
    from specbench.report.finding import show
    from specbench.report.views.shards import view

    with console.status("loading models and documents"):
        work = prepare(admit(with_defaults(plan)), None)
    show(view(work, cut(work, count)))
    return 0


def _typed(context: typer.Context) -> set[str]:
    """The options that were typed, as opposed to defaults."""
    return {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
