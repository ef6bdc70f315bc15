"""`specbench score`: a judge model rates the stored answers of a run, each by itself, from 1 to 10.

The form is MT-Bench's single-answer grading (Zheng et al., arXiv 2306.05685, section 3.1), in words of our own and
without reference answers. The judge writes nothing: its grade is the mean of 1 to 10, by the probabilities of these.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich import box
from rich.table import Table

from specbench import compare, files, records
from specbench import run as engine
from specbench.config import ModelSpec, PairSpec, UserError
from specbench.console import console, progress
from specbench.models import Pair, load_pair
from specbench.stored import StoredRun
from specbench.untrusted import read_object

METRIC, FILTER = "judge", "none"
HEADLINE = f"{METRIC},{FILTER}"  # of tasks that only a judge can score
MOST = 10
REQUEST = """An assistant was asked a question. Grade its answer as an impartial judge: is it helpful, to the point, \
correct, thorough and clear? Do not let its length or its tone sway you. Your grade is one whole number from 1 \
(useless) to 10 (excellent).

[The question]
{question}

[The answer]
{answer}

[End of the answer]
Write your grade in double brackets, such as [[5]], and nothing else."""
BEGINNING = (
    "Grade: [["  # of the judge's reply; brackets are no part of a number, so tokens of the grade begin behind them
)


class Judge:
    """A causal LM that grades answers. Raises UserError if its tokenizer has no tokens of their own for grades."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.session = pair.session("target")
        self.digits, self.ten = self._grades()

    def grade(self, question: str, answer: str) -> float:
        """Σ n p(n) / Σ p(n) over n from 1 to 10, given the question and the answer.

        Where 10 is one token it has a probability of its own. Where it is two, p(10) = p(1) p(0 | 1), and what is left
        of the token 1 is the grade 1: all of one forward, as the token 1 is fed behind the beginning of the reply.
        Raises UserError if all that is longer than the judge's context.
        """
        ids = [*self._encode(question, answer), self.digits[0]]
        if len(ids) > self.pair.context:
            raise UserError(
                f"an answer and its question are {len(ids)} tokens for the judge, which reads {self.pair.context}; "
                "take one with a longer context"
            )
        self.session.truncate(0)
        first, second = self.session.forward(ids, keep=2).logits.double().softmax(-1)
        given = first[torch.tensor(self.digits, device=first.device)].tolist()
        if len(self.ten) == 1:
            ten = float(first[self.ten[0]])
        else:
            ten = given[0] * float(second[self.ten[1]])
            given[0] -= ten
        return float(np.average(range(1, MOST + 1), weights=[*given, ten]))

    def _encode(self, question: str, answer: str, more: str = "") -> list[int]:
        request = REQUEST.format(question=question, answer=answer)
        if self.pair.tokenizer.chat_template is None:
            return engine.encode(self.pair, f"{request}\n\n{BEGINNING}{more}")
        messages = [{"role": "user", "content": request}]
        text = self.pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return engine.encode(self.pair, f"{text}{BEGINNING}{more}")

    def _grades(self) -> tuple[list[int], list[int]]:
        """The tokens of 1 to 9, and those of 10."""
        before = self._encode("", "")
        found = [self._encode("", "", str(number)) for number in range(1, MOST + 1)]
        *digits, ten = (tuple(ids[len(before) :]) for ids in found)
        apart = all(ids[: len(before)] == before for ids in found)
        single = all(len(ids) == 1 for ids in digits) and len({*digits, ten}) == MOST
        if not (apart and single and (len(ten) == 1 or (len(ten) == 2 and ten[:1] == digits[0]))):
            raise UserError("the judge's tokenizer has no tokens of their own for grades from 1 to 10; take another")
        return [ids[0] for ids in digits], list(ten)


def score(
    folder: Path, judge: str, tasks: Sequence[str], device: str = "auto", dtype: str = "auto"
) -> dict[tuple[str, str], list[float]]:
    """Have the model `judge` grade the answers of a finished run to some tasks; by default to those only it can score.

    Writes to the run's scores.parquet, for each document and as their mean, the metric `judge,none`: a tenth of the
    grade, so that it lies between 0 and 1 as other scores do. Former such rows of these tasks go. summary.parquet is
    made anew, and judge.json tells who graded. Returns the grades, from 1 to 10, by task and method. Raises UserError
    if the run has no such tasks or answers, or the judge cannot be had.
    """
    run = StoredRun(folder)
    chosen = _tasks(run, tasks)
    scores = run.scores()
    questions = _questions(run, chosen)
    samples = run.samples(["repeat", "task", "doc_id", "method", "warmup", "finish", "text"])
    samples = samples[~samples.warmup & (samples.finish != "error") & samples.task.isin(chosen) & samples.text.notna()]
    if samples.empty:
        raise UserError(f"{folder} has no answers to {', '.join(chosen)}")
    spec = PairSpec(name="judge", description=judge, target=ModelSpec(model=judge, dtype="auto"))
    loaded = load_pair(spec, device, dtype)
    grader = Judge(loaded)
    # methods that are lossless give the same answers, which are graded once
    answers = samples[["task", "doc_id", "text"]].drop_duplicates()
    grades: dict[tuple[str, int, str], float] = {}
    with progress("grading", len(answers)) as advance:
        for task, doc_id, text in answers.itertuples(index=False):
            grades[task, doc_id, text] = grader.grade(questions[task, doc_id], text)
            advance(1)
    samples["grade"] = [grades[key] for key in samples[["task", "doc_id", "text"]].itertuples(index=False, name=None)]
    kept = scores[~(scores.task.isin(chosen) & (scores.metric == METRIC) & (scores["filter"] == FILTER))]
    rows = [*_rows(kept), *_graded(samples)]
    records.write_table(folder / "scores.parquet", rows, records.SCORES)
    records.write_frame(folder / "summary.parquet", compare.summary(compare.measured([StoredRun(folder)])))
    _remember(folder, chosen, loaded)
    return {key: part.tolist() for key, part in samples.groupby(["task", "method"], sort=False).grade}


def print_grades(grades: dict[tuple[str, str], list[float]]) -> None:
    """A row for each task and method, with the mean grade and its standard error over answers."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("task", "method", "answers", "grade"):
        table.add_column(heading, justify="right" if heading in ("answers", "grade") else "left")
    for (task, method), values in grades.items():
        error = f" ±{_stderr(values):.2f}" if len(values) > 1 else ""
        table.add_row(task, method, str(len(values)), f"{np.mean(values):.2f}{error}")
    console.print(table)


def _tasks(run: StoredRun, asked: Sequence[str]) -> list[str]:
    """The tasks to grade, checked."""
    known = run.headline()
    for name in asked:
        if name not in known:
            raise UserError(f"{run.folder} has no task {name!r}; it has {', '.join(known)}")
    chosen = list(asked) or [task for task, metric in known.items() if metric == HEADLINE]
    if not chosen:
        raise UserError(f"{run.folder} has no task that needs a judge; name one of {', '.join(known)} with --task")
    if "imported" in run.manifest:
        raise UserError(f"{run.folder} is imported, without its questions; a judge cannot grade it")
    return chosen


def _questions(run: StoredRun, tasks: Sequence[str]) -> dict[tuple[str, int], str]:
    """What was asked, by task and document, without shots and chat template. UserError where documents have changed."""
    lines = tuple(line.model_copy(update={"fewshot": 0}) for line in run.plan.tasks if line.task in tasks)
    plain = run.plan.model_copy(update={"tasks": lines, "chat_template": False, "max_length": None})
    asked = {(task, doc_id): doc_hash for task, doc_id, _, doc_hash in run.manifest["requests"]}
    found = {}
    for request in engine.load_tasks(plain, None).requests():
        key = request.task, request.doc_id
        if asked.get(key, request.doc_hash) != request.doc_hash:
            raise UserError(f"document {request.doc_id} of {request.task} is another one now than in {run.folder}")
        found[key] = request.prompt
    return found


def _graded(samples: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of records.SCORES, of the documents of every pass and of the pass."""
    rows = []
    for (repeat, task, method), part in samples.groupby(["repeat", "task", "method"], sort=False):
        key = {"repeat": repeat, "task": task, "method": method, "metric": METRIC, "filter": FILTER}
        values = (part.grade / MOST).tolist()
        rows += [
            key | {"doc_id": doc_id, "value": value, "stderr": None}
            for doc_id, value in zip(part.doc_id.tolist(), values, strict=True)
        ]
        stderr = _stderr(values) if len(values) > 1 else None
        rows.append(key | {"doc_id": None, "value": float(np.mean(values)), "stderr": stderr})
    return rows


def _rows(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as they were read, missing values as None."""
    rows: list[dict[str, Any]] = scores.astype(object).where(scores.notna(), None).to_dict("records")
    return [row | {"doc_id": None if row["doc_id"] is None else int(row["doc_id"])} for row in rows]


def _stderr(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _remember(folder: Path, tasks: Sequence[str], judge: Pair) -> None:
    """Note in judge.json, by task, which model graded and in which words."""
    path = folder / "judge.json"
    known = read_object(path, remedy="delete it to grade anew") if path.exists() else {}
    told = judge.describe()["target"] | {"tokenizer_hash": judge.tokenizer_hash, "request": REQUEST + BEGINNING}
    files.write_json(path, known | dict.fromkeys(tasks, told))
