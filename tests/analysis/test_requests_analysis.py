"""Times of requests, worked out by hand."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest
from refusals import one_line_error
from screens import rendered

from specbench.analysis.load import Slo
from specbench.analysis.requests import request_figures, union
from specbench.report.views.requests import view


def run(rows, servers=("vllm",)):
    """A run whose samples are these."""
    plan = SimpleNamespace(servers=[SimpleNamespace(name=name) for name in servers])
    return SimpleNamespace(plan=plan, folder="runs/x", samples=lambda columns: pd.DataFrame(rows)[columns])


def sample(number, due, chunks, ended, tokens, **more):
    key = {"repeat": 0, "task": "t", "doc_id": number, "method": "vllm", "warmup": False, "finish": "eos"}
    facts = {"evidence": "steps", "verify_rounds": 2, "accepted_tokens": 5}
    times = {"due": due, "sent": due, "first_token": chunks[0], "ended": ended, "chunks": chunks}
    times |= {"decode_seconds": chunks[-1] - chunks[0]}
    return key | facts | times | {"new_tokens": tokens} | more


ROWS = [
    sample(0, 10.0, [10.2, 10.4, 10.8], 10.8, 7),  # TTFT 0.2, TPOT 0.6 / 6 = 0.1, gaps 0.2 and 0.4
    sample(1, 10.5, [11.1, 11.4], 11.5, 2),  # TTFT 0.6, TPOT 0.3, gap 0.3
    sample(2, 20.0, [20.1], 20.5, 1),  # TTFT 0.1, no TPOT
    sample(3, 20.2, [20.3], 21.0, None, finish="error"),
]


def test_figures_by_hand():
    """Busy from 10 to 11.5 and from 20 to 20.5: 2 s, 2.5 with the failed one. 10 tokens; 15 accepted in 6 rounds."""
    (row,) = request_figures(run(ROWS), Slo(ttft=0.3, tpot=0.2)).to_dict("records")
    assert (row["requests"], row["failed"]) == (3, 1)
    assert row["ttft_p50"] == pytest.approx(0.2) and row["tpot_p50"] == pytest.approx(0.2)
    assert row["gap_p50"] == pytest.approx(0.3) and row["e2e_p50"] == pytest.approx(0.8)
    assert math.isnan(row["ttft_p95"]) and math.isnan(row["e2e_p99"])  # of three requests
    assert row["tokens_per_s"] == pytest.approx(10 / 2) and row["served"] == pytest.approx(3 / 2)
    assert row["goodput"] == pytest.approx(2 / 2.5)  # the second is late
    assert row["user_tokens_per_s"] == pytest.approx((10 + 1 / 0.3) / 2) and row["per_round"] == pytest.approx(2.5)


@pytest.mark.parametrize(("bound", "kept"), [(0.15, 0), (0.25, 1)])
def test_a_text_that_came_late_has_no_time_per_token(bound, kept):
    """Its 5 tokens after the first took 0.2 s each at most, from sending on: it keeps a bound only above that."""
    row = sample(0, 10.0, [11.0, 11.0, 11.0], 11.0, 6, decode_seconds=None)
    (figures,) = request_figures(run([row]), Slo(tpot=bound)).to_dict("records")
    assert math.isnan(figures["tpot_p50"]) and math.isnan(figures["user_tokens_per_s"])
    assert figures["goodput"] == pytest.approx(kept)


def test_chunks_tell_no_acceptance():
    rows = [ROWS[0] | {"evidence": "chunks", "accepted_tokens": None}]
    assert math.isnan(request_figures(run(rows), Slo()).per_round[0])


def test_percentiles_need_enough_requests():
    rows = [sample(n, 10.0 + n, [10.1 + n, 10.2 + n], 10.2 + n, 3) for n in range(20)]
    table = request_figures(run(rows), Slo())
    assert table.ttft_p95[0] == pytest.approx(0.1) and math.isnan(table.ttft_p99[0])
    text = rendered(view(table, Slo(ttft=0.3)))
    assert "too few" in text and "ttft of at most 0.3 s" in text
    assert max(map(len, text.splitlines())) <= 80


def test_long_names_fit_80_columns():
    """Columns keep their headings; a name of 40 letters goes on below itself."""
    name = "eagle3-of-the-second-cluster-at-port-8001"
    rows = [sample(n, 1e4 * n, [1e4 * n + 123.4, 1e4 * n + 234.5], 1e4 * n + 345.6, 1234) for n in range(100)]
    table = request_figures(run([row | {"method": name, "task": "minerva_math500"} for row in rows], (name,)), Slo())
    lines = rendered(view(table, Slo())).splitlines()
    assert max(map(len, lines)) <= 80
    for headings in ("TTFT TPOT chunks E2E", "n failed req/s goodput tok/s user all accepted by"):
        assert sum(line.split()[1:] == headings.split() for line in lines) == 1
    assert sum(line.startswith("minerva_math500") for line in lines) == 2


def test_time_in_which_requests_were_open():
    assert union([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4
    assert math.isnan(union([]))


def test_a_run_without_servers():
    with one_line_error("runs/x has no servers", "--server"):
        request_figures(run(ROWS, ()), Slo())
