"""Conversations of several turns: the prompt of a later turn holds the method's own answers to the turns before."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from specbench.base.hashes import short_hash
from specbench.measure.prompts import encode
from specbench.measure.work import Work
from specbench.results import records
from specbench.tasks.harness import Request

# By method: the request with its own prompt, and that prompt's token ids, or a text that says why there are none.
Prompts: TypeAlias = Mapping[str, tuple[Request, list[int] | str]]
COLUMNS = ["repeat", "task", "doc_id", "method", "warmup", "finish", "text"]


class Conversations:
    """The answers of each method and server in the conversations that are going on.

    They are those of the samples on record, so a run that was stopped between two turns goes on from the same words.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._reach = max((method.reach for method in work.methods.values()), default=0)
        self._answers: dict[tuple[str, str, int], str | None] = {}  # by method, task and doc_id; None: it failed

    def forget(self) -> None:
        """Let go of all answers: other conversations begin."""
        self._answers = {}

    def recall(self, folder: Path, repeat: int, request: Request) -> None:
        """Take up the recorded answers to the turns before a request, and no others."""
        self.forget()
        if request.turn == 0:
            return
        before = range(request.doc_id - request.turn, request.doc_id)
        table = records.read_rows(folder, "samples", COLUMNS).to_pandas()
        rows = table[(table.repeat == repeat) & (table.task == request.task) & table.doc_id.isin(before)]
        self.add(records.rows_of(rows))

    def add(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Keep the answers of samples, but for those to turns whose answer is known: the recorded one counts."""
        for sample in samples:
            if not sample["warmup"]:
                answer = None if sample["finish"] == "error" else sample["text"]
                self._answers.setdefault((sample["method"], sample["task"], sample["doc_id"]), answer)

    def prompts(self, request: Request, prompt: list[int]) -> Prompts:
        """What each method is given for a request; `prompt` are its token ids if it is the first of a conversation."""
        if request.turn == 0:
            self.forget()
        return {name: self.prompt(name, request, prompt) for name in self._work.methods}

    def prompt(self, name: str, request: Request, prompt: list[int]) -> tuple[Request, list[int] | str]:
        """The same for one method or server; it lets go of no answers."""
        if request.turn == 0:
            return request, prompt
        answers = self.answers(name, request)
        if len(answers) < request.turn:
            return request, f"{name} gave no answer to an earlier turn, so there is no conversation to go on with"
        from specbench.tasks.prompts import PromptFile

        tasks = self._work.tasks
        assert isinstance(tasks, PromptFile)  # no other documents have turns
        text = tasks.prompt(request, answers)
        ids = encode(self._work.pair, text)
        with_answers = replace(request, prompt=text, prompt_hash=short_hash(text))
        need = len(ids) + request.max_new_tokens + self._reach
        if need > self._work.pair.context:
            return with_answers, f"the conversation needs {need} positions, but the pair has {self._work.pair.context}"
        return with_answers, ids

    def answers(self, name: str, request: Request) -> list[str]:
        """The answers of a method or server to the turns before a request, without those that failed."""
        before = range(request.doc_id - request.turn, request.doc_id)
        earlier = (self._answers.get((name, request.task, doc_id)) for doc_id in before)
        return [answer for answer in earlier if answer is not None]
