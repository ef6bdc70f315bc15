"""Lines on what servers failed to answer: how often, why, how to ask again, and what was asked again."""

from collections.abc import Iterator, Sequence

import pyarrow.compute as pc

from specbench import permissions
from specbench.results.stored import StoredRun
from specbench.results.unanswered import of_servers

MOST = 2  # reasons of a server that are named


def unanswered_lines(runs: Sequence[StoredRun]) -> Iterator[str]:
    """A line for each server that failed, with its most frequent reasons, and one on how to go on."""
    for run in runs:
        names = [spec.name for spec in run.plan.servers]
        if not names or "imported" in run.manifest:
            continue
        rows = run.scan_samples().to_table(["method", "error"], of_servers(names)).to_pandas()
        for name, errors in rows.groupby("method", sort=False).error:
            counts = errors.value_counts()
            why = "; ".join(f"{count} × {reason}" for reason, count in counts.head(MOST).items())
            more = f"; {len(counts) - MOST} other reasons" if len(counts) > MOST else ""
            yield f"server {name} failed {len(errors)} times: {why}{more}"
        yield from _later(run, names)
        if len(rows) and run.finished and not run.shard:
            yield f"`specbench run --resume {run.folder}{permissions.flags_of(run.plan)}` asks again for what failed"


def _later(run: StoredRun, names: Sequence[str]) -> Iterator[str]:
    """A line for each server that was asked again for texts whose documents the other methods had decoded before."""
    key = ["repeat", "task", "doc_id"]
    samples = run.scan_samples().to_table([*key, "method", "attempt"], ~pc.field("warmup")).to_pandas()
    first = samples.groupby(key).attempt.transform("min")
    for name, count in samples[samples.attempt > first].groupby("method", sort=False).size().items():
        if name in names:
            yield f"server {name} was asked again for {count} texts, later than other methods: their times do not pair"
