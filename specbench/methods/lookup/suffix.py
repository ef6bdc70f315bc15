"""Suffix decoding: what followed the end of the text at earlier places, in the text or in earlier answers. Lossless.

SuffixDecoding (Oliaro et al., arXiv 2411.04975): of all earlier occurrences of all suffixes of the text, the draft is
the continuation with the most expected tokens, by counts. With other settings it is close to ANPD (Ou et al., arXiv
2404.08698), which follows the longest suffix.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.trees import exact_draft
from specbench.engine.types import Draft, Method, Round, Sampling, Watch
from specbench.methods.drafting import DraftedMethod, bounded
from specbench.methods.lookup.suffix_automaton import END, Automaton, Match

Found = tuple[list[int], tuple[int, ...] | None, float]  # tokens, parents (None: a chain), expected tokens
NOTHING: Found = [], None, 0.0
ROUNDING = 1e-9  # expected tokens; of what is equal but for it the longest suffix counts
WHOLE = 1e-6  # what the official code adds to the number of tokens before it is cut to a whole one
State = dict[str, Any]


class Settings(Base):
    depth: int = Field(ge=2, description="the most tokens of a suffix and what is drafted after it, together")
    longest: int = Field(ge=1, description="tokens of the longest suffix that is looked up")
    shortest: int = Field(ge=1, description="tokens of the shortest one")
    match: Literal["best", "longest"] = Field(description="which suffix drafts: most expected tokens, or the longest")
    form: Literal["chain", "tree"] = Field(description="the most frequent continuation, or a tree of the likeliest")
    gamma: int = Field(ge=1, description="the most tokens of a draft (γ)")
    factor: float = Field(ge=0, allow_inf_nan=False, description="tokens of a draft for each token of its suffix")
    offset: float = Field(ge=0, allow_inf_nan=False, description="tokens of a draft besides these")
    probability: float = Field(ge=0, le=1, description="the least probability of a drafted path, by counts")
    answers: int = Field(ge=0, description="the most earlier answers of a task that are searched, too; 0: none")
    fallback: Literal["none", "draft"] = Field(description="draft: the draft model drafts where little is expected")
    fallback_score: float = Field(ge=0, description="that is, fewer tokens than this")
    fallback_gamma: int = Field(ge=1, description="tokens of the draft model's chain")

    _deep = bounded("longest", "depth")
    _fits = bounded("shortest", "longest")

    def reach(self) -> int:
        """The most tokens of a round, including the last committed one."""
        return 1 + max(self.gamma, self.fallback_gamma if self.fallback == "draft" else 0)


class SuffixDrafter(Drafter):
    """Drafts from an automaton of the text and one of earlier answers; of equal expectations the text's own counts.

    Where fewer than `fallback_score` tokens are expected, `model` drafts, if there is one.
    """

    def __init__(self, settings: Settings, device: torch.device, model: Drafter | None = None) -> None:
        self.settings, self.device, self.model = settings, device, model
        self.forget()

    def forget(self) -> None:
        """Forget all earlier answers."""
        self.answers: list[list[int]] = []
        self.remembered = 0  # answers since the beginning, those that were dropped later among them
        self._search([])

    def _search(self, answers: list[list[int]]) -> None:
        """Search these answers, and no others."""
        self.earlier = self._automaton()
        self.entered: list[int] = []  # the answer in progress, as far as it is searched, too
        for answer in answers:
            self.earlier.extend([*answer, END])

    def _automaton(self) -> Automaton:
        return Automaton(self.settings.depth)

    def begin(self, prompt: list[int]) -> None:
        if self.entered:  # its text did not end
            self._search(self.answers)
        self.text, self.read, self.match, self.prompt = self._automaton(), 0, Match(0, 0), len(prompt)
        self._advance(prompt)
        if self.model:
            self.model.begin(prompt)

    def _advance(self, context: list[int]) -> None:
        """Take in what is new in `context`, which only grows. The answer so far is searched as earlier ones are."""
        new, longest = context[self.read :], self.settings.longest
        self.text.extend(new)
        if self.settings.answers:
            for place, token in enumerate(new, self.read):
                self.match = self.earlier.follow(self.match, token, longest)
                if place >= self.prompt:
                    self.earlier.extend([token])
                    self.entered.append(token)
                    own = self.earlier.ending(min(len(self.entered), longest))
                    self.match = max(self.earlier.held(self.match), own, key=lambda match: match.length)
        self.read = len(context)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """At most γ tokens, point masses at any temperature, or the draft model's chain."""
        self._advance(context)
        settings = self.settings
        tokens, parents, score = max(
            self._best(self.text, self.text.repeated(settings.longest), gamma),
            self._best(self.earlier, self.earlier.suffixes(self.match), gamma),
            key=lambda candidate: candidate[2],
        )
        if self.model and score < settings.fallback_score:
            return self.model.propose(context, settings.fallback_gamma, sampling, rng)
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return Draft(ids, None, parents if tokens else None)

    def _best(self, automaton: Automaton, matches: Iterable[Match], gamma: int) -> Found:
        """The continuation with the most expected tokens, of the matches from the longest on."""
        settings, best = self.settings, NOTHING
        for state, whole in matches:
            length, shorter = min(whole, self.read - 1), automaton.length[automaton.link[state]]
            sizes = self._sizes(length, shorter, gamma)
            if length > shorter and max(sizes, default=0) <= best[2]:  # a token cannot be expected more than once
                break
            for most, levels in sizes.items():
                candidate = self._after(automaton, state, most, levels)
                if candidate[2] > best[2] + ROUNDING:
                    best = candidate
            if settings.match == "longest" and sizes:
                break
        return best

    def _after(self, automaton: Automaton, state: int, most: int, levels: int) -> Found:
        """What follows a suffix: at most so many tokens and levels."""
        if self.settings.form == "tree":
            return automaton.tree(state, most, levels, self.settings.probability)
        tokens, score = automaton.chain(state, min(most, levels), self.settings.probability)
        return tokens, None, score

    def _sizes(self, length: int, shorter: int, gamma: int) -> dict[int, int]:
        """The most tokens of a draft after a suffix, or after one that ends at the same places: with how many levels.

        Those have more than `shorter` tokens, up to `length`. Since a suffix and its draft have at most `depth` tokens
        together, more levels may follow a shorter one of them.
        """
        settings = self.settings
        sizes: dict[int, int] = {}
        for tokens in range(length, max(shorter, settings.shortest - 1), -1):
            most, levels = min(gamma, int(settings.factor * tokens + settings.offset + WHOLE)), settings.depth - tokens
            sizes[most] = levels
            if most <= levels:
                break
        return sizes

    def remember(self, answer: list[int]) -> None:
        """Search this answer, too, to its end. Where there are too many, the older half is dropped."""
        if not self.settings.answers:
            return
        before, self.answers = self.answers, kept([*self.answers, answer], self.settings.answers)
        self.remembered += 1
        if len(self.answers) <= len(before) or answer[: len(self.entered)] != self.entered:
            self._search(self.answers)
        else:
            self.earlier.extend([*answer[len(self.entered) :], END])
            self.entered = []

    def state(self) -> State | None:
        """The earlier answers, and how many there ever were; None where none are kept."""
        return {"answers": list(self.answers), "remembered": self.remembered} if self.settings.answers else None

    def restore(self, state: State | None) -> None:
        if state is None or state == self.state():
            return
        known = self.remembered
        if state["remembered"] < known or state["answers"][: len(self.answers)] != self.answers:
            self.forget()
            known = state["remembered"] - len(state["answers"])
        for answer in state["answers"][len(self.answers) :]:
            self.remember(answer)
        self.remembered = state["remembered"]


def kept(answers: list[list[int]], most: int) -> list[list[int]]:
    """At most so many answers: where there is one more, the newer half. (An automaton cannot forget one of them.)"""
    return answers if len(answers) <= most else answers[-((most + 1) // 2) :]


class Suffix(DraftedMethod):
    """Speculative sampling with drafts of suffixes; earlier answers are those of the task so far, in their order."""

    penalised = True
    lossless = True
    accept = staticmethod(exact_draft)
    drafter: SuffixDrafter

    def __init__(self, target: Session, drafter: SuffixDrafter, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.gamma, self.reach = settings.gamma, settings.reach()

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self.answer: list[int] = []
        for step in super().rounds(prompt, sampling, rng):
            self.answer += step.tokens
            yield step

    def ended(self, last: Round) -> None:
        """Remember the answer, without what the end of the text cut off."""
        self.drafter.remember(self.answer[: len(self.answer) - last.truncated])

    def reset(self, task: str = "") -> None:
        self.drafter.forget()

    def state(self) -> Any:
        return self.drafter.state()

    def restore(self, state: Any) -> None:
        self.drafter.restore(state)

    def added(self, state: Any, before: Any, after: Any) -> Any:
        if state is None:
            return None
        taught = after["remembered"] - before["remembered"]
        answers = state["answers"]
        for answer in after["answers"][len(after["answers"]) - taught :]:
            answers = kept([*answers, answer], self.settings.answers)
        return {"answers": answers, "remembered": state["remembered"] + taught}


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> SuffixDrafter:
    """The drafter alone, without the draft model. It works with any tokenizer, so `tokenizer` is not used."""
    return SuffixDrafter(settings, device)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the pair's target, and its draft only as a fallback."""
    model = ModelDrafter(pair.session("draft", watch)) if settings.fallback == "draft" else None
    return Suffix(pair.session("target", watch), SuffixDrafter(settings, pair.device, model), settings)
