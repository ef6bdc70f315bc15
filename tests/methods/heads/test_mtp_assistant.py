"""Gemma 4's assistants: drafts are those of a target without a cache, texts and counts those of transformers."""

import tiny_architectures as tiny
import torch
from cases import mostly_long
from gates import Words, decode, with_settings
from peer_heads import noted
from refusals import one_line_error
from test_rows import together
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
)
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from specbench.engine.models.assistant import all_shared
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER

LIKELY = 4  # tokens that are ever said: drafts of a random assistant are right now and then
COUNT, STEPS = 40, 3
KINDS = {
    "gemma4_text": (Gemma4AssistantConfig, Gemma4AssistantForCausalLM),
    "gemma4_unified_text": (Gemma4UnifiedAssistantConfig, Gemma4UnifiedAssistantForCausalLM),
}
SHARED = (2, 0)  # the target's last layers that read keys of layers before them


def stirred(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.4 * noise if parameter.ndim >= 2 else parameter + 0.1 * noise)
        model.lm_head.weight[LIKELY:] = 0
    return model.eval()


def made(kind, shared, folder=None, **changes):
    """A target, and its assistant, which is written to a folder."""
    fields = tiny.COMMON | tiny.FIELDS["gemma4_text"] | {"global_head_dim": 16, "tie_word_embeddings": False}
    config = AutoConfig.for_model(kind, **fields | {"num_kv_shared_layers": shared})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        target = stirred(AutoModelForCausalLM.from_config(config).to(torch.float64))
        target.generation_config.eos_token_id = None
        own = fields | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
        own |= {"hidden_size": 16, "vocab_size_per_layer_input": 0, "hidden_size_per_layer_input": 0}
        own |= {"num_kv_shared_layers": 2} | changes.pop("text", {})
        read = {"backbone_hidden_size": config.hidden_size, "tie_word_embeddings": False} | changes
        settings = KINDS[kind][0](text_config=AutoConfig.for_model(kind, **own), **read)
        with all_shared():
            assistant = stirred(KINDS[kind][1](settings).to(torch.float64))
    assistant.generation_config.num_assistant_tokens = STEPS
    if folder:
        assistant.config.dtype = torch.float64
        assistant.save_pretrained(folder)
    return target, assistant


def method(target, folder, runtime=EAGER, **changes):
    pair = Pair("tiny", {"target": target}, Words(), runtime=runtime)
    return with_settings("mtp", pair, 4, {"head": str(folder)} | changes)


def vanilla(target, prompt):
    return decode(with_settings("vanilla", Pair("tiny", {"target": target}, Words()), 1, {}), prompt, COUNT)[0]


def committed(target, shared, text):
    """The target's last state, and the keys and values that an assistant reads, after a text without its last token."""
    cache = DynamicCache()
    with torch.inference_mode():
        read = target(torch.tensor([text[:-1]]), past_key_values=cache, output_hidden_states=True)
    last = {"sliding_attention": 2 - shared, "full_attention": 3 - shared}
    kept = {name: (cache.layers[at].keys, cache.layers[at].values) for name, at in last.items()}
    return read.hidden_states[-1][:, -1:], kept


@mostly_long("kind, shared", [(kind, shared) for kind in KINDS for shared in SHARED], (("gemma4_text", 2),))
def test_drafts_are_those_of_a_target_that_reads_the_whole_text_again(kind, shared, tmp_path):
    """Without a cache; past the window of 16 tokens."""
    target, assistant = made(kind, shared, tmp_path)
    prompt = tiny.prompt(seed=1)
    tokens, rounds = decode(method(target, tmp_path), prompt, COUNT)
    assert tokens == vanilla(target, prompt)
    text = [*prompt, tokens[0]]
    for round_ in rounds[1:]:
        state, kept = committed(target, shared, text)
        place, drafted = torch.tensor([[len(text) - 1]]), [text[-1]]
        with torch.inference_mode():
            for _ in range(STEPS):
                embedded = target.get_input_embeddings()(torch.tensor([drafted[-1:]]))
                read = torch.cat([embedded, state], -1)
                out = assistant(inputs_embeds=read, position_ids=place, shared_kv_states=kept)
                drafted.append(int(out.logits.argmax()))
                state = out.last_hidden_state
        assert round_.verdict.drafted == drafted[1:]
        text += round_.tokens
    assert len(text) > len(prompt) + 2 * tiny.WINDOW
    assert 5 <= sum(round_.accepted for round_ in rounds) < STEPS * (len(rounds) - 1)


def test_texts_and_accepted_counts_are_transformers(tmp_path, monkeypatch):
    """Its generator is given keys of committed tokens; by itself it lets the assistant read those of rejected ones."""
    target, assistant = made("gemma4_text", 2, tmp_path)
    propose = SinglePositionMultiTokenCandidateGenerator.get_candidates

    def without_rejected(self, input_ids, model_kwargs, model_outputs, *args, **kwargs):
        if model_outputs is not None:
            model_outputs.shared_kv_states = committed(target, 2, input_ids[0].tolist())[1]
        return propose(self, input_ids, model_kwargs, model_outputs, *args, **kwargs)

    monkeypatch.setattr(SinglePositionMultiTokenCandidateGenerator, "get_candidates", without_rejected)
    accepted = 0
    for seed in range(3):
        prompt, matches = tiny.prompt(seed=seed), []
        with noted(SinglePositionMultiTokenCandidateGenerator, matches):
            said = target.generate(
                torch.tensor([prompt]), assistant_model=assistant, max_new_tokens=COUNT, do_sample=False
            )[0, len(prompt) :].tolist()
        tokens, rounds = decode(method(target, tmp_path), prompt, COUNT)
        assert tokens == said == vanilla(target, prompt)
        mine, counts = [round_.accepted for round_ in rounds[1:]], matches[2:]
        assert mine[: len(counts)] == counts and len(mine) <= len(counts) + 1
        accepted += sum(counts)
    assert accepted >= 5


def test_texts_of_a_batch_are_those_of_each_alone(tmp_path):
    target, _ = made("gemma4_text", 2, tmp_path)
    prompts = [tiny.prompt(seed=seed, length=9 + seed) for seed in range(3)]
    expected = [decode(method(target, tmp_path), prompt, 20) for prompt in prompts]
    runtime = Batched("eager")
    both = together([method(target, tmp_path, runtime) for _ in range(2)], [(prompt, 20) for prompt in prompts])
    assert [tokens for tokens, _ in both] == [tokens for tokens, _ in expected]
    assert [[one.accepted for one in rounds] for _, rounds in both] == [
        [one.accepted for one in rounds] for _, rounds in expected
    ]


def test_an_assistant_of_another_target_is_one_line(tmp_path):
    target, _ = made("gemma4_text", 2)
    for name, changes, words in (
        ("width", {"backbone_hidden_size": 48}, "reads states of 48, and Gemma4ForCausalLM has 32"),
        ("words", {"text": {"vocab_size": 64}}, "reads a vocabulary of 64"),
        ("heads", {"text": {"num_key_value_heads": 1, "head_dim": 4}}, "cannot read what Gemma4ForCausalLM caches"),
    ):
        made("gemma4_text", 2, tmp_path / name, **changes)
        with one_line_error(words, "name an assistant of this target"):
            method(target, tmp_path / name)
    made("gemma4_text", 2, tmp_path / "fits")
    with one_line_error("LlamaForCausalLM has none", "name an assistant of this target"):
        method(tiny.model("llama"), tmp_path / "fits")


def test_a_draft_is_as_long_as_the_checkpoint_says_or_as_is_asked_for(tmp_path):
    target, _ = made("gemma4_text", 2, tmp_path)
    assert method(target, tmp_path).gamma == STEPS
    assert method(target, tmp_path, steps=5).gamma == 5
