"""Play both branches of a mismatch to the end of the text and score them.

A branch begins with the block of the state's round: earlier mismatches are kept as they were, the one in question is
forced, and the arbiter, which reads the same block, decides those after a forced draft token. So the branch that the
run took gives the run's text again, unless the arbiter draws at random (`random:P`): then the texts differ, and both
branches use one seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from specbench.base.hashes import stable_seed
from specbench.config import MethodSpec, UserError
from specbench.engine.generate import Ending, Limits, decode_text, worth
from specbench.engine.session import Unwatched
from specbench.engine.types import Round, Sampling
from specbench.measure import prepare
from specbench.measure.gate import check_code
from specbench.measure.prepare import load_models_of
from specbench.measure.prompts import encode, load_tasks, stored_requests
from specbench.methods.collaborative.cospec import Arbiter, Block, CoSpec, Random
from specbench.results.records import KEY
from specbench.results.same_models import same_inputs
from specbench.results.stored import StoredRun
from specbench.tasks.harness import Request, scorer
from specbench_extras.counterfactual.analysis import STATE, State

BRANCHES = pa.schema(
    [
        *KEY[:3],  # repeat, task, doc_id
        pa.field("round", pa.int32()),
        pa.field("position", pa.int32()),  # in the draft, from 0
        pa.field("kept", pa.bool_()),  # the run kept the draft's token
        pa.field("met", pa.bool_()),  # when played again, the round drafted and preferred the same tokens
        pa.field("same", pa.bool_()),  # the branch that the run took gives the run's text again
        pa.field("draft_score", pa.float64()),  # of the text with the draft's token
        pa.field("target_score", pa.float64()),
        pa.field("recorded_score", pa.float64()),  # of the run's own text
    ]
)


class Forced:
    """An arbiter whose first decisions are given; another arbiter makes the rest."""

    def __init__(self, arbiter: Arbiter, decisions: Sequence[bool]) -> None:
        self.arbiter, self.decisions = arbiter, list(decisions)

    def begin(self, prompt: list[int]) -> None:
        self.arbiter.begin(prompt)

    def read(self, tokens: list[int]) -> None:
        self.arbiter.read(tokens)

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        decisions, self.decisions = self.decisions, []
        yield from decisions
        rest = block.mismatches[len(decisions) :]
        if rest:
            yield from self.arbiter.keeps(replace(block, mismatches=rest), rng)


class Player:
    """Plays the branches of one run's states, with its pair, its method and the scoring of its tasks."""

    def __init__(self, run: StoredRun, spec: MethodSpec, seed: int) -> None:
        """Raises UserError if the models, the prompts or the arbitrator have changed since the run."""
        check_code(run.plan)
        self.pair = load_models_of(run)
        self.pair.need_one_tokenizer("it cannot read the texts token by token")
        method = prepare.build(spec, self.pair, Unwatched())
        assert isinstance(method, CoSpec)
        self.method = method
        recorded = run.manifest["inputs"].get(spec.name)
        if recorded is None or not same_inputs(recorded, method.inputs()):
            raise UserError(f"{run.folder}: {spec.name} was run with another arbitrator or draft output; run it again")
        self.plan = run.plan
        self.seed, self.name, self.folder = seed, spec.name, run.folder
        self.tasks = load_tasks(run.plan, self.pair)
        self.requests = {
            (request.task, request.doc_id): request for request in stored_requests(run, self.pair, self.tasks)
        }
        self.hashes = run.documents()
        self.sampling = Sampling(**run.plan.sampling.model_dump())

    def request(self, task: str, number: int) -> Request:
        request = self.requests.get((task, number))
        if request is None or self.hashes[task].get(number) != request.prompt_hash:
            raise UserError(f"{self.folder}: the prompts of {task} have changed since; run it again")
        return request

    def encoded(self, task: str, number: int) -> list[int]:
        """The prompt's tokens."""
        return encode(self.pair, self.request(task, number).prompt)

    def score(self, task: str, number: int) -> Callable[[str], float]:
        return scorer(self.tasks, task, number, self.plan.info(task).metric)

    def checkable(self, table: pd.DataFrame) -> list[str]:
        """The tasks of the states in `table` that can score an answer without a judge model.

        Raises UserError if there is none.
        """
        tasks, first = [], table.drop_duplicates("task")
        for task, number in first[["task", "doc_id"]].itertuples(index=False):
            self.request(task, number)
            try:
                self.score(task, number)("")
            except ValueError:  # the headline metric is not among its scores
                continue
            tasks.append(task)
        if not tasks:
            raise UserError(
                f"{self.folder}: {', '.join(first.task)} is scored by a judge model, so what a branch is worth cannot "
                "be checked; take a run of tasks that score themselves, such as gsm8k"
            )
        return tasks

    def play(self, state: State) -> dict[str, Any]:
        """Play and score both branches of a state; return a row of BRANCHES."""
        request, score = self.request(*state.document), self.score(*state.document)
        prompt = self.encoded(*state.document)
        limits = Limits(request.max_new_tokens, self.pair.eos_ids, request.until)
        begin = partial(Ending, limits, self.pair.detokenizer)
        row: dict[str, Any] = {name: getattr(state, name) for name in (*STATE, "kept")}
        endings, met = {}, True
        for keep in (True, False):
            ending, rounds = self.branch(state, prompt, keep, begin, score)
            endings[keep] = ending
            met &= is_met(state, rounds, keep)
        recorded = begin()
        recorded.keep(state.text)
        row |= {"met": met, "same": endings[state.kept].tokens == state.text, "recorded_score": score(recorded.text())}
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
        """One branch to its end, and its rounds. The first round commits the token before the state's round.

        That token came from the target (a correction, a bonus or the prefill's), so the method's prefill on the text
        before it gives the same token.
        """
        method = self.method
        before = state.text[: state.start - 1]
        utility = worth(self.pair.session("target"), begin, score)
        # To the method the whole context is a prompt, but an answer is scored from where it began.
        method.set_utility(lambda context, answer: utility(prompt, [*context[len(prompt) :], *answer]))
        method.reset(state.task)
        rng = torch.Generator(self.pair.device).manual_seed(stable_seed(self.seed, *state.key))
        ending = begin()
        ending.keep(before)
        arbiter = method.arbiter
        method.arbiter = Forced(arbiter, [True] * state.earlier + [keep])
        try:
            return ending, list(decode_text(method, [*prompt, *before], self.sampling, rng, ending))
        finally:
            method.arbiter = arbiter

    @property
    def repeatable(self) -> bool:
        """True if the same text comes again, that is, unless the arbiter draws at random."""
        return not isinstance(self.method.arbiter, Random)


def is_met(state: State, rounds: Sequence[Round], keep: bool) -> bool:
    """True if a branch followed its state: the same first token, the same draft, the mismatch decided as wanted."""
    if len(rounds) < 2 or rounds[0].tokens != state.text[state.start - 1 : state.start]:
        return False
    i, verdict = state.position, rounds[1].verdict
    if verdict is None or verdict.drafted[: i + 1] != state.drafted[: i + 1] or verdict.targets[i] != state.target:
        return False
    if not keep:
        return rounds[1].tokens == [*state.drafted[:i], state.target]
    return i in verdict.rescued and sum(at < i for at in verdict.rescued) == state.earlier
