"""`specbench score`: a judge model rates the stored answers of a run, one by one, from 1 to 10.

This is MT-Bench's single-answer grading (Zheng et al., arXiv 2306.05685, section 3.1) with another prompt and without
reference answers. The judge writes nothing: its grade is the mean of 1 to 10, weighted by their probabilities.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.analysis import compare
from specbench.analysis.metrics import timed_samples
from specbench.base.console import progress
from specbench.base.folder import member
from specbench.base.untrusted import read_object
from specbench.config import ModelSpec, PairSpec, UserError
from specbench.engine.models.pair import Pair, load_pair
from specbench.measure.prompts import encode, load_tasks
from specbench.results import records
from specbench.results.stored import StoredRun

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
# Of the judge's reply. A number has no brackets in it, so the grade's tokens start after them.
BEGINNING = "Grade: [["


class Judge:
    """A causal LM that grades answers. Raises UserError if its tokenizer has no separate tokens for grades."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.session = pair.session("target")
        self.digits, self.ten = self._grades()

    def grade(self, question: str, answer: str) -> float:
        """Σ n p(n) / Σ p(n) over n from 1 to 10, given the question and the answer.

        If 10 is a single token, it has its own probability. If it is two, p(10) = p(1) p(0 | 1), and the rest of p(1)
        belongs to the grade 1; one forward gives both, because the token 1 is fed after the beginning of the reply.
        Raises UserError if all this is longer than the judge's context.
        """
        ids = [*self._encode(question, answer), self.digits[0]]
        if len(ids) > self.pair.context:
            raise UserError(
                f"an answer and its question are {len(ids)} tokens for the judge, which reads {self.pair.context}; "
                "take one with a longer context"
            )
        self.session.truncate(0)
        first, second = self.session.forward(ids, keep=2).logits.double().softmax(-1)
        chances = first[torch.tensor(self.digits, device=first.device)].tolist()
        if len(self.ten) == 1:
            ten = float(first[self.ten[0]])
        else:
            ten = chances[0] * float(second[self.ten[1]])
            chances[0] -= ten
        return float(np.average(range(1, MOST + 1), weights=[*chances, ten]))

    def _encode(self, question: str, answer: str, more: str = "") -> list[int]:
        request = REQUEST.format(question=question, answer=answer)
        if self.pair.tokenizer.chat_template is None:
            return encode(self.pair, f"{request}\n\n{BEGINNING}{more}")
        messages = [{"role": "user", "content": request}]
        text = self.pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return encode(self.pair, f"{text}{BEGINNING}{more}")

    def _grades(self) -> tuple[list[int], list[int]]:
        """The tokens of 1 to 9, one each, and the one or two tokens of 10."""
        before = self._encode("", "")
        encoded = [self._encode("", "", str(number)) for number in range(1, MOST + 1)]
        *digits, ten = (tuple(ids[len(before) :]) for ids in encoded)
        prefixed = all(ids[: len(before)] == before for ids in encoded)
        single = all(len(ids) == 1 for ids in digits) and len({*digits, ten}) == MOST
        if not (prefixed and single and (len(ten) == 1 or (len(ten) == 2 and ten[:1] == digits[0]))):
            raise UserError("the judge's tokenizer has no separate tokens for grades from 1 to 10; take another")
        return [ids[0] for ids in digits], list(ten)


def score(
    folder: Path, judge: str, tasks: Sequence[str], device: str = "auto", dtype: str = "auto"
) -> dict[tuple[str, str], list[float]]:
    """Let the model `judge` grade a finished run's answers to some tasks; by default those that only a judge can score.

    Adds the metric `judge,none` to the run's scores.parquet, for each document and as their mean, and replaces earlier
    such rows of these tasks. The metric is a tenth of the grade, so that it lies between 0 and 1 as other scores do.
    Rewrites summary.parquet, and notes the judge in judge.json. Returns the grades, from 1 to 10, by task and method.
    Raises UserError if the run has no such tasks or answers, or the judge is not available.
    """
    run = StoredRun(folder)
    chosen = _tasks(run, tasks)
    scores = run.scores()
    questions = _questions(run, chosen)
    samples = timed_samples(run.samples(["repeat", "task", "doc_id", "method", "warmup", "finish", "text"]))
    samples = samples[samples.task.isin(chosen) & samples.text.notna()]
    if samples.empty:
        raise UserError(
            f"{folder}/samples.parquet has no answers to {', '.join(chosen)}, as every sample failed; run it again, or "
            "name other tasks with --task"
        )
    spec = PairSpec(name="judge", description=judge, target=ModelSpec(model=judge, dtype="auto"))
    loaded = load_pair(spec, device, dtype)
    grader = Judge(loaded)
    # Lossless methods give the same answers, which are graded once.
    answers = samples[["task", "doc_id", "text"]].drop_duplicates()
    grades: dict[tuple[str, int, str], float] = {}
    with progress("grading", len(answers)) as advance:
        for task, doc_id, text in answers.itertuples(index=False):
            grades[task, doc_id, text] = grader.grade(questions[task, doc_id], text)
            advance(1)
    samples["grade"] = [grades[key] for key in samples[["task", "doc_id", "text"]].itertuples(index=False, name=None)]
    kept = scores[~(scores.task.isin(chosen) & (scores.metric == METRIC) & (scores["filter"] == FILTER))]
    rows = [*_rows(kept), *_graded(samples)]
    records.write_table(member(folder, "scores.parquet"), rows, records.SCORES)
    compare.write_summary(folder)
    _remember(folder, chosen, loaded)
    return {key: part.tolist() for key, part in samples.groupby(["task", "method"], sort=False).grade}


def _tasks(run: StoredRun, named: Sequence[str]) -> list[str]:
    """The tasks to grade: those `named`, or all that need a judge. Raises UserError if there are none."""
    known = run.headline()
    for name in named:
        if name not in known:
            raise UserError(f"{run.folder} has no task {name!r}; it has {', '.join(known)}")
    chosen = list(named) or [task for task, metric in known.items() if metric == HEADLINE]
    if not chosen:
        raise UserError(f"{run.folder} has no task that needs a judge; name one of {', '.join(known)} with --task")
    if "imported" in run.manifest:
        raise UserError(f"{run.folder} is imported, without its questions; grade a run that specbench made")
    return chosen


def _questions(run: StoredRun, tasks: Sequence[str]) -> dict[tuple[str, int], str]:
    """The questions by task and document, without shots and chat template. UserError if documents have changed."""
    lines = tuple(line.model_copy(update={"fewshot": 0}) for line in run.plan.tasks if line.task in tasks)
    plain = run.plan.model_copy(update={"tasks": lines, "chat_template": False, "max_length": None})
    hashes = {(task, doc_id): doc_hash for task, doc_id, _, doc_hash in run.manifest["requests"]}
    questions = {}
    for request in load_tasks(plain, None).requests():
        key = request.task, request.doc_id
        if hashes.get(key, request.doc_hash) != request.doc_hash:
            raise UserError(
                f"document {request.doc_id} of {request.task} has changed since {run.folder}; put the old "
                "documents back (--data-dir of the run), or run it again"
            )
        questions[key] = request.prompt
    return questions


def _graded(samples: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of records.SCORES: the documents of each pass, and the pass as a whole."""
    rows = []
    for (repeat, task, method), part in samples.groupby(["repeat", "task", "method"], sort=False):
        key = {"repeat": repeat, "task": task, "method": method, "metric": METRIC, "filter": FILTER}
        values = (part.grade / MOST).tolist()
        rows += [
            key | {"doc_id": doc_id, "value": value, "stderr": None}
            for doc_id, value in zip(part.doc_id.tolist(), values, strict=True)
        ]
        mean, error = mean_and_error(values)
        rows.append(key | {"doc_id": None, "value": mean, "stderr": error})
    return rows


def _rows(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table of scores, with missing values as None."""
    return [row | {"doc_id": None if row["doc_id"] is None else int(row["doc_id"])} for row in records.rows_of(scores)]


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error; None for one value."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return float(np.mean(values)), error


def _remember(folder: Path, tasks: Sequence[str], judge: Pair) -> None:
    """Note in judge.json, by task, the model that graded and the prompt."""
    path = member(folder, "judge.json")
    known = read_object(path, remedy="delete it to grade again") if path.folder.has(path.name) else {}
    facts = judge.describe()["target"] | {"tokenizer_hash": judge.tokenizer_hash, "request": REQUEST + BEGINNING}
    path.folder.write_json(path.name, known | dict.fromkeys(tasks, facts))
