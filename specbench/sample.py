"""One document by one method: from a method's rounds to the rows of the records."""

import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench import environment, records
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.types import Method, Round, Sampling
from specbench.harness import Request
from specbench.manifest import digest
from specbench.measure import Lap, Stopwatch, peak_memory
from specbench.models import Pair
from specbench.runtimes.types import Unsupported
from specbench.seeds import stable_seed

WARMUP_TOKENS = 24

Rows = tuple[dict[str, Any], list[dict[str, Any]]]  # a sample, and its rounds


@dataclass
class Decoder:
    """Decodes documents by methods, one at a time. Whatever a method or a model raises is that sample's result.

    What a method raises outside of a text (where it forgets, or takes up what it had learned) fails its samples until
    `forgive`; the other methods go on.
    """

    pair: Pair
    stopwatch: Stopwatch
    sampling: Sampling
    run_seed: int
    _broken: dict[str, str] = field(default_factory=dict)  # tracebacks

    def attempt(self, name: str, step: Callable[[], Any]) -> Any:
        """What a step of a method returns; None if it fails."""
        try:
            return step()
        except Unsupported:
            raise
        except Exception:
            self._broken[name] = traceback.format_exc()
            return None

    def forgive(self) -> None:
        self._broken.clear()

    def decode(
        self,
        name: str,
        method: Method,
        repeat: int,
        request: Request,
        prompt: list[int],
        order: int,
        warmup: bool = False,
    ) -> Rows:
        """The sample row and the round rows of one text; `order` is the method's place among those of the document."""
        key = {"repeat": repeat, "task": request.task, "doc_id": request.doc_id, "method": name, "warmup": warmup}
        seed = stable_seed(self.run_seed, repeat, request.task, request.doc_id, name)
        sample = key | {
            "order": order,
            "seed": seed,
            "prompt_hash": request.prompt_hash,
            "prompt_tokens": len(prompt),
            "load": environment.load(),
            "clock_mhz": environment.clock_mhz(),
            "temperature_c": environment.temperature_c(),
            "state_hash": digest(self.attempt(name, method.state)),
        }
        if name in self._broken:
            return sample | {"finish": "error", "error": self._broken[name]}, []
        ending = ending_of(self.pair, request, WARMUP_TOKENS if warmup else request.max_new_tokens)
        rng = torch.Generator(self.pair.device).manual_seed(seed)
        try:
            rounds = timed(until_end(method.rounds(prompt, self.sampling, rng), ending), self.stopwatch)
            laps = self.stopwatch.laps()
        except Exception as error:
            if warmup and isinstance(error, Unsupported):
                raise
            return sample | {"finish": "error", "error": self._told(error)}, []
        sample |= {
            "tokens": ending.tokens,
            "text": ending.text(),
            "finish": ending.reason,
            "prefill_seconds": laps[0].seconds,
            "decode_seconds": sum(lap.seconds for lap in laps[1:]),
            "peak_memory": peak_memory(self.pair.device),
        }
        laid_out = enumerate(zip(rounds, laps, strict=True))
        return sample, [key | round_row(i, one, lap, self.pair.further) for i, (one, lap) in laid_out]

    def _told(self, error: Exception) -> str:
        """The traceback, behind it where a model first gave no finite numbers, which a GPU tells late; frees memory."""
        told = "".join(traceback.format_exception(error))
        error.__traceback__ = None  # its frames hold caches
        if isinstance(error, torch.OutOfMemoryError):
            gc.collect()
            torch.cuda.empty_cache()
        found = self.stopwatch.not_finite()
        return told + (f"{found}\n" if found else "")


def ending_of(pair: Pair, request: Request, length: int | None = None) -> Ending:
    return Ending(Limits(length or request.max_new_tokens, pair.eos_ids, request.until), pair.detokenizer)


def timed(rounds: Iterator[Round], stopwatch: Stopwatch) -> list[Round]:
    """All rounds of one text, with a lap at the end of each; no garbage collection meanwhile."""
    done = []
    gc.disable()
    try:
        stopwatch.start()
        for one in rounds:
            stopwatch.lap()
            done.append(one)
    finally:
        gc.enable()
    return done


def round_row(number: int, one: Round, lap: Lap, further: tuple[str, ...] = ()) -> dict[str, Any]:
    """A row of `records.ROUNDS`; `further` are the roles of the members that are neither target nor draft."""
    row: dict[str, Any] = {
        "round": number,
        "drafted": one.drafted,
        "accepted": one.accepted,
        "rescued": one.rescued,
        "committed": len(one.tokens),
        "truncated": one.truncated,
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
    if (verdict := one.verdict) is not None:
        decisions = verdict.decisions(len(one.tokens) if one.truncated else None)
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
