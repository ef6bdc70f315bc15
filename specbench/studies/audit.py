"""`specbench audit`: is a method lossless on this pair, on this machine?

Greedy: where a method's text leaves vanilla's, the target's own logits tell a numeric tie from a defect. Sampling: the
tokens of many draws are tested against the target's distribution (`audit_sampling`). For models that decode together,
standard collaborative decoding takes the place of vanilla, and their combination r that of the target's distribution.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specbench.base import environment, files
from specbench.base.console import warn
from specbench.config import UserError
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Combination, Method, Sampling
from specbench.measure import parts, prepare
from specbench.measure.divergence import Divergence, Reference, diverged
from specbench.measure.parts import Advance, Opened
from specbench.measure.prompts import encode, load_tasks
from specbench.measure.staffing import Staffing
from specbench.methods.chains.vanilla import Vanilla
from specbench.methods.collaborative.cos.ensemble import Ensemble, one_by_one
from specbench.plan import Plan
from specbench.studies.audit_sampling import POSITIONS, SAMPLINGS, SamplingTest, Start, check_sampling, telling_places

LEVEL = 0.01  # of a false alarm, over all sampling tests of an audit together
ROOM = 256  # positions after a prompt


@dataclass(frozen=True)
class Leaving(Divergence):
    """The first token that is not vanilla's."""

    task: str
    doc_id: int


@dataclass
class MethodAudit:
    """The result of auditing one method."""

    method: str
    lossless: bool  # what the method claims
    standard: str = "vanilla"  # the decoding it is compared with
    documents: int = 0  # that were compared
    empty: int = 0  # documents whose standard text is an end token alone: there is nothing to compare
    same: int = 0  # documents whose text is vanilla's
    agreed: list[float] = field(default_factory=list)  # the share of each text before it leaves vanilla's
    leavings: list[Leaving] = field(default_factory=list)
    sampled: list[SamplingTest] = field(default_factory=list)
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


@dataclass(frozen=True)
class AuditedSetup:
    """What was audited: the machine, the models, and the methods that could not be built, with the reasons."""

    environment: dict[str, Any]
    models: dict[str, dict[str, object]]
    left_out: dict[str, str]


def carry_out(
    plan: Plan, length: int, draws: int, named: bool = True, staffing: Staffing | None = None
) -> tuple[list[MethodAudit], AuditedSetup]:
    """Audit the methods of a plan on its documents; the workers of `staffing` do it, or this process without it.

    Unless the user `named` the methods, those that cannot be built (for lack of a trained head, say) are left out.
    """
    fitted = staffing.fitted(plan) if staffing else plan
    opening = partial(_open, fitted, length, draws, named)
    audited, findings = parts.carry_out(opening, "auditing", fitted.device, staffing)
    for name, why in audited.left_out.items():
        warn(f"left out: {name}: {why}")
    return findings, audited


def _open(plan: Plan, length: int, draws: int, named: bool) -> Opened[AuditedSetup, MethodAudit]:
    """Load the models, on the runtime of the audit, and the documents; a part audits one method."""
    eager = prepare.load_models(plan, "eager")
    prompts = prompts_of(plan, eager)
    pair, _ = prepare.at_runtime(plan, eager, prompts[0].ids, len(prompts[0].ids), plan.runtime)
    methods: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    for spec in plan.methods:
        try:
            methods[spec.name] = prepare.build(spec, pair, Unwatched())
        except UserError as error:
            if named:
                raise
            left_out[spec.name] = str(error)
    audit, names = Audit(eager, methods, prompts, length, draws), list(methods)

    def find(number: int, advance: Advance) -> MethodAudit:
        def between(count: int) -> None:
            advance(count)
            pair.runtime.settle()

        return audit.finding(names[number], between)

    audited = AuditedSetup(environment.describe(pair.device, pair.draft_device), pair.describe(), left_out)
    return Opened(audited, len(methods), len(prompts) * (len(methods) + audit.tests * POSITIONS * draws), find)


class Audit:
    """Methods on `prompts`: one greedy text of `length` tokens each, and `draws` samples from each.

    `tests` counts the sampling tests of all methods, over which LEVEL is divided.
    """

    def __init__(
        self, pair: Pair, methods: Mapping[str, Method], prompts: Sequence[Start], length: int, draws: int
    ) -> None:
        self.pair, self.methods, self.prompts, self.length, self.draws = pair, methods, prompts, length, draws
        self.tests = sum(len(samplings(method)) for method in methods.values())
        self._standards: dict[Combination | None, tuple[list[list[int]], list[Start]]] = {}

    def finding(self, name: str, advance: Callable[[int], None] = lambda count: None) -> MethodAudit:
        """Audit a method; an exception in it becomes its finding. `advance` is called with 1 after each text.

        Raises UserError if the standard texts have no tokens.
        """
        method = self.methods[name]
        finding = MethodAudit(name, method.lossless, "ensemble" if method.combination else "vanilla")
        reference = Reference(self.pair, method.combination)
        try:
            texts, places = self._standard_texts(reference)
            for prompt, text in zip(self.prompts, texts, strict=True):
                if text[0] in self.pair.eos_ids:
                    finding.empty += 1
                else:
                    _check_greedy(finding, reference, prompt, text, _greedy(method, self.pair, prompt, self.length))
                advance(1)
            for sampling in samplings(method) if places else ():
                level = LEVEL / self.tests
                finding.sampled.append(check_sampling(method, reference, places, sampling, self.draws, level, advance))
        except Exception as error:  # whatever a method raises is the result of its audit
            finding.failure = f"{type(error).__name__}: {error}"
        if finding.empty == len(self.prompts):
            raise UserError(
                f"the first token after each of the {finding.empty} prompts is an end token, so there is no text to "
                "audit; a chat model needs its template: give --prompts FILE.jsonl, whose prompts are wrapped in it, "
                "or a --suite with chat_template: true"
            )
        return finding

    def _standard_texts(self, reference: Reference) -> tuple[list[list[int]], list[Start]]:
        """The standard greedy text after each prompt, and the places in them to draw from; made once."""
        if reference.combination not in self._standards:
            texts = [_greedy(_standard(reference), self.pair, prompt, self.length) for prompt in self.prompts]
            pairs = zip(self.prompts, texts, strict=True)
            places = [
                place for prompt, text in pairs if len(text) > 1 for place in telling_places(reference, prompt, text)
            ]
            self._standards[reference.combination] = texts, places
        return self._standards[reference.combination]


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


def _greedy(method: Method, pair: Pair, prompt: Start, length: int) -> list[int]:
    method.reset()
    ending = Ending(Limits(length, pair.eos_ids), pair.detokenizer)
    for _ in decode_text(method, prompt.ids, Sampling(), torch.Generator(pair.device), ending):
        pass
    return ending.tokens


def _check_greedy(
    finding: MethodAudit, reference: Reference, prompt: Start, vanilla: list[int], tokens: list[int]
) -> None:
    """Compare one greedy text with the standard one, and note the result in `finding`."""
    finding.documents += 1
    divergence = diverged(reference, prompt.ids, vanilla, tokens)
    finding.same += divergence is None
    finding.agreed.append(1.0 if divergence is None else divergence.at / max(len(vanilla), 1))
    if divergence:
        finding.leavings.append(Leaving(**vars(divergence), task=prompt.task, doc_id=prompt.doc_id))


def prompts_of(plan: Plan, pair: Pair) -> list[Start]:
    """The prompts of a plan's documents (of conversations, first turns). Raises UserError if one leaves no room."""
    requests = load_tasks(plan, pair).requests()
    prompts = [Start(r.task, r.doc_id, encode(pair, r.prompt)) for r in requests if r.turn == 0]
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest + ROOM > pair.context:
        raise UserError(f"a prompt has {longest} tokens and {pair.name} reads {pair.context}; choose another --suite")
    return prompts


def write(path: Path, findings: Sequence[MethodAudit], audited: AuditedSetup) -> None:
    """Write an audit as JSON, with the machine and the models it applies to."""
    rows = []
    for finding in findings:
        sampled = [
            {"sampling": vars(s.sampling), **vars(s.test), "impossible": s.impossible, "level": s.level}
            for s in finding.sampled
        ]
        leavings = [vars(leaving) for leaving in finding.leavings]
        rows.append({**vars(finding), "verdict": finding.verdict, "leavings": leavings, "sampled": sampled})
    facts = {"environment": audited.environment, "models": audited.models, "methods": rows}
    files.write_json(path, json.loads(json.dumps(facts, default=str)))


def agreement(finding: MethodAudit) -> float:
    """The mean share of a text before it leaves vanilla's."""
    return float(np.mean(finding.agreed)) if finding.agreed else math.nan
