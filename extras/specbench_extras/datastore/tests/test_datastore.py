"""Building a datastore: the order of its suffixes, bounded shards, corpora, and nothing left of a build that stops."""

import json
from pathlib import Path

import naive_datastore as naive
import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from specbench import config
from specbench.config import UserError
from specbench.engine.models.tokenizer import load_tokenizer, vocabulary_hash
from specbench.methods.lookup.rest_datastore import END, Datastore, find_datastore
from specbench_extras.datastore import build as builder
from specbench_extras.datastore.build import build, suffixes
from specbench_extras.datastore.command import build_datastore


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(config.load_pair("pocket").target)


def made(folder: Path, documents, shard, name="store") -> Datastore:
    build(documents, folder / name, 100, "abc", {"made": "here"}, shard)
    return Datastore(folder / name)


SHORT = st.lists(st.sampled_from([0, 1, 2, END]), min_size=1, max_size=60)
ALIKE = st.lists(st.sampled_from([[0] * 9 + [1], [0] * 13 + [1], [0] * 17, [2], [END]]), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tokens=SHORT | ALIKE.map(lambda parts: [token for part in parts for token in part]))
def test_suffixes_are_sorted_by_their_first_tokens_then_by_place(tokens):
    """Some differ behind 9 or 13 tokens, others within the depth nowhere."""
    padded = [*tokens, *[END] * naive.DEPTH]
    expected = sorted(range(len(tokens)), key=lambda i: (padded[i : i + naive.DEPTH], i))
    values = suffixes(np.array(tokens, np.uint32)).tolist()
    assert values == [i for i in expected if tokens[i] != END]


def test_the_same_documents_are_the_same_datastore_in_bounded_shards(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(builder, "suffixes", lambda tokens: sizes.append(len(tokens)) or suffixes(tokens))
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 50, rng.integers(1, 80)).tolist() for _ in range(40)]
    one = made(tmp_path, documents, 100)
    assert max(sizes) <= 101 and len(sizes) == one.about.shards > 10
    assert made(tmp_path, iter(documents), 100, name="again").about == one.about
    assert made(tmp_path, documents[::-1], 100, name="other").about.contents != one.about.contents


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_a_build_that_is_stopped_leaves_nothing(tmp_path, error):
    def documents():
        yield from [[1, 2, 3]] * 10
        raise error("stop")

    with pytest.raises(error):
        build(documents(), tmp_path / "store", 5, "abc", {}, shard=6)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store.new").mkdir()  # of one that was killed
    (tmp_path / "store.new" / "tokens.bin").write_bytes(b"half")
    build([[1, 2, 3]], tmp_path / "store", 5, "abc", {})
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert len(Datastore(tmp_path / "store")) == 3
    with pytest.raises(UserError, match="exists; choose another --out"):
        build([[1, 2, 3]], tmp_path / "store", 5, "abc", {})


def test_nothing_to_build_of(tmp_path):
    with pytest.raises(UserError, match="the corpus has no text"):
        build([[], []], tmp_path / "store", 5, "abc", {})
    for wrong in ([5], [-1]):
        with pytest.raises(ValueError, match="outside of the vocabulary of 5"):
            build([wrong], tmp_path / "store", 5, "abc", {})
    assert list(tmp_path.iterdir()) == []


# Corpora


def command(*arguments):
    app = typer.Typer()
    app.command()(build_datastore)
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.output


def texts_of(folder, tokenizer) -> list[str]:
    """The documents of a datastore as texts, their special tokens spelt out."""
    ids = np.fromfile(folder / "tokens.bin", ">u4").tolist()
    results, document = [], []
    for token in ids:
        if token == END:
            results.append(tokenizer.decode(document, clean_up_tokenization_spaces=False))
            document = []
        else:
            document.append(token)
    return results


def test_files_become_documents(tmp_path, tokenizer):
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": t, "n": 1}) + "\n" for t in ("One.", "", f"Two.\n\nT{eos}"))
    )
    (tmp_path / "b.txt").write_text("\n\nA line\nand one\n \n\nLast")
    code, said = command(
        "--corpus",
        tmp_path / "a.jsonl",
        "--corpus",
        tmp_path / "b.txt",
        "--out",
        tmp_path / "store",
        "--pair",
        "pocket",
    )
    assert code == 0, said
    texts = ["One.", "Two.\n\nT", "A line\nand one\n", "Last"]
    assert texts_of(tmp_path / "store", tokenizer) == [f"{bos}{text}{eos}" for text in texts]
    assert "a.jsonl: 2 documents" in said and "b.txt: 2 documents" in said
    assert "next: specbench run --method rest --pair pocket" in said
    store = find_datastore(str(tmp_path / "store"), vocabulary_hash(tokenizer))
    assert [one["corpus"] for one in store.about.source["corpora"]] == ["a.jsonl", "b.txt"]
    code, said = command("--corpus", tmp_path / "a.jsonl", "--documents", "1", "--out", tmp_path / "first")
    assert code == 0 and texts_of(tmp_path / "first", tokenizer) == [f"{bos}One.{eos}"]


def test_documents_of_a_task_with_their_answers_and_no_examples(tmp_path, tokenizer):
    target = config.load_pair("pocket").target.model
    code, said = command(
        "--corpus", "pocket_gsm8k:train", "--corpus", "pocket_humaneval:calibration", "--documents", "3",
        "--tokenizer", target, "--out", tmp_path / "store",
    )  # fmt: skip
    assert code == 0, said
    texts = texts_of(tmp_path / "store", tokenizer)
    tasks = config.SUITES / "tasks" / "pocket"
    rows = [json.loads(line) for line in (tasks / "gsm8k_train.jsonl").read_text().splitlines()[:3]]
    expected = [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in rows]
    assert texts[:3] == [f"{tokenizer.bos_token}{text}{tokenizer.eos_token}" for text in expected]
    assert len(texts) == 6 and all("def " in text and "return" in text for text in texts[3:])


def test_a_tasks_usual_examples_are_left_out(tmp_path, tokenizer, real_data):
    """gsm8k is asked with five; in a datastore each of its documents shall stand once."""
    code, said = command(
        "--corpus", "gsm8k:train", "--data-dir", real_data, "--documents", "4", "--out", tmp_path / "store"
    )  # fmt: skip
    assert code == 0, said
    texts = texts_of(tmp_path / "store", tokenizer)
    assert len(texts) == 4 and all(text.count("Question:") == text.count("Answer:") == 1 for text in texts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--corpus", "pocket_gsm8k:test"], "--corpus pocket_gsm8k:test: pocket_gsm8k is tested on its test documents"),
        (["--corpus", "pocket_gsm8k:nowhere"], "nowhere"),
        (["--corpus", "nothing.jsonl"], "there is no file nothing.jsonl; give --corpus FILE.jsonl, FILE.txt or"),
        (["--corpus", "no_task:train"], "no task 'no_task'"),
        (["--corpus", "{}/bad.jsonl"], 'bad.jsonl, line 2 has no "text"; write a JSON object'),
        (["--corpus", "{}/number.jsonl"], 'number.jsonl, line 1 has no "text"; write a JSON object'),
        (["--corpus", "{}/latin.txt"], "latin.txt, line 1 is damaged (no text in UTF-8: byte 3); a .txt file is UTF-8"),
        (["--corpus", "{}/empty.txt"], "empty.txt has no text; leave it out"),
        (["--corpus", "{}/good.txt", "--pair", "pocket", "--tokenizer", "x"], "--pair or --tokenizer, not both"),
        (["--corpus", "{}/good.txt", "--tokenizer", "{}/nowhere"], "nowhere: there is no such folder"),
        (["--corpus", "{}/good.txt", "--out", "{}"], "exists; choose another --out"),
    ],
)
def test_bad_corpora_are_one_line_and_leave_nothing(tmp_path, arguments, words):
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{"txt": "bad"}\n')
    (tmp_path / "number.jsonl").write_text('{"text": 3}\n')
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "good.txt").write_text("Text.")
    filled = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    out = [] if "--out" in filled else ["--out", tmp_path / "store"]
    code, said = command(*filled, *out)
    assert code == 2
    error = said[said.index("error:") :].strip()
    assert words in error and "\n" not in error
    assert not (tmp_path / "store").exists() and not (tmp_path / "store.new").exists()
