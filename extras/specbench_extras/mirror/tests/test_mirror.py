"""Ready drafts: ranks by an early layer against plain forwards, places and saved seconds by hand, and the command."""

import json

import oracle
import pandas as pd
import pytest
from builders_engine import build, made
from early_exit import exit_logits
from gates import pair
from refusals import one_line_error
from screens import call
from synthetic import Rows

from specbench_extras.mirror.analysis import BRANCHES, mirror, saved_seconds
from specbench_extras.mirror.study import added, ranks_of
from specbench_extras.mirror.view import view


def test_ranks_by_an_early_layer():
    target = pair("llama")[0]
    prompt, text = oracle.prompts(2, length=9)
    result = ranks_of(made(), prompt, text, [0, 2, 7], [1])
    logits = exit_logits(target, [*prompt, *text], 1)
    for place, rank in zip([0, 2, 7], result[0], strict=True):
        row = logits[len(prompt) + place - 1].tolist()
        assert rank == sorted(row, reverse=True).index(row[text[place]])
    assert len(set(result[0])) > 1
    assert ranks_of(made(), prompt, text, [], [1]) == [[]]


def test_places_by_hand():
    """A correction, a bonus, a round without a draft, and one that the end of the text cut."""
    columns = ("round", "drafted", "accepted", "committed", "truncated")
    rows = [(0, 0, 0, 1, 0), (1, 3, 1, 2, 0), (2, 3, 3, 4, 0), (3, 0, 0, 1, 0), (4, 3, 2, 2, 1)]
    result = added(pd.DataFrame(rows, columns=columns))
    assert result[["round", "place", "whole"]].to_numpy().tolist() == [[1, 2, False], [2, 6, True]]


def test_saved_seconds_by_hand():
    """Drafts of 1, 2 and 9 s after target forwards of 4, 8 and 8 s, of which the later layers are half."""
    keys = {"repeat": 0, "task": "one", "doc_id": 0, "method": "sps"}
    rounds = pd.DataFrame(
        [
            keys | {"round": number, "target_seconds": target, "draft_seconds": draft}
            for number, (target, draft) in enumerate([(4.0, 1.0), (8.0, 2.0), (8.0, 9.0), (8.0, 9.0)], 1)
        ]
    )
    frame = pd.DataFrame([keys | {"round": number, "hit": number != 3} for number in (1, 2, 3)])
    # Round 2: all of 2 s, within half of 4; round 3: 4 of 9 s; round 4: nothing, after a miss.
    assert saved_seconds(rounds, frame, "hit", 0.5).saved.tolist() == [2 + 4]


def test_figures_by_hand(tmp_path):
    """Ten rounds of 2 tokens in 15 s each: target 10, draft 4, and 1 more. Every other round hits."""
    rows, hits = Rows(), []
    for doc in range(4):
        rows.add("plain", doc, 200.0, ((0, 0),) * 20)
        for row in rows.add("sps", doc, 150.0, ((3, 1),) * 10)[1:]:
            row |= {"target_seconds": 10.0, "draft_seconds": 4.0, "seconds": 15.0}
            key = {name: row[name] for name in ("repeat", "task", "doc_id", "method", "round")}
            hits.append(key | {"layer": 6, "rank": 0 if row["round"] % 2 else 5, "whole": row["round"] == 1})
    figures = mirror(rows.run(tmp_path / "run"), "sps", pd.DataFrame(hits), 12)
    table = figures.table.set_index("branches")
    assert figures.baseline == "plain" and list(table.index) == list(BRANCHES)
    assert table.hit.tolist() == [0.5, 0.5, 0.5, 1.0] and table.hit_end.tolist() == [0.1, 0.1, 0.1, 0.1]
    assert table.speedup.tolist() == pytest.approx([200 / 150] * 4)
    # Rounds 2, 4, …, 10 save 4 s each; at the end only round 2 does; with 8 branches all but the first.
    assert table.modelled_speedup.tolist() == pytest.approx([200 / 130] * 3 + [200 / 114])
    assert table.modelled_speedup_end.tolist() == pytest.approx([200 / 146] * 4)


def test_no_hit_is_a_share_of_zero(tmp_path):
    rows, hits = Rows(), []
    for doc in range(4):
        for row in rows.add("sps", doc, 150.0, ((3, 1),) * 10)[1:]:
            key = {name: row[name] for name in ("repeat", "task", "doc_id", "method", "round")}
            hits.append(key | {"layer": 6, "rank": 0, "whole": False})
    (first, *_) = view(mirror(rows.run(tmp_path / "run", baseline=None), "sps", pd.DataFrame(hits), 12)).sheets[0].rows
    assert first == ["6 of 12", "1", "1.00 [1.00, 1.00]", "0.00", "-", "-"]


@pytest.mark.long
def test_the_command(tmp_path):
    folder = tmp_path / "run"
    made_run = call("run", "--suite", "pocket", "--limit", "1", "--method", "sps", "--out", folder)
    assert made_run.exit_code == 0, made_run.output
    result = call("analyze", "mirror", folder, "--layers", "6")
    assert result.exit_code == 0, result.output
    assert "6 of 12" in result.output and max(map(len, result.output.splitlines())) <= 80
    report = json.loads(call("analyze", "mirror", folder, "--format", "json").stdout)
    assert {row["layer"] for row in report["table"]} == {3, 6, 9}
    rates = [row["hit"] for row in report["table"] if row["layer"] == 9]
    assert rates == sorted(rates) and rates[-1] > 0.5
    refused = call("analyze", "mirror", folder, "--layers", "12")
    assert refused.exit_code == 2 and "give exits from 1 to 11" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 0}, "mirror: gamma"),
        ({"branches": 0}, "mirror: branches"),
        ({"exit": 1}, "mirror: exit"),
        ({"branches": 900}, "mirror: its rounds are of up to"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "mirror", **changes)
