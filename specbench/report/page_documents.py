"""The documents of the HTML page: what each was about, and how every method wrote its text; page.js reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.analysis import metrics
from specbench.analysis.texts import Decode, load_decode
from specbench.analysis.trace import document_scores, last_line, traces
from specbench.base.console import plain
from specbench.config import UserError
from specbench.report.page_style import clean
from specbench.report.page_traces import Encoder, milliseconds
from specbench.results.documents import Document
from specbench.results.stored import StoredRun

DOCUMENTS = 200  # of each task
TRACES = 2_200_000  # bytes of compressed traces, so that a page stays below 5 MB
TRIED = 16  # documents of each task whose traces tell how many the page has room for
LONGEST = 6000  # characters of a prompt: its end, as few-shot examples come first
RATES = ("acceptance_rate", "tau", "discard_rate", "verification_rate", "tokens_per_s")


@dataclass(frozen=True)
class Source:
    """A run and what the page takes from it."""

    run: StoredRun
    methods: dict[str, str]  # by name in the run: the name in a comparison
    labels: dict[str, str]  # by name in the run: the name on the page, with pair and sampling where there are several
    samples: pd.DataFrame
    counts: pd.DataFrame  # of metrics.per_document


def packed(sources: Sequence[Source], metric: dict[str, str]) -> tuple[bytes, list[str]]:
    """The drill-down's data, of as many documents as the page has room for, and notes about it."""
    decoders = [_decoder(source.run) for source in sources]
    most = DOCUMENTS
    if max((source.samples.groupby("task").doc_id.nunique().max() for source in sources), default=0) > 4 * TRIED:
        few, twice = (len(_drill_down(sources, decoders, metric, count)[0]) for count in (TRIED, 2 * TRIED))
        each = max(1, twice - few) / TRIED  # without what all share, such as the words of a vocabulary
        most = min(most, max(TRIED, int(TRIED + 0.95 * (TRACES - few) / each)))
    while True:
        data, notes = _drill_down(sources, decoders, metric, most)
        if len(data) <= TRACES or most == 1:
            return data, notes
        most = max(1, int(0.95 * most * TRACES / len(data)))


def _decoder(run: StoredRun) -> Decode | str:
    """What turns a run's tokens into text, or why there is nothing that does."""
    try:
        return load_decode(run)
    except UserError as error:
        return f"{run.name} has no traces here: {error}."


def _drill_down(
    sources: Sequence[Source], decoders: Sequence[Decode | str], metric: dict[str, str], most: int
) -> tuple[bytes, list[str]]:
    encoder = Encoder()
    tasks, labels, notes = list(metric), list[str](), list[str]()
    samples: list[list[Any]] = []
    about: dict[tuple[str, int], Document] = {}
    for source, decode in zip(sources, decoders, strict=True):
        new = {name: label for name, label in source.labels.items() if label not in labels}
        labels += new.values()
        first = source.samples[(source.samples.repeat == 0) & source.samples.method.isin(list(new))]
        first = first[first.task.isin(tasks)]
        documents = {task: sorted(ids.unique().tolist()) for task, ids in first.groupby("task", sort=False).doc_id}
        chosen = {task: ids[:most] for task, ids in documents.items()}
        for task, ids in documents.items():
            if len(ids) > most:
                notes.append(f"{task}: the first {most} of {len(ids)} documents are here.")
        try:
            about = source.run.kept(chosen) | about
        except UserError as error:
            notes.append(f"{error}.")
        servers = [label for name, label in new.items() if name in {spec.name for spec in source.run.plan.servers}]
        notes += [f"{label} has no traces: a server does not tell which tokens it drafted." for label in servers]
        places = {}
        notes += [decode] if isinstance(decode, str) else []
        try:
            for trace in [] if isinstance(decode, str) else traces(source.run, decode, 0, chosen, list(new)):
                places[trace.task, trace.doc_id, trace.method] = encoder.add(trace)
        except UserError as error:
            notes.append(f"{source.run.name} has no traces here: {error}.")
        shown = source.counts.index.get_level_values("doc_id").isin({id_ for ids in chosen.values() for id_ in ids})
        scores = document_scores(source.run, metric)
        table = metrics.rates(source.counts[shown], metrics.SAMPLE)[list(RATES)]
        rates = dict(zip(table.index, table.to_numpy().tolist(), strict=True))
        for row in first.sort_values("doc_id", kind="stable").itertuples():
            if row.doc_id not in chosen[row.task]:
                continue
            key = row.task, row.doc_id, row.method
            known = row.finish != "error"
            of_sample = rates[(0, *key)] if known else []
            samples.append(
                [tasks.index(row.task), row.doc_id, labels.index(new[row.method]), places.get(key, -1), scores.get(key)]
                + [clean(of_sample), milliseconds(row.decode_seconds) if known else "", row.finish]
                + [plain(last_line(row.error))] * (not known)
            )
    repeats = max((int(source.samples.repeat.max()) + 1 for source in sources if len(source.samples)), default=1)
    if repeats > 1 or len(labels) < sum(len(source.labels) for source in sources):
        notes.append("Of several passes over the documents the first one is shown.")
    names = {"tasks": [[plain(task), plain(metric[task])] for task in tasks], "labels": list(map(plain, labels))}
    texts = [[tasks.index(row.task), row.doc_id, *_shortened(row)] for row in about.values()]
    return encoder.packed(names | {"samples": samples, "rates": RATES, "about": texts}), list(dict.fromkeys(notes))


def _shortened(row: Document) -> list[Any]:
    """Prompt, how many characters before it are left out, reference answer and category, which may be unknown."""
    left_out = max(0, len(row.prompt) - LONGEST)
    return [row.prompt[left_out:], left_out, row.reference and row.reference[:LONGEST], row.category]
