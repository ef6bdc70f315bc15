"""Drafts next to each other: figures of a small evaluation against a second reading, and by hand."""

import json

import pandas as pd
import pytest
import torch
from made_runs import TOKENIZER
from refusals import one_line_error
from tiny_runs import rounds_of, samples_of, save_pair

from specbench import config
from specbench.config import UserError
from specbench.results.stored import StoredRun
from specbench.training.train import run_plans
from specbench_extras.drafts import study
from specbench_extras.drafts.view import view

ASKED = ["The sum of two numbers is", "Tom has three pens", "Write a function", "The news of today"]
GAMMA, COUNT = 3, 24


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The models of a pair, and its evaluation with the target itself as the draft that was trained."""
    place = tmp_path_factory.mktemp("evaluated")
    models = save_pair(place, 5)
    with torch.no_grad():
        models["draft"].lm_head.weight[300:305] *= -2
    models["draft"].save_pretrained(place / "draft")
    models["target"].save_pretrained(place / "better")
    TOKENIZER.save_pretrained(place / "better")
    prompts = place / "held-out.jsonl"
    lines = [
        {"id": f"d{i}", "category": "made", "prompt": text, "max_new_tokens": COUNT} for i, text in enumerate(ASKED)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pair = config.load_pair(f"target={place / 'target'},draft={place / 'draft'}")
    spec = config.override(config.load_method("sps"), {"gamma": config.Setting(value=GAMMA)})
    given = pair, place / "better", spec, prompts, 0, "cpu", "auto"
    folders = run_plans(study.evaluations(*given))
    assert run_plans(study.evaluations(*given)) == folders  # finished runs are read back
    return models, folders, study.drafts([StoredRun(folder) for folder in folders])


def test_an_evaluation_decodes_the_same_prompts_with_both_drafts(evaluated):
    _, folders, _ = evaluated
    assert [folder.name for folder in folders] == ["better.before", "better.after"]
    for folder in folders:
        samples = samples_of(folder)
        assert sorted(samples.method.unique()) == ["sps", "vanilla"] and set(samples.doc_id) == {0, 1, 2, 3}
        assert StoredRun(folder).plan.temperature == 1 and samples.tokens.map(len).max() == COUNT


def test_the_predicted_acceptance_is_that_of_a_second_reading_of_the_tested_places(evaluated):
    """By forwards without a cache of the whole text up to each token that a record calls accepted or rejected."""
    models, (before, _), figures = evaluated
    samples = samples_of(before).set_index(["doc_id", "method"])
    shares, places, accepted = 0.0, 0, 0
    for number, rounds in rounds_of(before, "sps").sort_values("round").groupby("doc_id"):
        ids = TOKENIZER(ASKED[number])["input_ids"] + samples.tokens[number, "sps"].tolist()
        at = len(TOKENIZER(ASKED[number])["input_ids"])
        for row in rounds.itertuples():
            decisions = [] if row.decisions is None else list(row.decisions)
            for i, decision in enumerate(decisions):
                if decision in (0, 1):  # rejected, accepted
                    prefix = torch.tensor([ids[: at + i]])
                    with torch.no_grad():
                        p, q = (
                            models[r].float()(prefix).logits[0, -1].double().softmax(-1) for r in ("target", "draft")
                        )
                    shares, places = shares + float(torch.minimum(p, q).sum()), places + 1
                    accepted += decision == 1
            at += row.committed
    row = figures.table.iloc[0]
    assert places == row.tested > 30
    assert row.predicted == pytest.approx(shares / places, abs=1e-4)
    assert row.alpha == pytest.approx(accepted / places)
    assert abs(row.alpha - row.predicted) < 4 * (0.25 / places) ** 0.5


def test_a_draft_that_is_its_target_is_always_accepted(evaluated):
    _, (before, after), figures = evaluated
    first, second = figures.table.to_dict("records")
    assert second["alpha"] == 1 and second["predicted"] == pytest.approx(1, abs=1e-6)
    tokens, rounds = {}, {}
    for name, folder in (("before", before), ("after", after)):
        table = rounds_of(folder, "sps")
        tokens[name], rounds[name] = (table[table["round"] > 0].committed.sum(), (table["round"] > 0).sum())
    tau = {name: tokens[name] / rounds[name] for name in tokens}
    assert (first["tau"], second["tau"]) == pytest.approx((tau["before"], tau["after"]))
    assert second["gain"] == pytest.approx(tau["after"] / tau["before"]) and second["gain"] > 1
    assert first["gain"] != first["gain"]
    assert first["cost"] == 1 and first["draft_forwards"] == GAMMA  # models of one size
    assert first["mbsu"] == pytest.approx(tau["before"] / (1 * GAMMA + 1))


def test_words_by_hand():
    row = {"pair": "a", "documents": 9, "tested": 90, "cost": 0.25, "draft_forwards": 4.0}
    values = {"alpha": 0.8, "predicted": 0.81, "tau": 3.0, "mbsu": 1.5, "speedup": 1.2, "gain": float("nan")}
    first = row | {f"{name}{end}": value for name, value in values.items() for end in ("", "_low", "_high")}
    second = first | {"pair": "b", "gain": 1.1, "gain_low": 1.05, "gain_high": 1.15}
    third = first | {"pair": "c", "gain": 1.1, "gain_low": 0.95, "gain_high": 1.25}
    page = view(study.Drafts("sps", "T=1", "big", pd.DataFrame([first, second, third]), []))
    assert list(page.sentences) == [
        "b: τ is 1.100 times [1.050, 1.150] that of a.",
        "c: τ is 1.100 times [0.950, 1.250] that of a; this may be chance.",
    ]
    assert page.sheets[0].rows[0] == ["a", "9", "0.800 [0.800, 0.800]", "0.810 [0.810, 0.810]"]
    assert page.sheets[1].rows[0] == ["a", "3.00 [3.00, 3.00]", "1.50 [1.50, 1.50]", "1.20 [1.20, 1.20]"]


def test_runs_that_do_not_compare_are_refused(evaluated):
    _, (before, after), _ = evaluated
    with pytest.raises(UserError, match="is a copy of"):
        study.drafts([StoredRun(before), StoredRun(before)])
    with one_line_error("has no method nothing"):
        study.drafts([StoredRun(before), StoredRun(after)], "nothing")
