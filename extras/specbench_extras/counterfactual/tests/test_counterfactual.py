"""Branches against plain decoding without a cache, figures by hand, going on after a stop, and bad input."""

import itertools
import json
import math

import made_runs as made
import numpy as np
import oracle
import pandas as pd
import pytest
import torch
from cases import mostly_long
from jobs import drawn_arbitrator
from screens import call
from synthetic import change_manifest

from specbench.config import Setting, UserError, load_method
from specbench.engine.generate import Ending, Limits
from specbench.engine.types import Round
from specbench.measure import loop
from specbench.measure.prompts import encode
from specbench.methods.collaborative.cospec import Always, Block
from specbench.papers import published
from specbench.papers.cells import write_cells
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun
from specbench.tasks.harness import scorer
from specbench_extras.counterfactual import branches
from specbench_extras.counterfactual import view as counterfactual_view
from specbench_extras.counterfactual.analysis import (
    ALL,
    DRAFT,
    KINDS,
    RIGHT,
    TARGET,
    WRONG,
    Played,
    counterfactual,
    draw_states,
    estimated_seconds,
    method_of,
    reached_states,
)
from specbench_extras.counterfactual.branches import Forced, Player
from specbench_extras.counterfactual.cells import cells
from specbench_extras.counterfactual.study import Store, facts_of, play_all

GAMMA = 6
ARBITERS = ("never", "always", "oracle", "random:0.5", "trained")


@pytest.fixture(scope="module")
def run(tmp_path_factory, pocket_weak) -> StoredRun:
    """Greedy CoSpec with all arbiters on documents of two tasks; the trained one has weights drawn at random."""
    folder = tmp_path_factory.mktemp("branches") / "run"
    weights = drawn_arbitrator(folder.with_name("arbitrator.safetensors"), pocket_weak)
    settings = [f"cospec.gamma={GAMMA}", f"cospec.arbitrator={weights}", "cospec.threshold=0.5"]
    params = [f"arbiter={','.join(ARBITERS)}"]
    loop.execute(
        resolve_plan(["cospec"], "smoke", "pocket-weak", settings, "vanilla", 2, params=params), folder, lambda _: True
    )
    return StoredRun(folder)


def name(arbiter):
    return f"cospec[arbiter={arbiter}]"


class Players(dict):
    """One for each arbiter that is asked for."""

    def __init__(self, run):
        self.run = run

    def __missing__(self, arbiter):
        self[arbiter] = Player(self.run, method_of(self.run, name(arbiter)), 0)
        return self[arbiter]


@pytest.fixture(scope="module")
def players(run):
    return Players(run)


def states(run, arbiter, number=6, seed=0):
    return draw_states(run, name(arbiter), reached_states(run, name(arbiter)), number, seed)


def headline(run, method) -> dict[tuple[str, int], float]:
    """What the run itself scored, by the metric that the table shows."""
    scores = run.scores()
    scores = scores[(scores.method == method) & scores.doc_id.notna()]
    wanted = run.manifest["headline"]
    return {
        (row.task, int(row.doc_id)): row.value
        for row in scores.rename(columns={"filter": "by"}).itertuples()
        if wanted[row.task] == f"{row.metric},{row.by}"
    }


def naive(player, state, keep, always):
    """A branch by forwards without a cache: `always` drafts blocks and adds the target's bonus; else the target alone.

    Returns the tokens of the whole text.
    """
    request = player.request(*state.document)
    prompt = encode(player.pair, request.prompt)
    ending = Ending(Limits(request.max_new_tokens, player.pair.eos_ids, request.until), player.pair.detokenizer)

    def choice(role, tokens):
        logits = oracle.next_logits(player.pair.models[role], [*prompt, *tokens])
        return oracle.best(logits[: player.pair.vocabulary].float())

    block = [*state.drafted[: state.position], state.drafted[state.position] if keep else state.target]
    if keep and always:  # the rest of the block is scanned too, and all of it stands
        block = state.drafted
    tokens = [*state.text[: state.start], *block]
    if keep and always:
        tokens.append(choice("target", tokens))
    ending.keep(tokens)
    while not ending.reason:
        new = []
        for _ in range(GAMMA if always else 0):
            new.append(choice("draft", tokens + new))
        new.append(choice("target", tokens + new))
        tokens += new
        ending.keep(new)
    return ending.tokens


@mostly_long(
    "keep, arbiter", itertools.product((True, False), ("never", "always")), ((True, "always"), (False, "never"))
)
def test_branches_are_plain_decoding_behind_a_forced_token(run, players, arbiter, keep):
    player = players[arbiter]
    chosen = states(run, arbiter, 2)
    texts = []
    for state in chosen:
        request = player.request(*state.document)
        limits = Limits(request.max_new_tokens, player.pair.eos_ids, request.until)
        begin = lambda limits=limits: Ending(limits, player.pair.detokenizer)  # noqa: E731
        prompt = encode(player.pair, request.prompt)
        ending, _ = player.branch(state, prompt, keep, begin, lambda text: 0.0)
        assert ending.tokens == naive(player, state, keep, arbiter == "always")
        assert (ending.tokens == state.text) == (keep == state.kept), "the branch that the run took is its text"
        texts.append(tuple(ending.tokens))
    assert len(set(texts)) > 1 and max(map(len, map(set, texts))) > 15


def test_the_target_branch_of_never_is_the_targets_own_text(run, players):
    """With `never` the run is the target's greedy text, and so is every target branch: vanilla's score."""
    chosen = states(run, "never", 8)
    assert not any(state.kept for state in chosen)
    own = headline(run, "vanilla")
    for state in chosen[::3]:
        row = players["never"].play(state)
        assert row["met"] and row["same"]
        assert row["target_score"] == row["recorded_score"] == own[state.document]


@mostly_long("arbiter", ("always", "oracle", "trained"), ("trained",))
def test_what_the_run_took_comes_again(run, players, arbiter):
    """As it was scored in the run, though branches begin in mid-text: oracle and arbitrator know where they are."""
    scores = headline(run, name(arbiter))
    every = states(run, arbiter, 50)
    again = {(state.document, state.round, state.earlier): state for state in every}
    followed = [one for one in every if one.kept and (one.document, one.round, one.earlier + 1) in again]
    chosen = [max(every, key=lambda state: state.earlier), min(every, key=lambda state: state.earlier), followed[0]]
    assert chosen[0].earlier and not chosen[1].earlier, "earlier mismatches of the block are kept"
    for state in chosen:
        row = players[arbiter].play(state)
        assert row["met"] and row["same"] and row["recorded_score"] == scores[state.document]
        assert row["draft_score" if state.kept else "target_score"] == row["recorded_score"]


def test_what_was_told_is_asked_of_nobody():
    """Of the first block two decisions are told; the arbiter is asked of the others there, and of all later on."""
    asked = []

    class Even(Always):
        def keeps(self, block, rng):
            asked.append(block.mismatches)
            return (i % 2 == 0 for i in block.mismatches)

    facts, rng = Forced(Even(), [True, False]), torch.Generator()
    block = Block([9] * 8, [8] * 8, [1, 2, 5, 6], torch.tensor([9, 8] * 8))
    assert list(facts.keeps(block, rng)) == [True, False, False, True]
    assert list(facts.keeps(block, rng)) == [False, True, False, True]
    assert asked == [[5, 6], [1, 2, 5, 6]]


def test_the_oracle_is_told_the_whole_answer(run, players, monkeypatch):
    """To the method the text in front of the round is prompt; to the score it is answer."""
    asked = []
    monkeypatch.setattr(branches, "worth", lambda *_: lambda prompt, answer: asked.append((prompt, answer)) or 0.0)
    state = min((state for state in states(run, "oracle", 50) if state.start > 1), key=lambda state: state.start)
    player = players["oracle"]
    player.play(state)
    prompt = encode(player.pair, player.request(*state.document).prompt)
    assert asked
    assert all(list(given) == prompt and answer[: state.start] == state.text[: state.start] for given, answer in asked)


def test_lots_are_drawn_from_the_seed_alone(run, players):
    (state, *_) = states(run, "random:0.5", 1)
    player = players["random:0.5"]
    first = player.play(state)
    assert first["met"] and first == player.play(state)
    assert not player.repeatable and players["oracle"].repeatable


def test_states_are_drawn_over_all_documents(run):
    result = reached_states(run, name("random:0.5"))
    rounds = run.rounds().to_table().to_pandas()
    rounds = rounds[(rounds.method == name("random:0.5")) & ~rounds.warmup & (rounds.drafted > 0)]
    decisions = np.concatenate(rounds.decisions.tolist())
    assert result.kept.sum() == (decisions == 2).sum() > 0 and (~result.kept).sum() == (decisions == 0).sum() > 0
    key = lambda state: state.key  # noqa: E731
    some, more = (set(map(key, states(run, "random:0.5", number))) for number in (3, 6))
    assert some < more and len(more) == 6
    assert some != set(map(key, states(run, "random:0.5", 3, seed=1)))
    assert len(states(run, "random:0.5", 10_000)) == len(result)


def test_states_of_rounds_written_by_hand(tmp_path):
    """Block 1 keeps `b` for `x` and stops at `d`; block 2 has no mismatch; block 3 was cut behind its rescue."""
    words = {letter: made.word(f" {letter}") for letter in ("the", "of", "and", "is", "a", "to", "in", "for", "on")}
    the, of, and_, is_, a, to, in_, for_, on = words.values()
    rounds = [
        Round([the]),
        made.drafted([of, and_, is_, a], [of, to, is_, in_], 3, in_, rescued=(1,)),
        made.drafted([on, a], [on, a], 2, to),
        made.drafted([for_, of, the], [is_, to, the], 3, on, rescued=(0, 1)).cut(1),
    ]
    tables = {"samples": [], "rounds": []}
    made.add_sample(tables, "one", 0, "cospec", rounds, "", "length")
    run = made.stored(tmp_path / "run", tables, ["one"], ["cospec"])
    result = draw_states(run, "cospec", reached_states(run, "cospec"), 9, 0)
    lines = [(s.round, s.position, s.kept, s.start, s.target, s.earlier) for s in result]
    assert lines == [(1, 1, True, 1, to, 0), (1, 3, False, 1, in_, 1), (3, 0, True, 8, is_, 0)]
    assert result[0].drafted == [of, and_, is_, a] and result[0].text == [the, of, and_, is_, in_, on, a, to, for_]
    # Three rounds of 10 ms: from the start 30 + 10, behind the first token 8/9 of 30 + 10, of the last 1/9.
    assert estimated_seconds(run, "cospec", result) == pytest.approx(2 * (2 * (0.01 + 0.03 * 8 / 9) + 0.01 + 0.03 / 9))


# task, document, draft's score, target's, kept
BY_HAND = [
    ("one", 0, 1, 0, True),
    ("one", 0, 1, 0, False),
    ("one", 0, 1, 1, True),
    ("one", 1, 0, 1, True),
    ("one", 1, 0, 1, False),
    ("one", 1, 0, 1, False),
    ("two", 0, 0, 0, True),
    ("two", 0, 0.5, 0.5, False),
]


def played(rows, **others):
    columns = ("task", "doc_id", "draft_score", "target_score", "kept")
    facts = {"met": True, "same": False, "recorded_score": 1.0}
    results = [dict(zip(columns, row, strict=True)) | facts for row in rows]
    return Played(results, **({"reached": 99, "unchecked": [], "repeatable": True} | others))


@pytest.fixture
def two_tasks(tmp_path):
    folder = tmp_path / "two"
    folder.mkdir()
    made.manifest(folder, ["one", "two"], ["cospec"])
    plan = StoredRun(folder).manifest["plan"]
    return change_manifest(folder, plan=plan | {"methods": [load_method("cospec").model_dump(mode="json")]})


def test_figures_by_hand(two_tasks, tmp_path):
    spec = load_method("cospec")
    analysis = counterfactual(two_tasks, spec, 0, played(BY_HAND))
    kinds = analysis.kinds.set_index("kind")
    assert list(kinds.index) == list(KINDS)
    assert kinds.states.to_dict() == {ALL: 8, DRAFT: 2, TARGET: 3, RIGHT: 2, WRONG: 1}
    assert kinds.share.tolist() == [1, 0.25, 0.375, 0.25, 0.125]
    assert kinds.not_worse.tolist() == [5 / 8, 1, 0, 1, 1]
    assert kinds.kept.tolist() == pytest.approx([4 / 8, 1 / 2, 1 / 3, 1 / 2, 1])
    assert kinds.agreement.tolist() == pytest.approx([6 / 8, 1 / 2, 2 / 3, 1, 1])
    assert analysis.asymmetry.value == pytest.approx(1 / 2 - 1 / 3)
    assert math.isnan(analysis.asymmetry.low), "each kind stands in one document: many resamples lack it"
    tasks = analysis.tasks.set_index("task")
    assert tasks.states.to_dict() == {"one": 6, "two": 2} and tasks.agreement.to_dict() == {"one": 4 / 6, "two": 1}
    assert (analysis.states, analysis.documents, analysis.lost, analysis.graded) == (8, 3, 0, ["two"])
    path = tmp_path / "cells.csv"
    two_tasks.__dict__["plan"] = two_tasks.plan.model_copy(update={"methods": (spec,)})
    write_cells(path, cells(two_tasks, analysis))
    ours = {figure.key(""): figure for figure in published.read_figures(path)}
    (paper,) = published.papers(["cospec"])
    assert {figure.key("") for figure in paper.figures(3)} == set(ours)
    assert all(ours[figure.key("")].unit == figure.unit for figure in paper.figures(3))
    label = next(figure for figure in paper.figures(3) if figure.settings == {"category": DRAFT})
    assert float(ours[label.key("")].value) == 25
    bounded = [figure for figure in ours.values() if figure.low]
    assert bounded and all(float(one.low) <= float(one.value) <= float(one.high) for one in bounded)


def test_intervals_are_over_documents(two_tasks):
    """40 documents of two states each that go alike: as wide as of 40 draws, not of 80."""
    rng = np.random.default_rng(0)
    rows = [("one", i, 1.0, 0.0, kept) for i, kept in enumerate(rng.random(40) < 0.5) for _ in range(2)]
    rows += [("one", i, 0.0, 1.0, False) for i in range(40)]
    analysis = counterfactual(two_tasks, load_method("cospec"), 0, played(rows))
    one = analysis.kinds.set_index("kind").loc[DRAFT]
    width = 2 * 1.96 * math.sqrt(one.kept * (1 - one.kept) / 40)
    assert one.kept_high - one.kept_low == pytest.approx(width, rel=0.1)
    assert analysis.asymmetry.low > 0
    assert "the arbiter tells them apart" in counterfactual_view.sentences(analysis)[-1]
    turned = [(task, doc, target, draft, kept) for task, doc, draft, target, kept in rows]
    wrong = counterfactual(two_tasks, load_method("cospec"), 0, played(turned))
    assert "the arbiter keeps the wrong ones" in counterfactual_view.sentences(wrong)[-1]


def test_states_that_were_not_met_again_are_told(two_tasks):
    some = played(BY_HAND, unchecked=["mt_bench"])
    some.rows[0]["met"] = False
    analysis = counterfactual(two_tasks, load_method("cospec"), 0, some)
    assert (analysis.states, analysis.lost) == (7, 1) and analysis.kinds.states[1] == 1
    text = "\n".join(counterfactual_view.notes(analysis))
    assert "not met again, so in no figure: 1, whose" in text and "a judge model scores them: mt_bench" in text
    assert "graded scores, not right or wrong (two)" in text
    for row in some.rows:
        row["met"] = False
    with pytest.raises(UserError, match="no round came out as recorded"):
        counterfactual(two_tasks, load_method("cospec"), 0, some)


def test_another_round_is_no_state(run, players):
    """A draft or a preference that is not the recorded one is seen, on either branch."""
    (state, *_) = states(run, "always", 1)
    player = players["always"]
    other = list(state.drafted)
    other[state.position] += 1
    for changed in ({"drafted": other}, {"target": state.target + 1}, {"earlier": state.earlier + 1}):
        assert not player.play(type(state)(**(vars(state) | changed)))["met"]
    shifted = [*state.text[: state.start - 1], state.text[state.start - 1] + 1, *state.text[state.start :]]
    assert not player.play(type(state)(**(vars(state) | {"text": shifted})))["met"]


def test_a_stopped_analysis_goes_on(run, players, tmp_path, monkeypatch):
    player, chosen = players["always"], states(run, "always", 4)
    facts = facts_of(run, method_of(run, name("always")), 0)
    plays = []
    monkeypatch.setattr(player, "play", lambda state, own=player.play: plays.append(state.key) or own(state))

    def stop(count):
        if len(plays) == 3:
            raise KeyboardInterrupt

    folder = tmp_path / "states"
    with pytest.raises(KeyboardInterrupt):
        play_all(player, chosen, Store(folder, facts), 2, stop)
    assert len(Store(folder, facts).rows()) == len(plays) == 3, "a whole group, and what was left"
    rows = play_all(player, chosen, Store(folder, facts), 2)
    assert len(plays) == 4 == len(set(plays))
    assert rows == play_all(player, chosen, Store(tmp_path / "anew", facts), 2)
    assert play_all(player, chosen, Store(folder, facts), 2) == rows and len(plays) == 8
    with pytest.raises(UserError, match="branches of another run, method or seed; choose another --folder"):
        Store(folder, facts_of(run, method_of(run, name("always")), 1))
    spec = method_of(run, name("always"))
    changed = spec.model_copy(update={"settings": spec.settings | {"gamma": Setting(value=spec.values["gamma"] + 1)}})
    with pytest.raises(UserError, match="branches of another run, method or seed"):
        Store(folder, facts_of(run, changed, 0))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="is not a folder of branches, and is not empty"):
        Store(tmp_path / "full", facts)


def test_the_command(run, tmp_path):
    words = ("analyze", "counterfactual", run.folder)
    asked = ("--method", name("always"), "--states", 4, "--folder", tmp_path / "states")
    first = call(*words, *asked, "--batch", 3, "--out", tmp_path / "cells.csv")
    assert first.exit_code == 0, first.output
    text = " ".join(first.stdout.split())
    assert "8 texts to decode, about" in text and "in 4 of 4 states the branch that the run took" in text
    assert f"{name('always')} agrees with the better branch" in text
    assert max(map(len, first.stdout.splitlines()[2:])) <= 80
    assert len(list((tmp_path / "states").glob("*.parquet"))) == 2
    again = call(*words, *asked, "--format", "json")
    assert "4 of them played already; nothing to decode" in " ".join(again.stderr.split())
    facts = json.loads(again.stdout)
    assert facts["states"] == 4 == facts["kinds"][0]["states"] and facts["same"] == 4
    frame = pd.read_csv(tmp_path / "cells.csv", keep_default_na=False)
    assert set(frame.method) == {name("always")} and frame.value[3] == pytest.approx(
        100 * facts["kinds"][0]["agreement"]
    )
    assert "| all mismatches | 4 | 100.0 |" in call(*words, *asked, "--format", "md").stdout
    assert call(*words, *asked, "--format", "csv").stdout.startswith("analysis,table,row,column,value\n")
    assert "another run, method or seed" in call(*words, *asked, "--seed", 1).stderr
    assert "has no such method; it has vanilla, cospec[arbiter=never]" in call(*words, "--method", "sps").stderr


def changed(run, **facts) -> StoredRun:
    other = StoredRun(run.folder)
    other.__dict__["manifest"] = {**run.manifest, **facts}
    return other


def test_runs_that_cannot_be_asked(run, tmp_path):
    with pytest.raises(UserError, match="was imported"):
        method_of(changed(run, imported={}), None)
    with pytest.raises(UserError, match=r"records of version 5, and arbiters' decisions .* run it again"):
        method_of(changed(run, schema=5), None)
    sampled = changed(run, plan=run.manifest["plan"] | {"temperature": 1.0})
    with pytest.raises(UserError, match=r"is sampled, .* take a greedy run"):
        method_of(sampled, None)
    plain = changed(run, plan=run.manifest["plan"] | {"methods": run.manifest["plan"]["methods"][:1]})
    with pytest.raises(
        UserError, match="has no cospec method, and only these have an arbiter; it has vanilla; `specbench run"
    ):
        method_of(plain, None)
    with pytest.raises(UserError, match="met no mismatch of draft and target"):
        reached_states(run, "vanilla")
    other = run.manifest["models"] | {"draft": {"weights_hash": "other"}}
    with pytest.raises(UserError, match=r"decoded with different models .*weights of the draft"):
        Player(changed(run, models=other), method_of(run, None), 0)
    with pytest.raises(UserError, match="with another arbitrator or draft output"):
        Player(changed(run, inputs={}), method_of(run, None), 0)


def test_tasks_without_an_answer_to_check(run, players, monkeypatch):
    player = players["never"]
    result = reached_states(run, name("never"))
    tasks = result.task.drop_duplicates().tolist()
    assert player.checkable(result) == tasks and len(tasks) == 2
    own = player.score

    def judged(task, number):
        return own(task, number) if task == tasks[0] else scorer(player.tasks, task, number, "judge,none")

    monkeypatch.setattr(player, "score", judged)
    assert player.checkable(result) == tasks[:1]
    with pytest.raises(UserError, match=f"{tasks[1]} is scored by a judge model"):
        player.checkable(result[result.task == tasks[1]])
    player.hashes[tasks[0]][0], kept = "other", player.hashes[tasks[0]][0]
    with pytest.raises(UserError, match=f"the prompts of {tasks[0]} have changed since"):
        player.request(tasks[0], 0)
    player.hashes[tasks[0]][0] = kept
