"""A judge's grades: their mean for each task and method, with its standard error over answers."""

from collections.abc import Mapping, Sequence

from specbench.report.finding import Finding, Sheet
from specbench.studies.mt_judge import mean_and_error


def view(grades: Mapping[tuple[str, str], Sequence[float]]) -> Finding:
    """Grades by task and method."""
    rows = []
    for (task, method), values in grades.items():
        mean, error = mean_and_error(values)
        rows.append([task, method, str(len(values)), f"{mean:.2f}" + (f" ±{error:.2f}" if error is not None else "")])
    return Finding("grades", sheets=[Sheet(["task", "method", "answers", "grade"], rows, align="llrr")])
