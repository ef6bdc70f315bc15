"""The two branches of a mismatch, played to the end of the text and scored; kept in a folder as they come.

A branch begins with the very block of the state's round: earlier mismatches are kept as they were, the one in question
is forced, and those behind a forced draft token are judged by the arbiter, which reads that same block. So a branch
that the run took is its text again, unless its arbiter draws lots (`random:P`): then texts are others, drawn from one
seed for both branches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from specbench import files, parquet, permissions, records
from specbench import run as engine
from specbench.config import MethodSpec, UserError, task_info
from specbench.counterfactual import STATE, State
from specbench.decoding.arbiters import Arbiter, Block, Random
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.session import Unwatched
from specbench.decoding.types import Round, Sampling
from specbench.harness import Request, scorer
from specbench.methods.cospec import CoSpec
from specbench.multidraft_analysis import same_models
from specbench.ready import load_models_of
from specbench.seeds import stable_seed
from specbench.stored import StoredRun
from specbench.untrusted import read_object
from specbench.worth import worth

BRANCHES = pa.schema(
    [
        pa.field("repeat", pa.int32()),
        pa.field("task", pa.string()),
        pa.field("doc_id", pa.int32()),
        pa.field("round", pa.int32()),
        pa.field("position", pa.int32()),  # in the draft, from 0
        pa.field("kept", pa.bool_()),  # the run kept the draft's token
        pa.field("met", pa.bool_()),  # the round played again drafted and preferred the same tokens
        pa.field("same", pa.bool_()),  # the branch that the run took is the run's text again
        pa.field("draft_score", pa.float64()),  # of the text behind the draft's token
        pa.field("target_score", pa.float64()),
        pa.field("recorded_score", pa.float64()),  # of the run's own text
    ]
)


class Told:
    """Decides the first mismatches that it is asked about as told, and all others as another arbiter does."""

    def __init__(self, arbiter: Arbiter, told: Sequence[bool]) -> None:
        self.arbiter, self.told = arbiter, list(told)

    def begin(self, prompt: list[int]) -> None:
        self.arbiter.begin(prompt)

    def read(self, tokens: list[int]) -> None:
        self.arbiter.read(tokens)

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        told, self.told = self.told, []
        yield from told
        rest = block.mismatches[len(told) :]
        if rest:
            yield from self.arbiter.keeps(replace(block, mismatches=rest), rng)


class Player:
    """Plays the branches of the states of one run, with its pair, its method and the scores of its tasks."""

    def __init__(self, run: StoredRun, spec: MethodSpec, seed: int) -> None:
        """Raises UserError for models, prompts or an arbitrator that are others now."""
        permissions.check_code(run.plan)
        self.pair = load_models_of(run)
        same_models(run, self.pair)
        method = engine.build(spec, self.pair, Unwatched())
        assert isinstance(method, CoSpec)
        self.method = method
        if method.inputs() != run.manifest["inputs"].get(spec.name):
            raise UserError(f"{run.folder}: {spec.name} was run with another arbitrator or draft output; run it anew")
        self.seed, self.name, self.folder = seed, spec.name, run.folder
        self.tasks = engine.load_tasks(run.plan, self.pair)
        self.requests = {(one.task, one.doc_id): one for one in self.tasks.requests()}
        self.hashes = run.documents()
        self.sampling = Sampling(**run.plan.sampling.model_dump())

    def request(self, task: str, number: int) -> Request:
        request = self.requests.get((task, number))
        if request is None or self.hashes[task].get(number) != request.prompt_hash:
            raise UserError(f"{self.folder}: the prompts of {task} are others now; run it anew")
        return request

    def score(self, task: str, number: int) -> Callable[[str], float]:
        return scorer(self.tasks, task, number, task_info(task).metric)

    def checkable(self, found: pd.DataFrame) -> list[str]:
        """Of the tasks of `reached` states those that can score an answer by themselves: no judge model is asked.

        Raises UserError where there is none.
        """
        known, first = [], found.drop_duplicates("task")
        for task, number in first[["task", "doc_id"]].itertuples(index=False):
            self.request(task, number)
            try:
                self.score(task, number)("")
            except ValueError:  # the headline metric is not among its scores
                continue
            known.append(task)
        if not known:
            raise UserError(
                f"{self.folder}: {', '.join(first.task)} is scored by a judge model, so what a branch is worth cannot "
                "be checked; take a run of tasks that score themselves, such as gsm8k"
            )
        return known

    def play(self, state: State) -> dict[str, Any]:
        """A row of BRANCHES: both branches of a state, scored."""
        request, score = self.request(*state.document), self.score(*state.document)
        prompt = engine.encode(self.pair, request.prompt)
        limits = Limits(request.max_new_tokens, self.pair.eos_ids, request.until)
        begin = partial(Ending, limits, self.pair.detokenizer)
        row: dict[str, Any] = {name: getattr(state, name) for name in (*STATE, "kept")}
        endings, met = {}, True
        for keep in (True, False):
            ending, rounds = self.branch(state, prompt, keep, begin, score)
            endings[keep] = ending
            met &= is_met(state, rounds, keep)
        own = begin()
        own.keep(state.text)
        row |= {"met": met, "same": endings[state.kept].tokens == state.text, "recorded_score": score(own.text())}
        return row | {
            f"{name}_score": score(endings[keep].text()) for name, keep in (("draft", True), ("target", False))
        }

    def branch(
        self,
        state: State,
        prompt: list[int],
        keep: bool,
        begin: Callable[[], Ending],
        score: Callable[[str], float],
    ) -> tuple[Ending, list[Round]]:
        """One branch to its end, and its rounds; the first of them commits the token in front of the state's round.

        That token is the target's own (a correction, a bonus or the prefill's), so the method's prefill on what is in
        front of it makes it again.
        """
        method = self.method
        before = state.text[: state.start - 1]
        utility = worth(self.pair.session("target"), begin, score)
        # To the method the context is all a prompt; what an answer is worth depends on where it began.
        method.told(lambda context, answer: utility(prompt, [*context[len(prompt) :], *answer]))
        method.reset(state.task)
        rng = torch.Generator(self.pair.device).manual_seed(stable_seed(self.seed, *state.key))
        ending = begin()
        ending.keep(before)
        own = method.arbiter
        method.arbiter = Told(own, [True] * state.earlier + [keep])
        try:
            return ending, list(until_end(method.rounds([*prompt, *before], self.sampling, rng), ending))
        finally:
            method.arbiter = own

    @property
    def repeatable(self) -> bool:
        """Whether the same text comes again: not where the arbiter draws lots."""
        return not isinstance(self.method.arbiter, Random)


def is_met(state: State, rounds: Sequence[Round], keep: bool) -> bool:
    """Whether a branch went the way of its state: the same token first, the same draft, the mismatch decided so."""
    if len(rounds) < 2 or rounds[0].tokens != state.text[state.start - 1 : state.start]:
        return False
    i, verdict = state.position, rounds[1].verdict
    if verdict is None or verdict.drafted[: i + 1] != state.drafted[: i + 1] or verdict.targets[i] != state.target:
        return False
    if not keep:
        return rounds[1].tokens == [*state.drafted[:i], state.target]
    return i in verdict.rescued and sum(at < i for at in verdict.rescued) == state.earlier


class Store:
    """The branches that were played, in a folder: a Parquet file every so many states, each put in place whole."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """Makes the folder, or goes on with it. Raises UserError where it belongs to something else."""
        path = folder / "facts.json"
        if path.exists() and read_object(path, remedy="choose another --folder") != facts:
            raise UserError(f"{folder} holds branches of another run, method or seed; choose another --folder")
        if not path.exists():
            if folder.exists() and any(folder.iterdir()):
                raise UserError(f"{folder} is no folder of branches, and is not empty; choose another --folder")
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(path, facts)
        self.folder = folder

    def rows(self) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob("*.parquet"))
        remedy = "delete it to play its states again"
        tables = [parquet.read(path, BRANCHES, BRANCHES.names, remedy=remedy) for path in paths]
        for path, table in zip(paths, tables, strict=True):
            if any(column.null_count for column in table.columns):
                raise UserError(f"{path} is damaged (it lacks values); {remedy}")
        return [row for table in tables for row in table.to_pylist()]

    def keys(self) -> set[tuple[Any, ...]]:
        return {key_of(row) for row in self.rows()}

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            number = len(list(self.folder.glob("*.parquet")))
            records.write_table(self.folder / f"{number:06d}.parquet", rows, BRANCHES)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in STATE)


def facts_of(run: StoredRun, spec: MethodSpec, seed: int) -> dict[str, Any]:
    """What branches depend on beside their state."""
    same = {name: run.manifest.get(name) for name in ("started", "prompts_hash", "inputs")}
    return {"run": same, "method": spec.digest, "name": spec.name, "seed": seed}


def play_all(
    player: Player,
    states: Sequence[State],
    store: Store,
    batch: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[dict[str, Any]]:
    """Play the states that the store lacks, and put them there in groups of `batch`; rows of BRANCHES of all.

    What was played is kept when it is stopped; `advance` is told of each state.
    """
    known = {key_of(row): row for row in store.rows()}
    waiting: list[dict[str, Any]] = []
    try:
        for state in states:
            if state.key not in known:
                known[state.key] = player.play(state)
                waiting.append(known[state.key])
                if len(waiting) == batch:
                    store.add(waiting)
                    waiting = []
            advance(1)
    finally:
        store.add(waiting)
    return [known[state.key] for state in states]
