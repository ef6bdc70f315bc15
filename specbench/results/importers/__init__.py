"""Figures of other tools as run folders, which `show` and `compare` read like any other.

What a file does not hold stays null, and metrics that need it are NaN. No text is scored, so `scores.parquet` is empty.
Two columns of `records.SAMPLES` are for files with a total but not its parts: `new_tokens` (the first one included) and
`wall_seconds` (prefill and decoding together).

Importers are entry points of the group `specbench.importers`. One of a tool's files is a module with `read(path)`,
which returns `foreign.Figures`; if it takes more, it declares that in `OPTIONS`. One of released heads has a name that
ends in `-head`: a module with `import_head(checkpoint, pair, out, kind)`, which writes a head file and returns its
path; if a checkpoint may be a name on the hub, it has a true `HUB`.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench.base.errors import did_you_mean
from specbench.config import UserError, plugins

HEAD = "-head"
OPTIONS = {
    "by_category": "--by-category is for spec-bench and speed-bench; {} has no categories",
    "before": "--before is for vllm; {} has no scrapes",
}  # of `read`, and what is said of a tool without it


def tools() -> list[str]:
    """The tools whose files can be imported."""
    return [name for name in plugins.entries("importers") if not name.endswith(HEAD)]


def heads() -> list[str]:
    """The kinds of released heads that can be imported, with `-head`."""
    return [name for name in plugins.entries("importers") if name.endswith(HEAD)]


def importer(name: str) -> ModuleType:
    """The module of one of `tools` or `heads`. Whoever calls it says which packages may run."""
    module: ModuleType = plugins.entries("importers")[name].load()
    return module


def read(tool: str, path: Path, **options: Any) -> Sequence[Any]:
    """The `foreign.Figures` in a file of a tool, with those of OPTIONS that it takes."""
    figures: Sequence[Any] = importer(tool).read(path, **options)
    return figures


def import_files(
    tool: str,
    files: Sequence[Path],
    baseline: Path | None = None,
    method: str | None = None,
    pair: str | None = None,
    out: Path | None = None,
    by_category: bool = False,
    before: Path | None = None,
    allowed: Sequence[str] = (),
) -> Path:
    """Make a run folder of a tool's files, each of which is a method or several; print warnings.

    Args:
        baseline: the file of plain decoding, which becomes `vanilla`.
        method: the name of the method of a single file.
        pair: the name of the pair of models; by default the tool's.
        by_category: make each category a task, where a tool has them.
        before: of vLLM, a scrape of /metrics before the one in `files`.
        allowed: conditions in which files may differ from the baseline, such as `rate`.

    Returns:
        The run folder.

    Raises:
        UserError: a file is damaged or of another kind; the message names file and line.
    """
    if tool not in (known := tools()):
        raise UserError(f"no importer {tool!r}{did_you_mean(tool, known)}; there are {', '.join(known)}")
    if before and len(files) != 1:
        raise UserError("--before goes with a single later scrape; import several one by one")
    options = {"by_category": by_category, "before": before}
    given = {name: value for name, value in options.items() if value}
    taken = getattr(importer(tool), "OPTIONS", ())
    if lacking := given.keys() - set(taken):
        raise UserError(OPTIONS[lacking.pop()].format(tool))
    from specbench.results.importers.foreign import write

    return write(tool, lambda path: read(tool, path, **given), files, baseline, method, pair or tool, out, allowed)
