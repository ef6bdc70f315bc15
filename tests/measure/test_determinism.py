"""The same documents give the same texts, counts and decisions: twice, alone or next to others, stopped or not.

One run of all methods, in another process with another order of sets, is held against runs of each alone that are
stopped after every document. All that a record tells is compared, to the last bit, but what is measured.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import determinism
import gates
import numpy as np
import oracle
import pytest
import torch
from determinism import LEARNERS, TASKS, TEMPERATURES, difference, facts, make_plan, methods, of, suite, texts

from specbench.base import environment
from specbench.config import load_pair as read_pair
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import load_pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Round, Sampling
from specbench.measure import loop, prepare, sample
from specbench.measure.manifest import digest
from specbench.measure.prompts import encode, load_tasks
from specbench.methods.lossy.csd import CSD
from specbench.plan import Plan

pytestmark = pytest.mark.long

SAME_KIND = ("csd-pocket", "csd-pocket-weak", "sps", "tlt-eagle3")  # as csd and bandit: they learn in the same way
GREEDY, SAMPLED = TEMPERATURES
GROUPS = 11  # of four methods
ALL = [(name, temperature) for temperature in TEMPERATURES for name in methods(temperature)]
# One of each way to carry something along: learners, sessions of several models, trees, hidden states that are kept.
SOME = ["sps", "csd", "bandit", "swift", "eagle3", "judge", "specdecpp", "lookahead", "cos", "ensemble-parallel"]


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """What all methods did together, by temperature: in a process of its own, in one go, the last method first."""
    folder = tmp_path_factory.mktemp("beside")
    arguments = [sys.executable, determinism.__file__, folder, *TEMPERATURES]
    path = os.pathsep.join([str(Path(loop.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    done = subprocess.run(list(map(str, arguments)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return {temperature: facts(folder / str(temperature)) for temperature in TEMPERATURES}


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """The suite of that run."""
    return suite(tmp_path_factory.mktemp("suite"), 2, determinism.TOKENS)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What these tests are not about: scores, long warm-ups, and what each of many runs would find out again."""
    monkeypatch.setattr(prepare, "load_tasks", load_once)
    monkeypatch.setattr(loop, "score", lambda folder, tasks: None)
    monkeypatch.setattr(environment, "describe", describe_once)
    monkeypatch.setattr(sample, "WARMUP_TOKENS", determinism.WARMUP)


known_tasks, describe_once = {}, cache(environment.describe)


def load_once(plan: Plan, pair):
    key = repr((plan.tasks, plan.limit, plan.seed))
    if key not in known_tasks:
        known_tasks[key] = load_tasks(plan, pair)
    return known_tasks[key]


def fresh():
    """The bundled pair, loaded again."""
    return load_pair(read_pair("pocket-weak"), device="cpu")


def whole(plan: Plan, folder: Path):
    """A run in one go."""
    assert loop.execute(plan, folder, lambda progress: True, fresh())
    return facts(folder)


def stopped(plan: Plan, folder: Path, between: bool = False):
    """A run that is stopped after every document, or only `between` those of a task; each part builds its methods."""
    pair, done, parts = fresh(), False, 0

    def report(progress):
        return between and progress.done % 2 == 0  # two documents a task

    while not done:
        done, parts = loop.execute(plan, folder, report, pair), parts + 1
    assert parts > 2
    return facts(folder)


# Every method


def held(names: list[str], temperature: float, few: Path, folder: Path, beside) -> None:
    """Hold a run of some methods, stopped in the midst of both tasks, against that of all."""
    mine = stopped(make_plan(names, few, temperature), folder, between=True)
    assert len(mine) == 4 * len(names) and all(rows[0]["finish"] != "'error'" for rows in mine.values())
    assert difference(mine, {key: rows for key, rows in beside[temperature].items() if key[3] in names}) == ""


@pytest.mark.parametrize("name", methods(SAMPLED))
def test_alone_as_beside_all_others(beside, few, tmp_path, name):
    held([name], SAMPLED, few, tmp_path / "run", beside)


@pytest.mark.parametrize("at", range(GROUPS))
def test_beside_a_few_as_beside_all_others(beside, few, tmp_path, at):
    held(methods(GREEDY)[at::GROUPS], GREEDY, few, tmp_path / "run", beside)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_that_means_something(beside, temperature):
    """Texts are not all alike, the sampled ones are no greedy ones, and what learns has learned within a task."""
    result = beside[temperature]
    assert determinism.different_tokens(result) > 30
    assert {key[3] for key in result} == set(methods(temperature)) and len(result) == 4 * len(methods(temperature))
    for name in LEARNERS:
        hashes = [rows[0]["state_hash"] for _, rows in sorted(of(name, result).items())]
        assert hashes[0] == hashes[2]  # each task begins with nothing
        assert temperature or len({hashes[0], hashes[1], hashes[3]}) > 1, name
    if temperature:
        greedy = texts(of("vanilla", beside[GREEDY]))
        assert sum(text != greedy[key] for key, text in texts(of("vanilla", result)).items()) > 1


@cache
def built():
    """Every method, on one pair."""
    pair, names = fresh(), methods(0)
    plan = make_plan(names, suite(Path(os.environ["SPECBENCH_CACHE"]), 2, determinism.TOKENS), GREEDY)
    return pair, {spec.name: prepare.build(spec, pair, Unwatched()) for spec in plan.methods}


def decoded(name: str, temperature: float) -> list[Round]:
    pair, every = built()
    method = every[name]
    method.reset(TASKS[0])
    prompt = encode(pair, "Question: A hat costs 5 and a cup costs 3. What do 2 hats and a cup cost?\nAnswer:")
    ending = Ending(Limits(5, pair.eos_ids), pair.detokenizer)
    rng = torch.Generator().manual_seed(5)
    return list(until_end(method.rounds(prompt, Sampling(temperature), rng), ending))


def global_states() -> tuple[str, ...]:
    name, keys, *rest = np.random.get_state()
    return repr(torch.get_rng_state().tolist()), repr(random.getstate()), repr([name, keys.tolist(), *rest])


@pytest.mark.parametrize(("name", "temperature"), ALL)
def test_the_only_random_numbers_are_those_given(name, temperature):
    """The generators that all of torch, Python and numpy share are left where they are: nothing is drawn from them."""
    built()
    before = global_states()
    assert len(decoded(name, temperature)) > 1
    assert global_states() == before


def test_a_warm_up_teaches_nothing(beside):
    """Each task's first document is decoded with what a method has that never decoded anything."""
    _, every = built()
    for temperature, result in beside.items():
        for (_, task, doc, name), rows in result.items():
            if doc == 0:
                every[name].reset(task)
                assert rows[0]["state_hash"] == repr(digest(every[name].state())), (name, temperature)


# What learns from document to document


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_learners_are_the_same_in_any_order_and_stopped_or_not(tmp_path, temperature):
    names, longer = [name for name in LEARNERS if name not in SAME_KIND], suite(tmp_path, 3, 12)
    one = whole(make_plan(names, longer, temperature), tmp_path / "one")
    other = whole(make_plan(names[::-1], longer, temperature, share_prefix=False), tmp_path / "other")
    assert difference(one, other) == ""
    again = stopped(make_plan(names[2:] + names[:2], longer, temperature), tmp_path / "again")
    assert difference(one, again) == ""
    assert len(one) == len(other) == len(again) == len(names) * 6
    for name in names:
        assert len({rows[0]["state_hash"] for rows in of(name, one).values()}) > 2, name


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_fewer_documents_are_the_first_ones(beside, few, tmp_path, temperature):
    first = whole(make_plan(SOME, few, temperature, limit=1), tmp_path / "run")
    assert len(first) == 2 * len(SOME)
    assert difference(first, beside[temperature]) == ""


# Other ways to compute forwards, and what is read once


def test_behind_a_shared_beginning(tmp_path):
    """Which method reads a beginning first does not matter; and greedy texts are those without sharing."""
    shots, names = suite(tmp_path, 2, determinism.TOKENS, fewshot=2, same_shots=True), SOME[3:6] + SOME[8:9]
    together = whole(make_plan(names, shots, GREEDY), tmp_path / "together")
    manifest = json.loads((tmp_path / "together" / "manifest.json").read_text())
    assert all(manifest["prefix_tokens"].get(task, 0) > 32 for task in TASKS)
    for name in ("judge", "cos"):
        assert difference(stopped(make_plan([name], shots, GREEDY), tmp_path / name), together) == ""
    apart = whole(make_plan(names, shots, GREEDY, share_prefix=False), tmp_path / "apart")
    assert texts(apart) == texts(together)
    assert len(together) == 4 * len(names)


def test_on_a_preallocated_cache(few, tmp_path):
    names = ["swift", "eagle3"]
    together = whole(make_plan(names, few, SAMPLED, runtime="static"), tmp_path / "together")
    for name in names:
        alone = make_plan([name], few, SAMPLED, runtime="static")
        assert difference(stopped(alone, tmp_path / name), together) == ""


# A method that fails


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_failing_method_does_not_change_the_others(beside, few, tmp_path, monkeypatch, temperature):
    """It breaks in the midst of one text, behind some rounds; what it had learned by then it keeps, stopped or not."""
    rounds, prompts = CSD.rounds, []

    def failing(self, prompt, sampling, rng):
        prompts.append(prompt)
        for count, one in enumerate(rounds(self, prompt, sampling, rng)):
            if count == 1 and prompt == prompts[0]:
                raise RuntimeError("the model broke")
            yield one

    monkeypatch.setattr(CSD, "rounds", failing)
    names = SOME[:6]
    run = whole(make_plan(names, few, temperature), tmp_path / "run")
    failed = [key for key, rows in run.items() if rows[0]["finish"] == "'error'"]
    assert failed == [(0, TASKS[0], 0, "csd")] and "the model broke" in run[failed[0]][0]["error"]
    others = {key: rows for key, rows in run.items() if key[3] != "csd"}
    assert len(others) == 4 * len(names) - 4
    assert difference(others, beside[temperature]) == ""
    prompts.clear()
    again = stopped(make_plan(["csd"], few, temperature), tmp_path / "again")
    for rows in (again[failed[0]], run[failed[0]]):
        rows[0].pop("error")  # a traceback tells of lines
    assert difference(again, run) == ""


# The methods of the gate tests, on tiny models in float64


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", gates.methods("llama", 3))
def test_tiny_models(name, temperature, monkeypatch):
    """A method made again, on models made again, says what one says that has decoded another text and forgotten it."""
    if temperature and "oracle" in name:
        pytest.skip("greedy only")
    other, one = oracle.prompts(2, length=8, seed=3)
    sampling = replace(gates.GREEDY, temperature=temperature)
    used = gates.methods("llama", 3)[name]
    for seed in (4, 5):
        gates.decode(used, other, 12, sampling, seed)
    used.reset()
    result = gates.decode(used, one, 16, sampling, seed=9)
    models = oracle.tiny_pair("llama")
    monkeypatch.setattr(gates, "pair", lambda architecture: models)
    new = gates.methods("llama", 3)[name]
    assert new.target.model is models[0]
    expected = gates.decode(new, one, 16, sampling, seed=9)
    assert repr(result) == repr(expected) and len(set(result[0])) > 6
