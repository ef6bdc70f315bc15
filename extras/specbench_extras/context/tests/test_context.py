"""Figures by position in the context, by hand from written rounds."""

import math

import pytest
from refusals import one_line_error
from screens import call, rendered
from synthetic import Rows

from specbench_extras.context.analysis import context
from specbench_extras.context.view import view


def rounds_of(sample):
    """A text after 120 tokens: rounds begin at 121, 124 and 128. Seconds: target 2, a draft forward 0.5, and 1 more."""
    key = {name: sample[name] for name in ("repeat", "task", "doc_id", "method", "warmup")}
    shapes = [(0, 0, 1, 0), (3, 2, 3, 0), (3, 3, 4, 0), (4, 1, 1, 1)]  # drafted, accepted, committed, truncated
    rows = []
    for number, (drafted, accepted, committed, truncated) in enumerate(shapes):
        row = {"round": number, "drafted": drafted, "accepted": accepted, "rescued": 0, "committed": committed}
        row |= {"truncated": truncated, "target_forwards": 1, "draft_forwards": drafted, "target_seconds": 2.0}
        rows.append(key | row | {"draft_seconds": drafted / 2, "seconds": 3.0 + drafted / 2})
    return rows


def run(folder, **others):
    rows = Rows()
    for doc in range(4):
        about = {"prompt_tokens": 120, "peak_memory": 5_000_000} | others
        rows.add("sps", doc, 24.0, rounds_of, task="one", prefill=6.0, **about)
    rows.add("sps", 4, 48.0, rounds_of, task="one", prefill=60.0, **({"prompt_tokens": 1200} | others))
    return rows.run(folder, baseline=None)


def test_places_by_hand(tmp_path):
    """Before 128: 3 of 3 and 2 of 3 tested tokens pass; at 128 the one that the end of the text left."""
    table = context(run(tmp_path / "run")).places
    assert table[["method", "from", "to"]].to_numpy().tolist() == [
        ["sps", 0, 128],
        ["sps", 128, 256],
        ["sps", 1024, 2048],
    ]
    first, second, far = (row for _, row in table.iterrows())
    assert (first.documents, first.rounds, first.tokens, first.tau) == (4, 8, 28, 3.5)
    assert (first.alpha, first.alpha_low, first.alpha_high) == pytest.approx((5 / 6, 5 / 6, 5 / 6))
    assert (second.rounds, second.tau, second.alpha) == (4, 1, 1)
    assert (far.documents, far.rounds, far.alpha) == (1, 3, 6 / 7) and math.isnan(far.alpha_low)
    assert (first.target, first.draft) == (2, 0.5)
    assert first.token == pytest.approx((4.5 / 3 + 4.5 / 4) / 2)  # the median of two kinds of rounds
    assert second.token == 5.0


def test_where_all_is_rejected_the_share_is_zero(tmp_path):
    """And where nothing was drafted there is none."""
    rows = Rows()
    for doc in range(4):
        rows.add("sps", doc, 24.0, ((3, 0),) * 4, prompt_tokens=20)
        rows.add("vanilla", doc, 24.0, ((0, 0),) * 4, prompt_tokens=20)
    table = context(rows.run(tmp_path / "run", baseline=None)).places.set_index("method")
    assert table.alpha["sps"] == 0 and math.isnan(table.alpha_low["sps"]) and math.isnan(table.alpha["vanilla"])


def test_prompts_by_hand(tmp_path):
    table = context(run(tmp_path / "run")).prompts
    short, long = (row for _, row in table.iterrows())
    assert (short["from"], short.documents, short.prefill, short.memory) == (0, 4, 6.0, 5_000_000)
    assert short.prefill_token == 6 / 120 and short.token == 24 / 8  # three rounds commit 8 tokens
    assert (long["from"], long.documents, long.prefill_token, long.token) == (1024, 1, 60 / 1200, 6.0)


def test_the_command(tmp_path):
    folder = run(tmp_path / "run").folder
    result = call("analyze", "context", folder)
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.output.splitlines()]
    assert lines.count("sps") == 2 and "1024 to 2047" in result.output and max(map(len, lines)) <= 80
    assert "0.833" in rendered(view(context(run(tmp_path / "again"))))


def test_a_run_that_does_not_tell_its_prompts(tmp_path):
    with one_line_error("does not tell how many tokens its prompts have"):
        context(run(tmp_path / "run", prompt_tokens=None))
