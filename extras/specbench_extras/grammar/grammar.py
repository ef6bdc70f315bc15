"""Drafts what the constraint forces: text that every allowed answer goes on with. Lossless, no training.

After `{"` a schema with one key leaves no choice but the key. Such text is drafted as the tokens that the tokenizer
would read it in, which need not be those that the model prefers: the target verifies. Another drafter goes on from
there, and drafts alone where nothing is forced. Ours, after llguidance's fast-forward tokens and vllm-metal's pull
request 650.
"""

import torch
from pydantic import Field

from specbench import config
from specbench.base.console import warn
from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.constraint import Constrained
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods import module
from specbench.methods.chains.sps import SpS

NONE, MODEL, LOOKUPS = "none", "draft", ("pld", "sam")


class Settings(Base):
    forced: int = Field(ge=1, description="the most forced tokens of a draft")
    gamma: int = Field(ge=0, description="tokens of the other drafter, after them or alone (γ)")
    drafter: str = Field(description="who drafts what is not forced: none, draft (the draft model), pld or sam")


class GrammarDrafter(Drafter):
    """Forced tokens, then those of `other`, if there is one. `follower` is None where nothing is constrained."""

    def __init__(self, settings: Settings, follower: Constrained | None, other: Drafter | None, pair: Pair) -> None:
        self.settings, self.follower, self.other = settings, follower, other
        self.device, self.vocabulary = pair.device, pair.vocabulary
        self.lengths = other.lengths if other else Lengths()

    def begin(self, prompt: list[int]) -> None:
        self.start = len(prompt)
        if self.other:
            self.other.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A chain: point masses on forced tokens, and what the other drafter draws after them."""
        forced = self.follower.forced(context[self.start :])[: self.settings.forced] if self.follower else []
        tokens = torch.tensor(forced, dtype=torch.long, device=self.device)
        if not self.other or not self.settings.gamma:
            return Draft(tokens, None)
        rest = self.other.propose([*context, *forced], self.settings.gamma, sampling, rng)
        if not forced:
            return rest
        probs = rest.probs
        if probs is not None:
            certain = torch.nn.functional.one_hot(tokens, self.vocabulary).to(probs.dtype)
            probs = torch.cat([certain, probs])
        return Draft(torch.cat([tokens, rest.tokens]), probs)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the pair's target, and its draft only as the other drafter. Raises UserError for another drafter."""
    target = pair.session("target", watch)
    follower = Constrained(pair.constraining, None, watch) if pair.constraining else None
    if not follower:
        warn("grammar drafts what a constraint forces, and there is none: give --schema, --regex or --lark")
    return SpS(target, GrammarDrafter(settings, follower, _other(settings, pair, watch), pair), _longest(settings))


def _longest(settings: Settings) -> int:
    return settings.forced + settings.gamma * (settings.drafter != NONE)


def _other(settings: Settings, pair: Pair, watch: Watch) -> Drafter | None:
    if settings.drafter == NONE:
        return None
    if settings.drafter == MODEL:
        return ModelDrafter(pair.session("draft", watch))
    if settings.drafter not in LOOKUPS:
        raise UserError(f"drafter={settings.drafter}: choose {', '.join((NONE, MODEL, *LOOKUPS))}")
    spec = config.load_method(settings.drafter)
    lookup = module(spec.method)
    own = config.validated(lookup.Settings, spec.values, spec.name)
    drafter: Drafter = lookup.drafter(own, pair.tokenizer_hash, pair.device)
    drafter.lengths = Lengths()  # its own, which says what chose it
    drafter.lengths.chosen_by = {"drafter": spec.digest}
    return drafter
