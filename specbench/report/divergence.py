"""Lines on greedy texts of lossless methods that differ from their baseline's: defects, and near ties of two tokens."""

from collections.abc import Iterator, Sequence

import pandas as pd
import pyarrow.compute as pc

from specbench.results.stored import StoredRun

COLUMNS = ["repeat", "task", "doc_id", "method", "diverged_at", "divergence_gap", "divergence"]
BUG, TIE = "bug", "tie"
HALF = ("bfloat16", "float16")
FAULT = "error: "  # how the line of a defect begins


def faulty(run: StoredRun) -> bool:
    """True if a lossless method gave a text that is not its baseline's, where no rounding explains it."""
    return bool((_diverged(run).divergence == BUG).any())


def divergence_lines(runs: Sequence[StoredRun]) -> Iterator[str]:
    """A line for each method with defects, then one for each that differs at near ties."""
    rows = [(run, name, of_method) for run in runs for name, of_method in _diverged(run).groupby("method", sort=False)]
    for run, name, of_method in rows:
        bugs = of_method[of_method.divergence == BUG]
        if len(bugs):
            first = bugs.iloc[0]
            base, texts = run.plan.against(name), _texts(run, name)
            gap = f", logits {first.divergence_gap:.3g} apart" if first.divergence_gap < float("inf") else ""
            yield (
                f"{FAULT}{_named(run, runs, name)} calls itself lossless, and {len(bugs)} of {texts} greedy texts "
                f"are not {base}'s (the first: {first.task}, document {first.doc_id}, token {first.diverged_at}"
                f"{gap}); `specbench trace {run.folder} --task {first.task} --doc {first.doc_id} --method {base} "
                f"--method {name}` shows where"
            )
    for run, name, of_method in rows:
        ties = int((of_method.divergence == TIE).sum())
        dtype = ((run.manifest.get("models") or {}).get("target") or {}).get("dtype")
        half = f" of {dtype}, which would hide a small defect too; --dtype float32 tells" if dtype in HALF else ""
        if ties:
            yield (
                f"{_named(run, runs, name)}: {ties} of {_texts(run, name)} greedy texts leave "
                f"{run.plan.against(name)}'s at a near tie of two tokens, which is decided by the rounding{half}"
            )


def _diverged(run: StoredRun) -> pd.DataFrame:
    counts = ~pc.field("warmup") & pc.field("divergence").is_valid()
    return run.scan_samples().to_table(COLUMNS, counts).to_pandas()


def _texts(run: StoredRun, method: str) -> int:
    """How many texts a method gave."""
    counts = ~pc.field("warmup") & (pc.field("method") == method) & (pc.field("finish") != "error")
    return int(run.scan_samples().to_table(["doc_id"], counts).num_rows)


def _named(run: StoredRun, runs: Sequence[StoredRun], method: str) -> str:
    return f"{method} of {run.name}" if len(runs) > 1 else method
