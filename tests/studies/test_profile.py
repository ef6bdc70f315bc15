"""Forward times, and the time model that is fitted to documents: against figures that are worked out by hand."""

import csv
import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from chains import pair_without_tokenizer
from rich.console import Console
from screens import call
from synthetic import Rows

from specbench.analysis import forward_times, time_fits
from specbench.analysis.forward_times import Times
from specbench.analysis.time_fits import regression
from specbench.config import UserError
from specbench.engine.session import Session
from specbench.measure.machine import Diagnosis
from specbench.papers.published import FOLDER
from specbench.report.finding import show
from specbench.report.views.profile import notes, view
from specbench.results.stored import StoredRun
from specbench.studies import profile_pair
from specbench.studies.profile_pair import describe, measure_forwards, tidy, write


def test_a_fit_by_hand():
    # T = 2 G + 3 F exactly, then with errors +1, -1, -1, +1 that are at right angles to both columns.
    forwards = np.array([[1.0, 1.0], [2.0, 1.0], [1.0, 2.0], [2.0, 2.0]])
    seconds = forwards @ [2.0, 3.0]
    line, r2, about_zero = regression(forwards, seconds)
    assert line == pytest.approx([2, 3]) and r2 == pytest.approx(1) and about_zero == pytest.approx(1)
    errors = np.array([1.0, -1.0, -1.0, 1.0])
    assert not (forwards.T @ errors).any()
    line, r2, about_zero = regression(forwards, seconds + errors)
    # Mean 7.5; T = 6 6 7 11 around it: 2.25 + 2.25 + 0.25 + 12.25 = 17, about 0: 242; the errors' squares: 4.
    assert line == pytest.approx([2, 3]) and r2 == pytest.approx(1 - 4 / 17)
    assert about_zero == pytest.approx(1 - 4 / 242)


def test_without_an_intercept():
    # Through the origin: (1·3 + 2·4) / (1 + 4) = 2.2; about the mean: 1 - (0.8² + 0.4²) / 0.5.
    (slope,), r2, about_zero = regression(np.array([[1.0], [2.0]]), np.array([3.0, 4.0]))
    assert slope == pytest.approx(2.2) and r2 == pytest.approx(1 - 0.8 / 0.5)
    assert about_zero == pytest.approx(1 - 0.8 / 25)


@pytest.mark.parametrize("forwards", [[[4, 1], [8, 2], [12, 3], [16, 4]], [[1, 1], [2, 1]], [[0, 1], [0, 2], [0, 3]]])
def test_what_counts_do_not_settle_is_not_told(forwards):
    line, *fits = regression(np.array(forwards, float), np.arange(1.0, len(forwards) + 1))
    assert all(map(math.isnan, [*line, *fits]))


def rounds_frame(lengths, seconds):
    """Rounds with these draft lengths; `seconds` gives target, draft and whole time of one."""
    rows = [dict(zip(("target_seconds", "draft_seconds", "seconds"), seconds(k), strict=True)) for k in lengths]
    return pd.DataFrame(rows).assign(drafted=lengths, draft_forwards=lengths, first_draft_seconds=np.nan)


VANILLA = pd.DataFrame({"target_seconds": [8.0] * 5, "seconds": [9.0] * 5})
NO_PREFILLS = pd.DataFrame({"width": [], "target_seconds": [], "draft_seconds": []})


def test_times_of_several_draft_lengths():
    lengths = [2] * 30 + [4] * 90 + [8] * 60 + [3] * 5  # 3 is too rare to be asked

    def seconds(k):
        target, draft = 10 + 0.5 * k, 0.75 + 1.5 * k
        return (99.0, 99.0, 999.0) if k == 3 else (target, draft, target + draft + 2 + 0.25 * k)

    result = forward_times.from_records(rounds_frame(lengths, seconds), NO_PREFILLS, VANILLA)
    assert vars(result) == pytest.approx(vars(Times(1.5, 10, 0.5, 0.75, 2, 0.25, 9)))
    assert result.round(6) == pytest.approx(10 + 3 + 0.75 + 9 + 2 + 1.5)
    assert result.round(0) == 12 and result.token == 9


def test_times_of_one_draft_length_come_from_prefills_and_first_drafts():
    # Target 10 + 0.5 for each token beyond the first; a first draft forward 1.2 + 0.1 for each, the others 1.
    lengths = [8] * 50
    rounds = rounds_frame(lengths, lambda k: (14.0, 1.3 + 7, 14 + 8.3 + 2)).assign(first_draft_seconds=1.3)
    widths = np.array([20, 40, 80, 30])
    prefills = pd.DataFrame(
        {"width": widths, "target_seconds": 10 + 0.5 * (widths - 1), "draft_seconds": 1.2 + 0.1 * widths}
    )
    result = forward_times.from_records(rounds, prefills, VANILLA)
    # After a draft the target takes 0.3 more, as a draft's first forward does. From there, 8.3, each of eight tokens
    # takes 5.7 / 8 to reach 14, 0.2125 more than from there to the prefills. Outside it is 1 more: half of any draft.
    early = 0.2125 + 0.5 / 8
    expected = Times(1.0, 8, 0.5, 0.3, 1, 0, 9, early_slope=early, early_tokens=8, drafting=0.3 + 0.5)
    assert vars(result) == pytest.approx(vars(expected))
    assert result.round(2) == pytest.approx(9 + 0.8 + 2 / 8 * (16 - 9 - 0.8) + 1.3 + 1)
    assert result.round(8) == pytest.approx(14 + 8.3 + 2) and result.round(10) == pytest.approx(24.3 + 2 * 1.5)
    # What lies between vanilla's 8 after a draft and 14 bounds the slope: 5.7 / 8; steeper prefills do not count.
    steep = prefills.assign(target_seconds=14 + 5.0 * (widths - 9))
    assert forward_times.from_records(rounds, steep, VANILLA).width_slope == pytest.approx(5.7 / 8)
    nothing = forward_times.from_records(rounds, NO_PREFILLS, VANILLA.iloc[:0])
    assert vars(nothing) == pytest.approx(vars(Times(1.0, 14, 0, 0.3, 2, early_tokens=8)))
    with pytest.raises(UserError, match="lack the seconds"):
        forward_times.from_records(rounds.assign(draft_seconds=None), prefills, VANILLA)


def run_of(folder, methods, tasks=("one", "two"), noise=0.0, repeats=1, slow=(1.0, 3.0)):
    """A run in which document i of a method takes t_draft · N_draft + t_target · N_target seconds, and `noise`."""
    rng = np.random.default_rng(0)
    rows = Rows()
    for (method, shape), task, repeat, doc_id in itertools.product(methods.items(), tasks, range(repeats), range(4)):
        shapes = [shape(doc_id, i) for i in range(3 + 2 * doc_id)]
        seconds = slow[0] * sum(k for k, _ in shapes) + slow[1] * len(shapes)
        stall = 100.0 if noise and repeat == doc_id % repeats else 0.0
        seconds += noise * rng.standard_normal() + stall
        facts = {"task": task, "repeat": repeat, "tokens": [1], "prompt_tokens": 9 + doc_id}
        prefill, *own = rows.add(method, doc_id, seconds, shapes, (slow[1], 0.0), **facts)
        prefill |= {"seconds": 100.0}
        for row in own:
            row |= {"draft_seconds": slow[0] * row["drafted"], "seconds": slow[0] * row["drafted"] + slow[1]}
    settings = {name: {"gamma": 2} if name.startswith("sps") else {} for name in methods}
    return rows.run(folder, settings=settings, baseline=None)


PLAIN = {"vanilla": lambda doc, i: (0, 0)}
TWO = {"sps[gamma=2]": lambda doc, i: (2, i % 3), "sps[gamma=5]": lambda doc, i: (5, (i + doc) % 6)}


def test_the_fits_of_a_run(tmp_path):
    alone = run_of(tmp_path / "draft", PLAIN, slow=(0, 0.5))
    profile = describe(run_of(tmp_path / "run", PLAIN | TWO, slow=(1.0, 3.0)), alone)
    fits = profile.fits.set_index(["method", "task"])
    assert list(fits.index) == [
        (m, t) for m in ("stand-alone", "SpecDec") for t in ("one", "two", "all tasks", "average")
    ]
    together = fits.loc["SpecDec", "one"]
    assert (together.t_draft, together.t_target, together.r2) == pytest.approx((1, 3, 1))
    apart = fits.loc["stand-alone", "two"]
    assert (apart.t_draft, apart.t_target, apart.r2_draft, apart.r2_target) == pytest.approx((0.5, 3, 1, 1))
    assert fits.loc["SpecDec", "average"].t_target_sd == pytest.approx(0, abs=1e-9)
    # Eq. 5.1 is exact where no text was cut: T / N = t_draft (1 + d - V) + t_target V.
    assert profile.throughput["median"].max() < 1e-9 and profile.throughput.p90.max() < 1e-9
    assert profile.times.round(5) == pytest.approx(8) and profile.times.token == pytest.approx(3)


def test_averages_over_tasks():
    fits = pd.DataFrame({"method": "SpecDec", "task": ["one", "two"], "t_draft": [1.0, 3.0], "t_target": [5.0, 5.0]})
    average = time_fits.with_averages(fits.assign(r2=1.0)).iloc[2]
    assert (average.task, average.t_draft, average.t_draft_sd) == ("average", 2, 1)  # the population's deviation
    assert (average.t_target, average.t_target_sd) == (5, 0) and math.isnan(average.r2)


def test_stalled_repeats_are_passed_over(tmp_path):
    profile = describe(run_of(tmp_path / "run", PLAIN | TWO, noise=0.01, repeats=3), None)
    together = profile.fits[profile.fits.method == "SpecDec"].iloc[0]
    assert together.r2 > 0.999 and together.t_target == pytest.approx(3, abs=0.05) and together.documents == 8


def test_throughput_that_is_off(tmp_path):
    counts = pd.DataFrame({"label": "SpecDec", "task": "one", "D": [8.0, 8], "A": [4.0, 4], "C": [6.0, 6], "F": 2.0})
    counts["decode"] = [14.0, 7.0]
    fits = pd.DataFrame([{"method": "SpecDec", "task": "one", "t_draft": 1.0, "t_target": 3.0, "documents": 2}])
    # d = 4/6, V = 2/6: a token takes 1 · (1 + 4/6 - 2/6) + 3 · 2/6 = 14/6 s; measured 14/6 and 7/6.
    (row,) = time_fits.throughput_errors(counts, fits)
    assert row["median"] == pytest.approx(0.25) and row["p90"] == pytest.approx(0.45)  # of errors 0 and 1/2


def test_one_draft_length_is_not_fitted(tmp_path):
    profile = describe(run_of(tmp_path / "run", {"sps[gamma=2]": TWO["sps[gamma=2]"]}), None)
    assert profile.fits.t_draft.isna().all()
    console = Console(width=80, record=True)
    show(view(profile), screen=console)
    text = console.export_text()
    assert "SpecDec: too few documents, or one draft length alone" in " ".join(text.split())
    assert not list(tidy(profile))
    with pytest.raises(UserError, match="no method with timed draft forwards"):
        describe(run_of(tmp_path / "plain", PLAIN), None)


def test_the_files(tmp_path):
    profile = describe(run_of(tmp_path / "run", PLAIN | TWO), run_of(tmp_path / "draft", PLAIN))
    table = write(profile, tmp_path / "times.json")
    with open(FOLDER / "specdecpp-table2.csv", newline="") as file:
        published = list(csv.DictReader(file))
    with open(table, newline="") as file:
        ours = list(csv.DictReader(file))
    assert list(ours[0]) == list(published[0])
    wanted = {(r["method"], r["metric"], r["unit"]) for r in published if r["method"] != "SpecDec++"}
    assert {(r["method"], r["metric"], r["unit"]) for r in ours} == wanted
    assert {r["task"] for r in ours} == {"one", "two", "average"} and {r["temperature"] for r in ours} == {"0"}
    facts = json.loads((tmp_path / "times.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert forward_times.from_option(str(tmp_path / "times.json"), facts["models"]) == profile.times
    assert facts["environment"]["cpu"] == "abacus"


def test_forwards_are_measured_for_every_width_and_context(monkeypatch):
    fed = []
    forward = Session.forward

    def watched(self, tokens, *args, **kwargs):
        fed.append((self.role, len(self), len(tokens)))
        return forward(self, tokens, *args, **kwargs)

    monkeypatch.setattr(Session, "forward", watched)
    log = []
    result = measure_forwards(pair_without_tokenizer(), (1, 4), (16, 64, 4096), 5, log.append)
    cells = [(role, context, width) for role in ("target", "draft") for context in (16, 64) for width in (1, 4)]
    assert list(result[["model", "context", "width"]].itertuples(index=False, name=None)) == cells
    assert (result.low <= result["median"]).all() and (result["median"] <= result.high).all() and (result.low > 0).all()
    assert len(log) == 5 + profile_pair.WARM
    assert all(fed.count(cell) == 5 + profile_pair.WARM for cell in cells)
    passes = [fed[4 + 8 * i : 12 + 8 * i] for i in range(len(log))]  # behind the four prefills
    assert all(sorted(pass_) == sorted(cells) for pass_ in passes) and len(set(map(tuple, passes))) > 1
    with pytest.raises(UserError, match="only 256 positions"):
        measure_forwards(pair_without_tokenizer(), (1, 300), (16,), 5)


def test_the_medians_are_of_the_right_forwards(monkeypatch):
    class Clock(profile_pair.Stopwatch):
        """Takes as long as the context, the width and the model say; one pass in four is slow."""

        passes = 0

        def laps(self):
            laps = super().laps()
            Clock.passes += 1
            for forward in laps[0].forwards:
                slow = 100 if Clock.passes % 4 == 0 else 0
                forward.seconds = (
                    forward.context + forward.width / 100 + (0.5 if forward.model == "draft" else 0) + slow
                )
            return laps

    monkeypatch.setattr(profile_pair, "Stopwatch", Clock)
    result = measure_forwards(pair_without_tokenizer(), (1, 4), (16, 64), 8)
    expected = result.context + result.width / 100 + np.where(result.model == "draft", 0.5, 0)
    assert result["median"].tolist() == pytest.approx(expected.tolist())
    assert (result.high > expected + 20).all()  # the slow ones are seen


@pytest.mark.long
def test_the_command_on_the_bundled_pair(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_pair, "FORWARDS", 2)
    monkeypatch.setattr("specbench.report.finding.console", Console(width=80))
    monkeypatch.setattr("specbench.studies.profile.quick_lines", lambda folder, device: ["warning: load: others run"])
    monkeypatch.setattr("specbench.measure.machine.busy", lambda: Diagnosis("load", "ok", "0.1 on 2 CPUs"))
    out = str(tmp_path / "pocket.json")
    command = ["profile", "--suite", "math", "--documents", "3", "--repeats", "1", "--method", "sps", "--gamma", "1,3"]
    result = call(*command, "--out", out)
    assert result.exit_code == 0, result.output
    # A forecast of the time is a line of its own, which a terminal wraps.
    lines = [line for line in result.output.splitlines() if not re.search("written: |^at most about ", line)]
    assert max(map(len, lines)) <= 80
    assert "warning: load: others run" in result.output
    assert "stand-alone" in result.output and "SpecDec" in result.output and "pocket_math500" in result.output
    assert "forward, ms (median) by context and width" in result.output
    run = StoredRun(tmp_path / "pocket" / "pair")
    assert [spec.name for spec in run.plan.methods] == ["vanilla", "sps[gamma=1]", "sps[gamma=3]"]
    facts = json.loads((tmp_path / "pocket.json").read_text())
    fits = {(row["method"], row["task"]): row for row in facts["fits"]}
    assert 0 < fits["stand-alone", "pocket_gsm8k"]["t_draft"] < fits["stand-alone", "pocket_gsm8k"]["t_target"]
    assert facts["times"]["t_draft"] > 0 and facts["models"]["draft"]["weights_hash"]
    simulated = call("simulate", str(run.folder), "--forward-times", out, "--gamma", "1,3")
    assert simulated.exit_code == 0, simulated.output
    again = call(*command, "--out", out, "--seed", "1")
    assert again.exit_code == 2 and "other settings; remove" in " ".join(again.output.split())


def test_a_fit_that_is_worse_than_the_mean_is_told_in_words(tmp_path):
    profile = describe(run_of(tmp_path / "run", PLAIN | TWO), None)
    assert not any("below 0" in line for line in notes(profile))
    bad = profile.fits.assign(r2=[-0.3] + [0.9] * (len(profile.fits) - 1))
    (line,) = (line for line in notes(replace(profile, fits=bad)) if "below 0" in line)
    assert f"{bad.method.iloc[0]} on {bad.task.iloc[0]}: " in line and "worse" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--gamma", "4"], "needs two or more draft lengths"),
        (["--gamma", "0,4"], "each at least 1"),
        (["--gamma", "a"], "write whole numbers"),
        (["--out", "profile.txt"], "is a .json file"),
        (["--out", "nowhere/profile.json"], "there is no folder nowhere"),
        (["--method", "nothing"], "no method 'nothing'"),
    ],
)
def test_bad_requests_are_one_line(changes, words):
    result = call("profile", *changes)
    assert result.exit_code == 2 and words in " ".join(result.output.split())
