"""Figures by position in the context, by hand from written rounds."""

import math
from functools import partial

import pytest
from refusals import one_line_error
from screens import call, rendered
from synthetic import Rows, change_manifest

from specbench.analysis.context import context
from specbench_extras.context.view import view


def rounds_of(sample, shapes=((0, 0, 1, 0), (3, 2, 3, 0), (3, 3, 4, 0), (4, 1, 1, 1))):
    """A text after 120 tokens: rounds begin at 121, 124 and 128. Seconds: target 2, a draft forward 0.5, and 1 more."""
    key = {name: sample[name] for name in ("repeat", "task", "doc_id", "method", "warmup")}
    rows = []  # of (drafted, accepted, committed, truncated)
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
    assert (first.tau_low, first.tau_high, first.speed) == pytest.approx((3.5, 3.5, 28 / 36)) and math.isnan(
        first.speedup
    )
    assert (first.alpha, first.alpha_low, first.alpha_high) == pytest.approx((5 / 6, 5 / 6, 5 / 6))
    assert (second.rounds, second.tau, second.alpha) == (4, 1, 1)
    assert (far.documents, far.rounds, far.alpha) == (1, 3, 6 / 7) and math.isnan(far.alpha_low)
    assert (first.target, first.draft) == (2, 0.5)
    assert first.token == pytest.approx((4.5 / 3 + 4.5 / 4) / 2)  # the median of two kinds of rounds
    assert second.token == 5.0


def test_speed_is_compared_where_both_have_rounds(tmp_path):
    """Vanilla: a token in 3 s; sps before 128: 7 tokens in 9 s. At 128 and beyond vanilla has no document 4."""
    rows = Rows()
    for doc in range(5):
        rows.add("sps", doc, 24.0, rounds_of, task="one", prompt_tokens=120 if doc < 4 else 1200)
        if doc < 4:
            rows.add("vanilla", doc, 24.0, partial(rounds_of, shapes=[(0, 0, 1, 0)] * 4), task="one", prompt_tokens=120)
    table = context(rows.run(tmp_path / "run", baseline="vanilla")).places.set_index(["method", "from"])
    assert table.speedup["sps", 0] == pytest.approx(3 / (9 / 7)) and table.speed["vanilla", 0] == pytest.approx(1 / 3)
    assert table[["speedup_low", "speedup_high"]].loc[("sps", 0)].to_list() == pytest.approx([7 / 3, 7 / 3])
    assert math.isnan(table.speedup["sps", 1024]) and math.isnan(table.speedup["vanilla", 0])


def test_turns_of_a_conversation_are_one_document(tmp_path):
    """Five turns of two conversations: too few for an interval. What a turn has cached it does not read."""
    one = run(tmp_path / "run")
    changed = change_manifest(
        one.folder,
        prompts=[["a", "", at] for at in range(3)] + [["b", "", at] for at in range(2)],
        kept_tokens=[0, 60, 60, 0, 200],
    )
    figures = context(changed)
    first = figures.places.iloc[0]
    assert first.documents == 2 and math.isnan(first.alpha_low) and first.alpha == 5 / 6
    assert figures.prompts.prefill_token.to_list() == [pytest.approx((6 / 120 + 6 / 60) / 2), 60 / 1000]


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
    assert lines.count("sps") == 3 and "1024 to 2047" in result.output and max(map(len, lines)) <= 80
    assert "0.833" in rendered(view(context(run(tmp_path / "again"))))


def test_a_run_that_does_not_tell_its_prompts(tmp_path):
    with one_line_error("does not tell how many tokens its prompts have"):
        context(run(tmp_path / "run", prompt_tokens=None))
