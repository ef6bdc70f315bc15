"""`specbench audit`: is a method lossless on this pair, on this machine?

Greedy: where a method's text leaves vanilla's, the target's own logits tell a numeric tie from a defect. Sampling: the
tokens of many draws are tested against the target's distribution at the very positions where they were drawn. For
models that decode together, standard collaborative decoding stands for vanilla, and r for the target's distribution.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specbench import environment, files
from specbench import run as engine
from specbench.config import UserError
from specbench.decoding.combine import Combination
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.sampling import probabilities
from specbench.decoding.session import Session
from specbench.decoding.types import Method, Sampling
from specbench.divergence import Reference, diverged
from specbench.methods.ensemble import Ensemble, one_by_one
from specbench.methods.vanilla import Vanilla
from specbench.models import Pair
from specbench.plan import Plan
from specbench.stats import ChiSquare, chi_square

LEVEL = 0.01  # of a false alarm over all sampling tests of an audit together
SAMPLINGS = (Sampling(1.0), Sampling(1.0, top_p=0.8))
DRAWN_TOKENS = 4  # of a draw: the prefill's, and those of a round behind it
MOST_DRAWN = 24  # of a method that drafts only after a few rounds
POSITIONS = 2  # of each document's text, where draws begin
NUCLEUS_SLACK = 1e-3  # tokens this close to the edge of the top-p set may fall on either side by rounding
ROOM = 256  # positions behind a prompt
CLASSES = 4  # a token is over-proposed by the draft (q > p) or not, and the target's likeliest or not


@dataclass(frozen=True)
class Leaving:
    """The first token that is not vanilla's."""

    task: str
    doc_id: int
    at: int  # index of the token in the text
    gap: float  # of the target's logits there, highest less chosen
    kind: str  # tie or bug


@dataclass(frozen=True)
class Sampled:
    """One sampling test of a method."""

    sampling: Sampling
    test: ChiSquare
    impossible: int  # tokens that the target's distribution does not hold
    level: float

    @property
    def passed(self) -> bool:
        return self.impossible == 0 and self.test.p >= self.level


@dataclass
class Finding:
    """All that an audit has to say of one method."""

    method: str
    lossless: bool  # what the method says of itself
    standard: str = "vanilla"  # the decoding that it is held against
    documents: int = 0
    same: int = 0  # documents whose text is vanilla's
    agreed: list[float] = field(default_factory=list)  # the share of each text before it leaves vanilla's
    leavings: list[Leaving] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    failure: str = ""

    @property
    def verdict(self) -> str:
        if self.failure:
            return "defect"
        if not self.lossless:
            return "lossy by design"
        if any(one.kind == "bug" for one in self.leavings) or not all(one.passed for one in self.sampled):
            return "defect"
        return "lossless, numeric ties" if self.leavings else "lossless"


@dataclass(frozen=True)
class Prompt:
    """Where a text begins: a document's prompt, or a place within its answer."""

    task: str
    doc_id: int
    ids: list[int]
    at: int = 0  # tokens of the answer among `ids`


def audit(
    pair: Pair,
    methods: dict[str, Method],
    prompts: Sequence[Prompt],
    length: int,
    draws: int,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[Finding]:
    """Audit methods on `prompts`, `length` tokens each (greedy) and `draws` times each (sampling).

    `advance` is told of each finished text. Yields a finding for each method; nothing that a method raises stops it.
    """
    by_reference: dict[Combination | None, tuple[list[list[int]], list[Prompt]]] = {}
    tested = sum(len(samplings(method)) for method in methods.values())
    for name, method in methods.items():
        finding = Finding(name, method.lossless, "ensemble" if method.combination else "vanilla")
        reference = Reference(pair, method.combination)
        try:
            if method.combination not in by_reference:
                texts = [_greedy(_standard(reference), pair, prompt, length) for prompt in prompts]
                places = [
                    place for p, text in zip(prompts, texts, strict=True) for place in _telling(reference, p, text)
                ]
                by_reference[method.combination] = texts, places
            texts, places = by_reference[method.combination]
            for prompt, text in zip(prompts, texts, strict=True):
                _check_greedy(finding, reference, prompt, text, _greedy(method, pair, prompt, length))
                advance(1)
            for sampling in samplings(method):
                level = LEVEL / tested
                finding.sampled.append(_check_sampling(method, reference, places, sampling, draws, level, advance))
        except Exception as error:  # whatever a method raises is what its audit says
            finding.failure = f"{type(error).__name__}: {error}"
        yield finding


def samplings(method: Method) -> list[Sampling]:
    """Those of SAMPLINGS under which a method claims to be lossless; some decode greedily only."""
    found = []
    for sampling in SAMPLINGS if method.lossless else ():
        with suppress(ValueError):
            method.check(sampling)
            found.append(sampling)
    return found


def _standard(reference: Reference) -> Method:
    """The decoding that a lossless method must equal."""
    pair = reference.pair
    if reference.combination is None:
        return Vanilla(pair.session("target"))
    return Ensemble([pair.session(role) for role in reference.roles], reference.combination, {}, one_by_one)


def _greedy(method: Method, pair: Pair, prompt: Prompt, length: int) -> list[int]:
    method.reset()
    ending = Ending(Limits(length, pair.eos_ids), pair.detokenizer)
    for _ in until_end(method.rounds(prompt.ids, Sampling(), torch.Generator(pair.device)), ending):
        pass
    return ending.tokens


def _check_greedy(
    finding: Finding, reference: Reference, prompt: Prompt, vanilla: list[int], tokens: list[int]
) -> None:
    """Compare one greedy text with the standard one, in place."""
    finding.documents += 1
    found = diverged(reference, prompt.ids, vanilla, tokens)
    finding.same += found is None
    finding.agreed.append(1.0 if found is None else found.at / max(len(vanilla), 1))
    if found:
        finding.leavings.append(Leaving(prompt.task, prompt.doc_id, found.at, found.gap, found.kind))


def _telling(reference: Reference, prompt: Prompt, text: list[int]) -> Iterator[Prompt]:
    """The places of a text where draws tell most: those where a wrong residual would show.

    Drawing a rejected token's substitute from p and not from norm((p - q)₊) makes min(p, q) + (1 - Σ min(p, q)) p of p:
    how far that is from p says how much hangs on the rule. Without a draft it is where the target is least sure. A draw
    begins one token before, since its first token is the prefill's, which no method drafts.
    """
    rows = {}
    for role, session in _sessions(reference).items():
        first = session.restart(prompt.ids).logits
        rows[role] = torch.cat([first, session.forward(text[:-1]).logits]).double()
    p = reference.expected(rows, SAMPLINGS[0])
    telling = 1 - p.max(-1).values
    if "draft" in rows:
        both = torch.minimum(p, probabilities(rows["draft"], SAMPLINGS[0]))
        telling = (both - both.sum(-1, keepdim=True) * p).abs().sum(-1)
    for at in telling[1:].topk(min(POSITIONS, len(text) - 1)).indices.tolist():
        yield Prompt(prompt.task, prompt.doc_id, [*prompt.ids, *text[:at]], at)


def _sessions(reference: Reference) -> dict[str, Session]:
    """Of the models that the reference needs, and of the draft where there is one."""
    roles = dict.fromkeys((*reference.roles, *(["draft"] if "draft" in reference.pair.models else [])))
    return {role: reference.pair.session(role) for role in roles}


def _check_sampling(
    method: Method,
    reference: Reference,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    draws: int,
    level: float,
    advance: Callable[[int], None],
) -> Sampled:
    """Draw texts of a few tokens and test each token against the target's distribution behind the drawn ones."""
    rng = torch.Generator(reference.pair.device).manual_seed(0)
    sessions = _sessions(reference)
    classes, expected, impossible = [], [], 0
    for prompt in prompts:
        first = {role: session.restart(prompt.ids).logits for role, session in sessions.items()}
        for _ in range(draws):
            tokens, before = _drawn(method, prompt, sampling, rng)
            rows = {}
            for role, session in sessions.items():
                session.truncate(len(prompt.ids))
                rows[role] = torch.cat([first[role], session.forward(tokens[:-1]).logits])[before:].double()
            drawn, probs, outside = _classed(tokens[before:], rows, reference, sampling)
            classes += drawn
            expected.append(probs)
            impossible += outside
            advance(1)
    toward = np.array([0.0, 0.0, 1.0, 1.0])
    return Sampled(sampling, chi_square(np.array(classes), np.concatenate(expected), toward, level), impossible, level)


def _drawn(method: Method, prompt: Prompt, sampling: Sampling, rng: torch.Generator) -> tuple[list[int], int]:
    """A draw up to a few tokens of rounds that tested a draft, and how many tokens come before these.

    The prefill's token always does; a method that has no draft yet may commit more. If it has none for long, the next
    ones serve: those before were seen to come without a draft, which may hang on what they are.
    """
    method.reset()
    tokens: list[int] = []
    before, drafting = 0, False
    for one in method.rounds(prompt.ids, sampling, rng):
        drafting = drafting or one.verdict is not None or (method.reach == 1 and before > 0)
        before += 0 if drafting else len(one.tokens)
        tokens += one.tokens
        drafting = drafting or before >= MOST_DRAWN
        if drafting and len(tokens) >= before + DRAWN_TOKENS - 1:
            return tokens[: before + DRAWN_TOKENS - 1], before
    raise ValueError("the method stopped decoding by itself")


def _classed(
    tokens: list[int], rows: dict[str, torch.Tensor], reference: Reference, sampling: Sampling
) -> tuple[list[int], np.ndarray[Any, np.dtype[np.float64]], int]:
    """Classes of drawn tokens [n], their probabilities by class [n, CLASSES], and how many were impossible.

    `rows` are the logits [n, V] of the models by role, the draft's among them where the pair has one.
    """
    p = reference.expected(rows, sampling)
    over = probabilities(rows["draft"], sampling) > p if "draft" in rows else torch.zeros_like(p, dtype=torch.bool)
    likeliest = torch.zeros_like(over).scatter(-1, p.argmax(-1, keepdim=True), True)
    kind = 2 * over.long() + (~likeliest).long()  # [n, V]
    at = torch.tensor(tokens, device=p.device)[:, None]
    probs = torch.zeros(len(tokens), CLASSES, dtype=p.dtype, device=p.device).scatter_add_(-1, kind, p)
    wider = Sampling(sampling.temperature, sampling.top_k, min(1.0, sampling.top_p + NUCLEUS_SLACK))
    possible = reference.expected(rows, wider).gather(-1, at) > 0
    return kind.gather(-1, at)[:, 0].tolist(), probs.cpu().numpy(), int((~possible).sum())


def prompts_of(plan: Plan, pair: Pair) -> list[Prompt]:
    """The prompts of a plan's documents. Raises UserError for one that leaves no room to decode."""
    requests = engine.load_tasks(plan, pair).requests()
    prompts = [Prompt(r.task, r.doc_id, engine.encode(pair, r.prompt)) for r in requests]
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest + ROOM > pair.context:
        raise UserError(f"a prompt has {longest} tokens and {pair.name} reads {pair.context}; choose another --suite")
    return prompts


def write(path: Path, findings: Sequence[Finding], pair: Pair) -> None:
    """Keep an audit as JSON, with the machine that it speaks of."""
    rows = []
    for one in findings:
        sampled = [
            {"sampling": vars(s.sampling), **vars(s.test), "impossible": s.impossible, "level": s.level}
            for s in one.sampled
        ]
        leavings = [vars(leaving) for leaving in one.leavings]
        rows.append({**vars(one), "verdict": one.verdict, "leavings": leavings, "sampled": sampled})
    facts = {"environment": environment.describe(pair.device), "models": pair.describe(), "methods": rows}
    files.write_json(path, json.loads(json.dumps(facts, default=str)))


def agreement(finding: Finding) -> float:
    """The mean share of a text before it leaves vanilla's."""
    return float(np.mean(finding.agreed)) if finding.agreed else math.nan
