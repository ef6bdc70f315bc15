"""Rounds that another engine told: one definition for what is decoded here, served, and imported."""

import pytest
from imported import import_vllm, jsonl, rows

from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.types import Round, Verdict
from specbench.measure.served import round_rows
from specbench.results.text_rounds import text_rounds
from specbench.servers.evidence import of_steps


def decoded(drafted, accepted, tokens):
    """The (drafted, accepted, committed, truncated) of the same rounds, as a text that is decoded here has them."""
    ending = Ending(Limits(tokens, frozenset()), lambda ids: "")
    steps = [Round([1])]
    for draft, count in zip(drafted, accepted, strict=True):
        verdict = Verdict(tuple(range(count)), 1, [1] * draft, [1] * draft, [1.0] * draft)
        steps.append(Round([1] * (count + 1), verdict))
    whole = list(until_end(iter(steps), ending))[1:]
    return [(each.drafted, each.accepted, len(each.tokens), each.truncated) for each in whole]


CASES = [
    ([5], [5], 4),  # the text ends within the draft
    ([5], [5], 6),  # at its last token
    ([5], [5], 7),  # with the bonus token
    ([5, 5, 5], [2, 0, 5], 9),
    ([5, 3], [5, 1], 9),
    ([5, 3], [5, 1], 8),  # the correction is cut off
]


@pytest.mark.parametrize(("drafted", "accepted", "tokens"), CASES)
def test_the_same_text_has_the_same_rounds_through_each_door(drafted, accepted, tokens):
    here = decoded(drafted, accepted, tokens)
    told = text_rounds(drafted, accepted, tokens)
    served = round_rows({}, of_steps(drafted, accepted), tokens)
    for each in (told, served):
        assert [(row["drafted"], row["accepted"], row["committed"], row["truncated"]) for row in each] == here


@pytest.mark.parametrize(("drafted", "accepted", "tokens"), CASES)
def test_an_import_has_the_rates_of_the_text_that_is_decoded_here(drafted, accepted, tokens, tmp_path):
    speculation = {"num_spec_steps": len(drafted), "per_step_accepted": accepted, "per_step_drafted": drafted}
    answer = {"object": "text_completion", "model": "m", "choices": [{"text": "x", "finish_reason": "length"}]}
    answer |= {
        "usage": {"prompt_tokens": 3, "completion_tokens": tokens},
        "metrics": {"speculative_decoding": speculation},
    }
    row = rows(import_vllm([jsonl(tmp_path / "a.jsonl", answer)], out=tmp_path / "run")).iloc[0]
    here = decoded(drafted, accepted, tokens)
    drafts, kept = sum(each[0] for each in here), sum(each[1] for each in here)
    behind = sum(max(0, each[0] - each[2]) for each in here if each[3])
    assert row.acceptance_rate == pytest.approx(kept / drafts)
    assert row.acceptance_rate_in_text == pytest.approx(kept / (drafts - behind)) and row.acceptance_rate_in_text <= 1
    assert row.tau == pytest.approx(sum(each[2] for each in here) / len(here))


@pytest.mark.parametrize(
    ("finish", "limits"),
    [
        ("stop", Limits(99, frozenset({9}))),  # the end token is drafted, accepted, and a token of the text
        ("length", Limits(4, frozenset())),
        ("stop", Limits(99, frozenset(), (">9",))),
    ],
)
def test_a_text_of_four_tokens_holds_three_of_its_only_draft(finish, limits, tmp_path):
    """The first one is the prefill's; the other three stand in the draft, the token that ends the text too.

    Two of five would be accepted if a round's last token were always the target's own. It is not where the text ends
    within the draft.
    """
    draft = [5, 6, 9, 7, 8]
    ending = Ending(limits, lambda ids: "".join(f">{token}" for token in ids))
    verdict = Verdict(tuple(range(5)), 1, draft, draft, [1.0] * 5)
    here = list(until_end(iter([Round([4]), Round([*draft, 1], verdict)]), ending))[-1]
    assert ending.tokens == [4, 5, 6, 9] and (here.drafted, here.accepted, here.truncated) == (5, 3, 3)

    steps = {"num_spec_steps": 1, "num_draft_tokens": 5, "num_spec_tokens": 5}
    steps |= {"per_step_accepted": [5], "per_step_drafted": [5]}
    answer = {"object": "text_completion", "model": "m", "choices": [{"text": "x", "finish_reason": finish}]}
    answer |= {"usage": {"prompt_tokens": 10, "completion_tokens": len(ending.tokens)}}
    answer |= {"metrics": {"generation_time_ms": 100, "speculative_decoding": steps}}
    row = rows(import_vllm([jsonl(tmp_path / "a.jsonl", answer)], out=tmp_path / "run")).iloc[0]
    assert row.acceptance_rate == pytest.approx(3 / 5) and row.acceptance_rate_in_text == pytest.approx(3 / 3)
    assert row.tau == 3


def test_rounds_that_do_not_add_up_are_not_known():
    assert [row["committed"] for row in text_rounds([5, 5], [1, 1], 9)] == [None, None]  # some had no draft
    assert [row["committed"] for row in text_rounds([5, 5], [5, 1], 4)] == [None, None]  # the text ended earlier
    assert [row["committed"] for row in text_rounds([5], [5], 4, ordered=False)] == [None]
    assert text_rounds([5], [5], None)[0]["committed"] is None and text_rounds([], [], 1) == []
