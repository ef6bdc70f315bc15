"""Rates from a server's totals, for imported runs whose files have no rounds: vLLM's `spec_decode_*` counters."""

import math
from collections.abc import Sequence
from typing import Any

from specbench.results.stored import StoredRun


def totals(run: StoredRun) -> dict[str, list[dict[str, Any]]]:
    """The totals of an imported run by method, one for each result of a file; methods without any are left out."""
    files = (run.manifest.get("imported") or {}).get("files") or []
    known = {spec.name for spec in run.plan.methods}
    kept: dict[str, list[dict[str, Any]]] = {}
    for file in files if isinstance(files, list) else []:
        if isinstance(file, dict) and file.get("method") in known and isinstance(parts := file.get("totals"), list):
            kept[file["method"]] = [part for part in parts if isinstance(part, dict) and part]
    return {method: parts for method, parts in kept.items() if parts}


def rates(parts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Acceptance rate, α and τ of the results together; NaN for what they do not tell.

    A server counts whole rounds: drafts after the end of a text are in D and A, and τ counts tokens that the end cut
    off. α needs drafts of one length, of which the last position tells how many were accepted as a whole.
    """
    sums = dict.fromkeys(("drafted", "accepted", "rounds", "whole"), 0.0)
    for part in parts:
        rounds, drafted = _number(part, "num_drafts"), _number(part, "draft_tokens")
        accepted = _number(part, "accepted_tokens")
        if math.isnan(accepted):
            accepted = (_number(part, "acceptance_length") - 1) * rounds
        listed = part.get("spec_decode_per_position_acceptance_rates")
        shares = [x for x in listed if isinstance(x, int | float)] if isinstance(listed, list) else []
        fixed = shares and drafted == rounds * len(shares)
        sums["drafted"] += drafted
        sums["accepted"] += accepted
        sums["rounds"] += rounds
        sums["whole"] += float(shares[-1]) * rounds if fixed else math.nan
    drafted, accepted, rounds, whole = sums.values()
    return {
        "acceptance_rate": _ratio(accepted, drafted),
        "alpha": _ratio(accepted, accepted + rounds - whole),
        "tau": 1 + _ratio(accepted, rounds),
    }


def _number(part: dict[str, Any], name: str) -> float:
    value = part.get(f"spec_decode_{name}")
    return float(value) if isinstance(value, int | float) else math.nan


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.nan
