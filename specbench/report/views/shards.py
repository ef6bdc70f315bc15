"""How a run is cut into shards, before any is decoded."""

from specbench.measure.shards import Cut, contents
from specbench.measure.work import Work
from specbench.report.finding import Finding, Sheet


def view(work: Work, cut: Cut) -> Finding:
    """Every shard with its documents."""
    documents, methods = len(work.whole), len(work.plan.methods)
    rows, whole = [], sum(cut.weights)
    for number, (shard, weight) in enumerate(zip(cut.shards, cut.weights, strict=True), 1):
        parts = [_part(*part, repeats=work.plan.repeats) for part in contents(work, shard)]
        rows.append([f"{number}/{len(cut.shards)}", str(len(shard)), f"{weight / whole:.0%}", "; ".join(parts)])
    sheet = Sheet(["shard", "documents", "share", "which"], rows, align="lrrl")
    lines = [
        f"{documents} documents, each by {methods} method{'s' * (methods > 1)}; at most {cut.places} shards.",
        f"Where it can be cut: {cut.why}.",
    ]
    notes = ["share: of the new tokens that all answers may have"]
    return Finding("shards", f"SHARDS OF {work.plan.suite} ({work.plan.pair.name})", [sheet], lines, notes, vars(cut))


def _part(repeat: int, task: str, first: int, last: int, repeats: int) -> str:
    numbers = f"{first}" if first == last else f"{first} to {last}"
    return f"{task} {numbers}" + f" (repeat {repeat})" * (repeats > 1)
