"""What tests of papers' tables share: a made-up paper in a folder, and runs that are asked for but not decoded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.papers import missing_runs, published


def publish(monkeypatch: pytest.MonkeyPatch, place: Path, about: dict[str, Any], *tables: str) -> None:
    """Have the one paper that there is be this one, its tables numbered from 1, in a folder of `place`."""
    folder = place / "published"
    folder.mkdir()
    (folder / "paper.yaml").write_text(yaml.safe_dump(about))
    for number, text in enumerate(tables, 1):
        (folder / f"paper-table{number}.csv").write_text(text)
    monkeypatch.setattr(published, "FOLDER", folder)


def instead_of_decoding(
    monkeypatch: pytest.MonkeyPatch, carry_out: Callable[..., bool], load: Callable[..., object]
) -> None:
    """Have missing runs be written by `carry_out`, of the models that `load` gives for a plan; nothing else is done."""
    monkeypatch.setattr(missing_runs.command, "carry_out", carry_out)
    monkeypatch.setattr(missing_runs.prepare, "load_models", load)
    monkeypatch.setattr(missing_runs.compare, "write_summary", lambda folder: None)
    monkeypatch.setattr(missing_runs, "_announce", lambda plan, folder, pair: None)
    monkeypatch.setattr(missing_runs, "load_tasks", lambda plan, pair: None)
    monkeypatch.setattr(missing_runs.prepare, "build_alone", lambda spec, pair: None)
