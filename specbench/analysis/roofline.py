"""The least that a forward must move and compute, and how long that takes at a machine's measured ceilings.

The roofline of Williams et al. (2009): a forward takes at least the time of its bytes at the memory's bandwidth, and at
least the time of its operations at the speed of a large matrix product.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis import metrics
from specbench.config import MethodSpec
from specbench.results.ceilings import Ceilings
from specbench.results.ceilings import read as read_ceilings
from specbench.results.stored import StoredRun, runtime_of

NO_OTHERS = ("draft", "none", "pld", "sam")  # values of `drafter`: the pair's draft, or no model
# Methods that draft with other models than the pair's draft. Others name one in `drafter`, or a lighter output layer in
# `output`.
OTHER_DRAFTS = (
    *("chimera", "deer", "del", "dflare", "dflash", "diffuspec", "eagle", "eagle3", "eagle3-typical", "fused"),
    *("hydra", "kangaroo", "medusa", "mtp", "routed", "s2d", "slimspec", "swift", "taps", "tlt-online", "vocabtrim"),
    *("specblock", "window"),
)


class Cost(NamedTuple):
    """What a forward takes at least; numbers or arrays."""

    bytes: Any
    operations: Any


class Limit(NamedTuple):
    seconds: float
    binds: str  # "bytes" or "operations", whichever takes longer


def cost(facts: Mapping[str, Any], width: int, context: Any, rows: int | None = None) -> Cost:
    """The cost of a forward over a chain of `width` tokens after `context` cached ones (a number or an array).

    `facts` are those of `engine.models.cost`. Bytes: every weight once, the tokens' rows of the embeddings, the keys
    and values of all tokens read and of those added, and the logits of `rows` tokens (None: all). Data that stays in a
    processor's cache between two layers is left out. Operations: two for each weight and token, and per layer 4·H·D
    for each token that another token reads.
    """
    rows = width if rows is None else rows
    layers, near = facts["layers"], facts["window_layers"]
    window = facts["window"] or math.inf
    read = context + width  # by a layer without a window
    few = np.minimum(read, window + width - 1)
    # Token i of the chain reads context + i tokens, including itself.
    pairs = width * context + width * (width + 1) // 2
    near_pairs = sum(np.minimum(context + i, window) for i in range(1, width + 1)) if near else 0
    per_layer = facts["kv_bytes_per_token"] / layers if layers else 0.0
    cache = per_layer * ((layers - near) * read + near * few + layers * width)
    moved = facts["weight_bytes"] + width * facts["lookup_bytes"] + cache + rows * facts["logit_bytes"]
    products = 2 * (width * facts["matrix_weights"] + rows * facts["output_weights"])
    return Cost(moved, products + 4 * facts["attention_width"] * ((layers - near) * pairs + near * near_pairs))


def limit(needed: Cost, ceilings: Ceilings) -> Limit:
    """The least time of a forward that has all caches to itself: its bandwidth is that of an array of as many bytes."""
    moving = float(needed.bytes / ceilings.bandwidth(needed.bytes))
    computing = float(needed.operations / ceilings.operations)
    return Limit(moving, "bytes") if moving >= computing else Limit(computing, "operations")


def table(forwards: pd.DataFrame, facts: Mapping[str, Mapping[str, Any]], ceilings: Ceilings) -> pd.DataFrame:
    """Measured forwards (model, runtime, context, width and median seconds) with their least time by `facts`.

    Adds the columns bytes, operations, limit (seconds) and binds. Models without facts are left out. All tokens are
    assumed to have logits.
    """
    rows = []
    for row in forwards.to_dict("records"):
        if model := facts.get(row["model"]):
            needed = cost(model, int(row["width"]), row["context"])
            least, binds = limit(needed, ceilings)
            sizes = {"bytes": float(needed.bytes), "operations": float(needed.operations)}
            rows.append(row | sizes | {"limit": least, "binds": binds})
    return pd.DataFrame(rows)


def of_manifest(run: StoredRun) -> tuple[Ceilings | None, dict[str, dict[str, Any]]]:
    """The ceilings in a run's manifest, if any, and its models' `facts` by role, where known."""
    ceilings = run.manifest.get("ceilings")
    models = run.manifest["models"] or {}
    facts = {role: model["forward"] for role, model in models.items() if model.get("forward")}
    return read_ceilings(ceilings) if ceilings else None, facts


def other_draft(spec: MethodSpec) -> bool:
    """True if the method drafts with another model than the pair's draft, or with several."""
    values = {"drafter": "draft", "output": "full"} | spec.values
    return spec.method in OTHER_DRAFTS or values["drafter"] not in NO_OTHERS or values["output"] != "full"


def least_seconds(run: StoredRun, counts: pd.DataFrame, prompt_tokens: pd.Series) -> pd.DataFrame:
    """For each sample (rows of `metrics.per_document`): `least` seconds of its decoding's forwards, and `unlimited`.

    The run's manifest has the machine's ceilings.

    Every forward must read its model's weights, and the cache at the mean context of the text, at the bandwidth of an
    array of that size. If that is not known, `least` is NaN and `unlimited` says why.
    """
    ceilings, facts = of_manifest(run)
    assert ceilings
    forwards = {"target": counts.F, "draft": counts.G + counts.B} | _further(run, counts)
    others = [spec.name for spec in run.plan.methods if other_draft(spec)]
    has_other_draft = counts.index.get_level_values("method").isin(others)
    why = pd.Series("", counts.index, dtype=object)
    why[has_other_draft & (counts.G > 0)] = "other models than the pair's draft made drafts"
    why[(why == "") & (counts.arbitrator > 0)] = "the arbitrator is no model of the pair"
    for role, count in forwards.items():
        if role not in facts:
            why[(why == "") & (count > 0)] = f"the run does not tell what a forward of its {role} reads"
    least = pd.Series(0.0, counts.index).mask(why != "")
    context = prompt_tokens.reindex(counts.index).astype(float) + counts.C / 2
    for role in [role for role in forwards if role in facts]:
        moved = cost(facts[role], 1, context.to_numpy()).bytes
        least += forwards[role] * moved / ceilings.bandwidth(moved)
    why[(why == "") & least.isna()] = "the records do not tell the forwards or the prompts' lengths"
    return pd.DataFrame({"least": least, "unlimited": why})


def _further(run: StoredRun, counts: pd.DataFrame) -> dict[str, pd.Series]:
    """Forwards of members other than target and draft, by role, for the samples in `counts`."""
    roles = [role for role in run.plan.pair.collaboration if role not in ("target", "draft")]
    if not roles:
        return {}
    rows = run.rounds().to_table([*metrics.SAMPLE, "warmup", "round", "member_forwards"]).to_pandas()
    rows = rows[~rows.warmup & (rows["round"] > 0)]
    lists = [[0] * len(roles) if each is None else list(each) for each in rows.member_forwards]
    index = pd.MultiIndex.from_frame(rows[metrics.SAMPLE])
    table = pd.DataFrame(np.array(lists).reshape(-1, len(roles)), columns=roles, index=index)
    sums = table.groupby(level=metrics.SAMPLE)
    return {role: sums[role].sum().reindex(counts.index, fill_value=0) for role in roles}


def recorded(run: StoredRun) -> pd.DataFrame:
    """Median seconds of a run's forwards by width, as rows for `table`, at the mean context of its texts.

    The forwards are those of vanilla, where the target reads one token, and of rounds in which the draft read one token
    for each token it drafted, after which the target read all of them and the token before.
    """
    from specbench.analysis.drafts import OVERLAPPING
    from specbench.analysis.widths import FEWEST

    samples = metrics.timed_samples(run.samples(["warmup", "finish", "prompt_tokens", "tokens"]))
    samples = samples.dropna(subset=["prompt_tokens", "tokens"])
    columns = ["method", "warmup", "round", "drafted", "target_forwards", "draft_forwards"]
    rows = run.rounds().to_table([*columns, "target_seconds", "draft_seconds"]).to_pandas()
    rows = rows[~rows.warmup & (rows["round"] > 0) & (rows.target_forwards == 1)]
    plain = {spec.name for spec in run.plan.methods if spec.method == "vanilla"}
    drafting = {spec.name for spec in run.plan.methods if not other_draft(spec) and spec.method not in OVERLAPPING}
    drafted = (rows.drafted > 0) & (rows.draft_forwards == rows.drafted) & rows.method.isin(drafting)
    rows = rows[rows.method.isin(plain) | drafted]
    if rows.empty or samples.empty:
        return pd.DataFrame()
    context = round(float((samples.prompt_tokens + samples.tokens.map(len) / 2).mean()))
    common = {"runtime": runtime_of(run.manifest), "context": context}
    forwards = [
        {"model": "target", **common, "width": int(drafted) + 1, "median": float(same.target_seconds.median())}
        for drafted, same in rows.groupby("drafted")
        if len(same) >= FEWEST
    ]
    rows = rows[rows.drafted > 0]
    if len(rows):
        seconds = float((rows.draft_seconds / rows.draft_forwards).median())
        forwards.append({"model": "draft", **common, "width": 1, "median": seconds})
    return pd.DataFrame(forwards)
