"""The notes next to a table, of runs with hand-written rounds."""

import pytest
from made_runs import add_sample, drafted, score, stored

from specbench.analysis import compare, pooled
from specbench.engine.types import Round
from specbench.report.notes import warnings


def rounds(accepted: int):
    return [Round([5]), drafted([6, 7], [6, 7] if accepted else [8, 9], accepted, 9), Round([10])]


@pytest.mark.parametrize(
    ("accepted", "said"),
    [
        ({"a": 0, "b": 0}, "sps: not one drafted token was accepted; if"),
        ({"a": 2, "b": 0}, "sps: not one drafted token was accepted on b; if"),
        ({"a": 2, "b": 1}, ""),
    ],
)
def test_a_draft_of_which_nothing_is_accepted_is_named(tmp_path, accepted, said):
    tables = {"samples": [], "rounds": []}
    for task, count in accepted.items():
        add_sample(tables, task, 0, "vanilla", [Round([token]) for token in (5, 6, 7, 9, 10)], "", "length")
        add_sample(tables, task, 0, "sps", rounds(count), "", "length")
    scores = [score(task, method, doc, 1.0) for task in accepted for method in ("vanilla", "sps") for doc in (None, 0)]
    run = stored(tmp_path / "run", tables, list(accepted), ["vanilla", "sps"], scores)
    measured = pooled.measured([run])
    lines = list(warnings([run], compare.summary(measured), measured))
    assert [line for line in lines if "drafted token" in line and said and said in line] or not said
    assert sum("drafted token" in line for line in lines) == bool(said), lines


@pytest.mark.parametrize(
    ("has_template", "text", "said"), [(True, "", True), (False, "", False), (True, "an answer", False)]
)
def test_empty_answers_to_prompts_without_the_chat_template(tmp_path, has_template, text, said):
    tables = {"samples": [], "rounds": []}
    for name in ("vanilla", "sps"):
        add_sample(tables, "a", 0, name, [Round([5])], text, "eos")
    run = stored(tmp_path / "run", tables, ["a"], ["vanilla", "sps"], [score("a", "vanilla", None, 0.0)])
    run.manifest["models"]["target"]["chat_template"] = has_template
    measured = pooled.measured([run])
    lines = list(warnings([run], compare.summary(measured), measured))
    assert any("add --apply-chat-template" in line for line in lines) == said


@pytest.mark.parametrize(("rescued", "able", "said"), [(0, True, True), (1, True, False), (0, False, False)])
def test_a_lossy_method_that_rescued_nothing_is_named(tmp_path, rescued, able, said):
    tables = {"samples": [], "rounds": []}
    add_sample(tables, "a", 0, "vanilla", [Round([token]) for token in (5, 6, 7, 9, 10)], "", "length")
    drafts = drafted([6, 7, 8], [6, 7, 9], 2, 9, rescued=[1] * rescued)
    add_sample(tables, "a", 0, "sps", [Round([5]), drafts, Round([10])], "", "length")
    scores = [score("a", method, doc, 1.0) for method in ("vanilla", "sps") for doc in (None, 0)]
    run = stored(tmp_path / "run", tables, ["a"], ["vanilla", "sps"], scores)
    run.manifest["rescuing"] = ["sps"] * able
    measured = pooled.measured([run])
    lines = list(warnings([run], compare.summary(measured), measured))
    assert any("sps: no rejected token was rescued" in line for line in lines) == said
