"""Decode texts together in a fixed batch, by the target alone or by speculation.

All texts of a fixed batch start together, and no text joins before the longest one has ended.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel

from specbench.config import MethodSpec, UserError, validated
from specbench.engine.batch import Batch, until_all_end
from specbench.engine.clock import now
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw
from specbench.engine.session import Unwatched
from specbench.engine.types import Sampling
from specbench.methods import cospec, module
from specbench.methods.cospec import Arbiter, Block, Learned, Never, Oracle, Random
from specbench.methods.cospec_batch import Text, one_round
from specbench.methods.drafting import FIXED, FULL, DraftSettings


@dataclass(frozen=True)
class Speculation:
    """A method in a batch: drafts of a fixed length, and an arbiter for mismatches (`Never`: speculative sampling)."""

    gamma: int
    arbiter: Arbiter
    arbitrator: PreTrainedModel | None = None
    hybrid: bool = True

    @property
    def repeatable(self) -> bool:
        """True if a greedy text does not depend on the other texts of its batch."""
        return not isinstance(self.arbiter, Random)

    def keeps(self, logits: Sequence[float], block: Block, rng: torch.Generator) -> Iterator[bool]:
        """The arbiter's decisions on a block. A learned one goes by `logits`, since it reads no texts in a batch."""
        if isinstance(self.arbiter, Learned):
            bound = self.arbiter.log_odds
            return (logit > bound for logit in logits)
        return self.arbiter.keeps(block, rng)


def speculation(spec: MethodSpec, pair: Pair) -> Speculation:
    """A method as a batch decodes it. Raises UserError for methods and settings that batches do not support."""
    if spec.method not in ("sps", "cospec"):
        raise UserError(f"{spec.name} cannot be decoded in batches; these can: vanilla (it always is), sps and cospec")
    pair.need_one_tokenizer("a batch drafts in the target's tokens")
    settings: DraftSettings = validated(module(spec.method).Settings, spec.values, spec.name)
    for key, wanted in (("length", FIXED), ("output", FULL), ("stop_at_eos", False), ("candidates", "coupled")):
        if getattr(settings, key, wanted) != wanted:
            raise UserError(f"{spec.name}: in batches {key} is {wanted}; leave it so")
    if not isinstance(settings, cospec.Settings):
        return Speculation(settings.gamma, Never())
    arbiter, _ = cospec.build_arbiter(settings, pair, Unwatched())
    if isinstance(arbiter, Oracle):
        raise UserError(f"{spec.name}: arbiter=oracle decodes branches to their ends, one by one; choose another")
    if isinstance(arbiter, Learned):
        return Speculation(settings.gamma, arbiter, arbiter.session.model, arbiter.hybrid)
    return Speculation(settings.gamma, arbiter)


def decode(pair: Pair, how: Speculation | None, texts: Sequence[Text], sampling: Sampling, seed: int) -> float:
    """Decode texts together to their ends, in place; by the target alone if `how` is None.

    Returns the seconds until the last text ends, counted from when all models have read the prompts and each text has
    its first token.
    """
    rng = torch.Generator(pair.device).manual_seed(seed)
    prompts = [text.prompt for text in texts]
    target = Batch(pair.models["target"], len(texts), "target", None, pair.vocabulary)
    first = draw(target.feed(prompts)[:, -1], sampling, rng)[0].tolist()
    for text, token in zip(texts, first, strict=True):
        text.commit([token])
    models = [target]
    step: Callable[[list[int]], None] = partial(_tokens, target, texts, sampling, rng)
    if how is not None:
        draft = Batch(pair.models["draft"], len(texts), "draft", None, pair.vocabulary)
        policy = Batch(how.arbitrator, len(texts), "arbitrator", None, 1) if how.arbitrator is not None else None
        models += [draft, *([policy] if policy is not None else [])]
        for model in models[1:]:
            model.feed(prompts)

        def decide(number: int, block: Block, logits: Sequence[float]) -> Iterator[bool]:
            return how.keeps(logits, block, rng)

        def rounds(rows: list[int]) -> None:
            going = [texts[row] for row in rows]
            one_round(target, draft, policy, going, rows, how.gamma, sampling, rng, decide, how.hybrid)

        step = rounds
    gc.disable()
    try:
        _wait(pair)
        began = now()
        until_all_end(models, lambda row: bool(texts[row].ending.reason), step)
        _wait(pair)
        return now() - began
    finally:
        gc.enable()


def _tokens(target: Batch, texts: Sequence[Text], sampling: Sampling, rng: torch.Generator, rows: list[int]) -> None:
    """Add a token to the texts with these numbers, in place."""
    going = [texts[row] for row in rows]
    last = torch.tensor([text.answer[-1] for text in going], device=target.device)
    real = torch.tensor([not text.ending.reason for text in going], device=target.device)
    tokens = draw(target.forward(last[:, None], real[:, None])[:, -1], sampling, rng)[0].tolist()
    for text, token in zip(going, tokens, strict=True):
        if not text.ending.reason:
            text.commit([token])


def _wait(pair: Pair) -> None:
    if pair.device.type == "cuda":
        torch.cuda.synchronize(pair.device)
