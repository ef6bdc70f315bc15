"""The table that people read and programs parse: golden files for each format, width, and cells."""

import io
import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from synthetic import CHAIN, SINGLE, Rows, Timed, timed_run

from specbench.config import UserError
from specbench.report import comparison, notes
from specbench.report.columns import COLUMNS, choose, p_text, p_value, score, with_interval
from specbench.report.tables import FORMATS, render, sort

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tasks, four documents: sps twice as fast as plain; fly three times, and wrong everywhere on `two`."""
    right = (1, 1, 1, 0)
    methods = {
        "plain": Timed(1.0, SINGLE, right),
        "sps": Timed(0.5, CHAIN, right),
        "fly": Timed(lambda task, doc: 4 / 11 + 0.01 * doc, ((3, 3), (3, 1)), {"one": right, "two": (0, 0, 0, 0)}),
    }
    folder = tmp_path_factory.mktemp("runs") / "a_b"
    return timed_run(folder, methods, tasks=("one", "two"), of_samples={"finish": "eos"}).folder


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "parquet"])
def test_golden(run, format, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison.console, "width", 80)
    comparison.compare([run], format, out=tmp_path / "out")
    (words, numbers), (other_words, other_numbers) = map(
        parts, ((tmp_path / "out").read_text(), (GOLDEN / f"compare.{format}").read_text())
    )
    assert words == other_words
    assert numbers == pytest.approx(other_numbers, rel=1e-9)  # processors round the last digits otherwise


def parts(text: str) -> tuple[list[str], list[float]]:
    """A text without its long fractions, and these as numbers."""
    fraction = r"-?\d+\.\d{6,}(?:e[-+]\d+)?"
    return re.split(fraction, text), [float(number) for number in re.findall(fraction, text)]


def test_golden_depths(run, tmp_path):
    comparison.compare([run], "md", by="depth", out=tmp_path / "out")
    assert (tmp_path / "out").read_text() == (GOLDEN / "depths.md").read_text()


def test_answers_that_a_limit_cut_are_shown_above_one_percent(tmp_path, summary):
    """Of four texts of a method one ended at the limit; a text whose end is not known says nothing."""
    assert summary.cut.eq(0).all()
    for wide in (False, True):
        assert "cut" not in choose(summary.assign(cut=0.01), wide)
        assert choose(summary.assign(cut=0.011), wide)[-1] == "cut"
    ends = ["eos", "stop", "length", "eos", None]
    made = Rows()
    for doc, end in enumerate(ends):
        made.add("plain", doc, shapes=SINGLE, finish=end)
    cut = comparison.compare([made.run(tmp_path / "run").folder], "md").set_index("task").cut
    assert cut["one"] == pytest.approx(1 / 4)


def test_parquet_holds_what_csv_holds(run, tmp_path):
    comparison.compare([run], "parquet", out=tmp_path / "a.parquet")
    comparison.compare([run], "csv", out=tmp_path / "a.csv")
    csv = pd.read_csv(tmp_path / "a.csv").fillna({"accuracy_test": ""})
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), csv, check_dtype=False)
    with pytest.raises(UserError, match="--out"):
        comparison.compare([run], "parquet")


@pytest.fixture(scope="module")
def summary(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "a.parquet"
    return comparison.compare([run], "parquet", out=path)


def test_formats_parse_back(summary):
    csv = pd.read_csv(io.StringIO(render(summary, "csv")))
    back = pd.read_json(io.StringIO(render(summary, "json")))
    for result in (csv, back):
        assert result.method.tolist() == summary.method.tolist()
        assert result.tau.tolist() == pytest.approx(summary.tau.tolist())
    lines = [line.strip("| ").split(" | ") for line in render(summary, "md").splitlines()]
    assert len({len(line) for line in lines}) == 1 and len(lines) == 2 + len(summary)
    assert set(lines[1]) == {"---"}
    assert lines[3][lines[0].index("τ")] == "2.00"


def test_blocks(summary):
    by_method = render(summary, "table", 80, by="method")
    titles = [line.strip() for line in by_method.splitlines() if line.strip() in ("plain", "sps", "fly")]
    assert titles == ["plain", "sps", "fly"]
    assert "task" in by_method and "one" in by_method
    two_pairs = pd.concat([summary, summary.assign(pair="other")])
    assert "other" in render(two_pairs, "table", 80, by="pair")
    assert "pair" in render(two_pairs, "md").splitlines()[0]
    assert "pair" not in render(summary, "md").splitlines()[0]


def test_sort(summary):
    fastest = sort(summary, "speedup_decode").method.tolist()
    assert fastest[0] == "fly" and fastest[-1] == "plain"
    assert sort(summary, "discard_rate:asc").method.iloc[0] == "plain"
    for wrong in ("speed", "tau:up"):
        with pytest.raises(UserError, match="cannot sort"):
            sort(summary, wrong)


def test_columns(summary):
    assert render(summary, "md", columns=["tau", "accuracy"]).splitlines()[0] == "| task | method | τ | score [95 %] |"
    header = render(summary, "csv", columns=["speedup_e2e"]).splitlines()[0]
    assert header == "pair,sampling,task,method,speedup_e2e,speedup_e2e_low,speedup_e2e_high"
    with pytest.raises(UserError, match="did you mean 'tau'"):
        render(summary, "md", columns=["tu"])


def test_every_column_is_written_from_the_summary(summary):
    for column in COLUMNS.values():
        assert set(column.raw) <= set(summary.columns)


def interval_row(low, high, method="sps"):
    return pd.Series({"method": method, "baseline": "plain", "s": 1.5, "s_low": low, "s_high": high})


def test_speedup_cells():
    assert with_interval(interval_row(0.9, 1.6), "s") == "1.50 [0.90, 1.60]="
    assert with_interval(interval_row(1.0, 1.6), "s").endswith("=")
    assert with_interval(interval_row(1.2, 1.6), "s") == "1.50 [1.20, 1.60]"
    assert with_interval(interval_row(0.7, 0.9), "s") == "1.50 [0.70, 0.90]"
    assert with_interval(interval_row(math.nan, math.nan), "s") == "1.50 [-]"
    assert "base" in with_interval(interval_row(1, 1, "plain"), "s")


@pytest.mark.parametrize(
    ("values", "cell"),
    [
        ((1.0, 0.566, 1.0), "100.0 [56, 100]"),
        ((0.5, 0.49, 0.51), "50.0 [49, 51]"),  # 100 · 0.49 is a little more than 49, or less
        ((0.813, math.nan, math.nan), "81.3"),
        ((math.nan, math.nan, math.nan), "-"),
    ],
)
def test_score_cells(values, cell):
    """Whole percents hold the interval."""
    assert score(pd.Series(dict(zip(("accuracy", "accuracy_low", "accuracy_high"), values, strict=True)))) == cell


def test_p_cells():
    assert [p_value(p) for p in (0.00002, 0.0123, 0.5, 1.0, math.nan)] == ["<.001", ".012", ".500", "1.000", "-"]
    assert [p_text(p) for p in (0.00002, 0.0123, 1.0)] == ["< 0.001", "0.012", "1.000"]


@pytest.mark.parametrize(("compared", "cell"), [(17, "17 of 20"), (20, "20"), (0, "20"), (math.nan, "20")])
def test_how_many_documents_the_speeds_are_of(compared, cell):
    """0: nothing was timed. Unknown: an older table."""
    assert COLUMNS["documents"].text(pd.Series({"documents": 20, "compared": compared})) == cell


@pytest.mark.parametrize("errors", [0, 3])
@pytest.mark.parametrize("pairs", [False, True])
def test_table_fits_80_columns(summary, errors, pairs):
    wide = summary.assign(method=["plain", "speculate-12", "plain"] * 3, errors=errors)
    wide = wide.assign(speedup_decode=2.34, speedup_decode_low=0.98, speedup_decode_high=3.45, tokens_per_s=1234.5)
    if pairs:
        wide["pair"] = ["llama-3-70b-1b"] * 5 + ["pocket"] * 4
    lines = render(wide, "table", 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("2.34 [0.98, 3.45]=" in line for line in lines) or pairs or errors
    assert any("speculate-12" in line for line in lines) or pairs


LONG = ("sps@gamma=4,draft=pocket-draft", "cospec[arbiter=trained,backbone=draft,gamma=8]", "cos[mu=0.1,gamma=1]")


def test_long_names_are_broken_between_their_parts_and_figures_are_whole(summary):
    """Columns make room; a line tells which, and that of a name's other lines hold nothing else."""
    rows = summary[summary.task == "one"].assign(method=LONG, baseline="plain", speedup_decode_low=1.0)
    text = render(rows, "table", 80)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for part in ("sps@gamma=4,", "draft=pocket-draft", "arbiter=trained,", "backbone=draft,", "gamma=8]"):
        assert any(line.startswith(part) and line[len(part) :][:1] in ("", " ") for line in lines), part
    assert len([line for line in lines if "[1.00, " in line]) == 3
    assert "no room for discard, p: widen the terminal, or take --format md" in text
    assert "no room" not in render(rows, "table", 100) + render(rows, "md", 80)
    assert "discard" in render(rows, "table", 80, columns=["tau", "discard_rate"])  # what was asked for


def test_columns_that_tell_nothing_vanish(summary):
    """A method alone has no p, no speedup and no drafts; with others it has."""
    alone = choose(summary[summary.method == "plain"], wide=False)
    assert alone == ["accuracy", "tau", "discard_rate", "verification_rate", "tokens_per_s"]
    assert {"accuracy_p", "acceptance_rate", "speedup_decode"} <= set(choose(summary, wide=False))


def test_whole_times_stand_beside_decode_times(summary):
    """Some imported runs tell no more; others in the table do."""
    own = summary.assign(tokens_per_s_e2e=3.0)
    imported = own.assign(speedup_decode=math.nan, tokens_per_s=math.nan)
    both = choose(pd.concat([own, imported]), wide=False)
    assert {"speedup_decode", "speedup_e2e", "tokens_per_s", "tokens_per_s_e2e"} <= set(both)
    whole = choose(imported, wide=False)
    assert {"speedup_e2e", "tokens_per_s_e2e"} <= set(whole) and "speedup_decode" not in whole
    assert "speedup_e2e" not in choose(own, wide=False) and "tokens_per_s_e2e" not in choose(own, wide=True)
    assert len(set(choose(own, wide=True))) == len(choose(own, wide=True))


def test_json_has_no_nan(summary):
    assert json.loads(render(summary, "json"))[0]["accuracy_p"] is None


@pytest.fixture
def mixed(tmp_path):
    """plain and sps, and a pool of models with share, which is set against it: 1, 0.5, 2 and 1.6 s for 4 tokens."""
    seconds = {"plain": (1.0, SINGLE), "sps": (0.5, CHAIN), "pool": (2.0, SINGLE), "share": (1.6, CHAIN)}
    methods = {name: Timed(*one, 3) for name, one in seconds.items()}
    return timed_run(
        tmp_path / "m", methods, baselines={"pool": "pool", "share": "pool"}, of_samples={"finish": "eos"}
    ).folder


def test_two_baselines_in_one_table(mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison.console, "width", 80)
    comparison.compare([mixed], "table", out=tmp_path / "out")
    lines = (tmp_path / "out").read_text().splitlines()
    last = {line.split()[0]: line[-18:].strip() for line in lines[3:7]}
    assert {name: text.split("  ")[-1] for name, text in last.items()} == {
        "plain": "1 (base)", "sps": "2.00 [2.00, 2.00]", "pool": "1 (base)", "share": "1.25 [1.25, 1.25]",
    }  # fmt: skip
    assert lines[-1] == "baselines: plain of sps; pool of share"
    comparison.compare([mixed], "csv", out=tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv").baseline.tolist() == ["plain", "plain", "pool", "pool"]


def test_many_baselines_are_named_without_their_methods(summary):
    bases = [f"pool[{n}]" for n in range(5)]
    rows = pd.concat([summary[:2].assign(method=[base, f"share{base}"], baseline=base) for base in bases])
    assert (
        list(notes.legend(rows))[-1] == f"baselines: {', '.join(bases)}; --format csv shows which methods each is for"
    )


def test_all_methods_against_one_that_is_no_baseline(run, tmp_path):
    """sps takes half the time of plain per token."""
    summary = comparison.compare([run], "csv", out=tmp_path / "out", against="sps")
    row = summary[summary.task == "one"].set_index("method")
    assert (row.baseline == "sps").all() and row.speedup_decode["plain"] == pytest.approx(0.5)
    assert row.speedup_decode["sps"] == 1
    with pytest.raises(UserError, match="no method 'csd' in these runs; there are plain, sps, fly"):
        comparison.compare([run], "csv", out=tmp_path / "out", against="csd")
