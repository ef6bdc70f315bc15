"""`specbench calibrate`: which documents are read, what is counted, and what lies in the files."""

import json

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from specbench.cli import app
from specbench.pocket.corpus import FAMILIES
from specbench.pocket.documents import CALIBRATION, VALIDATION, draw, generated

runner = CliRunner()


def invoke(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def rows(path) -> list[dict]:
    return pq.read_table(path).to_pylist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "math"
    invoke("calibrate", "--suite", "math", "--documents", "6", "--temperature", "0.3", "--out", str(path))
    return path


def test_each_task_has_a_file_and_the_universal_one_is_their_sum(folder):
    assert {path.name for path in folder.iterdir()} == {
        "pocket_gsm8k.parquet",
        "pocket_math500.parquet",
        "universal.parquet",
    }
    one, other, both = (rows(folder / f"{name}.parquet") for name in ("pocket_gsm8k", "pocket_math500", "universal"))
    assert sum(row["count"] for row in both) == sum(row["count"] for row in [*one, *other])
    assert {row["document"] for row in both} <= set(range(6)) and len({row["document"] for row in one}) > 2
    assert all(row["draft_token"] != row["target_token"] for row in both)
    told = {k.decode(): v.decode() for k, v in pq.read_schema(folder / "universal.parquet").metadata.items()}
    assert (told["documents"], told["temperature"], told["corpus"]) == ("6", "0.3", '"math"')


def test_fewer_documents_are_the_beginning_of_more(folder, tmp_path):
    invoke("calibrate", "--suite", "math", "--documents", "3", "--temperature", "0.3", "--out", str(tmp_path / "m"))
    for name in ("pocket_gsm8k", "pocket_math500", "universal"):
        beginning = [row for row in rows(folder / f"{name}.parquet") if row["document"] < 3]
        assert rows(tmp_path / "m" / f"{name}.parquet") == beginning


def test_a_run_reads_the_folder_and_its_manifest_has_the_hash_of_each_task(folder, tmp_path):
    words = ["run", "--method", "csd", "--suite", "smoke", "--limit", "1", "--set", f"csd.memory={folder}"]
    invoke(*words, "--out", str(tmp_path / "run"))
    inputs = json.loads((tmp_path / "run" / "manifest.json").read_text())["inputs"]["csd"]
    assert set(inputs) == {"memory", "memory pocket_gsm8k", "memory pocket_math500"}
    assert len(set(inputs.values())) == 3


def test_a_corpus_of_texts(tmp_path):
    texts = [row["article"] for row in generated("cnndm", "calibration")[:4]]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["too short", *texts]))
    out = tmp_path / "universal.parquet"
    assert "4 texts" in invoke("calibrate", "--corpus", str(path), "--documents", "10", "--out", str(out))
    assert rows(out)
    path.write_text('{"text": "words"}\n{"words": 3}\n')
    message = invoke("calibrate", "--corpus", str(path), "--out", str(tmp_path / "no.parquet"), code=2)
    assert "line 2" in message
    path.write_text('{"text": "words"}\n')
    assert "no text of 64 tokens" in invoke("calibrate", "--corpus", str(path), "--out", str(tmp_path / "no"), code=2)


def test_suite_or_corpus_and_not_both(tmp_path):
    assert "one of them" in invoke("calibrate", code=2)
    assert "one of them" in invoke("calibrate", "--suite", "math", "--corpus", str(tmp_path / "x"), code=2)


def test_humaneval_is_calibrated_on_mbpp_and_math500_on_math(tmp_path):
    mbpp = {"text": "Write a function to add.", "code": "import math\r\ndef add(a,\r\n        b):\r\n    return a + b"}
    (tmp_path / "mbpp_train.jsonl").write_text(json.dumps(mbpp | {"task_id": 601}) + "\n")
    problem = {"problem": "What is $1 + 1$?", "solution": r"It is $\boxed{2}$.", "answer": "2"}
    (tmp_path / "math_train.jsonl").write_text(json.dumps(problem) + "\n")
    suite = tmp_path / "mine.yaml"
    lines = [{"task": task, "fewshot": 0, "max_new_tokens": 20} for task in ("humaneval", "minerva_math500")]
    suite.write_text(json.dumps({"description": "two", "tasks": lines}))
    words = ("calibrate", "--suite", str(suite), "--data-dir", str(tmp_path), "--documents", "1")
    invoke(*words, "--out", str(tmp_path / "memory"))
    assert {path.stem for path in (tmp_path / "memory").iterdir()} == {"humaneval", "minerva_math500", "universal"}
    (tmp_path / "math_train.jsonl").unlink()
    assert "no file for the documents; put math_train.jsonl" in invoke(*words, "--out", str(tmp_path / "other"), code=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_documents_of_two_kinds_share_no_content_with_each_other_or_the_test(family):
    def contents(rows):
        return {json.dumps(row, sort_keys=True) for row in rows}

    calibration, validation = generated(family, "calibration"), generated(family, "validation")
    assert len(calibration) == CALIBRATION and len(validation) == VALIDATION
    test = [{"template": p.template, **p.fields} for p in draw(family, "test", 150)]
    assert not contents(calibration) & contents(validation)
    assert not contents(test) & (contents(calibration) | contents(validation))


def test_signature_and_docstring_of_mbpp_by_hand():
    import importlib.util

    from specbench.config import SUITES

    spec = importlib.util.spec_from_file_location("mbpp", SUITES / "tasks" / "calibration" / "utils.py")
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    doc = {"text": "Write a function to add.", "code": "import math\r\ndef add(a, \r\n        b):\r\n    return a + b"}
    expected = 'import math\ndef add(a,\n        b):\n    """Write a function to add."""\n'
    assert utils.signature_and_docstring(doc) == expected
