"""Which recorded drafts can be replayed, their rounds and texts, and what they cost."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.analysis import forward_times
from specbench.analysis.forward_times import Times
from specbench.analysis.metrics import of_method
from specbench.analysis.replay import ReplayedText, texts_of
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun

# Methods whose target verifies tokens while the draft goes on, so that a round's forwards are not those of its tokens.
OVERLAPPING = ("mirror", "pearl")
# Why the rounds of some methods are not replayed.
NOT_REPLAYED = {name: "drafts while the target verifies: `specbench analyze overlap` has it" for name in OVERLAPPING}
NOT_REPLAYED |= dict.fromkeys(("fused", "routed"), "drafts with several models, and a replay knows the times of one")
TEXT = ["repeat", "task", "doc_id"]
TIMED = ["round", "committed", "drafted", "draft_forwards", "target_seconds", "draft_seconds", "seconds"]
TIMED += ["first_draft_seconds"]


def replayable(run: StoredRun, method: str, samples: pd.DataFrame) -> list[ReplayedText]:
    """A method's texts with a token after the prefill's; `samples` are the run's. Raises UserError as `check_order`."""
    finish, eos = endings(samples, method)
    check_order(run, method)
    return [text for text in texts_of(recorded_rounds(run, method), finish, eos) if text.agree]


def endings(samples: pd.DataFrame, method: str) -> tuple[dict[tuple[int, str, int], str], set[int]]:
    """How each text of a method ended, by repeat, task and document; and the end tokens of all `samples`."""
    mine = samples[samples.method == method]
    finish = {(row.repeat, row.task, row.doc_id): row.finish for row in mine.itertuples()}
    ended = samples.tokens[samples.finish == "eos"].dropna()  # other tools may not tell their tokens
    return finish, {int(tokens[-1]) for tokens in ended if len(tokens)}


def drafting_method(run: StoredRun, name: str | None) -> MethodSpec:
    """The method called `name`, or the run's first that drafted chains. Raises UserError if it cannot be replayed."""
    by_name = {spec.name: spec for spec in run.plan.methods}
    if name is not None and name not in by_name:
        raise UserError(f"{run.folder} has no method {name!r}; it has {', '.join(by_name)}")
    ensembles = [spec.name for spec in by_name.values() if spec.baseline == "ensemble"]
    if name in ensembles or len(ensembles) == len(by_name):
        raise UserError(
            f"{run.folder}: {name or ensembles[0]} decodes with several models at once and cannot be replayed; "
            "`specbench analyze collaboration` predicts its speed"
        )
    by_name = {key: spec for key, spec in by_name.items() if key not in ensembles}
    trees, modelled, drafting = set(), set(), set()
    columns = ["method", "parents", "draft_forwards"]
    for batch in run.rounds().to_batches(columns=columns, filter=pc.field("drafted") > 0):
        names = batch.column("method").to_numpy(zero_copy_only=False)
        # Other tools' records do not count draft forwards; that there are drafts is all that they tell.
        by_model = pc.greater(batch.column("draft_forwards"), 0).fill_null(True)
        drafting |= {*names}
        trees |= {*names[branches(batch.column("parents"))]}
        modelled |= {*names[by_model.to_numpy(zero_copy_only=False)]}
    others = {name: NOT_REPLAYED[spec.method] for name, spec in by_name.items() if spec.method in NOT_REPLAYED}
    model_drafts = modelled - trees - {*others}
    candidates = [name] if name else [spec for spec in by_name if spec in model_drafts]
    for candidate in candidates:
        if candidate in model_drafts:
            return by_name[candidate]
        if candidate in others:
            raise UserError(f"{candidate} {others[candidate]}; choose another --method")
        if candidate in trees:
            raise UserError(f"{candidate} drafts trees, which cannot be replayed; choose another --method")
        if candidate in drafting:
            raise UserError(f"{candidate} drafts without a model, from what it has read; choose another --method")
        raise UserError(f"{candidate} drafted nothing in {run.folder}; choose another --method")
    raise UserError(f"{run.folder} has no drafts of one chain to replay; `specbench run --method sps` makes some")


def check_order(run: StoredRun, method: str) -> None:
    """Raise UserError if the rounds of a method are not whole, in their order: only other tools' records are such."""
    files = (run.manifest.get("imported") or {}).get("files", [])
    lacking = [name for name in ("drafted", "accepted", "committed") if decoding(run, method, [name])[name].null_count]
    if lacking or any(file["method"] == method and not file.get("ordered", True) for file in files):
        raise UserError(
            f"{method}: the imported file does not record each round's {lacking[0] if lacking else 'place in its text'}"
            "; have the server record every step (vLLM: --per-request-spec-decode-metrics detailed), and import that"
        )


def branches(parents: pa.ListArray) -> NDArray[np.bool_]:
    """Which drafts are trees with branches [rounds]; a draft without parents is a chain, and so is a line of them."""
    lengths = pc.list_value_length(parents).fill_null(0).to_numpy()
    position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    branching = parents.flatten().to_numpy() != position - 1
    rows = np.repeat(np.arange(len(lengths)), lengths)[branching]
    return np.isin(np.arange(len(lengths)), rows)


def decoding(run: StoredRun, method: str, columns: list[str]) -> Any:
    return run.rounds().to_table(columns=columns, filter=of_method(method) & (pc.field("round") > 0))


def recorded_rounds(run: StoredRun, method: str) -> Iterator[dict[str, Any]]:
    """A method's rounds, text by text, including prefills."""
    columns = [*TEXT, "round", "drafted", "accepted", "committed", "truncated"]
    columns += ["draft_tokens", "parents", "predictions", "confidences"]
    for batch in run.rounds().to_batches(columns=columns, filter=of_method(method)):
        yield from batch.to_pylist()


def recorded_times(run: StoredRun, methods: Sequence[str], by_context: bool = False) -> Times:
    """What the rounds of some methods cost, from their records and those of vanilla decoding in the same run."""
    plain = [spec.name for spec in run.plan.methods if spec.method == "vanilla"]
    wanted = pc.field("method").isin([*methods, *plain]) & ~pc.field("warmup")
    rounds = run.rounds().to_table(columns=[*TEXT, "method", *TIMED], filter=wanted).to_pandas()
    samples = run.samples([*TEXT, "method", "warmup", "prompt_tokens"])
    widths = samples[~samples.warmup].rename(columns={"prompt_tokens": "width"}).drop(columns="warmup")
    rounds = rounds.merge(widths, how="left", on=[*TEXT, "method"])
    rounds["context"] = rounds.width + tokens_before(rounds)
    mine, decoding = rounds.method.isin(methods), rounds["round"] > 0
    prefills = rounds[mine & ~decoding].dropna(subset=["width"])
    vanilla = rounds[rounds.method.isin(plain) & decoding]
    times = forward_times.from_records(rounds[mine & decoding], prefills, vanilla)
    return forward_times.with_context(times, rounds[mine & decoding], vanilla) if by_context else times


def tokens_before(rounds: pd.DataFrame) -> "pd.Series[float]":
    """The tokens after the prefill's that a text has before each round."""
    after = rounds.committed.where(rounds["round"] > 0, 0)
    ordered = rounds.assign(after=after).sort_values("round", kind="stable")
    return (ordered.groupby([*TEXT, "method"]).after.cumsum() - ordered.after).reindex(rounds.index)
