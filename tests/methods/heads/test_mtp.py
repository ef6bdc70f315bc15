"""MTP: drafts, texts and accepted counts are those of transformers' own generation; bad checkpoints are one line."""

import sys

import mtp_checkpoints as checkpoints
import pytest
import tiny_architectures as tiny
import torch
from cases import mostly_long
from gates import Words, decode, with_settings
from refusals import one_line_error
from safetensors.torch import load_file, save_file
from test_rows import together
from transformers.cache_utils import MtpCache
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

from specbench import config
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.measure.prompts import encode
from specbench_extras.bench.prompts import bundled_prompts

CASES = (("deepseek_v3", 1), ("deepseek_v3", 2), ("glm4_moe", 1), ("glm4_moe", 3))
# Those that transformers has no names for are handed to its generation.
HANDED = (("glm4_moe_lite", 2), ("mimo_v2_flash", 1))
HANDED += (("ernie4_5_moe", 1), ("ernie4_5_moe", 2), ("exaone_moe", 1))
WITH_A_STATE = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "bailing_hybrid")
INDEXED = ("deepseek_v32", "glm_moe_dsa")  # transformers' MtpModel has no mask for their layers
ALONE = ("deepseek_v3", "glm4_moe", *(kind for kind, count in HANDED if count == 1), *INDEXED, *WITH_A_STATE)
COUNT = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def get(kind, count):
        if (kind, count) not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{count}")
            made[kind, count] = folder, checkpoints.save(kind, count, folder)
        return made[kind, count][0]

    get.modules = lambda kind, count: made[kind, count][1]
    return get


def method(target, runtime=EAGER, **changes):
    return with_settings("mtp", Pair("tiny", {"target": target}, Words(), runtime=runtime), 4, changes)


def vanilla(target, prompt, count):
    return decode(with_settings("vanilla", Pair("tiny", {"target": target}, Words()), 1, {}), prompt, count)[0]


def generated(target, prompt, monkeypatch, modules=None):
    """What transformers says with MTP, and how many drafts each round accepted; it finds modules, or is given them."""
    matches, propose = [], MTPCandidateGenerator.get_candidates

    def noted(self, *args, **kwargs):
        matches.append(kwargs["n_last_matches"])
        return propose(self, *args, **kwargs)

    layers = target.config.num_hidden_layers  # transformers' own pattern is for the published number of layers alone
    target._keys_to_ignore_on_load_unexpected = [rf"layers\.[{layers}-9]\."]
    with monkeypatch.context() as patch:
        patch.setattr(MTPCandidateGenerator, "get_candidates", noted)
        if modules is not None:
            patch.setattr(MtpModel, "from_pretrained", lambda *_, **__: modules)
        text = target.generate(torch.tensor([prompt]), max_new_tokens=COUNT, do_sample=False, use_mtp=True)
    return text[0, len(prompt) :].tolist(), matches[2:]  # nothing was drafted before the first two calls


@mostly_long("kind, count", CASES + HANDED, (("deepseek_v3", 2), ("glm4_moe", 1), ("mimo_v2_flash", 1)))
def test_texts_and_accepted_counts_are_transformers(kind, count, checkpoint, monkeypatch):
    target, given = checkpoints.load(checkpoint(kind, count)), None
    theirs = checkpoints.with_modules(target, kind, count)
    if (kind, count) in HANDED:
        given = checkpoint.modules(kind, count)
    accepted = 0
    for seed in range(3):
        prompt = tiny.prompt(seed=seed)
        text, counts = generated(theirs, prompt, monkeypatch, given)
        tokens, rounds = decode(method(target), prompt, COUNT)
        assert tokens == text == vanilla(target, prompt, COUNT)
        mine = [round_.accepted for round_ in rounds[1:]]
        assert mine[: len(counts)] == counts and len(mine) <= len(counts) + 1  # the last round's is not asked for
        accepted += sum(counts)
    assert accepted >= 5


def causal(layer, embedded, cache, places):
    count = embedded.shape[1]
    return {"attention_mask": torch.full((1, 1, count, count), -torch.inf, dtype=embedded.dtype).triu(1)}


class WithoutIndex(torch.nn.Module):
    """A layer that returns its states alone."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return self.layer(*args, **kwargs)[0]


@mostly_long("kind", ALONE, ("deepseek_v3", "qwen3_5_text", "ernie4_5_moe"))
def test_one_module_goes_on_from_its_own_states(kind, checkpoint):
    """Against a module that reads the whole text again for every draft, as it was before it was saved."""
    target, module = checkpoints.load(checkpoint(kind, 1)), checkpoint.modules(kind, 1)
    if kind in INDEXED:
        module.create_masks_for_mtp_layer = causal
    if kind == "glm_moe_dsa":
        layer, block = module.layers[0], module.layers[0].mtp_block
        layer.mtp_block = WithoutIndex(block)
    prompt = tiny.prompt(seed=1)
    tokens, rounds = decode(method(target, steps=3), prompt, COUNT)
    text = [*prompt, tokens[0]]
    for round_ in rounds[1:]:
        read = list(text)
        with torch.inference_mode():
            states = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1]
            for _ in range(3):
                places = torch.arange(1, len(read))[None]
                cache = MtpCache(config=module.config)
                after = module.forward_layer(0, states, places, cache, input_ids=torch.tensor([read[1:]]))
                read.append(int(module._project_to_logits(after[:, -1:]).argmax()))
                states = torch.cat([states, after[:, -1:]], 1)
        assert round_.verdict.drafted == read[len(text) :]
        text += round_.tokens
    assert sum(round_.accepted for round_ in rounds) >= 2
    assert tokens == vanilla(target, prompt, COUNT)


@pytest.mark.long
def test_a_wrong_norm_leaves_the_text_as_it_is_and_less_is_accepted(monkeypatch):
    """The bundled module without the norm of embeddings. Its other norms change scales alone, and nearly nothing."""
    bundled = load_pair(config.load_pair("pocket"))
    prompts = [encode(bundled, prompt) for prompt in bundled_prompts("gsm8k", 3)]
    built = with_settings("mtp", bundled, 4, {})
    right = accepted_of(built, prompts)
    monkeypatch.setattr(built.drafter.head.module, "enorm", torch.nn.Identity())
    wrong = accepted_of(built, prompts)
    assert right[0] == wrong[0]
    assert wrong[1] < 0.7 * right[1]


def accepted_of(method, prompts):
    decoded = [decode(method, prompt, 30) for prompt in prompts]
    return [tokens for tokens, _ in decoded], sum(round_.accepted for _, rounds in decoded for round_ in rounds)


def test_texts_of_a_batch_are_those_of_each_alone(checkpoint):
    target, runtime = checkpoints.load(checkpoint("deepseek_v3", 2)), Batched("eager")
    prompts = [tiny.prompt(seed=seed, length=9 + seed) for seed in range(3)]
    expected = [decode(method(target), prompt, 20)[0] for prompt in prompts]
    methods = [method(target, runtime) for _ in range(2)]
    assert [tokens for tokens, _ in together(methods, [(prompt, 20) for prompt in prompts])] == expected


def test_a_prompt_of_one_token(checkpoint):
    target = checkpoints.load(checkpoint("glm4_moe", 3))
    assert decode(method(target), [5], 12)[0] == vanilla(target, [5], 12)


def rewritten(source, folder, change):
    """A copy of a checkpoint whose tensors are changed."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    save_file(change(load_file(source / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda name, tensor: None if "layers.4." in name or "layers.5." in name else tensor,
            "has none of their weights",
        ),
        (
            lambda name, tensor: None if name.endswith("5.hnorm.weight") else tensor,
            "layers.1.hnorm.weight for one",
        ),
        (
            lambda name, tensor: tensor[:, :40] if "eh_proj" in name else tensor,
            "layers.0.eh_proj.weight is 32 × 40 and should be 32 × 64",
        ),
    ],
    ids=("none", "half", "another size"),
)
def test_modules_that_are_not_all_there_are_one_line(change, words, checkpoint, tmp_path):
    whole = checkpoint("deepseek_v3", 2)
    folder = rewritten(
        whole,
        tmp_path / "changed",
        lambda tensors: {
            name: new.contiguous() for name, tensor in tensors.items() if (new := change(name, tensor)) is not None
        },
    )
    target = checkpoints.load(folder)
    with one_line_error("announces 2 modules", words, "mtp.head=FOLDER"):
        method(target)
    tokens, _ = decode(method(target, head=str(whole)), tiny.prompt(), 12)  # of a folder next to it
    assert len(tokens) == 12


@pytest.mark.parametrize(
    ("kind", "words"), [("nemotron_h", "its module is two layers"), ("longcat_flash", "a layer of another kind")]
)
def test_modules_that_are_not_of_the_targets_layers_are_one_line(kind, words):
    with one_line_error("is not handled", words, "choose another target or method"):
        method(tiny.model(kind))


def test_what_has_no_modules_is_one_line(checkpoint, monkeypatch):
    with one_line_error("LlamaForCausalLM announces no modules"):
        method(tiny.model("llama"))
    target = checkpoints.load(checkpoint("deepseek_v3", 2))
    with one_line_error("mtp.steps=3", "2 modules"):
        method(target, steps=3)
    with one_line_error("there is no head gone"):
        method(target, head="gone")
    target.config.quantization_config = {"quant_method": "fp8"}
    with one_line_error("in fewer bits"):
        method(target)
    del target.config.quantization_config
    spec = config.load_pair("pocket")
    int8 = spec.model_copy(update={"target": spec.target.model_copy(update={"weights": "int8"}), "draft": None})
    with one_line_error("in fewer bits", "leave out --weights"):
        with_settings("mtp", load_pair(int8, "cpu"), 4, {})
    monkeypatch.delattr(sys.modules["transformers.modeling_layers"], "MtpModel")
    with one_line_error("transformers 5.23"):
        method(target)
