"""Commands that prepare a measurement."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import DataDir, Device, Dtype, Pair, Set, Suite, user_errors


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
