"""What rounds cost: forward times of a pair, from a run's records, from a profile, or from the user.

A round that drafts K tokens is assumed to take

    t_target + width_slope · K  +  t_draft · K + draft_start  +  overhead + draft_overhead · K

seconds: the target's forward over K + 1 tokens, the draft's K forwards, and the time outside of forwards. The first
early_tokens of the K take early_slope more each, since the step from a forward over one token to one over several is
steeper than what follows. A round with a draft takes `drafting` more than one without, whatever K is: the target's
forward follows one of the draft, which has left the processor's caches cold, and there is a draft to accept and to roll
back. Two further costs are counted where they are known: of the context, context_slope for each token that the target
has in its cache and draft_context_slope for each of the draft's; and of a batch, the further tokens that its other
texts add to a forward. The time outside of forwards is taken to be the same in a batch.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy
from pydantic import BaseModel, ConfigDict, Field

from specbench.analysis.replay import Replayed
from specbench.analysis.widths import FEWEST
from specbench.base.stats import Floats
from specbench.base.untrusted import BRIEF, is_file, read_json
from specbench.config import UserError, validated

LONGEST = 1e6  # seconds of a forward
SAMPLED = 1000  # rounds that a slope is fitted to
HELD_UP = 5  # times the median of rounds with as many drafted tokens
LEAST = 0.01  # of a time that does not come from the context


class MeasuredForward(BaseModel):
    """A measured forward of a profile; columns that are not read may hold anything."""

    model_config = ConfigDict(strict=True, protected_namespaces=())
    model: str
    runtime: str = ""
    rows: int = Field(default=1, ge=1, lt=2**31)  # texts
    width: int = Field(ge=1, lt=2**31)  # tokens of each
    context: int = Field(ge=0, lt=2**31)
    median: float = Field(gt=0, le=LONGEST)  # seconds


class Forwards(BaseModel):
    forwards: list[MeasuredForward]


@dataclass(frozen=True)
class Times:
    """Seconds. `t_target` is a forward over one token within speculation, `vanilla` a round of vanilla decoding."""

    t_draft: float
    t_target: float
    width_slope: float = 0.0  # for each further token that the target reads
    draft_start: float = 0.0  # extra time of a round's first draft forward
    overhead: float = 0.0  # of a round, outside of forwards
    draft_overhead: float = 0.0  # of a drafted token, outside of forwards
    vanilla: float = 0.0  # 0 stands for t_target + overhead
    early_slope: float = 0.0  # what each of a round's first `early_tokens` drafted tokens takes more than a further one
    early_tokens: float = 0.0
    drafting: float = 0.0  # what a round with a draft takes more than one without, whatever its length
    # None: not known.
    draft_width_slope: float | None = None  # for each further token that a draft forward reads, as in a batch
    context_slope: float | None = None  # of the target, for each token in its cache; then t_target is that without any
    draft_context_slope: float | None = None  # of each draft forward
    prefill: float | None = None  # of the target, for each token of the prompt
    draft_prefill: float | None = None
    widest: float | None = None  # tokens of the widest measured forward

    def round(self, drafted: float, batch: int = 1) -> float:
        """Seconds of a round that drafts so many tokens for each text of a batch, the context left aside."""
        beside = batch - 1  # other texts
        each = self.t_draft + (self.draft_width_slope or 0.0) * beside + self.draft_overhead
        return self.verified(drafted, batch) + drafted * each + (self.draft_start if drafted else 0.0)

    def verified(self, drafted: float, batch: int = 1) -> float:
        """Seconds of a round without its draft forwards: the target's forward, and what is outside of forwards."""
        target = self.t_target + self.width_slope * (batch * (drafted + 1) - 1)
        early = batch * self.early_slope * min(drafted, self.early_tokens)
        return target + early + self.overhead + (self.drafting if drafted else 0.0)

    def text(self, laid: Replayed, prompt: float, batch: int = 1) -> float:
        """Seconds of a text's rounds after `prompt` tokens, in a batch of such texts."""
        seconds = sum(count * self.round(drafted, batch) for drafted, count in laid.lengths.items())
        if self.context_slope or self.draft_context_slope:
            target = laid.rounds * prompt + laid.starts
            within = sum(count * drafted * (drafted - 1) / 2 for drafted, count in laid.lengths.items())
            draft = laid.drafted * prompt + laid.drafted_starts + within
            seconds += batch * ((self.context_slope or 0.0) * target + (self.draft_context_slope or 0.0) * draft)
        return seconds

    def vanilla_text(self, tokens: int, prompt: float, batch: int = 1) -> float:
        """Seconds of the same text by vanilla decoding."""
        seconds = tokens * (self.token + self.width_slope * (batch - 1))
        if self.context_slope:
            seconds += batch * self.context_slope * (tokens * prompt + tokens * (tokens - 1) / 2)
        return seconds

    @property
    def token(self) -> float:
        """Seconds of a token of vanilla decoding."""
        return self.vanilla or self.t_target + self.overhead

    @property
    def cost_ratio(self) -> float:
        """c of Leviathan et al. (arXiv 2211.17192): the time of a draft forward over the time of a vanilla token."""
        return self.t_draft / self.token


def from_records(rounds: pd.DataFrame, prefills: pd.DataFrame, vanilla: pd.DataFrame) -> Times:
    """The times of one method's rounds, by means; `vanilla` holds the rounds of vanilla decoding, and may be empty.

    A text takes the sum of its rounds, and rounds are skewed: by medians it would come out too fast, the more so on a
    busy machine. Rounds that took over HELD_UP times their median are left out.

    All three have `drafted`, `draft_forwards`, `target_seconds`, `draft_seconds`, `first_draft_seconds` and `seconds`;
    `prefills` also has `width`, the tokens of the prompt.

    With several draft lengths, every part of a round is linear in the length (least squares over the means of each
    length). With a single length, the first forward of a draft is recorded by itself: it follows one of the other model
    and may read two tokens; it counts as no shorter than the others, and as long as they in runs of earlier versions.
    Two assumptions separate the target's parts. First, a vanilla round is a round without a draft: shorter drafts lie
    on the lines from it to the recorded rounds, of the target's forward as of the time outside of forwards. Second, a
    prefill is a wide forward of the target: for longer drafts its slope by width is that from the rounds to the
    prefills, but no steeper than the first, and the time outside stays as it is.

    Raises UserError if the records hold no times.
    """
    columns = ["drafted", "draft_forwards", "target_seconds", "draft_seconds", "seconds"]
    if not len(rounds) or rounds[columns].isna().any(axis=None):
        raise UserError("these records lack the seconds of forwards; give --forward-times t_draft=…,t_target=…")
    parts = _steady(rounds.assign(rest=rounds.seconds - rounds.target_seconds - rounds.draft_seconds))
    grouped = parts.groupby("drafted")
    names = ["target_seconds", "draft_seconds", "rest"]
    means, sizes = grouped[names].mean(), grouped.size()
    plain = _steady(vanilla.assign(drafted=0))
    alone = float(plain.seconds.mean()) if len(plain) else 0.0
    often = sizes[(sizes >= FEWEST) & (sizes.index > 0)].index
    if len(often) > 1:
        lines = [_line(often.to_numpy(float), means[name][often].to_numpy(), sizes[often]) for name in names]
        (target, width_slope), (start, t_draft), (overhead, draft_overhead) = lines
        return Times(t_draft, target, width_slope, start, overhead, draft_overhead, alone)
    drafted = int(sizes.idxmax())
    if not drafted:
        raise UserError("these rounds drafted nothing; choose another --method")
    target, draft, rest = (float(means[name][drafted]) for name in names)
    alike = parts[parts.drafted == drafted]
    first = float(np.fmax(draft / max(alike.draft_forwards.mean(), 1), alike.first_draft_seconds.mean()))
    each = (draft - first) / (drafted - 1) if drafted > 1 else first
    if not len(plain):
        slope = _width_slope(prefills, drafted, target, target / (drafted + 1), 0.0)
        return Times(each, target - slope * drafted, slope, first - each, rest, early_tokens=drafted)
    single = min(target, float(plain.target_seconds.mean()))
    idle = min(rest, alone - float(plain.target_seconds.mean()))
    after = first - each if alike.draft_forwards.mean() > 1 else 0.0  # a block has no further forwards
    after = min(after, target - single)
    half = (rest - idle) / 2
    within = (target - single - after) / drafted
    slope = _width_slope(prefills, drafted, target, within, within)
    early = within - slope + half / drafted
    return Times(each, single, slope, first - each, idle, 0.0, alone, early, drafted, after + half)


def _steady(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rounds without those that something else held up."""
    usual = rounds.groupby("drafted").seconds.transform("median")
    return rounds[rounds.seconds <= HELD_UP * usual]


def _line(x: Floats, y: Floats, weights: "pd.Series[int]") -> tuple[float, float]:
    """Intercept and slope of a weighted least-squares line, both kept at 0 or more."""
    w = weights.to_numpy(float) / weights.sum()
    middle, height = float(w @ x), float(w @ y)
    slope = max(0.0, float(w @ ((x - middle) * (y - height)) / (w @ (x - middle) ** 2)))
    slope = min(slope, height / middle)
    return height - slope * middle, slope


def _width_slope(prefills: pd.DataFrame, drafted: int, target: float, most: float, unknown: float) -> float:
    """Seconds of the target for each token beyond `drafted` + 1, which take `target`; from 0 to `most`."""
    wider = prefills[prefills.width >= drafted + 5].dropna(subset=["target_seconds"])
    slopes = (wider.target_seconds - target) / (wider.width - drafted - 1)
    return float(np.clip(slopes.median(), 0.0, most)) if len(wider) else unknown


def with_context(times: Times, rounds: pd.DataFrame, vanilla: pd.DataFrame) -> Times:
    """The times with slopes by context, from the same rounds; both tables also have `context`, the tokens in the cache.

    A slope is the median of slopes through rounds with the most common draft length (Siegel's), and not below 0. At
    the middle of their contexts the times stay as they were. Raises UserError if the contexts are not known.
    """
    alike = rounds[rounds.drafted == rounds.drafted.mode()[0]].dropna(subset=["context"]).iloc[:SAMPLED]
    if alike.context.nunique() < 2:
        raise UserError("these records do not cover several contexts; give --forward-times a profile's FILE.json")
    context = alike.context.to_numpy(float)
    middle = float(np.median(context))
    target = _slope(context, alike.target_seconds.to_numpy(float), times.t_target)
    each = alike.draft_seconds.to_numpy(float) / np.maximum(alike.draft_forwards.to_numpy(float), 1)
    draft = _slope(context, each, times.t_draft)
    token = 0.0
    if times.vanilla:
        seconds = times.vanilla - target * float(vanilla.context.median())
        token = max(seconds, times.vanilla * LEAST)
    return replace(
        times,
        t_target=times.t_target - target * middle,
        t_draft=times.t_draft - draft * middle,
        vanilla=token,
        context_slope=target,
        draft_context_slope=draft,
    )


def _slope(context: Floats, seconds: Floats, whole: float) -> float:
    """Seconds for each token of context; what is left of `whole` without any context is above 0."""
    slope = float(scipy.stats.siegelslopes(seconds, context).slope)
    return min(max(slope, 0.0), (1 - LEAST) * whole / max(float(np.median(context)), 1.0))


def with_forwards(times: Times, forwards: Any, where: str) -> Times:
    """The times with those of a profile's `forwards` by width and context: a plane through the medians of each model.

    They are of one text, or of several (`rows`), which each have the width and the context. Raises UserError if the
    forwards are damaged, or of fewer than two widths or contexts.
    """
    remedy = "make it again by `specbench profile`"
    if not forwards:
        raise UserError(f"{where} has no forwards by width and context; {remedy}")
    rows = validated(Forwards, {"forwards": forwards}, where, remedy).forwards
    table = pd.DataFrame([vars(row) for row in rows])
    table = table[table.runtime == table.runtime.iloc[0]]  # the first is the pair's own
    for role in ("target", "draft"):
        mine = table[table.model == role]
        if mine.width.nunique() < 2 or mine.context.nunique() < 2:
            raise UserError(f"{where} has forwards of the {role} at one width or context only; make it again")
    (target, width, context), (draft, draft_width, draft_context) = _plane(table, "target"), _plane(table, "draft")
    measured = {"t_target": target, "width_slope": width, "context_slope": context, "vanilla": 0.0}
    measured |= {"t_draft": draft, "draft_width_slope": draft_width, "draft_context_slope": draft_context}
    return replace(times, **measured, widest=float(_tokens(table).max()))


def _tokens(forwards: pd.DataFrame) -> "pd.Series[float]":
    """The tokens that each forward reads."""
    return (forwards.width * forwards.get("rows", 1)).astype(float)


def _plane(forwards: pd.DataFrame, role: str) -> tuple[float, float, float]:
    """Seconds of a model's forward over one token, of each further token, and of each token in the caches.

    None is below 0. Relative errors are squared, so that short forwards count as much as long ones.
    """
    mine = forwards[forwards.model == role]
    unit = np.column_stack([np.ones(len(mine)), _tokens(mine) - 1, mine.context * mine.get("rows", 1)]).astype(float)
    seconds = mine["median"].to_numpy(float)
    alone, token, context = scipy.optimize.nnls(unit / seconds[:, None], np.ones(len(mine)))[0]
    return float(alone), float(token), float(context)


def step_costs(forwards: pd.DataFrame) -> dict[str, float]:
    """The costs of a step as the method `goodput` takes them, in target forwards of one token."""
    (alone, token, _), (draft, draft_token, _) = _plane(forwards, "target"), _plane(forwards, "draft")
    return {"token": token / alone, "draft": draft / alone, "draft_token": draft_token / alone}


def from_option(text: str, models: dict[str, Any] | None, by_context: bool = False) -> Times:
    """The times in `--forward-times`: KEY=SECONDS,… or the JSON file of a profile of the same pair.

    `models` are those of the run's manifest. `by_context`: what a profile has measured by width and context. Raises
    UserError for values that cannot be times, and for a profile of other models.
    """
    if "=" in text and not is_file(Path(text)):
        times = _checked(_parsed(text), "--forward-times")
        if by_context and times.context_slope is None:
            raise UserError("--forward-times: context_slope is missing, in seconds for each token of context")
        return times
    path = Path(text)
    if not is_file(path):
        raise UserError(f"there is no file {text}; write a profile's FILE.json, or t_draft=SECONDS,t_target=SECONDS")
    profile = read_json(path, remedy="make it again by `specbench profile`")
    if not isinstance(profile, dict) or not isinstance(profile.get("times"), dict):
        raise UserError(f"{path} is not a profile of forward times; `specbench profile --out FILE.json` makes one")
    profiled = profile.get("models") or {}
    if not isinstance(profiled, dict) or not all(isinstance(facts, dict) for facts in profiled.values()):
        raise UserError(f"{path} is damaged (its models are no mapping); make it again by `specbench profile`")
    for role in ("target", "draft"):
        mine, other = ((m or {}).get(role, {}) for m in (models, profiled))
        if mine.get("weights_hash") and other.get("weights_hash") and mine["weights_hash"] != other["weights_hash"]:
            raise UserError(
                f"{path} is a profile of another pair: its {role} is {other.get('model')}, the run's "
                f"{mine.get('model')}, with other weights"
            )
    times = _checked({key: value for key, value in profile["times"].items() if value is not None}, str(path))
    forwards = profile.get("batches") or profile.get("forwards")
    return with_forwards(times, forwards, str(path)) if by_context else times


def _parsed(text: str) -> dict[str, float]:
    values = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise UserError(f"--forward-times {part!r}: write KEY=SECONDS, such as t_draft=0.001") from None
    return values


def _checked(values: dict[str, Any], where: str) -> Times:
    names = [field.name for field in fields(Times)]
    if unknown := [key for key in values if key not in names]:
        raise UserError(f"{where}: no time is called {unknown[0]!r}; there are {', '.join(names)}")
    if missing := [key for key in ("t_draft", "t_target") if key not in values]:
        raise UserError(f"{where}: {missing[0]} is missing; both t_draft and t_target are needed, in seconds")
    for key, value in values.items():
        if not _number(value) or not 0 <= value <= LONGEST or (value == 0 and key in ("t_draft", "t_target")):
            least = "above 0" if key in ("t_draft", "t_target") else "0 or more"
            raise UserError(f"{where}: {key} must be {least} seconds, not {str(value)[:BRIEF]}")
    return Times(**{key: float(value) for key, value in values.items()})


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LONGEST
