"""Runs under a constraint: every text follows it, lossless methods agree, and batches and stops change nothing."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
from tiny_runs import always, facts, rounds_of, samples_of

from specbench.base.errors import UserError
from specbench.config.specs import Constraint, ConstraintSpec
from specbench.measure import loop, prepare
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "apples": {"type": "integer", "minimum": 0, "maximum": 500},
    },
    "required": ["name", "apples"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
ALL = ConstraintSpec(kind="schema", text=json.dumps(SCHEMA))
LOSSLESS = ["vanilla", "sps", "mdsd", "recycling"]
METHODS, RESCUING = [*LOSSLESS, "csd"], ["csd.count_threshold=0", "csd.gate_threshold=0"]
plan = partial(
    resolve_plan,
    task=["pocket_gsm8k"],
    limit=2,
    max_new_tokens=32,
    dtype="float64",
    runtime="static",
    constraint=ALL,
)


def follows(text):
    """By hand, and not by what decodes."""
    value = json.loads(text)
    assert [*value] == ["name", "apples"] and type(value["apples"]) is int and 0 <= value["apples"] <= 500
    assert value["name"][0].isupper() and 2 <= len(value["name"]) <= 9
    return True


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    folder = tmp_path_factory.mktemp("constrained") / "single"
    assert loop.execute(plan(METHODS, assignments=RESCUING), folder, always)
    return folder


def test_every_text_follows_the_schema_and_lossless_ones_are_vanillas(single):
    samples = samples_of(single)
    assert not samples.error.notna().any()
    for doc, texts in samples.groupby("doc_id"):
        whole = texts.set_index("method")
        assert {tuple(whole.tokens[name]) for name in LOSSLESS} == {tuple(whole.tokens["vanilla"])}, doc
    ended = samples[samples.finish == "eos"]
    assert len(ended) >= len(LOSSLESS) and all(map(follows, ended.text))
    assert StoredRun(single).sampling == f"greedy, {ALL.name}"


def test_the_time_of_masks_is_recorded_by_itself(single):
    rounds = rounds_of(single)
    assert (rounds.mask_seconds > 0).all()
    assert (rounds.mask_seconds + rounds.model_seconds <= rounds.seconds * (1 + 1e-9)).all()


def test_batches_and_stops_change_nothing(single, tmp_path):
    chosen = plan(METHODS, assignments=RESCUING)
    assert not loop.execute(chosen, tmp_path / "stopped", lambda progress: progress.done < 1)
    assert loop.execute(chosen, tmp_path / "stopped", always)
    assert facts(tmp_path / "stopped") == facts(single)
    assert loop.execute(chosen.model_copy(update={"batch": 2}), tmp_path / "batch", always)
    ours, theirs = (
        samples_of(folder).sort_values(["method", "doc_id"])[["method", "doc_id", "tokens", "finish"]].values.tolist()
        for folder in (tmp_path / "batch", single)
    )
    assert [[*map(str, row)] for row in ours] == [[*map(str, row)] for row in theirs]


def test_texts_of_one_batch_may_follow_different_schemas(tmp_path, monkeypatch):
    """As with a field of the documents."""
    own = [Constraint("regex", "[a-f ]{3,9}"), Constraint("regex", "[u-z ]{3,9}")]
    load = prepare.load_tasks

    def loaded(plan, pair):
        tasks = load(plan, pair)
        tasks._requests = [replace(request, constraint=own[request.doc_id]) for request in tasks._requests]
        return tasks

    monkeypatch.setattr(prepare, "load_tasks", loaded)
    chosen = plan(["vanilla", "sps"], batch=2)
    assert loop.execute(chosen, tmp_path / "run", always)
    samples = samples_of(tmp_path / "run")
    assert (samples.finish == "eos").all()
    assert all(re.fullmatch(own[row.doc_id].text, row.text) for row in samples.itertuples())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ignore_eos": True}, "--ignore-eos"),
        ({"constraint": ConstraintSpec(kind="schema", field="form")}, "document 0 has no field 'form'"),
        ({"constraint": ConstraintSpec(kind="regex", text="(")}, "document 0: the regex cannot be used"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_it_begins(tmp_path, options, says):
    with pytest.raises(UserError, match=says):
        loop.execute(plan(["vanilla"], **options), tmp_path / "run", always)


def test_commands_that_do_not_apply_a_constraint_refuse_it():
    with pytest.raises(UserError, match="only `specbench run` and `sweep` decode under a constraint"):
        prepare.load_models(plan(["vanilla"]))
