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
    assert family_table.of_head(tmp_path / "h.safetensors") == {"parameters": 17, "agreement": expected}


def test_means_and_ends_over_seeds():
    figures = pd.DataFrame(
        {"method": ["a"] * 3, "documents": [4] * 3, "parameters": [1234] * 3, "tau": [2.0, 3.0, 2.5]}
        | {"draft_ms": [1.0, 2.0, 6.0]}
    )
    made = family_table.row("a", figures)
    assert made == {"method": "a", "parameters": 1234, "tau": 2.5, "tau_low": 2.0, "tau_high": 3.0, "draft_ms": 3.0}
    lines = family_table.markdown(pd.DataFrame([made])).splitlines()
    assert lines[0] == "| method | parameters | tau | draft ms |"
    assert lines[2] == "| a | 1,234 | 2.50 [2.00, 3.00] | 3.00 |"
