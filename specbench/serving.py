"""`specbench serving`: what it costs to serve the methods of a run: memory, and time to the first token.

CoSpec (arXiv 2605.24793, Table 11). Times and counts are of the run's records. For memory one text is decoded again,
the run's longest, by each method alone; weights and caches are added up from the tensors that it holds then, each once.
"""

import functools
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import torch
from scipy.stats import quantile_test
from torch import Tensor
from transformers import Cache, PreTrainedTokenizerBase

from specbench import run as engine
from specbench.arbitrator import find_arbitrator, with_backbone
from specbench.config import MethodSpec, UserError
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.session import Unwatched
from specbench.decoding.types import Sampling
from specbench.measure import peak_memory
from specbench.models import Pair
from specbench.multidraft_analysis import same_models
from specbench.stats import Interval
from specbench.stored import StoredRun

DOCUMENT = ["task", "doc_id"]
COLUMNS = [*DOCUMENT, "repeat", "method", "warmup", "finish", "prefill_seconds", "prompt_tokens", "tokens", "seed"]
LEAVES = (str, bytes, int, float, complex, type, ModuleType, torch.Generator, PreTrainedTokenizerBase, Pair)


@dataclass(frozen=True)
class Serving:
    """Figures of one run; the table has a row for each method, with the columns that `serving` tells."""

    run: str
    pair: str
    sampling: str
    temperature: float
    device: str
    tokens: int  # of the text that memory is measured on, its prompt's among them
    table: pd.DataFrame


def serving(run: StoredRun, advance: Callable[[int], None]) -> Serving:
    """Measure every method of a run. Raises UserError for one without vanilla's texts, or whose models are others now.

    Columns: method; in bytes target, draft, own (adapters, heads and what else the method holds), cache, total, and on
    a GPU peak (of the allocator, while decoding); first_token, how many times as long as vanilla's the prefill takes
    (_low, _high: 95 %), and documents, on how many; arbitrator_forwards a round; rollouts (of a prompt) and prompts (of
    an update) in the reinforcement of its arbitrator.
    """
    samples = run.samples(COLUMNS)
    samples = samples[~samples.warmup & (samples.finish != "error")]
    base = next((spec.name for spec in run.plan.methods if spec.method == "vanilla"), None)
    if base is None or not (samples.method == base).any():
        raise UserError(f"{run.folder} has no texts of vanilla; run it anew with --baseline vanilla")
    lengths = (samples.prompt_tokens + samples.tokens.str.len())[samples.method == base]
    longest = samples.loc[lengths.idxmax()]
    asked = forwards_a_round(run)
    rows: list[dict[str, Any]] = []
    for spec in run.plan.methods:
        row: dict[str, Any] = {"method": spec.name} | footprint(run, spec, longest)
        ratio, documents = first_token(samples, base, spec.name)
        row |= {"first_token": ratio.value, "first_token_low": ratio.low, "first_token_high": ratio.high}
        rows.append(row | {"documents": documents, "arbitrator_forwards": asked.get(spec.name, math.nan)})
        advance(1)
    plan, device = run.plan, run.manifest["environment"]["device"]
    return Serving(
        run.name, plan.pair.name, run.sampling, plan.temperature, device, int(lengths.max()), pd.DataFrame(rows)
    )


def footprint(run: StoredRun, spec: MethodSpec, longest: Mapping[Any, Any]) -> dict[str, Any]:
    """Decode the run's longest document by one method, with nothing else in memory; bytes by part.

    The models are loaded anew, and those that the method has no use for are let go.
    """
    pair = engine.load_models(run.plan, "eager")  # other runtimes keep what torch does not tell
    same_models(run, pair)
    told = training(spec, pair)
    owned = {role: set(held(pair.models[role])[0]) for role in ("target", "draft") if role in pair.models}
    requests = engine.load_tasks(run.plan, pair).requests()
    request = next(one for one in requests if (one.task, one.doc_id) == (longest["task"], longest["doc_id"]))
    prompt = engine.encode(pair, request.prompt)
    method = engine.build(spec, pair, Unwatched())
    kept = held(method)[0].keys()  # addresses of weights that are let go may come again, for caches
    owned = {role: own & kept for role, own in owned.items()}
    method.reset(request.task)
    words = pair.detokenizer
    ending = Ending(Limits(request.max_new_tokens, pair.eos_ids, request.until), words)
    device = pair.device
    rng = torch.Generator(device).manual_seed(int(longest["seed"]))
    del pair
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    plan = run.plan
    for _ in until_end(method.rounds(prompt, Sampling(plan.temperature, plan.top_k, plan.top_p), rng), ending):
        pass
    peak = float(peak_memory(device)) if device.type == "cuda" else math.nan
    storages, cached = held(method)
    told |= {role: sum(storages[key] for key in own & storages.keys()) for role, own in owned.items()}
    told["cache"] = sum(storages[key] for key in cached)
    rest = storages.keys() - cached - set().union(*owned.values())
    told["own"] = sum(storages[key] for key in rest)
    return told | {"total": sum(storages.values()), "peak": peak}


def held(root: object) -> tuple[dict[int, int], set[int]]:
    """Memory of all tensors that an object holds, however deep: bytes by address, and which are of key-value caches."""
    found: dict[int, int] = {}
    cached: set[int] = set()
    seen: set[int] = set()
    kept: list[object] = []  # what is made on the way must live on, or its id would come again
    waiting: list[tuple[object, bool]] = [(root, False)]
    while waiting:
        one, in_cache = waiting.pop()
        if isinstance(one, LEAVES) or one is None or id(one) in seen:
            continue
        seen.add(id(one))
        kept.append(one)
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()
                cached |= {storage.data_ptr()} if in_cache else set()
            continue
        inside = in_cache or isinstance(one, Cache)
        waiting += [(part, inside) for part in _parts(one)]
    return found, cached


def _parts(one: object) -> Iterator[object]:
    """What an object refers to: elements, attributes, and what functions have closed over."""
    if isinstance(one, Mapping):
        yield from one.values()
    elif isinstance(one, list | tuple | set | frozenset):
        yield from one
    elif isinstance(one, FunctionType):
        yield from (cell.cell_contents for cell in one.__closure__ or ())
    elif isinstance(one, MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, functools.partial):
        yield from (one.func, one.args, one.keywords)
    yield from getattr(one, "__dict__", {}).values()
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(one, name, None)


def training(spec: MethodSpec, pair: Pair) -> dict[str, float]:
    """Rollouts a prompt and prompts an update of the reinforcement that a method's arbitrator comes from; else NaN."""
    told: Mapping[str, Any] = {}
    if spec.values.get("arbiter") == "trained":
        backbone = with_backbone(pair, str(spec.values["backbone"]))
        told = find_arbitrator(str(spec.values["arbitrator"]), backbone)[1].trained
    known = told if told.get("stage") == "rl" else {}
    return {"rollouts": float(known.get("group", math.nan)), "prompts": float(known.get("prompts", math.nan))}


def first_token(samples: pd.DataFrame, base: str, name: str) -> tuple[Interval, int]:
    """The median over documents of a method's prefill over that of `base`, with a 95 % interval, and of how many.

    Of several repeats a document's mean counts. The interval is the exact one of a median, from the binomial law; NaN
    where there are too few documents.
    """
    times = samples.pivot_table(index=DOCUMENT, columns="method", values="prefill_seconds", aggfunc="mean")
    ratios = (times[name] / times[base]).dropna() if name in times else pd.Series(dtype=float)
    if ratios.empty:
        return Interval(math.nan, math.nan, math.nan), 0
    if name == base:
        return Interval(1.0, math.nan, math.nan), len(ratios)
    bounds = quantile_test(ratios.to_numpy(), q=float(ratios.median()), p=0.5).confidence_interval(0.95)
    return Interval(float(ratios.median()), float(bounds.low), float(bounds.high)), len(ratios)


def forwards_a_round(run: StoredRun) -> dict[str, float]:
    """Forwards of an arbitrator a round behind the prefill, by method; none for methods that have no arbitrator."""
    rows = run.rounds().to_table(
        columns=["method", "arbitrator_forwards"], filter=~ds.field("warmup") & (ds.field("round") > 0)
    )
    means = rows.to_pandas().groupby("method").arbitrator_forwards.mean()
    return {str(name): float(mean) for name, mean in means.items() if mean > 0}
