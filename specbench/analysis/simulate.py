"""`specbench simulate`: how many rounds and seconds other draft lengths would take, from one run's records."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from specbench.analysis import forward_times, oracles
from specbench.analysis.drafts import TEXT, decoding, drafting_method, recorded_times, replayable
from specbench.analysis.forward_times import Times
from specbench.analysis.lengths_to_try import ORACLE, Candidate, settings
from specbench.analysis.metrics import timed_samples
from specbench.analysis.replay import Rule, Unknown, replay, unknown
from specbench.analysis.simulated_rows import ALL, Recorded, by_text, counted, fixed_length, mark_best, rows_of
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun

SAMPLED = [*TEXT, "method", "warmup", "finish", "tokens", "prompt_tokens", "prefill_seconds", "decode_seconds"]
LARGEST_ERROR = 0.1  # beyond it a simulation gives no speedup
FEWEST_DRAFTED = 3  # recorded drafts of fewer tokens do not tell what a further forward of the draft takes
SIMULATED, PROJECTED = "simulated", "projected"
OF_BATCHES = ("draft_width_slope", "context_slope", "draft_context_slope")  # times that a batch needs
HIDDEN, UNTOLD = "hidden states", "not told"  # what drafts depend on besides the text


@dataclass(frozen=True)
class Options:
    """What is simulated next to other lengths."""

    batch: int = 1  # texts decoded together
    by_context: bool = False  # forward times grow with the context
    oracle: bool = False  # the best lengths in hindsight
    second: str | None = None  # a second drafter: the method
    second_run: StoredRun | None = None  # and its run; None: the same


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
    source: str = SIMULATED  # SIMULATED from the run's own times, or PROJECTED by others
    reads: str = ""  # what else than the text the drafts depend on, if the draft is known to
    batch: int = 1
    second: str = ""
    error: float = math.nan  # the largest share by which tokens/s of another length were off that this run has measured
    load: float | None = None  # of the machine when the run began, if it had more to do than it has cores


def simulate(
    run: StoredRun,
    method: str | None = None,
    given: str | None = None,
    gammas: Sequence[int] = (),
    thresholds: Sequence[float] = (),
    shortest: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
    options: Options = Options(),
) -> Simulation:
    """Replay one method of a run under other draft lengths.

    Without `gammas` and `thresholds`, the default ones that the records allow are used. `given` names forward times as
    `forward_times.from_option` reads them; without it they come from the records. `advance` is called after each
    setting. Raises UserError for records that cannot be replayed, for settings that make no sense, and for options that
    need times which are not known.
    """
    spec = drafting_method(run, method)
    chosen = settings(run, spec, gammas, thresholds, shortest)
    samples = timed_samples(run.samples(SAMPLED))
    texts = replayable(run, spec.name, samples)
    tested = [x for text in texts for x in text.agree if x == x]
    if not tested:
        raise UserError(f"{spec.name} has no tested drafts in {run.folder}; choose another --method")
    missing = unknown(texts)
    times = times_of(run, spec.name, given, options)
    if options.batch > 1:
        chosen = in_batch(chosen, options, times, asked=bool(gammas or thresholds))
    alpha = sum(tested) / len(tested)
    measured = pd.DataFrame() if given or options.batch > 1 else _measured(samples)
    known = Recorded(texts, *_prompts_and_prefills(samples, spec.name, times, bool(given)), measured)
    frames = {}
    for setting in chosen:
        replays = [replay(text, setting.rule, missing) for text in texts]
        frames[setting] = by_text(setting, known, replays, times, options.batch)
        advance(1)
    rows = [row for setting, frame in frames.items() for row in rows_of(setting, frame, times, options.batch)]
    if options.oracle:
        rows += _oracles(frames, known, missing, times)
    if options.second:
        fixed = [setting for setting in chosen if setting.rule.kind == "fixed"]
        rows += _either(run, spec, options, fixed, known, missing, times, bool(given))
    positions = sum(len(text.agree) for text in texts)
    rescued = pc.sum(decoding(run, spec.name, ["rescued"]).column("rescued")).as_py()
    source = PROJECTED if given or options.batch > 1 else SIMULATED
    table = pd.DataFrame(rows)
    if source == SIMULATED and 0 < times.early_tokens < FEWEST_DRAFTED:
        longer = table.setting.map(fixed_length).astype(float) > times.early_tokens
        table.loc[longer, ["tokens_per_s", "speedup", "speedup_e2e"]] = math.nan
    table = mark_best(table).assign(source=source)
    error = error_of(table, spec.name)
    if error > LARGEST_ERROR:
        table = table.assign(speedup=math.nan, speedup_e2e=math.nan, best=False)
    machine = run.manifest["environment"]
    return Simulation(
        method=spec.name,
        sampling=run.sampling,
        times=times,
        alpha=alpha,
        untested=1 - len(tested) / positions,
        missing=missing,
        rescued=int(rescued or 0),
        texts=len(texts),
        table=table,
        source=source,
        reads=HIDDEN if spec.method.startswith("eagle") else UNTOLD if spec.method == "imported" else "",
        batch=options.batch,
        second=options.second or "",
        error=error,
        load=machine.get("load") if (machine.get("load") or 0) > (machine.get("cores") or math.inf) else None,
    )


def error_of(table: pd.DataFrame, method: str) -> float:
    """By how much tokens/s on all tasks are off, at most, of the settings that the run measured by other methods.

    Those of the replayed method itself agree by construction. NaN if there are no others.
    """
    known = table[(table.task == ALL) & table.measured.notna() & table.measured_tokens_per_s.notna()]
    others = known[known.measured != method]
    return float((others.tokens_per_s / others.measured_tokens_per_s - 1).abs().max()) if len(others) else math.nan


def times_of(run: StoredRun, method: str, given: str | None, options: Options) -> Times:
    """Forward times from the option or from the records, with what `options` need."""
    if given:
        return forward_times.from_option(given, run.manifest["models"], options.by_context or options.batch > 1)
    if options.batch > 1:
        raise UserError(
            f"--batch {options.batch}: this run decoded one text at a time, and its records do not say what a forward "
            f"over several takes; give --forward-times a profile's FILE.json, or {', '.join(OF_BATCHES)}"
        )
    return recorded_times(run, [method], options.by_context)


def in_batch(chosen: Sequence[Candidate], options: Options, times: Times, asked: bool) -> list[Candidate]:
    """The settings that the times of a batch are known for; of those that were `asked` for, all must be.

    Raises UserError for thresholds, for oracles, and for forwards that are wider than any that was measured.
    """
    name = f"--batch {options.batch}"
    if options.oracle or options.second:
        raise UserError(f"{name}: an oracle is for one text, and a batch has one draft length; leave out --batch")
    if lacking := [key for key in OF_BATCHES if getattr(times, key) is None]:
        raise UserError(f"{name}: these forward times lack {', '.join(lacking)}; a profile's FILE.json has them")
    fixed = [setting for setting in chosen if setting.rule.kind == "fixed"]
    if asked and len(fixed) < len(chosen):
        raise UserError(f"{name}: at a threshold the texts of a batch draft different lengths; give --gamma alone")
    widest = math.inf if times.widest is None else times.widest
    fitting = [setting for setting in fixed if options.batch * (setting.rule.longest + 1) <= widest]
    if not fitting or (asked and len(fitting) < len(fixed)):
        least = options.batch * (max(setting.rule.longest for setting in fixed) + 1 if asked else 2)
        raise UserError(f"{name}: a forward would read {least} tokens, and the widest measured one has {widest:.0f}")
    return fitting


def _prompts_and_prefills(
    samples: pd.DataFrame, method: str, times: Times, given: bool
) -> tuple["pd.Series[float]", pd.DataFrame]:
    """By text: tokens of the prompt, and seconds of the method's prefill and of vanilla's."""
    indexed = samples.set_index(TEXT)
    mine = indexed[indexed.method == method]
    prompts = mine.prompt_tokens.astype(float)
    if given:
        target = prompts * (math.nan if times.prefill is None else times.prefill)
        draft = prompts * (math.nan if times.draft_prefill is None else times.draft_prefill)
        return prompts, pd.DataFrame({"prefill": target + draft, "vanilla_prefill": target})
    vanilla = indexed[indexed.method == "vanilla"].prefill_seconds.astype(float)
    return prompts, pd.DataFrame({"prefill": mine.prefill_seconds.astype(float)}).assign(
        vanilla_prefill=vanilla.reindex(mine.index)
    )


def _measured(samples: pd.DataFrame) -> pd.DataFrame:
    """Decode seconds of every timed sample, and its tokens after the prefill's, indexed by method and text."""
    timed = samples.assign(size=samples.tokens.map(len) - 1).dropna(subset=["decode_seconds"])
    return timed.set_index(["method", *TEXT])[["decode_seconds", "size"]]


def _oracles(
    frames: dict[Candidate, pd.DataFrame], known: Recorded, missing: Unknown, times: Times
) -> Iterator[dict[str, Any]]:
    """Rows of the best fixed length of each text, among those that were tried, and of the best of each round."""
    fixed = [frame for setting, frame in frames.items() if setting.rule.kind == "fixed"]
    if fixed:
        every = pd.concat(fixed, ignore_index=True)
        best = every.loc[every.groupby(TEXT, sort=False).seconds.idxmin()].reset_index(drop=True)
        yield from rows_of(Candidate(f"{ORACLE} text", Rule(ORACLE, 0), None), best, times)
    a_round = Candidate(f"{ORACLE} round", Rule(ORACLE, 0), None)
    replays = [oracles.longest(text, missing) for text in known.texts]
    yield from rows_of(a_round, by_text(a_round, known, replays, times, 1), times)


def _either(
    run: StoredRun,
    spec: MethodSpec,
    options: Options,
    fixed: Sequence[Candidate],
    known: Recorded,
    missing: Unknown,
    times: Times,
    given: bool,
) -> Iterator[dict[str, Any]]:
    """Rows of the better of two drafters at each position, for each fixed length."""
    other_run = options.second_run or run
    other = drafting_method(other_run, options.second)
    both = oracles.same_texts((run, other_run), (spec.name, other.name))
    samples = timed_samples(other_run.samples(SAMPLED))
    second = {text.key: text for text in replayable(other_run, other.name, samples)}
    other_times = times if given else recorded_times(other_run, [other.name], options.by_context)
    pairs = [(text, second[text.key]) for text in known.texts if text.key in both and text.key in second]
    missing_of = missing, unknown(list(second.values()))
    shared = Recorded([text for text, _ in pairs], known.prompts, known.prefills, pd.DataFrame())
    for setting in fixed:
        gamma = setting.rule.longest
        cheaper = other_times.round(gamma) < times.round(gamma)
        parts = [oracles.either(pair, gamma, missing_of, cheaper) for pair in pairs]
        prompts = [float(known.prompts.get(text.key, math.nan)) for text in shared.texts]
        seconds = [
            times.text(mine, prompt) + other_times.text(its, prompt)
            for (mine, its), prompt in zip(parts, prompts, strict=True)
        ]
        together = [oracles.together(mine, its) for mine, its in parts]
        one = Candidate(f"{setting.name} of two", Rule(ORACLE, 0), None)
        for row in rows_of(one, counted(one, shared, together, seconds, times, 1), times):
            yield row | {"second_share": sum(its.rounds for _, its in parts) / sum(laid.rounds for laid in together)}
