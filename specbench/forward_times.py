"""What rounds cost: forward times of a pair, from a run's records, a profile, or as the user gives them.

A round that drafts K tokens is taken to last

    t_target + width_slope · K  +  t_draft · K + draft_start  +  overhead + draft_overhead · K

seconds: the target's forward over K + 1 tokens, the draft's K forwards, and what lies outside of forwards.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import scipy

from specbench.config import UserError
from specbench.stats import Floats
from specbench.untrusted import BRIEF, is_file, read_json

LONGEST = 1e6  # seconds of a forward
FEWEST = 20  # rounds with one draft length from which their medians are used
DRAWN = 1000  # rounds or texts that a slope is fitted to


@dataclass(frozen=True)
class Times:
    """Seconds. `t_target` is of a forward over one token, as it is within speculation; `vanilla` of a vanilla round."""

    t_draft: float
    t_target: float
    width_slope: float = 0.0  # for each further token that the target reads
    draft_start: float = 0.0  # what a round's first draft forward takes more than the others
    overhead: float = 0.0  # of a round, outside of forwards
    draft_overhead: float = 0.0  # the same for each drafted token
    vanilla: float = 0.0  # 0: t_target + overhead

    def round(self, drafted: float) -> float:
        """Of a round that drafts so many tokens (0: without a draft forward)."""
        each = self.t_draft + self.width_slope + self.draft_overhead
        return self.t_target + self.overhead + drafted * each + (self.draft_start if drafted else 0.0)

    @property
    def token(self) -> float:
        """Of a token of vanilla decoding."""
        return self.vanilla or self.t_target + self.overhead

    @property
    def cost_ratio(self) -> float:
        """c of Leviathan et al. (arXiv 2211.17192): the time of a draft forward over that of a vanilla token."""
        return self.t_draft / self.token


def recorded(rounds: pd.DataFrame, prefills: pd.DataFrame, vanilla: pd.DataFrame) -> Times:
    """The times of one method's rounds, by medians; `vanilla` are the rounds of vanilla decoding, or empty.

    All have `drafted`, `draft_forwards`, `target_seconds`, `draft_seconds` and `seconds`; `prefills` also `width`, the
    prompt's tokens. Where several draft lengths were used, all is linear in them (least squares over the medians of
    each length). Where one was, three more things help to tell the parts of a round apart. A prefill is a wide forward
    of the target, so the slope by width lies on the line from the rounds to it; but not above the line that comes from
    vanilla's forwards over one token. A prefill's part that does not depend on its width is what a draft's first
    forward takes, behind one of the other model: at least the mean forward, and at most all of them. The overhead is
    then the same for each round. Raises UserError if the records do not tell times.
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
    one = float(vanilla.target_seconds.median()) if len(vanilla) else 0.0
    slope = _width_slope(prefills, drafted, target, one)
    first = _first_forward(prefills, draft / max(forwards, 1), draft)
    each = (draft - first) / (forwards - 1) if forwards > 1 else first
    return Times(each, target - slope * drafted, slope, first - each, rest, 0.0, alone)


def _line(x: Floats, y: Floats, weights: "pd.Series[int]") -> tuple[float, float]:
    """Intercept and slope of a weighted least-squares line; neither is below 0."""
    w = weights.to_numpy(float) / weights.sum()
    middle, height = float(w @ x), float(w @ y)
    slope = max(0.0, float(w @ ((x - middle) * (y - height)) / (w @ (x - middle) ** 2)))
    slope = min(slope, height / middle)
    return height - slope * middle, slope


def _width_slope(prefills: pd.DataFrame, drafted: int, target: float, one: float) -> float:
    """Seconds of the target for each further token, where only blocks of `drafted` + 1 tokens were seen."""
    wider = prefills[prefills.width >= drafted + 5].dropna(subset=["target_seconds"])
    bounds = [(target - one) / drafted] if one else []
    if len(wider):
        bounds.append(float(((wider.target_seconds - target) / (wider.width - drafted - 1)).median()))
    return min(max(0.0, min(bounds, default=0.0)), target / (drafted + 1))


def _first_forward(prefills: pd.DataFrame, mean: float, whole: float) -> float:
    """Seconds of a round's first draft forward, from prefills; between the mean forward and all of them."""
    known = prefills.dropna(subset=["draft_seconds"]).iloc[:DRAWN]
    if known.width.nunique() < 2:
        return mean
    slope, intercept = scipy.stats.siegelslopes(known.draft_seconds, known.width)
    return float(np.clip(intercept + slope, mean, whole))


def given(text: str, models: dict[str, Any] | None) -> Times:
    """The times that `--forward-times` names: KEY=SECONDS,… or the JSON file of a profile of the same pair.

    `models` are those of the run's manifest. Raises UserError for what cannot be times of these models.
    """
    if "=" in text and not is_file(Path(text)):
        return _checked(_parsed(text), "--forward-times")
    path = Path(text)
    if not is_file(path):
        raise UserError(f"there is no file {text}; write a profile's FILE.json, or t_draft=SECONDS,t_target=SECONDS")
    found = read_json(path, remedy="make it anew by `specbench profile`")
    if not isinstance(found, dict) or not isinstance(found.get("times"), dict):
        raise UserError(f"{path} is no profile of forward times; `specbench profile --out FILE.json` makes one")
    profiled = found.get("models") or {}
    if not isinstance(profiled, dict) or not all(isinstance(one, dict) for one in profiled.values()):
        raise UserError(f"{path} is damaged (its models are no mapping); make it anew by `specbench profile`")
    for role in ("target", "draft"):
        mine, other = ((m or {}).get(role, {}) for m in (models, profiled))
        if mine.get("weights_hash") and other.get("weights_hash") and mine["weights_hash"] != other["weights_hash"]:
            raise UserError(
                f"{path} is a profile of another pair: its {role} is {other.get('model')}, the run's "
                f"{mine.get('model')}, with other weights"
            )
    return _checked(found["times"], str(path))


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
    known = [field.name for field in fields(Times)]
    if unknown := [key for key in values if key not in known]:
        raise UserError(f"{where}: no time is called {unknown[0]!r}; there are {', '.join(known)}")
    if missing := [key for key in ("t_draft", "t_target") if key not in values]:
        raise UserError(f"{where}: {missing[0]} is missing; both t_draft and t_target are needed, in seconds")
    for key, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= LONGEST or (value == 0 and key in ("t_draft", "t_target")):
            least = "above 0" if key in ("t_draft", "t_target") else "0 or more"
            raise UserError(f"{where}: {key} must be {least} seconds, not {str(value)[:BRIEF]}")
    return Times(**{key: float(value) for key, value in values.items()})


def as_json(times: Times) -> dict[str, float]:
    return cast(dict[str, float], asdict(times))
