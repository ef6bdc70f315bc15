"""Pairs, methods and suites: what is shipped is complete, what a user writes is merged, what is wrong is told."""

import time
from pathlib import Path

import pytest
import yaml

from specbench import config
from specbench.config import Setting, UserError
from specbench.config.chosen import check_settings
from specbench.methods import module, names
from specbench.plan import Plan, preparing, resolve_plan, resolve_tasks
from specbench.results.stored import StoredRun

SUITES = Path(__file__).parent.parent / "suites"
PAPERS_PAIRS = ("pocket", "llama-3-70b-1b", "qwen2.5-72b-7b", "llama-3.3-70b-3.1-8b", "qwen3-32b-4b", "opt-13b-125m")


def stems(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def error(function, *arguments) -> str:
    """The message of the one-line error that a call must raise."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    text = str(caught.value)
    assert text and "\n" not in text
    return text


# What is shipped


@pytest.mark.parametrize("name", stems(SUITES / "pairs"))
def test_shipped_pairs_load(name):
    pair = config.load_pair(name)
    assert pair.name == name and pair.description and pair.target.model
    if not pair.bundled:
        assert pair.paper, "a pair of a paper says which"
        for model in (pair.target, pair.draft, *pair.members):
            assert model is None or len(model.revision) == 40 or len(model.sha256) == 64, "pinned to a commit or a file"


def test_pairs_of_the_papers_are_there():
    assert set(PAPERS_PAIRS) <= set(config.names("pairs"))


@pytest.mark.parametrize("name", stems(SUITES))
def test_shipped_suites_load(name):
    suite = config.load_suite(name)
    assert suite.name == name and suite.description and suite.tasks
    assert len({line.task for line in suite.tasks}) == len(suite.tasks)


@pytest.mark.parametrize("name", config.names("methods"))
def test_shipped_methods_name_exactly_the_fields_of_their_settings(name):
    spec = config.load_method(name)
    fields = module(spec.method).Settings.model_fields
    assert set(spec.settings) == set(fields)
    assert spec.description
    for key, setting in spec.settings.items():
        assert setting.source and setting.source != "user", f"{name}.{key} has no source"
    config.validated(module(spec.method).Settings, spec.values, name)


@pytest.mark.parametrize("method", names())
def test_every_implementation_has_its_own_complete_file(method):
    raw = yaml.safe_load(config.files("methods")[method].read_text())
    assert raw["method"] == method
    assert set(raw["settings"]) == set(module(method).Settings.model_fields), "no default hides outside the file"
    assert all(set(entry) == {"value", "source"} for entry in raw["settings"].values())


def test_task_index_counterparts_are_bundled_and_have_files():
    known = config.tasks()
    only_for_calibration = {
        info.calibration.partition(":")[0] for info in known.values() if ":" in str(info.calibration)
    }
    assert only_for_calibration <= set(known)
    for name, info in known.items():
        if name in only_for_calibration or name == "bfcl_simple":  # no bundled document has a function
            assert info.hub and info.data and not info.counterparts
        elif info.hub:
            assert info.data and info.counterparts, name
            assert [known[counterpart].hub for counterpart in info.counterparts] == [None] * len(info.counterparts)
        else:
            assert not info.counterparts and list((SUITES / "tasks").glob(f"*/{name}.yaml"))


# What a user writes


def test_own_method_gets_the_shipped_settings_for_the_rest(tmp_path):
    path = write(tmp_path / "bold.yaml", "method: csd\ndescription: mine\nsettings:\n  gamma: 3\n  online: false\n")
    spec, shipped = (
        config.load_method(path),
        yaml.safe_load((SUITES / "methods" / "lossy" / "csd.yaml").read_text())["settings"],
    )
    assert (spec.name, spec.method, spec.description) == ("bold", "csd", "mine")
    assert spec.values == {key: entry["value"] for key, entry in shipped.items()} | {"gamma": 3, "online": False}
    assert Path(spec.settings["gamma"].source).name == "bold.yaml"
    assert spec.settings["gate_threshold"].source == shipped["gate_threshold"]["source"]


def test_own_method_keeps_its_own_sources(tmp_path):
    path = write(tmp_path / "mine.yaml", "method: sps\nsettings: {gamma: {value: 9, source: a sweep of ours}}\n")
    assert config.load_method(path).settings["gamma"] == Setting(value=9, source="a sweep of ours")


def test_own_method_on_top_of_an_ablation(tmp_path):
    path = write(tmp_path / "mine.yml", "method: csd-scg\nsettings: {gamma: 2}\n")
    spec = config.load_method(path)
    assert (spec.name, spec.method) == ("mine", "csd")
    assert spec.values["gamma"] == 2 and spec.values["memory"] == "none" and spec.values["online"] is False


def test_own_suite_and_pair_files(tmp_path):
    suite = config.load_suite(
        write(tmp_path / "s.yaml", "description: d\nlimit: 2\ntasks: [{task: gsm8k, fewshot: 3, max_new_tokens: 9}]")
    )
    assert (suite.name, suite.limit) == ("s", 2)
    assert suite.tasks[0].model_dump(exclude_none=True) == {
        "task": "gsm8k",
        "fewshot": 3,
        "same_shots": False,
        "max_new_tokens": 9,
    }
    pair = config.load_pair(write(tmp_path / "p.yaml", "description: d\ntarget: {model: a/b}\ndraft: {model: c/d}"))
    assert (pair.name, pair.target.model, pair.draft.model) == ("p", "a/b", "c/d")


def test_pair_on_the_command_line():
    pair = config.load_pair("target=some/folder,draft=owner/name")
    assert (pair.target.model, pair.draft.model) == ("some/folder", "owner/name")
    assert config.load_pair("target=x").draft is None


def test_assignments_are_read_as_yaml_and_grouped():
    parsed = config.parse_assignments(["csd.gamma=4", "csd.online=false", "csd.memory=a=b.parquet", "sps.gamma=2"])
    values = {method: {key: s.value for key, s in settings.items()} for method, settings in parsed.items()}
    assert values == {"csd": {"gamma": 4, "online": False, "memory": "a=b.parquet"}, "sps": {"gamma": 2}}
    changed = config.override(config.load_method("csd"), parsed["csd"])
    assert changed.values["gamma"] == 4 and changed.settings["gamma"].source == "user"
    assert config.load_method("csd").values["gamma"] == 6, "the shipped settings stay as they are"


def test_bundled_pair_gets_bundled_tasks_unless_data_is_given():
    suite, pocket = config.load_suite("csd"), config.load_pair("pocket")
    names = resolve_tasks(suite, pocket, None)
    assert [(line.task, line.fewshot) for line in names] == [
        ("pocket_gsm8k", 8),
        ("pocket_math500", 4),
        ("pocket_humaneval", 0),
        ("pocket_cnndm", 0),
    ]
    assert resolve_tasks(suite, pocket, "folder") == suite.tasks
    assert resolve_tasks(suite, config.load_pair("target=x"), None) == suite.tasks


POCKET = [f"pocket_{family}" for family in ("gsm8k", "math500", "humaneval", "cnndm", "ifeval", "ruler")]


def lines_on_pocket(*tasks: dict) -> list[tuple[str, int | None]]:
    suite = config.SuiteSpec.model_validate({"name": "s", "description": "d", "tasks": tasks})
    return [(line.task, line.fewshot) for line in resolve_tasks(suite, config.load_pair("pocket"), None)]


def test_a_mixture_brings_every_bundled_task_once():
    assert lines_on_pocket({"task": "alpaca", "fewshot": 0}) == [(name, 0) for name in POCKET]
    both = lines_on_pocket({"task": "alpaca", "fewshot": 0}, {"task": "humaneval", "fewshot": 1}, {"task": "gsm8k"})
    own = {"pocket_humaneval": 1, "pocket_gsm8k": None}  # what a line of a task's own says goes before the mixture's
    assert both == [(name, own.get(name, 0)) for name in POCKET]
    after = lines_on_pocket({"task": "gsm8k", "fewshot": 8}, {"task": "alpaca", "fewshot": 0})
    assert after == [("pocket_gsm8k", 8), *((name, 0) for name in POCKET[1:])]
    named = lines_on_pocket({"task": "pocket_ruler", "fewshot": 2}, {"task": "niah_single_1", "fewshot": 3})
    assert named == [("pocket_ruler", 2)]


def planned(suite: str, **options) -> Plan:
    return resolve_plan(["sps"], suite, "pocket", [], "vanilla", 1, **options)


def test_a_suite_says_how_it_samples_unless_the_user_does(tmp_path):
    suite = write(
        tmp_path / "own.yaml",
        "description: d\nmax_length: 99\nsampling: {temperature: 0.7, top_k: 40}\ntasks: [{task: gsm8k}]",
    )
    plain = write(tmp_path / "plain.yaml", "description: d\ntasks: [{task: gsm8k}]")
    drawn = {"temperature": None, "top_k": None, "top_p": None}

    def sampling_of(plan):
        return plan.temperature, plan.top_k, plan.top_p, plan.max_length

    assert sampling_of(planned(suite)) == sampling_of(planned(suite, **drawn)) == (0.7, 40, 1.0, 99)
    assert sampling_of(planned(suite, **drawn | {"temperature": 0.0})) == (0.0, 40, 1.0, 99)
    assert sampling_of(planned(suite, **drawn | {"top_k": 0, "top_p": 0.9})) == (0.7, 0, 0.9, 99)
    assert sampling_of(planned(plain, **drawn)) == (0.0, 0, 1.0, None)
    assert sampling_of(planned(plain, **drawn | {"temperature": 1.0})) == (1.0, 0, 1.0, None)
    assert preparing(config.load_pair("pocket"), suite, config.load_method("csd"), 1, 0, None).max_length == 99


def test_a_suite_wraps_its_prompts_unless_the_user_says_otherwise(tmp_path):
    chat = write(tmp_path / "chat.yaml", "description: d\nchat_template: true\ntasks: [{task: gsm8k}]")
    plain = write(tmp_path / "plain.yaml", "description: d\ntasks: [{task: gsm8k}]")
    asked = [None, True, False]
    assert [planned(chat, chat_template=choice).chat_template for choice in asked] == [True, True, False]
    assert [planned(plain, chat_template=choice).chat_template for choice in asked] == [False, True, False]
    assert planned(chat).chat_template and not planned(plain).chat_template
    assert preparing(config.load_pair("pocket"), chat, config.load_method("csd"), 1, 0, None).chat_template


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "greedy"),
        ({"top_k": 50}, "greedy"),
        ({"temperature": 1.0, "top_k": 50}, "T=1 top-k=50"),
        ({"temperature": 0.8, "top_k": 5, "top_p": 0.95}, "T=0.8 top-k=5 top-p=0.95"),
    ],
)
def test_a_sampling_has_the_name_that_runs_give_it(values, name, tmp_path):
    assert config.SamplingSpec(**values).name == name
    plan = planned(write(tmp_path / "own.yaml", "description: d\ntasks: [{task: gsm8k}]"), **values)
    run = StoredRun(tmp_path)
    run.manifest, run.plan = {}, plan
    assert run.sampling == plan.sampling.name == name


# What is wrong


@pytest.mark.parametrize(
    ("load", "word", "meant"),
    [
        (config.load_method, "cds", "csd"),
        (config.load_method, "vanila", "vanilla"),
        (config.load_suite, "maths", "math"),
        (config.load_pair, "poket", "pocket"),
        (config.task_info, "gsmk8", "gsm8k"),
    ],
)
def test_unknown_names(load, word, meant):
    text = error(load, word)
    assert f"'{word}'" in text and f"did you mean '{meant}'" in text and "specbench list" in text


def test_unknown_name_without_a_neighbour_says_where_names_are():
    text = error(config.load_method, "zzzzzz")
    assert "did you mean" not in text and "specbench list methods" in text


KEYS = [
    (config.load_suite, "description: d\ntasks: [{task: gsm8k}]\nlimt: 3", "limt", "limit"),
    (config.load_suite, "description: d\ntasks: [{task: gsm8k, fewshots: 3}]", "fewshots", "fewshot"),
    (config.load_suite, "description: d\ntasks: [{task: gsm8k, max_tokens: 3}]", "max_tokens", "max_new_tokens"),
    (
        config.load_suite,
        "description: d\ntasks: [{task: gsm8k}]\nsampling: {temprature: 1}",
        "temprature",
        "temperature",
    ),
    (config.load_suite, "description: d\ntasks: [{task: gsm8k}]\nsampling: {topk: 1}", "topk", "top_k"),
    (config.load_suite, "description: d\ntasks: [{task: gsm8k}]\nmax_lenght: 9", "max_lenght", "max_length"),
    (config.load_pair, "description: d\ntarget: {model: m}\ndraf: {model: m}", "draf", "draft"),
    (config.load_pair, "description: d\ntarget: {model: m, revison: main}", "revison", "revision"),
    (config.load_method, "method: csd\ndecription: d", "decription", "description"),
    (config.load_method, "method: csd\nsettings: {gama: 3}", "gama", "gamma"),
    (config.load_method, "method: csd\nsettings: {gamma: {value: 3, sorce: s}}", "sorce", "source"),
]


@pytest.mark.parametrize(("load", "text", "key", "meant"), KEYS, ids=[key for _, _, key, _ in KEYS])
def test_unknown_keys(tmp_path, load, text, key, meant):
    message = error(load, write(tmp_path / "own.yaml", text))
    assert key in message and f"did you mean '{meant}'" in message


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (config.load_suite, "description: d\ntasks: [{task: gsm8k"),
        (config.load_suite, "a: b: c"),
        (config.load_method, "method: csd\n\tsettings: 3"),
        (config.load_method, "just words"),
        (config.load_pair, "- a\n- list"),
        (config.load_suite, ""),
    ],
)
def test_malformed_yaml(tmp_path, load, text):
    assert "own.yaml" in error(load, write(tmp_path / "own.yaml", text))


@pytest.mark.parametrize("load", [config.load_method, config.load_suite, config.load_pair])
def test_file_that_is_not_text(tmp_path, load):
    (tmp_path / "own.yaml").write_bytes(b"\xff\xfe\x00\x9c")
    assert "own.yaml" in error(load, str(tmp_path / "own.yaml"))


@pytest.mark.parametrize("load", [config.load_method, config.load_suite, config.load_pair])
def test_missing_file(tmp_path, load):
    assert "nowhere.yaml" in error(load, str(tmp_path / "nowhere.yaml"))


@pytest.mark.parametrize("settings", ["[gamma, 3]", "3", "gamma"])
def test_settings_that_are_no_mapping(tmp_path, settings):
    assert "settings" in error(config.load_method, write(tmp_path / "own.yaml", f"method: csd\nsettings: {settings}"))


def test_method_file_without_a_method_and_with_an_unknown_one(tmp_path):
    assert "method" in error(config.load_method, write(tmp_path / "a.yaml", "settings: {gamma: 3}"))
    assert "did you mean 'csd'" in error(config.load_method, write(tmp_path / "b.yaml", "method: cds"))


def test_method_file_that_names_itself(tmp_path):
    path = tmp_path / "a.yaml"
    assert "a.yaml" in error(config.load_method, write(path, f"method: {path}"))


def test_suite_with_an_unknown_task(tmp_path):
    path = write(tmp_path / "own.yaml", "description: d\ntasks: [{task: humanevl}]")
    assert "did you mean 'humaneval'" in error(config.load_suite, path)


@pytest.mark.parametrize("tasks", ["[]", "[{task: gsm8k, fewshot: -1}]", "[{task: gsm8k, max_new_tokens: 0}]", "[{}]"])
def test_suite_with_impossible_tasks(tmp_path, tasks):
    assert "tasks" in error(config.load_suite, write(tmp_path / "own.yaml", f"description: d\ntasks: {tasks}"))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("sampling: {temperature: -1}", "sampling.temperature"),
        ("sampling: {temperature: .nan}", "sampling.temperature"),
        ("sampling: {top_p: 0}", "sampling.top_p"),
        ("sampling: {top_k: many}", "sampling.top_k"),
        ("sampling: greedy", "sampling"),
        ("max_length: 1", "max_length"),
    ],
)
def test_suite_with_an_impossible_sampling_or_length(tmp_path, line, key):
    message = error(
        config.load_suite, write(tmp_path / "own.yaml", f"description: d\ntasks: [{{task: gsm8k}}]\n{line}")
    )
    assert f"own.yaml: {key}: " in message


@pytest.mark.parametrize("text", ["target=a,drft=b", "draft=b", "target=", "target=a,draft="])
def test_pair_on_the_command_line_that_is_wrong(text):
    assert "target=NAME_OR_PATH,draft=NAME_OR_PATH" in error(config.load_pair, text)


@pytest.mark.parametrize("text", ["csd.gamma", "gamma=4", "csd", "=", "csd.gamma=[1", "csd.gamma={a: b"])
def test_assignments_that_are_wrong(text):
    assert text in error(config.parse_assignments, [text])


def test_unknown_setting_and_values_out_of_range():
    csd = config.load_method("csd")
    assert "did you mean 'gamma'" in error(config.override, csd, {"gama": Setting(value=1)})
    for key, value in (("gamma", 0), ("gamma", -1), ("gate_threshold", 1.5), ("gamma", "many"), ("memory", 3)):
        settings = config.override(csd, {key: Setting(value=value)}).values
        assert key in error(config.validated, module("csd").Settings, settings, "csd")


def test_specifications_cannot_be_changed():
    with pytest.raises(ValueError):
        config.load_method("csd").name = "other"


def test_a_grid_names_its_points():
    points = config.grid(config.load_method("csd"), config.parse_params(["gamma=2,4", "online=true,false"]))
    assert [point.name for point in points] == [
        f"csd[gamma={gamma},online={online}]" for gamma in (2, 4) for online in (True, False)
    ]
    assert points[2].values["gamma"] == 4 and points[2].values["online"] is True
    assert points[2].settings["gamma"].source == "swept"
    assert points[2].values["gate_threshold"] == config.load_method("csd").values["gate_threshold"]


@pytest.mark.parametrize(
    ("param", "message"),
    [("gamma", "KEY=VALUE"), ("gamma=", "KEY=VALUE"), ("gama=2", "did you mean 'gamma'"), ("gamma=2,[", "cannot read")],
)
def test_a_wrong_grid_is_refused(param, message):
    with pytest.raises(UserError, match=message):
        config.grid(config.load_method("csd"), config.parse_params([param]))


def test_the_same_settings_are_the_same_method():
    csd = config.load_method("csd")
    assert config.grid(csd, {"gamma": [4]})[0].identity == config.override(csd, {"gamma": Setting(value=4)}).identity
    assert config.grid(csd, {"gamma": [4]})[0].identity != csd.identity
    assert config.variant(csd, {}) == csd


def test_a_suite_brings_its_methods(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("""
description: two lines
tasks: [{task: gsm8k}]
methods:
  - {method: sps, settings: {gamma: 15}}
  - {method: csd, settings: {gamma: 4}, sweep: {count_threshold: [1, 6], online: [true]}}
  - {method: csd}
""")
    specs = config.suite_methods(config.load_suite(str(path)))
    swept = "csd[gamma=4,count_threshold={},online=True]"
    assert [spec.name for spec in specs] == ["sps[gamma=15]", swept.format(1), swept.format(6), "csd"]
    assert specs[1].values["gamma"] == 4 and specs[1].values["count_threshold"] == 1
    assert specs[0].settings["gamma"].source == "suite mine"
    assert specs[3] == config.load_method("csd")


@pytest.mark.parametrize("name", [name for name in config.names("suites") if config.load_suite(name).methods])
def test_methods_of_bundled_suites_have_settings_that_their_classes_take(name):
    specs = config.suite_methods(config.load_suite(name))
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        config.validated(module(spec.method).Settings, spec.values, spec.name)


def test_a_sweep_over_lists():
    specs = config.grid(config.load_method("swift"), {"branches": [[1, 1, 1, 1], [3, 5, 8, 10], [1, 1, 1, 1]]})
    assert [spec.values["branches"] for spec in specs] == [[1, 1, 1, 1], [3, 5, 8, 10]]


def test_a_change_reaches_every_variant_but_what_it_is_named_after():
    plan = resolve_plan(
        [], "csd-sensitivity-gate", "pocket", ["csd.memory=none", "csd.gate_threshold=0.9"], "vanilla", 1
    )
    swept = [spec for spec in plan.methods if spec.method == "csd"]
    assert {spec.values["memory"] for spec in swept} == {"none"}
    assert [spec.values["gate_threshold"] for spec in swept] == [0.001, 0.01, 0.1, 0.3, 0.6]


MANY_METHODS = [
    "methods:\n- &a {method: csd}\n" + "- *a\n" * 5000,
    f"methods:\n- &a {{method: csd, sweep: {{gamma: {[*range(1, 600)]}}}}}\n- *a\n- *a",
]


@pytest.mark.parametrize("lines", MANY_METHODS)
def test_a_suite_of_too_many_methods_is_refused_at_once(tmp_path, lines):
    path = write(tmp_path / "own.yaml", f"description: d\ntasks: [{{task: gsm8k}}]\n{lines}")
    began = time.perf_counter()
    assert "1000" in error(lambda text: config.suite_methods(config.load_suite(text)), path)
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["sps.gamma=true"], "gamma: input should be a number, not True"),
        (["sps.gamma=1:30"], "YAML reads 1:30 as a number of base 60"),
        (["sps.gamma=2", "sps.gamma=3"], "--set sps.gamma is there twice"),
    ],
)
def test_values_that_would_be_another(texts, words):
    """Each was taken: as 1, as 90, and as 3."""
    with pytest.raises(UserError, match=words):
        changed = config.override(config.load_method("sps"), config.parse_assignments(texts)["sps"])
        check_settings(module("sps").Settings, changed)
