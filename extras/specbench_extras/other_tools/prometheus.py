"""A scrape of a vLLM server's `/metrics`: its counters of speculative decoding, or what they grew by between two."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.results.importers.foreign import Figures, Row, text_of

SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens_per_pos|accepted_tokens)(_total|_created)?"
    r"(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*$"
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
BY_POSITION = "accepted_tokens_per_pos"
MOST_POSITIONS = 1000  # of a draft
MOST_MODELS = 100

Key = tuple[str, frozenset[tuple[str, str]]]  # a counter's name and labels
Counters = dict[tuple[str, int | None], float]  # by name, and by position of a draft from 0 where there is one


def is_scrape(text: str) -> bool:
    """True if a text is in Prometheus' format: it begins with a comment or with a metric of vLLM."""
    return text.lstrip().startswith(("#", "vllm:"))


def read(path: Path, text: str, digest: str, before: Path | None) -> list[Figures]:
    """The totals of each model in a scrape, less those of the scrape `before`; engines of one model are added up.

    A single model is named after the file. A counter that began again in between counts from then
    on, with a warning.

    Raises:
        UserError: there are no counters, or one is smaller now and the scrapes do not say when it began.
    """
    now, earlier = scraped(path, text), scraped(before, text_of(before)[0]) if before else {}
    if gone := next((key for key in earlier if key not in now), None):
        raise UserError(
            f"{path} has no {_name(gone)}, which {before} has: are they of the same server, and are all its engines up?"
        )
    by_model: dict[str, Counters] = defaultdict(lambda: defaultdict(float))
    began: set[str] = set()
    for key, series in now.items():
        old = earlier.get(key)
        restarted = old is not None and old.created is not None and series.created != old.created
        if old and not restarted and series.value < old.value:
            raise UserError(
                f"{_name(key)} counts less in {path} than in {before}: the server or an engine of it was restarted, or "
                "the files are swapped; take both scrapes while it runs"
            )
        began |= {_engine(key)} if restarted else set()
        model, name = dict(key[1]).get("model_name", ""), key[0]
        by_model[model][name, series.position] += series.value - (old.value if old and not restarted else 0.0)
    figures = []
    for model, values in by_model.items():
        totals = [_totals(dict(values), f"{path}")]
        figures.append(Figures(path, digest, model if len(by_model) > 1 else path.stem, totals=totals))
        figures[-1].conditions = {"model": {"model_name": model}} if model else {}
    if began:
        figures[0].warnings.append(
            f"{path.name}: {', '.join(sorted(began))} was restarted after {before}; what it counted before that is lost"
        )
    return figures


@dataclass(frozen=True)
class Series:
    """A counter of one engine and model."""

    value: float
    position: int | None  # of a draft, from 0
    created: float | None  # when it began, in Unix seconds, if the scrape says so


def scraped(path: Path, text: str) -> dict[Key, Series]:
    """The counters in a scrape, by name and labels. Raises UserError if there are none, or impossible values."""
    seen: dict[Key, Series] = {}
    created: dict[Key, float] = {}
    models: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := SAMPLE.match(line)):
            continue  # a comment, or another metric
        where, (name, end, labels, written) = f"{path}, line {number}", match.groups()
        known = dict(LABEL.findall(labels or ""))
        key, value = (name, frozenset(known.items())), _value(written, where)
        if end == "_created":
            created[key] = value
            continue
        if key in seen:
            if seen[key].value != value:
                raise UserError(f"{where}: the same counter is there twice; give one scrape a file")
            continue  # with and without _total
        seen[key] = Series(value, _position(known, where) if name == BY_POSITION else None, None)
        models.add(known.get("model_name", ""))
    if not seen:
        raise UserError(f"{path} has no vllm:spec_decode_num_… counters; does its server draft (--speculative-config)?")
    if len(models) > MOST_MODELS:
        raise UserError(f"{path} has counters of more than {MOST_MODELS} models; is it another kind of file?")
    return {key: replace(series, created=created.get(key)) for key, series in seen.items()}


def _name(key: Key) -> str:
    """A series as it stands in a scrape, in short."""
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(key[1]))
    return brief(f"vllm:spec_decode_num_{key[0]}{{{labels}}}")


def _engine(key: Key) -> str:
    return f"engine {brief(dict(key[1]).get('engine', '0'))}"


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
