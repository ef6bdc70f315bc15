"""`specbench serving`: the cost of serving the methods of a run, in memory and in time to the first token.

CoSpec (arXiv 2605.24793, Table 11). Times and counts come from the run's records. For memory, each method decodes the
run's longest text again, alone, and the tensors that it holds then are added up, each once.
"""

import functools
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import torch
from scipy.stats import quantile_test
from torch import Tensor
from transformers import Cache, PreTrainedTokenizerBase

from specbench.analysis.metrics import interval_columns, timed_samples
from specbench.base.stats import Interval
from specbench.config import MethodSpec, UserError
from specbench.engine.clock import peak_memory
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Sampling
from specbench.measure import prepare
from specbench.measure.prompts import encode, stored_requests
from specbench.methods.collaborative.cospec_arbitrator import find_arbitrator, with_backbone
from specbench.results.stored import StoredRun

DOCUMENT = ["task", "doc_id"]
COLUMNS = [*DOCUMENT, "repeat", "method", "warmup", "finish", "prefill_seconds", "decode_seconds", "prompt_tokens"]
COLUMNS += ["tokens", "seed"]
PERCENTILES = {50: 6, 99: 100}  # and the documents that each needs: of fewer, the 99th would be the largest
LEAVES = (str, bytes, int, float, complex, type, ModuleType, torch.Generator, PreTrainedTokenizerBase, Pair)


@dataclass(frozen=True)
class Serving:
    """Figures of one run; the table has a row for each method, with the columns listed at `serving`."""

    run: str
    pair: str
    sampling: str
    temperature: float
    device: str
    tokens: int  # of the text that memory is measured on, including its prompt
    table: pd.DataFrame


def serving(run: StoredRun, advance: Callable[[int], None]) -> Serving:
    """Measure every method of a run. Raises UserError if it has no texts of vanilla, or its models have changed since.

    Columns: method; bytes as target, draft, own (adapters, heads and whatever else the method holds), cache, total and,
    on a GPU, peak (of the allocator, while decoding); first_token, the ratio of its prefill time to vanilla's (_low,
    _high: 95 %), and the number of documents it is from; ttft_p50, ttft_p99, tpot_p50 and tpot_p99, see `latencies`;
    arbitrator_forwards per round; rollouts (per prompt) and prompts (per update) of the reinforcement learning of its
    arbitrator.
    """
    samples = timed_samples(run.samples(COLUMNS))
    base = next((spec.name for spec in run.plan.methods if spec.method == "vanilla"), None)
    if base is None or not (samples.method == base).any():
        raise UserError(f"{run.folder} has no texts of vanilla; run it again with --baseline vanilla")
    lengths = (samples.prompt_tokens + samples.tokens.str.len())[samples.method == base]
    longest = samples.loc[lengths.idxmax()]
    forwards = forwards_a_round(run)
    rows: list[dict[str, Any]] = []
    for spec in run.plan.methods:
        row: dict[str, Any] = {"method": spec.name} | footprint(run, spec, longest)
        ratio, documents = first_token(samples, base, spec.name)
        row |= interval_columns("first_token", ratio)
        row |= latencies(samples[samples.method == spec.name])
        rows.append(row | {"documents": documents, "arbitrator_forwards": forwards.get(spec.name, math.nan)})
        advance(1)
    plan, device = run.plan, run.manifest["environment"]["device"]
    return Serving(
        run.name, plan.pair.name, run.sampling, plan.temperature, device, int(lengths.max()), pd.DataFrame(rows)
    )


def footprint(run: StoredRun, spec: MethodSpec, longest: Mapping[Any, Any]) -> dict[str, Any]:
    """Decode the run's longest document by one method, with nothing else in memory; return bytes by part.

    The models are loaded again, and those that the method does not use are freed.
    """
    pair = prepare.load_models_of(run, "eager")  # other runtimes hold memory that torch does not see
    pair.need_one_tokenizer("it cannot read the texts token by token")
    facts = training(spec, pair)
    weights = {role: set(tensor_memory(pair.models[role])[0]) for role in ("target", "draft") if role in pair.models}
    requests = stored_requests(run, pair)
    request = next(each for each in requests if (each.task, each.doc_id) == (longest["task"], longest["doc_id"]))
    prompt = encode(pair, request.prompt)
    method = prepare.build(spec, pair, Unwatched())
    kept = tensor_memory(method)[0].keys()  # caches may reuse the addresses of freed weights
    weights = {role: addresses & kept for role, addresses in weights.items()}
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
    for _ in decode_text(method, prompt, Sampling(**plan.sampling.model_dump()), rng, ending):
        pass
    peak = float(peak_memory(device)) if device.type == "cuda" else math.nan
    storages, cached = tensor_memory(method)
    facts |= {role: sum(storages[key] for key in addresses & storages.keys()) for role, addresses in weights.items()}
    facts["cache"] = sum(storages[key] for key in cached)
    rest = storages.keys() - cached - set().union(*weights.values())
    facts["own"] = sum(storages[key] for key in rest)
    return facts | {"total": sum(storages.values()), "peak": peak}


def tensor_memory(root: object) -> tuple[dict[int, int], set[int]]:
    """Memory of all tensors within an object, however deep: bytes by address, and the addresses of key-value caches."""
    sizes: dict[int, int] = {}
    cached: set[int] = set()
    seen: set[int] = set()
    kept: list[object] = []  # keeps temporary objects alive, so that no id is used twice
    waiting: list[tuple[object, bool]] = [(root, False)]
    while waiting:
        item, in_cache = waiting.pop()
        if isinstance(item, LEAVES) or item is None or id(item) in seen:
            continue
        seen.add(id(item))
        kept.append(item)
        if isinstance(item, Tensor):
            storage = item.untyped_storage()
            if storage.nbytes():
                sizes[storage.data_ptr()] = storage.nbytes()
                cached |= {storage.data_ptr()} if in_cache else set()
            continue
        inside = in_cache or isinstance(item, Cache)
        waiting += [(part, inside) for part in _parts(item)]
    return sizes, cached


def _parts(item: object) -> Iterator[object]:
    """What an object refers to: elements, attributes, and the closures of functions."""
    if isinstance(item, Mapping):
        yield from item.values()
    elif isinstance(item, list | tuple | set | frozenset):
        yield from item
    elif isinstance(item, FunctionType):
        yield from (cell.cell_contents for cell in item.__closure__ or ())
    elif isinstance(item, MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    yield from getattr(item, "__dict__", {}).values()
    for kind in type(item).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(item, name, None)


def training(spec: MethodSpec, pair: Pair) -> dict[str, float]:
    """Rollouts per prompt and prompts per update of the arbitrator's reinforcement learning; NaN without any."""
    trained: Mapping[str, Any] = {}
    if spec.values.get("arbiter") == "trained":
        backbone = with_backbone(pair, str(spec.values["backbone"]))
        trained = find_arbitrator(str(spec.values["arbitrator"]), backbone)[1].trained
    reinforced = trained if trained.get("stage") == "rl" else {}
    return {"rollouts": float(reinforced.get("group", math.nan)), "prompts": float(reinforced.get("prompts", math.nan))}


def first_token(samples: pd.DataFrame, base: str, name: str) -> tuple[Interval, int]:
    """The median over documents of a method's prefill time over that of `base`, and the number of documents.

    Repeats of a document are averaged. The 95 % interval is exact for a median, from the binomial law, and NaN if there
    are too few documents.
    """
    times = samples.pivot_table(index=DOCUMENT, columns="method", values="prefill_seconds", aggfunc="mean")
    ratios = (times[name] / times[base]).dropna() if name in times else pd.Series(dtype=float)
    if ratios.empty:
        return Interval(math.nan, math.nan, math.nan), 0
    if name == base:
        return Interval(1.0, math.nan, math.nan), len(ratios)
    bounds = quantile_test(ratios.to_numpy(), q=float(ratios.median()), p=0.5).confidence_interval(0.95)
    return Interval(float(ratios.median()), float(bounds.low), float(bounds.high)), len(ratios)


def latencies(samples: pd.DataFrame) -> dict[str, float]:
    """Percentiles over a method's texts: seconds to the first token (ttft), and for each one after it (tpot).

    Each text was decoded alone, without a queue. NaN for too few documents, and where the times are not known.
    """
    after = (samples.tokens.str.len() - 1).astype(float)
    times = {"ttft": samples.prefill_seconds, "tpot": samples.decode_seconds / after.where(after > 0)}
    row = {}
    for name, seconds in times.items():
        known = seconds.dropna()
        documents = len(samples.loc[known.index, DOCUMENT].drop_duplicates())
        for percent, least in PERCENTILES.items():
            row[f"{name}_p{percent}"] = float(known.quantile(percent / 100)) if documents >= least else math.nan
    return row


def forwards_a_round(run: StoredRun) -> dict[str, float]:
    """Forwards of the arbitrator per round after the prefill, by method; no entry for methods without one."""
    rows = run.rounds().to_table(
        columns=["method", "arbitrator_forwards"], filter=~pc.field("warmup") & (pc.field("round") > 0)
    )
    means = rows.to_pandas().groupby("method").arbitrator_forwards.mean()
    return {str(name): float(mean) for name, mean in means.items() if mean > 0}
