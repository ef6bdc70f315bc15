"""OpenVINO's logits, states and texts are those of transformers' whole forwards, whatever was fed and rolled back."""

import copy
import dataclasses
import functools
import importlib.util

import forms
import oracle
import pytest
import torch
from cases import mostly_long
from gates import decode
from stepped import assert_chains_are_steps

from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.draft_output import slim, trimmed
from specbench.engine.models.layer_skip import without
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import LAST, Reads, Unsupported
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla
from specbench_extras.openvino.runtime import OpenVINO

ov = pytest.importorskip("openvino")

from specbench_extras.openvino import export as openvino_export  # noqa: E402
from specbench_extras.openvino import paged as openvino_paged  # noqa: E402
from specbench_extras.openvino import runner as openvino_runner  # noqa: E402
from specbench_extras.openvino.step import Kind, Shape  # noqa: E402

ARCHITECTURES = ("llama", "qwen2", "qwen3", "opt", "gemma", "windowed")
CPU = torch.device("cpu")
CLOSE = {"rtol": 0, "atol": 2e-3}  # logits spread by about 2; a token more or less changes them by as much


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """A cache folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@functools.cache
def model(architecture, seed=0):
    if architecture == "windowed":  # a window of 16 in every other layer, and nothing that PagedAttention lacks
        return oracle.tiny("gemma2", seed, attn_logit_softcapping=None).float()
    return oracle.tiny(architecture, seed).float()


@functools.cache
def runtime():
    return OpenVINO(CPU)


def runner(architecture):
    return runtime().runner(model(architecture))


def feed(run, tokens, keep=0, hidden=(), features=None, reads=None):
    return run.forward(torch.tensor(tokens), keep, hidden, features, reads)


@torch.no_grad()
def whole(architecture, tokens, hidden=False):
    """Logits [n, V] of a forward without a cache; with `hidden`, all hidden states as well."""
    out = model(architecture)(torch.tensor([tokens]), use_cache=False, output_hidden_states=hidden)
    return (out.logits[0], [state[0] for state in out.hidden_states]) if hidden else out.logits[0]


def path_logits(architecture, context, tree, paths):
    """Logits [m, V] of a tree's tokens, each from a chain of its own: no masks, no cache."""
    return torch.stack([whole(architecture, [*context, *(tree[i] for i in path)])[-1] for path in paths])


@mostly_long("architecture", ARCHITECTURES, ("llama", "windowed"))
def test_chains_and_rollbacks_equal_a_fresh_prefill(architecture):
    run, mirror = runner(architecture), []
    text = iter(forms.text(400, seed=3))
    # Widths on both sides of a block of 32 and of the window of 16; rollbacks within a block and across.
    for width, back in ((5, 0), (1, 0), (30, 4), (1, 33), (17, 1), (40, 8), (1, 1), (3, 60), (64, 64), (2, 0)):
        new = [next(text) for _ in range(width)]
        mirror += new
        output, states = feed(run, new)
        assert states is None
        torch.testing.assert_close(output, whole(architecture, mirror)[-width:], **CLOSE)
        if back:
            del mirror[len(mirror) - back :]
            run.truncate(len(mirror))


@pytest.mark.parametrize("sampling", (Sampling(), Sampling(0.8), Sampling(0.8, top_p=0.9)), ids=str)
@pytest.mark.parametrize("architecture", ("llama", "windowed"))
def test_a_chain_is_its_steps(monkeypatch, architecture, sampling):
    monkeypatch.setattr(openvino_runner, "FIRST", 1)  # the cache grows meanwhile
    one, other = (Session(model(architecture), "draft", vocabulary=90, runtime=runtime()) for _ in "ab")
    assert_chains_are_steps(one, other, sampling, CLOSE)
    assert one._runner._steps.keys() == ({Kind(90, not sampling.greedy)} if sampling.top_p == 1 else set())
    assert one._runner._capacity > 1


def test_a_large_model_has_no_second_form(monkeypatch):
    monkeypatch.setattr(runner("llama").paged, "small", False)
    one, other = (Session(model("llama"), "draft", runtime=runtime()) for _ in "ab")
    assert_chains_are_steps(one, other, Sampling(), CLOSE, ((3, 1),))
    assert not one._runner._steps


@pytest.mark.parametrize("architecture", ("llama", "windowed"))
def test_shapes_that_are_fed_often_have_forms_of_their_own(monkeypatch, architecture):
    """Made by `settle`, at most two; a sequence that began before goes on in them, with the same cache."""
    monkeypatch.setattr(openvino_runner, "FIRST", 1)  # the cache grows meanwhile
    own = OpenVINO(CPU)
    run, mirror, text = own.runner(model(architecture)), [], iter(forms.text(900, seed=5))

    def go_on(width, keep=0, back=0):
        new = [next(text) for _ in range(width)]
        mirror.extend(new)
        output, _ = feed(run, new, keep)
        torch.testing.assert_close(output, whole(architecture, mirror)[-(keep or width) :], **CLOSE)
        if back:
            del mirror[len(mirror) - back :]
            run.truncate(len(mirror))

    for _ in range(3):
        go_on(5, back=3)
        go_on(2, keep=1)
    own.settle()
    assert not run.paged.shapes.fixed  # they were fed three times
    for _ in range(2):
        go_on(5, back=3)
        go_on(2, keep=1)
    for _ in range(3):
        go_on(1, back=1)  # four times, with the model's own check: less often than the others
    own.settle()
    assert run.paged.shapes.fixed == {Shape(5, 5), Shape(2, 1)}
    for _ in range(9):
        go_on(5, back=4)
        go_on(2, keep=1)
        go_on(1)
        go_on(5, keep=1, back=2)  # another shape
    assert {Shape(5, 5), Shape(2, 1)} < run._requests.keys()
    own.settle()
    assert run.paged.shapes.fixed == {Shape(5, 5), Shape(2, 1)}
    tree = [3, 4, 5, 6, 7]  # hidden states and, below the window, trees have no such form
    if architecture == "llama":
        reads, paths = forms.tree_reads(len(mirror), [-1, -1, 0, 1, 2], 5)
        output = feed(run, tree, reads=reads)[0]
        torch.testing.assert_close(output, path_logits(architecture, mirror, tree, paths), **CLOSE)
        run.truncate(len(mirror))
    _, states = feed(run, tree, hidden=(LAST[0],))
    torch.testing.assert_close(states, whole(architecture, [*mirror, *tree], hidden=True)[1][-1][-5:], **CLOSE)


def test_a_large_model_has_no_forms_of_shapes(monkeypatch):
    monkeypatch.setattr(openvino_paged, "SMALL", 1)
    own = OpenVINO(CPU)
    run = own.runner(model("llama"))
    for _ in range(9):
        feed(run, [1, 2, 3])
    own.settle()
    assert not run.paged.shapes.fixed


def test_a_window_that_is_not_told_is_found(monkeypatch):
    """The oracle of the test above, on a wrong rule: all layers read everything."""
    facts = openvino_paged.about
    monkeypatch.setattr(openvino_paged, "about", lambda exported: facts(exported) | {"windows": [0, 0]})
    with pytest.raises(Unsupported, match=r"OpenVINO computes other logits for Gemma2ForCausalLM .*--runtime static"):
        OpenVINO(CPU).runner(model("windowed"))


def test_only_the_last_rows_are_computed():
    run, text = runner("llama"), forms.text(50)
    logits, _ = feed(run, text, keep=1)
    assert logits.shape == (1, 96)
    torch.testing.assert_close(logits, whole("llama", text)[-1:], **CLOSE)
    assert run._requests[()].output(0).shape == (1, 96)


@pytest.mark.parametrize("architecture", ("llama", "windowed"))
def test_a_cache_that_grows_keeps_what_it_holds(monkeypatch, architecture):
    monkeypatch.setattr(openvino_runner, "FIRST", 1)
    run, text = runner(architecture), forms.text(230)
    results, capacities = [], set()
    for begin in range(0, 230, 23):
        results.append(feed(run, text[begin : begin + 23])[0])
        capacities.add(run._capacity)
    assert capacities == {1, 2, 4, 8}
    torch.testing.assert_close(torch.cat(results), whole(architecture, text), **CLOSE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("root", (0, 6, 70))
def test_trees_in_one_call_and_grown_over_several(architecture, root):
    if architecture == "windowed" and root == 70:
        pytest.skip("refused; see below")
    context, tree = forms.text(root, seed=1), forms.text(9, seed=2)
    parents = [-1, -1, 0, 0, 2, 1, 4, 3, 5]
    run = runner(architecture)
    if root:
        feed(run, context, keep=1)
    reads, paths = forms.tree_reads(root, parents, 9)
    expected = path_logits(architecture, context, tree, paths)
    torch.testing.assert_close(feed(run, tree, reads=reads)[0], expected, **CLOSE)
    run.truncate(root)
    for first, last in ((0, 2), (2, 5), (2, 5), (5, 9)):
        run.truncate(root + first)  # part of an open tree may be taken back
        reads, _ = forms.tree_reads(root, parents[:last], last - first)
        output, states = feed(run, tree[first:last], keep=last - first - 1, hidden=LAST, reads=reads)
        torch.testing.assert_close(output, expected[first + 1 : last], **CLOSE)
        assert states.shape == (last - first, 32)
    # One path stays, by rising offsets with gaps, and a chain goes on behind it.
    run.move(root, [0, 2, 4])
    kept = [*context, tree[0], tree[2], tree[4]]
    more = forms.text(5, seed=4)
    torch.testing.assert_close(feed(run, more)[0], whole(architecture, kept + more)[-5:], **CLOSE)
    run.truncate(root)
    if root:
        torch.testing.assert_close(feed(run, more)[0], whole(architecture, context + more)[-5:], **CLOSE)


def test_a_path_over_the_edge_of_a_block():
    run, context, tree = runner("llama"), forms.text(30), forms.text(6, seed=2)
    feed(run, context, keep=1)
    feed(run, tree, reads=forms.tree_reads(30, [-1, 0, -1, 2, 3, 4], 6)[0])
    run.move(30, [2, 3, 4, 5])
    more = forms.text(3, seed=4)
    torch.testing.assert_close(feed(run, more)[0], whole("llama", context + tree[2:] + more)[-3:], **CLOSE)


def test_what_masks_cannot_say_is_refused():
    run, context = runner("windowed"), forms.text(30)
    feed(run, context, keep=1)
    with pytest.raises(Unsupported, match=r"no trees beyond a sliding window of 16 tokens; use --runtime static"):
        feed(run, [1, 2], reads=forms.tree_reads(30, [-1, -1], 2)[0])
    chain = forms.tree_reads(30, [-1, 0], 2)[0]  # one that is a chain may be as long as it likes
    torch.testing.assert_close(feed(run, [1, 2], reads=chain)[0], whole("windowed", [*context, 1, 2])[-2:], **CLOSE)
    run = runner("llama")
    with pytest.raises(Unsupported, match=r"lets no token read one that comes later; use --runtime static"):
        feed(run, [1, 2], reads=Reads(torch.ones(2, 2, dtype=torch.bool), torch.arange(2), 0))
    torch.testing.assert_close(feed(run, context)[0], whole("llama", context), **CLOSE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_states(architecture):
    run, text = runner(architecture), forms.text(40)
    logits, states = whole(architecture, text, hidden=True)
    # Every choice of states is another compiled model, over the same cache.
    results = [feed(run, text[:9], hidden=(2, 0)), feed(run, text[9:20]), feed(run, text[20:], keep=1, hidden=LAST)]
    torch.testing.assert_close(torch.cat([results[0][0], results[1][0]]), logits[:20], **CLOSE)
    torch.testing.assert_close(results[2][0], logits[-1:], **CLOSE)
    torch.testing.assert_close(results[0][1], torch.cat([states[2], states[0]], -1)[:9], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(results[2][1], states[-1][20:], rtol=1e-3, atol=1e-3)


def test_sequences_do_not_disturb_each_other_and_results_stay():
    one, other = runner("llama"), runner("llama")
    text, second = forms.text(20), forms.text(20, seed=9)
    first = feed(one, text[:10])[0]
    before = first.clone()
    feed(other, second)
    rest, states = feed(one, text[10:], hidden=(1,))
    held = states.clone()
    feed(other, second[:10], hidden=(1,))
    feed(one, second[:10], hidden=(1,))
    assert torch.equal(first, before) and torch.equal(states, held)
    torch.testing.assert_close(torch.cat([first, rest]), whole("llama", text), **CLOSE)


def test_a_saved_cache_is_a_copy():
    one, text = runner("qwen3"), forms.text(45)
    feed(one, text[:40], keep=1)
    saved = one.save()
    feed(one, forms.text(40, seed=5))
    one.truncate(0)
    feed(one, forms.text(40, seed=6))
    for _ in range(2):
        other = runner("qwen3")
        other.load(saved)
        torch.testing.assert_close(feed(other, text[40:])[0], whole("qwen3", text)[40:], **CLOSE)
        other.truncate(0)
        feed(other, forms.text(40, seed=7))


@pytest.mark.long
def test_twins_of_a_model():
    whole_model, text = model("llama"), forms.text(12)
    for twin in (trimmed(whole_model, torch.arange(0, 96, 3)), slim(whole_model, 8), without(whole_model, {0}, {1})):
        run = runtime().runner(twin)
        with torch.no_grad():
            expected = twin(torch.tensor([text])).logits[0]
        torch.testing.assert_close(feed(run, text)[0], expected, **CLOSE)


def test_an_eagle_head_reads_features_and_grows_its_tree():
    made = copy.deepcopy(forms.eagle("llama")).float()
    made.borrowed = (model("llama").get_input_embeddings(),)
    text, features = forms.text(12), torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    parents = [-1, -1, 0, 1, 2]
    pairs = [Session(made, "draft", vocabulary=48, runtime=one) for one in (runtime(), Session(made, "x").runtime)]
    outs = []
    for session in pairs:
        results = [session.forward(text[:7], keep=1, hidden=LAST, features=features[:7])]
        results.append(session.forward(text[7:9], parents=parents[:2], hidden=LAST, features=features[7:9]))
        results.append(session.forward(text[9:], parents=parents[2:], hidden=LAST, features=features[9:]))
        session.keep(7, [0, 2])
        results.append(session.forward(text[:2], hidden=(0, *LAST), features=features[:2]))
        outs.append(results)
    for ours, theirs in zip(*outs, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
        torch.testing.assert_close(ours.hidden, theirs.hidden, rtol=1e-3, atol=1e-3)


@mostly_long("architecture", ARCHITECTURES, ("opt", "windowed"))
def test_greedy_texts_are_the_oracles(architecture):
    target, draft = model(architecture), model(architecture, seed=1)
    with torch.no_grad():
        noisy = copy.deepcopy(target)
        for mine, other in zip(noisy.parameters(), draft.parameters(), strict=True):
            mine.add_(0.05 * (other - mine))
    prompt = next(prompt for prompt in oracle.prompts(20, seed=8) if len(set(oracle.greedy(target, prompt, 30))) >= 12)
    expected = oracle.greedy(target, prompt, 30)
    vanilla = Vanilla(Session(target, "target", runtime=runtime()))
    assert decode(vanilla, prompt, 30)[0] == expected
    sps = SpS(Session(target, "target", runtime=runtime()), ModelDrafter(Session(noisy, "d", runtime=runtime())), 3)
    text, rounds = decode(sps, prompt, 30)
    assert text == expected
    assert 0 < sum(round_.accepted for round_ in rounds) < sum(round_.drafted for round_ in rounds)


@pytest.mark.long
def test_pocket_texts_are_those_of_eager(pocket):
    fast = dataclasses.replace(pocket, runtime=OpenVINO(CPU))
    prompt = pocket.tokenizer("A box holds 4 hats. There are 6 boxes. How many hats are there?").input_ids
    expected, _ = decode(Vanilla(pocket.session("target")), prompt, 40)
    assert len(set(expected)) >= 12
    assert decode(Vanilla(fast.session("target")), prompt, 40)[0] == expected
    sps = SpS(fast.session("target"), ModelDrafter(fast.session("draft")), 4)
    assert decode(sps, prompt, 40)[0] == expected
    compiled = next(iter(fast.runtime._paged[fast.models["target"]]._compiled.values()))
    kinds = [one.get_rt_info()["layerType"].astype(str) for one in compiled.get_runtime_model().get_ops()]
    layers = pocket.models["target"].config.num_hidden_layers
    counts = {kind: kinds.count(kind) for kind in ("PagedAttention", "RoPE", "RMS")}
    assert counts == {"PagedAttention": layers, "RoPE": 2 * layers, "RMS": 2 * layers + 1}


def never(model):
    raise AssertionError("exported once more")


def kept_file(which):
    return openvino_export.cache_folder() / "openvino" / openvino_export.digest(which)


def test_an_export_is_kept_and_made_anew_if_damaged(monkeypatch):
    own = oracle.tiny("llama", seed=5).float()
    text = forms.text(10)
    with torch.no_grad():
        expected = own(torch.tensor([text])).logits[0]
    first = OpenVINO(CPU)
    first.runner(own)
    assert first.seconds["export"] > 0 and first.seconds["compile"] > 0
    weights = kept_file(own) / "model.bin"
    sound = weights.read_bytes()
    another = oracle.tiny("llama", seed=6).float()
    first.runner(another)
    foreign = (kept_file(another) / "model.bin").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(openvino_export, "traced", never)
        run = OpenVINO(CPU).runner(own)
    torch.testing.assert_close(feed(run, text)[0], expected, **CLOSE)
    for damaged in (sound[: len(sound) // 2], foreign):
        weights.unlink()
        weights.write_bytes(damaged)
        torch.testing.assert_close(feed(OpenVINO(CPU).runner(own), text)[0], expected, **CLOSE)
        assert weights.read_bytes() == sound
    assert sorted(path.name for path in weights.parent.iterdir()) == ["model.bin", "model.xml"]
    assert not [path for path in weights.parent.parent.iterdir() if path.name.startswith("tmp")]


def test_other_weights_are_another_file():
    own = oracle.tiny("llama", seed=5).float()
    before = openvino_export.digest(own)
    assert openvino_export.digest(copy.deepcopy(own)) == before
    with torch.no_grad():
        own.lm_head.weight[0, 0] += 1e-6
    assert openvino_export.digest(own) != before
    assert openvino_export.digest(oracle.tiny("llama", seed=5, rms_norm_eps=1e-5).float()) != before


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_a_checkpoint_in_half_precision_is_computed_in_float32(dtype):
    """With its weights as they are; hidden states have the type that heads of such a model read."""
    half = copy.deepcopy(model("llama")).to(dtype)
    logits, states = feed(runtime().runner(half), text := forms.text(40), hidden=(0, *LAST))
    expected, wide = feed(runtime().runner(copy.deepcopy(half).float()), text, hidden=(0, *LAST))
    assert half.dtype == dtype and torch.equal(logits, expected) and len(set(logits.argmax(-1).tolist())) > 4
    assert states.dtype == dtype and torch.equal(states, wide.to(dtype))


def test_what_cannot_be_run_is_refused(monkeypatch):
    with pytest.raises(Unsupported, match=r"LlamaForCausalLM is float64 on cpu; add --device cpu --dtype float32"):
        runtime().runner(oracle.tiny("llama"))
    with pytest.raises(Unsupported, match="knows no softcap as Gemma2ForCausalLM has it; use --runtime static"):
        runtime().runner(oracle.tiny("gemma2").float())
    with pytest.raises(Unsupported, match="runs on a CPU and not on cuda; add --device cpu"):
        OpenVINO(torch.device("cuda"))
    own = oracle.tiny("qwen2", seed=7).float()

    def broken(*others, **named):
        raise RuntimeError("no such\nop")

    monkeypatch.setattr(openvino_export, "TorchScriptPythonDecoder", broken)
    with pytest.raises(Unsupported, match=r"cannot export Qwen2ForCausalLM \(no such op\); use --runtime static"):
        runtime().runner(own)
    assert own.config._attn_implementation == "eager" and not kept_file(own).exists()


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        Unsupported, match=r"cannot be kept in .*file.openvino .*; set SPECBENCH_CACHE to a writable folder"
    ):
        OpenVINO(CPU).runner(model("llama"))


def test_without_openvino(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"needs OpenVINO: pip install 'specbench-harness\[openvino\]'"):
        OpenVINO(CPU)


def test_what_a_manifest_keeps():
    facts = runtime().facts()
    assert facts["openvino"] == ov.get_version()
    assert {facts["settings"][name] for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")} == {"f32"}
    assert facts["settings"]["INFERENCE_NUM_THREADS"] == torch.get_num_threads()


def test_what_it_lends_another_runtime_goes_on_with():
    target, tokens = model("llama"), oracle.prompts(1, length=40)[0]
    lender = Session(target, "target", runtime=runtime())
    lender.forward(tokens[:-3])
    borrower = Session(target, "draft", runtime=STATIC)
    borrower.adopt(lender.lend(range(2)))
    expected = lender.forward(tokens[-3:]).logits
    torch.testing.assert_close(borrower.forward(tokens[-3:]).logits, expected, rtol=0, atol=1e-3)
