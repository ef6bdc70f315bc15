"""EAGLE-3: the head and its trees against a second implementation without cache; lossless at any temperature."""

import copy
import functools
import json
import types

import naive_eagle as naive
import oracle
import pytest
import torch
from cases import architectures, mostly_long
from drafted_trees import paths
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from law import V, fit, small_target
from recalled import recalled
from refusals import one_line_error
from tabled import draw_for_each_branch
from tiny_heads import head, in_file, trained
from weights import weights_of

from pocket.corpus import prompt_and_completion
from specbench import config
from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.heads import Head, find_head
from specbench.engine.session import LAST, Session
from specbench.engine.types import Sampling
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter, eagle_head, grow
from specbench.training.eagle3.fit import new_head

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
SHIPPED = config.load_method("eagle3").values
HEADS = {"opt": (4, 1)}  # attention heads of the tiny models, and how many share a key


def method(architecture: str, model: EagleHead, total: int = 16, top_k: int = 4, depth: int = 3) -> Eagle3:
    target = pair(architecture)[0]
    session = Session(model, "draft", vocabulary=model.config.vocab_size)
    return Eagle3(Session(target, "target"), EagleDrafter(model, session, layers_read(target), total, top_k, depth), {})


@functools.cache
def on_cpu(architecture: str):
    return copy.deepcopy(pair(architecture)[0]).cpu()


def naive_states(architecture: str, model: EagleHead, text: list[int], drafted: list[int]):
    """The head's states behind x_1 … of a text that the target has read but for its last token, then of a path."""
    target = on_cpu(architecture)
    with torch.no_grad():
        out = target(torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True)
        # What enters layers 2, L/2 and L - 3 of a model of two layers, as near as there are: 1, 1 and 0.
        seen = torch.cat([out.hidden_states[i][0] for i in (1, 1, 0)], -1)
        weights = weights_of(model)
        table = target.get_input_embeddings().weight.double()
        scale = getattr(target.get_input_embeddings(), "embed_scale", 1.0)
        heads, groups = HEADS.get(architecture, (4, 2))
        result = naive.states(weights, table * float(scale), [*text[1:], *drafted], seen, heads, groups)
        return weights, result


# The head


def test_which_states_are_read():
    def target(count):
        text = types.SimpleNamespace(num_hidden_layers=count)
        return types.SimpleNamespace(config=types.SimpleNamespace(get_text_config=lambda: text))

    assert layers_read(target(32)) == (2, 16, 29) and layers_read(target(12)) == (2, 6, 9)
    assert [layers_read(target(n)) for n in (5, 3, 2, 1)] == [(2, 2, 2), (2, 1, 0), (1, 1, 0), (0, 0, 0)]


@pytest.mark.parametrize("architecture", ("llama", "opt", "gemma2"))
def test_the_head_equals_one_without_cache(architecture):
    """Features of the target first, in two parts; then two branches, fed level by level, which share a beginning."""
    model = head(architecture)
    text, (left, right) = oracle.prompts(1, length=12)[0], ([3, 5, 7], [3, 9, 2])
    target = Session(pair(architecture)[0], "target")
    seen = target.forward(text[:-1], hidden=layers_read(target.model)).hidden
    session = Session(model, "draft", vocabulary=48)
    features = model.fuse(seen)
    rows = [session.forward(text[1:5], features=features[:4]).logits]
    last = session.forward(text[5:], features=features[4:], hidden=LAST)
    rows.append(last.logits)
    first = session.forward([3], parents=[-1], features=last.hidden[-1:], hidden=LAST)
    both = first.hidden.expand(2, -1)
    second = session.forward([left[1], right[1]], parents=[0, 0], features=both, hidden=LAST)
    third = session.forward([left[2], right[2]], parents=[1, 2], features=second.hidden, hidden=LAST)
    for branch, path in enumerate((left, right)):
        weights, states = naive_states(architecture, model, text, path)
        expected = torch.stack([naive.predicted(weights, state) for state in states])
        results = [*rows, first.logits, second.logits[branch : branch + 1], third.logits[branch : branch + 1]]
        assert torch.allclose(torch.cat(results).cpu(), expected, atol=1e-4)
        assert torch.allclose(third.hidden[branch].cpu(), states[-1], atol=1e-4)
    assert expected.std() > 0.5


# The tree


def test_a_tree_by_hand():
    """Four tokens; top 2, two levels behind the first, five nodes. Values are sums of log-probabilities.

    Level 1: a (.6), b (.3). Behind a: b .5 -> .30, c .4 -> .24; behind b: a .9 -> .27, d .1 -> .03. Read next: ab, ba.
    Behind ab: c .5 -> .15, d .2 -> .06; behind ba: d .99 -> .2673, a .004. Best five: a .6, b .3 and ab .30 (b came
    first), ba .27, bad .2673. ac (.24) is not among them.
    """
    a, b, c, d = range(4)
    chances = {
        (): [0.6, 0.3, 0.06, 0.04],
        (a,): [0.05, 0.5, 0.4, 0.05],
        (b,): [0.9, 0.0, 0.0, 0.1],
        (a, b): [0.15, 0.15, 0.5, 0.2],
        (b, a): [0.004, 0.003, 0.003, 0.99],
    }
    logits = {path: torch.tensor(row, dtype=torch.float64, device=DEVICE).log() for path, row in chances.items()}
    asked = []

    def read(tokens, followed):
        before = [()] * len(tokens) if followed is None else [asked[-1][i] for i in followed.tolist()]
        asked.append([(*path, token) for path, token in zip(before, tokens.tolist(), strict=True)])
        return torch.stack([logits[path] for path in asked[-1]])

    grown = grow(logits[()], read, top_k=2, depth=2, most=5)
    assert asked == [[(a,), (b,)], [(a, b), (b, a)]]
    assert grown.tokens.tolist() == [a, b, b, a, d] and grown.parents.tolist() == [-1, -1, 0, 1, 3]
    asked.clear()
    every = grow(logits[()], read, top_k=2, depth=2, most=100)
    assert every.tokens.tolist() == [a, b, b, c, a, d, c, d, d, a]
    assert every.parents.tolist() == [-1, -1, 0, 0, 1, 1, 2, 2, 4, 4]
    asked.clear()
    chain = grow(logits[()], read, top_k=1, depth=2, most=100)
    assert chain.tokens.tolist() == [a, b, c] and chain.parents.tolist() == [-1, 0, 1]
    assert grow(logits[()], read, top_k=3, depth=0, most=2).tokens.tolist() == [a, b]


def test_a_child_as_good_as_its_parent_comes_behind_it():
    """Tokens that are certain: all values on the path are equal, and a cut must not leave a child alone."""
    certain = torch.full((4,), -torch.inf, device=DEVICE)
    certain[2] = 0.0
    grown = grow(certain, lambda tokens, _: certain.expand(len(tokens), -1), top_k=2, depth=4, most=3)
    assert grown.tokens.tolist() == [2, 2, 2] and grown.parents.tolist() == [-1, 0, 1]


@mostly_long("architecture", ("llama", "gemma2"), ("gemma2",))
@mostly_long("size", ((24, 3, 3), (8, 1, 5)), ((8, 1, 5),), ids=str)
def test_every_draft_equals_one_without_cache(monkeypatch, architecture, size):
    """Behind full, partial and no acceptance: which features are read, and with which tokens, shows in the tree."""
    model = trained(architecture, 12)
    drafts, propose = [], EagleDrafter.propose

    def spied(self, context, *others):
        draft = propose(self, context, *others)
        drafts.append((list(context), draft))
        return draft

    monkeypatch.setattr(EagleDrafter, "propose", spied)
    prompt, _ = lively_prompt(architecture, 12, 30)
    _, rounds = decode(method(architecture, model, *size), prompt, 20)
    ids, (total, top_k, depth) = model.ids.tolist(), size
    # The first draft, and the first one behind each number of accepted tokens.
    chosen = {one.accepted: i for i, one in reversed(list(enumerate(rounds[:-1]))) if i}
    assert len(chosen) >= 3 and 0 in chosen
    for context, draft in [drafts[0], *(drafts[i] for i in chosen.values())]:

        def behind(path, context=context):
            weights, states = naive_states(architecture, model, context, [ids[i] for i in path])
            return naive.predicted(weights, states[-1]).tolist()

        expected = [tuple(ids[i] for i in path) for path in naive.tree(behind, top_k, depth, total - 1)]
        drafted = paths(draft.tokens.tolist(), draft.parents)
        assert drafted == expected


# Greedy texts


@architectures
def test_greedy_texts_are_the_targets(architecture):
    """A random head, and one that is often right; Gemma 2's window of 16 is crossed."""
    prompt, text = lively_prompt(architecture, 12, 30)
    assert text == oracle.greedy(on_cpu(architecture), prompt, 30) and len(set(text)) >= 12
    for size in ((16, 4, 3), (8, 1, 5)):
        assert decode(method(architecture, head(architecture), *size), prompt, 30)[0] == text
        tokens, rounds = decode(method(architecture, trained(architecture, 30), *size), prompt, 30)
        assert tokens == text
        assert len(rounds) < 20 and max(round_.accepted for round_ in rounds) >= 2
    # Another prompt, a head that does not know it, and prompts of one and two tokens.
    for other in (oracle.prompts(1, length=20, seed=9)[0], [5], [7, 3]):
        expected = oracle.greedy(on_cpu(architecture), other, 12)
        assert decode(method(architecture, trained(architecture, 30)), other, 12)[0] == expected


def test_others_than_the_likeliest_stand_too_and_nothing_is_left_of_the_last_prompt():
    used = method("llama", trained("llama", 12), 30, 4, 3)
    prompt, text = lively_prompt("llama", 12, 30)
    tokens, rounds = decode(used, prompt, 30)
    paths = [round_.verdict.path for round_ in rounds if round_.verdict]
    firsts = [
        {round_.verdict.parents.index(p) for p in set(round_.verdict.parents)} for round_ in rounds if round_.verdict
    ]
    assert tokens == text and any(set(path) - first for path, first in zip(paths, firsts, strict=True))
    assert decode(used, prompt, 30) == (tokens, rounds)
    sampling = Sampling(0.9)
    again = decode(used, prompt, 20, sampling, seed=3)
    assert again == decode(method("llama", trained("llama", 12), 30, 4, 3), prompt, 20, sampling, seed=3)


def test_forwards_and_reach(pocket):
    """depth + 1 forwards of the head, one of the target with the whole tree, and no more than `reach` tokens."""
    fed = []

    class Spied(Session):
        def forward(self, tokens, *others, **named):
            fed.append((self.role, len(tokens), len(self)))
            return super().forward(tokens, *others, **named)

    target, model = pair("llama")[0], trained("llama", 30)
    session = Spied(model, "draft", vocabulary=96)
    drafter = EagleDrafter(model, session, layers_read(target), 16, 4, 3)
    used = Eagle3(Spied(target, "target"), drafter, {})
    rounds = used.rounds([1, 2, 3, 4], GREEDY, torch.Generator(DEVICE))
    committed = [*next(rounds).tokens]
    assert fed == [("target", 4, 0), ("draft", 3, 0)]
    for _ in range(6):
        fed.clear()
        length, known = 4 + len(committed), len(session)
        one = next(rounds)
        committed += one.tokens
        assert fed[0] == ("draft", length - 1 - known, known) and len(session) == length - 1
        assert [width for _, width, _ in fed[1:]] == [4, 4, 4, used.reach] and fed[-1][0] == "target"
        assert len(one.verdict.drafted) == 15


# Sampling


def drawn(sampling, draws=450):
    """How texts of three tokens fit the target's law; four of five tokens can be drafted."""
    target = small_target()
    model = eagle_head(in_file(new_head(target, (0, 1, 3, 4), 2)), target, V)
    drafter = EagleDrafter(model, Session(model, "draft", vocabulary=4), layers_read(target), 8, 3, 1)
    return fit(Eagle3(recalled(target, "target"), drafter, {}), target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling):
    p, stood, fell = drawn(sampling)
    assert p > ALPHA
    assert stood > 100 and fell > 100


@pytest.mark.long
def test_a_draw_of_its_own_for_each_sibling_is_found(monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert drawn(Sampling(1.0))[0] < ALPHA


# Heads in files


def spoiled(change):
    made = in_file(head("llama"))
    tensors, trained_as = dict(made.tensors), {"config": dict(made.trained["config"])}
    change(tensors, trained_as)
    return Head("eagle3", tensors, trained_as)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, _: t.update({"lm_head.weight": t["lm_head.weight"][:40]}), "d2t does not map"),
        (lambda t, _: t["d2t"].__setitem__(3, 90.0), "d2t does not map"),
        (lambda t, _: t["d2t"].__setitem__(-1, 49.0), "d2t does not map"),
        (lambda t, _: t["d2t"].__setitem__(0, -1.0), "d2t does not map"),
        (lambda t, _: t.update({"fc.weight": t["fc.weight"][:, :64]}), "fc.weight"),
        (lambda t, _: t.update({"norm.weight": t["norm.weight"][:5]}), "norm.weight"),
        (lambda _, facts: facts.pop("config"), "'config'"),
        (lambda _, facts: facts["config"].pop("head_dim"), "'head_dim'"),
        (lambda _, facts: facts["config"].update(num_attention_heads=3), "validate_architecture"),
    ],
)
def test_tensors_that_are_no_head(change, words):
    with one_line_error(words, "train or import"):
        eagle_head(spoiled(change), pair("llama")[0], 96)


def test_a_head_reads_as_wide_as_its_target_embeds():
    odd = oracle.tiny("opt", word_embed_proj_dim=16)
    lonely = types.SimpleNamespace(models={"target": odd}, name="odd")
    with pytest.raises(config.UserError, match="OPTForCausalLM has 16 and 32; choose another target"):
        eagle3.build(eagle3.Settings(**SHIPPED), lonely, None)


def test_the_settings_are_the_official_codes():
    assert {**SHIPPED, "head": None} == {"total_tokens": 60, "top_k": 10, "depth": 7, "head": None}
    chain = config.load_method("eagle3-chain")
    assert chain.method == "eagle3" and chain.values == {**SHIPPED, "top_k": 1}


@pytest.mark.parametrize(("size", "reach"), [((60, 1, 7), 9), ((60, 10, 7), 60), ((5, 10, 0), 5), ((60, 2, 1), 7)])
def test_the_reach_is_that_of_the_largest_tree(pocket, size, reach):
    values = dict(zip(("total_tokens", "top_k", "depth"), size, strict=True))
    assert eagle3.build(eagle3.Settings(**{**SHIPPED, **values}), pocket, None).reach == reach


# The shipped head


@mostly_long("family", ("gsm8k", "cnndm"), ("gsm8k",))
def test_the_shipped_head_is_the_targets_and_beats_its_own_chain(pocket, family):
    """On a test document, which it did not learn: trees commit more tokens a round than chains of the same head."""
    head = find_head("auto", "eagle3", pocket, eagle3.SHAPES)
    assert head.trained["held_out_agreement"][0] > 0.9 and head.trained["layers"] == [2, 6, 9]
    lines = (config.SUITES / "tasks" / "pocket" / f"{family}_test.jsonl").read_text().splitlines()
    prompt = pocket.tokenizer(prompt_and_completion(family, json.loads(lines[3]))[0])["input_ids"]
    text = oracle.greedy(pocket.models["target"], prompt, 20)
    rounds = {}
    for name in ("eagle3", "eagle3-chain"):
        method = eagle3.build(eagle3.Settings(**config.load_method(name).values), pocket, None)
        tokens, done = decode(method, prompt, 20)
        assert tokens == text
        rounds[name] = len(done)
    assert rounds["eagle3"] <= rounds["eagle3-chain"] < 9
