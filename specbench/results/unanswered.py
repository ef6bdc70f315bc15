"""Samples of servers that failed: a run that is resumed asks for them again."""

from collections.abc import Sequence

import pyarrow.compute as pc

from specbench.results.stored import StoredRun


def unanswered(run: StoredRun) -> int:
    """How many samples of servers failed in a whole run that is decoded; 0 for a shard."""
    names = [spec.name for spec in run.plan.servers]
    if not names or run.shard or "imported" in run.manifest:
        return 0
    return int(run.scan_samples().to_table(["doc_id"], of_servers(names)).num_rows)


def of_servers(names: Sequence[str]) -> pc.Expression:
    """True of the samples that these servers failed."""
    return (pc.field("finish") == "error") & ~pc.field("warmup") & pc.field("method").isin(list(names))
