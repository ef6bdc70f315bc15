"""What an arbitrator owes to the target's tokens: by hand-made arbitrators, by the causal mask, and bad input."""

import io
import math
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from jobs import drawn_arbitrator
from screens import call

from specbench.config import UserError
from specbench.measure import loop
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun
from specbench_extras.arbitrator.analysis import ASIS, CHANGES, dependence
from specbench_extras.arbitrator.study import blocks, carry_out, decisions

VOCABULARY = 50
REJECTED, ACCEPTED, RESCUED, UNREAD = 0, 1, 2, 3
ROUNDS = pd.DataFrame(
    [
        {"round": 0, "committed": 1, "draft_tokens": None, "target_tokens": None, "decisions": None},
        {
            "round": 1,
            "committed": 3,
            "draft_tokens": [1, 2],
            "target_tokens": [11, 2],
            "decisions": [RESCUED, ACCEPTED],
        },
        {"round": 2, "committed": 3, "draft_tokens": [3, 4], "target_tokens": [3, 4], "decisions": [ACCEPTED] * 2},
        {
            "round": 3,
            "committed": 2,
            "draft_tokens": [5, 6, 7],
            "target_tokens": [15, 16, 17],
            "decisions": [RESCUED, REJECTED, UNREAD],
        },
    ]
)
ROUNDS = ROUNDS.map(lambda cell: torch.tensor(cell).numpy() if isinstance(cell, list) else cell)
TEXT = [9, 1, 2, 30, 3, 4, 31, 5, 16]


class ByHand:
    """Keeps what `keeps` says of the tokens that it reads and a position; notes what it read before."""

    least = 0.0

    def __init__(self, keeps):
        self.keeps, self.before, self.seen = keeps, [], []

    def begin(self, prompt):
        self.before = list(prompt)

    def read(self, tokens):
        self.before += tokens

    def logits_at(self, tokens, positions):
        self.seen.append(list(self.before))
        return [1.0 if self.keeps(tokens.tolist(), i) else -1.0 for i in positions]


def read(keeps, rounds=ROUNDS):
    reader = ByHand(keeps)
    listed = list(decisions(reader, [100, 101], TEXT, rounds, VOCABULARY, torch.Generator().manual_seed(0)))
    return reader, listed


def test_what_is_read_of_a_round():
    drafted, targets = torch.tensor([1, 2, 3]), torch.tensor([4, 2, 6])
    by_name = {
        name: (tokens.tolist(), at) for name, (tokens, at) in blocks(drafted, targets, 10, torch.Generator()).items()
    }
    (other, at) = by_name.pop("random")
    assert at == 0 and other[:3] == [1, 2, 3]
    assert all(0 <= one < 10 and one != t for one, t in zip(other[3:], [4, 2, 6], strict=True))
    assert by_name == {
        ASIS: ([1, 2, 3, 4, 2, 6], 0),
        "copied": ([1, 2, 3, 1, 2, 3], 0),
        "removed": ([1, 2, 3], 0),
        "swapped": ([4, 2, 6, 1, 2, 3], 3),
    }


def test_an_arbitrator_that_reads_only_the_draft_changes_nothing():
    """It keeps odd draft tokens, wherever they stand: 1 and 5 stay, 6 does not, as recorded."""
    reader, loaded = read(lambda tokens, i: tokens[i] % 2 == 1)
    assert [one["recorded"] for one in loaded] == [True, True, False]
    assert all(one[name] == one["recorded"] for one in loaded for name in (ASIS, *CHANGES))
    prompt = [100, 101]
    assert reader.seen == [[*prompt, 9]] * 5 + [[*prompt, *TEXT[:7]]] * 5, "all that precedes a round, for each reading"


def test_an_arbitrator_that_asks_for_the_target_changes_everything():
    """It keeps a token if the target's, 10 more, stands K places behind it, but 6 if it does not."""

    def keeps(tokens, i):
        other = tokens[i + len(tokens) // 2] if len(tokens) % 2 == 0 and i < len(tokens) // 2 else 0
        return (other == tokens[i] + 10) == (tokens[i] != 6)

    _, loaded = read(keeps)
    assert [one[ASIS] for one in loaded] == [one["recorded"] for one in loaded] == [True, True, False]
    assert not any(one[name] == one["recorded"] for one in loaded for name in CHANGES)


MADE = SimpleNamespace(
    plan=SimpleNamespace(
        pair=SimpleNamespace(name="made"), tasks=[SimpleNamespace(task="one"), SimpleNamespace(task="two")]
    ),
    sampling="greedy",
    folder="runs/made",
)


def rows(*decisions):
    """Of each decision: task, document, recorded, and the changes that turn it round."""
    return [
        {"task": task, "doc_id": doc, "recorded": kept, ASIS: kept}
        | {name: kept != (name in turned) for name in CHANGES}
        for task, doc, kept, turned in decisions
    ]


def test_shares_by_hand():
    """Three decisions in two texts of one task and one of another, of which one changes with random tokens alone."""
    cells = rows(
        ("one", 0, True, ["random"]), ("one", 0, True, []), ("one", 1, False, ["swapped"]), ("two", 0, True, [])
    )
    result = dependence(MADE, "m", 0, [*cells, {**cells[0], ASIS: False}])
    assert (result.documents, result.decisions, result.lost, result.kept) == (3, 4, 1, 0.75)
    shares = result.changes.set_index(["task", "change"])
    assert shares.share["one", "random"] == shares.share["one", "swapped"] == pytest.approx(1 / 3)
    assert shares.share["together", "random"] == 0.25 and shares.decisions["together", "random"] == 4
    # Wilson's of 0 with two texts: z² / (n + z²)
    assert shares.share["one", "removed"] == 0
    assert shares.share_high["one", "removed"] == pytest.approx(1.959964**2 / (2 + 1.959964**2))
    with pytest.raises(UserError, match="no decision came out as recorded"):
        dependence(MADE, "m", 0, [{**cells[0], ASIS: False}])


@pytest.fixture(scope="module")
def run(tmp_path_factory, pocket_weak) -> StoredRun:
    """Greedy CoSpec with an arbitrator drawn at random, by either mask, and with a coin."""
    folder = tmp_path_factory.mktemp("arbitrator") / "run"
    weights = drawn_arbitrator(folder.with_name("arbitrator.safetensors"), pocket_weak)
    settings = [f"cospec.arbitrator={weights}", "cospec.gamma=6", "cospec.threshold=0.5"]
    params = ["mask=hybrid,causal", "arbiter=trained,random:0.5"]
    plan = resolve_plan(["cospec"], "smoke", "pocket-weak", settings, "vanilla", 3, params=params)
    loop.execute(plan, folder, lambda _: True)
    return StoredRun(folder)


def named(run, **wanted):
    return next(
        spec.name
        for spec in run.plan.methods
        if spec.method == "cospec" and all(spec.values[key] == value for key, value in wanted.items())
    )


@pytest.mark.long
def test_a_causal_arbitrator_cannot_see_the_target(run):
    """The target's tokens stand behind the draft's, so a mask that looks back hides them: 0 % by construction."""
    result = carry_out(run, named(run, mask="causal", arbiter="trained"), 0, aside=True)
    assert result.decisions > 10 and result.lost == 0
    changed = result.changes.groupby("change").changed.max()
    assert changed["random"] == changed["copied"] == changed["removed"] == 0


@pytest.mark.long
def test_one_that_sees_them_decides_otherwise(run):
    result = carry_out(run, named(run, mask="hybrid", arbiter="trained"), 0, aside=True)
    assert result.decisions > 10 and result.lost == 0
    assert result.changes.groupby("change").changed.max().max() > 0


@pytest.mark.long
def test_the_command(run):
    name = named(run, mask="causal", arbiter="trained")
    printed = call("analyze", "arbitrator", str(run.folder), "--method", name).output
    assert "decides 0.0 % of mismatches differently" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    table = pd.read_csv(io.StringIO(call("analyze", "arbitrator", str(run.folder), "--format", "csv").stdout))
    assert not math.isnan(float(table[(table.row == 0) & (table.column == "share")].value.iloc[0]))


@pytest.mark.long
def test_an_arbiter_that_reads_nothing_is_refused(run):
    with pytest.raises(UserError, match="decides by rule or chance, and reads no tokens"):
        carry_out(run, named(run, arbiter="random:0.5"), 0, aside=True)
