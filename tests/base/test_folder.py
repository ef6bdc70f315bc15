"""A folder that is open: no link in it leads out of it, whenever it was put there."""

import ast
import os
from pathlib import Path

import pytest

from specbench.base import folder as module
from specbench.base.folder import Folder, FolderFile, LinkRefused
from specbench.base.untrusted import opened, read_json
from specbench.config import UserError

PACKAGE = Path(module.__file__).parents[1]


@pytest.fixture
def victim(tmp_path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "file").write_text('"precious"')
    (folder / "000000.states.json.0123abcd.new").write_text("precious")
    return folder


@pytest.fixture
def place(tmp_path, victim) -> Folder:
    """A folder in which `file` and `inner` lead to the victim."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").symlink_to(victim / "file")
    (tmp_path / "run" / "inner").symlink_to(victim)
    return Folder.at(tmp_path / "run")


def held(victim: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in victim.iterdir()}


@pytest.mark.parametrize(
    "step",
    [
        lambda place: place.open("file"),
        lambda place: place.folder("inner"),
        lambda place: place.folder("inner", make=True),
        lambda place: read_json(FolderFile(place, "file")),
        lambda place: place.refuse_links(),
        lambda place: place.folder("inner").write_json("new.json", 1),
    ],
)
def test_a_link_is_refused_in_one_line(place, victim, step):
    before = held(victim)
    with pytest.raises(LinkRefused, match=r"run/(file|inner) is a link"):
        step(place)
    assert held(victim) == before


def test_what_is_written_moved_or_removed_is_the_link(place, victim):
    before = held(victim)
    place.write_json("file", 1)
    assert read_json(FolderFile(place, "file")) == 1 and not (place.path / "file").is_symlink()
    place.move("inner", place, "moved")
    place.remove_folder("moved")
    assert (place.path / "moved").is_symlink()
    place.unlink("moved")
    assert place.names() == ["file"] and held(victim) == before


def test_a_link_put_there_meanwhile_is_not_followed(tmp_path, victim):
    """The folder that was opened stays the one that is written to."""
    (tmp_path / "run" / "parts").mkdir(parents=True)
    place = Folder.at(tmp_path / "run")
    parts, before = place.folder("parts"), held(victim)
    (tmp_path / "run" / "parts").rename(tmp_path / "run" / "kept")
    (tmp_path / "run" / "parts").symlink_to(victim)
    with parts.whole("part") as file:
        file.write(b"x")
        (tmp_path / "run" / "kept" / "other").symlink_to(victim / "file")
    parts.remove_leftovers()
    parts.unlink("other")
    assert held(victim) == before and (tmp_path / "run" / "kept" / "part").read_bytes() == b"x"
    with pytest.raises(LinkRefused):
        place.folder("parts", make=True)


def test_files_are_whole_or_as_before(tmp_path, monkeypatch):
    place = Folder.at(tmp_path)
    place.write_json("file", "old")
    with pytest.raises(TypeError):
        place.write_json("file", object())
    with pytest.raises(ZeroDivisionError), place.whole("file") as file:
        file.write(b"half")
        raise ZeroDivisionError
    monkeypatch.setattr(os, "replace", lambda *given, **named: os.stat(tmp_path / "missing"))
    with pytest.raises(OSError, match="missing"):
        place.write_json("file", "new")
    assert (tmp_path / "file").read_text() == '"old"' and os.listdir(tmp_path) == ["file"]


def test_errors_name_the_whole_path(tmp_path):
    place = Folder.at(tmp_path)
    (tmp_path / "plain").touch()
    (tmp_path / "inner").mkdir()
    with pytest.raises(NotADirectoryError, match=f"{tmp_path}/plain'"):
        place.folder("plain", make=True)
    with pytest.raises(IsADirectoryError, match=f"{tmp_path}/inner'"):
        place.write_json("inner", 1)
    with pytest.raises(UserError, match="is a folder, not a file"):
        opened(FolderFile(place, "inner"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        opened(FolderFile(place, "pipe"))


# What the package imports

DOORS = {"pyarrow.parquet": "base/parquet.py", "pyarrow.dataset": "base/parquet.py"}
READS = {"read_parquet", "to_parquet", "read_table", "ParquetFile", "OSFile", "memory_map", "read_feather"}


def test_one_module_opens_parquet():
    """Else a file of a few bytes would be read without its bounds somewhere."""
    result = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                named = [f"{node.module}.{alias}" for alias in named]
            result |= {(door, name) for door in DOORS for one in named if f"{one}.".startswith(f"{door}.")}
            if isinstance(node, ast.Attribute) and node.attr in READS and name != "base/parquet.py":
                result.add((node.attr, name))
    assert result == {(door, name) for door, name in DOORS.items()}


def test_nothing_follows_a_path_into_a_run_folder():
    """The modules that write run folders do so in open folders, not by paths."""
    for name in (
        "results/recorder.py",
        "results/records.py",
        "results/stored.py",
        "measure/loop.py",
        "measure/prepare.py",
        "measure/prompts.py",
    ):
        text = (PACKAGE / name).read_text()
        for call in ("mkdir(", "rename(", ".unlink(missing", "shutil", "write_text(", "iterdir(", "glob(", "open(path"):
            assert call not in text, (name, call)
