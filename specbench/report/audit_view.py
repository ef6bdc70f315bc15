"""An audit for the terminal: a line for each method, then what was found, then what the tests could have seen."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.audit import Finding, Sampled, agreement
from specbench.decoding.types import Sampling


def print_audit(console: Console, findings: Sequence[Finding]) -> None:
    named = any(one.standard != "vanilla" for one in findings)
    table = Table(title="audit", title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("method", "greedy: as standard", "agrees for", "sampling: p", "verdict"):
        table.add_column(heading, justify="left" if heading in ("method", "verdict") else "right")
    for one in findings:
        ps = " ".join(f"{s.test.p:.3f}" + ("!" if s.impossible else "") for s in one.sampled) or "-"
        colour = {"defect": "red", "lossy by design": "yellow"}.get(one.verdict, "green")
        same = f"{one.same}/{one.documents}"
        same += f" {one.standard}" if named else ""
        table.add_row(Text(one.method), same, f"{agreement(one):.0%}", ps, Text(one.verdict, colour))
    console.print(table)
    for one in findings:
        for line in details(one):
            console.print(f"{one.method}: {line}", highlight=False, markup=False)
    for line in [*_standards(findings), *power(findings)]:
        console.print(line, style="dim", highlight=False, markup=False)


def _standards(findings: Sequence[Finding]) -> list[str]:
    together = any(one.standard == "ensemble" for one in findings)
    return ["ensemble: as standard collaborative decoding, with r for the target's distribution"] if together else []


def details(finding: Finding, most: int = 5) -> list[str]:
    """What is wrong or remarkable with a method, in words."""
    lines = [f"it failed: {finding.failure}"] if finding.failure else []
    if finding.lossless:
        for one in finding.leavings[:most]:
            word = "a numeric tie" if one.kind == "tie" else "a defect"
            where = f"{one.task}, document {one.doc_id}: leaves {finding.standard} at token {one.at}"
            lines.append(f"{where}, logit gap {one.gap:.2g}: {word}")
        if len(finding.leavings) > most:
            lines.append(f"and {len(finding.leavings) - most} more documents")
    for test in finding.sampled:
        if not test.passed:
            lines.append(f"{setting(test.sampling)}: {_why(test)}")
    return lines


def _why(test: Sampled) -> str:
    if test.impossible:
        return f"{test.impossible} of {test.test.draws} tokens cannot be drawn from the target at all: a defect"
    return (
        f"{test.test.draws} tokens are not the target's: χ² {test.test.statistic:.1f} with {test.test.df} degrees of "
        f"freedom, p {test.test.p:.1g} (below {test.level:.1g}): a defect"
    )


def power(findings: Sequence[Finding]) -> list[str]:
    """What bias the sampling tests would have seen."""
    lines = []
    for sampling in dict.fromkeys(test.sampling for one in findings for test in one.sampled):
        tests = [test for one in findings for test in one.sampled if test.sampling == sampling]
        worst = max(test.test.detectable for test in tests)
        if math.isnan(worst):
            lines.append(f"{setting(sampling)}: target or draft left too little to chance to say what would be seen")
            continue
        lines.append(
            f"{setting(sampling)}: with {tests[0].test.draws} tokens, a shift of {worst:.1%} of the probability "
            "towards what the draft proposes too often is seen 4 times in 5"
        )
    return lines


def setting(sampling: Sampling) -> str:
    return f"T={sampling.temperature:g}" + (f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else "")
