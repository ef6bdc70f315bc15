"""Forwards over several texts: which are timed, and that each feeds what its cell says."""

import pytest
from builders_engine import made

from specbench.config import UserError
from specbench.engine.clock import BatchStopwatch
from specbench.studies import profile_batches


def test_every_cell_is_a_forward_of_so_many_texts_and_tokens(monkeypatch):
    monkeypatch.setattr(profile_batches, "CONTEXTS", (16, 40))
    whole, fed = BatchStopwatch.forward, []

    def noted(self, rows):
        fed.append((len(rows), rows[0].watch.forwards[-1].model, rows[0].watch.forwards[-1].width))
        fed[-1] += (rows[0].watch.forwards[-1].context,)
        return whole(self, rows)

    monkeypatch.setattr(BatchStopwatch, "forward", noted)
    advanced = []
    table = profile_batches.measure_batches(made(), (1, 3), 2, advanced.append)
    cells = {
        (m, n, c, w) for m in ("target", "draft") for n in (1, 3) for c in (16, 40) for w in profile_batches.WIDTHS
    }
    assert {tuple(key) for key in table[["model", "rows", "context", "width"]].itertuples(index=False)} == cells
    assert (
        (table["median"] > 0).all() and (table.low <= table["median"]).all() and (table["median"] <= table.high).all()
    )
    timed = [one for one in fed if one[3]]
    assert {(m, n, c, w) for n, m, w, c in timed} == cells and len(timed) == len(cells) * (2 + profile_batches.WARM)
    assert len(advanced) == 2 + profile_batches.WARM


def test_the_first_forwards_of_each_kind_do_not_count(monkeypatch):
    class Feeding:
        def __init__(self, *_):
            self.times = {}

        def seconds(self, width):
            self.times[width] = self.times.get(width, 0) + 1
            return 100.0 if self.times[width] <= profile_batches.WARM else width / 10

    monkeypatch.setattr(profile_batches, "Feeding", Feeding)
    table = profile_batches.measure_batches(made(), (2,), 3)
    for name in ("median", "low", "high"):
        assert table[name].tolist() == pytest.approx((table.width / 10).tolist())


def test_contexts_that_do_not_fit(monkeypatch):
    monkeypatch.setattr(profile_batches, "CONTEXTS", (10**6,))
    with pytest.raises(UserError, match="positions; forwards cannot be measured"):
        profile_batches.measure_batches(made(), (1,), 1)
