"""An audit: a line for each method, then its defects and ties, then what the tests could have seen."""

import math
from collections.abc import Sequence

from rich.text import Text

from specbench.engine.types import Sampling
from specbench.report.columns import p_text
from specbench.report.finding import Finding, Sheet
from specbench.studies import audit as study
from specbench.studies.audit import agreement
from specbench.studies.audit_sampling import SamplingTest

COLOURS = {"defect": "red", "lossy by design": "yellow"}  # green for all others


def view(audited: Sequence[study.MethodAudit]) -> Finding:
    several = any(method.standard != "vanilla" for method in audited)
    rows: list[list[str | Text]] = []
    for method in audited:
        ps = " ".join(p_text(s.test.p) + ("!" if s.impossible else "") for s in method.sampled) or "-"
        known = method.documents > 0
        same = f"{method.same}/{method.documents}" * known + f" {method.standard}" * (several and known) or "-"
        verdict = Text(method.verdict, COLOURS.get(method.verdict, "green"))
        rows.append([method.method, same, f"{agreement(method):.0%}" if known else "-", ps, verdict])
    standards = ["ensemble: as standard collaborative decoding, with r for the target's distribution"] * several
    most = max((method.empty for method in audited), default=0)
    empty = [f"{most} of the texts have no tokens (an end token came first) and were not compared"] * bool(most)
    headings = ["method", "greedy: as standard", "agrees for", "sampling: p", "verdict"]
    return Finding(
        "audit",
        sheets=[Sheet(headings, rows, "audit", "lrrrl")],
        sentences=[f"{method.method}: {line}" for method in audited for line in details(method)],
        notes=[*standards, *empty, *power(audited)],
    )


def details(method: study.MethodAudit, most: int = 5) -> list[str]:
    """What is wrong or remarkable with a method, in words."""
    lines = [f"it failed: {method.failure}"] if method.failure else []
    if method.lossless:
        for leaving in method.leavings[:most]:
            word = "a numeric tie" if leaving.kind == "tie" else "a defect"
            where = f"{leaving.task}, document {leaving.doc_id}: departs from {method.standard} at token {leaving.at}"
            lines.append(f"{where}, logit gap {leaving.gap:.2g}: {word}")
        if len(method.leavings) > most:
            lines.append(f"and {len(method.leavings) - most} more documents")
    for test in method.sampled:
        if not test.passed:
            lines.append(f"{setting(test.sampling)}: {_why(test)}")
    return lines


def _why(test: SamplingTest) -> str:
    if test.impossible:
        return f"{test.impossible} of {test.test.draws} tokens cannot be drawn from the target at all: a defect"
    return (
        f"{test.test.draws} tokens are not the target's: χ² {test.test.statistic:.1f} with {test.test.df} degrees of "
        f"freedom, p {test.test.p:.1g} (below {test.level:.1g}): a defect"
    )


def power(audited: Sequence[study.MethodAudit]) -> list[str]:
    """What bias the sampling tests would have seen."""
    lines = []
    for sampling in dict.fromkeys(test.sampling for method in audited for test in method.sampled):
        tests = [test for method in audited for test in method.sampled if test.sampling == sampling]
        worst = max(test.test.detectable for test in tests)
        if math.isnan(worst):
            lines.append(f"{setting(sampling)}: target or draft is too certain to say what bias would be detected")
            continue
        lines.append(
            f"{setting(sampling)}: with {tests[0].test.draws} tokens, a shift of {worst:.1%} of the probability "
            "towards what the draft proposes too often is detected 4 times in 5"
        )
    return lines


def setting(sampling: Sampling) -> str:
    return f"T={sampling.temperature:g}" + (f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else "")
