"""`specbench audit`: is a method lossless on this pair, on this machine?

Greedy: where a method's text leaves vanilla's, the target's own logits tell a numeric tie from a defect. Sampling: the
tokens of many draws are tested against the target's distribution (`audit_sampling`). For models that decode together,
standard collaborative decoding takes the place of vanilla, and their combination r that of the target's distribution.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from specbench.base import environment, files
from specbench.base.console import progress, warn
from specbench.config import UserError
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Combination, Method, Sampling
from specbench.measure import prepare
from specbench.measure.divergence import Divergence, Reference, diverged
from specbench.methods.cos.ensemble import Ensemble, one_by_one
from specbench.methods.vanilla import Vanilla
from specbench.plan import Plan
from specbench.studies.audit_sampling import POSITIONS, SAMPLINGS, Prompt, Sampled, check_sampling, telling_places

LEVEL = 0.01  # of a false alarm, over all sampling tests of an audit together
ROOM = 256  # positions after a prompt


@dataclass(frozen=True)
class Leaving(Divergence):
    """The first token that is not vanilla's."""

    task: str
    doc_id: int


@dataclass
class Finding:
    """The result of auditing one method."""

    method: str
    lossless: bool  # what the method claims
    standard: str = "vanilla"  # the decoding it is compared with
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
        if any(leaving.kind == "bug" for leaving in self.leavings) or not all(test.passed for test in self.sampled):
            return "defect"
        return "lossless, numeric ties" if self.leavings else "lossless"


def carry_out(plan: Plan, length: int, draws: int, named: bool = True) -> tuple[list[Finding], Pair]:
    """Audit the methods of a plan on its documents; return the findings, and the pair on the runtime of the audit.

    Unless the user `named` the methods, those that cannot be built (for lack of a trained head, say) are left out.
    """
    eager = prepare.load_models(plan.model_copy(update={"runtime": "eager"}))
    prompts = prompts_of(plan, eager)
    pair, _ = prepare.at_runtime(plan, eager, prompts[0].ids, len(prompts[0].ids), plan.runtime)
    methods: dict[str, Method] = {}
    for spec in plan.methods:
        try:
            methods[spec.name] = prepare.build(spec, pair, Unwatched())
        except UserError as error:
            if named:
                raise
            warn(f"left out: {spec.name}: {error}")
    tests = sum(len(samplings(method)) for method in methods.values())
    texts = len(prompts) * (len(methods) + tests * POSITIONS * draws)
    with progress("auditing", texts) as advance:

        def between(count: int) -> None:
            advance(count)
            pair.runtime.settle()

        return list(audit(eager, methods, prompts, length, draws, between)), pair


def audit(
    pair: Pair,
    methods: dict[str, Method],
    prompts: Sequence[Prompt],
    length: int,
    draws: int,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[Finding]:
    """Audit methods on `prompts`: one greedy text of `length` tokens each, and `draws` samples from each.

    Yields a finding for each method. An exception in a method becomes its finding and does not stop the audit.
    `advance` is called after each text.
    """
    by_reference: dict[Combination | None, tuple[list[list[int]], list[Prompt]]] = {}
    tests = sum(len(samplings(method)) for method in methods.values())
    for name, method in methods.items():
        finding = Finding(name, method.lossless, "ensemble" if method.combination else "vanilla")
        reference = Reference(pair, method.combination)
        try:
            if method.combination not in by_reference:
                texts = [_greedy(_standard(reference), pair, prompt, length) for prompt in prompts]
                places = [
                    place
                    for p, text in zip(prompts, texts, strict=True)
                    for place in telling_places(reference, p, text)
                ]
                by_reference[method.combination] = texts, places
            texts, places = by_reference[method.combination]
            for prompt, text in zip(prompts, texts, strict=True):
                _check_greedy(finding, reference, prompt, text, _greedy(method, pair, prompt, length))
                advance(1)
            for sampling in samplings(method):
                level = LEVEL / tests
                finding.sampled.append(check_sampling(method, reference, places, sampling, draws, level, advance))
        except Exception as error:  # whatever a method raises is the result of its audit
            finding.failure = f"{type(error).__name__}: {error}"
        yield finding


def samplings(method: Method) -> list[Sampling]:
    """The SAMPLINGS under which a method claims to be lossless; some methods only decode greedily."""
    claimed = []
    for sampling in SAMPLINGS if method.lossless else ():
        with suppress(ValueError):
            method.check(sampling)
            claimed.append(sampling)
    return claimed


def _standard(reference: Reference) -> Method:
    """The decoding that a lossless method must equal."""
    pair = reference.pair
    if reference.combination is None:
        return Vanilla(pair.session("target"))
    return Ensemble([pair.session(role) for role in reference.roles], reference.combination, {}, one_by_one)


def _greedy(method: Method, pair: Pair, prompt: Prompt, length: int) -> list[int]:
    method.reset()
    ending = Ending(Limits(length, pair.eos_ids), pair.detokenizer)
    for _ in decode_text(method, prompt.ids, Sampling(), torch.Generator(pair.device), ending):
        pass
    return ending.tokens


def _check_greedy(
    finding: Finding, reference: Reference, prompt: Prompt, vanilla: list[int], tokens: list[int]
) -> None:
    """Compare one greedy text with the standard one, and note the result in `finding`."""
    finding.documents += 1
    divergence = diverged(reference, prompt.ids, vanilla, tokens)
    finding.same += divergence is None
    finding.agreed.append(1.0 if divergence is None else divergence.at / max(len(vanilla), 1))
    if divergence:
        finding.leavings.append(Leaving(**vars(divergence), task=prompt.task, doc_id=prompt.doc_id))


def prompts_of(plan: Plan, pair: Pair) -> list[Prompt]:
    """The prompts of a plan's documents (of conversations, first turns). Raises UserError if one leaves no room."""
    requests = prepare.load_tasks(plan, pair).requests()
    prompts = [Prompt(r.task, r.doc_id, prepare.encode(pair, r.prompt)) for r in requests if r.turn == 0]
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest + ROOM > pair.context:
        raise UserError(f"a prompt has {longest} tokens and {pair.name} reads {pair.context}; choose another --suite")
    return prompts


def write(path: Path, findings: Sequence[Finding], pair: Pair) -> None:
    """Write an audit as JSON, with the machine and the models it applies to."""
    rows = []
    for finding in findings:
        sampled = [
            {"sampling": vars(s.sampling), **vars(s.test), "impossible": s.impossible, "level": s.level}
            for s in finding.sampled
        ]
        leavings = [vars(leaving) for leaving in finding.leavings]
        rows.append({**vars(finding), "verdict": finding.verdict, "leavings": leavings, "sampled": sampled})
    facts = {"environment": environment.describe(pair.device), "models": pair.describe(), "methods": rows}
    files.write_json(path, json.loads(json.dumps(facts, default=str)))


def agreement(finding: Finding) -> float:
    """The mean share of a text before it leaves vanilla's."""
    return float(np.mean(finding.agreed)) if finding.agreed else math.nan
