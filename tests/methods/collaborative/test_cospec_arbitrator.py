"""The arbitrator: who reads whom, shared weights, files, runs with it, and one line for all that does not fit."""

import copy
import json
import shutil
from pathlib import Path

import command_line
import naive_cospec as naive
import oracle
import pytest
import torch
import yaml
from builders_engine import made
from cases import architectures
from command_line import call, refused
from cospec_models import ADAPTER, PROMPT, SHIPPED, Counted, arbitrator, cospec, merged, prompt_of, some
from gates import DEVICE, pair
from made_runs import TOKENIZER
from tiny_runs import always, facts, plan_of, rounds_of, samples_of, save_pair, write_suite

from specbench.analysis import compare
from specbench.config import UserError
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.heads import fingerprint, write_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST, Session
from specbench.measure import loop, prepare
from specbench.methods.collaborative.cospec import Block, CoSpec, Learned, Settings, build
from specbench.methods.collaborative.cospec_arbitrator import (
    Adapter,
    Verdicts,
    find_arbitrator,
    load_own,
    new_arbitrator,
    own_parameters,
    with_backbone,
    write_arbitrator,
)
from specbench.results import records
from specbench.results.same_models import same_inputs

here = command_line.here  # every test works in an empty folder


def scrambled(model, seed: int = 5, scale: float = 0.25):
    """Random values for all that an arbitrator has of its own, in place."""
    rng = torch.Generator().manual_seed(seed)
    own = sorted(own_parameters(model).items())
    load_own(model, {name: scale * torch.randn(one.shape, generator=rng, dtype=torch.float64) for name, one in own})
    return model


# Who reads whom


def fed(model, tokens, block: int, cached: int, together: bool):
    """Last hidden states [n, D], where `cached` tokens of the context are in the cache when the rest comes."""
    session = Session(model, "arbitrator")
    parts = [session.forward(tokens[:cached], hidden=LAST).hidden] if cached else []
    rest = torch.tensor(tokens[cached:], device=DEVICE)
    parts.append(session.forward(rest, keep=1, together=block if together else 0, hidden=LAST).hidden)
    return torch.cat(parts)


@pytest.mark.parametrize("hybrid", (True, False), ids=("hybrid", "causal"))
@architectures
def test_what_a_token_changes_is_the_mask(architecture, hybrid):
    """In a model of one layer, another token at k changes the state at q where q may read k, and nowhere else."""
    sizes = {"layer_types": ["sliding_attention"]} if architecture == "gemma2" else {}
    model = oracle.tiny(architecture, num_hidden_layers=1, **sizes).to(DEVICE)
    for name, parameter in model.named_parameters():
        if "q_proj" in name:  # attention that is spread out, or what is read would not show
            parameter.mul_(0.1)
    window = 16 if architecture == "gemma2" else None
    context, block = 19, 8
    (tokens,) = oracle.prompts(1, length=context + block, seed=3)
    for cached in (0, 11, 19):
        before = fed(model, tokens, block, cached, hybrid)
        for k in range(len(tokens)):
            other = [*tokens[:k], (tokens[k] + 1) % 96, *tokens[k + 1 :]]
            changed = (fed(model, other, block, cached, hybrid) - before).abs().amax(-1).tolist()
            expected = [naive.allowed(q, k, context, hybrid, window) for q in range(len(tokens))]
            assert [x > 1e-9 for x in changed] == expected
            assert all(x < 1e-12 for x, reads in zip(changed, expected, strict=True) if not reads)
    if window:
        assert not naive.allowed(18, 2, context, hybrid, window) and naive.allowed(18, 3, context, hybrid, window)


@pytest.mark.parametrize("hybrid", (True, False), ids=("hybrid", "causal"))
@architectures
def test_states_and_logits_are_those_of_the_merged_model(architecture, hybrid):
    """W + (α / r) B A by hand, under the mask by hand; Gemma 2's window of 16 is crossed, by the block too."""
    (text,) = oracle.prompts(1, length=60, seed=8)
    for context, count in ((23, 1), (9, 6), (20, 20)):
        d, t = text[context : context + count], text[context + count : context + 2 * count]
        expected = naive.states(merged(architecture).backbone, [*text[:context], *d, *t], context, hybrid)
        result = fed(arbitrator(architecture), [*text[:context], *d, *t], 2 * count, context - 3, hybrid)
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=1e-4)
        learned = Learned(Session(arbitrator(architecture), "arbitrator", vocabulary=1), 0.5, hybrid)
        learned.begin(text[: context - 2])
        learned.read(text[context - 2 : context])
        mismatches = [i for i in range(count) if d[i] != t[i]]
        logits = learned.logits(Block(d, t, mismatches, torch.tensor([*d, *t], device=DEVICE)))
        wanted = naive.logits(merged(architecture), text[:context], d, t, hybrid)
        assert logits == pytest.approx([wanted[i] for i in mismatches], abs=1e-4)
        assert count == 1 or max(wanted) - min(wanted) > 0.1


def test_the_two_masks_are_told_apart():
    d, t = [5, 6, 7], [5, 9, 8]
    hybrid, causal = (naive.logits(merged("llama"), prompt_of("llama"), d, t, how) for how in (True, False))
    assert min(abs(a - b) for a, b in zip(hybrid, causal, strict=True)) > 1e-2


# Shared weights


@pytest.mark.parametrize("tied", (False, True), ids=("untied", "tied"))
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_weights_are_the_backbones_and_it_stays_as_it_is(architecture, tied):
    backbone = oracle.tiny(architecture, tie_word_embeddings=tied).to(DEVICE).requires_grad_(True)
    before = {name: parameter.data_ptr() for name, parameter in backbone.named_parameters()}
    modules = [name for name, _ in backbone.named_modules()]
    (text,) = oracle.prompts(1, length=30)
    says, print_ = Session(backbone, "draft").forward(text).logits, fingerprint(backbone)
    state = torch.random.get_rng_state()
    model = new_arbitrator(backbone, ADAPTER, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    zero = Session(model, "arbitrator", vocabulary=1).forward(text).logits
    assert zero.shape == (30, 1) and not zero.any()
    own = own_parameters(scrambled(model))

    assert Session(model, "arbitrator", vocabulary=1).forward(text).logits.abs().max() > 0.1
    assert torch.equal(Session(backbone, "draft").forward(text).logits, says)
    assert (fingerprint(backbone), [name for name, _ in backbone.named_modules()]) == (print_, modules)
    assert {name: parameter.data_ptr() for name, parameter in backbone.named_parameters()} == before
    inside = {n.replace(".base_layer", ""): p.data_ptr() for n, p in model.named_parameters() if n not in own}
    tables = {"lm_head.weight"}  # the output layer is the one thing that it does without
    assert inside == {name: place for name, place in before.items() if name not in tables}
    assert all("lora_" in name for name in own.keys() - {"lm_head.weight", "lm_head.bias"})
    assert {"lm_head.weight", "lm_head.bias"} <= own.keys() and own["lm_head.weight"].shape == (1, 32)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == own.keys()
    layers = [n for n, m in backbone.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    adapted = {name.split(".lora_")[0] for name in own if "lora_" in name}
    assert adapted == set(layers) and len(own) == 2 * len(layers) + 2


def test_adapters_begin_as_lora_does_and_by_the_seed():
    """B is 0, A is not, and both are of the rank that was asked for (LoRA, section 4.1)."""
    backbone = oracle.tiny("llama")
    one, same, other = (own_parameters(new_arbitrator(backbone, Adapter(rank=5, alpha=1), s)) for s in (0, 0, 1))
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name])
        if "lora_A" in name:
            assert tensor.shape[0] == 5 and tensor.std() > 0.01 and not torch.equal(tensor, other[name])
        else:
            assert not tensor.any()


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
def test_half_precision_has_a_wide_head(architecture, dtype):
    target, draft = (copy.deepcopy(model).to(dtype) for model in pair(architecture))
    model = scrambled(new_arbitrator(draft, ADAPTER, seed=0))
    assert {p.dtype for p in own_parameters(model).values()} == {torch.float32}
    assert {p.dtype for p in draft.parameters()} == {dtype}
    assert isinstance(model.get_output_embeddings(), Verdicts)
    seen = []

    class Seen(Learned):
        def logits(self, block):
            seen.extend(output := super().logits(block))
            return output

    session = Session(model, "arbitrator", vocabulary=1)
    settings = Settings(**{**SHIPPED, "gamma": 4})
    method = CoSpec(Session(target, "target"), ModelDrafter(Session(draft, "draft")), settings, Seen(session, 0.5), {})
    rounds = some(method, prompt_of(architecture))
    assert session.forward([1, 2], together=2).logits.dtype == torch.float32
    assert len(seen) > 3 and torch.tensor(seen).isfinite().all() and len(set(seen)) > 3
    assert sum(round_.accepted for round_ in rounds)


# Files


def test_a_stored_arbitrator_comes_back(here):
    """As float32; and only with the weights, the backbone and the adapters that it was made with."""
    both = with_backbone(made(), "draft")
    model = scrambled(new_arbitrator(both.models["draft"], ADAPTER, seed=1))
    write_arbitrator(here / "a", model, both, {"rank": 3, "alpha": 7.0})
    arbitrator, head = find_arbitrator(str(here / "a"), with_backbone(made(), "draft"))
    (text,) = oracle.prompts(1, length=30)
    expected, read = (Session(one, "arbitrator", vocabulary=1).forward(text).logits for one in (model, arbitrator))
    torch.testing.assert_close(read, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.1 and list(head.hashes()) == ["head"]
    for own, tensor in own_parameters(arbitrator).items():
        assert torch.equal(tensor.float(), own_parameters(model)[own].float())

    draft = copy.deepcopy(made().models["draft"])
    draft.model.layers[1].mlp.up_proj.weight[3] += 1
    for other in (made(draft=draft), made(target=oracle.tiny("llama", seed=9).to(DEVICE))):
        with pytest.raises(UserError, match="different weights from this"):
            find_arbitrator(str(here / "a"), with_backbone(other, "draft"))
    with pytest.raises(UserError, match="whose arbitrator has different weights"):  # another backbone, the same draft
        find_arbitrator(str(here / "a"), made().with_model("arbitrator", draft))

    for trained in ({}, {"rank": 3}, {"rank": 0, "alpha": 7.0}, {"rank": "many", "alpha": 7.0}):
        write_arbitrator(here / "b", model, both, trained)
        with pytest.raises(UserError, match="does not hold the rank"):
            find_arbitrator(str(here / "b"), both)
    for rank, spoil in ((4, {}), (3, {"lm_head.bias": None}), (3, {"more": torch.zeros(1)})):
        tensors = {**own_parameters(model), **spoil}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        write_head(here / "c", "cospec", tensors, both, {"rank": rank, "alpha": 7.0}, "arbitrator")
        with pytest.raises(UserError, match="adapters for another model"):
            find_arbitrator(str(here / "c"), both)


def test_it_is_built_as_the_settings_say(here):
    """Threshold, mask and γ; each of them makes another text."""
    both = with_backbone(made(), "draft")
    model = scrambled(new_arbitrator(both.models["draft"], ADAPTER, seed=1), scale=0.4)
    write_arbitrator(here / "a", model, both, {"rank": 3, "alpha": 7.0})
    prompt, texts = prompt_of("llama"), []
    for threshold, mask, gamma in ((0.5, "hybrid", 6), (0.5, "causal", 6), (0.05, "hybrid", 6), (0.5, "hybrid", 3)):
        changes = {"arbitrator": str(here / "a"), "threshold": threshold, "mask": mask, "gamma": gamma}
        result = some(build(Settings(**{**SHIPPED, **changes}), both, Counted()), prompt, 60)
        arbiter = Learned(Session(model, "arbitrator", vocabulary=1), threshold, mask == "hybrid")
        expected = some(cospec("llama", gamma, arbiter), prompt, 60)
        assert [one.tokens for one in result] == [one.tokens for one in expected]
        texts.append([token for one in result for token in one.tokens][:60])
    assert all(texts[0] != text for text in texts[1:])


# Through the command


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two tiny models with the bundled tokenizer, a stored arbitrator of theirs, and a suite of three documents."""
    folder = tmp_path_factory.mktemp("pair")
    models = save_pair(folder, 20)
    both = with_backbone(Pair("own", models, TOKENIZER), "draft")
    model = scrambled(new_arbitrator(models["draft"], ADAPTER, seed=1), scale=0.4)
    write_arbitrator(folder / "arbitrator", model, both, {"rank": 3, "alpha": 7.0})
    write_suite(folder, {"pocket_gsm8k": 28}, 3)
    for name in ("never", "always"):
        settings = {"arbiter": name, "gamma": 4}
        (folder / f"{name}.yaml").write_text(
            yaml.safe_dump({"description": name, "method": "cospec", "settings": settings})
        )
    return folder


def planned(place, *assignments, **options):
    methods = ("cospec", str(place / "never.yaml"), str(place / "always.yaml"), "sps")
    own = [f"cospec.arbitrator={place / 'arbitrator'}", "cospec.gamma=4", *assignments]
    return plan_of(place, **({"methods": methods, "assignments": own} | options))


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert loop.execute(planned(place, "cospec.threshold=0.5", "sps.gamma=4"), folder, always)
    return folder


@pytest.mark.long
def test_records_tell_of_the_arbitrator(whole):
    samples, rounds = samples_of(whole), rounds_of(whole)
    assert set(samples.finish) <= {"length", "eos", "stop"}, samples.error.tolist()
    assert (rounds.arbitrator_forwards[rounds["round"] == 0] == (rounds.method == "cospec")[rounds["round"] == 0]).all()
    later = rounds[rounds["round"] > 0]
    others, own = later[later.method != "cospec"], later[later.method == "cospec"]
    assert not others.arbitrator_forwards.any() and not others.arbitrator_seconds.any()
    asked = [any(t != d for t, d in zip(row.target_tokens, row.draft_tokens, strict=True)) for row in own.itertuples()]
    assert own.arbitrator_forwards.tolist() == [int(one) for one in asked] and 0 < sum(asked) < len(asked)
    assert ((own.arbitrator_seconds > 0) == asked).all()
    parts = later.target_seconds + later.draft_seconds + later.arbitrator_seconds
    assert (abs(later.model_seconds - parts) < 1e-9).all() and (later.model_seconds <= later.seconds).all()
    decided = [records.DECISIONS[x] for row in own.decisions for x in row]
    assert {"rescued", "rejected", "accepted"} <= set(decided)
    assert own.rescued.sum() == decided.count("rescued") > 0

    summary = compare.write_summary(whole).set_index("method").arbitrator_share
    spent = samples[samples.method == "cospec"].decode_seconds.sum()
    assert summary["cospec"] == pytest.approx(own.arbitrator_seconds.sum() / spent) and 0 < summary["cospec"] < 1
    assert not summary.drop("cospec").any()
    inputs = json.loads((whole / "manifest.json").read_text())["inputs"]
    assert list(inputs["cospec"]) == ["head"] and inputs["never"] == {}


def test_keeping_none_is_lossless_in_a_run(whole):
    samples = samples_of(whole)
    texts = samples.pivot(index="doc_id", columns="method", values="text")
    assert (texts.never == texts.vanilla).all() and (texts.never == texts.sps).all()
    assert (texts.always != texts.vanilla).any() and (texts.cospec != texts.vanilla).any()
    assert not samples.divergence.notna().any()


def test_a_stopped_run_goes_on_as_if_it_had_not(place, whole, tmp_path):
    plan = planned(place, "cospec.threshold=0.5", "sps.gamma=4")
    assert not loop.execute(plan, tmp_path / "run", lambda progress: progress.done != 1)
    assert loop.execute(plan, tmp_path / "run", always)
    assert facts(tmp_path / "run") == facts(whole)
    forwards = [rounds_of(folder).arbitrator_forwards.tolist() for folder in (tmp_path / "run", whole)]
    assert forwards[0] == forwards[1]
    other = planned(place, "cospec.threshold=0.5", "sps.gamma=4")
    both = with_backbone(prepare.load_models(other), "draft")
    model, _ = find_arbitrator(str(place / "arbitrator"), both)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    changed = place / "arbitrator.old"
    shutil.copy(place / "arbitrator", changed)
    try:
        write_arbitrator(place / "arbitrator", scrambled(model, seed=6), both, {"rank": 3, "alpha": 7.0})
        with pytest.raises(UserError, match="began with different inputs"):
            loop.execute(other, tmp_path / "again", always)
    finally:
        shutil.move(changed, place / "arbitrator")


@pytest.mark.long
def test_sampled_run_goes_on_too(place, tmp_path):
    plan = planned(
        place, "cospec.arbiter=random:0.5", "cospec.candidates=independent", methods=("cospec",), temperature=1.0
    )
    assert loop.execute(plan, tmp_path / "one", always)
    assert not loop.execute(plan, tmp_path / "two", lambda progress: progress.done != 2)
    assert loop.execute(plan, tmp_path / "two", always)
    assert samples_of(tmp_path / "one").text.tolist() == samples_of(tmp_path / "two").text.tolist()
    assert rounds_of(tmp_path / "one").rescued.sum() > 0


@pytest.mark.long
def test_the_oracle_is_told_by_a_run(here):
    (here / "short.yaml").write_text(
        "description: short\ntasks: [{task: pocket_gsm8k, max_new_tokens: 40}]\nlimit: 1\n"
    )
    words = "run --method cospec --suite short.yaml --limit 1 --set cospec.arbiter=oracle --set cospec.gamma=5 --out o"
    result = call(*words.split())
    assert result.exit_code == 0, result.output
    samples, rounds = samples_of(here / "o"), rounds_of(here / "o")
    assert set(samples.finish) <= {"length", "eos", "stop"}, samples.error.tolist()
    own = rounds[rounds.method == "cospec"]
    assert own.rescued.sum() + (own.accepted < own.drafted).sum() > 0
    assert not own.arbitrator_forwards.any()
    # What is looked up for it is no part of its rounds.
    assert own.target_forwards.tolist() == [1] * len(own)


# What does not fit


def ran(pair_, *settings):
    changes = [part for setting in settings for part in ("--set", f"cospec.{setting}")]
    words = ["--suite", "pocket", "--limit", "1", "--allow-code-execution"]
    return refused("run", "--method", "cospec", *words, "--pair", pair_, *changes)


def own_pair(place, draft="draft"):
    return f"target={place / 'target'},draft={draft if '/' in str(draft) else place / draft}"


def renamed(place, folder: Path) -> Path:
    """The draft with one token called otherwise."""
    shutil.copytree(place / "draft", folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    vocabulary, merges = words["model"]["vocab"], words["model"]["merges"]
    rarest = max(vocabulary, key=vocabulary.get)
    words["model"]["merges"] = [m for m in merges if "".join(m if isinstance(m, list) else m.split(" ")) != rarest]
    vocabulary["zzzzzz"] = vocabulary.pop(rarest)
    (folder / "tokenizer.json").write_text(json.dumps(words))
    return folder


def test_models_of_another_tokenizer(place, here, tmp_path):
    other = renamed(place, tmp_path / "renamed")
    text = ran(own_pair(place), f"backbone={other}")
    assert "another tokenizer" in text and str(other) in text
    assert "its draft has another tokenizer" in ran(own_pair(place, other), f"arbitrator={place / 'arbitrator'}")


def test_a_pair_without_a_draft_or_an_arbitrator(place):
    assert "has no draft model" in ran(f"target={place / 'target'}")
    text = ran(own_pair(place))
    assert "no head of cospec ships with" in text and "--set cospec.arbitrator=FILE" in text


def test_another_backbone_is_read(place):
    """The target as the backbone, with an arbitrator that was made for it."""
    both = with_backbone(prepare.load_models(planned(place)), str(place / "target"))
    assert fingerprint(both.models["arbitrator"]) == fingerprint(both.models["target"])
    model = scrambled(new_arbitrator(both.models["arbitrator"], ADAPTER, seed=0))
    file = place / "large"
    write_arbitrator(file, model, both, {"rank": 3, "alpha": 7.0})
    settings = Settings(**{**SHIPPED, "gamma": 2, "arbitrator": str(file), "backbone": str(place / "target")})
    watch = Counted()
    method = build(settings, prepare.load_models(planned(place)), watch)
    some(method, oracle.prompts(1, length=PROMPT, vocab=len(TOKENIZER))[0], 12)
    assert method.inputs().keys() == {"head", "backbone"} and len(watch.arbitrator()) > 1
    assert {model for model, *_ in watch.forwards} == {"target", "draft", "arbitrator"}

    shutil.copytree(place / "target", place / "edited")
    report = json.loads((place / "edited" / "config.json").read_text())
    (place / "edited" / "config.json").write_text(json.dumps(report | {"rms_norm_eps": 0.01}))
    edited = build(settings.model_copy(update={"backbone": str(place / "edited")}), both, watch).inputs()
    assert edited["head"] == method.inputs()["head"] and edited["backbone"] != method.inputs()["backbone"]
    assert not same_inputs(method.inputs(), edited)
    assert same_inputs({"head": edited["head"]}, edited), "runs of earlier versions do not tell it"
    assert not same_inputs(edited, {"head": edited["head"]}) and not same_inputs({}, edited)
