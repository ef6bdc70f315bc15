"""Judge decoding: hand-worked rounds, a decoder without cache, the neutral setting, and head files."""

import math

import oracle
import pytest
import torch
from builders_engine import made, retold
from cases import architectures
from gates import GREEDY, decode, lively_prompt, sps
from gates import pair as models
from judging import assert_rounds, assert_same_rounds, judged
from refusals import one_line_error
from safetensors.torch import load_file, save_file
from watched import reads_of_tensors

from specbench import config
from specbench.config import UserError
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models import heads
from specbench.engine.models.heads import Head, find_head, fingerprint, hidden_size, read_head, write_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST, Session
from specbench.engine.types import Sampling
from specbench.methods.lossy.judge import Judge, Settings, build, shapes

SAMPLED = Sampling(1.0, top_p=0.9)
SHIPPED = config.load_method("judge").values


def random_head(width: int = 32, seed: int = 0) -> Head:
    weight = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    return Head("judge", {"weight": weight, "bias": torch.tensor(0.1)}, {})


def judge(architecture="llama", gamma=4, head=None, **changes) -> Judge:
    target, draft = models(architecture)
    chosen = config.validated(Settings, {**SHIPPED, "gamma": gamma, **changes}, "judge")
    return Judge(Session(target, "target"), ModelDrafter(Session(draft, "draft")), chosen, head or random_head())


# The head: w = (1, 2), b = -1. Logits of three tokens; the target's choices are 0, 1, 2, 0 and, as bonus, 2.
HEAD = Head("judge", {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor(-1.0)}, {})
LOGITS = [[3.0, 1, 1], [1.0, 2, 1], [0, 0, 1.0], [5.0, 4, 0], [0, 0, 9.0]]
# States behind the last committed token, then behind each drafted one: w·h + b = 99, -1, 0.5, 1, -0.2.
STATES = [[100.0, 0], [0, 0], [0.5, 0.5], [0, 1.0], [0.8, 0]]


@pytest.mark.parametrize(
    ("drafted", "threshold", "accepted", "token", "rescued"),
    [
        # d_1 = 0 matches, whatever its state says. d_2 = 0 does not: 0.5 > 0, kept. d_3 = 0: 1 > 0, kept. d_4 = 1: no.
        ([0, 0, 0, 1], 0.5, 3, 0, (1, 2)),
        ([0, 0, 0, 0], 0.5, 4, 2, (1, 2)),  # d_4 matches: all stand, the bonus follows
        ([1, 1, 2, 0], 0.5, 0, 0, ()),  # d_1 = 1: -1; the scan stops, though all behind it match
        ([0, 0, 0, 1], 0.65, 1, 1, ()),  # σ(0.5) = 0.622
        ([0, 1, 0, 1], 0.65, 3, 0, (2,)),  # d_2 matches; σ(1) = 0.731
        ([0, 0, 0, 1], 0.44, 4, 2, (1, 2, 3)),  # σ(-0.2) = 0.450
        ([1, 0, 0, 1], 0.0, 4, 2, (0, 1, 2, 3)),
        ([1, 0, 0, 1], 1.0, 0, 0, ()),
        ([0, 0], 0.5, 2, 2, (1,)),
    ],
)
def test_hand_worked_rounds(drafted, threshold, accepted, token, rescued):
    count = len(drafted)
    method = judge(head=HEAD, threshold=threshold)
    result = judged(method, LOGITS[: count + 1], drafted, states=STATES[: count + 1])
    assert (result.accepted, result.token, result.rescued) == (accepted, token, rescued)
    assert result.targets == [0, 1, 2, 0][:count]


def test_more_than_the_threshold_not_as_much():
    """σ(0) is exactly one half."""
    head = Head("judge", {"weight": torch.tensor([1.0, 0.0]), "bias": torch.tensor(0.0)}, {})
    for value, kept in ((0.0, 0), (1e-9, 1)):
        assert judged(judge(head=head), LOGITS[:2], [1], states=[[9.0, 9], [value, 0]]).accepted == kept


def test_sampled_rejections_go_to_the_head():
    """d = 1 has p = q / 2, so half of the draws reject it; a head that says yes keeps it always, the other one half."""
    logits, q = [[math.log(2.0), math.log(1.0), -40.0], [0, 0, 40.0]], [[0.0, 2 / 3, 1 / 3]]
    for state, shares in (([0.0, 1.0], {True: 1.0}), ([0.0, 0.0], {False: 0.5})):
        results = [judged(judge(head=HEAD), logits, [1], Sampling(1.0), q, i, [state] * 2) for i in range(400)]
        share = sum(result.accepted for result in results) / 400
        assert abs(share - next(iter(shares.values()))) < 0.08
        assert any(result.rescued for result in results) is next(iter(shares))
        assert all(result.token == 2 if result.accepted else result.token == 0 for result in results)
        assert all(result.confidences == pytest.approx([2 / 3]) for result in results), "q(d), not the head's score"


def reference(architecture: str, head: Head, prompt: list[int], count: int, gamma: int, threshold: float):
    """Rounds without a cache, every state from a forward of its own."""
    target, draft = oracle.tiny_pair(architecture)
    border, distances = math.log(threshold / (1 - threshold)), []

    def passes(text: list[int]) -> bool:
        with torch.no_grad():
            state = target.base_model(torch.tensor([text]), use_cache=False).last_hidden_state[0, -1]
        score = float(state @ head.tensors["weight"].double() + head.tensors["bias"].double())
        distances.append(abs(score - border))
        return 1 / (1 + math.exp(-score)) > threshold

    def scan(rows, drafted, text):
        rescued = []
        for i, token in enumerate(drafted):
            if token != oracle.best(rows[i]):
                if not passes(text + drafted[: i + 1]):
                    return oracle.Round(drafted, i, oracle.best(rows[i]), rescued)
                rescued.append(i)
        return oracle.Round(drafted, len(drafted), oracle.best(rows[-1]), rescued)

    rounds = oracle.rounds_by(scan, target, draft, prompt, count, gamma)
    assert min(distances) > 1e-4, "a score so near to the threshold proves nothing"
    return rounds


@architectures
def test_rounds_equal_a_decoder_without_cache(architecture):
    """Each mismatch is judged by the state behind the draft token itself, not by a neighbour's."""
    (prompt,) = oracle.prompts(1, length=9, seed=2)
    head, gamma = random_head(seed=1), 5
    first = oracle.greedy(oracle.tiny_pair(architecture)[0], prompt, 1)
    expected = reference(architecture, head, prompt + first, 16, gamma, 0.6)
    _, rounds = decode(judge(architecture, gamma, head, threshold=0.6), prompt, 200)
    assert_rounds(rounds, expected)
    assert sum(len(one.rescued) for one in expected) >= 3 and sum(one.accepted < gamma for one in expected) >= 3


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
@architectures
def test_a_threshold_of_one_is_speculative_sampling(architecture, sampling):
    method = judge(architecture, threshold=1)
    expected = assert_same_rounds(method, sps(architecture, 4, Lengths()), architecture, sampling, 60)
    _, rounds = decode(judge(architecture, threshold=0), lively_prompt(architecture, 12, 30)[0], 60, sampling, seed=5)
    assert [r.tokens for r in rounds] != [r.tokens for r in expected]
    assert all(r.verdict.accepted == 4 for r in rounds[1:])


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_one_copy_to_the_host_a_round(monkeypatch, sampling):
    method, copies = judge(head=HEAD), reads_of_tensors(monkeypatch)
    judged(method, LOGITS, [0, 0, 0, 1], sampling, [[1 / 3] * 3] * 4, states=STATES)
    assert copies == ["tolist"]


# Head files


@pytest.fixture
def pair() -> Pair:
    return made()


@pytest.fixture
def file(tmp_path, pair):
    path = tmp_path / "deep" / "judge.safetensors"
    write_head(path, "judge", random_head().tensors, pair, {"documents": 3})
    return path


def test_a_head_comes_back_and_its_hash_tells_it_apart(file, pair):
    head = read_head(file, "judge", pair, shapes(pair))
    assert head.trained == {"documents": 3}
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in random_head().tensors.items())
    assert head.hashes() == random_head().hashes() != random_head(seed=1).hashes()
    moved = Head("judge", {**head.tensors, "bias": head.tensors["bias"] + 1e-6}, {})
    assert moved.hashes() != head.hashes()


def test_build_takes_the_file_and_names_its_hash(file, pair):
    method = build(Settings(gamma=3, threshold=0.5, head=str(file)), pair, None)
    prompt, _ = lively_prompt("llama", 12, 30)
    assert not method.lossless and method.reach == 4 and method.inputs() == random_head().hashes()
    assert decode(method, prompt, 30)[0] == decode(judge("llama", 3), prompt, 30)[0]


def test_auto_is_what_ships_with_the_pair_or_an_error_that_tells_how_to_train(file, pair, monkeypatch):
    monkeypatch.setattr(heads, "SHIPPED", file.parent)
    with pytest.raises(UserError, match=r"specbench train --method judge --pair target=…,draft=… .*judge\.head=FILE"):
        find_head("auto", "judge", pair, shapes(pair))
    file.rename(file.with_name("judge-made.safetensors"))
    assert find_head("auto", "judge", pair, shapes(pair)).hashes() == random_head().hashes()


DEFECTS = {
    "missing": (lambda f: f.unlink(), "there is no head"),
    "empty": (lambda f: f.write_bytes(b""), "damaged"),
    "cut": (lambda f: f.write_bytes(f.read_bytes()[:-20]), "damaged"),
    "text": (lambda f: f.write_text("a head\n" * 9), "damaged"),
    "without metadata": (lambda f: save_file(load_file(f), f), "damaged"),
    "odd metadata": (lambda f: save_file(load_file(f), f, {"specbench": "[1]"}), "damaged"),
    "later": (lambda f: retold(f, version=2), "later version"),
    "of another kind": (lambda f: retold(f, kind="specdecpp"), "for specdecpp, not for judge"),
    "of another size": (lambda f: retold(f, hidden_size=64), "reads 64 values, but the target of made has 32"),
    "of another tokenizer": (lambda f: retold(f, tokenizer="0" * 16), "another tokenizer"),
    "of another target": (lambda f: retold(f, target="0" * 16, pair="else"), "trained on else.*different weights"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_head_that_does_not_fit_is_one_line(defect, file, pair):
    spoil, message = DEFECTS[defect]
    spoil(file)
    with one_line_error(str(file), match=message) as caught:
        read_head(file, "judge", pair, shapes(pair))
    assert defect == "later" or "specbench train --method judge" in str(caught.value)


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": torch.zeros(31), "bias": torch.tensor(0.0)},
        {"weight": torch.zeros(32)},
        {"weight": torch.full((32,), torch.nan), "bias": torch.tensor(0.0)},
    ],
)
def test_tensors_that_are_no_judge(tensors, file, pair):
    write_head(file, "judge", tensors, pair, {})
    with pytest.raises(UserError, match="damaged"):
        read_head(file, "judge", pair, shapes(pair))


def test_a_fingerprint_is_of_the_weights_and_not_of_their_type():
    target = oracle.tiny("llama").float()
    first = fingerprint(target)
    assert fingerprint(target.double()) == first == fingerprint(target.bfloat16())
    changed = oracle.tiny("llama").float()
    with torch.no_grad():
        changed.model.layers[1].mlp.down_proj.weight[3, 5] *= 1.1
    assert fingerprint(changed) != first
    assert {fingerprint(oracle.tiny(name)) for name in ("opt", "gemma2")}.isdisjoint({first})


def test_hidden_size_is_what_the_output_layer_reads():
    """OPT of 350 M projects its last state from 1024 to 512."""
    projected = oracle.tiny("opt", word_embed_proj_dim=16)
    session = Session(projected, "target")
    assert session.forward([1, 2], hidden=LAST).hidden.shape == (2, hidden_size(projected)) == (2, 16)
