"""`run --runtime`: what is recorded, what `auto` passes over and says of it, and that texts do not depend on it."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import call, refused
from gates import GREEDY, decode
from tiny_runs import always, samples_of, write_suite
from watched import Told

from specbench import config
from specbench.base import files
from specbench.cli import lm_eval_model
from specbench.config import UserError, plugins
from specbench.engine.runtimes import choose, products
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC, Static
from specbench.engine.runtimes.types import Unsupported
from specbench.measure import command as commands
from specbench.measure import loop, prepare
from specbench.measure.prepare import decode_beginning
from specbench.measure.prompts import encode
from specbench.measure.same import check_same
from specbench.methods.chains.sps import SpS
from specbench.plan import resolve_plan
from specbench.report import comparison

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Every test works in a folder with nothing but a suite of one task."""
    write_suite(tmp_path, {"pocket_gsm8k": 16}, 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lacking(monkeypatch):
    """A function that takes runtimes away; `openvino` is always away, whatever is installed."""
    make, away = choose._make, {"openvino": "OpenVINO is not installed; use --runtime static"}

    def made(name, pair):
        if name in away:
            raise Unsupported(away[name])
        return make(name, pair)

    monkeypatch.setattr(choose, "_make", made)
    return away.update


def make_plan(*methods, **options):
    given = {"pair": "pocket", "suite": "few.yaml", "assignments": [], "baseline": "vanilla", "limit": 1}
    return resolve_plan(**(given | {"methods": methods or ("sps",), "device": "cpu"} | options))


def manifest(folder="run"):
    return json.loads((Path(folder) / "manifest.json").read_text())


def texts(folder):
    samples = samples_of(Path(folder)).sort_values(["doc_id", "method"])
    assert set(samples.finish) <= {"length", "stop", "eos"}
    return [list(tokens) for tokens in samples.tokens]


def words(text: str) -> str:
    return " ".join(text.split())


# What is recorded, and what may be compared


def test_it_is_recorded_and_refused_in_comparisons(pocket):
    for name in ("eager", "static"):
        assert loop.execute(make_plan(runtime=name), Path(name), always, pocket)
        assert manifest(name)["runtime"] == {"name": name, "asked": name, "why": ""}
        assert manifest(name)["plan"]["runtime"] == name
    assert texts("eager") == texts("static") and len(set(texts("eager")[0])) >= 8
    line = refused("compare", "eager", "static")
    assert "differ in runtime (eager / static)" in line and line.endswith("pass --allow-mismatch runtime")
    allowed = call("compare", "eager", "static", "--allow-mismatch", "runtime")
    assert allowed.exit_code == 0
    assert "MISMATCH allowed, eager / static: runtime: eager / static" in words(allowed.output)
    assert refused("compare", "eager", "static", "--allow-mismatch", "dtype") == line
    # What was written before runs told it was eager.
    old = manifest("eager")
    del old["runtime"]
    files.write_json(Path("eager") / "manifest.json", old | {"started": "long ago"})
    assert refused("compare", "eager", "static") == line


def test_a_run_by_the_command_line():
    result = call(
        "run", "--method", "sps", "--suite", "few.yaml", "--limit", "1", "--runtime", "static", "--out", "run"
    )
    assert result.exit_code == 0, result.output
    assert manifest()["runtime"] == {"name": "static", "asked": "static", "why": ""}
    assert "static" in words(result.output)  # the caption says what the figures were measured with


def test_it_is_auto_where_nothing_is_asked(pocket):
    """On a CPU that is static, whose texts are those of eager."""
    assert make_plan().runtime == "auto"
    assert loop.execute(make_plan(), Path("run"), always, pocket)
    assert manifest()["runtime"] == {"name": "static", "asked": "auto", "why": "the default"}
    assert loop.execute(make_plan(runtime="eager"), Path("eager"), always, pocket)
    assert texts("run") == texts("eager")


# What cannot be had


@pytest.mark.parametrize("command", ("run", "sweep"))
def test_an_unknown_name_is_refused_in_one_line(command):
    more = ["--param", "gamma=2,3"] if command == "sweep" else []
    line = refused(command, "--method", "sps", "--suite", "few.yaml", "--runtime", "fast", *more)
    assert "--runtime fast" in line and all(name in line for name in (*choose.NAMES, "auto"))


@ON_CPU
def test_graphs_on_a_cpu_are_refused_in_one_line():
    line = refused("run", "--method", "sps", "--suite", "few.yaml", "--runtime", "graph")
    assert "needs a GPU" in line and "--runtime static" in line


def test_what_a_runtime_cannot_read_is_refused_in_one_line(monkeypatch):
    def lean(self, model):
        raise Unsupported(f"the static runtime does not know {type(model).__name__}; use --runtime eager")

    monkeypatch.setattr(Static, "lean", lean)
    line = refused("run", "--method", "sps", "--suite", "few.yaml", "--runtime", "static")
    assert line == "error: the static runtime does not know LlamaForCausalLM; use --runtime eager"


# The fastest


def test_auto_needs_no_openvino_and_says_nothing_of_it(pocket, lacking, capsys):
    assert loop.execute(make_plan(), Path("run"), always, pocket)
    assert [line for line in capsys.readouterr().out.splitlines() if "runtime" in line] == [
        "runtime: static (the default)"
    ]


def test_auto_ends_at_eager(pocket, lacking, capsys):
    lacking({"static": "the static runtime does not know this; use --runtime eager"})
    assert loop.execute(make_plan(), Path("run"), always, pocket)
    why = "the static runtime does not know this"
    assert manifest()["runtime"] == {"name": "eager", "asked": "auto", "why": why}
    assert choose.placed("auto", replace(pocket, runtime=STATIC)).runtime is EAGER
    assert capsys.readouterr().out.splitlines()[-1] == f"runtime: eager, since {why}"
    with pytest.raises(Unsupported, match="--runtime eager"):
        choose.placed("static", pocket)


def test_auto_is_eager_where_weights_do_not_fit_twice(pocket, monkeypatch):
    models = {role: copy.deepcopy(model) for role, model in pocket.models.items()}  # that no runtime has read
    unread = replace(pocket, models=models)
    matrices = [one.weight for model in models.values() for one in model.modules() if isinstance(one, torch.nn.Linear)]
    needed = sum(4 * weight.numel() for weight in matrices)
    monkeypatch.setattr(choose, "free_memory", lambda device: needed - 1)
    chosen = choose.usual("auto", unread)
    assert chosen.runtime is EAGER and "next to the models' own" in chosen.why and "--runtime" not in chosen.why
    with pytest.raises(Unsupported, match="use --runtime eager, or free memory"):
        choose.usual("static", unread)
    monkeypatch.setattr(choose, "free_memory", lambda device: needed)
    assert choose.usual("auto", unread).runtime is STATIC
    monkeypatch.setattr(choose, "free_memory", lambda device: 0)
    assert choose.usual("auto", unread).runtime is STATIC  # what was laid out takes no more


def test_a_processor_without_halves_makes_eager_slow(pocket, monkeypatch, capsys):
    """Weights in half precision are laid out twice as wide there by static, and eager is named as slow."""
    models = {role: copy.deepcopy(model).bfloat16() for role, model in pocket.models.items()}
    halved = replace(pocket, models=models, runtime=EAGER)
    needed = sum(
        one.weight.numel() for model in models.values() for one in model.modules() if isinstance(one, torch.nn.Linear)
    )
    bytes_of = {}
    for types in ((torch.float32, torch.bfloat16), (torch.float32,)):
        monkeypatch.setattr(products, "packs", lambda device, dtype, types=types: device == "cpu" and dtype in types)
        bytes_of[len(types)] = sum(Static().more(model) for model in models.values())
        assert loop.execute(make_plan(runtime="eager", dtype="bfloat16"), Path(f"run{len(types)}"), always, halved)
        told = "no products in bfloat16, which eager then takes many times as long for" in words(
            capsys.readouterr().out
        )
        assert told == (len(types) == 1)
    assert bytes_of == {2: 2 * needed, 1: 4 * needed}
    assert choose.slowed(pocket) == choose.slowed(replace(halved, runtime=STATIC)) == ""


def test_auto_on_a_gpu_takes_graphs_first(pocket, monkeypatch):
    """The order alone: no GPU is needed to tell it."""

    class Elsewhere:
        device, models, draft_device = torch.device("cuda"), pocket.models, None

    class Graphs(Static):
        name = "graph"

    GRAPH = Graphs()
    asked: list[str] = []

    def make(name, pair):
        asked.append(name)
        if name == "graph":
            raise Unsupported("it has none; use --runtime static")
        return STATIC

    monkeypatch.setattr(choose, "_make", make)
    choice = choose.fastest(Elsewhere(), lambda runtime: None)
    assert asked == ["graph", "static"] and choice == choose.Choice(STATIC, "no graphs, since it has none")
    monkeypatch.setattr(choose, "_make", lambda name, pair: GRAPH)
    assert choose.fastest(Elsewhere(), lambda runtime: None) == choose.Choice(GRAPH, "fastest on a GPU")

    def choosy(runtime):
        raise Unsupported("a method has trees; use --runtime static")

    monkeypatch.setattr(choose, "_make", lambda name, pair: GRAPH if name == "graph" else STATIC)
    assert choose.fastest(Elsewhere(), choosy) == choose.Choice(STATIC, "no graphs, since a method has trees")


def test_auto_leaves_a_methods_failure_to_its_samples(pocket, lacking, monkeypatch):
    """As without `auto`: a row for each, and exit code 3."""
    monkeypatch.setattr(SpS, "rounds", lambda *_: 1 / 0)
    monkeypatch.setattr(prepare, "load_pair", lambda *_, **__: pocket)
    for name, plan in {"eager": make_plan(runtime="eager"), "run": make_plan(runtime="auto")}.items():
        assert comparison.finish(commands.run(plan, Path(name), None)) == 3
    assert manifest()["runtime"]["name"] == "static"


def test_auto_refuses_a_sampling_as_the_others_do(pocket, lacking):
    for name in ("eager", "auto"):
        plan = make_plan("oracle", runtime=name, temperature=1.0)
        with pytest.raises(UserError, match=r"^oracle: oracle knows greedy texts only; use --temperature 0$"):
            loop.execute(plan, Path(name), always, pocket)
        assert not Path(name).exists()


def test_auto_is_understood_by_lm_eval_too(pocket, lacking, monkeypatch):
    monkeypatch.setattr(lm_eval_model, "load_pair", lambda *_, **__: pocket)
    prompt = ("Question: 2 + 3?\nAnswer:", (), 8, 0.0)
    expected = lm_eval_model.text_generator("pocket", "sps")(*prompt)
    assert lm_eval_model.text_generator("pocket", "sps", runtime="static")(*prompt) == expected
    try:
        result = lm_eval_model.text_generator("pocket", "sps", runtime="auto")(*prompt)
    except UserError as error:
        assert not str(error).endswith("or auto")
    else:
        assert result == expected


# Going on


def test_a_resumed_run_keeps_its_runtime(pocket, lacking, monkeypatch):
    """That which `auto` found when it began, whatever would be found by now."""
    plan = make_plan(runtime="auto", limit=2)
    assert loop.execute(plan, Path("one"), always, pocket)
    assert not loop.execute(plan, Path("run"), lambda state: False, pocket)
    before = manifest()
    assert before["runtime"]["name"] == "static"
    monkeypatch.setattr(choose, "fastest", lambda *_: choose.Choice(EAGER, "another day"))
    seen: list[str] = []
    build = prepare.build
    monkeypatch.setattr(
        prepare, "build", lambda spec, pair, watch: seen.append(pair.runtime.name) or build(spec, pair, watch)
    )
    assert loop.execute(plan, Path("run"), always, pocket)
    assert manifest() == before and set(seen) == {"static"}
    assert texts("run") == texts("one")


def test_a_resumed_run_whose_runtime_is_gone_is_refused(pocket, lacking):
    plan = make_plan(runtime="auto", limit=2)
    assert not loop.execute(plan, Path("run"), lambda state: False, pocket)
    lacking({"static": "static is gone; use --runtime eager"})
    with pytest.raises(Unsupported, match="static is gone"):
        loop.execute(plan, Path("run"), always, pocket)


def test_going_on_with_another_runtime_is_refused(pocket):
    assert not loop.execute(make_plan(runtime="static", limit=2), Path("run"), lambda state: False, pocket)
    with pytest.raises(UserError, match='runtime: "static" there, "eager" here'):
        commands.run(make_plan(runtime="eager", limit=2), None, Path("run"))
    stored = manifest()
    with pytest.raises(UserError, match=r"began with different runtime; start a new run"):
        check_same(stored, stored | {"runtime": {"name": "eager"}}, Path("run"))
    # What the manifest tells counts, whatever was asked for.
    stored["runtime"]["name"] = "eager"
    files.write_json(Path("run") / "manifest.json", stored)
    assert loop.execute(make_plan(runtime="static", limit=2), Path("run"), always, pocket)


# Every method

NOT_SHIPPED = {"chimera", "deer", "dovetail", "fspad", "taps", "taps-average", "taps-route"}  # their heads are not


@pytest.mark.long
@pytest.mark.parametrize("name", config.names("methods"))
def test_every_method_says_the_same_at_static(name, pocket):
    """24 tokens of a bundled document; at static with a shared beginning, read in the first rounds or never."""
    spec = config.load_method(name)
    prompt = encode(pocket, QUESTION)
    fast = replace(pocket, runtime=STATIC)
    if name in NOT_SHIPPED:
        with pytest.raises(UserError, match=r"no head .*ships with pocket"):
            prepare.build(spec, pocket, Told())
        return
    plain = prepare.build(spec, pocket, Told())
    plain.check(GREEDY)
    watch = Told()
    method = prepare.build(spec, fast, watch)
    for one in (plain, method):
        one.reset("pocket_gsm8k")
    expected, _ = decode(plain, prompt, 24)
    assert len(set(expected)) >= 8
    shared = len(prompt) - 6
    try:
        fast.prefixes.begin(prompt[:shared])
        decode_beginning(method, prompt, GREEDY, fast)
        kept = {id(one): set(known) for one, known in fast.prefixes._kept.items()}
        method.reset("pocket_gsm8k")
        watch.forwards.clear()
        assert decode(method, prompt, 24)[0] == expected
        assert {id(one): set(known) for one, known in fast.prefixes._kept.items()} == kept
    finally:
        fast.prefixes.begin([])
    assert watch.forwards


QUESTION = (
    "Question: Tom has 14 red marbles and 9 blue marbles. He gives 5 marbles to a friend and then buys 8 more. "
    "How many marbles does Tom have now?\nAnswer:"
)


def test_a_runtime_whose_package_is_not_there_is_refused_in_one_line(pocket, monkeypatch):
    monkeypatch.setattr(plugins, "entries", lambda group: {})
    with pytest.raises(Unsupported, match="the openvino runtime is in the package specbench-extras: install it"):
        choose.runtime("openvino", pocket)
