"""Drafts by loss and texts: acceptance against forwards of every prefix, tables by hand, and what does not compare."""

import dataclasses
import json
import math
import shutil
from itertools import product

import pandas as pd
import pytest
import torch
from made_runs import TOKENIZER
from tiny_runs import save_pair

from specbench import config
from specbench.base.hashes import short_hash
from specbench.config import UserError
from specbench.config.prompts import prompt_lines
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import load_pair
from specbench.plan import Plan
from specbench.report.finding import markdown
from specbench_extras.draft_losses import compare
from specbench_extras.draft_losses.view import view

ASKED = {"made_sums": ["The sum of two numbers is", "Tom has three pens", "Two and"], "made_code": ["Write a function"]}
COUNT = 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A pair, a draft that is the target itself, one that is farther off, and the models of all by folder."""
    place = tmp_path_factory.mktemp("losses")
    models = save_pair(place, 5)
    pair = config.load_pair(f"target={place / 'target'},draft={place / 'draft'}")
    loaded = load_pair(pair, "cpu", "auto").models
    facts = {"data": "target", "seed": 3, "epochs": 2, **{role: fingerprint(loaded[role]) for role in loaded}}
    made = {"tvd": models["target"], "ce": models["draft"]}
    lines = [
        {"id": f"{task}-{i}", "category": task, "prompt": text, "max_new_tokens": COUNT}
        for task, texts in ASKED.items()
        for i, text in enumerate(texts)
    ]
    for loss, model in made.items():
        folder = place / loss
        model.save_pretrained(folder)
        TOKENIZER.save_pretrained(folder)
        (folder / "training.json").write_text(json.dumps(facts | {"loss": loss}))
        (place / f"{loss}.held-out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place, pair, models


def measured(trained, *folders, temperatures=(0.0, 0.7)):
    place, pair, _ = trained
    return compare.losses(pair, [place / name for name in folders], temperatures, "cpu", "auto")


def test_acceptance_is_the_mass_that_both_models_share_along_the_targets_answer(trained):
    """Recomputed by a forward of every prefix; the answer is greedy, so it is recomputed as well."""
    cells = measured(trained, "ce").documents
    models = trained[2]
    for task, texts in ASKED.items():
        for text in texts:
            ids = list(TOKENIZER(text)["input_ids"])
            same = []
            while len(same) < COUNT:
                p, q = (models[role].float()(torch.tensor([ids])).logits[0, -1] for role in ("target", "draft"))
                same.append(float(p.argmax() == q.argmax()))
                ids.append(int(p.argmax()))
                if ids[-1] == TOKENIZER.eos_token_id:
                    break
            rows = cells[(cells.temperature == 0) & (cells.task == task) & (cells.document == short_hash(text))]
            assert set(rows.places) == {len(same)}
            first, again = rows[rows.data == "as it was"].alpha, rows[rows.loss == "ce"].alpha
            assert first.item() == again.item() == pytest.approx(sum(same) / len(same))


def test_a_draft_that_is_the_target_is_accepted_everywhere_and_is_best(trained):
    figures = measured(trained, "ce", "tvd")
    table = figures.table.set_index(["temperature", "task", "data", "loss"])
    assert (table.xs("tvd", level="loss").alpha > 1 - 1e-5).all() and (table.xs("ce", level="loss").alpha < 0.99).all()
    assert table.xs("tvd", level="loss").short_p.isna().all()
    assert table.loc[0.7, "all", "target", "tvd"].documents == 4
    text = markdown(view(figures))
    assert "T = 0.7, all: too few documents to tell (4)." in text and "1.000\\*" not in text
    assert "| sums | code | all |" in text
    ten = dataclasses.replace(figures, table=figures.table.assign(documents=10))
    text = markdown(view(ten))
    assert "T = 0.7, all: tvd on target is best, 1.000" in text and "1.000\\*" in text


def test_test_documents_take_the_place_of_those_held_out(trained, tmp_path):
    """All drafts are measured on them, also those whose held-out documents differ or are gone."""
    place, pair, _ = trained
    shutil.copytree(place / "tvd", tmp_path / "tvd")
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps({"prompt": text, "max_new_tokens": COUNT}) + "\n" for text in ("One", "Six")))
    lines = prompt_lines(asked, None)
    plan = Plan(pair=pair, methods=(), baseline=None, suite="asked", tasks=lines, prompts=str(asked))
    folders = [place / "ce", tmp_path / "tvd"]
    figures = compare.losses(pair, folders, [0.7], "cpu", "auto", plan)
    assert set(figures.documents.document) == {short_hash("One"), short_hash("Six")}
    assert figures.documents.loss.value_counts().to_dict() == {"": 2, "ce": 2, "tvd": 2}
    text = markdown(view(figures))
    assert "test documents of asked" in text and "chose the weights" not in text
    assert "chose the weights" in markdown(view(measured(trained, "ce")))
    with pytest.raises(UserError, match=r"held-out prompts are gone .*; name a --suite"):
        compare.losses(pair, folders, [0.7], "cpu", "auto")


def test_a_table_by_hand():
    """Two seeds of six documents. B is better than A by 0.1, 0.2, … 0.6, 0.05 more or less by the seed."""
    rows = []
    for number, seed in product(range(6), range(2)):
        by_seed = 0.05 if seed else -0.05
        for key, alpha in ((compare.FIRST, 0.2), (("target", "A"), 0.2), (("draft", "B"), 0.3 + number / 10 + by_seed)):
            about = {"temperature": 1.0, "seed": seed, "task": "one", "document": f"hash{number}"}
            rows.append({**about, "data": key[0], "loss": key[1], "alpha": alpha, "places": 9})
    table = compare.table(pd.DataFrame(rows))
    table = table[table.task == "one"].set_index("loss")
    assert table.loc["B", ["seeds", "documents"]].tolist() == [2, 6]
    assert table.loc["B", "alpha"] == pytest.approx(0.55) and table.loc["A", "short"] == pytest.approx(0.35)
    half = 2.5706 * (0.035 / 6) ** 0.5  # Student's t of five degrees; the variance of 0.1 … 0.6 is 0.035
    assert table.loc["A", ["short_low", "short_high"]].tolist() == pytest.approx([0.35 - half, 0.35 + half], abs=1e-4)
    # All six differences have one sign: 2 of the 64 ways to flip them are as extreme, twice that for two comparisons.
    assert table.loc["A", "short_p"] == pytest.approx(4 / 64) and table.loc["A", "gain"] == 0


def test_documents_of_one_seed_alone_are_compared_with_those_of_the_same_seed():
    """A learned with both seeds, B with the second one, in which every draft does better by 0.5."""
    rows = []
    for number, seed in product(range(6), range(2)):
        for loss, alpha in (("", 0.0), ("A", 0.2), *([("B", 0.1)] if seed else [])):
            about = {"temperature": 1.0, "seed": seed, "task": "one", "document": f"hash{number}", "places": 9}
            rows.append({**about, "data": "target" if loss else "as it was", "loss": loss, "alpha": alpha + seed / 2})
    table = compare.table(pd.DataFrame(rows)).set_index(["task", "loss"]).loc["one"]
    assert table.gain[["A", "B"]].tolist() == pytest.approx([0.2, 0.1]) and table.seeds[["A", "B"]].tolist() == [2, 1]
    assert table.alpha[["A", "B"]].tolist() == pytest.approx([0.45, 0.6])
    assert math.isnan(table.short["A"]) and table.short["B"] == pytest.approx(0.1), (
        "A is best, though B's mean is higher"
    )


def test_the_mean_of_each_loss_and_of_each_kind_of_texts():
    """Of a grid of two by two, by hand; a loss that learned from one kind of texts alone is left out of the means."""
    places = {("x", "A"): 0.1, ("x", "B"): 0.4, ("y", "A"): 0.2, ("y", "B"): 0.3, ("y", "C"): 0.9, ("z", "D"): 0.9}
    rows = []
    for number in range(12):
        for (data, loss), alpha in {compare.FIRST: 0.0, **places}.items():
            about = {"temperature": 1.0, "seed": 0, "task": "one", "document": number, "places": 9}
            rows.append({**about, "data": data, "loss": loss, "alpha": alpha + number / 100})
    table = compare.table(pd.DataFrame(rows))
    means = table[table.task == "one"].set_index(["data", "loss"])
    means = means[[compare.ALL in key for key in means.index]]
    assert means.gain.to_dict() == pytest.approx(
        {("all", "A"): 0.15, ("all", "B"): 0.35, ("x", "all"): 0.25, ("y", "all"): 0.25}
    )
    assert means.loc[("all", "A"), "short"] == pytest.approx(0.2)
    # All twelve differences have one sign: 2 of the 4,096 ways to flip them are as extreme; it is the one comparison.
    assert means.loc[("all", "A"), "short_p"] == pytest.approx(2 / 4096, abs=2e-4)
    text = markdown(view(compare.Losses("made", None, table, pd.DataFrame(rows), [])))
    assert "T = 1, one: C on y is best, 0.955, +0.900" in text and "better than 4 of 5 others" in text
    assert "T = 1, all, mean over texts: B is best, 0.405, +0.350" in text and "better than 1 of 1 others" in text
    assert "T = 1, all, mean over losses: " in text and "better than 0 of 1 others" in text
    pairs = compare.table(pd.DataFrame([row for row in rows if row["data"] != "x"]))
    assert not (pairs.loss == compare.ALL).any() and "grid" not in markdown(
        view(compare.Losses("made", None, pairs, pd.DataFrame(rows), []))
    )


def test_what_does_not_compare_is_refused(trained, tmp_path):
    place, pair, _ = trained

    def refused(*folders, of=pair) -> str:
        with pytest.raises(UserError) as error:
            compare.losses(of, folders, [0.0], "cpu", "auto")
        return str(error.value)

    assert "is no draft that" in refused(place / "target")
    assert "same loss, texts and seed" in refused(place / "ce", place / "ce")
    other = config.load_pair(f"target={place / 'draft'},draft={place / 'draft'}")
    assert "another target" in refused(place / "ce", of=other)
    for name in ("ce", "ce.held-out.jsonl"):
        (shutil.copytree if (place / name).is_dir() else shutil.copy)(place / name, tmp_path / name)
    facts = json.loads((tmp_path / "ce" / "training.json").read_text())
    (tmp_path / "ce" / "training.json").write_text(json.dumps(facts | {"loss": "rkl", "epochs": 5}))
    assert compare.losses(pair, [place / "tvd", tmp_path / "ce"], [0.0], "cpu", "auto").mismatches == [
        "budgets are not equal: epochs is 2 and 5"
    ]
    (tmp_path / "ce.held-out.jsonl").write_text('{"id": "1", "category": "made_sums", "prompt": "Tom"}\n')
    assert "other held-out documents" in refused(place / "tvd", tmp_path / "ce")
    (tmp_path / "ce" / "training.json").write_text("{}")
    assert "lacks data, draft, loss, seed, target" in refused(tmp_path / "ce")
