"""Every file under results/ has a row in the index that says by which command, commit, machine and date it was made."""

import json
import re

import pytest

from figures import provenance

KNOWN, GONE = "1" * 12 + "+changes", "0" * 12  # commits
OF_A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users)/")


def test_every_file_says_where_it_comes_from() -> None:
    assert provenance.wrong() == []


def test_commits_are_of_this_history() -> None:
    if not provenance.head() or provenance.git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("no history here")
    commits = {row["commit"] for row in provenance.read()}
    assert len(commits) > 30 and [one for one in sorted(commits) if not provenance.exists(one)] == []


def test_no_file_names_a_folder_of_the_machine_that_made_it() -> None:
    texts = [path for path in provenance.RESULTS.rglob("*") if path.suffix in (".json", ".csv", ".md", ".txt", ".yaml")]
    assert len(texts) > 100
    assert [path.name for path in texts if OF_A_MACHINE.search(path.read_text())] == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two files, one of which says where it was made, and an index of both."""
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "one.csv").write_text("pair,documents,tau\npocket,7,1.5\npocket,9,1.5\n")
    place = {"cpu": "Some", "cores": 4, "device": "cpu", "load": 1.25, "git": KNOWN}
    (tmp_path / "reference" / "two.json").write_text(json.dumps({"environment": place, "documents": 5}))
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(provenance, "INDEX", tmp_path / "provenance.csv")
    monkeypatch.setattr(provenance, "head", lambda: "c0ffee")
    monkeypatch.setattr(provenance, "exists", lambda commit: commit.removesuffix("+changes") != GONE)
    empty = dict.fromkeys(provenance.COLUMNS, "")
    rows = [
        empty | {"file": f"reference/{name}", "command": "make it", "machine": "A"} for name in ("one.csv", "two.*")
    ]
    provenance.write(list(provenance.updated(rows)))
    return tmp_path


def test_a_new_row_gets_what_is_known_of_its_file(folder) -> None:
    one, two = provenance.read()
    assert (one["pair"], one["documents"], one["machine"], one["commit"]) == ("pocket", "9", "A", "c0ffee")
    assert (two["documents"], two["machine"], two["load"], two["commit"]) == ("5", "Some, 4 cores", "1.2", KNOWN)
    assert one["date"] == two["date"] and provenance.wrong() == []


def test_a_file_without_a_row_is_found(folder) -> None:
    (folder / "reference" / "three.txt").write_text("3\n")
    assert provenance.wrong() == ["reference/three.txt has no row in provenance.csv"]
    (folder / "published").mkdir()
    (folder / "published" / "paper.csv").write_text("of a paper\n")
    assert len(provenance.wrong()) == 1


def test_a_file_that_was_replaced_is_found(folder) -> None:
    path = folder / "reference" / "one.csv"
    path.write_text(path.read_text().replace("1.5", "1.6", 1))
    assert provenance.wrong() == ["reference/one.csv is another file: python tools/figures/provenance.py"]
    provenance.write(list(provenance.updated(provenance.read())))
    assert provenance.wrong() == []
    path.unlink()
    assert provenance.wrong() == ["reference/one.csv is not there"]


@pytest.mark.parametrize("name", provenance.REQUIRED)
def test_a_row_that_lacks_something_is_found(folder, name: str) -> None:
    one, two = provenance.read()
    provenance.write([one | {name: ""}, two])
    assert provenance.wrong() == [f"reference/one.csv has no {name}"]


def renamed(folder, **changes) -> list[str]:
    """What is wrong with the second file after changes of what it says of its machine."""
    path = folder / "reference" / "two.json"
    path.write_text(json.dumps({"environment": json.loads(path.read_text())["environment"] | changes}))
    one, two = provenance.read()
    provenance.write([one, two | {"sha256": provenance.hash_of(two)}])
    return provenance.wrong()


def test_a_file_of_an_unknown_or_another_commit_is_found(folder) -> None:
    assert renamed(folder, git=KNOWN) == []
    lines = "reference/two.json names the commit {}, {}"
    assert renamed(folder, git=GONE) == [lines.format(GONE, "which is not of this history: measure it again")]
    assert renamed(folder, git="2" * 12) == [lines.format("2" * 12, f"and the row {KNOWN[:12]}")]
    provenance.write(list(provenance.updated(provenance.read())))
    assert provenance.wrong() == [] and provenance.read()[1]["commit"] == "2" * 12


def test_options_that_a_command_does_not_say_are_found(folder) -> None:
    one, two = provenance.read()
    provenance.write([one, two | {"command": "`specbench bench --documents 8 --out …`, one thread"}])
    same = ["specbench", "bench", "--documents", "8", "--out", "some/where.json"]
    assert renamed(folder, command=same) == []
    (line,) = renamed(folder, command=[*same, "--runs", "3"])
    assert line == "reference/two.json was made with --runs 3, which its command does not say"
    assert renamed(folder, command=["recipe.py", "--runs", "3"]) == []
