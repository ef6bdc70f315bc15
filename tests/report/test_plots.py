"""Plots: what the figures' lines, bars and error bars stand at is worked out by hand; files, styles and errors."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from cases import mostly_long
from matplotlib.text import Text
from scipy.stats import t
from synthetic import CHAIN, SINGLE, Rows, Timed, change_manifest, rounds, sample, scores, timed_run, write_run

from specbench.base.stats import pooled_rate
from specbench.config import UserError
from specbench.report import drawing, page_rounds, page_style
from specbench.report.plots import data as plot_data
from specbench.report.plots import rounds as plot_rounds
from specbench.report.plots import style
from specbench.report.plots.kinds import draw, plot
from specbench.report.plots.listed import KINDS
from specbench.results.stored import StoredRun

SPS2, SPS4 = "sps[gamma=2]", "sps[gamma=4]"
GAMMAS = {SPS2: {"gamma": 2}, SPS4: {"gamma": 4}}
MODEL = {"model": "bundled:target"}


def made(*tasks):
    """Two documents a task; a target forward takes 0.1 s, a draft forward 0.02 s; every sample decodes 4 tokens.

    sps[gamma=2] is twice as fast, sps[gamma=4] 2.5 times, and fly 4/3 times; in task `two` fly takes 1 s as plain does.
    """
    rows = Rows()
    for task in tasks:
        facts = {"task": task, "prompt_tokens": 5}
        for doc in range(2):
            rows.add("plain", doc, 1.0, SINGLE, **facts)
            _, one, other = rows.add(SPS2, doc, 0.5, [(2, 2), (2, 0)], (0.1, 0.04), **facts)
            one |= {"decisions": [1, 1], "predictions": [0.85, 0.95]}
            other |= {"decisions": [0, 3], "predictions": [0.25, math.nan]}
            rows.add(SPS4, doc, 0.4, [(4, 3)], (0.1, 0.08), **facts)
            rows.add("fly", doc, 1.0 if task == "two" else 0.5 + 0.5 * doc, CHAIN, (0.1, 0.06), **facts)
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Task `one`: sps[gamma=4] and fly are half wrong."""
    result = made("one")
    result.scores += scores(SPS4, (1, 0)) + scores("fly", (0, 1))
    return result.run(tmp_path_factory.mktemp("runs") / "a", settings=GAMMAS).folder


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    """In task `one` fly is half wrong."""
    result = made("one", "two")
    result.scores += scores("fly", (0, 1))
    return result.run(tmp_path_factory.mktemp("runs") / "b", settings=GAMMAS).folder


def drawn(kind, *folders, allowed=()):
    return draw(kind, [StoredRun(folder) for folder in folders], allowed)


def bars_of(ax, label):
    """The error bars of a label: points [[x, y]], and the ends of its x or y bars, whichever there are."""
    (results,) = [container for container in ax.containers if container.get_label() == label]
    return results[0].get_xydata(), [bar.get_segments() for bar in results[2]]


def line_of(ax, label):
    (results,) = [line for line in ax.lines if line.get_label() == label]
    return results.get_xydata()


def test_speed_accuracy(run):
    (ax,) = drawn("speed-accuracy", run).axes
    points, (across, up) = bars_of(ax, "fly")
    assert points == pytest.approx(np.array([[4 / 3, 50]]))
    assert len(across[0]) == 0  # two documents have no interval
    assert up[0] == pytest.approx(np.array([[4 / 3, 9.45], [4 / 3, 90.55]]), abs=0.01)  # Wilson's of 1 of 2
    assert bars_of(ax, SPS2)[0] == pytest.approx(np.array([[2, 100]]))
    assert bars_of(ax, SPS4)[0] == pytest.approx(np.array([[2.5, 50]]))
    assert bars_of(ax, "plain (baseline)")[0] == pytest.approx(np.array([[1, 100]]))
    front = line_of(ax, "Pareto front")
    assert front[1:-1] == pytest.approx(np.array([[2, 100], [2.5, 50]]))
    assert front[0, 1] == 100 and front[-1, 0] == 2.5
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("decode speedup (×)", "score (%)")


def test_speed_accuracy_average(two_tasks):
    axes = drawn("speed-accuracy", two_tasks).axes
    assert [ax.get_title() for ax in axes] == ["one", "two", "average"]
    points, (_, up) = bars_of(axes[2], "fly")
    assert points == pytest.approx(np.array([[(4 / 3 + 1) / 2, 75]]))
    # Wilson's of 1 of 2 and of 2 of 2 are 9.45 to 90.55 and 34.24 to 100; their distances add up as variances do.
    below, above = math.hypot(50 - 9.45, 100 - 34.24) / 2, (90.55 - 50) / 2
    assert up[0][:, 1] == pytest.approx([75 - below, 75 + above], abs=0.01)


def test_the_fastest_of_any_panel_is_within_its_axis(tmp_path):
    """On the second task it is four times as fast, which the first panel, drawn before, has no room for."""
    rows = Rows()
    for task, seconds in (("slow", 1.0), ("fast", 0.25)):
        for doc in range(3):
            rows.add("plain", doc, 1.0, SINGLE, task=task)
            rows.add("s", doc, seconds, SINGLE, task=task)
    axes = drawn("speed-accuracy", rows.run(tmp_path / "run").folder).axes
    places = [(bars[0].get_xdata()[0], *ax.get_xlim()) for ax in axes for bars in ax.containers]
    assert max(x for x, _, _ in places) == pytest.approx(4)
    assert all(left < x < right for x, left, right in places)


def test_pareto_keeps_equals_and_drops_the_beaten(tmp_path):
    """Equal points are both on the front; one that is only as fast, or only as accurate, is not."""
    rows = Rows()
    for method, seconds, right in (("plain", 1, 1), ("a", 0.5, 1), ("b", 0.5, 1), ("c", 0.5, 0), ("d", 0.8, 1)):
        rows.add(method, 0, seconds, [(0, 0)])
        rows.scores += scores(method, (right,))
    (ax,) = drawn("speed-accuracy", rows.run(tmp_path / "run").folder).axes
    assert line_of(ax, "Pareto front")[1:-1] == pytest.approx(np.array([[2, 100], [2, 100]]))


def test_discard_verification(run):
    (ax,) = drawn("discard-verification", run).axes
    assert line_of(ax, "sps (gamma)") == pytest.approx(np.array([[2 / 4, 2 / 4], [1 / 4, 1 / 4]]))
    assert line_of(ax, "fly") == pytest.approx(np.array([[4 / 4, 2 / 4]]))
    assert {line.get_label() for line in ax.lines} == {"sps (gamma)", "fly", "equal tokens/s"}
    lines = [line.get_xydata() for line in ax.lines if line.get_label() == "equal tokens/s"]
    assert len(lines) >= 2
    texts = [text for text in ax.texts if text.get_text() not in ("2", "4")]
    assert len(texts) == len(ax.texts) - 2
    for line, text in zip(lines, texts, strict=True):
        seconds = line[:, 1] * 0.1 + (1 - line[:, 1] + line[:, 0]) * 0.02
        assert 1 / seconds == pytest.approx(float(text.get_text()))


def curved_run(folder, points, **settings):
    """Methods that draft 40 tokens in 10 rounds at given (discarded, forwards); `settings` of those that have some."""
    rows = Rows()
    rows.add("plain", 0, 1.0, [(0, 0)])
    for name, (discarded, forwards) in points.items():
        _, row = rows.add(name, 0, 1.0, [(60, 60 - discarded)])
        row |= {"committed": 100, "target_forwards": forwards}
    return rows.run(folder, **settings).folder


def test_curves_follow_the_setting(tmp_path):
    """Values in the order 8, 2, 4; two methods that differ in one setting but are no variants are not joined."""
    points = {"sps[gamma=8]": (40, 20), "sps[gamma=2]": (10, 40), "sps[gamma=4]": (20, 30), "a": (5, 5), "b": (6, 6)}
    settings = {f"sps[gamma={g}]": {"gamma": g} for g in (8, 2, 4)} | {"a": {"gamma": 1}, "b": {"gamma": 2}}
    (ax,) = drawn("discard-verification", curved_run(tmp_path / "run", points, settings=settings)).axes
    assert line_of(ax, "sps (gamma)") == pytest.approx(np.array([[0.1, 0.4], [0.2, 0.3], [0.4, 0.2]]))
    assert line_of(ax, "a") == pytest.approx(np.array([[0.05, 0.05]]))
    names = [text.get_text() for text in ax.texts if text.get_rotation() == 0]
    assert sorted(names) == ["2", "4", "8"]


def test_curves_of_two_settings(tmp_path):
    points = {f"sps[{g},{k}]": (g, 50 - g) for g, k in ((2, 1), (4, 1), (8, 5), (2, 5), (8, 9))}
    settings = {name: dict(zip(("gamma", "k"), map(int, name[4:-1].split(",")), strict=True)) for name in points}
    (ax,) = drawn("discard-verification", curved_run(tmp_path / "run", points, settings=settings)).axes
    assert line_of(ax, "sps, k=1 (gamma)")[:, 0] == pytest.approx([0.02, 0.04])
    assert line_of(ax, "sps, k=5 (gamma)")[:, 0] == pytest.approx([0.02, 0.08])
    assert line_of(ax, "sps[8,9]")[:, 0] == pytest.approx([0.08])
    colours = {line.get_color() for line in ax.lines if "sps" in line.get_label()}
    assert len(colours) == 3


def test_curves_have_colours_of_their_own(tmp_path):
    """A line through the variants has the colour of the method without them, or the next that is free."""
    settings = {f"s[{i}]": {"g": i} for i in range(6)} | {f"t[{i}]": {"g": i} for i in range(2)}
    points = {name: (i + 5, 40 - i) for i, name in enumerate(settings)}
    (ax,) = drawn("discard-verification", curved_run(tmp_path / "run", points, settings=settings)).axes
    by_name = {line.get_label(): line.get_color() for line in ax.lines}
    assert by_name["s (g)"] == drawing.colour_of("s")
    assert by_name["t (g)"] == drawing.colour_of("t") != by_name["s (g)"]


def test_names_of_points_cover_nothing(tmp_path):
    """Thirty points in a small place: some have their values next to them, and no text lies on another or a point."""
    values = [round(0.03 * i, 2) for i in range(1, 31)]
    points = {f"s[t={v}]": (5 + int(50 * v), 60 - int(50 * v**0.5)) for v in values}
    settings = {name: {"t": v} for name, v in zip(points, values, strict=True)}
    fig = drawn("discard-verification", curved_run(tmp_path / "run", points, settings=settings))
    fig.draw_without_rendering()
    (ax,) = fig.axes
    boxes = [text.get_window_extent() for text in ax.texts if text.get_rotation() == 0]
    assert 5 <= len(boxes) < 30
    dots = ax.transData.transform(line_of(ax, "s (t)"))
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    reach = 2 * fig.dpi / 72  # pixels: about half of a marker
    assert not any(box.padded(reach).contains(*dot) for box in boxes for dot in dots)


def test_reliability(run):
    (ax,) = drawn("reliability", run).axes
    points, (up,) = bars_of(ax, SPS2)
    assert points == pytest.approx(np.array([[0.25, 0], [0.85, 1], [0.95, 1]]))
    assert up[0] == pytest.approx(np.array([[0.25, 0], [0.25, 0]]))  # both documents are alike
    assert ax.get_title() == "one\nECE 0.150"
    assert line_of(ax, "as predicted") == pytest.approx(np.array([[0, 0], [1, 1]]))
    heights = {round(bar.get_x() + bar.get_width() / 2, 2): bar.get_height() for bar in ax.patches if bar.get_height()}
    assert heights == pytest.approx(dict.fromkeys((0.25, 0.85, 0.95), 0.2))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted chance", "accepted")


def test_reliability_by_task_and_pooled(tmp_path):
    """Task `one`: 3 of 4 accepted at 0.5, all in one of two documents; task `two`: none of 2, at 0.75."""
    rows = Rows()
    for task, documents in (("one", ([1, 1, 1], [0])), ("two", ([0], [0]))):
        for doc, decisions in enumerate(documents):
            rows.add("plain", doc, 1.0, [(0, 0)], task=task)
            _, *own = rows.add("s", doc, 1.0, [(1, decision) for decision in decisions], task=task)
            for row, decision in zip(own, decisions, strict=True):
                row |= {"decisions": [decision], "predictions": [0.5 if task == "one" else 0.75]}
    axes = drawn("reliability", rows.run(tmp_path / "run").folder).axes
    assert [ax.get_title() for ax in axes] == ["one\nECE 0.250", "two\nECE 0.750", "pooled\nECE 0.417"]
    points, (up,) = bars_of(axes[0], "s")
    assert points == pytest.approx(np.array([[0.5, 0.75]]))
    assert up[0] == pytest.approx(np.array([[0.5, 0], [0.5, 1]]))
    points, _ = bars_of(axes[2], "s")
    assert points == pytest.approx(np.array([[0.5, 0.75], [0.75, 0]]))
    strip = sorted(bar.get_height() for bar in axes[2].patches if bar.get_height())
    assert strip == pytest.approx([0.1, 0.2])


def test_depth(run):
    (ax,) = drawn("depth", run).axes
    assert bars_of(ax, SPS2)[0] == pytest.approx(np.array([[1, 50], [2, 100]]))
    assert bars_of(ax, SPS4)[0] == pytest.approx(np.array([[1, 100], [2, 100], [3, 100], [4, 0]]))
    # Nothing was tested at 3: the draft before was always rejected.
    assert bars_of(ax, "fly")[0] == pytest.approx(np.array([[1, 100], [2, 0], [3, math.nan]]), nan_ok=True)
    assert len(ax.containers) == 3
    assert ax.get_ylim() == (-4, 104)


def test_depth_intervals_are_over_documents(tmp_path):
    """Three documents accept 1, 1 and 0 of 2 at depth 1 of as many rounds; runs of a row count together."""
    for name, accepted in (("a", (1, 1, 0)), ("b", (1, 0, 1))):
        rows = Rows()
        for doc, each in enumerate(accepted):
            rows.add("plain", doc, 1.0, SINGLE)
            rows.add("s", doc, 1.0, [(1, 1), (1, each)])
        rows.run(tmp_path / name, seed=len(name) + ord(name))
    (ax,) = drawn("depth", tmp_path / "a", tmp_path / "b").axes
    points, (up,) = bars_of(ax, "s")
    assert points == pytest.approx(np.array([[1, 100 * 10 / 12]]))
    wanted = pooled_rate(np.array([4.0, 3, 3]), np.array([4.0, 4, 4]))
    assert up[0][:, 1] == pytest.approx([100 * wanted.low, 100 * min(1, wanted.high)])


def test_two_documents_have_no_depth_interval(tmp_path):
    """No bar is drawn: not even its upper end, at 100 %."""
    rows = Rows()
    for doc, accepted in enumerate((1, 0)):
        rows.add("plain", doc, 1.0, SINGLE)
        rows.add("s", doc, 1.0, [(1, 1), (1, accepted)])
    rows.run(tmp_path / "a", seed=1)
    (ax,) = drawn("depth", tmp_path / "a").axes
    _, (ends,) = bars_of(ax, "s")
    assert np.array(ends).size == 0


def test_lengths(run):
    (ax,) = drawn("lengths", run).axes
    heights = {container.get_label(): [bar.get_height() for bar in container] for container in ax.containers}
    assert heights == {SPS2: [50, 0, 50, 0], SPS4: [0, 0, 0, 100], "fly": [0, 100, 0, 0]}
    middles = np.array([[bar.get_x() + bar.get_width() / 2 for bar in container] for container in ax.containers])
    assert middles.mean(0) == pytest.approx(np.arange(4))


def test_time(run):
    (ax,) = drawn("time", run).axes
    bars = {}
    for bar in ax.patches:
        if bar.get_width():
            bars.setdefault(round(bar.get_y() + bar.get_height() / 2), []).append((bar.get_x(), bar.get_width()))
    names = dict(zip(ax.get_yticks(), [label.get_text() for label in ax.get_yticklabels()], strict=True))
    by_name = {names[y]: parts for y, parts in bars.items()}
    assert list(by_name) == ["plain (baseline)", SPS2, SPS4, "fly"]
    expected = {"plain (baseline)": (100, 150), SPS2: (50, 20, 55), SPS4: (25, 20, 55), "fly": (50, 30, 107.5)}
    for name, widths in expected.items():
        starts = [0, *itertools.accumulate(widths)][:-1]
        assert by_name[name] == [pytest.approx(one) for one in zip(starts, widths, strict=True)]
    assert ax.lines[0].get_xdata() == pytest.approx([250, 250])


def test_time_of_auxiliary_models(run):
    data = plot_data.read([StoredRun(run)], (), False)
    measured = dataclasses.replace(
        data.measured, counts=data.measured.counts.assign(models=data.measured.counts.models + 0.02)
    )
    (ax,) = plot_rounds.time(dataclasses.replace(data, measured=measured)).axes
    widths = [bar.get_width() for bar in ax.patches if abs(bar.get_y() + 0.35 - 1) < 1e-9 and bar.get_width()]
    assert widths == pytest.approx([50, 20, 5, 50])


def test_time_of_masks(run):
    """A part of its own, which no longer counts as outside forwards; in the image and on the page."""
    data = plot_data.read([StoredRun(run)], (), False)
    counts = data.measured.counts.assign(masks=0.02)
    (ax,) = plot_rounds.time(dataclasses.replace(data, measured=dataclasses.replace(data.measured, counts=counts))).axes
    widths = [bar.get_width() for bar in ax.patches if abs(bar.get_y() + 0.35 - 1) < 1e-9 and bar.get_width()]
    assert widths == pytest.approx([50, 20, 5, 50])
    looks = {label: page_style.Look("#000000", "circle", "solid", "") for label in ("sps", "vanilla")}
    known = {"C": 4, "target": 0.2, "draft": 0.08, "models": 0.28, "decode": 0.5}
    rows = pd.DataFrame([known | {"label": "sps", "masks": 0.02}, known | {"label": "vanilla", "masks": 0.0}])
    parts = {bars["name"]: bars["x"] for bars in page_rounds.time(rows, looks)["data"]}
    assert parts["masks of the constraint"] == pytest.approx([5])
    assert parts["outside forwards"] == pytest.approx([50, 55])


@pytest.fixture
def forward_run(tmp_path):
    """One document of 1 prompt token: four narrow contexts, then a round that commits 797, then four wide ones."""
    plain = sample("plain", 0, prompt_tokens=1)
    sps = sample("sps", 0, prompt_tokens=1)
    warm = sample("plain", 0, prompt_tokens=1) | {"warmup": True}
    failed = sample("plain", 1, prompt_tokens=1) | {"finish": "error"}
    plain_rounds = rounds(plain, *[(0, 0)] * 8)
    for i, row in enumerate(plain_rounds[1:], 1):
        row |= {"target_seconds": i / 10, "committed": 797 if i == 4 else 1}
    sps_rounds = rounds(sps, *[(3, 1)] * 5, (2, 2))
    for row, seconds in zip(sps_rounds[1:], (1, 2, 9, 3, 4, 9), strict=True):
        row |= {"target_seconds": seconds / 100, "target_forwards": 2 if seconds == 9 else 1}
    others = [row | {"target_seconds": 77.0} for row in rounds(warm, *[(0, 0)] * 4) + rounds(failed, *[(0, 0)] * 4)]
    all_rounds = (plain_rounds + sps_rounds + others)[::-1]
    score_rows = scores("plain", (1,)) + scores("sps", (1,))
    return write_run(tmp_path / "run", [plain, sps, warm, failed], all_rounds, score_rows)


def test_forwards(forward_run):
    by_width, by_context = drawn("forwards", forward_run).axes
    points, (quartiles,) = bars_of(by_width, "plain (baseline)")
    assert points == pytest.approx(np.array([[1, 450]]))
    assert quartiles[0][:, 1] == pytest.approx([275, 625])
    # The round with two forwards is left out, and one round of another width has no quartiles.
    points, (quartiles,) = bars_of(by_width, "sps")
    assert points == pytest.approx(np.array([[4, 25]]))
    assert quartiles[0][:, 1] == pytest.approx([17.5, 32.5])
    narrow, wide = line_of(by_context, "plain (baseline)")
    assert narrow[1] == pytest.approx(250) and wide[1] == pytest.approx(650)
    assert 2 <= narrow[0] < 200 and 700 < wide[0] < 900
    band = by_context.collections[0].get_paths()[0].vertices
    assert sorted(set(band[:, 1].round(6))) == [175, 325, 575, 725]


def test_sweep(run):
    fast, right = drawn("sweep", run).axes
    points, (up,) = bars_of(fast, "sps")
    assert points == pytest.approx(np.array([[2, 2], [4, 2.5]]))
    assert len(up[0]) == 0  # two documents have no interval
    points, (up,) = bars_of(right, "sps")
    assert points == pytest.approx(np.array([[2, 100], [4, 50]]))
    assert up[1] == pytest.approx(np.array([[4, 9.45], [4, 90.55]]), abs=0.01)  # Wilson's of 1 of 2
    assert line_of(fast, "plain (baseline)")[:, 1] == pytest.approx([1, 1])
    assert line_of(right, "plain (baseline)")[:, 1] == pytest.approx([100, 100])
    assert fast.get_xlabel() == right.get_xlabel() == "gamma"
    assert fast.get_xscale() == "linear"


def test_sweep_interval(run, tmp_path):
    """Three documents with speedups 4, 2 and 2: without one of them 2 / 1 or 2 / 0.75, and 25 / 9 of them count."""
    settings = {"sps[a]": {"g": 1}, "sps[b]": {"g": 2}}
    fast = drawn("sweep", settings_run(tmp_path / "run", settings, (0.25, 0.5, 0.5))).axes[0]
    points, (up,) = bars_of(fast, "sps")
    assert points[:, 1] == pytest.approx([3 / 1.25] * 2)
    factor = (4 / 3) ** (t.ppf(0.975, 25 / 9 - 1) * 2 / 3)
    assert up[0][:, 1] == pytest.approx([2.4 / factor, 2.4 * factor])


def settings_run(folder, settings, seconds=(0.5,), **plan):
    """Methods of given settings, all alike in speed, and the baseline."""
    rows = Rows()
    for name in ("plain", *settings):
        for doc, one in enumerate(seconds):
            for row in rows.add(name, doc, *((1.0, [(0, 0)]) if name == "plain" else (one, [(1, 1)]))):
                row["committed"] = 2
    return rows.run(folder, settings=settings, **plan).folder


def test_sweep_of_decades_is_on_a_log_scale(tmp_path):
    def scale(name, *values):
        folder = settings_run(tmp_path / name, {f"sps[{v}]": {"threshold": v} for v in values})
        return drawn("sweep", folder).axes[0].get_xscale()

    fig = drawn("sweep", settings_run(tmp_path / "ticks", {f"sps[{v}]": {"threshold": v} for v in (0.01, 1, 10)}))
    fig.draw_without_rendering()
    assert {"0.01", "10"} <= {label.get_text() for label in fig.axes[0].get_xticklabels()}
    assert scale("a", 0.01, 0.1, 1.5) == "log"
    assert scale("b", 0.01, 0.1, 1.0) == "linear"
    assert scale("c", 0, 0.01, 1.5) == "symlog"


def test_sweep_of_names(tmp_path):
    values = {"sps[a]": {"online": True}, "sps[b]": {"online": False}, "sps[c]": {"online": None}}
    ax = drawn("sweep", settings_run(tmp_path / "run", values)).axes[0]
    assert bars_of(ax, "sps")[0][:, 0].tolist() == [0, 1, 2]
    assert {bars[0].get_linestyle() for bars in ax.containers} == {"None"}  # nothing lies between names
    assert [label.get_text() for label in ax.get_xticklabels()] == ["True", "False", "None"]


def test_sweep_of_two_settings(tmp_path):
    """gamma has more values than k, so it is swept, and each k has a line."""
    pairs = [(2, 1), (4, 1), (8, 1), (2, 5), (8, 5)]
    folder = settings_run(tmp_path / "run", {f"sps[{g},{k}]": {"k": k, "gamma": g} for g, k in pairs})
    ax = drawn("sweep", folder).axes[0]
    assert ax.get_xlabel() == "gamma"
    assert bars_of(ax, "sps, k=1")[0][:, 0].tolist() == [2, 4, 8]
    assert bars_of(ax, "sps, k=5")[0][:, 0].tolist() == [2, 8]


def test_sweep_over_runs_and_implementations(tmp_path):
    """Namesakes of two runs, and another implementation with the same setting."""
    one = settings_run(tmp_path / "one", {"sps": {"gamma": 2}, "fly[a]": {"gamma": 3}, "fly[b]": {"gamma": 5}})
    other = settings_run(tmp_path / "other", {"sps": {"gamma": 7}})
    ax = drawn("sweep", one, other).axes[0]
    assert bars_of(ax, "sps")[0][:, 0].tolist() == [2, 7]
    assert bars_of(ax, "fly")[0][:, 0].tolist() == [3, 5]
    wrong = settings_run(tmp_path / "wrong", {"sps": {"gamma": 7}, "fly[c]": {"gamma": 3, "window": 1}})
    third = settings_run(tmp_path / "third", {"fly[d]": {"gamma": 3, "window": 2}})
    with pytest.raises(UserError, match="gamma by sps and window by fly"):
        drawn("sweep", settings_run(tmp_path / "last", {"sps": {"gamma": 9}}), wrong, third)


def collaborating_run(folder, methods):
    """Two texts by each of `methods`: settings, seconds and baseline by name; every other one is wrong once."""
    rows = Rows()
    for i, (name, (_, seconds, _)) in enumerate(methods.items()):
        for doc in range(2):
            rows.add(name, doc, seconds, [(1, 1)])
        rows.scores += scores(name, (1, i % 2))
    settings = {name: own for name, (own, _, _) in methods.items()}
    baselines = {name: base for name, (_, _, base) in methods.items()}
    return rows.run(folder, settings=settings, baseline=None, baselines=baselines).folder


def test_sweep_of_methods_with_baselines_of_their_own(tmp_path):
    """Weights 1/4 and 3/4, proposed by draft in 1 and 1.25 s and by target in 1.6 and 0.8 s, of ensembles in 2 s."""
    methods = {f"ensemble[{w}]": ({"weights": w}, 2.0, f"ensemble[{w}]") for w in (0.25, 0.75)}
    for w, who, seconds in ((0.25, "draft", 1), (0.25, "target", 1.6), (0.75, "draft", 1.25), (0.75, "target", 0.8)):
        methods[f"cos[{w},{who}]"] = ({"weights": w, "proposer": who}, seconds, f"ensemble[{w}]")
    fast, right = drawn("sweep", collaborating_run(tmp_path / "run", methods)).axes
    assert bars_of(fast, "cos, proposer=draft")[0] == pytest.approx(np.array([[0.25, 2], [0.75, 1.6]]))
    assert bars_of(fast, "cos, proposer=target")[0] == pytest.approx(np.array([[0.25, 1.25], [0.75, 2.5]]))
    assert line_of(fast, "ensemble (baseline)") == pytest.approx(np.array([[0.25, 1], [0.75, 1]]))
    assert bars_of(right, "ensemble (baseline)")[0] == pytest.approx(np.array([[0.25, 50], [0.75, 100]]))
    (shade,) = [collection for collection in fast.collections if collection.get_label() == "best of cos"]
    corners = {tuple(corner) for corner in shade.get_paths()[0].vertices.round(6)}
    assert corners == {(0.25, 1), (0.75, 1), (0.25, 2), (0.75, 2.5)}
    assert not [collection for collection in right.collections if collection.get_label() == "best of cos"]


def test_sweep_of_two_combinations(tmp_path):
    """Lines against different baselines have no common best, and what only baselines differ in is not swept."""
    methods = {}
    for kind, *each in (("weighted", 1, 0.8), ("contrastive", 1.6, 1.25)):
        methods[f"ensemble[{kind}]"] = ({"combine": kind}, 2.0, f"ensemble[{kind}]")
        for gamma, seconds in zip((1, 5), each, strict=True):
            methods[f"cos[{kind},{gamma}]"] = ({"combine": kind, "gamma": gamma}, seconds, f"ensemble[{kind}]")
    fast, right = drawn("sweep", collaborating_run(tmp_path / "run", methods)).axes
    assert fast.get_xlabel() == "gamma"
    assert bars_of(fast, "cos, combine=weighted")[0] == pytest.approx(np.array([[1, 2], [5, 2.5]]))
    assert bars_of(fast, "cos, combine=contrastive")[0] == pytest.approx(np.array([[1, 1.25], [5, 1.6]]))
    assert not [collection for collection in fast.collections if str(collection.get_label()).startswith("best")]
    flat = [line for line in right.lines if str(line.get_label()).endswith("(baseline)")]
    assert len(flat) == 2 and len({line.get_linestyle() for line in flat}) == 2
    assert all(tick == int(tick) for tick in fast.get_xticks())


# Of drafts alone: analysis/test_strength.py; of servers: test_requests_plot.py; of logs: test_training_plots.py; of
# several runs: below.
OF_ANY_RUN = [kind for kind in KINDS if kind not in ("strength", "requests", "training", "history")]
BEGINNINGS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@mostly_long(
    "kind, suffix", itertools.product(OF_ANY_RUN, BEGINNINGS), lambda kind, suffix: suffix == "svg" or kind == "depth"
)
def test_saved(run, kind, suffix, tmp_path):
    path = plot(kind, [run], tmp_path / f"a.{suffix}")
    content = path.read_bytes()
    assert content.startswith(BEGINNINGS[suffix])
    if suffix == "svg":
        assert b">target</text>" in content if kind == "time" else b"sps" in content
        assert b"font" in content and b"dc:date" not in content
    if kind == "time":
        assert plot(kind, [run], tmp_path / f"b.{suffix}").read_bytes() == content


def test_default_file(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plot("depth", [run]).resolve() == tmp_path / "depth.svg"
    assert (tmp_path / "depth.svg").exists()


@mostly_long("kind", OF_ANY_RUN, ("speed-accuracy", "depth", "time"))
def test_fits_the_column(two_tasks, kind):
    fits_the_column(drawn(kind, two_tasks))


def fits_the_column(fig):
    """8 point text in 3.4 inches, nothing cut off, and the legend outside of all panels."""
    fig.draw_without_rendering()
    assert fig.get_size_inches()[0] == 3.4
    texts = [text for text in fig.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 8
    (legend,) = fig.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= fig.bbox.x1 and box.y0 >= 0
    for ax in fig.axes:
        panel = ax.get_tightbbox()
        assert not panel.overlaps(box)
        assert panel.x0 >= -1 and panel.x1 <= fig.bbox.x1 + 1 and panel.y1 <= fig.bbox.y1 + 1


def test_a_method_keeps_its_colour(run):
    colours = {
        kind: {
            name: handle
            for ax in drawn(kind, run).axes
            for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        for kind in ("depth", "discard-verification", "lengths")
    }
    for method, point in ((SPS2, None), (SPS4, None), ("fly", "fly")):
        line, bar = colours["depth"][method], colours["lengths"][method][0]
        colour = line[0].get_color()
        assert colour == drawing.colour_of(method)
        assert point is None or colours["discard-verification"][point].get_color() == drawing.colour_of(point)
        assert bar.get_facecolor()[:3] == pytest.approx([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def test_colours_go_by_name_in_images_and_pages():
    """Whatever else is there, and in whatever order."""
    alone, among = style.styles(["csd"], []), style.styles(["vanilla", "x", "y", "csd"], ["vanilla"])
    page = page_style.looks({"csd · a": "csd", "vanilla": "vanilla"}, ["vanilla"])
    assert alone["csd"].color == among["csd"].color == page["csd · a"].colour
    assert among["vanilla"].color == page["vanilla"].colour not in drawing.COLOURS


def test_no_two_methods_of_a_figure_share_a_colour():
    """Of names whose own colours are the same, too; the first by name keeps its own."""
    own = drawing.colour_of("csd")
    same = [name for name in (f"m{i}" for i in range(99)) if drawing.colour_of(name) == own][:4]
    names = [*same, "csd"]
    assert len({one.color for one in style.styles(names, []).values()}) == len(names)
    assert len({one.colour for one in page_style.looks(dict(zip(names, names, strict=True)), []).values()}) == len(
        names
    )
    assert style.styles(names, [])["csd"].color == own
    assert len(drawing.COLOURS) == len(set(drawing.colours_of(f"m{i}" for i in range(len(drawing.COLOURS))).values()))


def test_a_line_breaks_at_a_gap():
    rows = pd.DataFrame({"y": [1.0, 2.0, 3.0]}, index=[1, 2, 5])
    broken = style.with_gaps(rows, range(9))
    assert broken.index.tolist() == [1, 2, 3, 4, 5]
    assert broken.y.tolist() == pytest.approx([1, 2, math.nan, math.nan, 3], nan_ok=True)


def test_a_small_difference_of_acceptance_is_seen(tmp_path):
    """99 and 95 % of a hundred rounds each: the axis does not begin at 0."""
    rows = Rows()
    for doc in range(4):
        rows.add("plain", doc, 1.0, SINGLE)
        rows.add("s", doc, 1.0, [(1, 1)] * (25 - (doc == 0)) + [(1, 0)] * (doc == 0))
        rows.add("r", doc, 1.0, [(1, 1)] * (25 - (doc < 3) - (doc < 2)) + [(1, 0)] * ((doc < 3) + (doc < 2)))
    (ax,) = drawn("depth", rows.run(tmp_path / "run").folder).axes
    assert ax.get_ylim()[0] > 70


@pytest.mark.parametrize(
    ("facts", "low", "high"),
    [((99.9, 100), 80, 100.8), ((0, 0), -0.8, 20), ((49, 51), 40, 60), ((-5, 120), -4, 104), ((30, 80), 30, 80)],
)
def test_axes_of_scores_do_not_zoom_into_noise(facts, low, high):
    assert drawing.score_range(*facts) == pytest.approx((low, high))


def test_bounds_are_not_on_the_front(tmp_path):
    """The oracle is fastest and right; a method that drafts with its lengths likewise: no method can be both."""
    rows = Rows()
    for method, seconds, right in (("plain", 1, 1), ("sps", 0.5, 0), ("oracle", 0.1, 1), ("fly", 0.1, 1)):
        rows.add(method, 0, seconds, [(0, 0)])
        rows.scores += scores(method, (right,))
    folder = rows.run(tmp_path / "run", settings={"fly": {"length": "oracle"}}).folder
    (ax,) = drawn("speed-accuracy", folder).axes
    assert line_of(ax, "Pareto front")[1:-1] == pytest.approx(np.array([[1, 100], [2, 0]]))
    assert bars_of(ax, "oracle")[0] == pytest.approx(np.array([[10, 100]]))


def test_where_time_goes_is_told_of_each_run(run, tmp_path):
    other = made("one")
    other.scores += scores(SPS4, (1, 0)) + scores("fly", (0, 1))
    folder = other.run(tmp_path / "z", settings=GAMMAS, seed=1).folder
    axes = drawn("time", run, folder).axes
    assert [ax.get_title() for ax in axes] == ["a, one", "z, one"]
    assert all(ax.lines[0].get_xdata() == pytest.approx([250, 250]) for ax in axes)


def test_styles_differ_in_colour_and_without():
    result = style.styles([f"m{i}" for i in range(20)], ["m0"])
    assert result["m0"].color == drawing.BASES[0]
    assert len({(one.color, one.marker) for one in result.values()}) == 20
    few = [result[f"m{i}"] for i in range(1, 6)]
    assert (
        len({one.marker for one in few}) == len({str(one.line) for one in few}) == len({one.hatch for one in few}) == 5
    )


def test_what_a_reader_must_know_stands_above(run, tmp_path):
    result = made("one")
    result.scores += scores("fly", (1, 1))
    result.samples.append(sample("fly", 2) | {"finish": "error"})
    other = result.run(tmp_path / "other", settings=GAMMAS, environment={"cpu": "slide rule"}).folder
    with pytest.raises(UserError, match="--allow-mismatch cpu"):
        drawn("time", run, other, allowed=["documents"])
    message = drawn("time", run, other, allowed=["documents", "cpu"]).get_suptitle().replace("\n", " ")
    assert "MISMATCH" in message and "abacus / slide rule" in message and "1 failed samples are left out" in message
    message = "Where decode time goes tiny greedy; float32, 2 cores of abacus, up to 2 documents a task"
    assert drawn("time", run).get_suptitle().replace("\n", " ") == message


def test_panels_of_several_pairs_and_samplings(run, tmp_path):
    pair = {"name": "huge", "description": "", "target": MODEL, "draft": MODEL}
    other = settings_run(tmp_path / "o", {SPS2: {"gamma": 2}}, (0.5, 0.5), pair=pair, temperature=0.5)
    titles = [ax.get_title() for ax in drawn("time", run, other).axes]
    assert titles == ["a, tiny, greedy, one", "o, huge, T=0.5, one"]


def test_unknown_kinds_and_files(run, tmp_path):
    with pytest.raises(UserError, match="did you mean 'depth'"):
        plot("depht", [run], tmp_path / "a.svg")
    with pytest.raises(UserError, match=r"\.svg, \.png or \.pdf"):
        plot("depth", [run], tmp_path / "a.gif")
    with pytest.raises(UserError, match="no folder"):
        plot("depth", [run], tmp_path / "none" / "a.svg")
    with pytest.raises(UserError, match="not a run folder"):
        plot("depth", [tmp_path], tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_runs_that_cannot_feed_a_plot(tmp_path):
    alone = settings_run(tmp_path / "alone", {})
    for kind in ("depth", "lengths", "discard-verification", "speed-accuracy", "sweep", "forwards", "reliability"):
        with pytest.raises(UserError, match="`specbench run --method"):
            drawn(kind, alone)
    bare = settings_run(tmp_path / "bare", {"sps[a]": {"g": 1}, "sps[b]": {"g": 2}}, baseline=None)
    for kind in ("speed-accuracy", "sweep"):
        with pytest.raises(UserError, match="baseline"):
            drawn(kind, bare)
    row = sample("plain", 0)
    untimed = [step | {"target_seconds": None, "draft_seconds": None} for step in rounds(row, (1, 1))]
    with pytest.raises(UserError, match="seconds of forwards"):
        drawn("time", write_run(tmp_path / "untimed", [row], untimed, scores("plain", (1,))))
    (alone / "scores.parquet").unlink()
    with pytest.raises(UserError, match="--resume"):
        drawn("time", alone)


def repeated(folder, seconds, started, commit):
    methods = {"vanilla": Timed(1.0, SINGLE), "sps": Timed(seconds, CHAIN)}
    made = timed_run(folder, methods, documents=9, environment={"git": commit}, baseline="vanilla")
    return change_manifest(made.folder, started=started).folder


def test_history_has_the_runs_in_their_order(tmp_path):
    """The first run began last. No line joins what was not measured between."""
    late = repeated(tmp_path / "a", 0.5, "2026-01-03T09:30:00+0000", "123456789")
    early = repeated(tmp_path / "b", 0.8, "2026-01-02T12:00:00+0000", "abcdefghi")
    (ax,) = drawn("history", late, early).axes
    points, _ = bars_of(ax, "sps")
    assert points == pytest.approx(np.array([[0, 1.25], [1, 2.0]]))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [
        "2026-01-02\n12:00\nabcdefg",
        "2026-01-03\n09:30\n1234567",
    ]
    assert "vanilla" not in str(ax.get_legend_handles_labels()[1])
    assert {line.get_linestyle() for line in ax.lines if len(line.get_xdata()) == 2} <= {"None", ":"}


def test_history_needs_several_runs_with_speeds(run, tmp_path):
    with pytest.raises(UserError, match="give at least two"):
        drawn("history", run)
