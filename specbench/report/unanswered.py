"""Lines on what servers failed to answer: how often, why, and how to ask again."""

from collections.abc import Iterator, Sequence

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
        if len(rows) and run.finished and not run.shard:
            yield f"`specbench run --resume {run.folder}{permissions.flags_of(run.plan)}` asks again for what failed"
