"""One document decoded by one method: its rounds become rows of the records."""

import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.base import environment
from specbench.base.seeds import stable_seed
from specbench.engine.clock import Lap, Stopwatch, peak_memory
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.types import Method, Round, Sampling
from specbench.measure.manifest import digest
from specbench.results import records
from specbench.tasks.harness import Request

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
            self._broken[name] = traceback.format_exc()
            return None

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
        seed = stable_seed(self.run_seed, repeat, request.task, request.doc_id, name)
        sample = key | {
            "order": order,
            "seed": seed,
            "prompt_hash": request.prompt_hash,
            "prompt_tokens": 0 if isinstance(prompt, str) else len(prompt),
            "load": environment.load(),
            "clock_mhz": environment.clock_mhz(),
            "temperature_c": environment.temperature_c(),
            "state_hash": digest(self.attempt(name, method.state)),
        }
        if name in self._broken:
            return sample | {"finish": "error", "error": self._broken[name]}, []
        if isinstance(prompt, str):
            return sample | {"finish": "error", "error": prompt}, []
        ending = ending_of(self.pair, request, WARMUP_TOKENS if warmup else request.max_new_tokens)
        rng = torch.Generator(self.pair.device).manual_seed(seed)
        try:
            rounds = timed(decode_text(method, prompt, self.sampling, rng, ending), self.stopwatch)
            laps = self.stopwatch.laps()
        except Exception as error:
            if warmup and isinstance(error, Unsupported):
                raise
            return sample | {"finish": "error", "error": self._traceback(error)}, []
        sample |= {
            "tokens": ending.tokens,
            "text": ending.text(),
            "finish": ending.reason,
            "prefill_seconds": laps[0].seconds,
            "decode_seconds": sum(lap.seconds for lap in laps[1:]),
            "peak_memory": peak_memory(self.pair.device),
        }
        further = self.pair.extra_members
        rows = [round_row(n, round_, lap, further) for n, (round_, lap) in enumerate(zip(rounds, laps, strict=True))]
        return sample, [key | row for row in rows]

    def _traceback(self, error: Exception) -> str:
        """The traceback, and after it the forward that first gave numbers that are not finite, if there was one.

        Frees the memory that the traceback's frames hold.
        """
        text = "".join(traceback.format_exception(error))
        error.__traceback__ = None  # its frames hold caches
        if isinstance(error, torch.OutOfMemoryError):
            gc.collect()
            torch.cuda.empty_cache()
        not_finite = self.stopwatch.not_finite()
        return text + (f"{not_finite}\n" if not_finite else "")


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
        "model_seconds": lap.busy,
        "arbitrator_forwards": lap.count("arbitrator"),
        "arbitrator_seconds": lap.time("arbitrator"),
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
