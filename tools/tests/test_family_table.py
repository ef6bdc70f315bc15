"""The family table: what it says of a head file, and means over seeds by hand."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).parents[2] / "tools" / "recipes"))
import family_table


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ({"held_out_agreement": 0.7}, 0.7),
        ({"held_out_agreement": [0.6, 0.5]}, 0.6),
        ({"accuracies": [[0.4, 0.2], [0.3, 0.1]]}, 0.4),
    ],
)
def test_a_head_file(tmp_path, trained, expected):
    tensors = {"fc.weight": torch.zeros(3, 4), "norm.weight": torch.zeros(5), "d2t": torch.zeros(9)}
    save_file(tensors, tmp_path / "h.safetensors", {"specbench": json.dumps({"trained": trained})})
    assert family_table.of_file(tmp_path / "h.safetensors") == {"parameters": 17, "agreement": expected}


def counts_of(rounds, committed):
    """Counts of two seeds of a head on two documents of each of two tasks: each seed has half of a document's."""
    index = pd.MultiIndex.from_tuples(
        [(0, task, doc, f"{name}-{seed}") for name in rounds for seed in (0, 1) for task in "xy" for doc in (0, 1)],
        names=["repeat", "task", "doc_id", "method"],
    )
    values = [
        {"A": 0, "J": 0, "C": committed[name][task, doc] / 2, "R": rounds[name] / 2}
        for name in rounds
        for _ in (0, 1)
        for task in "xy"
        for doc in (0, 1)
    ]
    return pd.DataFrame(values, index)


def test_a_row_of_a_head():
    """τ of `eagle` is 20/10 and 40/10 by task, that of `a` 40/10 and 60/10: ratios of 2 and 1.5."""
    committed = {
        "eagle": {("x", 0): 9, ("x", 1): 11, ("y", 0): 18, ("y", 1): 22},
        "a": {("x", 0): 20, ("x", 1): 20, ("y", 0): 32, ("y", 1): 28},
    }
    counts = counts_of({"eagle": 5, "a": 5}, committed)
    heads = pd.DataFrame(
        {"name": ["a", "a"], "parameters": [1234] * 2, "agreement": [0.5, 0.6], "draft_ms": [1.0, 2.0]}
        | {"speedup": [0.75, 1.25]}
    )
    made = family_table.row("a", heads, counts)
    assert {name: made[name] for name in ("method", "seeds", "documents", "parameters", "draft_ms")} == {
        "method": "a",
        "seeds": 2,
        "documents": 4,
        "parameters": 1234,
        "draft_ms": 1.5,
    }
    assert [made[f"agreement{end}"] for end in family_table.ENDS] == [pytest.approx(0.55), 0.5, 0.6]
    assert [made[f"speedup{end}"] for end in family_table.ENDS] == [1.0, 0.75, 1.25]
    assert (made["tau"], made["tau_over_eagle"]) == (pytest.approx(5), pytest.approx(1.75))
    assert pd.isna(made["tau_low"]) and pd.isna(made["tau_over_eagle_high"]), "two documents of a task tell no interval"
    base = family_table.row("eagle", heads.assign(name="eagle"), counts)
    assert base["tau"] == pytest.approx(3) and pd.isna(base["tau_over_eagle"])


def test_cells():
    wide = pd.DataFrame(
        [
            {"method": "a", "seeds": 3, "documents": 4, "parameters": 1234, "draft_ms": float("nan")}
            | {"tau": 2.5, "tau_low": 2.0, "tau_high": 3.0}
        ]
    )
    lines = family_table.markdown(wide).splitlines()
    assert lines[0] == "| method | parameters | draft ms | tau |"
    assert lines[2] == "| a | 1,234 | – | 2.50 [2.00, 3.00] |"
