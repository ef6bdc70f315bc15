"""What a forward must move and compute at least, and how long that takes at a machine's measured ceilings.

The roofline of Williams et al. (2009): a forward lasts at least as long as its bytes take at the memory's bandwidth,
and as its operations take at the speed of a large matrix product.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import nn
from transformers import PreTrainedModel

from specbench import metrics
from specbench.ceilings import Ceilings
from specbench.ceilings import read as read_ceilings
from specbench.config import MethodSpec
from specbench.forward_times import FEWEST
from specbench.stored import StoredRun, runtime_of

# Methods that draft with a model of their own making; the `output` of others names a lighter output layer.
OWN_DRAFTS = ("eagle3", "slimspec", "swift", "vocabtrim")
# Configurations of forwards that do not read every weight, or do not keep keys and values in every layer.
UNTOLD = ("num_experts", "num_local_experts", "n_routed_experts", "num_kv_shared_layers", "kv_lora_rank")


class Cost(NamedTuple):
    """Of a forward; numbers, or arrays of them."""

    bytes: Any
    operations: Any


class Limit(NamedTuple):
    seconds: float
    binds: str  # bytes or operations: which of the two takes so long


def facts(model: PreTrainedModel) -> dict[str, Any]:
    """What decides the cost of a model's forwards, JSON-like; empty for a model of unknown form.

    `weight_bytes` are those that every forward reads: all, but of embeddings that are no output layer as well, which
    give each token a row of `lookup_bytes`. `matrix_weights` multiply every token, `output_weights` those whose
    logits, of `logit_bytes` each row, are wanted. In each of its `layers` a token keeps keys and values,
    `kv_bytes_per_token` in all layers, and asks with heads of `attention_width` in all (H·D). In `window_layers` of
    them it reads the last `window` tokens, itself among them, in the others the whole sequence.
    """
    config = model.config.get_text_config()
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    groups = getattr(config, "num_key_value_heads", None) or heads
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(groups, int)):
        return {}
    if any(getattr(config, name, None) for name in UNTOLD):
        return {}
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kinds, window = getattr(config, "layer_types", None) or (), getattr(config, "sliding_window", None)
    near = (kinds.count("sliding_attention") if kinds else layers) if window else 0
    layer = model.get_output_embeddings()
    output = [] if layer is None else list(layer.parameters())
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    looked_up = [table for table in tables if not any(table is own for own in output)]
    own = {id(one) for one in [*looked_up, *output]}
    inner = [one for one in model.parameters() if id(one) not in own]
    element = model.dtype.itemsize
    return {
        "weight_bytes": sum(one.numel() * one.element_size() for one in [*inner, *output]),
        "lookup_bytes": sum(one.shape[-1] * one.element_size() for one in tables),
        "matrix_weights": sum(one.numel() for one in inner if one.ndim > 1),
        "output_weights": sum(one.numel() for one in output if one.ndim > 1),
        "logit_bytes": output[0].shape[0] * element if output else 0,
        "kv_bytes_per_token": 2 * layers * groups * size * element,
        "layers": layers,
        "attention_width": heads * size,
        "window": window if near else None,
        "window_layers": near,
    }


def cost(told: Mapping[str, Any], width: int, context: Any, rows: int | None = None) -> Cost:
    """Of a forward of a chain of `width` tokens behind `context` cached ones (a number or an array), by its `facts`.

    Bytes: every weight once, the tokens' rows of the embeddings, keys and values of all tokens that are read and of
    those that are added, and the logits of `rows` tokens (None: of all). What stays in a cache between two layers is
    left out. Operations: two for each weight and token, and 4·H·D for each token that another one reads, per layer.
    """
    rows = width if rows is None else rows
    layers, near = told["layers"], told["window_layers"]
    window = told["window"] or math.inf
    read = context + width  # of a layer without a window
    few = np.minimum(read, window + width - 1)
    pairs = width * context + width * (width + 1) // 2  # token i of the chain reads context + i, itself too
    near_pairs = sum(np.minimum(context + i, window) for i in range(1, width + 1)) if near else 0
    per_layer = told["kv_bytes_per_token"] / layers if layers else 0.0
    cache = per_layer * ((layers - near) * read + near * few + layers * width)
    moved = told["weight_bytes"] + width * told["lookup_bytes"] + cache + rows * told["logit_bytes"]
    products = 2 * (width * told["matrix_weights"] + rows * told["output_weights"])
    return Cost(moved, products + 4 * told["attention_width"] * ((layers - near) * pairs + near * near_pairs))


def limit(needed: Cost, ceilings: Ceilings) -> Limit:
    """The least time of a forward that has all caches to itself: the bandwidth is that of an array of its bytes."""
    moving = float(needed.bytes / ceilings.bandwidth(needed.bytes))
    computing = float(needed.operations / ceilings.operations)
    return Limit(moving, "bytes") if moving >= computing else Limit(computing, "operations")


def table(forwards: pd.DataFrame, told: Mapping[str, Mapping[str, Any]], ceilings: Ceilings) -> pd.DataFrame:
    """Measured forwards (model, runtime, context, width and median seconds) beside what they must take by `facts`.

    Adds bytes, operations, limit (seconds) and what binds; models without facts are left out. The logits are of all
    tokens.
    """
    rows = []
    for row in forwards.to_dict("records"):
        if known := told.get(row["model"]):
            needed = cost(known, int(row["width"]), row["context"])
            least, binds = limit(needed, ceilings)
            sizes = {"bytes": float(needed.bytes), "operations": float(needed.operations)}
            rows.append(row | sizes | {"limit": least, "binds": binds})
    return pd.DataFrame(rows)


def of_manifest(run: StoredRun) -> tuple[Ceilings | None, dict[str, dict[str, Any]]]:
    """The ceilings that a run's manifest keeps, and its models' `facts` by role, where it tells them."""
    told = run.manifest.get("ceilings")
    models = run.manifest["models"] or {}
    return read_ceilings(told) if told else None, {
        role: one["forward"] for role, one in models.items() if one.get("forward")
    }


def own_draft(spec: MethodSpec) -> bool:
    """Whether what drafts is another model than the pair's draft."""
    return spec.method in OWN_DRAFTS or spec.values.get("output", "full") != "full"


def least_seconds(run: StoredRun, counts: pd.DataFrame, prompt_tokens: pd.Series) -> pd.DataFrame:
    """For each sample (rows of `metrics.per_document`): `least` seconds of its decoding's forwards, and `unlimited`.

    Every forward must read its model's weights, and the cache at the mean context of the text: this many bytes at the
    bandwidth of an array of their size. Where that is not known, `least` is NaN and `unlimited` says why.
    """
    ceilings, told = of_manifest(run)
    forwards = {"target": counts.F, "draft": counts.G} | _further(run, counts)
    by_name = {spec.name: spec for spec in run.plan.methods}
    methods = counts.index.get_level_values("method")
    why = pd.Series("", counts.index, dtype=object)
    if run.manifest["models"] is None:
        why[:] = "imported records do not tell the models' sizes"
    elif ceilings is None:
        why[:] = "the machine was not measured before the run (specbench profile --ceilings)"
    own = np.array([name in by_name and own_draft(by_name[name]) for name in methods], bool)
    why[(why == "") & own & (counts.G > 0)] = "no model of the pair made the drafts"
    why[(why == "") & (counts.arbitrator > 0)] = "the arbitrator is no model of the pair"
    for role, count in forwards.items():
        if role not in told:
            why[(why == "") & (count > 0)] = f"the run does not tell what a forward of its {role} reads"
    least = pd.Series(0.0, counts.index).mask(why != "")
    if ceilings:
        context = prompt_tokens.reindex(counts.index).astype(float) + counts.C / 2
        for role in [role for role in forwards if role in told]:
            moved = cost(told[role], 1, context.to_numpy()).bytes
            least += forwards[role] * moved / ceilings.bandwidth(moved)
    why[(why == "") & least.isna()] = "the records do not tell the forwards or the prompts' lengths"
    return pd.DataFrame({"least": least, "unlimited": why})


def _further(run: StoredRun, counts: pd.DataFrame) -> dict[str, pd.Series]:
    """Forwards of the members that are neither target nor draft, by role, of the samples in `counts`."""
    roles = [role for role in run.plan.pair.collaboration if role not in ("target", "draft")]
    if not roles:
        return {}
    rows = run.rounds().to_table([*metrics.SAMPLE, "warmup", "round", "member_forwards"]).to_pandas()
    rows = rows[~rows.warmup & (rows["round"] > 0)]
    each = np.array([[0] * len(roles) if one is None else list(one) for one in rows.member_forwards]).reshape(
        -1, len(roles)
    )
    sums = pd.DataFrame(each, columns=roles, index=pd.MultiIndex.from_frame(rows[metrics.SAMPLE])).groupby(
        level=metrics.SAMPLE
    )
    return {role: sums[role].sum().reindex(counts.index, fill_value=0) for role in roles}


def recorded(run: StoredRun) -> pd.DataFrame:
    """Median seconds of a run's forwards by width, as rows for `table`, behind the mean context of its texts.

    They are those of vanilla, where the target reads one token, and of rounds in which a draft model read one token for
    each that it drafted, and then the target all of them behind the last one.
    """
    samples = run.samples(["warmup", "finish", "prompt_tokens", "tokens"])
    samples = samples[~samples.warmup & (samples.finish != "error")].dropna(subset=["prompt_tokens", "tokens"])
    columns = ["method", "warmup", "round", "drafted", "target_forwards", "draft_forwards"]
    rows = run.rounds().to_table([*columns, "target_seconds", "draft_seconds"]).to_pandas()
    rows = rows[~rows.warmup & (rows["round"] > 0) & (rows.target_forwards == 1)]
    plain = {spec.name for spec in run.plan.methods if spec.method == "vanilla"}
    drafting = {spec.name for spec in run.plan.methods if not own_draft(spec)}
    drafted = (rows.drafted > 0) & (rows.draft_forwards == rows.drafted) & rows.method.isin(drafting)
    rows = rows[rows.method.isin(plain) | drafted]
    if rows.empty or samples.empty:
        return pd.DataFrame()
    context = round(float((samples.prompt_tokens + samples.tokens.map(len) / 2).mean()))
    common = {"runtime": runtime_of(run.manifest), "context": context}
    found = [
        {"model": "target", **common, "width": int(drafted) + 1, "median": float(same.target_seconds.median())}
        for drafted, same in rows.groupby("drafted")
        if len(same) >= FEWEST
    ]
    rows = rows[rows.drafted > 0]
    if len(rows):
        seconds = float((rows.draft_seconds / rows.draft_forwards).median())
        found.append({"model": "draft", **common, "width": 1, "median": seconds})
    return pd.DataFrame(found)
