"""A scrape of a vLLM server's `/metrics`: its counters of speculative decoding, or what they grew by between two."""

import math
import re
from collections import defaultdict
from pathlib import Path

from specbench.config import UserError
from specbench.results.importers.foreign import Figures, Row, text_of

SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens_per_pos|accepted_tokens)(?:_total)?"
    r"(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*$"
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
BY_POSITION = "accepted_tokens_per_pos"
MOST_POSITIONS = 1000  # of a draft
MOST_MODELS = 100

Counters = dict[tuple[str, int | None], float]  # by name, and by position of a draft from 0 where there is one


def is_scrape(text: str) -> bool:
    """True if a text is in Prometheus' format: it begins with a comment or with a metric of vLLM."""
    return text.lstrip().startswith(("#", "vllm:"))


def read(path: Path, text: str, digest: str, before: Path | None) -> list[Figures]:
    """The totals of each model in a scrape, less those of the scrape `before`; engines of one model are added up.

    A single model is named after the file. Raises UserError for a scrape without counters, and if one is now smaller.
    """
    now, earlier = counters(path, text), counters(before, text_of(before)[0]) if before else {}
    if strange := [model for model in earlier if model not in now]:
        raise UserError(f"{path} has no counters of {strange[0]!r}, which {before} has: are they of the same server?")
    figures = []
    for model, values in now.items():
        old = earlier.get(model, {})
        grown = {key: value - old.get(key, 0.0) for key, value in values.items()}
        if any(value < 0 for value in grown.values()) or any(key not in values for key in old):
            raise UserError(f"{path} counts less than {before}: the server was restarted, or the files are swapped")
        totals = [_totals(grown, f"{path}")]
        figures.append(Figures(path, digest, model if len(now) > 1 else path.stem, totals=totals))
    return figures


def counters(path: Path, text: str) -> dict[str, Counters]:
    """The counters of each model in a scrape. Raises UserError if there are none, or values that no counter has."""
    seen: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    by_model: dict[str, Counters] = defaultdict(lambda: defaultdict(float))
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := SAMPLE.match(line)):
            continue  # a comment, another metric, or the time at which a counter was created
        where, (name, labels, written) = f"{path}, line {number}", match.groups()
        known = dict(LABEL.findall(labels or ""))
        value = _value(written, where)
        series = (name, frozenset(known.items()))
        if series in seen:
            if seen[series] != value:
                raise UserError(f"{where}: the same counter is there twice; give one scrape a file")
            continue  # with and without _total
        seen[series] = value
        by_model[known.get("model_name", "")][name, _position(known, where) if name == BY_POSITION else None] += value
    if not by_model:
        raise UserError(f"{path} has no vllm:spec_decode_num_… counters; does its server draft (--speculative-config)?")
    if len(by_model) > MOST_MODELS:
        raise UserError(f"{path} has counters of more than {MOST_MODELS} models; is it another kind of file?")
    return {model: dict(values) for model, values in by_model.items()}


def _value(written: str, where: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(f"{where}: a counter is a number from 0, not {written[:20]!r}")
    return value


def _position(labels: dict[str, str], where: str) -> int:
    written = labels.get("position", "")
    if not (written.isdecimal() and written.isascii() and len(written) < 5 and int(written) < MOST_POSITIONS):
        raise UserError(f"{where}: the label position must be a whole number below {MOST_POSITIONS}")
    return int(written)


def _totals(values: Counters, where: str) -> Row:
    """The counters under the names that `vllm bench serve` gives them; what there is not is left out."""
    names = ("drafts", "num_drafts"), ("draft_tokens", "draft_tokens"), ("accepted_tokens", "accepted_tokens")
    totals: Row = {f"spec_decode_{to}": values[name, None] for name, to in names if (name, None) in values}
    positions = sorted(position for name, position in values if name == BY_POSITION and position is not None)
    if positions != list(range(len(positions))):
        raise UserError(f"{where}: counters by position must be of all positions from 0; one is missing")
    if positions and (drafts := totals.get("spec_decode_num_drafts")):
        shares = [values[BY_POSITION, position] / drafts for position in positions]
        totals["spec_decode_per_position_acceptance_rates"] = shares
    return totals
