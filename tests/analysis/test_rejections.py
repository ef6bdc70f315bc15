"""Rejections and rescues of a run: hand-worked rounds, kinds by token texts, damaged records, and the view."""

import io
import json
from collections import Counter

import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_runs import METRIC, TOKENIZER, add_sample, drafted, ids, large, manifest, score, stored, word
from screens import call, rendered

from specbench.analysis import rejections as analysis
from specbench.analysis.rejections import rejections, rescues
from specbench.analysis.texts import load_decode
from specbench.analysis.token_kinds import KINDS, kind
from specbench.config import UserError
from specbench.engine.types import Round
from specbench.report.finding import as_json, as_rows
from specbench.report.views.rejections import view
from specbench.results import records
from specbench.results.stored import StoredRun

EOS = TOKENIZER.eos_token_id
SO, THUS, THEN, FOUR, SIX, PLUS = map(word, (" So", " Thus", " Then", " 4", " 6", " +"))


PAIRS = {
    "formatting": [
        *(("times", "cdot"), ("\\frac", "\\dfrac"), ("$$", "\\["), ("$,", "$"), ("\\left(", "("), (' "', " '")),
        *(("“So", '"So'), ("**So", "So"), ("```", "\n"), ("<b>", " "), ("$5", "5")),
    ],
    "punctuation and spacing": [(",", "."), ("\n", "\n\n"), (" So", "So"), (" So,", " So"), (",", " and")],
    "case": [(" The", " the")],
    "connective": [(" So", " therefore"), (" Thus,", " Hence")],
    "word for word": [(" get", " obtain"), (" This", " So"), ("学", "校"), (" times", " cdot")],
    "digit for digit": [("1", "2"), (" 5", "5"), ("-5", " 5"), ("{5", "6")],
    "end of text": [("<eos>", "\n")],
    "other": [
        *(("\\sin", "\\cos"), ("\\times", "\\frac"), ("left", "right"), ("imon", "arah"), ("s", " works")),
        *((" +", " -"), (" *", " +"), ("5", " five"), ("x1", "x2"), (",", " the"), ("◌", "◌"), ("◌", ".")),
        *((" So", " So"), ("<7>", "5")),
    ],
}


@pytest.mark.parametrize(
    ("one", "other", "expected"), [(*pair, name) for name, pairs in PAIRS.items() for pair in pairs]
)
def test_kinds(one, other, expected):
    assert kind(one, other) == kind(other, one) == expected
    assert expected in KINDS


@pytest.fixture
def tables():
    return {"samples": [], "rounds": []}


@pytest.fixture
def made(tables, tmp_path):
    """A function that puts `tables` on disk."""

    def make(methods=("vanilla", "sps"), scores=(), tasks=("sums", "news"), row_group=None, **changes):
        run = stored(tmp_path / "run", tables, tasks, methods, scores, **changes)
        if row_group:
            path = run.folder / "rounds.parquet"
            pq.write_table(pq.read_table(path), path, row_group_size=row_group)
        return run

    return make


def decode(token_ids):
    return TOKENIZER.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def add(tables, task, doc, method, rounds, repeat=0):
    add_sample(tables, task, doc, method, [Round([PLUS]), *rounds], "", "length", repeat=repeat)


def refused(draft, target, ratio, accepted=0):
    """A round of three drafts, of which the one behind `accepted` is rejected; those behind it differ as well."""
    drafts = [PLUS] * accepted + [draft, SO, SO]
    targets = [PLUS] * accepted + [target, SIX, SIX]
    return drafted(drafts[:3], targets[:3], accepted, target, [1.0] * accepted + [ratio] + [0.9] * (2 - accepted))


def tail(tables, method="sps"):
    """Ten rejections of five pairs: 4, 3, 1, 1 and 1 times."""
    add(tables, "sums", 0, method, [refused(SO, THUS, r, at) for r, at in ((0.125, 0), (0.5, 1), (0.25, 2))])
    add(tables, "news", 0, method, [refused(SO, THUS, 1.0), drafted([PLUS] * 3, [PLUS] * 3, 3, SIX)])
    add(tables, "news", 1, method, [refused(FOUR, SIX, r) for r in (0.5, 0.5, 0.125)], repeat=1)
    add(tables, "news", 1, method, [refused(*p, 0.5) for p in ((SIX, FOUR), (THEN, SO), (THEN, THUS))])


CURVE = [(0.0, 0.0), (0.2, 0.4), (0.4, 0.7), (1.0, 1.0)]


@pytest.mark.parametrize("row_group", [None, 1])
def test_the_long_tail(tables, made, row_group):
    tail(tables)
    tables["rounds"] += [row | {"warmup": True} for row in tables["rounds"]]
    add(tables, "sums", 0, "other", [refused(SIX, PLUS, 0.5)])
    result = rejections(made(methods=("vanilla", "sps", "other"), row_group=row_group), None, decode)
    assert (result.method, result.total, result.unpaired, result.rescued) == ("sps", 10, 0, 0)
    assert result.pairs.values.tolist()[:2] == [[SO, THUS, 4], [FOUR, SIX, 3]]
    assert {tuple(row) for row in result.pairs.values[2:].tolist()} == {
        (SIX, FOUR, 1),
        (THEN, SO, 1),
        (THEN, THUS, 1),
    }
    assert result.curve.to_numpy().ravel().tolist() == pytest.approx([x for point in CURVE for x in point])
    assert result.covered(0.2) == pytest.approx(0.4)
    assert result.covered(0.3) == pytest.approx(0.55)
    assert result.covered(0.7) == pytest.approx(0.85)
    first, second = result.top.to_dict("records")[:2]
    assert (first["draft"], first["target"], first["share"]) == (" So", " Thus", 0.4)
    assert (second["draft"], second["target"], second["share"]) == (" 4", " 6", pytest.approx(0.3))
    # 0.125 0.25 0.5 1: a quartile lies three quarters of a step behind the first, and a quarter behind the third
    assert [first[name] for name in analysis.SPREAD] == [0.125, 0.21875, 0.375, 0.625, 1.0]
    assert [second[name] for name in analysis.SPREAD] == [0.125, 0.3125, 0.5, 0.5, 0.5]
    assert first["tasks"] == {"sums": 3, "news": 1}
    assert second["tasks"] == {"news": 3}


def test_only_ten_pairs_are_told_one_by_one(tables, made):
    letters = [word(f" {letter}") for letter in "abcdefghijkl"]
    for number, letter in enumerate(letters):
        add(tables, "sums", number, "sps", [refused(letter, SIX, 0.5)] * (number + 1))
    analysis = rejections(made(), None, decode)
    assert analysis.top.draft.tolist() == [f" {letter}" for letter in "lkjihgfedc"]
    assert len(analysis.pairs) == 12
    assert analysis.total == 78
    # The most frequent fifth are 2.4 pairs: 12, 11 and 0.4 of 10.
    assert analysis.covered(0.2) == pytest.approx(27 / 78)


def test_what_is_not_a_first_rejection(tables, made):
    """Drafts behind a rejection or behind the end, and a rejected token that the target itself preferred."""
    ended = refused(SO, THUS, 0.5, accepted=1).cut(1)
    add(tables, "sums", 0, "sps", [refused(FOUR, FOUR, 1.0), refused(FOUR, SIX, 0.5), ended])
    analysis = rejections(made(), None, decode)
    assert (analysis.total, analysis.unpaired) == (1, 1)
    assert analysis.pairs.values.tolist() == [[FOUR, SIX, 1]]


def test_no_rejection_at_all(tables, made):
    add(tables, "sums", 0, "sps", [drafted([PLUS] * 3, [PLUS] * 3, 3, SIX)])
    run = made()
    analysis = rejections(run, None, decode)
    assert (analysis.total, len(analysis.pairs), len(analysis.top)) == (0, 0, 0)
    assert analysis.covered(0.2) != analysis.covered(0.2)
    for finding in view(analysis, rescues(run, None, decode)):
        assert json.dumps(as_json(finding), allow_nan=False)


def test_ratios_that_were_not_recorded(tables, made):
    add(tables, "sums", 0, "sps", [refused(SO, THUS, r) for r in (0.75, 0.5, 0.25)] + [refused(FOUR, SIX, 0.5)])
    tables["rounds"][1]["ratios"] = None
    tables["rounds"][4]["ratios"] = None
    analysis = rejections(made(), None, decode)
    first, second = analysis.top.to_dict("records")
    assert (first["count"], first["min"], first["median"], first["max"]) == (3, 0.25, 0.375, 0.5)
    assert second["count"] == 1
    assert second["median"] != second["median"]


def test_counts_are_those_of_a_plain_loop(tmp_path):
    large(tmp_path / "run", ["sums", "news"], ["vanilla", "sps"], documents=4)
    run = StoredRun(tmp_path / "run")
    expected = Counter()
    for row in pq.read_table(run.folder / "rounds.parquet").to_pylist():
        for d, t, decision in zip(
            row["draft_tokens"] or [], row["target_tokens"] or [], row["decisions"] or [], strict=True
        ):
            if records.DECISIONS[decision] == "rejected" and d != t:
                expected[d, t] += 1
    analysis = rejections(run, None, decode)
    assert sum(expected.values()) > 100
    assert {(d, t): n for d, t, n in analysis.pairs.to_numpy().tolist()} == expected
    frequent = sorted(expected.values(), reverse=True)
    whole = len(frequent) // 5
    part = (len(frequent) / 5 - whole) * frequent[whole]
    assert analysis.covered(0.2) == pytest.approx((sum(frequent[:whole]) + part) / sum(frequent))


def rescued(*pairs, at=0):
    """A round whose pairs (draft token, target token, ratio) are all rescued, behind `at` accepted drafts."""
    drafts = [PLUS] * at + [d for d, _, _ in pairs]
    targets = [PLUS] * at + [t for _, t, _ in pairs]
    ratios = [1.0] * at + [r for _, _, r in pairs]
    return drafted(drafts, targets, len(drafts), PLUS, ratios, rescued=tuple(range(at, len(drafts))))


def test_the_method_that_is_chosen(tables, made):
    add(tables, "sums", 0, "csd", [rescued((SO, THUS, 0.5)), refused(FOUR, SIX, 0.5)])
    add(tables, "sums", 0, "sps", [refused(SO, THUS, 0.5)])
    run = made(methods=("vanilla", "csd", "sps"))
    assert rejections(run, None, decode).method == "sps"
    assert rescues(run, None, decode).method == "csd"
    manifest(run.folder, ("sums",), ("vanilla", "sps", "csd"))
    assert rescues(StoredRun(run.folder), None, decode).method == "csd"
    assert rescues(run, "sps", decode).total == 0
    of_csd = rejections(run, "csd", decode)
    assert of_csd.pairs.values.tolist() == [[FOUR, SIX, 1]]
    assert of_csd.rescued == 1
    with pytest.raises(UserError, match=r"no drafts of a method vanilla; it has those of csd, sps"):
        rejections(run, "vanilla", decode)


def test_a_run_with_nothing_but_a_rescuing_method(tables, made):
    add(tables, "sums", 0, "csd", [rescued((SO, THUS, 0.5)), refused(FOUR, SIX, 0.5)])
    analysis = rejections(made(methods=("vanilla", "csd")), None, decode)
    assert (analysis.method, analysis.total, analysis.rescued) == ("csd", 1, 1)


@pytest.fixture
def spoilt(tables, made):
    """csd keeps a document right in both repeats, spoils one, and vanilla has one wrong too; the news are graded."""
    connective, digit = (SO, THUS, 0.5), (FOUR, SIX, 0.25)
    add(tables, "sums", 0, "csd", [rescued(connective), rescued(connective, at=1)])
    add(tables, "sums", 1, "csd", [rescued(connective, digit), rescued(digit), rescued(digit)])
    add(tables, "sums", 2, "csd", [rescued(digit), rescued(digit, digit).cut(1)])
    add(tables, "news", 0, "csd", [rescued(connective)])
    add(tables, "news", 1, "csd", [rescued(connective)])
    add(tables, "sums", 0, "csd", [rescued(connective, digit)], repeat=1)
    add(tables, "sums", 3, "csd", [refused(SO, THUS, 0.5)])
    values = {"vanilla": (1, 1, 0, 1), "csd": (1, 0, 0, 1)}
    scores = [score("sums", m, doc, float(v)) for m, of in values.items() for doc, v in enumerate(of)]
    scores += [score("sums", m, 0, 1.0, repeat=1) for m in values]
    scores += [score("news", "vanilla", doc, 1.0) for doc in (0, 1)]
    scores += [score("news", "csd", 0, 0.5), score("news", "csd", 1, 0.0)]
    scores += [score("sums", "vanilla", None, 0.75), score("sums", "vanilla", 2, 1.0) | {"filter": "loose"}]
    return made(methods=("vanilla", "csd"), scores=scores)


def test_which_rescues_hurt(spoilt):
    result = rescues(spoilt, None, decode)
    assert (result.method, result.baseline, result.total) == ("csd", "vanilla", 12)
    # sums 2 is wrong for vanilla too (two rescues that were not cut off), news has graded scores (two).
    assert result.unjudged == 4
    rows = {row["kind"]: row for row in result.kinds.to_dict("records") if row["count"]}
    assert list(result.kinds.kind) == list(KINDS)
    names = ("count", "share", "right", "right_documents", "wrong", "wrong_documents", "wrong_share")
    assert {k: tuple(row[name] for name in names) for k, row in rows.items()} == {
        "connective": (6, 0.5, 3, 2, 1, 1, 0.25),
        "digit for digit": (6, 0.5, 1, 1, 3, 1, 0.75),
    }
    assert result.pairs[["draft", "target", "kind", "count"]].values.tolist() == [
        [" 4", " 6", "digit for digit", 6],
        [" So", " Thus", "connective", 6],
    ]


def test_outcomes_need_scores_and_a_baseline(spoilt):
    (spoilt.folder / "scores.parquet").unlink()
    result = rescues(spoilt, None, decode)
    assert (result.baseline, result.total, result.unjudged) == (None, 12, 12)
    assert result.kinds.right.sum() == result.kinds.wrong.sum() == 0
    text = rendered(view(rejections(spoilt, None, decode), result))
    assert "goes wrong" not in text
    assert "which rescues hurt is not known" in text


def test_examples_have_the_words_before_them(tables, made):
    she, works, hours, dollars = map(word, (" She", " works", " hours", " dollars"))
    rounds = [
        Round([she]),
        drafted([works, FOUR, PLUS], [works, FOUR, PLUS], 3, SIX),
        drafted([word(" ="), hours, word(".")], [word(" ="), dollars, word(".")], 3, SO, [1, 0.25, 1], rescued=(1,)),
    ]
    add_sample(tables, "sums", 0, "csd", rounds, " She works 4 + 6 = hours. So", "length")
    other = [Round([THEN]), rescued((hours, works, 0.5))]
    add_sample(tables, "sums", 0, "csd", other, " Then hours", "length", repeat=1)
    add_sample(tables, "news", 0, "csd", [Round([THUS]), rescued((hours, she, 0.5))], " Thus hours", "length")
    result = rescues(made(methods=("vanilla", "csd")), None, decode).examples
    facts = {row["target"]: row for row in result.to_dict("records")}
    assert facts[" dollars"]["before"] == " She works 4 + 6 ="
    assert (facts[" dollars"]["draft"], facts[" dollars"]["ratio"], facts[" dollars"]["round"]) == (" hours", 0.25, 2)
    assert facts[" works"]["before"] == " Then"
    assert facts[" She"]["before"] == " Thus"


def test_examples_are_of_frequent_pairs_and_few(tables, made, tmp_path):
    pairs = [(word(f" {a}"), word(f" {b}"), 0.5) for a, b in zip("123456", "234567", strict=True)]
    for number, pair in enumerate(pairs):
        add(tables, "sums", number, "csd", [rescued(pair)] * (number + 1))
    result = rescues(made(methods=("vanilla", "csd")), None, decode, examples=2)
    assert result.examples[["draft", "count"]].values.tolist() == [[" 6", 6], [" 5", 5]]
    assert len(rescues(StoredRun(tmp_path / "run"), "csd", decode).examples) == analysis.EXAMPLES == 3


def test_a_rescued_end_is_known_by_the_texts_that_it_ended(tables, made):
    newline = word("\n")
    rounds = [Round([SO]), drafted([EOS, PLUS], [newline, PLUS], 2, SIX, rescued=(0,)).cut(1)]
    add_sample(tables, "sums", 0, "csd", rounds, " So", "eos")
    result = rescues(made(methods=("vanilla", "csd")), None, decode)
    assert result.pairs[["draft", "target", "kind"]].values.tolist() == [["<eos>", "\n", "end of text"]]
    assert result.examples.before.tolist() == [" So"]


def test_nothing_to_analyse(tables, made):
    add(tables, "sums", 0, "vanilla", [Round([SO])])
    with pytest.raises(UserError, match=r"no method of .* drafted anything on record"):
        rejections(made(), None, decode)


def test_an_unfinished_run_without_records(tables, made):
    run = made()
    for name in ("rounds", "samples", "scores"):
        (run.folder / f"{name}.parquet").unlink()
    with pytest.raises(UserError, match="drafted anything"):
        rescues(run, None, decode)


@pytest.mark.parametrize("name", ["draft_tokens", "target_tokens", "decisions"])
def test_records_that_do_not_tell(tables, made, name):
    add(tables, "sums", 0, "sps", [refused(SO, THUS, 0.5)])
    tables["rounds"][1][name] = None
    with pytest.raises(UserError, match="does not record which tokens were drafted"):
        rejections(made(), None, decode)


@pytest.mark.parametrize("name", ["draft_tokens", "target_tokens", "decisions", "ratios"])
def test_damaged_lists(tables, made, name):
    add(tables, "sums", 0, "sps", [refused(SO, THUS, 0.5)])
    tables["rounds"][1][name] = tables["rounds"][1][name][:2]
    with pytest.raises(UserError, match="lists of different lengths"):
        rejections(made(), None, decode)


def test_rounds_that_are_not_the_text(tables, made):
    add(tables, "sums", 0, "csd", [rescued((SO, THUS, 0.5))])
    tables["rounds"][0]["committed"] = 2
    with pytest.raises(UserError, match="its rounds are not its text"):
        rescues(made(methods=("vanilla", "csd")), None, decode)


def test_the_view(spoilt):
    text = rendered(view(rejections(spoilt, None, decode), rescues(spoilt, None, decode)))
    assert max(map(len, text.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "REJECTIONS OF csd: 1 of 1 pair (draft token, target token)" in lines
    assert "␣So ␣Thus 1 0.50 0.50 0.50 0.50 0.50 sums 1" in lines
    assert "csd sees fewer rejections than a lossless method: 12 mismatches that it rescued" in lines
    assert "connective 6 50.0% 3 (2) 1 (1) 25.0%" in lines
    assert "digit for digit 6 50.0% 1 (1) 3 (1) 75.0%" in lines
    assert "case" not in text
    assert any(line.endswith("␣4 ␣6 0.25 6") for line in lines)


def test_the_view_of_long_and_strange_texts(tables, made):
    strange = [word("\n"), word("["), word(" So")]
    tasks = ["a_task_of_an_uncommonly_long_name", "another_task_of_an_uncommonly_long_name"]
    for task in tasks:
        add(tables, task, 0, "sps", [refused(token, SIX, 0.0001) for token in strange])
    run = made(tasks=tasks)
    text = rendered(view(rejections(run, None, decode), rescues(run, None, decode)))
    assert max(map(len, text.splitlines())) <= 80
    assert "⏎" in text
    assert "<.001" in text
    assert "sps rescued no token." in text


def test_the_view_shortens_tasks_that_begin_alike(tables, made):
    for number, task in enumerate(("pocket_sums", "pocket_news")):
        add(tables, task, 0, "sps", [refused(SO, THUS, 0.5)] * (2 - number))
    run = made(tasks=("pocket_sums", "pocket_news"))
    assert " sums 2, news 1" in rendered(view(rejections(run, None, decode), rescues(run, None, decode)))


def test_sampling_that_refuses_what_the_target_prefers(tables, made):
    add(tables, "sums", 0, "sps", [refused(FOUR, FOUR, 1.0)])
    run = made()
    assert "1 more rejected token had no pair" in rendered(
        view(rejections(run, None, decode), rescues(run, None, decode))
    )


def test_tables_for_programs(spoilt):
    findings = view(rejections(spoilt, None, decode), rescues(spoilt, None, decode))
    facts = {finding.name: json.loads(json.dumps(as_json(finding), allow_nan=False)) for finding in findings}
    assert facts["rejections"]["curve"] == [{"pairs": 0.0, "rejections": 0.0}, {"pairs": 1.0, "rejections": 1.0}]
    assert facts["rejections"]["top"][0]["tasks"] == {"sums": 1}
    assert facts["rescues"]["total"] == 12
    assert facts["rejections"]["frequent_share"] == 0.2
    assert [row["wrong_share"] for row in facts["rescues"]["kinds"] if row["kind"] == "case"] == [None]
    rows = pd.concat(map(as_rows, findings))
    rows = pd.read_csv(io.StringIO(rows.to_csv(index=False)), keep_default_na=False)
    assert list(rows.columns) == ["analysis", "table", "row", "column", "value"]
    kinds = rows[(rows.analysis == "rescues") & (rows.table == "kinds") & (rows.row == KINDS.index("connective"))]
    assert dict(zip(kinds.column, kinds.value, strict=True))["count"] == "6"
    alone = rows[(rows.table == "") & (rows.column == "total")]
    assert alone.value.tolist() == ["1", "12"]


def test_the_command(spoilt):
    words = ("analyze", "rejections", spoilt.folder)
    facts = json.loads(call(*words, "--format", "json").stdout)
    assert set(facts) == {"rejections", "rescues"} and facts["rescues"]["total"] == 12
    table = call(*words, "--format", "csv").stdout
    assert table.startswith("analysis,table,row,column,value\nrejections,,0,method,csd\n")
    assert "REJECTIONS OF csd" in call(*words, "--method", "csd").stdout


def test_texts_are_the_runs_own(spoilt):
    """The decoder of these tests is the one that the run names."""
    assert load_decode(spoilt)(ids(" She works")) == decode(ids(" She works")) == " She works"
    assert spoilt.headline()["sums"] == METRIC
