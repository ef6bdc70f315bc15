"""Commands that prepare a measurement: calibrate, train, merge and import."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from specbench.base.console import say
from specbench.cli.errors import check_names, user_errors
from specbench.cli.groups import Machine, Models, Staffed, with_groups
from specbench.cli.options import AllowCodeExecution, RunOut, Set, known
from specbench.config import UserError, plugins
from specbench.permissions import permitted
from specbench.results import importers

Tool = Enum("Tool", {name.replace("-", "_"): name for name in (*importers.tools(), *importers.heads())}, type=str)  # type: ignore[misc]
AllowConditions = Annotated[
    list[str] | None,
    Option(
        metavar="FIELD",
        help="divide files that differ in this: model, tokenizer, concurrency, rate, data or options",
    ),
]
CalibrationSuite = Annotated[
    str | None,
    Option(help="the suite of the calibration documents: a name, or a YAML file", autocompletion=known("suites")),
]


@dataclass(frozen=True)
class Calibration(Models):
    """Options that the calibration takes as they are."""

    suite: CalibrationSuite = None
    corpus: Annotated[Path | None, Option(help='instead of a suite: JSON Lines with a field "text"')] = None
    method: Annotated[str, Option(help="csd, or a YAML file based on it")] = "csd"
    documents: Annotated[int, Option(min=1, help="calibration documents of each task, or texts")] = 2000
    temperature: Annotated[float, Option(help="of the speculative sampling whose rejections are counted")] = 1.0
    seed: Annotated[int, Option(help="of sampling and of generated documents")] = 0
    batch: Annotated[
        int | None,
        Option(min=1, help="texts to decode together, with the counts of one by one; default: 16 if the runtime can"),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            help="FILE.parquet for all tasks together, or a folder: a file for each task; default: memory-PAIR-SUITE/"
        ),
    ] = None


@with_groups
def calibrate(*, options: Calibration, set_: Set = None, staffed: Staffed, machine: Machine) -> None:
    """Fill CSD's correction memory from calibration documents (never test ones), by plain speculative sampling.

    In a folder, each task has a file with its own counts; other tasks use `universal.parquet`, the sum of all. If it is
    stopped, the same command goes on.

    `specbench calibrate --method csd --pair pocket --suite math --out math`

    `specbench run --method csd --suite math --set csd.memory=math`

    `specbench calibrate --corpus texts.jsonl --documents 6000 --out universal.parquet`

    `specbench calibrate --suite math --workers 4 --out math`
    """
    with user_errors(), permitted(fetch_models=True):
        check_names(options.chosen, options.suite, options.method)
        from specbench.training import csd  # after the names are checked, as this import takes seconds

        csd.calibrate(assignments=set_ or [], staffing=staffed.staffing(), **options.values(), **machine.of_plan())


@with_groups
def train(
    *,
    method: Annotated[
        str,
        Option(
            help="judge, specdecpp, speckv, eagle3, eagle, hass, fspad, dovetail, medusa, hydra, mtp, chimera, dflash, "
            "dflare, deer, specblock, kangaroo, del, vocabtrim, cospec, a YAML based on one, or draft"
        ),
    ],
    suite: CalibrationSuite = None,
    data: Annotated[
        list[str] | None,
        Option(metavar="TASK:SPLIT", help="instead of a suite: these documents, never those a task evaluates"),
    ] = None,
    prompts: Annotated[
        Path | None,
        Option(help="instead of a suite: a file of prompts, as `run --prompts` reads it, first turns; none is tested"),
    ] = None,
    models: Models,
    documents: Annotated[
        int | None, Option(min=1, help="documents of each task; default: 50, of --prompts all", show_default=False)
    ] = None,
    seed: Annotated[int, Option(help="of everything that is drawn at random")] = 0,
    set_: Set = None,
    recipe: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE",
            help="change a setting of the method's recipe",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        Option(metavar="KEY=V1,V2,…", help="specdecpp: a head for every combination, in the folder --out"),
    ] = None,
    stage: Annotated[str | None, Option(help="cospec: sft (warm-up, the default) or rl (reinforcement)")] = None,
    judge: Annotated[
        str | None,
        Option(
            metavar="rollout|MODEL",
            help="cospec, sft: what labels mismatches; rollout (the default) decodes both branches to their ends",
        ),
    ] = None,
    warm_up: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="cospec, rl: the file that sft wrote; none: begin by rejecting all. eagle3, dflash, dflare, deer, "
            "specblock: a head to go on from",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        Option(
            help="draft: distillspec (the default), fastdraft, direct-alignment or draft-opd. eagle3, dflash, dflare: "
            "draft-opd; eagle3: gto; both go on from a head"
        ),
    ] = None,
    evaluate: Annotated[
        bool,
        Option("--evaluate", help="draft: then decode the held-out documents by sps, before and after training"),
    ] = False,
    staffed: Staffed,
    machine: Machine,
    out: Annotated[
        Path | None, Option(help="head file (draft: folder) to write; default: METHOD-PAIR.safetensors (draft-PAIR)")
    ] = None,
    allow_code_execution: AllowCodeExecution = None,
) -> None:
    """Train a method's head on calibration documents (never test ones). The same command continues a stopped training.

    `specbench train --method judge --pair pocket --suite pocket --documents 50 --out judge.safetensors`

    `specbench run --method judge --suite math --set judge.head=judge.safetensors`

    `specbench train --method specdecpp --data pocket_gsm8k:calibration --recipe depth=2 --out head.safetensors`

    `specbench train --method specdecpp --suite math --grid depth=0,1,2,3,4 --grid weight=1,3,6,12 --out heads`

    `specbench train --method eagle3 --suite pocket --documents 2000 --recipe epochs=10 --out eagle3.safetensors`

    `specbench train --method cospec --stage sft --data pocket_gsm8k:calibration --out sft.safetensors`

    `specbench train --method cospec --stage rl --warm-up sft.safetensors --data pocket_gsm8k:calibration --recipe
    updates=10 --recipe prompts=16 --recipe group=8`

    `specbench train --method eagle3 --suite pocket --documents 2000 --workers 4 --out eagle3.safetensors`

    `specbench train --method dflash --preset draft-opd --suite pocket --documents 100 --out replayed.safetensors`

    `specbench train --method draft --preset fastdraft --suite pocket --documents 200 --evaluate --out better-draft`
    """
    named = [] if method == "draft" else [method]
    with user_errors(), permitted(allow_code_execution=allow_code_execution, fetch_models=True, methods=named):
        check_names(models.chosen, suite, None if method == "draft" else method)
        from specbench.training import train as module  # after the names are checked, as this import takes seconds

        trainer: Any = evaluate and module.trainer(method)
        if evaluate and not hasattr(trainer, "evaluations"):
            raise UserError(f"--evaluate is for --method draft; {method} is evaluated by `specbench run`")
        job = module.train(
            method=method,
            pair=models.chosen,
            suite=suite,
            documents=documents,
            seed=seed,
            assignments=set_ or [],
            **machine.of_plan(),
            out=out,
            data=data or [],
            recipe=recipe or [],
            grid=grid or [],
            stage=stage,
            judge=judge,
            warm_up=warm_up,
            preset=preset,
            staffing=staffed.staffing(),
            prompts=prompts,
        )
        if job and evaluate:
            runs = module.run_plans(trainer.evaluations(job, machine.device, machine.dtype, machine.runtime))
            if len(runs) == 2:
                trainer.show_evaluations(runs)


def merge(
    sources: Annotated[list[Path], Argument(help="memory files, or run folders", show_default=False)],
    out: Annotated[Path, Option(help="memory file to write")],
    method: Annotated[str | None, Option(help="the method to take, if a run folder has several")] = None,
) -> None:
    """Add up CSD's memories of several runs: files of counts, and rejections in run folders.

    `specbench merge monday.parquet runs/tuesday --method csd --out fleet.parquet`

    `specbench run --method csd --suite math --set csd.memory=fleet.parquet`
    """
    from specbench.training import csd

    with user_errors():
        csd.merge(sources, method, out)


def import_(
    tool: Annotated[Tool, Argument(help=f"the tool that wrote the files{plugins.more()}")],
    files: Annotated[
        list[Path],
        Argument(
            help="a file for each method; for a head, the folder of its checkpoint, or a block drafter's hub name",
            show_default=False,
        ),
    ],
    baseline: Annotated[Path | None, Option(help="the tool's file of plain decoding, which becomes vanilla")] = None,
    method: Annotated[str | None, Option(help="the name of the method, if there is one file")] = None,
    pair: Annotated[
        str | None, Option(help="the name of the pair of models; default: the tool's. For a head: its pair")
    ] = None,
    by_category: Annotated[
        bool, Option("--by-category", help="Spec-Bench and SPEED-Bench: each category is a task; MT-Bench is one")
    ] = False,
    before: Annotated[
        Path | None,
        Option(help="vLLM: an earlier scrape of /metrics than the one in FILES; only what was counted since is read"),
    ] = None,
    allow_mismatch: AllowConditions = None,
    out: RunOut = None,
) -> None:
    """Turn another tool's figures into a run folder for `compare`, or a released head into a head file.

    Figures are defined as in this project's tables; those that a format lacks stay empty. For a head,
    --out names the .safetensors file to write.

    `specbench import spec-bench answers-eagle.jsonl --baseline answers-vanilla.jsonl --by-category`

    `specbench import vllm result.json --method eagle3`

    `specbench import vllm metrics-after.txt --before metrics-before.txt --method eagle3`

    `specbench import sglang result.jsonl --baseline plain.jsonl --method eagle3`

    `specbench import aiperf profile_export.jsonl`

    `specbench import specdecpp-head acchead-llama2-chat-7bx70b --pair llama-2-chat-70b-7b --out head.safetensors`

    `specbench import eagle3-head EAGLE3-LLaMA3.1-Instruct-8B --pair llama-3.1-8b-3.2-1b --out head.safetensors`

    `specbench import dflash-head z-lab/Qwen3-8B-DFlash-b16 --pair target=Qwen/Qwen3-8B,draft=Qwen/Qwen3-0.6B --out
    head.safetensors`

    `specbench import medusa-head medusa-vicuna-7b-v1.3 --pair target=lmsys/vicuna-7b-v1.3 --out head.safetensors`

    `specbench import eagle-head EAGLE-Vicuna-7B-v1.3 --pair target=lmsys/vicuna-7b-v1.3 --out head.safetensors`
    """
    with user_errors(), permitted(fetch_models=True):
        if tool.value in importers.heads():
            if len(files) != 1 or pair is None or baseline or method or by_category or before or allow_mismatch:
                raise UserError(f"{tool.value} takes one folder, --pair and --out; nothing else")
            check_names(pair)
            missing = UserError(f"{files[0]}: there is no such folder; give that of the head's checkpoint")
            if not files[0].is_dir() and "/" not in str(files[0]):  # nor a name on the hub
                raise missing
            module = importers.importer(tool.value)
            if not files[0].is_dir() and not getattr(module, "HUB", False):
                raise missing
            kind = tool.value.removesuffix(importers.HEAD)
            suite = "specdecpp" if kind == "specdecpp" else "math"
            head = module.import_head(files[0], pair, out, kind)
            say(f"head: {head}")
            use = f"--method {kind} --pair {pair} --suite {suite} --set {kind}.head={head}"
            say(f"next: specbench run {use}")
            return
        allowed = allow_mismatch or []
        made = importers.import_files(tool.value, files, baseline, method, pair, out, by_category, before, allowed)
        say(f"records: {made}/")
        say(f"next:    specbench show {made}")
