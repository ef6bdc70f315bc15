"""`specbench calibrate`: which documents are read, what is counted, and what lies in the files."""

import json
from collections import Counter

import oracle
import pyarrow.parquet as pq
import pytest
import torch
from chains import SIZE, Words
from screens import output, refusal

from pocket.corpus import FAMILIES
from pocket.documents import CALIBRATION, VALIDATION, bundled, generated
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.training.csd_counting import Counting
from specbench.training.csd_texts import CountedText


def rows(path) -> list[dict]:
    return pq.read_table(path).to_pylist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "math"
    output(
        "calibrate",
        "--pair",
        "pocket-weak",
        "--suite",
        "math",
        "--documents",
        "6",
        "--temperature",
        "0.3",
        "--out",
        str(path),
    )
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
    facts = {k.decode(): v.decode() for k, v in pq.read_schema(folder / "universal.parquet").metadata.items()}
    assert (facts["documents"], facts["temperature"], facts["corpus"]) == ("6", "0.3", '"math"')
    assert facts["runtime"] == '"static"'  # what auto is on a CPU


def test_the_runtime_that_is_named_decodes(folder, tmp_path):
    """With the counts of the default: rows that are equal leave no ties to fall otherwise in float32."""
    words = ("calibrate", "--pair", "pocket-weak", "--suite", "math", "--documents", "2", "--temperature", "0.3")
    output(*words, "--runtime", "eager", "--out", tmp_path / "m")
    facts = pq.read_schema(tmp_path / "m" / "universal.parquet").metadata
    assert facts[b"runtime"] == b'"eager"'
    for name in ("pocket_gsm8k", "pocket_math500"):
        assert rows(tmp_path / "m" / f"{name}.parquet") == [
            row for row in rows(folder / f"{name}.parquet") if row["document"] < 2
        ]
    assert "--runtime fast" in refusal(*words, "--runtime", "fast", "--out", tmp_path / "n")


@pytest.mark.long
def test_fewer_documents_are_the_beginning_of_more(folder, tmp_path):
    output(
        "calibrate",
        "--pair",
        "pocket-weak",
        "--suite",
        "math",
        "--documents",
        "3",
        "--temperature",
        "0.3",
        "--out",
        str(tmp_path / "m"),
    )
    for name in ("pocket_gsm8k", "pocket_math500", "universal"):
        beginning = [row for row in rows(folder / f"{name}.parquet") if row["document"] < 3]
        assert rows(tmp_path / "m" / f"{name}.parquet") == beginning


# What is counted, of tiny models


def counted(target, draft, prompts, length, gamma=4, temperature=0.0, seed=0, first=0, rows=1):
    pair = Pair("made", {"target": target, "draft": draft}, Words())
    texts = [CountedText("made", i, prompt, (), length) for i, prompt in enumerate(prompts, first)]
    return Counting(pair, gamma, Sampling(temperature), seed, rows)(texts)


def test_counts_are_those_of_a_decoder_without_cache():
    """Each round's first refusal; that of the last round only where the text ends with the round."""
    target, draft = oracle.tiny_pair("llama", vocab=SIZE)
    gamma, length = 4, 14
    expected, cut = Counter(), 0
    prompts = oracle.prompts(8, length=7, vocab=SIZE, seed=1)
    for number, prompt in enumerate(prompts):
        known = [*prompt, *oracle.greedy(target, prompt, 1)]
        committed = 1
        for one in oracle.sps_greedy(target, draft, known, length - 1, gamma):
            committed += one.accepted + 1
            if one.accepted < gamma and committed <= length:
                expected[number, one.drafted[one.accepted], one.token] += 1
            cut += one.accepted < gamma and committed > length
    assert len(expected) > 8 and cut > 1, "else nothing is seen"
    assert counted(target, draft, prompts, length) == expected


def leaning(token: int, strength: float):
    """A model that says the same behind every text: so much more of one token than of each of the others."""
    model = oracle.tiny("llama", vocab=SIZE, num_hidden_layers=1).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if parameter.ndim == 1 or "embed" in name else 0.0)
        model.lm_head.weight[token] = strength / model.config.hidden_size
    return model


def test_a_pair_holds_what_the_target_likes_best_and_not_what_was_drawn():
    """The target prefers 7 a little and the draft 9 by far: a correction is seldom 7, and a refused 7 makes no pair."""
    target, draft = leaning(7, 1.0), leaning(9, 3.0)
    counts = counted(target, draft, [[1, 2, 3]] * 12, length=20, temperature=1.0)
    assert {wanted for _, _, wanted in counts} == {7}
    assert counts.total() > 50 and sum(n for (_, d, _), n in counts.items() if d == 9) > 20
    assert all(d != 7 for _, d, _ in counts)


def test_every_text_is_drawn_from_a_seed_of_its_own():
    """Of equal prompts each is drawn otherwise, the same again by its number, and otherwise from another seed."""
    target, draft = (oracle.tiny("llama", seed=seed, vocab=SIZE) for seed in (1, 2))
    prompt = oracle.prompts(1, length=7, vocab=SIZE)[0]

    def of_each(**options):
        counts = counted(target, draft, [prompt] * 4, 24, temperature=1.0, **options)
        numbers = {number for number, _, _ in counts}
        return {i: {(d, t): n for (number, d, t), n in counts.items() if number == i} for i in numbers}

    own = of_each()
    assert len(own) == 4 and len({tuple(sorted(one.items())) for one in own.values()}) == 4
    again, other = of_each(first=2), of_each(seed=1)
    assert [again[i] == own[i] for i in (2, 3)] == [True, True]
    assert [other[i] == own[i] for i in range(4)] == [False] * 4


# Many texts at a time


def test_texts_that_are_decoded_together_have_the_counts_of_each_alone():
    """Three rows for eleven texts: texts end at other rounds, and others take their places."""
    target, draft = oracle.tiny_pair("llama", vocab=SIZE)
    prompts = [prompt[: 3 + number] for number, prompt in enumerate(oracle.prompts(11, length=14, vocab=SIZE, seed=3))]
    for temperature in (0.0, 1.0):
        alone = counted(target, draft, prompts, 30, temperature=temperature)
        together = counted(target, draft, prompts, 30, temperature=temperature, rows=3)
        assert len({number for number, _, _ in alone}) > 8 and together == alone


def test_a_calibration_in_batches_has_the_files_of_one_by_one(folder, tmp_path):
    """The folder is of batches, the default; the thresholds that the counts reach are then the same, too."""
    words = ("calibrate", "--pair", "pocket-weak", "--suite", "math", "--documents", "6", "--temperature", "0.3")
    output(*words, "--batch", "1", "--out", tmp_path / "m")
    for path in folder.iterdir():
        alone = pq.read_table(tmp_path / "m" / path.name)
        assert alone.num_rows > 3 and alone.equals(pq.read_table(path), check_metadata=True)


def test_a_calibration_that_was_stopped_goes_on_with_what_it_had(folder, tmp_path, monkeypatch):
    words = ("calibrate", "--pair", "pocket-weak", "--suite", "math", "--documents", "6", "--temperature", "0.3")
    words += ("--batch", "1", "--out", tmp_path / "m")
    whole, done = Counting.__call__, []

    def stopped(self, texts, advance):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append([(text.task, text.number) for text in texts])
        return whole(self, texts, advance)

    monkeypatch.setattr(Counting, "__call__", stopped)
    output(*words, code=130)
    assert len(list((tmp_path / "m.begun").iterdir())) == 3 and not (tmp_path / "m").exists()
    assert "different temperature" in refusal(*words, "--temperature", "0.4")
    assert "different batch" in refusal(*words, "--batch", "2")
    monkeypatch.setattr(Counting, "__call__", lambda *args: done.append(args[1]) or whole(*args))
    assert "goes on" in output(*words)
    assert done[:3] == [
        [("pocket_gsm8k", number) for number in range(4)],
        [("pocket_gsm8k", number) for number in (4, 5)],
        [("pocket_math500", number) for number in range(4)],
    ]
    assert [[text.number for text in texts] for texts in done[3:]] == [[4, 5]], "what was done is done again"
    assert not (tmp_path / "m.begun").exists()
    for path in folder.iterdir():
        assert rows(tmp_path / "m" / path.name) == rows(path)


def test_a_memory_that_rescues_nothing_is_told_of(tmp_path):
    """By calibrate and by run, with what it would take; not where a pair was rejected often enough."""
    words = ("calibrate", "--pair", "pocket-weak", "--suite", "math", "--documents", "3", "--temperature", "0.3")
    said = " ".join(output(*words, "--out", tmp_path / "m", "--set", "csd.count_threshold=1000").split())
    table = rows(tmp_path / "m" / "pocket_gsm8k.parquet")
    pairs = Counter()
    for row in table:
        pairs[row["draft_token"], row["target_token"]] += row["count"]
    most = max(pairs.values())
    told = (
        "no pair was rejected 1000 times, as count_threshold 1000 asks: csd decodes as sps does, until it has counted "
        f"enough of them while it decodes. The {pairs.total()} rejections of 3 documents are of {len(pairs)} pairs, "
        f"{most} of the most frequent one; at this rate the first one would take {-(-3000 // most)} documents"
    )
    assert f"pocket_gsm8k: {told}" in said
    run = ("run", "--pair", "pocket-weak", "--suite", "math", "--limit", "1", "--method", "csd")
    run += ("--set", f"csd.memory={tmp_path / 'm'}")
    said = " ".join(output(*run, "--out", tmp_path / "a", "--set", "csd.count_threshold=1000").split())
    assert f"csd on pocket_gsm8k: {told}" in said
    assert "decodes as sps" not in output(*run, "--out", tmp_path / "b", "--set", "csd.count_threshold=1")


# Files


def test_a_run_reads_the_folder_and_its_manifest_has_the_hash_of_each_task(folder, tmp_path):
    words = ["run", "--method", "csd", "--suite", "smoke", "--limit", "1", "--set", f"csd.memory={folder}"]
    output(*words, "--out", str(tmp_path / "run"))
    inputs = json.loads((tmp_path / "run" / "manifest.json").read_text())["inputs"]["csd"]
    assert set(inputs) == {"memory", "memory pocket_gsm8k", "memory pocket_math500"}
    assert len(set(inputs.values())) == 3


def test_a_corpus_of_texts(tmp_path):
    texts = [row["article"] for row in generated("cnndm", "calibration")[:4]]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["too short", *texts]))
    out = tmp_path / "universal.parquet"
    assert "4 texts" in output("calibrate", "--corpus", str(path), "--documents", "10", "--out", str(out))
    assert rows(out)
    path.write_text('{"text": "words"}\n{"words": 3}\n')
    message = refusal("calibrate", "--corpus", str(path), "--out", str(tmp_path / "no.parquet"))
    assert "line 2" in message
    path.write_text('{"text": "words"}\n')
    assert "no text of 64 tokens" in refusal("calibrate", "--corpus", str(path), "--out", str(tmp_path / "no"))


def test_suite_or_corpus_and_not_both(tmp_path):
    assert "one of them" in refusal("calibrate")
    assert "one of them" in refusal("calibrate", "--suite", "math", "--corpus", str(tmp_path / "x"))


def test_humaneval_is_calibrated_on_mbpp_and_math500_on_math(tmp_path):
    mbpp = {"text": "Write a function to add.", "code": "import math\r\ndef add(a,\r\n        b):\r\n    return a + b"}
    (tmp_path / "mbpp_train.jsonl").write_text(json.dumps(mbpp | {"task_id": 601}) + "\n")
    problem = {"problem": "What is $1 + 1$?", "solution": r"It is $\boxed{2}$.", "answer": "2"}
    (tmp_path / "math_train.jsonl").write_text(json.dumps(problem) + "\n")
    suite = tmp_path / "mine.yaml"
    lines = [{"task": task, "fewshot": 0, "max_new_tokens": 20} for task in ("humaneval", "minerva_math500")]
    suite.write_text(json.dumps({"description": "two", "tasks": lines}))
    words = ("calibrate", "--suite", str(suite), "--data-dir", str(tmp_path), "--documents", "1")
    output(*words, "--out", str(tmp_path / "memory"))
    assert {path.stem for path in (tmp_path / "memory").iterdir()} == {"humaneval", "minerva_math500", "universal"}
    (tmp_path / "math_train.jsonl").unlink()
    assert "no file for the documents; put math_train.jsonl" in refusal(*words, "--out", str(tmp_path / "other"))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_generated_documents_of_two_kinds_share_no_content_with_each_other_or_the_test(family):
    def contents(rows):
        return {json.dumps(row, sort_keys=True) for row in rows}

    calibration, validation = generated(family, "calibration"), generated(family, "validation")
    assert len(calibration) == CALIBRATION and len(validation) == VALIDATION
    test = [{"template": p.template, **p.fields} for p in bundled(family, "test")]
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
