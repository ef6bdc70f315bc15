"""Drafts of graded strength: figures worked out by hand, from which draft on accuracy is kept, and what is refused."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from refusals import one_line_error
from screens import call
from synthetic import Rows, change_manifest, scores

from specbench.analysis.compare import AVERAGE
from specbench.analysis.strength import kept_from, strength
from specbench.config import UserError
from specbench.report.plots import kinds
from specbench.report.views import strength as strength_view

# The target solves 8 of 10 documents of `one` and 5 of `two`. The draft takes a quarter of its time.
TARGET = {"one": [1] * 8 + [0] * 2, "two": [1] * 5 + [0] * 5}
WEAK = {"one": [1] * 2 + [0] * 7 + [1], "two": [1] + [0] * 9}
STRONG = {"one": [1] * 6 + [0] * 2 + [1, 0], "two": [1] * 4 + [0] * 5 + [1]}
BOLD = {
    "weak": {"one": [0] * 7 + [1, 0, 0], "two": [0] * 10},
    "strong": {"one": [1] * 9 + [0], "two": [1] * 5 + [0] * 5},
}


def made(folder, draft, bold, target="t", weights="d"):
    rows = Rows()
    for task, right in TARGET.items():
        for method, values, seconds in (
            ("vanilla", right, 4.0),
            ("member", draft[task], 1.0),
            ("bold", bold[task], 2.0),
        ):
            for doc in range(10):
                shapes = [(0, 0)] * 4 if method != "bold" else [(3, 1), (3, 1)]
                own = rows.add(method, doc, seconds, shapes, task=task)
                if method == "bold" and doc < 6:  # a rescue in six documents
                    own[1]["rescued"] = 1
            rows.scores += scores(method, values, task=task)
    pair = {"name": folder.name, "description": "", "target": {"model": "t"}, "draft": {"model": weights}}
    settings = {"member": {"model": "draft"}, "bold": {"gamma": 3}}
    run = rows.run(folder, baseline="vanilla", pair=pair, settings=settings)
    models = {"target": {"weights_hash": target}, "draft": {"weights_hash": weights}}
    return change_manifest(run.folder, models={role: facts | {"dtype": "float32"} for role, facts in models.items()})


@pytest.fixture
def ladder(tmp_path):
    strong = made(tmp_path / "strong", STRONG, BOLD["strong"], weights="e")
    return [strong, made(tmp_path / "weak", WEAK, BOLD["weak"])]


def row(table, pair, task, method=None):
    chosen = table[(table.pair == pair) & (table.task == task)]
    (record,) = (chosen if method is None else chosen[chosen.method == method]).to_dict("records")
    return record


def test_drafts_by_hand(ladder):
    analysis = strength(ladder)
    assert list(dict.fromkeys(analysis.drafts.pair)) == ["weak", "strong"]
    one, two, both = (row(analysis.drafts, "weak", task) for task in ("one", "two", AVERAGE))
    assert [one["strength"], two["strength"], both["strength"]] == pytest.approx([2 / 8, 1 / 5, (2 / 8 + 1 / 5) / 2])
    assert [one["cost"], both["cost"]] == pytest.approx([0.25, 0.25])
    assert (one["missed"], one["solved"], one["alone"]) == (2, 1, 0.5)
    assert (both["missed"], both["solved"]) == (7, 1) and both["documents"] == 20
    z = 1.959963984540054  # Wilson's interval of 1 of 7
    middle, spread = 1 / 7 + z * z / 14, z * math.sqrt(6 / 49 / 7 + z * z / 4 / 49)
    bounds = [(middle + sign * spread) / (1 + z * z / 7) for sign in (-1, 1)]
    assert [both["alone_low"], both["alone_high"]] == pytest.approx(bounds, rel=1e-5)


def test_methods_by_hand(ladder):
    analysis = strength(ladder)
    one, both = (row(analysis.methods, "weak", task, "bold") for task in ("one", AVERAGE))
    assert one["kept"] == pytest.approx(1 / 8) and both["kept"] == pytest.approx(1 / 16)
    assert one["delta"] == pytest.approx(-0.7) and both["delta"] == pytest.approx(-0.6)
    assert one["speedup"] == pytest.approx(2) and one["tau"] == pytest.approx(2)
    assert (one["rescued"], one["harmful"]) == (6, 1.0), "six rescued, which the target solves, and none is right"
    assert (both["rescued"], both["harmful"]) == (11, 1.0), "of `two` the target solves five of the six"
    better = row(analysis.methods, "strong", "one", "bold")
    assert (better["kept"], better["harmful"]) == (9 / 8, 0.0)
    assert set(analysis.methods.method) == {"bold"}


@pytest.mark.long
def test_from_which_draft_on_accuracy_is_kept(ladder, tmp_path):
    first, reason = kept_from(strength(ladder), "bold")
    assert first == "strong" and reason == "weak: one -70.0 points"
    lossy = {task: [0] * 10 for task in TARGET}
    stronger = {"one": [1] * 9 + [0], "two": [1] * 5 + [0] * 5}
    broken = made(tmp_path / "broken", stronger, lossy, weights="f")
    first, reason = kept_from(strength([*ladder, broken]), "bold")
    assert first is None and reason.startswith("broken"), "kept means with all stronger drafts, too"


def test_a_small_loss_of_the_mean_is_a_loss(tmp_path, ladder):
    """One document of twenty is 5 points of the mean, though no test can tell."""
    slip = {"one": [1] * 7 + [0] * 3, "two": TARGET["two"]}
    slipping = made(tmp_path / "slipping", {"one": [1] * 10, "two": [1] * 10}, slip, weights="g")
    assert kept_from(strength([*ladder, slipping]), "bold") == (None, "slipping: the mean -5.0 points")


def test_losses_that_chance_explains_among_several_tasks_are_none():
    """p = 0.03 on one of two tasks: 0.06 by Holm's correction. On one task alone it is 0.03."""

    def kept(*rows):
        columns = ["pair", "method", "task", "delta", "delta_p"]
        table = pd.DataFrame([("a", "bold", *row) for row in rows], columns=columns)
        return kept_from(SimpleNamespace(methods=table), "bold")

    assert kept(("one", -0.02, 0.03), ("two", 0.02, 0.9), (AVERAGE, 0.0, np.nan)) == ("a", "")
    assert kept(("one", -0.02, 0.02), ("two", 0.02, 0.9), (AVERAGE, 0.0, np.nan)) == (None, "a: one -2.0 points")
    assert kept(("one", -0.005, 0.03)) == (None, "a: one -0.5 points")


def test_what_is_said(ladder):
    page = strength_view.view(strength(ladder))
    assert page.sentences == [
        "bold: keeps vanilla's accuracy from strong (strength 78 %) on; with weaker ones it does not (weak: one "
        "-70.0 points)."
    ]
    drafts, bold = page.sheets
    assert drafts.rows[0][0] == "weak" and drafts.rows[0][3:] == ["20 (two)", "0.25", "1 of 7"]
    assert bold.title == "bold" and [line[0] for line in bold.rows] == ["weak", "strong"]
    assert bold.rows[1][6] == "0/11"


def test_a_ladder_has_rungs_of_one_target(ladder, tmp_path):
    with pytest.raises(UserError, match="strength compares drafts"):
        strength(ladder[:1])
    other = made(tmp_path / "other", WEAK, BOLD["weak"], target="u", weights="g")
    with pytest.raises(UserError, match="different targets"):
        strength([*ladder, other])


def test_a_target_that_solves_nothing_is_refused(tmp_path, monkeypatch):
    for task in TARGET:
        monkeypatch.setitem(TARGET, task, [0] * 10)
    drafts = {"weak": WEAK, "strong": STRONG}
    runs = [made(tmp_path / name, draft, BOLD[name], weights=name) for name, draft in drafts.items()]
    with one_line_error("solves nothing"):
        strength(runs)


def test_the_command_and_the_plot(ladder, tmp_path):
    folders = [str(run.folder) for run in ladder]
    printed = call("analyze", "strength", *folders)
    assert printed.exit_code == 0 and "keeps vanilla's accuracy from strong" in " ".join(printed.output.split())
    with kinds.look():
        fig = kinds.draw("strength", ladder)
    kept, fast = fig.axes
    (line,) = [container for container in kept.containers if container.get_label() == "bold"]
    assert line[0].get_xydata().tolist() == [
        pytest.approx([22.5, 6.25]),
        pytest.approx([77.5, 106.25]),
    ]
    assert fast.get_ylabel() == "decode speedup (×)"
