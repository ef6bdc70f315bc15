"""Several drafts for each position: how they are drawn and merged, and that texts stay the target's own."""

import numpy as np
import oracle
import pytest
import torch
from gates import DEVICE, decode, lively_prompt, pair, without_looking
from tabled import Table, V, law, p_of_texts, warped
from watched import reads_of_tensors

from specbench import config
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling
from specbench.methods.trees.mdsd import MDSD, Settings
from specbench.methods.trees.rsd import Independent, merged

SHIPPED = config.load_method("mdsd").values
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
KINDS = pytest.mark.parametrize("replacement", (True, False), ids=("with", "without"))


def chosen(replacement: bool, drafts: int = 3, gamma: int = 3) -> Settings:
    return Settings(drafts=drafts, gamma=gamma, replacement=replacement)


def test_chains_are_merged_by_hand():
    """Three chains 5 7 1, 5 7 2 and 5 8 1: all of level 1 are 5, so level 2 follows the first of them, and so on.

    The second 7 is a leaf; what its chain says next, 2, follows the first 7.
    """
    assert merged([[5, 5, 5], [7, 7, 8], [1, 2, 1]]) == (-1, -1, -1, 0, 0, 0, 3, 3, 5)
    assert merged([[5, 6, 5], [7, 7, 7], [1, 1, 1]]) == (-1, -1, -1, 0, 1, 0, 3, 4, 3)
    assert merged([[1]]) == (-1,)


@pytest.mark.parametrize("rule", ("recursive", "kseq", "traversal"))
def test_equal_chains_share_their_tokens_unless_leaves_come_first(rule):
    """Only one token is likely enough each time, so three chains of two are one, with the others' tokens as leaves."""
    method = MDSD(Table(V, 1), Table(V, 2), Settings(drafts=3, gamma=2, replacement=True, rule=rule))
    draft = method.independent.propose([1, 2], 2, Sampling(1.0, top_k=1), torch.Generator(DEVICE).manual_seed(0))
    assert draft.parents == ((-1, -1, -1, 0, 1, 2) if rule == "traversal" else (-1, -1, -1, 0, 0, 0))


def sampled(replacement: bool, sampling: Sampling, drafts: int = 3, draws: int = 800) -> float:
    return p_of_texts(lambda target, draft: MDSD(target, draft, chosen(replacement, drafts)), sampling, draws)


class EachOnce(Independent):
    """Wrong: a token that was drawn before in its place is left out of the tree."""

    def propose(self, context, gamma, sampling, rng):
        draft = super().propose(context, gamma, sampling, rng)
        tokens, new = draft.tokens.tolist(), {-1: -1}
        for i, parent in enumerate(draft.parents):
            if (parent, tokens[i]) not in list(zip(draft.parents, tokens, strict=True))[:i]:
                new[i] = len(new) - 1
        kept = [i for i in new if i >= 0]
        return Draft(draft.tokens[kept], draft.probs[kept], tuple(new[draft.parents[i]] for i in kept))


class OneRow(Independent):
    """Wrong: says of every token that it was drawn from what the first chain was."""

    def propose(self, context, gamma, sampling, rng):
        draft = super().propose(context, gamma, sampling, rng)
        return Draft(draft.tokens, draft.probs[:: self.chains].repeat_interleave(self.chains, 0), draft.parents)


@pytest.mark.long
def test_wrong_rules_are_found(monkeypatch):
    assert sampled(True, Sampling(0.5), 4, 1000) > ALPHA
    for wrong in (EachOnce, OneRow):
        monkeypatch.setattr("specbench.methods.trees.mdsd.Independent", wrong)
        assert sampled(True, Sampling(0.5), 4, 1000) < ALPHA, wrong.__doc__


def test_independent_chains_and_their_leaves():
    """Chains are drawn from the draft model, each by itself; a repeated token has no children, and never passes."""
    session, k, gamma = Table(V, 2), 3, 2
    drafter, rng = Independent(session, k), torch.Generator(DEVICE).manual_seed(0)
    chains = np.zeros((V * V, V * V))  # of the first two
    repeated = 0
    for _ in range(1500):
        draft = drafter.propose([1, 2], gamma, Sampling(1.0), rng)
        tokens = draft.tokens.tolist()
        first, other, _ = (tokens[i] * V + tokens[k + i] for i in range(k))
        chains[first, other] += 1
        for i, parent in enumerate(draft.parents):
            twice = any(draft.parents[j] == parent and tokens[j] == tokens[i] for j in range(i))
            assert not (twice and i in draft.parents)
            repeated += twice
            before = 2 if parent < 0 else tokens[parent]
            expected = warped(session.row(before, 2 if parent < 0 else 3), Sampling(1.0))
            torch.testing.assert_close(draft.probs[i].cpu(), expected)
    one = law(session, [1, 2], 2, Sampling(1.0)).flatten()
    assert oracle.chi_square(chains, one[:, None] * one) > ALPHA
    assert repeated > 500
    target = Table(V, 1)
    method, leaves = MDSD(target, session, chosen(True)), 0
    for seed in range(40):
        _, rounds = decode(method, [1, 2], 12, Sampling(1.0), seed)
        for verdict in (round_.verdict for round_ in rounds if round_.verdict):
            at = list(zip(verdict.parents, verdict.drafted, strict=True))
            leaves += sum(place in at[:i] for i, place in enumerate(at))
            assert not any(at[i] in at[:i] for i in verdict.path)
    assert leaves > 100


def test_first_tokens_without_replacement_differ():
    drafter = MDSD(Table(V, 1), Table(V, 2), chosen(False)).drafter
    rng = torch.Generator(DEVICE).manual_seed(0)
    for _ in range(20):
        draft = drafter.propose([1, 2], 3, Sampling(1.0), rng)
        assert len(set(draft.tokens[:3].tolist())) == 3
        assert draft.parents == (-1, -1, -1, 0, 1, 2, 3, 4, 5)
    draft = drafter.propose([1, 2], 3, Sampling(1.0, top_k=2), rng)
    assert draft.parents == (-1, -1, 0, 1, 2, 3), "there are no three tokens"


@KINDS
def test_greedy_chains_are_behind_the_likeliest_first_tokens(replacement):
    target, draft = pair("llama")
    prompt, text = lively_prompt("llama", 12, 30)
    _, rounds = decode(MDSD(Session(target, "target"), Session(draft, "draft"), chosen(replacement)), prompt, 30)
    first = next(round_.verdict for round_ in rounds if round_.verdict)
    behind = oracle.next_logits(draft.cpu(), [*prompt, text[0]])
    assert first.drafted[:3] == behind.topk(3).indices.tolist()
    chain = [first.drafted[i] for i in (1, 4, 7)]
    assert chain[1:] == oracle.greedy(draft, [*prompt, text[0], chain[0]], 2)
    draft.to(DEVICE)


@KINDS
def test_the_host_waits_once_for_a_draft(monkeypatch, replacement):
    without_looking(monkeypatch)
    method = MDSD(*(Session(model, "") for model in pair("llama")), chosen(replacement))
    drafter = method.independent or method.drafter
    drafter.begin([1, 2, 3])
    reads = reads_of_tensors(monkeypatch)
    drafter.propose([1, 2, 3, 4], 3, Sampling(1.0), torch.Generator(DEVICE))
    assert reads == ["tolist"]


def test_the_variant_changes_the_replacement_alone():
    assert config.load_method("mdsd-iid").values == {**SHIPPED, "replacement": True}
