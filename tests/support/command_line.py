"""The command line as tests call it: in an empty folder, with one line for everything that is refused."""

import shutil
from pathlib import Path

import pytest
from oracle import tiny
from screens import call

from specbench.config import SUITES

BUNDLED = SUITES / "pairs" / "weights" / "target"


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Every test works in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refused(*arguments: str | Path) -> str:
    """The one line on stderr of a call that must fail with exit code 2 and leave no file behind."""
    before = listing(Path.cwd())
    result = call(*arguments)
    assert result.exit_code == 2, f"{result.exit_code}: {result.exception!r}\n{result.output}"
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    assert listing(Path.cwd()) == before, "something was left behind"
    return lines[0]


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> str:
    """`--pair` of two tiny models with 256 positions and the bundled tokenizer, in folders."""
    root = tmp_path_factory.mktemp("pair")
    for role, seed in (("target", 1), ("draft", 2)):
        tiny("llama", seed, vocab=2048).save_pretrained(root / role)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BUNDLED / file, root / role)
    return f"target={root / 'target'},draft={root / 'draft'}"
