"""The documents of the HTML page: what each was about, and how every method wrote its text; page.js reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import Any

import pandas as pd

from specbench.analysis import metrics
from specbench.analysis.texts import load_decode
from specbench.analysis.trace import document_scores, last_line
from specbench.analysis.trace_columns import Tracer, Words
from specbench.base.console import plain
from specbench.config import UserError
from specbench.report.page_style import clean
from specbench.report.page_traces import Encoder, Streams, milliseconds
from specbench.results.documents import DocumentRow
from specbench.results.stored import StoredRun

DOCUMENTS = 200  # of each task
TRACES = 2_200_000  # bytes of compressed traces, so that a page stays below 5 MB
TRIED = 16  # documents of each task whose traces tell how many the page has room for
LONGEST = 6000  # characters of a prompt: its end, as few-shot examples come first
RATES = ("acceptance_rate", "tau", "discard_rate", "verification_rate", "tokens_per_s")


@dataclass(frozen=True)
class PageRun:
    """A run and what the page takes from it."""

    run: StoredRun
    methods: dict[str, str]  # by name in the run: the name in a comparison
    labels: dict[str, str]  # by name in the run: the name on the page, with pair and sampling where there are several
    samples: pd.DataFrame
    counts: pd.DataFrame  # of metrics.per_document


def packed(sources: Sequence[PageRun], metric: dict[str, str]) -> tuple[bytes, list[str]]:
    """The drill-down's data, of as many documents as the page has room for, and notes about it."""
    page = _Page(sources, metric)
    most = DOCUMENTS
    if max((source.samples.groupby("task").doc_id.nunique().max() for source in sources), default=0) > 4 * TRIED:
        few, twice = (len(page.packed(count)[0]) for count in (TRIED, 2 * TRIED))
        each = max(1, twice - few) / TRIED  # without what all share, such as the words of a vocabulary
        most = min(most, max(TRIED, int(TRIED + 0.95 * (TRACES - few) / each)))
    while True:
        data, notes = page.packed(most)
        if len(data) <= TRACES or most == 1:
            return data, notes
        most = max(1, int(0.95 * most * TRACES / len(data)))


@dataclass(frozen=True)
class _Stretch:
    """Some documents of each task of a source."""

    samples: list[tuple[tuple[str, int, str], list[Any]]]  # task, document, method: what the page has of it
    about: dict[tuple[str, int], list[Any]]  # by task and document
    traced: list[tuple[str, int, str]]  # the samples that `streams` have traces of, in their order
    streams: list[Streams] | None  # None: there are no traces
    notes: list[str]


class _Page:
    """What a page has of documents. Each is read and traced once, however many of them it is packed with."""

    def __init__(self, sources: Sequence[PageRun], metric: dict[str, str]) -> None:
        words = Words()
        self._encoder = Encoder(words)
        self._metric, self._sources, self._labels = metric, list[_OfSource](), list[str]()
        for source in sources:
            new = {name: label for name, label in source.labels.items() if label not in self._labels}
            self._labels += new.values()
            self._sources.append(_OfSource(source, new, metric, self._encoder, words))
        repeats = max((int(source.samples.repeat.max()) + 1 for source in sources if len(source.samples)), default=1)
        self._several = repeats > 1 or len(self._labels) < sum(len(source.labels) for source in sources)
        self._ends = set[int]()  # where stretches of documents end that were traced

    def packed(self, most: int) -> tuple[bytes, list[str]]:
        """The page's data with the first `most` documents of each task, and notes about them."""
        bounds = sorted({0, most} | {end for end in self._ends if end < most})
        self._ends.add(most)
        tasks = list(self._metric)
        samples: list[list[Any]] = []
        parts, notes = list[Streams](), list[str]()
        about: dict[tuple[str, int], list[Any]] = {}
        traced = 0
        for source in self._sources:
            stretches = [source.stretch(first, last) for first, last in pairwise(bounds)]
            notes += [*source.notes(most), *(note for stretch in stretches for note in stretch.notes)]
            places: dict[tuple[str, int, str], int] = {}
            whole = [stretch.streams for stretch in stretches if stretch.streams is not None]
            for stretch in stretches:
                about |= {key: texts for key, texts in stretch.about.items() if key not in about}
                if len(whole) == len(stretches):  # else a note says that this source has no traces
                    places |= {key: traced + place for place, key in enumerate(stretch.traced)}
                    traced += len(stretch.traced)
            parts += chain.from_iterable(whole) if len(whole) == len(stretches) else []
            for (task, doc_id, method), told in sorted(
                chain.from_iterable(stretch.samples for stretch in stretches), key=lambda row: row[0][1]
            ):
                label = self._labels.index(source.labels[method])
                place = places.get((task, doc_id, method), -1)
                samples.append([tasks.index(task), doc_id, label, place, *told])
        if self._several:
            notes.append("Of several passes over the documents the first one is shown.")
        names: dict[str, Any] = {"tasks": [[plain(task), plain(self._metric[task])] for task in tasks]}
        names |= {"labels": list(map(plain, self._labels))}
        texts = [[tasks.index(task), doc_id, *told] for (task, doc_id), told in about.items()]
        header = names | {"samples": samples, "rates": RATES, "about": texts}
        return self._encoder.packed(header, parts), list(dict.fromkeys(notes))


class _OfSource:
    """What a page has of the documents of one source, in stretches."""

    def __init__(
        self, source: PageRun, labels: dict[str, str], metric: dict[str, str], encoder: Encoder, words: Words
    ) -> None:
        """`labels` are those of methods that no source before has."""
        self._run, self._counts, self._encoder, self.labels = source.run, source.counts, encoder, labels
        rows = source.samples[(source.samples.repeat == 0) & source.samples.method.isin(list(labels))]
        self._samples = rows[rows.task.isin(list(metric))]
        by_task = self._samples.groupby("task", sort=False).doc_id
        self._documents = {task: sorted(ids.unique().tolist()) for task, ids in by_task}
        self._scores = document_scores(source.run, metric)
        self._lacks, self._tracer = list[str](), None
        servers = {spec.name for spec in source.run.plan.servers}
        self._lacks += [
            f"{label} has no traces: a server does not tell which tokens it drafted."
            for name, label in labels.items()
            if name in servers
        ]
        try:
            self._tracer = Tracer(source.run, load_decode(source.run), words, labels)
        except UserError as error:
            self._lacks.append(f"{source.run.name} has no traces here: {error}.")
        self.stretch = cache(self._stretch)

    def notes(self, most: int) -> list[str]:
        """What the page does not have if it has the first `most` documents of each task."""
        more = [(task, len(ids)) for task, ids in self._documents.items() if len(ids) > most]
        return [f"{task}: the first {most} of {count} documents are here." for task, count in more] + self._lacks

    def _stretch(self, first: int, last: int) -> _Stretch:
        """The documents of each task from place `first` to before `last`."""
        chosen = {task: ids[first:last] for task, ids in self._documents.items()}
        notes, about = list[str](), dict[tuple[str, int], list[Any]]()
        try:
            about = {key: _shortened(row) for key, row in self._run.kept(chosen).items()}
        except UserError as error:
            notes.append(f"{error}.")
        traced, streams = list[tuple[str, int, str]](), list[Streams]()
        whole = self._tracer is not None
        try:
            for traces in self._tracer.of(chosen) if self._tracer is not None else ():
                traced += traces.samples
                streams.append(self._encoder.streams(traces))
        except UserError as error:
            whole = False
            notes.append(f"{self._run.name} has no traces here: {error}.")
        return _Stretch(list(self._rows(chosen)), about, traced, streams if whole else None, notes)

    def _rows(self, chosen: dict[str, list[int]]) -> Iterator[tuple[tuple[str, int, str], list[Any]]]:
        """What the page has of each sample: score, rates, milliseconds, how it ended, and the error of a failed one."""
        asked = {(task, doc_id) for task, ids in chosen.items() for doc_id in ids}
        shown = self._counts.index.get_level_values("doc_id").isin({doc_id for _, doc_id in asked})
        table = metrics.rates(self._counts[shown], metrics.SAMPLE)[list(RATES)]
        rates = dict(zip(table.index, table.to_numpy().tolist(), strict=True))
        rows = self._samples[[key in asked for key in zip(self._samples.task, self._samples.doc_id, strict=True)]]
        for row in rows.itertuples():
            key = row.task, row.doc_id, row.method
            known = row.finish != "error"
            figures = clean(rates[(0, *key)] if known else [])
            told = [self._scores.get(key), figures, milliseconds(row.decode_seconds) if known else "", row.finish]
            yield key, told + [plain(last_line(row.error))] * (not known)


def _shortened(row: DocumentRow) -> list[Any]:
    """Prompt, how many characters before it are left out, reference answer and category, which may be unknown."""
    left_out = max(0, len(row.prompt) - LONGEST)
    return [row.prompt[left_out:], left_out, row.reference and row.reference[:LONGEST], row.category]
