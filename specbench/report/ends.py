"""The lines that end a run: where its time and its memory went."""

from pathlib import Path

import pandas as pd

from specbench.measure.spent import where_time_went
from specbench.results.stored import StoredRun


def spent_lines(folder: Path, summary: pd.DataFrame) -> list[str]:
    """A line about the time of a finished run, and one about its memory; none where they are not known."""
    return [line for line in (where_time_went(folder), where_memory_went(StoredRun(folder), summary)) if line]


def where_memory_went(run: StoredRun, summary: pd.DataFrame) -> str:
    """The most memory that a run took, and what of it were weights and what was there after loading."""
    loaded, peak = run.manifest.get("memory_loaded"), summary.peak_memory.max()
    models = (run.manifest["models"] or {}).items()
    weights = {role: facts["forward"]["weight_bytes"] for role, facts in models if facts.get("forward")}
    if loaded is None or pd.isna(peak) or not weights:
        return ""
    each = ", ".join(f"{role} {amount(size)}" for role, size in weights.items())
    return (
        f"memory:  at most {amount(peak)}: {amount(loaded)} when all was loaded ({each}, libraries), the rest for "
        "caches and what methods keep"
    )


def amount(size: float) -> str:
    """Bytes in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
