"""CoSpec against a decoder without cache, against speculative sampling, and against laws worked out by hand."""

import functools
import itertools
import json

import naive_cospec as naive
import numpy as np
import oracle
import pytest
import torch
from cases import architectures, mostly_long
from cospec_models import (
    ADAPTER,
    COUNT,
    PROMPT,
    SHIPPED,
    Counted,
    cospec,
    learned,
    merged,
    middling,
    prompt_of,
    slow,
    slow_target,
    some,
)
from cospec_models import (
    arbitrator as arbitrator,  # for tests that import it from here
)
from gates import DEVICE, GREEDY, lively_prompt, pair

from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, worth
from specbench.engine.session import Session
from specbench.engine.types import Draft, Foresighted, Sampling, Scored
from specbench.methods.chains.sps import SpS
from specbench.methods.collaborative.cospec import Always, BranchOracle, CoSpec, Learned, Never, Random, Settings
from specbench.methods.collaborative.cospec_arbitrator import new_arbitrator

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
PLAIN = Sampling(1.0)


# The trained policy, greedily


@pytest.mark.long
@pytest.mark.parametrize("hybrid", (True, False), ids=("hybrid", "causal"))
@architectures
def test_trained_is_the_decoder_without_cache(architecture, hybrid):
    """The same rounds, and one forward of the arbitrator in those with a mismatch, none in the others."""
    prompt, judge = prompt_of(architecture), functools.partial(naive.logits, merged(architecture), hybrid=hybrid)
    kept, rejected, quiet_before, said, threshold = 0, 0, 0, set(), middling(architecture, judge)
    for gamma in (1, 2, 3, 4, 5, 6, 25):
        watch = Counted()
        result = some(cospec(architecture, gamma, learned(architecture, threshold, hybrid, watch)), prompt)
        wanted = slow(architecture).rounds(prompt, COUNT, gamma, naive.worked_out(judge, threshold))
        assert [one.tokens for one in result] == [one.committed for one in wanted]
        assert [one.accepted for one in result] == [len(one.committed) - 1 for one in wanted]
        assert [list(one.verdict.rescued) for one in result] == [one.kept for one in wanted]
        assert [one.verdict.drafted for one in result] == [one.drafted for one in wanted]
        for one, other in zip(result, wanted, strict=True):  # those that the arbitrator decided are told from the rest
            decisions = one.verdict.decisions()
            reached = [i for i, decision in enumerate(decisions) if decision in ("rescued", "rejected")]
            assert reached == [*other.kept, *([] if other.rejected is None else [other.rejected])]
        # Prompt; then what was committed since it last read, and the block.
        length, unread, calls = PROMPT, 1, [(PROMPT, 0)]
        for one in wanted:
            if one.mismatches:
                calls.append((unread + 2 * gamma, length))
                length, unread = length + unread, 0
                quiet_before += len(calls) > 2 and calls[-1][0] - 2 * gamma > gamma + 1
            unread += len(one.committed)
        assert watch.arbitrator() == calls
        kept += sum(len(one.kept) for one in wanted)
        rejected += sum(one.rejected is not None for one in wanted)
        said.update(token for one in wanted for token in one.committed)
    assert kept > 5 and rejected > 5 and quiet_before and len(said) > 12


class Checked(Learned):
    """Compares every answer with that of a fresh session that read the same text at once."""

    text: tuple[int, ...] = ()
    checked, worst, quiet, waited = 0, 0.0, 0, 0

    def begin(self, prompt):
        super().begin(prompt)
        self.text, self.waited = tuple(prompt), -1  # the prefill's token comes without a round

    def read(self, tokens):
        super().read(tokens)
        self.text += tuple(tokens)
        self.waited += 1

    def logits(self, block):
        output = super().logits(block)
        assert self.session.tokens == list(self.text) and len(self.session) == len(self.text)
        fresh = Learned(Session(self.session.model, "arbitrator", vocabulary=1), 0.5, self.hybrid)
        fresh.begin(list(self.text))
        expected = fresh.logits(block)
        assert len(output) == len(expected) == len(block.mismatches)
        self.worst = max([self.worst, *(abs(a - b) for a, b in zip(output, expected, strict=True))])
        self.checked, self.quiet, self.waited = self.checked + 1, self.quiet + (self.waited > 1), 0
        return output


@architectures
def test_a_kept_cache_is_a_fresh_one(architecture):
    """Over two texts, so that the second begins again; some rounds have no mismatch."""
    arbiter = learned(architecture, 0.4, kind=Checked)
    method = cospec(architecture, 2, arbiter)
    for prompt in (prompt_of(architecture), prompt_of(architecture)[::-1]):
        some(method, prompt, 60)
    assert arbiter.checked > 10 and arbiter.quiet
    assert arbiter.worst < 1e-5  # norms and softmax of these models are in float32


# Arbiters that need no training


@pytest.mark.long
@pytest.mark.parametrize("sampling", (GREEDY, PLAIN), ids=str)
@architectures
def test_keeping_none_is_speculative_sampling(architecture, sampling):
    """Token for token and verdict for verdict; a policy with threshold 1 likewise, however sure it is."""
    target, draft = pair(architecture)
    for gamma in (1, 3, 25):
        sps = SpS(Session(target, "target"), ModelDrafter(Session(draft, "draft")), gamma)
        expected = some(sps, prompt_of(architecture), 24, sampling, seed=7)
        others = [Never(), learned(architecture, 1.0)]
        if sampling.greedy:  # it draws, and so shifts what is drawn behind it
            others.append(Random(0.0))
            assert [t for one in expected for t in one.tokens][:23] == oracle.greedy(
                slow_target(architecture), prompt_of(architecture), 24
            )[1:]
        for arbiter in others:
            result = some(cospec(architecture, gamma, arbiter), prompt_of(architecture), 24, sampling, seed=7)
            assert result == expected
    assert cospec(architecture, 3, Never()).lossless
    assert not any(
        cospec(architecture, 3, other).lossless for other in (Always(), Random(0.0), others[1], BranchOracle())
    )


@architectures
def test_keeping_all_is_the_drafts_text_and_every_bonus(architecture):
    prompt = prompt_of(architecture)
    wanted = slow(architecture).rounds(prompt, COUNT, 4, lambda *block: lambda i: True)
    for arbiter in (Always(), Random(1.0), learned(architecture, 0.0)):
        result = some(cospec(architecture, 4, arbiter), prompt)
        assert [one.tokens for one in result] == [one.committed for one in wanted]
        assert [list(one.verdict.rescued) for one in result] == [one.mismatches for one in wanted]
    assert any(one.mismatches for one in wanted)


def test_equality_is_no_acceptance():
    """π = 1/2 exactly, since a new arbitrator says 0 (appendix C: kept when π exceeds the threshold)."""
    model = new_arbitrator(pair("llama")[1], ADAPTER, seed=0)
    for threshold, other in ((0.5, Never()), (0.499, Always())):
        arbiter = Learned(Session(model, "arbitrator", vocabulary=1), threshold)
        result, expected = (some(cospec("llama", 4, one), prompt_of("llama")) for one in (arbiter, other))
        assert result == expected
        assert any(one.verdict.rescued for one in result) == (threshold < 0.5)


# Laws at T > 0, on models whose next token hangs on the last one alone

P = torch.tensor([[2.0, 0.5, -1.0, 0.0], [-1.0, 1.0, 0.5, 0.2], [0.0, 0.3, 1.4, -2.0], [1.0, -1.0, 0.1, 0.6]])
Q = torch.tensor([[0.1, 1.5, 0.0, -1.0], [1.2, 0.0, -0.5, 0.7], [-0.8, 1.0, 0.4, 0.9], [0.0, 0.8, -1.5, 1.1]])


class Table:
    """A session of a model that is a table of logits [V, V]."""

    trees = True
    device = torch.device("cpu")

    def __init__(self, rows):
        self.rows = rows.double()

    def restart(self, prompt, *_):
        return Scored(self.rows[prompt[-1:]])

    def catch_up(self, context, hidden=()):
        return Scored(self.rows[context[-1:]])

    def forward(self, tokens, parents=None, hidden=()):
        return Scored(self.rows[tokens])

    def draft_chain(self, context, count, sampling, rng): ...

    def keep(self, start, path): ...


def three_tokens(arbiter, candidates, p_kept, sampling=PLAIN, gamma=3, texts=1500):
    """P-value of what follows the prefill's token, a 0, where each token is q's with chance `p_kept`, else p's.

    A draft's token that is kept, or equal to the target's draw, is a draw of q where it is kept all the same: so each
    token of a round is one of q with chance P and one of p otherwise. No bonus is among three tokens of γ = 3.
    """
    first = torch.full_like(P, -50.0)
    first[:, 0] = 0  # behind the prompt
    p, q = (torch.stack([oracle.warp(row, sampling.temperature, sampling.top_k) for row in x]).numpy() for x in (P, Q))
    mixed = p_kept * q + (1 - p_kept) * p
    law = np.einsum("i,ij,jk->ijk", mixed[0], mixed, mixed)

    class Target(Table):
        def restart(self, prompt, *_):
            return Scored(first[:1])

    settings = Settings(**{**SHIPPED, "gamma": gamma, "candidates": candidates})
    method = CoSpec(Target(P), ModelDrafter(Table(Q)), settings, arbiter, {})
    rng, counts = torch.Generator().manual_seed(3), np.zeros((4, 4, 4))
    for _ in range(texts):
        said = list(itertools.islice((t for step in method.rounds([1], sampling, rng) for t in step.tokens), 4))
        counts[tuple(said[1:])] += 1
    return oracle.chi_square(counts, law)


@mostly_long("candidates", ("coupled", "independent"), ("coupled",))
@mostly_long(
    "arbiter, p_kept", [(Never(), 0.0), (Random(0.35), 0.35), (Always(), 1.0)], lambda arbiter, p_kept: 0 < p_kept < 1
)
def test_sampled_texts_follow_their_law(arbiter, p_kept, candidates):
    assert three_tokens(arbiter, candidates, p_kept) > ALPHA
    if p_kept == 0:
        assert three_tokens(arbiter, candidates, 0.0, Sampling(0.7, top_k=3), gamma=1) > ALPHA  # any bonus is p's


@pytest.mark.long
def test_wrong_laws_are_found(monkeypatch):
    assert three_tokens(Random(0.35), "coupled", 0.65, texts=700) < ALPHA
    assert three_tokens(Random(0.1), "independent", 0.0) < ALPHA
    monkeypatch.setattr("specbench.methods.collaborative.cospec.pick", lambda probs, rng: probs.argmax(-1))
    assert three_tokens(Never(), "independent", 0.0, texts=300) < ALPHA


class Spy(Always):
    def keeps(self, block, rng):
        self.block = block
        return super().keeps(block, rng)


@pytest.mark.parametrize("candidates", ("coupled", "independent"))
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.6, top_k=3)), ids=str)
def test_pairs_of_candidates_follow_their_law(candidates, sampling):
    """(d, t) over many independent rows: t is a draw of p, and equals d with chance Σ min(p, q) where coupled."""
    count = 20_000
    p, q = (oracle.warp(rows[0], sampling.temperature, sampling.top_k) for rows in (P, Q))
    rng = torch.Generator(DEVICE).manual_seed(1)
    drafted = torch.multinomial(q, count, replacement=True, generator=torch.Generator().manual_seed(2))
    logits = P[:1].double().expand(count + 1, 4).to(DEVICE)
    arbiter = Spy()
    settings = Settings(**{**SHIPPED, "candidates": candidates})
    method = CoSpec(Table(P), ModelDrafter(Table(Q)), settings, arbiter, {})
    draft = Draft(drafted.to(DEVICE), q.expand(count, 4).to(DEVICE))
    verdict = method.accept(draft, Scored(logits), sampling, rng)
    block = arbiter.block
    assert block.drafted == drafted.tolist() and block.tokens.tolist() == [*block.drafted, *block.targets]
    differing = [i for i, (d, t) in enumerate(zip(block.drafted, block.targets, strict=True)) if d != t]
    assert block.mismatches == differing == list(verdict.rescued) and verdict.accepted == count
    counts = np.zeros((4, 4))
    np.add.at(counts, (block.drafted, block.targets), 1)
    rest = (p - q).clamp(min=0)
    keep = torch.where(q > 0, (p / q).clamp(max=1), torch.zeros(()).double())
    coupled = q[:, None] * (torch.diag(keep) + (1 - keep)[:, None] * rest / rest.sum())
    law = coupled if candidates == "coupled" else q[:, None] * p
    torch.testing.assert_close(coupled.sum(0), p)
    torch.testing.assert_close(coupled.diagonal().sum(), torch.minimum(p, q).sum())
    assert oracle.chi_square(counts, law.numpy()) > ALPHA
    assert oracle.chi_square(counts.sum(0), p.numpy()) > ALPHA
    assert oracle.chi_square(counts, (coupled + q[:, None] * p - law).numpy()) < ALPHA  # the other way's law


def test_independent_candidates_are_not_those_of_speculative_sampling():
    coupled, independent = (
        [one.tokens for one in some(cospec("llama", 3, Never(), how), prompt_of("llama"), 30, Sampling(1.0))]
        for how in ("coupled", "independent")
    )
    assert coupled != independent
    assert some(cospec("llama", 3, Never(), "independent"), prompt_of("llama")) == some(
        cospec("llama", 3, Never()), prompt_of("llama")
    )


# The oracle


def table(prompt, answer):
    """Something that hangs on every token and its place; equal for both branches now and then."""
    return sum((i + 3) * token for i, token in enumerate(answer)) % 3


@mostly_long("architecture", ("llama", "gemma2"), ("gemma2",))
def test_oracle_keeps_what_is_not_worth_less(architecture):
    prompt, seen = prompt_of(architecture), []

    def begin(context, drafted, targets):
        def keep(i):
            before = [*context[len(prompt) :], *drafted[:i]]
            ours, theirs = table(prompt, [*before, drafted[i]]), table(prompt, [*before, targets[i]])
            seen.append((ours > theirs) - (ours < theirs))
            return ours >= theirs

        return keep

    def utility(given, answer):
        assert list(given) == prompt
        return table(given, answer)

    method = cospec(architecture, 4, BranchOracle())
    assert isinstance(method, Foresighted)
    for _ in range(2):  # a second text begins again
        method.set_utility(utility)
        result = some(method, prompt, 60)
        wanted = slow(architecture).rounds(prompt, 60, 4, begin)
        assert [one.tokens for one in result] == [one.committed for one in wanted]
        assert [list(one.verdict.rescued) for one in result] == [one.kept for one in wanted]
    assert {-1, 0, 1} == set(seen)


def test_oracle_must_be_told():
    with pytest.raises(ValueError, match="only `specbench run` does that"):
        some(cospec("llama", 4, BranchOracle()), prompt_of("llama"), 60)


def test_worth_is_the_score_of_the_greedy_completion():
    """The text is the answer's tokens and those that follow; cut at its length, and behind an end token."""
    prompt, text = lively_prompt("llama", PROMPT, 40)
    target = Session(pair("llama")[0], "target")
    ends = text[14]
    length = text.index(ends)

    def scored(answer, limit, eos=frozenset()):
        texts = []
        utility = worth(target, lambda: Ending(Limits(limit, eos), json.dumps), lambda t: texts.append(t) or 0.25)
        assert utility(prompt, answer) == 0.25
        return json.loads(texts[0])

    assert scored(text[:5], 20) == text[:20]
    other = [(text[0] + 1) % 96]
    assert scored(other, 9) == other + oracle.greedy(slow_target("llama"), prompt + other, 8)
    assert scored(text[:5], 40, frozenset({ends})) == text[:length]
    assert scored(text[:20], 40, frozenset({ends})) == text[:length]
    assert scored(text[:20], 8) == text[:8]


@pytest.mark.parametrize("gamma", (1, 4))
def test_reach_is_enough(gamma):
    """The text, a block and as many more as the reach counts beyond what is fed: its convention is that of SpS."""
    watch, most, length = Counted(), 0, PROMPT
    method = cospec("llama", gamma, learned("llama", 0.5, watch=watch))
    for step in itertools.islice(method.rounds(prompt_of("llama"), GREEDY, torch.Generator(DEVICE)), 20):
        most = max([most, *(width + context - length for width, context in watch.arbitrator())])
        length += len(step.tokens)
        watch.forwards.clear()
    assert most == 2 * gamma == method.reach - 1
