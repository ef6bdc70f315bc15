"""CoS's suites: the tasks, samplings and methods of its tables and figures, on the bundled pairs and the paper's."""

import pytest

from specbench import config
from specbench.config import SamplingSpec
from specbench.config.chosen import EACH
from specbench.methods import module
from specbench.plan import resolve_plan

FOUR = ["humaneval", "gsm8k", "mmlu", "cnn_dailymail_abisee"]
BUNDLED = ["pocket_humaneval", "pocket_gsm8k", "pocket_mmlu", "pocket_cnndm"]
LAMBDAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
WE, CD = {"combine": "weighted"}, {"combine": "contrastive"}
# Section 4.1, by table and figure: tasks, sampling, and each method with the settings that it is known by.
SUITES = {
    "cos-we": (4, 1.0, [
        ("ensemble", WE), ("ensemble-parallel", WE), ("member", {"model": "draft"}), ("member", {"model": "target"}),
        ("cos-sd", WE | {"gamma": 1}), ("cos-sd", WE | {"gamma": 5}), ("cos-naive", WE | {"gamma": 5}),
        ("cos", WE | {"gamma": 1}), ("cos", WE | {"gamma": 5}),
    ]),
    "cos-cd": (4, 0.0, [
        ("ensemble", CD), ("ensemble-parallel", CD), ("member", {"model": "draft"}), ("member", {"model": "target"}),
        ("cos-sd", CD | {"gamma": 1}), ("cos-sd", CD | {"gamma": 5}),
        ("cos-naive", CD | {"gamma": 5}), ("cos", CD | {"gamma": 1}), ("cos", CD | {"gamma": 5}),
    ]),
    "cos-three": (4, 1.0, [
        ("ensemble", WE), ("ensemble-parallel", WE), ("member", {"model": "draft"}), ("member", {"model": "target"}),
        ("member", {"model": "math"}), ("cos-sd", WE | {"gamma": 5}), ("cos", WE | {"gamma": 1}),
    ]),
    "cos-apf": (2, 1.0, [
        ("cos-naive", WE | {"gamma": 5}), ("cos", WE | {"gamma": 1}), ("cos", WE | {"gamma": 5}),
        ("cos-naive", CD | {"gamma": 5}), ("cos", CD | {"gamma": 1}), ("cos", CD | {"gamma": 5}),
    ]),
    "cos-gamma": (2, 1.0, [("cos", kind | {"gamma": gamma}) for kind in (WE, CD) for gamma in (1, 2, 3, 4, 5)]),
    "cos-lambda": (4, 1.0, [
        ("cos", WE | {"proposer": one, "weights": weight}) for one in ("draft", "target") for weight in LAMBDAS
    ]),
    "cos-mu": (2, 0.0, [("cos", CD | {"mu": mu}) for mu in (0.1, 0.2, 0.3, 0.4, 0.5)]),
}  # fmt: skip
PAIRS = {"cos-three": ["pocket-trio", "qwen2.5-1.5b-three-models"]}
TWO_MODELS = ["pocket-duo", "pocket-contrast", "qwen2.5-3b-coder-3b"]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_what_the_paper_lists(name: str) -> None:
    count, temperature, wanted = SUITES[name]
    suite = config.load_suite(name)
    assert suite.sampling == SamplingSpec(temperature=temperature, top_k=0, top_p=1.0)
    assert suite.paper.startswith("CoS (arXiv 2502.01662), ")
    assert [(line.task, line.fewshot, line.max_new_tokens) for line in suite.tasks] == [
        (task, 0, 256) for task in FOUR[:count]
    ]
    specs = config.suite_methods(suite)
    results = [
        (spec.method, {key: spec.values[key] for key in facts}) for spec, (_, facts) in zip(specs, wanted, strict=True)
    ]
    assert results == wanted
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:  # what no suite changes: equal weights, the contrast of the paper
        assert spec.values.get("weights") is None or name == "cos-lambda"
        assert spec.values.get("mu", 0.1) == 0.1 or name == "cos-mu"


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_runs_on_the_bundled_pairs_and_on_the_papers(name: str) -> None:
    for pair in PAIRS.get(name, TWO_MODELS):
        plan = resolve_plan([], name, pair, [], EACH, None)
        tasks = BUNDLED if plan.pair.bundled else FOUR
        assert [line.task for line in plan.tasks] == tasks[: SUITES[name][0]]
        assert {spec.method for spec in plan.methods} >= {"ensemble"}
        for spec in plan.methods:  # every one against standard decoding by the same combination
            base = next(method for method in plan.methods if method.name == plan.against(spec.name))
            assert base.method == "ensemble"
            shared = spec.values.keys() & base.values.keys()
            assert shared or spec.method == "member"
            assert {key: spec.values[key] for key in shared} == {key: base.values[key] for key in shared}


def test_the_methods_of_a_suite_have_settings_that_they_take() -> None:
    specs = [spec for name in SUITES for spec in config.suite_methods(config.load_suite(name))]
    assert specs and all(config.validated(module(spec.method).Settings, spec.values, spec.name) for spec in specs)
