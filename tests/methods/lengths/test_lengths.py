"""Draft lengths: each policy against a slow second implementation of its rule, and what it may never change."""

import math
import types
from itertools import islice

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from cases import mostly_long
from gates import DEVICE, GREEDY, csd, decode, network, pair, policies, random_head, sps
from law import two_tokens
from recalled import recalled
from torch import nn
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.session import LAST, Session
from specbench.engine.types import Sampling, Verdict
from specbench.methods.chains.sps import SpS
from specbench.methods.lengths.confidence import Confidence
from specbench.methods.lengths.cumulative import Cumulative
from specbench.methods.lengths.entropy import Entropy
from specbench.methods.lengths.heuristic import Heuristic
from specbench.methods.lengths.oracle import Oracle
from specbench.methods.lengths.specdecpp import AcceptanceHead, Predicted, features
from specbench_extras.bandit.bandit import Bandit
from specbench_extras.specserve.specserve import Efficiency

ROUNDS = 14
VOCABULARY = 8
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


class Slow:
    """The rules again, from their descriptions: whole contexts, no cache, one list of what was drafted."""

    def __init__(self, architecture: str, context: list[int]) -> None:
        self.target, self.draft = pair(architecture)
        self.context = context

    def q(self, drafted: list[int]) -> list[float]:
        return oracle.warp(oracle.next_logits(self.draft, [*self.context, *drafted]), 1.0).tolist()

    def state(self, drafted: list[int]) -> torch.Tensor:
        """The draft model's last hidden state behind the last token."""
        ids = torch.tensor([[*self.context, *drafted]])
        return self.draft(ids, use_cache=False, output_hidden_states=True).hidden_states[-1][0, -1]

    def draw(self, stop, longest: int) -> list[int]:
        """Greedy draft tokens until `stop(drafted)`, at most `longest`."""
        drafted: list[int] = []
        while len(drafted) < longest:
            drafted.append(oracle.best(oracle.next_logits(self.draft, [*self.context, *drafted])))
            if stop(drafted):
                break
        return drafted

    def verify(self, drafted: list[int]) -> list[int]:
        rows = [oracle.next_logits(self.target, [*self.context, *drafted[:i]]) for i in range(len(drafted) + 1)]
        result = oracle.sps_scan(rows, drafted)
        return [*drafted[: result.accepted], result.token]


def slow_rounds(architecture: str, prompt: list[int], rule, longest: int) -> list[list[int]]:
    """What is drafted in each round; `rule(slow, drafted)` says whether the draft ends there."""
    context = [*prompt, *oracle.greedy(pair(architecture)[0], prompt, 1)]
    results = []
    for _ in range(ROUNDS):
        slow = Slow(architecture, context)
        results.append(slow.draw(lambda drafted, slow=slow: rule(slow, drafted), longest))
        context = [*context, *slow.verify(results[-1])]
    return results


def confidences(slow: Slow, drafted: list[int]) -> list[float]:
    return [slow.q(drafted[:i])[token] for i, token in enumerate(drafted)]


def torch_head(head: AcceptanceHead) -> nn.Module:
    """The head as the official code has it: residual blocks, then two classes."""

    class Block(nn.Module):
        def __init__(self, weight, bias):
            super().__init__()
            self.linear = nn.Linear(*weight.shape)
            self.linear.weight.data, self.linear.bias.data = weight, bias

        def forward(self, x):
            return x + nn.SiLU()(self.linear(x))

    last = nn.Linear(head.out_weight.shape[1], 2)
    last.weight.data, last.bias.data = head.out_weight, head.out_bias
    blocks = [Block(head.blocks_weight[i % len(head.blocks_weight)], head.blocks_bias[0]) for i in range(head.depth)]
    for i, block in enumerate(blocks):
        block.linear.bias.data = head.blocks_bias[i % len(head.blocks_bias)]
    return nn.Sequential(*blocks, last).requires_grad_(False)


def accepted(slow: Slow, architecture: str, drafted: list[int]) -> list[float]:
    """The head's probability of each drafted token, from the state behind it."""
    net = torch_head(random_head(pair(architecture)[1]))
    return [float(net(slow.state(drafted[: i + 1]).float()).softmax(-1)[1]) for i in range(len(drafted))]


def falls(chances: list[float], cost: float) -> bool:
    """True if one more token, as likely as the last one, promises fewer tokens per time."""
    now = 1 + sum(math.prod(chances[: i + 1]) for i in range(len(chances)))
    more = now + math.prod(chances) * chances[-1]
    return more / (1 + cost * (len(chances) + 1)) < now / (1 + cost * len(chances))


def chosen(slow: Slow, first: int) -> int:
    """The length that `network` likes best after a first token."""
    q = slow.q([])
    signal = q[first] / 2 - sum(x * math.log(x) for x in q if x)
    return (6, 4, 2, 1)[sum(signal > bound for bound in (1.8, 2.4, 3.0))]


RULES = {
    "confidence": lambda slow, name, d: confidences(slow, d)[-1] < 0.15,
    "cumulative": lambda slow, name, d: len(d) >= 2 and math.prod(confidences(slow, d)) < 0.01,
    "entropy": lambda slow, name, d: -sum(x * math.log(x) for x in slow.q(d[:-1]) if x) > 2.8,
    "specserve": lambda slow, name, d: falls(confidences(slow, d), cost=0.08),
    "speckv": lambda slow, name, d: len(d) >= chosen(slow, d[0]),
    # The last token is not scored: only those before it are known when the draft has to be ended.
    "specdecpp": lambda slow, name, d: 1 - math.prod(accepted(slow, name, d)[:-1]) > 0.6,
}


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference decodes on the CPU")
@mostly_long("rule", RULES, ("confidence", "entropy", "specdecpp"))
@mostly_long("architecture", ("llama", "gemma2"), ("gemma2",))
def test_drafts_end_where_the_rule_says(architecture, rule):
    (prompt,) = oracle.prompts(1, length=9, seed=5)
    expected = slow_rounds(architecture, prompt, lambda slow, d: RULES[rule](slow, architecture, d), longest=6)
    _, rounds = decode(sps(architecture, 6, policies(architecture)[rule]), prompt, 200)
    assert [round_.verdict.drafted for round_ in rounds[1 : ROUNDS + 1]] == expected
    assert len({len(draft) for draft in expected}) >= 3


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference decodes on the CPU")
def test_predictions_are_those_of_the_tokens_themselves():
    """Token by token: the head's value belongs to the token it was read behind, q(d) to the token drawn."""
    (prompt,) = oracle.prompts(1, length=9, seed=5)
    scored = 0
    for rule, one_by_one in (("specdecpp", lambda slow, d: accepted(slow, "llama", d)), ("confidence", confidences)):
        text, rounds = decode(sps("llama", 6, policies("llama")[rule]), prompt, 60)
        context = [*prompt, text[0]]
        for round_ in rounds[1:-1]:
            drafted, result = round_.verdict.drafted, round_.verdict.predictions
            expected = one_by_one(Slow("llama", context), drafted)
            if rule == "specdecpp":
                assert math.isnan(result[-1])
                expected, result = expected[:-1], result[:-1]
                scored += len(result)
            assert result == pytest.approx(expected, abs=1e-4)
            context += round_.tokens
    assert scored >= 10


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference decodes on the CPU")
@pytest.mark.parametrize("sampling", (GREEDY, Sampling(0.7, top_k=30)), ids=str)
def test_a_head_that_reads_q_gets_that_of_its_own_token(sampling):
    """Greedy drafts have the plain softmax's q."""
    (prompt,) = oracle.prompts(1, length=9, seed=5)
    head = random_head(pair("llama")[1], more=1)
    net, scored = torch_head(head), 0
    text, rounds = decode(sps("llama", 6, Predicted(head, 0.9, 1, {}, confident=True)), prompt, 60, sampling)
    context = [*prompt, text[0]]
    for round_ in rounds[1:-1]:
        drafted, slow = round_.verdict.drafted, Slow("llama", context)
        for i, token in enumerate(drafted[:-1]):
            logits = oracle.next_logits(slow.draft, [*context, *drafted[:i]])
            q = float(oracle.warp(logits, sampling.temperature or 1.0, sampling.top_k)[token])
            read = torch.cat([slow.state(drafted[: i + 1]), torch.tensor([math.log(q / (1 - q))])])
            assert round_.verdict.predictions[i] == pytest.approx(float(net(read.float()).softmax(-1)[1]), abs=1e-4)
            scored += 1
        context += round_.tokens
    assert scored >= 10


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference decodes on the CPU")
def test_a_policy_sees_the_state_after_the_token_before_its_own():
    """Of a first token too, for which the draft reads two where the last draft was accepted whole."""
    seen: list[torch.Tensor] = []

    class Seeing(Lengths):
        looks, hidden = True, LAST

        def enough(self, step, token):
            seen.append(token.hidden)
            return False

    (prompt,) = oracle.prompts(1, length=9, seed=5)
    drafter, context = ModelDrafter(Session(pair("llama")[1], "draft"), Seeing()), [*prompt, 3]
    drafter.begin(prompt)
    for _ in range(2):
        seen.clear()
        drafted = drafter.propose(context, 3, GREEDY, torch.Generator(DEVICE)).tokens.tolist()
        slow = Slow("llama", context)
        expected = torch.stack([slow.state(drafted[:i]) for i in range(3)])
        torch.testing.assert_close(torch.stack(seen), expected, rtol=1e-5, atol=1e-4)
        context = [*context, *drafted, 4]


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference decodes on the CPU")
def test_confidences_are_q_of_the_drawn_tokens():
    (prompt,) = oracle.prompts(1, length=9)
    text, rounds = decode(sps("llama", 3, Lengths()), prompt, 30, Sampling(0.8, top_k=20))
    context = [*prompt, text[0]]
    for round_ in rounds[1:-1]:
        for i, token in enumerate(round_.verdict.drafted):
            logits = oracle.next_logits(pair("llama")[1], [*context, *round_.verdict.drafted[:i]])
            assert round_.verdict.confidences[i] == pytest.approx(float(oracle.warp(logits, 0.8, 20)[token]), abs=1e-4)
        context += round_.tokens
    assert decode(sps("llama", 3, Lengths()), prompt, 9)[1][1].verdict.confidences is None


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in policies("llama") if name != "oracle"])
def test_sampled_texts_follow_the_target_whatever_the_policy(name):
    """A stop may depend on the drafted token itself; the text must not."""
    target, draft = (oracle.tiny("llama", seed=seed, vocab=VOCABULARY).to(DEVICE) for seed in (1, 2))
    lengths = {
        "confidence": Confidence(0.3, 1),
        "cumulative": Cumulative(0.3, 1),
        "entropy": Entropy(1.2, 1),
        "specdecpp": Predicted(random_head(draft), 0.4, 1, {}),
        "speckv": network((3, 2, 1), (0.9, 1.5)),
        "specserve": Efficiency(0.4, 1.0, 1),
        "heuristic": Heuristic(2),
        "bandit": Bandit((1, 2, 3), 0.2, 1.0),
    }[name]
    drafter = ModelDrafter(recalled(draft, "draft"), lengths, eos_ids=frozenset({3}))
    for sampling in (Sampling(1.0), Sampling(0.8, top_k=5))[: 2 if name == "specdecpp" else 1]:
        assert two_tokens(SpS(recalled(target, "target"), drafter, 3), target, sampling) > ALPHA


def test_a_draft_that_drops_its_unlikely_token_is_found_out():
    """Wrong: what is unlikely is not proposed at all, so the target never gets to judge it by the right q."""

    class Dropping(ModelDrafter):
        def propose(self, context, gamma, sampling, rng):
            draft = super().propose(context, gamma, sampling, rng)
            q = draft.probs.gather(-1, draft.tokens[:, None])[:, 0]
            kept = int((q > 0.3).cumprod(0).sum())
            return type(draft)(draft.tokens[:kept], draft.probs[:kept])

    target, draft = (oracle.tiny("llama", seed=seed, vocab=VOCABULARY).to(DEVICE) for seed in (1, 2))
    method = SpS(recalled(target, "target"), Dropping(recalled(draft, "draft")), 2)
    assert two_tokens(method, target, Sampling(1.0)) < ALPHA


def test_a_draft_ends_behind_an_end_token():
    (prompt,) = oracle.prompts(1, length=9)
    target, draft = pair("llama")
    plain = decode(SpS(Session(target, "target"), ModelDrafter(Session(draft, "draft")), 6), prompt, 60)[1]
    end = plain[2].verdict.drafted[2]
    drafter = ModelDrafter(Session(draft, "draft"), eos_ids=frozenset({end}))
    drafts = [step.verdict.drafted for step in decode(SpS(Session(target, "target"), drafter, 6), prompt, 60)[1][1:]]
    assert any(len(draft) < 6 for draft in drafts)
    for one in drafts:
        assert end not in one[:-1] and (len(one) == 6 or one[-1] == end)


def test_heuristic_by_hand_and_afresh_for_each_text():
    lengths = Heuristic(5)
    for _ in range(2):
        lengths.begin([1])
        results = []
        for accepted_tokens in (5, 7, 3, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1):
            results.append(lengths.most(20, 10))
            lengths.observe(verdict(accepted_tokens, results[-1]))
        # +2 while all stand, -1 otherwise, never below 1, and +2 again at the end.
        assert [*results, lengths.most(20, 10)] == [5, 7, 9, 8, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 3]
    assert lengths.most(2, 10) == 2


def test_a_policy_is_told_what_became_of_its_drafts():
    """The schedule by hand, of what the rounds of a text say was accepted."""
    (prompt,) = oracle.prompts(1, length=9)
    _, rounds = decode(sps("llama", 9, Heuristic(3)), prompt, 60)
    length, results = 3, []
    for round_ in rounds[1:]:
        assert round_.verdict is not None and len(round_.verdict.drafted) == min(length, 9)
        results.append(length)
        length = length + 2 if round_.verdict.accepted == min(length, 9) else max(1, length - 1)
    assert len(set(results)) > 2


def test_heuristic_goes_on_as_transformers_does():
    """Its `update_candidate_strategy`, after drafts of any length of which any number stood."""
    rng = np.random.default_rng(3)
    lengths = Heuristic(5)
    lengths.begin([1])
    settings = types.SimpleNamespace(num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0)
    theirs = types.SimpleNamespace(num_assistant_tokens=5, assistant_generation_config=settings)
    for _ in range(300):
        drafted = int(rng.integers(1, theirs.num_assistant_tokens + 1))  # an end token ends a draft
        stood = drafted if rng.random() < 0.4 else int(rng.integers(drafted + 1))
        scores = torch.zeros(1, drafted + 1, 1)
        AssistedCandidateGenerator.update_candidate_strategy(theirs, torch.zeros(1, 1), scores, stood)
        lengths.observe(verdict(stood, drafted))
        assert lengths.length == theirs.num_assistant_tokens


def test_heuristic_never_drafts_nothing():
    """Of one token a refusal leaves one, again and again: with none there is nothing that could stand."""
    lengths = Heuristic(2)
    lengths.begin([1])
    results = []
    for _ in range(4):
        results.append(lengths.most(20, 10))
        lengths.observe(verdict(0, results[-1]))
    assert [*results, lengths.most(20, 10)] == [2, 1, 1, 1, 1]


def verdict(stood: int, drafted: int) -> Verdict:
    return Verdict(tuple(range(stood)), 0, [1] * drafted, [1] * drafted, [1.0] * drafted)


@mostly_long("architecture", ("llama", "gemma2"), ("gemma2",))
def test_the_oracle_discards_nothing_and_no_policy_needs_fewer_rounds(architecture):
    """Theorem 4.1, against a count by the draft's own choices along the text."""
    (prompt,) = oracle.prompts(1, length=9, seed=2)
    count = 40
    target, draft = pair(architecture)
    known = Oracle(Session(target, "target"), Session(draft, "draft"), frozenset(), count)
    text, rounds = decode(sps(architecture, 64, known), prompt, count)
    done = [round_.verdict for round_ in rounds[1:-1]]
    assert all(one.accepted == len(one.drafted) for one in done)
    if DEVICE == "cpu":
        wrong = [i for i in range(1, count) if oracle.greedy(draft, [*prompt, *text[:i]], 1)[0] != text[i]]
        # A round for every disagreement, and one for what follows the last.
        assert len(rounds) - 1 == len(wrong) + (wrong[-1] != count - 1)
        assert 3 <= len(wrong) <= count - 8
    for name, lengths in policies(architecture).items():
        assert len(decode(sps(architecture, 6, lengths), prompt, count)[1]) >= len(rounds), name


def test_the_oracle_drafts_on_behind_what_it_knows_and_refuses_to_sample():
    (prompt,) = oracle.prompts(1, length=9, seed=2)
    target, draft = pair("llama")
    method = sps("llama", 4, Oracle(Session(target, "target"), Session(draft, "draft"), frozenset(), 10))
    text, rounds = decode(method, prompt, 40)
    assert text == decode(sps("llama", 1, Lengths()), prompt, 40)[0]
    assert any(round_.verdict.accepted < len(round_.verdict.drafted) for round_ in rounds[1:])
    lengths = method.drafter.lengths
    assert [lengths.most(4, len(prompt) + count) for count in (10, 11, 30)] == [4, 4, 4]  # it knows 10 tokens
    with pytest.raises(ValueError, match="greedy texts only"):
        method.check(Sampling(1.0))
    method.check(GREEDY)


def test_a_shared_block_is_gone_through_depth_times():
    head = random_head(pair("llama")[1], depth=1)
    shared = AcceptanceHead(head.blocks_weight, head.blocks_bias, head.out_weight, head.out_bias, depth=3)
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for one, depth in ((head, 1), (shared, 3), (random_head(pair("llama")[1], depth=4), 4)):
        classes = torch_head(one)(states)
        torch.testing.assert_close(one.log_odds(states), classes[:, 1] - classes[:, 0])
        results = [one.probability(state) for state in states]
        assert results == pytest.approx(classes.softmax(-1)[:, 1].tolist(), abs=1e-6)
        assert one.depth == depth and np.std(results) > 0.01
    with pytest.raises(ValueError, match="2 blocks cannot make a depth of 3"):
        AcceptanceHead(head.blocks_weight.expand(2, 32, 32), head.blocks_bias, head.out_weight, head.out_bias, 3)


@pytest.mark.parametrize("name", ("sps", "csd", "lossy", "fly", "judge", "reflective"))
def test_every_method_with_a_draft_model_takes_a_length(name, pocket):
    """The same policy as in the method of its name: its drafts are no longer all of one length."""
    prompt = pocket.tokenizer("Problem: Ann has 3 apples and buys 14 more.")["input_ids"]
    changes = {"gamma": 12, "length": "confidence", **({"ngram": False} if name == "fly" else {})}
    method = build(pocket, name, **changes)
    assert isinstance(method.drafter.lengths, Confidence) and method.drafter.eos_ids == pocket.eos_ids
    rounds = list(islice(method.rounds(prompt, GREEDY, torch.Generator()), 1, 12))
    lengths = {len(round_.verdict.drafted) for round_ in rounds}
    assert len(lengths) >= 3 and max(lengths) <= 12
    assert all(
        round_.verdict.predictions[i] >= 0.4 for round_ in rounds for i in range(len(round_.verdict.drafted) - 1)
    )


def test_what_a_policy_learns_is_kept_by_the_method():
    target, draft = pair("llama")
    method = csd(target, draft, 4, {})
    method.drafter.lengths = Bandit((1, 2, 4), 0.2, 1.0)
    (prompt,) = oracle.prompts(1, length=9)
    decode(method, prompt, 30)
    state = method.state()
    assert state[1]["tokens"] > 10
    twin = csd(target, draft, 4, {})
    twin.drafter.lengths = Bandit((1, 2, 4), 0.2, 1.0)
    twin.restore(state)
    assert decode(twin, prompt, 30) == decode(method, prompt, 30)
    method.reset("another")
    assert method.state() == [[], Bandit((1, 2, 4), 0.2, 1.0).state()]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_certain_tokens_stay_numbers_in_half_precision(dtype):
    """1 - 1e-6 is 1 there, whose log odds are infinite."""
    hidden, sure = torch.zeros(4, 32, dtype=dtype), torch.tensor([[0.0], [0.5], [0.9999], [1.0]], dtype=dtype)
    read = features(hidden, sure)
    assert read.isfinite().all() and read.shape == (4, 33)
    assert read[:, -1].tolist() == sorted(read[:, -1].tolist()) and float(read[1, -1]) == 0
    assert read[3, -1] > 10


def test_what_chooses_the_lengths_is_part_of_a_methods_inputs(pocket, tmp_path):
    """Two files of one name and other thresholds are not the same method; a method without one has none."""
    results = []
    for threshold in (0.3, 0.6):
        (tmp_path / "mine.yaml").write_text(f"method: confidence\nsettings: {{threshold: {threshold}}}\n")
        results.append(build(pocket, "sps", length=str(tmp_path / "mine.yaml")).inputs())
    assert results[0].keys() == {"length"} and results[0] != results[1]
    assert build(pocket, "sps").inputs() == {}
    own = build(pocket, "csd", length="specdecpp", gamma=20).inputs()
    assert own.keys() >= {"length", "head"}
