"""One document decoded by one method: its rounds become rows of the records."""

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from specbench.base import environment
from specbench.base.hashes import stable_seed
from specbench.engine.clock import MASKS, Lap, Stopwatch, peak_memory
from specbench.engine.generate import Ending, Limits, decode_text, worth
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.types import Foresighted, Method, NotFinite, Round, Sampling
from specbench.measure.manifest import digest
from specbench.measure.work import Work
from specbench.results import records
from specbench.tasks.harness import Request, scorer

WARMUP_TOKENS = 24

Rows = tuple[dict[str, Any], list[dict[str, Any]]]  # a sample and its rounds


@dataclass
class Decoder:
    """Decodes documents, one at a time. An exception of a method or a model becomes the sample's result.

    If a method raises between texts (when it resets or restores what it learned), all its samples fail until `forgive`;
    the other methods go on.
    """

    pair: Pair
    stopwatch: Stopwatch
    sampling: Sampling
    run_seed: int
    _broken: dict[str, str] = field(default_factory=dict)  # tracebacks by method

    def attempt(self, name: str, step: Callable[[], Any]) -> Any:
        """What a step of method `name` returns; None if it fails."""
        try:
            return step()
        except Unsupported:
            raise
        except Exception:
            self._broken.setdefault(name, traceback.format_exc())
            return None

    def restore(self, name: str, method: Method, states: Mapping[str, Any]) -> None:
        """Let method `name` take up what it had learned, by `states` of all methods, or note that it fails."""
        self.attempt(name, lambda: method.restore(states[name]))

    def failure(self, name: str) -> str:
        """The traceback of the method's failure between texts; empty if there was none."""
        return self._broken.get(name, "")

    def forgive(self) -> None:
        """Let the methods that failed between texts try again."""
        self._broken.clear()

    def decode(
        self,
        name: str,
        method: Method,
        repeat: int,
        request: Request,
        prompt: list[int] | str,
        order: int,
        warmup: bool = False,
    ) -> Rows:
        """The sample row and the round rows of one text; `order` is the method's place in the document's shuffle.

        A `prompt` that is a text says why there is none: the sample fails with it.
        """
        key = {"repeat": repeat, "task": request.task, "doc_id": request.doc_id, "method": name, "warmup": warmup}
        sample = beginning(key, self.run_seed, order, request, prompt) | {
            "state_hash": digest(self.attempt(name, method.state))
        }
        if failure := self.failure(name):
            return sample | {"finish": "error", "error": failure}, []
        if isinstance(prompt, str):
            return sample | {"finish": "error", "error": prompt}, []
        ending = ending_of(self.pair, request, WARMUP_TOKENS if warmup else request.max_new_tokens)
        self.pair.constrain(request.constraint)
        rng = torch.Generator(self.pair.device).manual_seed(sample["seed"])
        try:
            rounds = timed(decode_text(method, prompt, self.sampling, rng, ending), self.stopwatch)
            laps = self.stopwatch.laps()
        except Exception as error:
            if warmup and isinstance(error, Unsupported):
                raise
            return sample | {"finish": "error", "error": traceback_text(error, self.stopwatch.highest.not_finite())}, []
        sample |= outcome(ending, laps) | {"peak_memory": peak_memory(self.pair.device)}
        return sample, round_rows(key, rounds, laps, self.pair.extra_members)


def tell_worth(work: Work, request: Request, decoder: Decoder, names: Iterable[str]) -> None:
    """Tell those of the methods that may know it (oracles) what an answer to the document is worth."""
    metric = work.plan.info(request.task).metric

    def tell(method: Foresighted) -> None:
        score = scorer(work.tasks, request.task, request.doc_id, metric)
        method.set_utility(worth(work.pair.session("target"), partial(ending_of, work.pair, request), score))

    for name in names:
        method = work.methods[name]
        if isinstance(method, Foresighted):
            decoder.attempt(name, partial(tell, method))


def traceback_text(error: Exception, not_finite: NotFinite | None = None) -> str:
    """The traceback, and after it the forward that first gave numbers that are not finite, if there was one.

    Frees the memory that the traceback's frames hold.
    """
    text = "".join(traceback.format_exception(error))
    error.__traceback__ = None  # its frames hold caches
    if isinstance(error, torch.OutOfMemoryError):
        gc.collect()
        torch.cuda.empty_cache()
    return text + (f"{not_finite}\n" if not_finite else "")


def beginning(
    key: dict[str, Any], run_seed: int, order: int, request: Request, prompt: list[int] | str
) -> dict[str, Any]:
    """The columns of a sample that are known before it is decoded; `key` are those of `records.KEY`."""
    return key | {
        "order": order,
        "seed": stable_seed(run_seed, key["repeat"], request.task, request.doc_id, key["method"]),
        "prompt_hash": request.prompt_hash,
        "prompt_tokens": 0 if isinstance(prompt, str) else len(prompt),
        "load": environment.load_average(),
        "clock_mhz": environment.clock_mhz(),
        "temperature_c": environment.temperature_c(),
    }


def untimed(rows: Rows) -> Rows:
    """A text's rows without any times."""
    sample, rounds = rows
    return _without_seconds(sample), list(map(_without_seconds, rounds))


def _without_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith("seconds")}


def outcome(ending: Ending, laps: Sequence[Lap]) -> dict[str, Any]:
    """The columns of a sample whose text has ended."""
    return {
        "tokens": ending.tokens,
        "text": ending.text(),
        "finish": ending.reason,
        "prefill_seconds": laps[0].seconds,
        "decode_seconds": sum(lap.seconds for lap in laps[1:]),
    }


def ending_of(pair: Pair, request: Request, length: int | None = None) -> Ending:
    """What ends the answer to a request: the pair's end tokens, the task's stop strings, or `length` tokens."""
    return Ending(Limits(length or request.max_new_tokens, pair.eos_ids, request.until), pair.detokenizer)


def timed(rounds: Iterator[Round], stopwatch: Stopwatch) -> list[Round]:
    """All rounds of one text, with a lap of the stopwatch after each; garbage is not collected meanwhile."""
    finished = []
    gc.disable()
    try:
        stopwatch.start()
        for round_ in rounds:
            stopwatch.lap()
            finished.append(round_)
    finally:
        gc.enable()
    return finished


def round_rows(
    key: dict[str, Any], rounds: Sequence[Round], laps: Sequence[Lap], further: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The rows of a text's rounds; `further` as in `round_row`."""
    return [key | round_row(n, *each, further) for n, each in enumerate(zip(rounds, laps, strict=True))]


def round_row(number: int, round_: Round, lap: Lap, further: tuple[str, ...] = ()) -> dict[str, Any]:
    """A row of `records.ROUNDS`; `further` are the roles of members that are neither target nor draft."""
    row: dict[str, Any] = {
        "round": number,
        "drafted": round_.drafted,
        "accepted": round_.accepted,
        "rescued": round_.rescued,
        "committed": len(round_.tokens),
        "truncated": round_.truncated,
        "target_forwards": lap.count("target"),
        "draft_forwards": lap.count("draft"),
        "target_seconds": lap.time("target"),
        "draft_seconds": lap.time("draft"),
        "first_draft_seconds": lap.first("draft"),
        "model_seconds": lap.busy,
        "mask_seconds": lap.time(MASKS),
        "arbitrator_forwards": lap.count("arbitrator"),
        "arbitrator_seconds": lap.time("arbitrator"),
        "branch_forwards": lap.count("branches"),
        "branch_seconds": lap.time("branches"),
        "member_forwards": [lap.count(role) for role in further] or None,
        "member_seconds": [lap.time(role) for role in further] or None,
        "seconds": lap.seconds,
    }
    if (verdict := round_.verdict) is not None:
        decisions = verdict.decisions(len(round_.tokens) if round_.truncated else None)
        row |= {
            "levels": verdict.levels,
            "draft_tokens": verdict.drafted,
            "target_tokens": verdict.targets,
            "decisions": [records.DECISIONS.index(decision) for decision in decisions],
            "ratios": verdict.ratios,
            "predictions": verdict.predictions,
            "confidences": verdict.confidences,
            "overlaps": verdict.overlaps,
            "proposers": verdict.proposers,
            "parents": verdict.parents,
        }
    return row
