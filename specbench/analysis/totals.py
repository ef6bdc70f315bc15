"""What a server counted and timed of all its requests together: vLLM's `spec_decode_*` counters, and its latencies.

Imported runs keep it in their manifest. Where a server told only sums of a text's rounds, the samples hold them, and
they are added up here. `compare` shows totals where a row has no rounds.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench.analysis.metrics import DEPTH
from specbench.results.check_manifest import SERVED
from specbench.results.records import KEY as KEY_FIELDS
from specbench.results.stored import StoredRun
from specbench.servers.evidence import CHUNKS, COUNTERS, HISTOGRAM

KEY = [field.name for field in KEY_FIELDS]
COUNTED = {"verify_rounds": "num_drafts", "draft_tokens": "draft_tokens", "accepted_tokens": "accepted_tokens"}
COUNTED |= {"whole_rounds": "num_whole"}
MOST = 2**53  # a count of more is no exact number


def totals(run: StoredRun) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """A run's totals by task and method, one for each result of a file; methods without any are left out."""
    files, sums = of_files(run), of_sums(run)
    for row, parts in sums.items():  # a file may tell both: its own totals, and the rounds of each text
        known = files.get(row, [{}])
        files[row] = [known[0] | parts[0]] if len(known) == 1 else known
    return files


def of_files(run: StoredRun) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The totals of an imported run's files, under its first task."""
    files = (run.manifest.get("imported") or {}).get("files") or []
    known, task = {spec.name for spec in run.plan.methods}, next(iter(run.headline()), "")
    kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in files if isinstance(files, list) else []:
        if isinstance(file, dict) and file.get("method") in known and isinstance(parts := file.get("totals"), list):
            kept[task, file["method"]] = [part for part in parts if isinstance(part, dict) and part]
    return {row: parts for row, parts in kept.items() if parts}


def of_sums(run: StoredRun) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The sums over all texts of each server that does not list all rounds; a count that some text lacks is left out.

    A text of more tokens than its rounds can give had rounds without a draft, of one token each, which no server lists;
    `num_plain` are those. Parts of a stream are no count of rounds, only a bound.
    """
    servers = [spec.name for spec in run.plan.servers]
    if not servers and "imported" in run.manifest:
        servers = [spec.name for spec in run.plan.methods]
    if not servers:
        return {}
    samples = run.samples([*KEY, "finish", "new_tokens", "evidence", *COUNTED])
    samples = samples[~samples.warmup & (samples.finish != "error") & samples.method.isin(servers)]
    samples = samples[samples.evidence.notna()]
    samples = samples[samples.new_tokens.isna() | (samples.new_tokens > 1)]  # the prefill gave the only token
    totals: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row, texts in samples.groupby(["task", "method"], sort=False):
        rounds, accepted = texts.verify_rounds.where(texts.evidence != CHUNKS), texts.accepted_tokens
        plain = (texts.new_tokens - 1 - accepted - rounds).clip(lower=0)
        if not (texts.evidence.isin((HISTOGRAM, COUNTERS)) | (plain > 0)).any():
            continue
        part = {f"spec_decode_{name}": texts[column] for column, name in COUNTED.items()}
        part |= {"spec_decode_num_drafts": rounds, "spec_decode_num_plain": plain}
        part |= {"spec_decode_sum_tau": 1 + accepted / (rounds + plain).where(rounds + plain > 0)}
        part |= {"spec_decode_num_texts": pd.Series(1.0, texts.index)}
        sums = {name: float(counts.sum()) for name, counts in part.items() if counts.notna().all()}
        if sums:
            totals[str(row[0]), str(row[1])] = [sums]
    return totals


def counted(parts: Sequence[dict[str, Any]]) -> bool:
    """True if the server drafted: some of its results have spec_decode counters."""
    return any(key.startswith("spec_decode_") for part in parts for key in part)


def served(parts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Throughput and latencies; NaN for what is not told, and for several results: medians cannot be pooled."""
    known = parts[0] if len(parts) == 1 else {}
    return {name: _figure(known.get(name)) for name in SERVED}


def rates(parts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Acceptance rate, α and τ, pooled and by text, of the results together; NaN for what they do not tell.

    A server counts whole rounds: drafts after the end of a text are in D and A, and τ counts tokens that the end cut
    off, and of rounds without a draft only those that are known. α needs to know in how many rounds the whole draft was
    accepted, since every other round tested one token more: of a file, drafts of one length, whose last position tells
    it.
    """
    sums = dict.fromkeys(("drafted", "accepted", "rounds", "plain", "whole", "of_texts", "texts"), 0.0)
    for part in parts:
        rounds, drafted, accepted = _counts(part)
        shares = _shares(part)
        sums["drafted"] += drafted
        sums["accepted"] += accepted
        sums["rounds"] += rounds
        sums["plain"] += _number(part, "num_plain") if "spec_decode_num_plain" in part else 0.0
        sums["of_texts"] += _number(part, "sum_tau")
        sums["texts"] += _number(part, "num_texts")
        if "spec_decode_num_whole" in part:
            sums["whole"] += _number(part, "num_whole")
            continue
        sums["whole"] += shares[-1] * rounds if shares and drafted == rounds * len(shares) else math.nan
    drafted, accepted, rounds, plain, whole, of_texts, texts = sums.values()
    alone = _number(parts[0], "acceptance_length") if len(parts) == 1 else math.nan  # all that some servers tell
    return {
        "acceptance_rate": _ratio(accepted, drafted),
        "alpha": _ratio(accepted, accepted + rounds - whole),
        "tau": alone if math.isnan(rounds) else 1 + _ratio(accepted, rounds + plain),
        "tau_mean": _ratio(of_texts, texts),
    }


def depths(parts: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Acceptance at each position of a draft, as `metrics.acceptance_by_depth`; empty if it is not told.

    What was tested at a position is known if all drafts are of one length: those that reached it.
    """
    each = [(_counts(part), _shares(part)) for part in parts]
    longest = {len(shares) for _, shares in each}
    rounds = sum(counts[0] for counts, _ in each)
    if len(longest) != 1 or not rounds > 0:
        return pd.DataFrame(columns=DEPTH)
    fixed = all(counts[1] == counts[0] * len(shares) for counts, shares in each)
    reached, rows = rounds, []
    for depth in range(1, longest.pop() + 1):
        passed = sum(counts[0] * shares[depth - 1] for counts, shares in each)
        tested = reached if fixed else math.nan
        rows.append([depth, _ratio(passed, tested), passed / rounds, tested])
        reached = passed
    return pd.DataFrame(rows, columns=DEPTH)


def _counts(part: dict[str, Any]) -> tuple[float, float, float]:
    """Rounds, drafted and accepted tokens."""
    rounds, drafted, accepted = (_number(part, name) for name in ("num_drafts", "draft_tokens", "accepted_tokens"))
    if math.isnan(accepted):
        accepted = (_number(part, "acceptance_length") - 1) * rounds
    return rounds, drafted, accepted


def _shares(part: dict[str, Any]) -> list[float]:
    """The share of rounds that accepted each position of their draft; empty if it is not told of all."""
    listed = part.get("spec_decode_per_position_acceptance_rates")
    shares = [_figure(x) for x in listed] if isinstance(listed, list) else []
    return shares if all(share <= 1 for share in shares) else []


def _number(part: dict[str, Any], name: str) -> float:
    return _figure(part.get(f"spec_decode_{name}"))


def _figure(value: Any) -> float:
    """A count, a rate or seconds; NaN for what is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= MOST else math.nan


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.nan
