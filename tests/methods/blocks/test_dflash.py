"""Block drafts: the head and its lattice against a second implementation without cache; lossless at any temperature.

Heads of DFlash and DFlare, which mix the target's layers, decode by the same code.
"""

import copy
import math

import oracle
import pytest
import torch
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from hypothesis import given, settings
from hypothesis import strategies as st
from law import V, fit, small_target
from official import dflash as own
from official_cases import official_cases
from peer_heads import dflash_assistant
from recalled import recalled
from refusals import one_line_error
from tiny_blocks import head, in_file, kind_of, naive_lattice, naive_parts, recipe_of, trained
from transformers import Qwen3Config
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from specbench import config
from specbench.engine.accept import exact
from specbench.engine.models.block_head import BlockHead, first_mix, spread
from specbench.engine.models.heads import Head
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.speculate import read_once, read_prompt
from specbench.engine.types import Draft, Sampling
from specbench.methods.blocks import dflash
from specbench.methods.blocks.dflash import BlockDrafter, DFlash, SlotDrafter, block_head
from specbench.training.answered import Answered
from specbench_extras.deer.deer import TextDrafter
from specbench_extras.dflash.fit import SlotTraining, new_head

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
LONG = pytest.mark.long
CASES = [pytest.param(name, marks=() if name in ("llama", "gemma2") else LONG) for name in oracle.ARCHITECTURES]


KINDS = ("dflash", "dflare", "deer")


def drafter(model: BlockHead, block: int = 5, proposal: str = "likeliest", vocabulary: int = 96) -> SlotDrafter:
    made = TextDrafter if kind_of(model) == "deer" else BlockDrafter
    return made(model, Session(model, "draft", vocabulary=vocabulary), block, proposal)


def method(architecture: str, model: BlockHead, block: int = 5, proposal: str = "likeliest") -> DFlash:
    return decoding(Session(pair(architecture)[0], "target"), drafter(model, block, proposal))


def decoding(target: Session, used: SlotDrafter) -> DFlash:
    return DFlash(target, used, {})


# The head


def test_which_layers_are_read():
    """Qwen3-8B's, whose head was released with these; then targets with few layers."""
    assert spread(36, 5) == [1, 9, 17, 25, 33] and spread(12, 3) == [1, 5, 9] and spread(8, 1) == [4]
    assert [spread(layers, 3) for layers in (5, 4, 2, 1)] == [[1, 2, 2], [1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert head("llama").hidden == (2, 2)


@pytest.mark.parametrize(
    ("architecture", "block", "kind"),
    [
        ("llama", 5, "dflash"),
        ("llama", 5, "dflare"),
        ("llama", 5, "deer"),
        ("gemma2", 2, "dflash"),
        *(pytest.param(name, 5, "dflash", marks=LONG) for name in ("opt", "gemma2")),
        *(pytest.param("gemma2", 5, kind, marks=LONG) for kind in ("dflare", "deer")),
    ],
)
def test_every_lattice_equals_one_without_cache(monkeypatch, architecture, block, kind):
    """After full, partial and no acceptance: which features are read, and at which places, shows in the logits."""
    model = trained(architecture, 12, kind)
    if model.mixed:
        assert len({round(float(share), 6) for share in model.layer_fusion_weights.softmax(-1).flatten()}) == 4
    seen, lattice = [], SlotDrafter.lattice

    def spied(self, context):
        logits = lattice(self, context)
        seen.append((list(context), logits))
        return logits

    monkeypatch.setattr(SlotDrafter, "lattice", spied)
    prompt, _ = lively_prompt(architecture, 12, 30)
    _, rounds = decode(method(architecture, model, block), prompt, 20)
    chosen = {round_.accepted: i for i, round_ in reversed(list(enumerate(rounds[:-1]))) if i}
    assert len(chosen) >= 2 and 0 in chosen
    for context, logits in [seen[0], *(seen[i] for i in chosen.values())]:
        assert torch.allclose(logits.cpu(), naive_lattice(architecture, model, context, block), atol=1e-4)
    assert logits.std() > 0.1


@pytest.mark.parametrize("kind", ["dflash", "dflare"])
def test_blocks_are_those_of_its_own_code(monkeypatch, kind):
    """24 greedy texts of tiny targets, 12 of DFlare's, and the block of every round, of three sizes."""
    drafts: list[list[int]] = []
    propose = SlotDrafter.propose

    def kept(self, *arguments):
        draft = propose(self, *arguments)
        drafts.append(draft.tokens.tolist())
        return draft

    monkeypatch.setattr(SlotDrafter, "propose", kept)
    for case in official_cases(kind):
        target = own.target(case["seed"])
        words, output = target.get_input_embeddings(), target.get_output_embeddings()
        facts = Qwen3Config(**own.config(2))
        model = BlockHead(facts, own.READ, case["block"], words, output, mixed=kind == "dflare").double()
        tensors = own.weights(model, 1000 + case["seed"])
        model.load_state_dict({**tensors, "mask": words.weight[own.MASK]})
        model.eval().requires_grad_(False)
        drafter = BlockDrafter(model, Session(model, "draft", vocabulary=own.WORDS), case["block"], "likeliest")
        drafts.clear()
        used = DFlash(Session(target, "target"), drafter, {})
        text, _ = decode(used, own.prompt(case["seed"]), own.NEW, device="cpu")
        left_out = [own.MASK] if kind == "dflare" else []  # it takes this token for a place that is not filled
        assert [token for token in text if token not in left_out] == case["text"]
        assert drafts == case["drafts"][: len(drafts)]
        assert len(case["drafts"]) - len(drafts) in (0, 1)  # there the last token is read before the end


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 95)), min_size=1, max_size=6),
    st.integers(1, 9),
    st.sampled_from(KINDS),
)
def test_the_cache_equals_a_recomputation_after_any_rounds(rounds, length, kind):
    """Any number of accepted tokens, any token after them; keys and values are as in one reading of the whole text."""
    target, model = Session(pair("llama")[0], "target"), head("llama", kind=kind)
    used = drafter(model)
    context = oracle.prompts(1, length=length)[0]
    rng = torch.Generator(DEVICE).manual_seed(length)
    used.begin(context)
    if isinstance(used, BlockDrafter):
        read_prompt(target, used, context)
    context = [*context, 7]
    for accepted, token in rounds:
        draft = used.propose(context, 4, GREEDY, rng)
        if isinstance(used, TextDrafter):  # reads nothing of the target
            context += [*draft.tokens[:accepted].tolist(), token]
            continue
        scored = read_once(target, context[-1:], draft, used.reads)
        # What the target would accept is chosen: the rule sees logits that prefer the draft up to there.
        wanted = scored.logits.clone()
        wanted[torch.arange(accepted), draft.tokens[:accepted]] = 1e4
        if accepted < 4:
            wanted[accepted, draft.tokens[accepted]] = -1e4
        verdict = exact(draft, scored._replace(logits=wanted), GREEDY, rng)
        assert verdict.accepted == accepted
        used.observe(scored, verdict)
        target.keep(len(context), verdict.path)
        context += [*verdict.drafted[:accepted], token]
    used.lattice(context)  # which reads the rest
    with torch.inference_mode():
        whole = pair("llama")[0](torch.tensor([context[:-1]], device=DEVICE), output_hidden_states=True)
        states = torch.cat([whole.hidden_states[i][0] for i in model.hidden], -1) if model.hidden else None
        fresh = Session(model, "draft", vocabulary=96)
        fresh.forward(context[:-1], features=model.features(torch.tensor(context[:-1], device=DEVICE), states))
    assert used.session.tokens == context[:-1]
    for one, other in zip(used.session._runner.save(), fresh._runner.save(), strict=True):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))


# Greedy texts


@pytest.mark.parametrize("architecture", CASES)
def test_greedy_texts_are_the_targets(architecture):
    """A random head, and one that is often right; Gemma 2's window of 16 is crossed."""
    prompt, text = lively_prompt(architecture, 12, 30)
    assert text == oracle.greedy(naive_parts(architecture)[0], prompt, 30) and len(set(text)) >= 12
    assert decode(method(architecture, head(architecture)), prompt, 30)[0] == text
    for block in (5, 3):
        tokens, rounds = decode(method(architecture, trained(architecture, 12), block, "drawn"), prompt, 30)
        assert tokens == text
        assert max(round_.accepted for round_ in rounds) >= 1
    assert decode(method(architecture, trained(architecture, 12, "dflare")), prompt, 30)[0] == text
    # Another prompt, a head that does not know it, and prompts of one and two tokens.
    for other in (oracle.prompts(1, length=20, seed=9)[0], [5], [7, 3]):
        expected = oracle.greedy(naive_parts(architecture)[0], other, 12)
        assert decode(method(architecture, trained(architecture, 12)), other, 12)[0] == expected


@pytest.mark.long
def test_a_trained_head_drafts_better_than_a_random_one_by_a_token_a_round():
    """Of texts that it has learned; what it commits in a round."""
    prompt, _ = lively_prompt("llama", 12, 30)
    rounds = [len(decode(method("llama", model), prompt, 30)[1]) for model in (head("llama"), trained("llama", 60))]
    assert 30 / rounds[1] - 30 / rounds[0] > 1


def test_nothing_is_left_of_the_last_prompt():
    used = method("llama", trained("llama", 12), proposal="drawn")
    prompt, _ = lively_prompt("llama", 12, 30)
    first = decode(used, prompt, 30)
    assert decode(used, prompt, 30) == first
    sampling = Sampling(0.9)
    again = decode(used, prompt, 20, sampling, seed=3)
    assert again == decode(method("llama", trained("llama", 12), proposal="drawn"), prompt, 20, sampling, seed=3)


def test_forwards_and_reach():
    """One forward of the head, over what it has not read and the block, and one of the target, of the block."""
    fed = []

    class Spied(Session):
        def forward(self, tokens, *others, **named):
            fed.append((self.role, len(tokens), len(self)))
            return super().forward(tokens, *others, **named)

    model = trained("llama", 12)
    used = DFlash(
        Spied(pair("llama")[0], "target"),
        BlockDrafter(model, Spied(model, "draft", vocabulary=96), 4, "likeliest"),
        {},
    )
    rounds = used.rounds([1, 2, 3, 4], GREEDY, torch.Generator(DEVICE))
    committed = [*next(rounds).tokens]
    assert fed == [("target", 4, 0), ("draft", 4, 0)]
    for _ in range(6):
        fed.clear()
        length, known = 4 + len(committed), len(used.drafter.session)
        verdict = next(rounds)
        committed += verdict.tokens
        assert fed == [("draft", length - known + 3, known), ("target", used.reach, length - 1)]
        assert verdict.drafted == 3 and len(used.drafter.session) == length - 1


# Sampling


def drawn(sampling, proposal, draws=450, kind="dflash"):
    """How texts of three tokens fit the target's law."""
    target = small_target()
    model = block_head(in_file(new_head(target, recipe_of(kind, block=4), 2, kind)), target)
    used = drafter(model, 4, proposal, V)
    return fit(decoding(recalled(target, "target"), used), target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sampling", "proposal", "kind"),
    # Of this head the likeliest tokens lie outside the target's nucleus: there they would all be rejected.
    [
        (Sampling(1.0), "likeliest", "dflash"),
        (Sampling(1.0), "likeliest", "deer"),
        *((Sampling(1.0), "drawn", kind) for kind in KINDS),
        (Sampling(0.7, top_p=0.9), "drawn", "dflash"),
    ],
    ids=str,
)
def test_samples_from_the_target(sampling, proposal, kind):
    p, stood, fell = drawn(sampling, proposal, kind=kind)
    assert p > ALPHA
    assert stood > 20 and fell > 100


def test_a_draft_says_what_its_tokens_were_drawn_from(monkeypatch):
    """A draw by itself is a point mass; a token of a slot comes as often as the slot's distribution says."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], device=DEVICE)
    monkeypatch.setattr(BlockDrafter, "lattice", lambda self, context: logits)
    rng, sampling = torch.Generator(DEVICE).manual_seed(0), Sampling(0.7, top_k=2)
    likeliest = drafter(head("llama")).propose([1], 4, sampling, rng)
    assert likeliest.tokens.tolist() == [2, 0] and likeliest.probs is None
    used = drafter(head("llama"), proposal="drawn")
    assert used.propose([1], 4, GREEDY, rng).probs is None
    counts = torch.zeros(2, 3)
    for _ in range(400):
        draft = used.propose([1], 4, sampling, rng)
        counts[torch.arange(2), draft.tokens.cpu()] += 1
    share = 1 / (1 + math.exp(-1 / 0.7))  # of the likelier one of the first slot's two
    assert draft.probs[0].tolist() == pytest.approx([0, 1 - share, share])
    assert float(counts[0, 2]) / 400 == pytest.approx(share, abs=0.08) and counts[0, 0] == 0


@pytest.mark.long
def test_a_greedy_test_of_sampled_drafts_is_found(monkeypatch):
    """As a build of an engine does that lacks its kernel for sampled trees."""
    monkeypatch.setattr(dflash, "exact", lambda draft, scored, sampling, rng: exact(draft, scored, GREEDY, rng))
    assert drawn(Sampling(1.0), "likeliest", 200).p < ALPHA


@pytest.mark.long
def test_likeliest_tokens_as_if_they_were_drawn_are_found(monkeypatch):
    def wrong(self, context, gamma, sampling, rng):
        logits = self.lattice(context)
        return Draft(logits.argmax(-1), probabilities(logits, sampling))

    monkeypatch.setattr(BlockDrafter, "propose", wrong)
    assert drawn(Sampling(1.0), "likeliest").p < ALPHA


# Heads in files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, _: t.update({"fc.weight": t["fc.weight"][:, :40]}), "fc.weight"),
        (lambda t, _: t.update({"norm.weight": t["norm.weight"][:5]}), "norm.weight"),
        (lambda t, _: t.pop("layers.1.mlp.up_proj.weight"), "Missing key(s)"),
        (lambda t, _: t.update({"layers.7.norm.weight": t["norm.weight"]}), "Missing key(s)"),
        (lambda t, _: t.pop("mask"), "Missing key(s)"),
        (lambda _, facts: facts.pop("config"), "'config'"),
        (lambda _, facts: facts["config"].pop("head_dim"), "'head_dim'"),
        (lambda _, facts: facts["config"].update(num_attention_heads=10**9), "wide"),
        (lambda _, facts: facts.update(layers=[1, 2]), "reads layers [1, 2] of 2"),
        (lambda _, facts: facts.update(layers=[]), "reads layers []"),
        (lambda _, facts: facts.update(block=1), "blocks are of 1"),
        (lambda _, facts: facts.update(block="5"), "blocks are of 5"),
        (lambda t, _: t.update({"layer_fusion_weights": torch.zeros(2, 2)}), "Unexpected key(s)"),
    ],
)
def test_tensors_that_are_no_head(change, words):
    made = in_file(head("llama"))
    tensors, facts = dict(made.tensors), {**made.trained, "config": dict(made.trained["config"])}
    change(tensors, facts)
    with one_line_error(words, "train or import"):
        block_head(Head("dflash", tensors, facts), pair("llama")[0])


def test_a_head_of_the_text_alone_reads_no_layers():
    made = in_file(head("llama", kind="deer"))
    with one_line_error("it reads layers [1] of the target, and may read none", "train or import"):
        block_head(Head("deer", dict(made.tensors), {**made.trained, "layers": [1]}), pair("llama")[0])


def test_a_mixed_head_begins_with_a_layer_of_its_own():
    """DFlare's official code: 2 where ⌊d / L · T⌋ = t; and heads of one form are not read as the other."""
    assert first_mix(7, 9).nonzero()[:, 1].tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert first_mix(2, 3).tolist() == [[2, 0, 0], [0, 2, 0]]
    made = in_file(head("llama", kind="dflare"))
    assert "fc.weight" not in made.tensors and "layers.0.self_attn.k_proj_target.weight" in made.tensors
    with one_line_error("the head for dflash is damaged", "Missing key(s)"):
        block_head(Head("dflash", made.tensors, made.trained), pair("llama")[0])


@pytest.mark.parametrize("name", KINDS)
def test_the_settings_are_the_papers(name):
    assert config.load_method(name).values == {"block": 0, "proposal": "likeliest", "head": "auto"}


@pytest.mark.parametrize("block", (2, pytest.param(4, marks=LONG), 5))
def test_texts_and_accepted_counts_are_those_of_transformers_generation(block, monkeypatch):
    """A head that has learned one of three texts; transformers has its mask among the target's tokens."""
    target, mask = copy.deepcopy(pair("llama")[0]).cpu(), 95
    prompt, text = lively_prompt("llama", 12, 40)
    run = SlotTraining(
        target, [Answered("one", prompt + text[:30], 12)], 96, recipe_of("dflash", block=block, epochs=12), 0
    )
    run.head.layers_read = (0, 1)
    for _ in range(run.steps):
        run.learn(run.answered)
        run.step += 1
    head = block_head(in_file(run.head), target)
    with torch.no_grad():
        target.get_input_embeddings().weight[mask] = head.mask
    theirs, matches, drafts = dflash_assistant(head, mask), [], []
    propose = DFlashTokenCandidateGenerator.get_candidates

    def noted(self, input_ids, *args, **kwargs):
        matches.append(kwargs["n_last_matches"])
        made = propose(self, input_ids, *args, **kwargs)
        drafts.append(made[0][0, input_ids.shape[1] :].tolist())
        return made

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", noted)
    accepted = 0
    for seed, asked in enumerate((prompt, *oracle.prompts(2, length=9, seed=4))):
        assert mask not in asked
        matches.clear(), drafts.clear()
        said = target.generate(
            torch.tensor([asked]),
            assistant_model=theirs,
            speculation_type="dflash",
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
        )[0, len(asked) :].tolist()
        tokens, rounds = decode(DFlash(Session(target, "target"), drafter(head, block), {}), asked, 40)
        assert tokens == said
        counts = matches[2:]  # nothing was drafted before the first two calls
        mine = [round_.accepted for round_ in rounds[1:]]
        assert mine[: len(counts)] == counts and len(mine) <= len(counts) + 1, seed
        whole = [draft for draft in drafts if len(draft) == block - 1]
        assert [round_.verdict.drafted for round_ in rounds[1:]][: len(whole)] == whole
        accepted += sum(counts)
    assert accepted >= 5
