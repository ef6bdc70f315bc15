"""`specbench simulate`: how many rounds and seconds other draft lengths would take, from one run's records."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench import config
from specbench.analysis import forward_times
from specbench.analysis.forward_times import Times
from specbench.analysis.metrics import of_method, timed_samples
from specbench.analysis.replay import Replayed, Rule, Text, Unknown, replay, texts_of, unknown
from specbench.config import MethodSpec, UserError
from specbench.config import Setting as Value
from specbench.methods import settings_of
from specbench.results.stored import StoredRun

ORACLE = "oracle"
BY_THRESHOLD = ("specdecpp", "confidence", "cumulative", "entropy")  # length methods that stop at a threshold
GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
NATS = (0.5, 1.0, 1.5, 2.0, 3.0)
TEXT = ["repeat", "task", "doc_id"]
TIMED = ["round", "drafted", "draft_forwards", "target_seconds", "draft_seconds", "seconds"]
ALL = "all tasks"


@dataclass(frozen=True)
class Setting:
    """A draft length or a threshold to try."""

    name: str  # gamma=4, threshold=0.7
    rule: Rule
    measured: str | None  # the method of the run that has exactly this setting


@dataclass(frozen=True)
class Simulation:
    """The `table` has a row for each setting and task, and for all tasks together."""

    method: str
    sampling: str
    times: Times
    alpha: float
    untested: float  # the share of positions where no draft was tested
    missing: Unknown
    rescued: int
    texts: int
    table: pd.DataFrame


def simulate(
    run: StoredRun,
    method: str | None = None,
    given: str | None = None,
    gammas: Sequence[int] = (),
    thresholds: Sequence[float] = (),
    shortest: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Simulation:
    """Replay one method of a run under other draft lengths.

    Without `gammas` and `thresholds`, the default ones that the records allow are used. `given` names forward times as
    `forward_times.from_option` reads them; without it they come from the records. `advance` is called after each
    setting. Raises UserError for records that cannot be replayed and for settings that make no sense.
    """
    spec = drafting_method(run, method)
    chosen = settings(run, spec, gammas, thresholds, shortest)
    columns = [*TEXT, "method", "warmup", "finish", "tokens", "prompt_tokens", "decode_seconds"]
    samples = timed_samples(run.samples(columns))
    finish, eos = endings(samples, spec.name)
    check_order(run, spec.name)
    texts = [text for text in texts_of(recorded_rounds(run, spec.name), finish, eos) if text.agree]
    tested = [x for text in texts for x in text.agree if x == x]
    if not tested:
        raise UserError(f"{spec.name} has no tested drafts in {run.folder}; choose another --method")
    missing = unknown(texts)
    times = forward_times.from_option(given, run.manifest["models"]) if given else recorded_times(run, [spec.name])
    alpha = sum(tested) / len(tested)
    measured = pd.DataFrame() if given else _measured(samples)  # times of another machine compare with nothing
    rows: list[dict[str, Any]] = []
    for setting in chosen:
        replays = [replay(text, setting.rule, missing) for text in texts]
        rows += _table(setting, texts, replays, times, measured)
        advance(1)
    positions = sum(len(text.agree) for text in texts)
    rescued = pc.sum(_decoding(run, spec.name, ["rescued"]).column("rescued")).as_py()
    untested = 1 - len(tested) / positions
    table = mark_best(pd.DataFrame(rows))
    return Simulation(spec.name, run.sampling, times, alpha, untested, missing, int(rescued or 0), len(texts), table)


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
    model_drafts = modelled - trees
    candidates = [name] if name else [spec for spec in by_name if spec in model_drafts]
    for candidate in candidates:
        if candidate in model_drafts:
            return by_name[candidate]
        if candidate in trees:
            raise UserError(f"{candidate} drafts trees, which cannot be replayed; choose another --method")
        if candidate in drafting:
            raise UserError(f"{candidate} drafts without a model, from what it has read; choose another --method")
        raise UserError(f"{candidate} drafted nothing in {run.folder}; choose another --method")
    raise UserError(f"{run.folder} has no drafts of one chain to replay; `specbench run --method sps` makes some")


def check_order(run: StoredRun, method: str) -> None:
    """Raise UserError if the rounds of a method are not whole, in their order: only other tools' records are such."""
    files = (run.manifest.get("imported") or {}).get("files", [])
    lacking = [name for name in ("drafted", "accepted", "committed") if _decoding(run, method, [name])[name].null_count]
    if lacking or any(file["method"] == method and not file.get("ordered", True) for file in files):
        raise UserError(
            f"{method}: the imported file does not tell each round's {lacking[0] if lacking else 'place in its text'}; "
            "have the server record every step (vLLM: --per-request-spec-decode-metrics detailed), and import that"
        )


def branches(parents: pa.ListArray) -> NDArray[np.bool_]:
    """Which drafts are trees with branches [rounds]; a draft without parents is a chain, and so is a line of them."""
    lengths = pc.list_value_length(parents).fill_null(0).to_numpy()
    position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    branching = parents.flatten().to_numpy() != position - 1
    rows = np.repeat(np.arange(len(lengths)), lengths)[branching]
    return np.isin(np.arange(len(lengths)), rows)


def policy(run: StoredRun, spec: MethodSpec) -> MethodSpec | None:
    """The length method that made a method's drafts, if it stops at a threshold; else None.

    Raises UserError for the oracle, whose drafts end where the next token would be rejected.
    """
    length = run.length_policy(spec)
    if length is not None and length.method == ORACLE:
        raise UserError(f"{spec.name} never tested a token that would be rejected; choose another --method")
    if length is None or length.method not in BY_THRESHOLD:
        return None
    if length is spec:
        return spec
    values = settings_of(spec, run.folder)
    bounds = {"longest": values["gamma"], "stop_at_eos": values["stop_at_eos"] or length.values["stop_at_eos"]}
    return config.override(length, {key: Value(value=value, source=spec.name) for key, value in bounds.items()})


def settings(
    run: StoredRun, spec: MethodSpec, gammas: Sequence[int], thresholds: Sequence[float], shortest: int | None
) -> list[Setting]:
    """The settings to try. Raises UserError for impossible values, and for thresholds without recorded predictions."""
    length = policy(run, spec)
    if bad := [gamma for gamma in gammas if gamma < 1]:
        raise UserError(f"--gamma {bad[0]}: a draft has at least 1 token")
    entropy = length is not None and length.method == "entropy"
    if bad_threshold := [t for t in thresholds if not (t > 0 and (t < 1 or entropy))]:
        bounds = "above 0 nats" if entropy else "between 0 and 1"
        raise UserError(f"--threshold {bad_threshold[0]:g}: a threshold lies {bounds}")
    predicted = length is not None and _predicted(run, spec.name)
    if thresholds and not predicted:
        raise UserError(
            f"the drafts of {spec.name} have no predictions; a run with them: specbench run --method specdecpp "
            "--set specdecpp.shortest=20 --set specdecpp.longest=20"
        )
    if not gammas and not thresholds:
        gammas = GAMMAS
        thresholds = (NATS if entropy else THRESHOLDS) if predicted else ()
    chosen = [_gamma_setting(run, spec, gamma) for gamma in gammas]
    if length is not None:
        chosen += [_threshold_setting(run, length, threshold, shortest) for threshold in thresholds]
    return chosen


def _gamma_setting(run: StoredRun, spec: MethodSpec, gamma: int) -> Setting:
    base = spec if "gamma" in spec.values else config.load_method("sps")
    values = {**base.values, "gamma": gamma} | ({"length": "fixed"} if "length" in base.values else {})
    rule = Rule("fixed", gamma, stop_at_eos=bool(values.get("stop_at_eos", False)))
    return Setting(f"gamma={gamma}", rule, _counterpart(run, base.method, values))


def _threshold_setting(run: StoredRun, length: MethodSpec, threshold: float, shortest: int | None) -> Setting:
    values = settings_of(length, run.folder)
    # A run at a fixed length was recorded to be replayed.
    if shortest is None and values["shortest"] == values["longest"]:
        shortest = config.load_method(length.method).values["shortest"]
    values |= {"threshold": threshold, "shortest": shortest or values["shortest"]}
    if values["shortest"] > values["longest"]:
        raise UserError(f"--shortest {values['shortest']}: these drafts have at most {values['longest']} tokens")
    rule = Rule(length.method, values["longest"], values["shortest"], threshold, bool(values["stop_at_eos"]))
    return Setting(f"threshold={threshold:g}", rule, _counterpart(run, length.method, values))


def _counterpart(run: StoredRun, method: str, values: dict[str, Any]) -> str | None:
    """The method of the run with exactly these settings; settings that its version did not have count as equal."""
    for spec in run.plan.methods:
        if spec.method == method and all(spec.values.get(key, value) == value for key, value in values.items()):
            return spec.name
    return None


def _decoding(run: StoredRun, method: str, columns: list[str]) -> Any:
    return run.rounds().to_table(columns=columns, filter=of_method(method) & (pc.field("round") > 0))


def recorded_rounds(run: StoredRun, method: str) -> Iterator[dict[str, Any]]:
    """A method's rounds, text by text, including prefills."""
    columns = [*TEXT, "round", "drafted", "accepted", "committed", "truncated"]
    columns += ["draft_tokens", "predictions", "confidences"]
    for batch in run.rounds().to_batches(columns=columns, filter=of_method(method)):
        yield from batch.to_pylist()


def _predicted(run: StoredRun, method: str) -> bool:
    predictions = _decoding(run, method, ["predictions"]).column("predictions")
    return bool(predictions.null_count < len(predictions))


def recorded_times(run: StoredRun, methods: Sequence[str]) -> Times:
    """What the rounds of some methods cost, from their records and those of vanilla decoding in the same run."""
    plain = [spec.name for spec in run.plan.methods if spec.method == "vanilla"]
    wanted = pc.field("method").isin([*methods, *plain]) & ~pc.field("warmup")
    rounds = run.rounds().to_table(columns=[*TEXT, "method", *TIMED], filter=wanted).to_pandas()
    samples = run.samples([*TEXT, "method", "warmup", "prompt_tokens"])
    widths = samples[~samples.warmup].rename(columns={"prompt_tokens": "width"}).drop(columns="warmup")
    mine, decoding = rounds.method.isin(methods), rounds["round"] > 0
    prefills = rounds[mine & ~decoding].merge(widths, on=[*TEXT, "method"]).dropna(subset=["width"])
    return forward_times.from_records(rounds[mine & decoding], prefills, rounds[rounds.method.isin(plain) & decoding])


def _measured(samples: pd.DataFrame) -> pd.DataFrame:
    """Decode seconds of every timed sample, and its tokens after the prefill's, indexed by method and text."""
    timed = samples.assign(size=samples.tokens.map(len) - 1).dropna(subset=["decode_seconds"])
    return timed.set_index(["method", *TEXT])[["decode_seconds", "size"]]


def _table(
    setting: Setting,
    texts: Sequence[Text],
    replays: Sequence[Replayed],
    times: Times,
    measured: pd.DataFrame,
) -> Iterator[dict[str, Any]]:
    """A row for all tasks together, then one for each task if there are several."""
    frame = pd.DataFrame([vars(replayed) for replayed in replays]).drop(columns="lengths")
    frame[TEXT] = [text.key for text in texts]
    frame[["stood", "tested"]] = [(text.agree.count(1.0), sum(x == x for x in text.agree)) for text in texts]
    frame["seconds"] = [sum(n * times.round(k) for k, n in replayed.lengths.items()) for replayed in replays]
    if setting.measured and len(measured):
        times_of_method = measured.loc[[setting.measured]].droplevel("method")
        frame = frame.join(times_of_method, on=TEXT)
    tasks = list(dict.fromkeys(frame.task))
    blocks = [(task, frame[frame.task == task]) for task in tasks]
    for task, block in [(ALL, frame), *(blocks if len(tasks) > 1 else [])]:
        yield {"task": task, "setting": setting.name} | _row(setting, block, times)


def _row(setting: Setting, block: pd.DataFrame, times: Times) -> dict[str, Any]:
    total = block[["tokens", "rounds", "drafted", "accepted", "guessed", "seconds"]].sum()
    alpha = block.stood.sum() / block.tested.sum() if block.tested.sum() else math.nan
    rule = setting.rule
    theory = iid_speedup(alpha, rule.longest, times.cost_ratio) if rule.kind == "fixed" else None
    row = {
        "tau": total.tokens / total.rounds,
        "acceptance_rate": total.accepted / total.drafted,
        "discard_rate": (total.drafted - total.accepted) / total.tokens,
        "verification_rate": total.rounds / total.tokens,
        "tokens_per_s": total.tokens / total.seconds,
        "speedup": times.token * total.tokens / total.seconds,
        "theory_speedup": theory,
        "guessed": total.guessed / total.rounds,
        "measured": setting.measured,
        "measured_tokens_per_s": None,
        "time_error": None,
    }
    if "decode_seconds" in block and block.decode_seconds.notna().any():
        both = block.dropna(subset=["decode_seconds"])
        both = both[(both["size"] > 0) & (both.decode_seconds > 0)]
        both = both.assign(predicted=both.seconds / both.tokens, real=both.decode_seconds / both["size"])
        by_doc = both.groupby(["task", "doc_id"])[["predicted", "real"]].median()
        row["measured_tokens_per_s"] = both["size"].sum() / both.decode_seconds.sum()
        row["time_error"] = float((by_doc.predicted / by_doc.real - 1).abs().median())
    return row


def iid_speedup(alpha: float, gamma: int, c: float) -> float:
    """The speedup if each draft token is accepted with probability α, independently (arXiv 2211.17192, Theorem 3.8)."""
    expected = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return float(expected / (gamma * c + 1))


def mark_best(table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns `best` and `theory_best`, which mark the fastest fixed length of each task."""
    fixed = table.theory_speedup.notna()
    best = {}
    for name, column in (("best", "speedup"), ("theory_best", "theory_speedup")):
        values = table[column].where(fixed).astype(float)
        best[name] = fixed & (values == values.groupby(table.task).transform("max"))
    return table.assign(**best)
