"""How many documents a comparison needs, of runs whose noise is known."""

import math

import pytest
from screens import call
from synthetic import CHAIN, SINGLE, Timed, timed_run

from specbench.analysis import compare, pooled
from specbench.analysis.documents_needed import needed
from specbench.base import scores, stats
from specbench.report.views.documents_needed import view


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Twenty documents; sps is faster on every other one, wrong on one of those that plain solves."""
    methods = {
        "plain": Timed(1.0, SINGLE, (1,) * 18 + (0,) * 2),
        "sps": Timed(lambda task, doc: 0.5 if doc % 2 else 0.6, CHAIN, (0,) + (1,) * 18 + (0,)),
    }
    return timed_run(tmp_path_factory.mktemp("run") / "a", methods, documents=20)


def test_noise_and_discordant_documents_are_the_runs(run):
    measured = pooled.measured([run])
    (row,) = needed(measured, 1.05, 10).table.to_dict("records")
    mine, base = (measured.by_row["tiny", "greedy", "one", name] for name in ("sps", "plain"))
    noise, evenness = stats.speed_noise(compare.paired(mine, base))
    assert row["noise"] == noise == pytest.approx(0.0933, abs=1e-3) and evenness == pytest.approx(1, abs=0.02)
    assert row["for_speed"] == scores.documents_for_speed(noise, 1.05, evenness)
    assert (row["documents"], row["discordant"], row["assumed"]) == (20, 0.1, False)  # the first, and the last but one
    assert row["for_score"] == scores.documents_for_score(0.1, 0.1)


def test_where_decoding_was_not_timed_whole_texts_are(run, monkeypatch):
    """As in imported runs, which know the seconds of whole texts only."""
    measured = pooled.measured([run])
    own = compare.paired
    mine, base = (measured.by_row["tiny", "greedy", "one", name] for name in ("sps", "plain"))
    monkeypatch.setattr(compare, "paired", lambda mine, base, whole=False: own(mine, base, True) if whole else None)
    (row,) = needed(measured, 1.05, 10).table.to_dict("records")
    assert row["noise"] == stats.speed_noise(own(mine, base, True))[0] > 0


def test_a_given_share_of_discordant_documents_counts(run):
    (row,) = needed(pooled.measured([run]), 1.05, 10, discordant=0.3).table.to_dict("records")
    assert row["assumed"] and row["for_score"] == scores.documents_for_score(0.1, 0.3)


def test_noise_does_not_hang_on_the_number_of_documents(tmp_path):
    def noise(documents):
        methods = {"plain": Timed(1.0, SINGLE), "sps": Timed(lambda task, doc: 0.5 if doc % 2 else 0.6)}
        run = timed_run(tmp_path / str(documents), methods, documents=documents)
        return needed(pooled.measured([run]), 1.05, 5).table.noise.iloc[0]

    assert noise(10) == pytest.approx(noise(40), rel=0.05)


def test_graded_scores_need_documents_by_their_spread(tmp_path):
    methods = {"plain": Timed(1.0, SINGLE, (0.5,) * 4), "sps": Timed(0.5, CHAIN, (0.4, 0.6, 0.4, 0.6))}
    (row,) = needed(pooled.measured([timed_run(tmp_path / "a", methods)]), 1.05, 5).table.to_dict("records")
    assert math.isnan(row["discordant"])
    assert row["for_score"] == scores.documents_for_mean(0.05, 0.1 * math.sqrt(4 / 3))


def test_the_table_fits_and_names_what_was_assumed(run):
    page = view(needed(pooled.measured([run]), 1.05, 10, 0.3))
    assert "the share of discordant documents was given" in " ".join(page.notes)
    assert [len(row) for row in page.sheets[0].rows] == [1, 6]


@pytest.mark.parametrize("words", ["--speedup 1", "--speedup 0", "--points 0", "--discordant 2", "--speedup nan"])
def test_sizes_that_cannot_be(run, words):
    done = call("plan", run.folder, *words.split())
    assert done.exit_code == 2 and words.split()[0] in done.stderr
