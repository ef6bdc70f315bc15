"""Lighter output layers: views of a draft model against plain arithmetic, and texts that stay the target's own."""

import copy
import functools

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from cases import architectures, mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from law import fit
from recalled import recalled

from specbench import config
from specbench.config import UserError
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models import heads
from specbench.engine.models.draft_output import output_layer, slim, trimmed
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST, Session, Unwatched
from specbench.engine.translate import Translation
from specbench.engine.types import Draft, Sampling
from specbench.methods import drafting, module, names, names_with
from specbench.methods.chains.sps import SpS
from specbench.methods.drafting import DraftSettings, load_output
from specbench.methods.output.vocabtrim import ranked
from specbench_extras.bench.prompts import bundled_prompts

KEPT = tuple(range(3, 96, 2))
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
TOKENS = oracle.prompts(1, length=30)[0]


@functools.cache
def draft(architecture: str, **sizes):
    return oracle.tiny(architecture, seed=3, **sizes).to(DEVICE)


def logits(model, **options):
    return Session(model, "draft").forward(TOKENS, **options).logits


def biased():
    """As in Phi: an output layer with a bias."""
    made = copy.deepcopy(draft("llama"))
    bias = torch.randn(96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made.lm_head.bias = torch.nn.Parameter(bias.to(DEVICE), requires_grad=False)
    return made


MODELS = {
    **{name: functools.partial(draft, name) for name in oracle.ARCHITECTURES},
    "tied": functools.partial(draft, "llama", tie_word_embeddings=True),
    "tied gemma2": functools.partial(draft, "gemma2", tie_word_embeddings=True),
    "opt with projections": functools.partial(draft, "opt", word_embed_proj_dim=16),
    "bias": biased,
}


# The layers


@pytest.mark.parametrize("name", MODELS)
def test_a_trimmed_model_gives_the_same_logits_for_fewer_tokens(name):
    model = MODELS[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    few, whole = logits(trimmed(model, torch.tensor(KEPT))), logits(model)
    torch.testing.assert_close(few[:, KEPT], whole[:, KEPT], rtol=0, atol=1e-9)
    others = [token for token in range(96) if token not in KEPT]
    assert (few[:, others] == -torch.inf).all() and few.shape == whole.shape
    torch.testing.assert_close(logits(trimmed(model, torch.arange(96))), whole, rtol=0, atol=1e-9)
    assert torch.equal(logits(model), whole), "the model itself stays as it is"
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert (
        model.get_input_embeddings().weight.data_ptr()
        == trimmed(model, torch.tensor(KEPT)).get_input_embeddings().weight.data_ptr()
    ), "over the same weights"


@pytest.mark.parametrize("name", MODELS)
def test_a_slim_model_has_the_best_weight_of_its_rank(name):
    model = MODELS[name]()
    whole, layer = logits(model), output_layer(model)
    width = layer.weight.shape[1]
    torch.testing.assert_close(logits(slim(model, width)), whole, rtol=0, atol=1e-5)
    rank = 5
    u, s, v = np.linalg.svd(layer.weight.cpu().numpy(), full_matrices=False)
    best = torch.from_numpy(u[:, :rank] * s[:rank] @ v[:rank])
    reference = copy.deepcopy(model)
    reference.set_output_embeddings(copy.deepcopy(layer))
    reference.get_output_embeddings().weight = torch.nn.Parameter(best.to(DEVICE), requires_grad=False)
    output = logits(slim(model, rank))
    torch.testing.assert_close(output, logits(reference), rtol=0, atol=1e-5)
    assert float((output - whole).abs().max()) > 0.1 and torch.equal(logits(model), whole)


@pytest.mark.parametrize("made", (lambda m: trimmed(m, torch.tensor(KEPT)), lambda m: slim(m, 9)), ids=("trim", "slim"))
def test_rows_states_and_trees_are_as_ever(made):
    model = draft("gemma2")
    light, whole = Session(made(model), "draft"), made(model)
    output = light.forward(TOKENS, hidden=LAST)
    torch.testing.assert_close(output.hidden, Session(model, "draft").forward(TOKENS, hidden=LAST).hidden)
    torch.testing.assert_close(logits(whole, keep=1), output.logits[-1:])
    branch = light.forward([5, 9, 5], parents=[-1, -1, 1]).logits
    light.keep(30, (1, 2))
    torch.testing.assert_close(
        branch[2:], Session(whole, "draft").forward([*TOKENS, 9, 5]).logits[-1:], rtol=0, atol=1e-5
    )
    assert len(light) == 32


def test_a_rank_that_there_is_not():
    for rank in (0, 33):
        with pytest.raises(ValueError, match="rank 32 at most"):
            slim(draft("llama"), rank)


def test_half_precision():
    model = copy.deepcopy(draft("llama")).to(torch.bfloat16)
    assert logits(slim(model, 32)).dtype == logits(trimmed(model, torch.tensor(KEPT))).dtype == torch.bfloat16
    assert float((logits(slim(model, 32)) - logits(model)).abs().float().mean()) < 0.05


# Texts


def light(architecture: str):
    """Views of a draft that agrees with the target: trimmed, slim, and slim of a trimmed one."""
    model = pair(architecture)[1]
    return trimmed(model, torch.tensor(KEPT)), slim(model, 20), trimmed(model, torch.tensor([7]))


@mostly_long("length", (3, 50), (50,))
@architectures
def test_greedy_texts_are_the_targets(architecture, length):
    prompt, vanilla = lively_prompt(architecture, length, 40)
    assert vanilla == oracle.greedy(copy.deepcopy(pair(architecture)[0]).cpu(), prompt, 40) or DEVICE != "cpu"
    accepted = 0
    for model in light(architecture):
        method = SpS(Session(pair(architecture)[0], "target"), ModelDrafter(Session(model, "draft")), 4)
        tokens, rounds = decode(method, prompt, 40)
        assert tokens == vanilla
        accepted += sum(round_.accepted for round_ in rounds)
    assert accepted > 0


def drawn(model, sampling: Sampling, drafter=ModelDrafter) -> float:
    """p-value of two tokens after a prompt."""
    target = oracle.tiny("llama", 1, 8).to(DEVICE)
    method = SpS(recalled(target, "target"), drafter(recalled(model, "draft")), 1)
    return fit(method, target, [1, 5, 2], 2, sampling, 500).p


def of_the_whole(whole):
    """Wrong: draws from a trimmed draft, and gives q of the whole one."""

    class Drafter(ModelDrafter):
        def propose(self, context, gamma, sampling, rng):
            made = super().propose(context, gamma, sampling, rng)
            return Draft(made.tokens, recalled(whole, "draft").forward(context).logits[-1:].softmax(-1))

    return Drafter


def test_samples_follow_the_target():
    model = oracle.tiny("llama", 2, 8).to(DEVICE)
    few = trimmed(model, torch.tensor([0, 2, 5, 6]))
    assert drawn(few, Sampling(0.8, top_k=5, top_p=0.9)) > ALPHA
    assert drawn(slim(model, 6), Sampling(1.0)) > ALPHA
    assert drawn(few, Sampling(1.0), of_the_whole(model)) < ALPHA


# Counts and settings


def test_the_ranking_by_hand():
    counts = torch.tensor([0.0, 5, 5, 0, 9, 1])
    assert ranked(counts, frozenset({3, 99})) == [3, 4, 1, 2, 5, 0]


def shipped(pocket) -> torch.Tensor:
    return heads.find_head("auto", "vocabtrim", pocket, {"counts": (2048,)}).tensors["counts"]


def test_the_shipped_counts_are_of_the_pockets_texts(pocket):
    counts = shipped(pocket)
    assert float(counts.sum()) > 10_000 and bool((counts == counts.round()).all())
    assert counts[list(pocket.eos_ids)].sum() > 300, "nearly every text ends"
    vanilla = module("vanilla").build(None, pocket, Unwatched())
    for prompt in bundled_prompts("gsm8k", 3):
        text, _ = decode(vanilla, pocket.tokenizer(prompt)["input_ids"], 40)
        assert counts[text].gt(0).float().mean() > 0.9


def accepted(rounds) -> int:
    return sum(round_.accepted for round_ in rounds)


@pytest.mark.long
def test_methods_and_settings_are_one(pocket):
    """vocabtrim is sps with that output, a share is a number, and texts are vanilla's whatever the draft lacks."""
    prompt = pocket.tokenizer(bundled_prompts("gsm8k", 2)[1])["input_ids"]
    vanilla = decode(module("vanilla").build(None, pocket, Unwatched()), prompt, 40)[0]
    order = ranked(shipped(pocket), pocket.eos_ids)
    for name in names_with("output"):
        own, other = build(pocket, name), build(pocket, "sps", output=name)
        (text, rounds), result = decode(own, prompt, 40), decode(other, prompt, 40)
        assert text == vanilla and result[0] == text and accepted(result[1]) == accepted(rounds)
        assert own.lossless and own.inputs().keys() | {"output"} == other.inputs().keys()
        assert other.inputs()["output"] == config.load_method(name).digest
    assert build(pocket, "slimspec").inputs() == {} and list(build(pocket, "vocabtrim").inputs()) == ["counts"]
    few = build(pocket, "vocabtrim", tokens=100).drafter.session.restart(prompt).logits[0]
    assert set(few.isfinite().nonzero()[:, 0].tolist()) == set(order[:100]) >= pocket.eos_ids
    assert int(build(pocket, "vocabtrim", tokens=0.25).drafter.session.restart(prompt).logits.isfinite().sum()) == 512
    full = decode(build(pocket, "sps"), prompt, 40)[1]
    for same in (build(pocket, "vocabtrim", tokens=1.0), build(pocket, "slimspec", rank=192)):
        assert accepted(decode(same, prompt, 40)[1]) == accepted(full)
    assert int(build(pocket, "vocabtrim", tokens=1).drafter.session.restart(prompt).logits.isfinite().sum()) == 1


def test_output_and_length_go_together(pocket):
    prompt = pocket.tokenizer(bundled_prompts("gsm8k", 1)[0])["input_ids"]
    vanilla = decode(module("vanilla").build(None, pocket, Unwatched()), prompt, 30)[0]
    method = build(pocket, "sps", output="vocabtrim", length="specdecpp", gamma=20)
    assert decode(method, prompt, 30)[0] == vanilla
    assert {"output", "counts", "length", "head"} == method.inputs().keys()


def drafting_methods() -> list[str]:
    own = {name for name in names() if name in config.names("methods")}
    return sorted(n for n in own if issubclass(getattr(module(n), "Settings", int), DraftSettings))


def test_every_method_that_drafts_from_a_model_has_the_setting(pocket):
    result = drafting_methods()
    assert {"sps", "lossy", "fly", "reflective", "csd", "judge"} <= set(result)
    for name in result:
        assert config.load_method(name).settings["output"].value == drafting.FULL, name
        if name != "fly":
            method = build(pocket, name, output="slimspec")
            assert method.inputs()["output"] == config.load_method("slimspec").digest, name
            assert isinstance(method.drafter.session.model.lm_head, torch.nn.Sequential), name


def test_a_yaml_of_ones_own(pocket, tmp_path):
    path = tmp_path / "few.yaml"
    path.write_text("description: Few tokens\nmethod: vocabtrim\nsettings: {tokens: 64}\n")
    result = load_output(str(path), pocket)
    assert output_layer(result.model).weight.shape == (64, 192)
    assert result.hashes["output"] != config.load_method("vocabtrim").digest


def test_a_pair_without_counts_and_one_without_a_draft(pocket):
    other = Pair("other", dict.fromkeys(("target", "draft"), pocket.models["draft"]), pocket.tokenizer)
    with pytest.raises(
        UserError, match=r"specbench train --method vocabtrim --pair target=…,draft=….*vocabtrim\.counts=FILE"
    ):
        build(other, "vocabtrim")
    alone = Pair("alone", {"target": pocket.models["target"]}, pocket.tokenizer)
    for name in names_with("output"):
        with pytest.raises(UserError, match="alone has no draft model"):
            build(alone, name)


def test_a_translated_draft_is_trimmed_in_its_own_ids(pocket):
    translation = Translation(pocket.tokenizer, pocket.tokenizer, (2048, 2048))
    translation.shared = {i: i for i in range(0, 2048, 2)} | {i: i for i in pocket.eos_ids}
    both = Pair("pocket", pocket.models, pocket.tokenizer, translations={"draft": translation})
    method = build(both, "vocabtrim", tokens=100)
    prompt = pocket.tokenizer(bundled_prompts("gsm8k", 1)[0])["input_ids"]
    values = method.drafter.session.restart(prompt).logits[0].isfinite().nonzero()[:, 0].tolist()
    order = [i for i in ranked(shipped(pocket), pocket.eos_ids) if i % 2 == 0 or i in pocket.eos_ids]
    assert set(values) == set(order[:100])
    assert decode(method, prompt, 20)[0] == decode(module("vanilla").build(None, pocket, Unwatched()), prompt, 20)[0]


def test_the_methods_say_what_they_are():
    for name in names_with("output"):
        spec = config.load_method(name)
        assert spec.description.endswith("(lossless)") and all(setting.source for setting in spec.settings.values())
    assert GREEDY.greedy
