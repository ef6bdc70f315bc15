"""How tests run a program: under each isolation that this machine has, and under ones that were weakened on purpose."""

from pathlib import Path

import pytest

from specbench.tasks import sandbox
from specbench.tasks.sandbox import Outcome, launch

PACKAGE = Path(sandbox.__file__).parent
PROBLEMS = {name: sandbox.problem_of(name) for name in sandbox.COMPLETE}
each_kind = pytest.mark.parametrize(
    "kind",
    [
        *(
            pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=f"{name}: {why}"))
            for name, why in PROBLEMS.items()
        ),
        "limits",
    ],
)


def run(kind: str, program: str, seconds: float = 8.0) -> Outcome:
    return sandbox.run_in(kind, program, seconds=seconds, memory_mb=512)


def weakened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, tuple[str, str]]) -> None:
    """Run with modules whose text is changed: {module: (old, new)}."""
    for module in ("syscalls", "jail", "supervise"):
        text = (PACKAGE / f"{module}.py").read_text()
        if module in changes:
            assert text.count(changes[module][0]) == 1
            text = text.replace(*changes[module])
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "launch.py"))
    monkeypatch.setattr(launch, "_modules", launch._modules.__wrapped__)
