"""What target, draft and either of them solve, counted by hand; missing and mismatched answers; the paper's form."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binom
from screens import call
from synthetic import Rows, change_manifest, scores

from specbench.analysis.complementarity import complementarity, pooled
from specbench.config import UserError, load_method
from specbench.measure import loop
from specbench.papers import cells, published
from specbench.plan import resolve_plan
from specbench.report.views import complementarity as complementarity_view
from specbench.results.stored import StoredRun

# Eight documents. The union solves 6, the target 4; `bold` solves 5: half of the gap.
TARGET = [1, 1, 1, 1, 0, 0, 0, 0]
DRAFT = [1, 0, 0, 0, 1, 1, 0, 0]
BOLD = [1, 1, 1, 0, 1, 0, 0, 1]
# Graded: the better of the two means 0.6, the target 0.5; `bold` loses 0.2.
SCORES = {"vanilla": [0.2, 0.8], "member": [0.4, 0.3], "bold": [0.2, 0.4]}
SETTINGS = {"member": {"model": "draft"}, "bold": {"gamma": 4}, "bold[gamma=9]": {"gamma": 9}}


def made(folder, answers, graded=None, models=("t", "d"), **changes):
    """A run of the answers by method (or method and repeat) to a task `one`, and graded ones to a task `two`."""
    rows = Rows()
    for task, given in (("one", answers), ("two", graded or {})):
        for key, values in given.items():
            name, repeat = key if isinstance(key, tuple) else (key, 0)
            for doc in range(len(values)):
                rows.add(name, doc, task=task, repeat=repeat)
            rows.scores += scores(name, values, task=task, repeat=repeat)
    run = rows.run(folder, settings=SETTINGS, **{"baseline": "vanilla"} | changes)
    weights = {role: one for role, one in zip(("target", "draft"), models, strict=True) if one}
    return change_manifest(
        run.folder, models={role: {"dtype": "float32", "weights_hash": one} for role, one in weights.items()}
    )


@pytest.fixture
def run(tmp_path):
    answers = {"vanilla": TARGET, "member": DRAFT, "bold": BOLD}
    return made(tmp_path / "run", answers, SCORES)


def wilson(right, of):
    """Wilson's interval from its formula."""
    z, share = 1.959963984540054, right / of
    middle, spread = share + z**2 / 2 / of, z * math.sqrt(share * (1 - share) / of + z**2 / 4 / of**2)
    return (middle - spread) / (1 + z**2 / of), (middle + spread) / (1 + z**2 / of)


def test_counts_by_hand(run):
    analysis = complementarity(run)
    one, two = analysis.tasks.to_dict("records")
    assert (one["task"], one["graded"], one["total"]) == ("one", False, 8)
    assert (one["target"], one["draft"], one["union"], one["gap"]) == (4, 3, 6, 2)
    for name in ("target", "draft", "union", "gap"):
        assert (one[f"{name}_low"], one[f"{name}_high"]) == pytest.approx(wilson(one[name], 8)), name
    own = analysis.methods.iloc[0]
    assert (own.method, own.correct, own.recovery, own.difference) == ("bold", 5, 0.5, 0.125)
    assert own.p == pytest.approx(1), "two documents gained, one lost"
    assert (analysis.target, analysis.draft, analysis.left_out) == ("vanilla", "member", 0)
    assert (two["task"], two["graded"], two["total"]) == ("two", True, 2)
    assert [two[name] / 2 for name in ("target", "draft", "union", "gap")] == pytest.approx([0.5, 0.35, 0.6, 0.1])
    assert analysis.methods.iloc[1].recovery == pytest.approx(-2) and analysis.methods.iloc[1].difference == -0.2


def test_mcnemar_reads_the_documents_that_differ(tmp_path):
    """Nine lost, one gained: P(at most 1 of 10 heads), twice."""
    answers = {"vanilla": [1] * 9 + [0] * 3, "member": [0] * 9 + [1] * 3, "bold": [0] * 9 + [1, 0, 0]}
    result = complementarity(made(tmp_path / "run", answers)).methods.iloc[0]
    assert result.p == pytest.approx(2 * binom.cdf(1, 10, 0.5)) and result.recovery == pytest.approx(-8 / 3)


def test_the_interval_of_recovery_is_a_paired_bootstrap(tmp_path):
    rng = np.random.default_rng(1)
    target, draft, bold = (rng.random((3, 300)) < [[0.6], [0.4], [0.7]]).astype(float)
    result = complementarity(made(tmp_path / "run", {"vanilla": target, "member": draft, "bold": bold})).methods.iloc[0]
    drawn = []
    for _ in range(4000):
        at = rng.integers(0, 300, 300)
        gap = np.maximum(target, draft)[at].sum() - target[at].sum()
        drawn.append((bold[at].sum() - target[at].sum()) / gap)
    assert (result.recovery_low, result.recovery_high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.03)


def test_a_ratio_that_is_often_undefined_has_no_interval():
    one = pooled(np.array([0.0, 1.0, 0.0]), np.array([0.0, 2.0, 0.0]))
    assert one.value == 0.5 and math.isnan(one.low), "without its one document there is nothing to divide by"
    assert math.isnan(pooled(np.zeros(3), np.zeros(3)).value)
    one = pooled(np.array([1.0, 0.0, 1.0, 1.0]), np.ones(4))
    assert one.low < one.value == 0.75 < one.high


def test_repeats_are_texts_and_documents_are_drawn(tmp_path):
    answers = {("vanilla", 0): [1, 0], ("vanilla", 1): [0, 0], ("member", 0): [0, 1], ("member", 1): [1, 0]}
    answers |= {("bold", 0): [1, 1], ("bold", 1): [0, 0]}
    analysis = complementarity(made(tmp_path / "run", answers, repeats=2))
    one, own = analysis.tasks.iloc[0], analysis.methods.iloc[0]
    assert (one.total, one.target, one.draft, one.union) == (4, 1, 2, 3), "a union is of one repeat"
    assert own.recovery == 0.5 and analysis.repeats == 2
    assert (one.target_low, one.target_high) == (0, 0.5), "of two documents, with 1 and 0 of 2"


def test_without_complementarity_recovery_is_undefined_and_said(tmp_path):
    answers = {"vanilla": [1, 1, 0], "member": [1, 0, 0], "bold": [1, 1, 1]}
    run = made(tmp_path / "run", answers)
    analysis = complementarity(run)
    assert math.isnan(analysis.methods.recovery[0])
    words = ["analyze", "complementarity", str(run.folder), "--out", str(tmp_path / "cells.csv")]
    text = " ".join(call(*words).stdout.split())
    assert "one: nothing to recover: the union solves no more than the target" in text
    assert "recovery" not in (tmp_path / "cells.csv").read_text()


def test_documents_without_an_answer_of_all_are_left_out(tmp_path):
    answers = {"vanilla": TARGET, "member": DRAFT, "bold": BOLD[:6]}
    analysis = complementarity(made(tmp_path / "run", answers))
    assert analysis.left_out == 2 and analysis.tasks.total[0] == 6
    assert any("2 texts are left out" in line for line in complementarity_view.notes(analysis))


def test_which_methods_are_set_against_the_target(tmp_path):
    answers = {"vanilla": TARGET, "member": DRAFT, "bold": BOLD, "bold[gamma=9]": BOLD, "sure": TARGET}
    run = made(tmp_path / "run", answers)
    path = run.folder / "manifest.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"lossless": ["vanilla", "sure"]}))
    run = StoredRun(run.folder)
    assert complementarity(run).methods.method.tolist() == ["bold", "bold[gamma=9]"]
    assert complementarity(run, "sure").methods.recovery.tolist() == [0]
    with pytest.raises(UserError, match="has no method other; it has vanilla, member, bold"):
        complementarity(run, "other")


def test_the_draft_may_stand_in_another_run(tmp_path):
    run = made(tmp_path / "run", {"vanilla": TARGET, "bold": BOLD})
    member = made(tmp_path / "member", {"vanilla": BOLD, "member": DRAFT})
    alone = made(tmp_path / "alone", {"vanilla": DRAFT}, models=("d", None))
    for other, name in ((member, "member, member"), (alone, "alone, vanilla")):
        analysis = complementarity(run, None, other)
        assert analysis.draft == name and analysis.tasks.draft[0] == 3 and analysis.tasks.union[0] == 6
    with pytest.raises(UserError, match=r"no model that decodes alone in .* is the draft of"):
        complementarity(run, None, made(tmp_path / "wrong", {"vanilla": DRAFT}, models=("x", None)))


def test_answers_that_are_missing(tmp_path):
    run = made(tmp_path / "run", {"vanilla": TARGET, "bold": BOLD}, limit=8)
    facts = f"--suite synthetic --method member --baseline none --limit 8 --out {run.folder}-draft` makes it"
    with pytest.raises(UserError, match="does not have the draft alone; `specbench run --pair tiny") as caught:
        complementarity(run)
    assert facts in str(caught.value) and f"--draft {run.folder}-draft" in str(caught.value)
    with pytest.raises(UserError, match="does not have the target alone; run it again with --baseline vanilla"):
        complementarity(made(tmp_path / "bold", {"bold": BOLD}, baseline=None))
    with pytest.raises(UserError, match="has no draft model"):
        complementarity(made(tmp_path / "single", {"vanilla": TARGET}, models=("t", None)))


def test_runs_that_do_not_match(tmp_path):
    answers = {"vanilla": TARGET, "bold": BOLD}
    run = made(tmp_path / "run", answers)
    sampled = made(tmp_path / "sampled", {"member": DRAFT}, baseline=None, temperature=1.0)
    fewer = made(tmp_path / "fewer", {"member": DRAFT[:6]}, baseline=None)
    asked = made(tmp_path / "asked", {"member": DRAFT}, baseline=None, prompts={("one", 3): "otherwise"})
    for other, field in ((sampled, "sampling"), (fewer, "documents")):
        with pytest.raises(UserError, match=f"differ in {field}; .*, or pass --allow-mismatch {field}"):
            complementarity(run, None, other)
        assert complementarity(run, None, other, [field]).tasks.total[0] == (8 if other is sampled else 6)
    assert complementarity(run, None, fewer, ["documents"]).left_out == 2
    with pytest.raises(UserError, match="have other prompts in one"):
        complementarity(run, None, asked, ["documents"])
    with pytest.raises(UserError, match="--allow-mismatch cpu: no such field here"):
        complementarity(run, None, fewer, ["cpu"])
    longer = made(tmp_path / "longer", {"member": DRAFT}, baseline=None)
    longer.manifest["generation"]["one"]["max_new_tokens"] = 99
    with pytest.raises(UserError, match="differ in generation"):
        complementarity(run, None, longer)


def test_cells_are_those_of_the_published_table(tmp_path):
    """Whatever the paper's table tells of a task is told of ours, under the same key."""
    run = made(tmp_path / "run", {"vanilla": TARGET, "member": DRAFT, "bold": BOLD, "bold[gamma=9]": BOLD})
    spec = load_method("cospec")
    run.__dict__["plan"] = run.plan.model_copy(
        update={
            "methods": tuple(
                spec.model_copy(update={"name": "bold"}) if method.name == "bold" else method
                for method in run.plan.methods
            )
        }
    )
    path = tmp_path / "cells.csv"
    cells.write_cells(path, cells.complementarity(run, complementarity(run)))
    figures = {figure.key(figure.task): figure for figure in published.read_figures(path)}
    (paper,) = published.papers(["cospec"])
    wanted = [figure for figure in paper.figures(2) if figure.task == "GSM8K"]
    assert wanted
    values = {}
    for figure in wanted:
        ours = figures.pop(figure.key("one"))
        assert ours.unit == figure.unit and ours.pair == "tiny"
        values[figure.metric] = float(ours.value)
    assert values == {"Total": 8, "Target correct": 4, "Draft correct": 3, "Oracle union": 6, "CoSpec recovery": 50}
    assert [figure.method for figure in figures.values()] == ["bold[gamma=9]"], (
        "other settings are not the paper's method"
    )
    header = (published.FOLDER / "cospec-table2.csv").read_text().splitlines()[0]
    assert path.read_text().splitlines()[0] == f"{header},low,high"


@pytest.mark.parametrize("format", ("table", "md", "csv", "json"))
def test_the_view_tells_the_same_in_every_form(run, format):
    result = call("analyze", "complementarity", str(run.folder), "--format", format)
    assert result.exit_code == 0, result.output
    text = result.stdout
    if format == "json":
        facts = json.loads(text)
        assert facts["methods"][0]["recovery"] == 0.5 and facts["tasks"][0]["union"] == 6
        assert "recovers 50 % of it" in facts["sentences"]["one"]
    elif format == "csv":
        assert text.startswith("analysis,table,row,column,value\n") and "complementarity,tasks,0,union,6" in text
    else:
        words = " ".join(text.split())
        assert "the draft alone solves 2 of the 4 texts that the target does not" in words
        assert "recovers 50 % of it, which may be chance" in words
        assert "graded scores, not right or wrong: means over texts" in words and "60.0" in words
        if format == "table":
            assert max(map(len, text.splitlines())) <= 80
        else:
            assert "| one | bold | 5 | +12.5 | 1.000 | 50 %" in text


def test_an_analysis_has_its_own_options_only(run):
    for what, option in (
        ("complementarity", "--states"),
        ("complementarity", "--drafts"),
        *((what, "--against") for what in ("acceptance", "collaboration", "complementarity", "rejections")),
        ("acceptance", "--best"),
        ("rejections", "--out"),
        ("frontier", "--allow-pickle"),
        ("collaboration", "--method"),
    ):
        result = call("analyze", what, run.folder, option, "3")
        assert result.exit_code == 2 and f"No such option: {option}" in result.stderr
    refused = call("analyze", "rejections", run.folder, "--format", "md")
    assert refused.exit_code == 2 and "--format" in refused.stderr and "json" in refused.stderr
    result = call("analyze", "complementarity", run.folder, "--out", "no/file.csv")
    assert "there is no folder no" in result.stderr


@pytest.mark.long
def test_a_real_run_has_the_draft_beside_it_or_in_another(tmp_path):
    """The command that the error names makes what is missing."""
    plan = resolve_plan(["cospec"], "smoke", "pocket", ["cospec.arbiter=always", "cospec.gamma=6"], "vanilla", 2)
    folder = tmp_path / "run"
    loop.execute(plan, folder, lambda _: True)
    with pytest.raises(UserError) as caught:
        complementarity(StoredRun(folder))
    words = str(caught.value).split("`")[1].split()
    assert call(*words[1:]).exit_code == 0
    analysis = complementarity(StoredRun(folder), None, StoredRun(tmp_path / "run-draft"))
    assert analysis.methods.method.tolist() == ["cospec"] * len(analysis.tasks) and (analysis.tasks.total == 2).all()
    scores = StoredRun(tmp_path / "run-draft").scores().query("filter != 'flexible-extract'")
    alone = scores[scores.doc_id.notna()].groupby("task").value.sum()
    assert analysis.tasks.set_index("task").draft.to_dict() == alone[analysis.tasks.task].to_dict()
