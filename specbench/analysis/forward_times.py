"""What rounds cost: forward times of a pair, from a run's records, from a profile, or from the user.

A round that drafts K tokens is assumed to take

    t_target + width_slope · K  +  t_draft · K + draft_start  +  overhead + draft_overhead · K

seconds: the target's forward over K + 1 tokens, the draft's K forwards, and the time outside of forwards.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy

from specbench.base.stats import Floats
from specbench.base.untrusted import BRIEF, is_file, read_json
from specbench.config import UserError

LONGEST = 1e6  # seconds of a forward
FEWEST = 20  # rounds with one draft length that it takes to use their medians
SAMPLED = 1000  # prefills that a slope is fitted to


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

    def round(self, drafted: float) -> float:
        """Seconds of a round that drafts so many tokens; with 0 there is no draft forward."""
        each = self.t_draft + self.width_slope + self.draft_overhead
        return self.t_target + self.overhead + drafted * each + (self.draft_start if drafted else 0.0)

    @property
    def token(self) -> float:
        """Seconds of a token of vanilla decoding."""
        return self.vanilla or self.t_target + self.overhead

    @property
    def cost_ratio(self) -> float:
        """c of Leviathan et al. (arXiv 2211.17192): the time of a draft forward over the time of a vanilla token."""
        return self.t_draft / self.token


def from_records(rounds: pd.DataFrame, prefills: pd.DataFrame, vanilla: pd.DataFrame) -> Times:
    """The times of one method's rounds, by medians; `vanilla` holds the rounds of vanilla decoding, and may be empty.

    All three have `drafted`, `draft_forwards`, `target_seconds`, `draft_seconds` and `seconds`; `prefills` also has
    `width`, the tokens of the prompt.

    With several draft lengths, every part of a round is linear in the length (least squares over the medians of each
    length). With a single length, three assumptions separate the parts. First, a prefill is a wide forward of the
    target, so the slope by width is the slope from the rounds to the prefills, but no steeper than the slope from
    vanilla's forwards over one token. Second, the part of a draft's prefill that does not depend on its width is the
    time of a round's first draft forward, which follows a forward of the other model; it is at least the mean draft
    forward of a round and at most all of them together. Third, the overhead is the same for each round.

    Raises UserError if the records hold no times.
    """
    columns = ["drafted", "draft_forwards", "target_seconds", "draft_seconds", "seconds"]
    if not len(rounds) or rounds[columns].isna().any(axis=None):
        raise UserError("these records do not tell the seconds of forwards; give --forward-times t_draft=…,t_target=…")
    parts = rounds.assign(rest=rounds.seconds - rounds.target_seconds - rounds.draft_seconds)
    grouped = parts.groupby("drafted")
    names = ["target_seconds", "draft_seconds", "rest"]
    medians, sizes = grouped[names].median(), grouped.size()
    alone = float(vanilla.seconds.median()) if len(vanilla) else 0.0
    often = sizes[(sizes >= FEWEST) & (sizes.index > 0)].index
    if len(often) > 1:
        lines = [_line(often.to_numpy(float), medians[name][often].to_numpy(), sizes[often]) for name in names]
        (target, width_slope), (start, t_draft), (overhead, draft_overhead) = lines
        return Times(t_draft, target, width_slope, start, overhead, draft_overhead, alone)
    drafted = int(sizes.idxmax())
    if not drafted:
        raise UserError("these rounds drafted nothing; choose another --method")
    target, draft, rest = (float(medians[name][drafted]) for name in names)
    forwards = float(rounds.draft_forwards[rounds.drafted == drafted].median())
    single = float(vanilla.target_seconds.median()) if len(vanilla) else 0.0
    slope = _width_slope(prefills, drafted, target, single)
    first = _first_forward(prefills, draft / max(forwards, 1), draft)
    each = (draft - first) / (forwards - 1) if forwards > 1 else first
    return Times(each, target - slope * drafted, slope, first - each, rest, 0.0, alone)


def _line(x: Floats, y: Floats, weights: "pd.Series[int]") -> tuple[float, float]:
    """Intercept and slope of a weighted least-squares line, both kept at 0 or more."""
    w = weights.to_numpy(float) / weights.sum()
    middle, height = float(w @ x), float(w @ y)
    slope = max(0.0, float(w @ ((x - middle) * (y - height)) / (w @ (x - middle) ** 2)))
    slope = min(slope, height / middle)
    return height - slope * middle, slope


def _width_slope(prefills: pd.DataFrame, drafted: int, target: float, single: float) -> float:
    """Seconds of the target for each further token, if all recorded blocks have `drafted` + 1 tokens.

    `target` is the time of such a block, `single` the time of vanilla's forward over one token (0: not known).
    """
    wider = prefills[prefills.width >= drafted + 5].dropna(subset=["target_seconds"])
    bounds = [(target - single) / drafted] if single else []
    if len(wider):
        bounds.append(float(((wider.target_seconds - target) / (wider.width - drafted - 1)).median()))
    return min(max(0.0, min(bounds, default=0.0)), target / (drafted + 1))


def _first_forward(prefills: pd.DataFrame, mean: float, whole: float) -> float:
    """Seconds of a round's first draft forward, from prefills; between the `mean` forward and the `whole` draft."""
    timed = prefills.dropna(subset=["draft_seconds"]).iloc[:SAMPLED]
    if timed.width.nunique() < 2:
        return mean
    slope, intercept = scipy.stats.siegelslopes(timed.draft_seconds, timed.width)
    return float(np.clip(intercept + slope, mean, whole))


def from_option(text: str, models: dict[str, Any] | None) -> Times:
    """The times in `--forward-times`: KEY=SECONDS,… or the JSON file of a profile of the same pair.

    `models` are those of the run's manifest. Raises UserError for values that cannot be times, and for a profile of
    other models.
    """
    if "=" in text and not is_file(Path(text)):
        return _checked(_parsed(text), "--forward-times")
    path = Path(text)
    if not is_file(path):
        raise UserError(f"there is no file {text}; write a profile's FILE.json, or t_draft=SECONDS,t_target=SECONDS")
    profile = read_json(path, remedy="make it anew by `specbench profile`")
    if not isinstance(profile, dict) or not isinstance(profile.get("times"), dict):
        raise UserError(f"{path} is no profile of forward times; `specbench profile --out FILE.json` makes one")
    profiled = profile.get("models") or {}
    if not isinstance(profiled, dict) or not all(isinstance(facts, dict) for facts in profiled.values()):
        raise UserError(f"{path} is damaged (its models are no mapping); make it anew by `specbench profile`")
    for role in ("target", "draft"):
        mine, other = ((m or {}).get(role, {}) for m in (models, profiled))
        if mine.get("weights_hash") and other.get("weights_hash") and mine["weights_hash"] != other["weights_hash"]:
            raise UserError(
                f"{path} is a profile of another pair: its {role} is {other.get('model')}, the run's "
                f"{mine.get('model')}, with other weights"
            )
    return _checked(profile["times"], str(path))


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
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= LONGEST or (value == 0 and key in ("t_draft", "t_target")):
            least = "above 0" if key in ("t_draft", "t_target") else "0 or more"
            raise UserError(f"{where}: {key} must be {least} seconds, not {str(value)[:BRIEF]}")
    return Times(**{key: float(value) for key, value in values.items()})
