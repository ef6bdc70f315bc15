"""OmniDraft: one draft for targets of any tokenizer, which learns while it serves (arXiv 2507.02659). Lossless.

The draft draws tokens of its own vocabulary. Runs of them that spell a token of the target are merged into it; which
runs do is learned on line (the n-gram cache). Every few texts the draft makes a step towards the target. A small head
that learns on line can end drafts. The paper's full text was not available: see the settings for what is inferred.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.accept import exact, weigh
from specbench.engine.drafters import Drafter
from specbench.engine.lengths import DraftToken, Lengths, SignalLengths
from specbench.engine.models.pair import Pair
from specbench.engine.models.quantize import need_float
from specbench.engine.models.room import announce, learning_bytes
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.sampling import draw, probabilities
from specbench.engine.session import Session, positions
from specbench.engine.translate import Reading, Translation
from specbench.engine.translated import Translated
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Verdict, Watch
from specbench.methods.chains.sps import SpS
from specbench_extras.omnidraft.omnidraft_merge import Merged, Merging, Spellings, exact_merged, greedy_chances
from specbench_extras.osd.osd import Learner, LearningSettings

LEAST = 1e-6  # probabilities are kept this far from 0 and from 1


class Settings(LearningSettings):
    gamma: int = Field(ge=1, description="the draft's own tokens a round (γ), before they are merged; the most")
    ngrams: Literal["online", "all", "none"] = Field(
        description="which tokens that the draft lacks are merged: those that answers had, all, or none"
    )
    interval: int = Field(ge=0, description="texts between two updates of the draft; 0: it does not learn")
    ngram_weight: float = Field(ge=0, description="weight of a merged token's loss (λ)")
    length: Literal["fixed", "adaptive"] = Field(description="adaptive: a head that learns on line ends drafts")
    threshold: float = Field(gt=0, lt=1, description="adaptive: a draft ends where P(some token is rejected) is higher")
    head_rate: float = Field(gt=0, allow_inf_nan=False, description="adaptive: learning rate of the head (SGD)")
    rejection_weight: float = Field(
        gt=0, allow_inf_nan=False, description="adaptive: weight of a rejection in the loss"
    )


class AcceptanceHead(SignalLengths):
    """P(accepted) of a draft token: a logistic regression on the log odds of q(d) and on how many were drafted before.

    It begins as q(d) itself, and learns from every verdict by weighted cross-entropy on min(1, p/q) (as SpecDec++'s).
    """

    def __init__(self, threshold: float, rate: float, rejection_weight: float) -> None:
        super().__init__(threshold, shortest=1)
        self.rate, self.rejection_weight = rate, rejection_weight
        self.reset()

    def reset(self) -> None:
        self.weights = [0.0, 1.0, 0.0]

    def most(self, gamma: int, context: int) -> int:
        self.inputs_of_round: list[tuple[float, float, float]] = []
        return super().most(gamma, context)

    def signal(self, token: DraftToken) -> float:
        chance = min(max(float(token.chance()), LEAST), 1 - LEAST)
        self.inputs_of_round.append((1.0, math.log(chance / (1 - chance)), math.log(len(self.signals) + 1)))
        return self.accepted(self.inputs_of_round[-1])

    def accepted(self, inputs: Sequence[float]) -> float:
        return 1 / (1 + math.exp(-sum(w * x for w, x in zip(self.weights, inputs, strict=True))))

    def reached(self) -> bool:
        return 1 - math.prod(self.signals) > self.threshold

    def learn(self, chances: Sequence[float]) -> None:
        """Make a step for each of the first draft tokens of the round, in place, by the chance that each passed."""
        for inputs, chance in zip(self.inputs_of_round, chances, strict=False):
            accepted = self.accepted(inputs)
            slope = self.rejection_weight * (1 - chance) * accepted - chance * (1 - accepted)
            self.weights = [w - self.rate * slope * x for w, x in zip(self.weights, inputs, strict=True)]

    def state(self) -> Any:
        return list(self.weights)

    def restore(self, state: Any) -> None:
        self.weights = [float(weight) for weight in state]


class MergingDrafter(Drafter):
    """A draft model with another tokenizer, whose tokens are merged. The host waits for each of them."""

    def __init__(self, session: Translated, spellings: Spellings, lengths: Lengths) -> None:
        self.session, self.spellings, self.lengths = session, spellings, lengths

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)
        self.lengths.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Merged:
        """The tokens of γ draws, or of fewer where the lengths say so; one that is not finished then is finished."""
        merging, most = Merging(self.spellings), self.lengths.most(gamma, len(context))
        row = self.session.read(context, self.lengths.hidden)
        for step in range(1, 2**31):
            logits = self.spellings.allowed(row.logits[-1:], merging.node)
            token, probs = draw(logits, sampling, rng)
            hidden = None if row.hidden is None else row.hidden[-1]
            enough = self.lengths.looks and self.lengths.enough(step, DraftToken(token, logits, probs, hidden))
            merging.take(int(token), probs)
            if (enough or step >= most) and merging.ends:
                break
            row = self.session.inner.forward(token, hidden=self.lengths.hidden)
        merging.end()
        tokens = torch.tensor(merging.tokens, device=self.session.device)
        return Merged(tokens, None, predictions=self._predictions(merging.tokens, step), moves=tuple(merging.moves))

    def _predictions(self, tokens: list[int], drafted: int) -> tuple[float, ...] | None:
        """The signals of the draft's own tokens, multiplied for each merged one."""
        own = self.lengths.predictions(drafted)
        if own is None:
            return None
        signals = iter(own)
        return tuple(math.prod(next(signals) for _ in self.spellings.translation.spell(token)) for token in tokens)


class HybridLearner(Learner):
    """Learns from all places of an answer that both tokenizers divide alike: reverse KL over the shared tokens where
    the token is a shared one, λ times the negative log-likelihood of the draft's tokens for it elsewhere."""

    def __init__(
        self, draft: PreTrainedModel, target: PreTrainedModel, settings: Settings, translation: Translation
    ) -> None:
        self.translation, self.weight = translation, settings.ngram_weight
        super().__init__(draft, target, settings)

    def places(self, tokens: list[int], start: int) -> list[int]:
        """The places from `start` on that teach: what the draft reads there spells just this token."""
        reading, most = self._read(tokens), positions(self.draft)
        return [
            i
            for i in range(max(start, 1), len(tokens))
            if 0 < reading.ends[i - 1] < reading.ends[i] <= most
            and tuple(reading.ids[reading.ends[i - 1] : reading.ends[i]]) == self.translation.spell(tokens[i])
        ]

    def loss(self, tokens: list[int], places: list[int]) -> Tensor:
        """The sum of the losses at these places."""
        reading, device = self._read(tokens), self.draft.device
        own_ids = torch.tensor(reading.ids[: reading.ends[places[-1]]], device=device)
        drafted = self.draft(own_ids[None], use_cache=False).logits[0]
        wide = torch.promote_types(drafted.dtype, torch.float32)
        shared = [i for i in places if tokens[i] in self.translation.shared]
        total = torch.zeros((), device=device, dtype=wide)
        if shared:
            context = torch.tensor([tokens[: shared[-1]]], device=self.target.device)
            with torch.no_grad():
                taught = self.target(context, use_cache=False).logits[0].to(device)
            theirs, own = (ids.clone() for ids in self.translation.tables(device)[:2])  # no longer of inference mode
            log_p = taught[[i - 1 for i in shared]][:, theirs].to(wide).log_softmax(-1)
            log_q = drafted[[reading.ends[i - 1] - 1 for i in shared]][:, own].to(wide).log_softmax(-1)
            total = total + (log_q.exp() * (log_q - log_p)).sum()
        spelled = [at for i in places if tokens[i] not in self.translation.shared for at in _span(reading, i)]
        if spelled:
            log_q = drafted[[at - 1 for at in spelled]].to(wide).log_softmax(-1)
            total = total - self.weight * log_q.gather(-1, own_ids[spelled][:, None]).sum()
        return total

    def _read(self, tokens: list[int]) -> Reading:
        reading = Reading(self.translation)
        reading.read(tokens, 0)
        return reading


def _span(reading: Reading, place: int) -> range:
    """The places of the draft's tokens for the target's token at `place`."""
    return range(reading.ends[place - 1], reading.ends[place])


class OmniDraft(SpS):
    """Speculative sampling with merged drafts; cache, head and draft learn from text to text of a task."""

    drafter: MergingDrafter

    def __init__(
        self,
        target: Session,
        drafter: MergingDrafter,
        settings: Settings,
        learner: HybridLearner | None,
        seconds: dict[str, float],
    ) -> None:
        """`seconds` gets those of updates, counted or not, in place. Without a learner the draft stays as it is."""
        super().__init__(target, drafter, settings.gamma, self.judged)
        self.settings, self.learner, self.seconds = settings, learner, seconds
        self.reset()

    @property
    def spellings(self) -> Spellings:
        return self.drafter.spellings

    def judged(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """The verdict on a merged draft: exact. The head learns from it, in place."""
        assert isinstance(draft, Merged)
        if sampling.greedy:
            verdict = exact(draft, scored, sampling, rng)
            assert verdict.token is not None
            chances = greedy_chances(self.spellings, verdict.drafted, verdict.accepted, verdict.token)
        else:
            p = probabilities(scored.logits, sampling)
            tested, chances, merged = exact_merged(self.spellings, draft, p, rng)
            weighed = weigh(draft, scored, sampling, rng, tested)
            verdict = weighed.verdict(weighed.passing)._replace(confidences=merged)
        if isinstance(self.drafter.lengths, AcceptanceHead):
            self.drafter.lengths.learn(chances)
        return verdict

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self._update()
        self.tokens, self.answer = list(prompt), len(prompt)
        for step in super().rounds(prompt, sampling, rng):
            self.tokens += step.tokens
            yield step
            self._add(step.tokens)

    def _add(self, tokens: Sequence[int]) -> None:
        if self.settings.ngrams == "online":
            for token in tokens:
                self.spellings.add(token)

    def ended(self, last: Round) -> None:
        """Take in the text, without what its end cut off."""
        self._add(last.tokens)
        if self.learner:
            tokens = self.tokens[: len(self.tokens) - last.truncated]
            self.learner.texts.append((tokens, self.learner.places(tokens, self.answer)))
            if self.settings.count_updates:
                self._update()

    def _update(self) -> None:
        if self.learner:
            self.learner.update_due(self.seconds)

    def reset(self, task: str = "") -> None:
        super().reset(task)
        self.spellings.forget()
        if self.settings.ngrams == "all":
            for token in range(self.spellings.translation.size):
                self.spellings.add(token)
        if self.learner:
            self.learner.forget()

    def state(self) -> Any:
        """The cache in its order, the head's weights, and the texts with a hash of the draft's weights."""
        self._update()
        learned = self.learner.state() if self.learner else None
        return {"ngrams": list(self.spellings.added), "head": super().state(), "draft": learned}

    def restore(self, state: Any) -> None:
        super().restore(state["head"])
        self.spellings.forget()
        for token in state["ngrams"]:
            self.spellings.add(token)
        if self.learner:
            self.learner.restore(state["draft"])


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """A draft that learns computes at the eager runtime: others keep copies of what changes.

    Raises UserError for a pair without a draft. A draft with the target's own tokenizer has nothing to merge.
    """
    model = pair.session("draft").model
    translation = pair.translations.get("draft") or Translation(
        pair.tokenizer, pair.tokenizer, (pair.vocabulary, model.config.get_text_config().vocab_size)
    )
    learner = None
    if settings.interval:
        need_float(model, "omnidraft trains a copy of the draft")
        announce("omnidraft", "a second draft with what trains it", learning_bytes(model), model.device)
        model = copy.deepcopy(model)
        learner = HybridLearner(model, pair.models["target"], settings, translation)
    session = Translated(model, "draft", watch, translation, EAGER if learner else pair.runtime, pair.device)
    lengths = (
        AcceptanceHead(settings.threshold, settings.head_rate, settings.rejection_weight)
        if settings.length == "adaptive"
        else Lengths()
    )
    drafter = MergingDrafter(session, Spellings(translation, session.device), lengths)
    return OmniDraft(pair.session("target", watch), drafter, settings, learner, pair.seconds)
