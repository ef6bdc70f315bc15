"""`profile --widths`: what is measured, next to which limit, and what lies in the file."""

import pandas as pd
import pytest
from screens import output, refusal, rendered

from specbench.engine.models import cost
from specbench.report.views.widths import view
from specbench.studies import ceilings, profile_widths
from specbench.studies.profile_widths import Curves


def curves(milliseconds, limit=0.006, bandwidth=50e9) -> Curves:
    rows = [
        {"model": "target", "runtime": "static", "context": 300, "width": width, "median": 1.0, "fast": ms / 1000}
        for width, ms in milliseconds.items()
    ]
    table = pd.DataFrame(rows).assign(weight_bytes=limit * bandwidth, bandwidth=bandwidth, limit=limit)
    machine = {"device": "cpu", "cpu": "abacus", "threads": 2, "load": 0.3}
    return Curves("tiny", 300, 40, {"target": {"model": "m", "dtype": "bfloat16"}}, machine, table)


def test_the_table_and_what_it_says():
    shown = rendered(view(curves({1: 12.6, 2: 12.8, 8: 14.4})))
    assert "12.6" in shown and "2.10" in shown and "2.40" in shown and " 6" in shown
    assert "flat to eight tokens, within 1.14 ×" in shown
    assert "300 MB of weights at 50.0 GB/s" in " ".join(shown.split())
    assert "31 ms for 1 token and 16 ms for 2" in " ".join(rendered(view(curves({1: 31, 2: 16, 8: 17}))).split())
    assert "within 1.20 × to eight" in rendered(view(curves({1: 10, 2: 11, 8: 12})))
    assert "not known" in rendered(view(curves({1: 10.0, 8: 10.0}, float("nan"), float("nan"))))


def test_the_command(tmp_path, monkeypatch, pocket):
    """Every model and runtime, at all widths; the limit is that of the weights at the faster of two looks."""
    monkeypatch.setattr(profile_widths.carry_out, "__defaults__", (2,))
    speeds = iter([4e9, 1e9, 2e9, 3e9])
    asked = []

    def measure(device, dtype, sizes, sides):
        asked.append(sizes[0])
        return {"bandwidth": [{"median": next(speeds)}]}

    monkeypatch.setattr(ceilings, "measure", measure)
    out = tmp_path / "w.csv"
    said = output("profile", "--widths", "--runtime", "static", "--runtime", "eager", "--out", out)
    table = pd.read_csv(out)
    cells = [(m, r, w) for m in ("target", "draft") for r in ("static", "eager") for w in (1, 2, 3, 4, 5, 8, 16)]
    assert list(table[["model", "runtime", "width"]].itertuples(index=False, name=None)) == cells
    sizes = [cost.facts(pocket.models[role])["weight_bytes"] for role in ("target", "draft")]
    assert asked == sizes * 2
    of_role = table.groupby("model", sort=False).first()
    assert of_role.limit.tolist() == pytest.approx([sizes[0] / 4e9, sizes[1] / 3e9])
    assert (table.fast > 0).all() and (table.fast <= table["median"]).all()
    assert set(table["dtype"]) == {"float32"}
    assert "target, static:" in said and "written: " in said


def test_what_is_refused(tmp_path):
    assert ".csv file" in refusal("profile", "--widths", "--out", tmp_path / "w.json")
    assert "--widths measures now" in refusal("profile", tmp_path, "--widths")
