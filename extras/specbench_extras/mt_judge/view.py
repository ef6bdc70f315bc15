"""A judge's grades: their mean for each task and method, with its 95 % interval over answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from specbench.base.scores import mean_score
from specbench.report.finding import Finding, Sheet, bounds


def view(grades: Mapping[tuple[str, str], Sequence[float]]) -> Finding:
    """Grades by task and method, from 1 to 10; the tables of runs have them in percent."""
    rows = []
    for (task, method), values in grades.items():
        score = mean_score(np.array(values, float) / 10)
        cell = f"{10 * score.value:.2f}{bounds(10 * score.low, 10 * score.high)}"
        rows.append([task, method, str(len(values)), cell])
    headings = ["task", "method", "answers", "score, 1 to 10 [95 %]"]
    return Finding("grades", sheets=[Sheet(headings, rows, align="llrr")])
