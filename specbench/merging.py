"""`specbench merge`: one correction memory of several, such as those that the servers of a fleet gathered."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from specbench import memory
from specbench.analysis import REJECTED, RESCUED, decided, drafting
from specbench.config import UserError
from specbench.console import console
from specbench.memory import Pairs
from specbench.stored import StoredRun


def merge(sources: Sequence[Path], method: str | None, out: Path) -> None:
    """Add up memory files and what the rounds of run folders rejected into a new file; prints its size."""
    parts = {
        str(path): gathered(StoredRun(path), method) if path.is_dir() else memory.read_counts(path) for path in sources
    }
    total = memory.merge(parts, out)
    for name, (counts, _) in parts.items():
        console.print(f"{name}: {sum(counts.values())} rejections of {len(counts)} pairs", highlight=False)
    console.print(f"together: {sum(total.values())} rejections of {len(total)} pairs: {out}", highlight=False)


def gathered(run: StoredRun, method: str | None) -> tuple[Pairs, str]:
    """The pairs that one method of a run rejected or rescued, with their counts, and the run's tokenizer."""
    names = list(drafting(run).index)
    if method is None and len(names) > 1:
        raise UserError(f"{run.folder} has drafts of {', '.join(names)}; choose one by --method")
    chosen = method or names[0]
    if chosen not in names:
        raise UserError(f"{run.folder} has no drafts of a method {chosen}; it has those of {', '.join(names)}")
    counts: Counter[tuple[int, int]] = Counter()
    for decision in (REJECTED, RESCUED):
        rows = decided(run, chosen, decision)
        rows = rows[rows.draft_token != rows.target_token]
        counts.update(zip(rows.draft_token.tolist(), rows.target_token.tolist(), strict=True))
    return counts, run.manifest.get("tokenizer_hash") or ""
