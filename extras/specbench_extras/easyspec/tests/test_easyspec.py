"""EasySpec: the fuzzy draft against whole forwards by hand, what is calibrated, exact texts and laws, what waits."""

import copy
import functools

import oracle
import pytest
import torch
from builders_engine import build, made
from gates import DEVICE, decode, lively
from law import fit
from official_cases import official_cases
from refusals import one_line_error
from tabled import V
from transformers import LlamaConfig, LlamaForCausalLM
from watched import Told

from specbench.engine.types import Sampling
from specbench_extras.easyspec.layer_parallel import grouped, layer_parallel, steps

ALPHA = 1e-4  # of a right rule being refused
LONG = pytest.mark.long
LAYERS, GROUP = 6, 3


@functools.cache
def models(vocab: int = 96):
    """A target and a draft of six layers that is a noisy copy of it."""
    target = oracle.tiny("llama", vocab=vocab, num_hidden_layers=LAYERS)
    draft = copy.deepcopy(target)
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, parameter in sorted(draft.named_parameters()):
            parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return target.to(DEVICE), draft.to(DEVICE)


def test_groups_by_hand():
    assert [list(group) for group in grouped(8, 4)] == [[0], [1, 2, 3, 4], [5, 6], [7]]
    assert [list(group) for group in grouped(2, 4)] == [[0], [1]]
    assert [list(group) for group in grouped(1, 4)] == [[0]]
    # Two sublayers for each layer alone; one attention and n MLPs for a group: 2 + 5 + 3 + 2.
    assert steps(8, 4) == 12 and steps(8, 1) == 16 and steps(1, 4) == 2


@torch.no_grad()
def by_hand(model, tokens: list[int], exact: int, size: int) -> torch.Tensor:
    """Logits [V] after a text whose first `exact` tokens are read as they are and the others fuzzily, without a cache.

    Keys and values of a layer are made of the states that its attention reads, so both kinds are kept side by side.
    """
    core, n = model.model, len(tokens)
    fuzzy = torch.arange(n, device=DEVICE) >= exact
    h = core.embed_tokens(torch.tensor([tokens], device=DEVICE))
    places = torch.arange(n, device=DEVICE)[None]
    angles = core.rotary_emb(h, places)
    mask = torch.full((n, n), -torch.inf, dtype=h.dtype, device=DEVICE).triu(1)[None, None]
    starts = {index: group[0] for group in ([0], [1, 2, 3], [4], [5]) for index in group} if size == 3 else {}
    entered = {}
    for index, layer in enumerate(core.layers):
        entered[index] = h
        read = torch.where(fuzzy[None, :, None], entered[starts.get(index, index)], h)
        attended, _ = layer.self_attn(
            layer.input_layernorm(read), position_embeddings=angles, attention_mask=mask, past_key_values=None
        )
        h = h + attended
        h = h + layer.mlp(layer.post_attention_layernorm(h))
    return model.lm_head(core.norm(h))[0, -1]


def test_the_reference_is_the_model_where_nothing_is_fuzzy():
    _, draft = models()
    tokens = oracle.prompts(1, length=9)[0]
    with torch.no_grad():
        whole = draft(torch.tensor([tokens], device=DEVICE), use_cache=False).logits[0, -1]
    torch.testing.assert_close(by_hand(draft, tokens, 9, GROUP), whole, rtol=0, atol=1e-4)
    assert float((by_hand(draft, tokens, 4, GROUP) - whole).abs().max()) > 0.1


def test_rounds_equal_those_by_hand():
    """Each draft's first token is the draft model's own; the next ones read fuzzily what was drafted, and it alone."""
    target, draft = models()
    prompt, text = lively(target, 12, 14)
    method = build(made(target, draft), "easyspec", gamma=3, group=GROUP)
    tokens, rounds = decode(method, prompt, 14)
    assert tokens == text
    context = [*prompt, text[0]]
    plain = []
    for step in rounds[1:]:
        drafted = []
        for _ in range(3):
            drafted.append(oracle.best(by_hand(draft, context + drafted, len(context), GROUP)))
        plain.append(oracle.greedy(copy.deepcopy(draft).cpu(), context, 3) == drafted)
        assert step.verdict.drafted == drafted
        context += step.tokens
    assert {True, False} == set(plain)  # fuzzy drafts are not those of the draft model, but for some
    assert 0 < sum(step.accepted for step in rounds) < sum(step.drafted for step in rounds)


def drafts_of_its_own_code(case, size):
    """What `easyspec` drafts as the text of a case grows, with the draft model of official/easyspec.py."""
    facts = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8}
    facts |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    draft = LlamaForCausalLM(LlamaConfig(**facts)).double().eval()
    rng, tensors = torch.Generator().manual_seed(case["seed"]), {}
    for name, own in sorted(draft.state_dict().items()):
        tensor = torch.randn(*own.shape, generator=rng, dtype=torch.float64)
        scale = 0.5 if "o_proj" in name or "down_proj" in name else 1
        tensors[name] = tensor if "embed" in name else scale * tensor / own.shape[-1] ** 0.5 + ("norm" in name)
    draft.load_state_dict(tensors)
    drafter = build(made(draft.to(DEVICE), draft), "easyspec", gamma=5, group=size).drafter
    drafter.begin(case["text"][:8])
    ends = (9, 12, 13, 17, 19, 25)
    return [drafter.propose(case["text"][:end], 5, Sampling(), torch.Generator(DEVICE)).tokens.tolist() for end in ends]


def test_drafts_are_those_of_its_own_code():
    """12 draft models of eight layers in groups of two, three and four; six drafts of each after a text that grows."""
    cases = official_cases("easyspec")
    assert {case["group"] for case in cases} == {2, 3, 4}
    for case in cases:
        assert drafts_of_its_own_code(case, case["group"]) == case["drafts"]
    assert sum(drafts_of_its_own_code(case, 1) != case["drafts"] for case in cases) >= 10  # fuzzy ones are others


def test_a_group_of_one_layer_is_the_draft_model():
    target, draft = models()
    (prompt,) = oracle.prompts(1, length=12)
    assert decode(build(made(target, draft), "easyspec", gamma=3, group=1), prompt, 16) == decode(
        build(made(target, draft), "sps", gamma=3), prompt, 16
    )


def test_what_is_read_and_what_is_left_of_it():
    """The committed text once, as it is; drafted tokens fuzzily, and dropped after the round."""
    target, draft = models()
    watch = Told()
    method = build(made(target, draft), "easyspec", watch, gamma=3, group=GROUP)
    rounds = method.rounds(oracle.prompts(1, length=9)[0], Sampling(), torch.Generator(DEVICE))
    committed = 10
    next(rounds)
    read = 9
    for _ in range(6):
        watch.forwards.clear()
        step = next(rounds)
        drafts = [(width, context) for role, width, context, *_ in watch.forwards if role == "draft"]
        assert drafts == [(committed - read, read), (1, committed), (1, committed + 1)]
        read, committed = committed, committed + len(step.tokens)


@pytest.mark.parametrize("sampling", (Sampling(1.0), pytest.param(Sampling(0.8, top_k=3), marks=LONG)), ids=str)
@LONG
def test_samples_from_the_target(sampling):
    target, draft = models(V)
    method = build(made(target, draft), "easyspec", gamma=2, group=GROUP)
    p, accepted, rejected = fit(method, target, [1, 3, 2], 4, sampling, 150)
    assert p > ALPHA and accepted > 40 and rejected > 40


@LONG
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_every_architecture_has_groups(architecture):
    """Groups of one layer change nothing; larger ones change what is said, and the model stays what it was."""
    model = oracle.tiny(architecture, num_hidden_layers=4).to(DEVICE)
    ids = torch.tensor([oracle.prompts(1, length=9)[0]], device=DEVICE)
    with torch.no_grad():
        whole, alone, together = (
            chosen(ids, use_cache=False).logits
            for chosen in (model, layer_parallel(model, 1), layer_parallel(model, 2))
        )
        assert torch.equal(model(ids, use_cache=False).logits, whole)
    assert torch.equal(alone, whole) and float((together - whole).abs().max()) > 0.05


def test_what_ships_and_what_is_refused():
    method = build(made(), "easyspec")
    assert method.lossless and method.gamma == 6
    with one_line_error("easyspec", "norms follow the sums"):
        build(made(draft=oracle.tiny("opt", do_layer_norm_before=False)), "easyspec")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 0}, "easyspec: gamma"),
        ({"group": 0}, "easyspec: group"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "easyspec", **changes)
