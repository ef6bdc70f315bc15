"""The lines that end a run: where its time and its memory went."""

from pathlib import Path

import pandas as pd

from specbench.base.console import duration
from specbench.base.folder import member
from specbench.results.aside import PARTS, SECONDS, TOTAL, read_seconds
from specbench.results.stored import StoredRun


def spent_lines(folder: Path, summary: pd.DataFrame) -> list[str]:
    """Lines about the time, the states and the memory of a finished run; none where they are not known."""
    lines = where_time_went(folder), what_states_cost(folder), where_memory_went(StoredRun(folder), summary)
    return [line for line in lines if line]


def where_time_went(folder: Path) -> str:
    """A line about the parts of a finished run's time; empty where it is not known, as of a run of several workers."""
    stored = read_seconds(member(folder, SECONDS))
    total = stored.get(TOTAL, 0.0)
    if total <= 0:
        return ""
    rest = total - sum(stored.get(part, 0.0) for part in PARTS)
    shares = [(part, stored.get(part, 0.0) / total) for part in PARTS] + [("the rest", rest / total)]
    return f"time:    {duration(total)}: " + ", ".join(f"{part} {share:.0%}" for part, share in shares)


def what_states_cost(folder: Path) -> str:
    """A line about the rollbacks of models with a state; empty where there are none."""
    stored = read_seconds(member(folder, SECONDS))
    if not (copies := stored.get("state copies")):
        return ""
    each, again = amount(stored["state bytes"] / copies), f"{stored['state again']:,.0f} tokens read again"
    return f"states:  {copies:,.0f} copies of {each} in {duration(stored['state seconds'])}, {again}"


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
    if size < 1e6:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
