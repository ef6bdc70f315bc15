"""Commands that prepare a measurement."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import DataDir, Device, Dtype, Pair, RunOut, Set, Suite, user_errors
from specbench.config import UserError


class Tool(str, Enum):
    spec_bench = "spec-bench"
    vllm = "vllm"


def calibrate(
    suite: Suite,
    pair: Pair = "pocket",
    method: Annotated[str, typer.Option(help="csd, or a YAML file based on it")] = "csd",
    documents: Annotated[int, typer.Option(min=1, help="calibration documents of each task")] = 2000,
    temperature: Annotated[float, typer.Option(help="of the plain speculative sampling that is watched")] = 1.0,
    seed: Annotated[int, typer.Option(help="of sampling and of generated documents")] = 0,
    set_: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="memory file to write; default: memory-PAIR-SUITE.parquet")] = None,
) -> None:
    """Fill CSD's correction memory from calibration documents (never test ones), by plain speculative sampling.

    `specbench calibrate --method csd --pair pocket --suite math --out math.parquet`

    `specbench run --method csd --suite math --set csd.memory=math.parquet`
    """
    from specbench import calibration

    with user_errors():
        calibration.calibrate(
            suite=suite,
            pair=pair,
            method=method,
            assignments=set_ or [],
            documents=documents,
            temperature=temperature,
            seed=seed,
            device=device,
            dtype=dtype,
            data_dir=data_dir,
            out=out,
        )


def import_(
    tool: Annotated[Tool, typer.Argument(help="whose files")],
    files: Annotated[list[Path], typer.Argument(help="one file a method", show_default=False)],
    baseline: Annotated[Path | None, typer.Option(help="the tool's file of plain decoding; becomes vanilla")] = None,
    method: Annotated[str | None, typer.Option(help="what to call the method of a single file")] = None,
    pair: Annotated[str | None, typer.Option(help="what to call the pair of models; default: the tool")] = None,
    by_category: Annotated[bool, typer.Option("--by-category", help="Spec-Bench: each category is a task")] = False,
    out: RunOut = None,
) -> None:
    """Make a run folder of another tool's figures, so that `compare` puts them under the same definitions.

    What a format does not tell stays empty.

    `specbench import spec-bench answers-eagle.jsonl --baseline answers-vanilla.jsonl --by-category`

    `specbench import vllm result.json --method eagle3`
    """
    from specbench import importers
    from specbench.console import console

    with user_errors():
        if tool is Tool.spec_bench:
            made = importers.import_spec_bench(files, baseline, method, pair or tool.value, out, by_category)
        else:
            if by_category:
                raise UserError("--by-category is for spec-bench; a vLLM file has no categories")
            made = importers.import_vllm(files, baseline, method, pair or tool.value, out)
        console.print(f"records: {made}/\nnext:    specbench show {made}", highlight=False, soft_wrap=True)
