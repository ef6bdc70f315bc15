"""The records of several runs under common labels; runs of one pair, sampling and method count as repeats."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import answers, metrics, workers
from specbench.analysis.alike import check_alike, method_labels, pair_labels
from specbench.config import UserError
from specbench.results.stored import StoredRun

SETUP = ["pair", "sampling"]
ROW = [*SETUP, "task", "method"]
ONCE = ["run", "repeat"]  # one pass over the documents


@dataclass(frozen=True)
class Measured:
    """The samples and scores of several runs, under common labels."""

    counts: pd.DataFrame  # of metrics.per_document, indexed by ROW, ONCE and doc_id
    scores: pd.DataFrame  # value and stderr of the tasks' headline metrics; columns ROW, ONCE and doc_id
    depths: pd.DataFrame  # of metrics.depths, with SETUP
    errors: pd.Series  # failed samples by ROW
    methods: list[str]  # in the order of the runs, but each baseline before the methods compared with it
    metric: dict[str, str]  # by task
    baselines: dict[str, str]  # by method; a method without a baseline has no entry
    asked: dict[str, dict[str, Any]]  # by method, what its prompts are asked with; empty without servers
    unlike: dict[str, tuple[str, list[str]]]  # methods asked otherwise than their baseline, with it and in what
    totals: dict[tuple[str, ...], list[dict[str, Any]]]  # of servers, by ROW
    mismatches: list[str]  # differences that the user allowed, and facts that imported runs lack
    conditions: dict[str, dict[str, Any]]  # by method of imported runs, what their files say of how they measured
    group: str | None  # lm-eval's group that all tasks are of, if its score weighs each by its documents
    imported: frozenset[int]  # runs, by their number, whose methods did not take turns on one machine for all we know

    @cached_property
    def by_row(self) -> dict[tuple[str, ...], pd.DataFrame]:
        """The counts of each row of the summary, indexed by ONCE and doc_id."""
        return {key: part.droplevel(ROW) for key, part in self.counts.groupby(level=ROW, sort=False)}

    def against(self, baseline: str | None) -> "Measured":
        """A copy with one baseline for all methods that compare with it, or with none.

        Methods that were asked otherwise, and imported ones whose files say that they were measured otherwise, have
        none. Raises UserError if there is no such method.
        """
        if baseline is not None and baseline not in self.methods:
            raise UserError(f"no method {baseline!r} in these runs; there are {', '.join(self.methods)}")
        alike = list(self.methods)
        if self.conditions:
            from specbench.results.importers.conditions import differences

            base = self.conditions.get(baseline or "", {})
            alike = [name for name in alike if not differences(self.conditions.get(name, {}), base)]
        baselines, unlike = _compared(dict.fromkeys(alike, baseline) if baseline else {}, self.asked)
        return replace(self, baselines=baselines, unlike=unlike)

    def joined(self, method: str, parts: Mapping[str, str]) -> "Measured":
        """A copy with one more method: on each task of `parts` what the method there measured."""
        tasks, methods = self.counts.index.get_level_values("task"), self.counts.index.get_level_values("method")
        counts = self.counts[[parts.get(task) == name for task, name in zip(tasks, methods, strict=True)]]
        scores = self.scores[[parts.get(row.task) == row.method for row in self.scores.itertuples()]]
        errors = self.errors[[parts.get(key[2]) == key[3] for key in self.errors.index]]
        baselines = {self.baselines[part] for part in parts.values() if part in self.baselines}
        return replace(
            self,
            counts=pd.concat([self.counts, _named(counts, method)]).sort_index(),
            scores=pd.concat([self.scores, scores.assign(method=method)], ignore_index=True),
            errors=pd.concat([self.errors, _named(errors, method)]),
            methods=[*self.methods, method],
            baselines=self.baselines | ({method: baselines.pop()} if len(baselines) == 1 else {}),
        )

    def only(self, tasks: Iterable[str]) -> "Measured":
        """A copy with only these tasks, so that averages are over them."""
        chosen = set(tasks)
        return replace(
            self,
            counts=self.counts[self.counts.index.isin(chosen, level="task")],
            scores=self.scores[self.scores.task.isin(chosen)],
            errors=self.errors[self.errors.index.isin(chosen, level="task")],
            metric={task: metric for task, metric in self.metric.items() if task in chosen},
            totals={row: parts for row, parts in self.totals.items() if row[2] in chosen},
        )


def _named(rows: Any, method: str) -> Any:
    """Rows with one method in their index."""
    index = rows.index.to_frame(index=False).assign(method=method)
    return rows.set_axis(pd.MultiIndex.from_frame(index))


def measured(
    runs: Sequence[StoredRun], allowed: Sequence[str] = (), with_depths: bool = False, unfinished: bool = False
) -> Measured:
    """Read runs for a comparison, with `unfinished` also those that have no scores yet.

    Raises UserError if they differ in what must agree and is not in `allowed`.
    """
    mismatches = check_alike(runs, allowed)
    labels = method_labels(runs)
    pairs = pair_labels(runs)
    counts, scores, depths, errors = [], [], [], []
    metric: dict[str, str] = {}
    of_servers: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, run in enumerate(runs):

        def labelled(rows: pd.DataFrame, number: int = number, sampling: str = run.sampling) -> pd.DataFrame:
            facts = {"pair": pairs[number], "sampling": sampling, "run": number}
            return rows.assign(**facts, method=rows.method.map(labels[number]))

        # First of all scores: a run that is unfinished or damaged is refused by them.
        scores.append(labelled(metrics.headline_rows(run, unfinished)))
        metric |= run.headline()
        for (task, name), parts in _told(run).items():
            row = pairs[number], run.sampling, task, labels[number][name]
            of_servers.setdefault(row, []).extend(parts)
        samples, rounds = run.samples([*metrics.TIMED, *workers.WHO, "prompt_tokens"]), run.rounds()
        run_counts = metrics.per_document(samples, rounds)
        lengths = samples[~samples.warmup].set_index(metrics.SAMPLE).prompt_tokens
        run_counts = run_counts.join(workers.of_texts(run, samples)).join(answers.of_texts(run))
        counts.append(labelled(run_counts.join(_least(run, run_counts, lengths)).reset_index()))
        errors.append(labelled(samples[~samples.warmup & (samples.finish == "error")]))
        if with_depths:
            depths.append(labelled(metrics.depths(rounds)))
    asked_with = _asked(runs, labels)
    baselines, unlike = _compared(_baselines(runs, labels), asked_with)
    methods = dict.fromkeys(label for by_name in labels for label in by_name.values())
    return Measured(
        methods=_in_order(list(methods), baselines),
        counts=pd.concat(counts, ignore_index=True).set_index([*ROW, *ONCE, "doc_id"]).sort_index(),
        scores=pd.concat(scores, ignore_index=True),
        depths=pd.concat(depths, ignore_index=True) if depths else pd.DataFrame(),
        errors=pd.concat(errors, ignore_index=True).groupby(ROW).size(),
        metric=metric,
        baselines=baselines,
        asked=asked_with,
        unlike=unlike,
        totals=of_servers,
        conditions=_conditions(runs, labels),
        mismatches=mismatches,
        group=_group(runs),
        imported=frozenset(number for number, run in enumerate(runs) if run.manifest.get("imported") is not None),
    )


def _least(run: StoredRun, counts: pd.DataFrame, lengths: pd.Series) -> pd.DataFrame:
    """The least seconds of each text's decoding, known where the machine was measured, or why they are not."""
    if run.manifest["models"] and run.manifest.get("ceilings"):
        from specbench.analysis.roofline import least_seconds

        return least_seconds(run, counts, lengths)
    why = "the machine was not measured before the run (specbench profile --ceilings)"
    if run.manifest["models"] is None:
        why = "imported records do not tell the models' sizes"
    return pd.DataFrame({"least": pd.Series(np.nan, counts.index), "unlimited": pd.Series(why, counts.index, object)})


def _asked(runs: Sequence[StoredRun], labels: Sequence[dict[str, str]]) -> dict[str, dict[str, Any]]:
    """What the prompts of each method are asked with, by label; nothing without servers: all are asked alike."""
    if not any(run.plan.servers or "imported" in run.manifest for run in runs):
        return {}
    from specbench.analysis import asked

    return {
        by_name[name]: values
        for run, by_name in zip(reversed(runs), reversed(labels), strict=True)
        for name, values in asked.settings(run).items()
    }


def _group(runs: Sequence[StoredRun]) -> str | None:
    """lm-eval's group that all tasks of all runs are of, if its score weighs them by their documents."""
    groups = {line.group for run in runs for line in run.plan.tasks}
    return groups.pop() if len(groups) == 1 else None


def _told(run: StoredRun) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What servers and other tools told of all requests together, by task and method."""
    if not run.plan.servers and "imported" not in run.manifest:
        return {}
    from specbench.analysis.totals import totals

    return totals(run)


def _conditions(runs: Sequence[StoredRun], labels: Sequence[dict[str, str]]) -> dict[str, dict[str, Any]]:
    """What the files of imported methods say of how they were measured, by label."""
    told: dict[str, dict[str, Any]] = {}
    for run, by_name in zip(runs, labels, strict=True):
        files = (run.manifest.get("imported") or {}).get("files") or []
        for file in files if isinstance(files, list) else []:
            if isinstance(file, dict) and file.get("method") in by_name and isinstance(file.get("conditions"), dict):
                told[by_name[file["method"]]] = file["conditions"]
    return told


def _baselines(runs: Sequence[StoredRun], labels: Sequence[dict[str, str]]) -> dict[str, str]:
    """The baseline of each method by label: from the first run that names one for it, else the first run's main one."""
    baselines: dict[str, str] = {}
    main: str | None = None
    for run, by_name in zip(runs, labels, strict=True):
        main = main or (by_name[run.plan.baseline] if run.plan.baseline else None)
        for name, label in by_name.items():
            if baseline := run.plan.against(name):
                baselines.setdefault(label, by_name[baseline])
    rest = {label: main for by_name in labels for label in by_name.values() if label not in baselines}
    return baselines | {label: base for label, base in rest.items() if base}


def _compared(
    baselines: Mapping[str, str], asked_with: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, str], dict[str, tuple[str, list[str]]]]:
    """The baselines of methods that were asked alike, and the others' with what differs."""
    if not asked_with:
        return dict(baselines), {}
    from specbench.analysis import asked

    differing = {
        name: (base, fields)
        for name, base in baselines.items()
        if name in asked_with and base in asked_with and (fields := asked.unlike(asked_with[name], asked_with[base]))
    }
    return {name: base for name, base in baselines.items() if name not in differing}, differing


def _in_order(methods: list[str], baselines: dict[str, str]) -> list[str]:
    """Methods grouped by baseline, with the baseline first in its group; otherwise in the given order."""
    bases = dict.fromkeys(baselines.get(label) for label in methods)
    group_of = {label: label if label in bases else baselines.get(label) for label in methods}
    groups = list(dict.fromkeys(group_of.values()))
    return sorted(methods, key=lambda label: (groups.index(group_of[label]), label != group_of[label]))
