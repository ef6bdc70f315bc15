"""The judge of `specbench score`: grades join a run, and are shown."""

from collections.abc import Sequence
from pathlib import Path

from specbench.report.finding import Finding
from specbench_extras.mt_judge.score import score
from specbench_extras.mt_judge.view import view


def grade(run: Path, judge: str, tasks: Sequence[str], device: str, dtype: str) -> Finding:
    """Have a model grade the answers of a run, as `score`, and return the mean grades."""
    return view(score(run, judge, tasks, device, dtype))
