"""Answers without a text, and answers that repeat themselves: found, counted, and left out of speeds."""

import pytest
from synthetic import CHAIN, SINGLE, rounds, sample, scores, write_run

from specbench.analysis import answers, compare, pooled
from specbench.report.notes import warnings
from specbench.report.words import sentences
from specbench.results import records
from specbench.results.stored import StoredRun

PROSE = "Nine birds sit on a fence, two fly off, and after an hour three of them come back with a friend."


@pytest.mark.parametrize(
    "text",
    [
        PROSE + " I am sure." * 20,
        "ha" * 30,
        "\n" * 60,
        PROSE[:40] + " 0.333333333333333333333333333333333333333333333",
        "于是他说：" * 12,
        PROSE[:20] + "\n| a | b |" * 8 + "\n| a",  # cut within a repetition
    ],
)
def test_a_loop(text):
    assert answers.loops(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PROSE,
        PROSE * 3,  # three times are no loop
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,",
        "no no no no no",  # too little to tell
        "I am sure." * 20 + PROSE * 4 + "So four.",  # it came out of the loop
    ],
)
def test_no_loop(text):
    assert not answers.loops(text)


def run_of(folder, texts, **of_samples):
    """Ten documents; what vanilla says is prose, and what `sps` says, twice as fast, are `texts`."""
    all_samples, all_rounds = [], []
    for name, seconds, each in (("vanilla", 2.0, SINGLE), ("sps", 1.0, CHAIN)):
        for doc in range(10):
            text = texts.get(doc, PROSE) if name == "sps" else PROSE
            row = sample(name, doc, seconds + doc / 100, text=text, finish="length", **of_samples)
            all_samples.append(row)
            all_rounds += rounds(row, *each)
    all_scores = [row for name in ("vanilla", "sps") for row in scores(name, [1] * 10)]
    return StoredRun(write_run(folder / "run", all_samples, all_rounds, all_scores, baseline="vanilla"))


def said(run):
    measured = pooled.measured([run])
    summary = compare.summary(measured)
    return summary.set_index("method").loc["sps"], "\n".join(warnings([run], summary, measured)), sentences(summary)


def test_they_are_counted_and_no_speed_is_compared_on_them(tmp_path):
    whole, no_lines, verdict = said(run_of(tmp_path / "a", {}))
    assert (whole["empty"], whole.loops, whole.compared) == (0, 0, 10) and "faster than" in verdict[0]
    assert "answers are" not in no_lines
    row, lines, verdict = said(run_of(tmp_path / "b", {0: "", 1: " \n", 2: "and so on " * 9}))
    assert (row["empty"], row.loops, row.compared, row.documents) == (2, 1, 7, 10)
    assert "one, sps: 2 of 10 answers are empty; speeds are compared without them" in lines
    assert "one, sps: 1 of 10 answers are one string over and over" in lines
    assert "too few documents to tell its speed" in verdict[0]  # seven


def test_the_speedup_is_of_the_other_documents(tmp_path):
    """Documents 8 and 9 loop: (2.00 + … + 2.07) / (1.00 + … + 1.07) for texts of 4 tokens here and there."""
    row, _, _ = said(run_of(tmp_path, {8: "ha" * 30, 9: "ha" * 30}))
    assert row.speedup_decode == pytest.approx((16 + 0.28) / (8 + 0.28))


def test_of_empty_answers_alone_there_is_no_speedup(tmp_path):
    row, lines, verdict = said(run_of(tmp_path, dict.fromkeys(range(10), "")))
    assert "all 10 answers are empty" in lines and row.speedup_decode != row.speedup_decode
    assert "its speed is not known" in verdict[0]


def test_thoughts_without_an_answer_took_their_time(tmp_path):
    row, lines, _ = said(run_of(tmp_path, dict.fromkeys(range(10), ""), other_chunks=4))
    assert row["empty"] == 0 and row.compared == 10 and row.speedup_decode > 1.9
    assert "all 10 answers are thoughts or tool calls alone" in lines


def test_a_loop_that_ended_by_itself_is_none(tmp_path):
    run = run_of(tmp_path, {})
    table = run.samples()
    table.loc[(table.method == "sps") & (table.doc_id == 0), ["text", "finish"]] = ["ha" * 30, "eos"]
    records.write_table(run.folder / "samples.parquet", records.rows_of(table), records.SAMPLES)
    row, lines, _ = said(StoredRun(run.folder))
    assert row.loops == 0 and "over and over" not in lines


def test_a_text_of_white_space_is_empty_and_one_of_any_other_characters_is_not(tmp_path):
    """White space of any writing, and visible characters that are neither letters nor of ASCII."""
    run = run_of(tmp_path, {0: " \n\t", 1: "\u3000\xa0\x1f", 2: "", 3: "日本", 4: "¿", 5: "٣", 6: "."})
    marks = answers.of_texts(run).xs("sps", level="method").sort_index()
    assert marks["empty"].tolist() == [True] * 3 + [False] * 7
