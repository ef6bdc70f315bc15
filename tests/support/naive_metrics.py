"""The metrics of a run folder a second time, from their definitions alone: dictionaries and loops, no data frames.

The tests hold `analysis.metrics` and `analysis.compare` against it, so it shares nothing with them but the files.
An undefined figure (a division by zero) is NaN, and so is one that needs a value which the records do not hold.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]
Key = tuple[int, str, int, str]  # repeat, task, document, method
MEANS = [
    "accuracy",
    "accuracy_delta",
    "acceptance_rate",
    "acceptance_rate_in_text",
    "alpha",
    "tau",
    "discard_rate",
    "verification_rate",
    "rescue_rate",
    "tokens_per_s",
    "tokens_per_s_mean",
    "tokens_per_s_e2e",
    "tokens_per_s_e2e_mean",
    "arbitrator_share",
    "overhead",
    "speedup_decode",
    "speedup_e2e",
]


def rows(folder: Path, name: str) -> list[Row]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def key(row: Row) -> Key:
    return row["repeat"], row["task"], row["doc_id"], row["method"]


def divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator != 0 else math.nan


def total(values: Iterable[float | None]) -> float:
    """The sum; NaN if one of them is unknown."""
    result: float = 0
    for value in values:
        result += math.nan if value is None else value
    return result


def mean(values: list[float]) -> float:
    return divide(sum(values), len(values))


def timed(folder: Path) -> dict[Key, tuple[Row, list[Row]]]:
    """Every sample that counts, with its rounds, the prefill among them: no warm-up, no failed sample."""
    result: dict[Key, tuple[Row, list[Row]]] = {}
    for sample in rows(folder, "samples"):
        if not sample["warmup"] and sample["finish"] != "error":
            assert key(sample) not in result
            result[key(sample)] = (sample, [])
    for row in rows(folder, "rounds"):
        if not row["warmup"] and key(row) in result:
            result[key(row)][1].append(row)
    return result


def rejected(one: Row) -> float:
    """1 if a draft was rejected; where tokens were cut off, a rejection would have been among them."""
    accepted, truncated = one["accepted"], one["truncated"]
    drafted = one["levels"] if one.get("levels") is not None else one["drafted"]
    if truncated not in (0, None) or (drafted == accepted and drafted is not None):
        return 0
    return math.nan if None in (drafted, accepted, truncated) else 1


def in_text(one: Row) -> float | None:
    """The drafts of a round that do not stand behind the end of the text, which cuts a round after its tokens."""
    if one["truncated"] == 0 or None in (one["truncated"], one["drafted"], one["committed"]):
        return one["drafted"] if one["truncated"] == 0 else None
    if one.get("decisions"):
        return one["drafted"] - one["decisions"].count(4)
    return min(one["drafted"], one["committed"])


def rates(texts: list[tuple[Row, list[Row]]]) -> Row:
    """Pooled rates and counts of some samples and their rounds."""
    later = [one for _, every in texts for one in every if one["round"] > 0]

    def summed(name: str) -> float:
        return total(one[name] for one in later)

    drafted, accepted, committed = summed("drafted"), summed("accepted"), summed("committed")
    seconds = total(sample["decode_seconds"] for sample, _ in texts)
    own_rates, whole_rates = [], []
    for sample, every in texts:
        whole = total([sample["prefill_seconds"], sample["decode_seconds"]])
        if whole != 0:
            whole_rates.append(total(one["committed"] for one in every) / whole)
        tokens = total(one["committed"] for one in every if one["round"] > 0)
        its_seconds = total([sample["decode_seconds"]])
        if its_seconds != 0:
            own_rates.append(tokens / its_seconds)
    memory = [sample["peak_memory"] for sample, _ in texts]
    return {
        "documents": len({sample["doc_id"] for sample, _ in texts}),
        "acceptance_rate": divide(accepted, drafted),
        "acceptance_rate_in_text": divide(accepted, total(in_text(one) for one in later)),
        "alpha": divide(accepted, accepted + total(rejected(one) for one in later)),
        "tau": divide(committed, len(later)),
        "discard_rate": divide(drafted - accepted, committed),
        "verification_rate": divide(summed("target_forwards"), committed),
        "rescue_rate": divide(summed("rescued"), drafted),
        "tokens_per_s": divide(committed, seconds),
        "tokens_per_s_mean": mean(own_rates),
        "tokens_per_s_e2e": divide(1.0, time_per_token(texts, prefill=True)),
        "tokens_per_s_e2e_mean": mean(whole_rates),
        "arbitrator_share": divide(total(one.get("arbitrator_seconds") or 0.0 for one in later), seconds),
        "overhead": divide(seconds - summed("target_seconds") - summed("draft_seconds"), seconds),
        "peak_memory": math.nan if None in memory or not memory else max(memory),
    }


def time_per_token(texts: list[tuple[Row, list[Row]]], prefill: bool) -> float:
    """Seconds over tokens; with the prefill, its seconds and the tokens that it commits count too."""
    seconds = total(sample["decode_seconds"] for sample, _ in texts)
    if prefill:
        seconds += total(sample["prefill_seconds"] for sample, _ in texts)
    counted = [one for _, every in texts for one in every if prefill or one["round"] > 0]
    return divide(seconds, total(one["committed"] for one in counted))


def speedup(texts: dict[Key, tuple[Row, list[Row]]], task: str, method: str, baseline: str, prefill: bool) -> float:
    """Time per token of the baseline over the method's, on the documents that both decoded in the same pass."""
    mine, base = [], []
    for (repeat, its_task, doc, its_method), text in texts.items():
        partner = texts.get((repeat, task, doc, baseline))
        if its_task == task and its_method == method and partner is not None:
            mine.append(text)
            base.append(partner)
    return divide(time_per_token(base, prefill), time_per_token(mine, prefill))


def accuracy(scores: list[Row], headline: str, task: str, method: str, baseline: str) -> Row:
    """The headline metric with its standard error, and its difference from the baseline's on the same documents.

    Over several passes: the mean of the documents' means, which may be of other documents in each, and its error.
    """
    wanted = [s for s in scores if s["task"] == task and f"{s['metric']},{s['filter']}" == headline]
    whole = [s for s in wanted if s["method"] == method and s["doc_id"] is None]
    single = {key(s): s["value"] for s in wanted if s["doc_id"] is not None}
    by_doc: dict[int, list[float]] = {}
    changes: dict[int, list[float]] = {}
    for (repeat, _, doc, its_method), value in single.items():
        if its_method == method:
            by_doc.setdefault(doc, []).append(value)
            if (repeat, task, doc, baseline) in single:
                changes.setdefault(doc, []).append(value - single[repeat, task, doc, baseline])
    value = mean([mean(values) for values in by_doc.values()])
    if len(whole) == 1:
        value = whole[0]["value"]
        stderr = math.nan if whole[0]["stderr"] is None else whole[0]["stderr"]
    else:
        stderr = standard_error([mean(values) for values in by_doc.values()])
    delta = mean([mean(values) for values in changes.values()]) if method != baseline else math.nan
    return {"accuracy": value, "accuracy_stderr": stderr, "accuracy_delta": delta}


def standard_error(values: list[float]) -> float:
    if len(values) < 2:
        return math.nan
    variance = sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


def errors(folder: Path, task: str, method: str) -> int:
    return sum(
        1
        for s in rows(folder, "samples")
        if s["task"] == task and s["method"] == method and s["finish"] == "error" and not s["warmup"]
    )


def summary(folder: Path) -> dict[tuple[str, str], Row]:
    """A row for each task and method; the averages over the tasks are under the task `average`."""
    manifest = json.loads((folder / "manifest.json").read_text())
    baseline = manifest["plan"]["baseline"]
    tasks = list(dict.fromkeys(task for task, *_ in manifest["requests"]))
    methods = [spec["name"] for spec in manifest["plan"]["methods"]]
    texts, scores = timed(folder), rows(folder, "scores")
    result: dict[tuple[str, str], Row] = {}
    for task in tasks:
        for method in methods:
            row = rates([text for at, text in texts.items() if at[1] == task and at[3] == method])
            row["errors"] = errors(folder, task, method)
            row |= accuracy(scores, manifest["headline"][task], task, method, baseline)
            row["speedup_decode"] = speedup(texts, task, method, baseline, prefill=False)
            row["speedup_e2e"] = speedup(texts, task, method, baseline, prefill=True)
            result[task, method] = row
    if len(tasks) > 1:
        for method in methods:
            result["average", method] = average([result[task, method] for task in tasks])
    return result


def average(by_task: list[Row]) -> Row:
    """The plain mean over tasks; documents and errors are added up, memory is the most of any."""
    row: Row = {name: mean([one[name] for one in by_task]) for name in MEANS}
    row["documents"] = sum(one["documents"] for one in by_task)
    row["errors"] = sum(one["errors"] for one in by_task)
    row["accuracy_stderr"] = math.sqrt(sum(one["accuracy_stderr"] ** 2 for one in by_task)) / len(by_task)
    row["peak_memory"] = max((m for one in by_task if not math.isnan(m := one["peak_memory"])), default=math.nan)
    return row


def depths(folder: Path, task: str, method: str, cut_was_tested: bool = True) -> dict[int, Row]:
    """`cond_accept` and `joint_accept` by depth, and how many drafts were `tested` there; drafts must be known.

    A draft behind the end of the text follows accepted ones, but no verdict on it counts: `cut_was_tested` tells
    whether it is among the tested.
    """
    later = []
    for (_, its_task, _, its_method), (_, every) in timed(folder).items():
        if its_task == task and its_method == method:
            later += [one for one in every if one["round"] > 0]
    result: dict[int, Row] = {}
    for k in range(1, max((one["drafted"] for one in later), default=0) + 1):
        passed = tested = 0
        for one in later:
            if one["accepted"] >= k:
                passed += 1
            if one["accepted"] >= k - 1 and one["drafted"] >= k:
                behind_the_end = one["truncated"] > 0 and one["accepted"] == k - 1
                tested += 1 if cut_was_tested or not behind_the_end else 0
        result[k] = {
            "cond_accept": divide(passed, tested),
            "joint_accept": divide(passed, len(later)),
            "tested": tested,
        }
    return result
