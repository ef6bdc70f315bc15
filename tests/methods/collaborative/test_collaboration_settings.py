"""Pairs of several members, and the baseline that each method has: from YAML to a plan."""

import pytest
import yaml

from specbench import config
from specbench.config import UserError
from specbench.engine.models.pair import load_pair
from specbench.plan import resolve_plan, resolve_tasks

GENERAL, CODE, MATH = ({"model": f"bundled:{name}", "dtype": "float32"} for name in ("general", "code", "math"))


def written(tmp_path, **fields):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"description": "mine", **fields}))
    return str(path)


def test_members_that_are_the_pairs_own_models_have_their_roles(tmp_path):
    members = [GENERAL, {**CODE, "gamma": 2}, {**MATH, "role": "math", "gamma": 3}]
    pair = config.load_pair(written(tmp_path, target=CODE, draft=GENERAL, members=members))
    assert list(pair.collaboration) == ["draft", "target", "math"]
    assert [one.model for one in pair.collaboration.values()] == ["bundled:general", "bundled:code", "bundled:math"]
    assert sorted(pair.models) == ["draft", "math", "target"]
    assert [member.gamma for member in pair.members] == [None, 2, 3]


def test_without_members_draft_and_target_decode_together():
    assert list(config.load_pair("pocket").collaboration) == ["draft", "target"]
    assert list(config.load_pair("qwen2.5-1.5b-three-models").collaboration) == ["draft", "target", "math"]


def test_two_members_of_one_role_are_refused(tmp_path):
    members = [{**CODE, "role": "one"}, {**MATH, "role": "one"}]
    pair = config.load_pair(written(tmp_path, target=GENERAL, members=members))
    with pytest.raises(UserError, match="two models have the role 'one'"):
        load_pair(pair)


def test_a_target_alone_may_be_bundled_and_a_mixture_is_not(tmp_path):
    assert config.load_pair("pocket-trio").bundled
    mixed = config.load_pair(written(tmp_path, target=CODE, members=[CODE, {"model": "some/where", "role": "far"}]))
    assert not mixed.bundled


def test_bundled_pairs_run_the_bundled_tasks():
    suite = config.load_suite("math")
    for name in ("pocket", "pocket-duo", "pocket-trio", "pocket-contrast"):
        tasks = [line.task for line in resolve_tasks(suite, config.load_pair(name), None)]
        assert tasks == ["pocket_gsm8k", "pocket_math500"]


def plan(methods, **options):
    given = {"suite": "smoke", "pair": "pocket", "assignments": [], "baseline": "each", "limit": 1} | options
    return resolve_plan(methods, **given)


def test_each_method_has_its_own_baseline():
    planned = plan(["sps", "cos", "cos-naive"])
    assert [spec.name for spec in planned.methods] == ["vanilla", "ensemble", "sps", "cos", "cos-naive"]
    assert {name: planned.against(name) for name in ("sps", "cos", "cos-naive", "vanilla", "ensemble")} == {
        "sps": "vanilla",
        "cos": "ensemble",
        "cos-naive": "ensemble",
        "vanilla": "vanilla",
        "ensemble": "ensemble",
    }
    assert planned.baseline == "vanilla" and planned.baselines == {
        "ensemble": "ensemble",
        "cos": "ensemble",
        "cos-naive": "ensemble",
    }


def test_a_baseline_has_the_combination_of_its_method():
    planned = plan(["cos"], assignments=["cos.combine=contrastive", "cos.mu=0.3"])
    assert [spec.name for spec in planned.methods] == ["ensemble[combine=contrastive,mu=0.3]", "cos"]
    assert planned.methods[0].values["mu"] == 0.3 and planned.against("cos") == planned.methods[0].name


def test_swept_methods_share_a_baseline_where_they_can():
    planned = plan(["cos"], params=["gamma=1,2", "mu=0.1,0.2"])
    names = [spec.name for spec in planned.methods]
    assert names[:2] == ["ensemble", "ensemble[mu=0.2]"] and len(names) == 6
    assert planned.against("cos[gamma=2,mu=0.2]") == "ensemble[mu=0.2]"
    assert planned.against("cos[gamma=2,mu=0.1]") == "ensemble"


def test_a_baseline_that_is_asked_for_serves_all():
    planned = plan(["cos", "sps"], baseline="vanilla")
    assert [spec.name for spec in planned.methods] == ["vanilla", "cos", "sps"]
    assert planned.against("cos") == planned.against("sps") == "vanilla" and not planned.baselines
    alone = plan(["cos"], baseline=None)
    assert alone.baseline is None and alone.against("cos") is None and [s.name for s in alone.methods] == ["cos"]


def test_another_ensemble_of_the_same_name_is_no_baseline():
    with pytest.raises(UserError, match="cos needs ensemble with its own settings as the baseline"):
        plan(["ensemble", "cos"], assignments=["ensemble.weights=0.2"])
    planned = plan(["ensemble", "cos"], assignments=["ensemble.weights=0.2"], baseline="ensemble")
    assert planned.against("cos") == "ensemble"


def test_a_users_method_file_may_name_its_baseline(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nmethod: cos\nbaseline: vanilla\nsettings: {gamma: 2}\n")
    assert plan([str(path)]).against("mine") == "vanilla"


def test_a_member_is_the_pairs_model_whatever_it_leaves_out(tmp_path):
    members = [{"model": "bundled:general"}, {"model": "bundled:code", "dtype": "float32"}]
    pair = config.load_pair(written(tmp_path, target=CODE, draft=GENERAL, members=members))
    assert list(pair.collaboration) == ["draft", "target"] and sorted(pair.models) == ["draft", "target"]
    members = [{"model": "bundled:general", "role": "gen"}, {"model": "bundled:code"}]
    pair = config.load_pair(written(tmp_path, target=CODE, draft=GENERAL, members=members))
    with pytest.raises(UserError, match="the member 'gen' is the pair's draft"):
        load_pair(pair)


def test_an_ensemble_that_is_named_is_the_baseline_of_the_others():
    planned = plan(["ensemble", "cos"], assignments=["ensemble.weights=0.3", "cos.weights=0.3"])
    assert [spec.name for spec in planned.methods] == ["ensemble", "cos"]
    assert planned.against("cos") == "ensemble"


def test_a_method_without_a_combination_takes_the_one_that_is_there():
    planned = plan(["member", "cos"], assignments=["cos.mu=0.3", "cos.combine=contrastive"])
    assert planned.against("cos") == planned.against("member") == "ensemble[combine=contrastive,mu=0.3]"
    assert [spec.name for spec in planned.methods] == ["ensemble[combine=contrastive,mu=0.3]", "member", "cos"]
    suite = resolve_plan([], "cos-cd", "pocket", [], "each", 1)
    assert {suite.against(spec.name) for spec in suite.methods} == {"ensemble[combine=contrastive]"}


def test_ensembles_can_be_swept_and_vanilla_cannot():
    planned = plan(["ensemble"], params=["weights=0.2,0.8"])
    assert {spec.name: planned.against(spec.name) for spec in planned.methods} == {
        "ensemble[weights=0.2]": "ensemble[weights=0.2]",
        "ensemble[weights=0.8]": "ensemble[weights=0.8]",
    }
    with pytest.raises(UserError, match="vanilla is the baseline and is not swept"):
        plan(["vanilla"], params=["gamma=2,4"])
