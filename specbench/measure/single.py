"""One prompt decoded by one method, outside of any run."""

from dataclasses import dataclass, replace

import pandas as pd
import torch

from specbench.base.hashes import stable_seed
from specbench.config import MethodSpec, UserError
from specbench.engine.clock import Stopwatch
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.measure.prepare import build
from specbench.measure.prompts import encode
from specbench.measure.sample import round_row, timed


@dataclass(frozen=True)
class Decoded:
    """A text with the rounds that it was decoded in."""

    text: str  # without the end token, cut before the first stop string
    tokens: list[int]  # all that were committed, the prefill's first
    finish: str  # eos, stop or length
    prefill_seconds: float
    decode_seconds: float  # all rounds after the prefill
    rounds: pd.DataFrame  # the columns of `records.ROUNDS`, without those of a run; round 0 is the prefill

    @property
    def tau(self) -> float:
        """Tokens committed per round, τ, without the prefill; NaN if the prefill ended the text."""
        return float(self.rounds.committed[1:].mean())


def decode(pair: Pair, spec: MethodSpec, prompt: str, sampling: Sampling, limits: Limits, seed: int) -> Decoded:
    """Decode one prompt. The pair's end tokens end the text as well as what `limits` says.

    Raises:
        UserError: the settings are wrong, the method cannot sample so, or the prompt leaves no room in the context.
    """
    stopwatch = Stopwatch(pair.device)
    pair = replace(pair, penalties=sampling.penalties)
    method = build(spec, pair, stopwatch)
    try:
        method.check(sampling)
    except ValueError as error:
        raise UserError(f"{spec.name}: {error}") from None
    ids = encode(pair, prompt)
    need = len(ids) + limits.max_new_tokens + method.reach
    if not ids or need > pair.context:
        what = f"{len(ids)} tokens and needs {need} positions of {pair.context}" if ids else "no token"
        raise UserError(f"the prompt has {what}; choose another prompt, or fewer max_new_tokens")
    ending = Ending(limits, pair.detokenizer)
    rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, prompt, spec.name))
    rounds = timed(decode_text(method, ids, sampling, rng, ending), stopwatch)
    laps = stopwatch.laps()
    further = pair.extra_members
    rows = [round_row(n, round_, lap, further) for n, (round_, lap) in enumerate(zip(rounds, laps, strict=True))]
    return Decoded(
        text=ending.text(),
        tokens=ending.tokens,
        finish=ending.reason,
        prefill_seconds=laps[0].seconds,
        decode_seconds=sum(lap.seconds for lap in laps[1:]),
        rounds=pd.DataFrame(rows),
    )
