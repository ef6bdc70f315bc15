"""SpecBlock: the drafter against a second implementation without cache, its tree by hand; lossless."""

import copy
import dataclasses

import oracle
import pytest
import torch
from builders_engine import build
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from law import V, fit, small_target
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error
from tiny_rank_blocks import head, in_file, naive_blocks, on_cpu, recipe, stirred, trained
from transformers import LlamaConfig

from specbench import config
from specbench.engine.models.heads import Head
from specbench.engine.session import Session
from specbench.engine.speculate import read_prompt
from specbench.engine.trees import exact_tree
from specbench.engine.types import Sampling
from specbench_extras.specblock import specblock
from specbench_extras.specblock.fit import new_head
from specbench_extras.specblock.rank_block_head import RankBlockHead, evidence
from specbench_extras.specblock.specblock import RankDrafter, Settings, SpecBlock, rank_block_head
from specbench_extras.specblock.specblock_tree import BlockTree, Slots, widths

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
LONG = pytest.mark.long
CASES = [pytest.param(name, marks=() if name in ("llama", "gemma2") else LONG) for name in oracle.ARCHITECTURES]
SETTINGS = Settings(nodes=20, blocks=3, leaves=3, first=3, branches=(2, 3, 1, 0), head="auto")


def method(target, model: RankBlockHead, session=Session, **changes) -> SpecBlock:
    drafts = session(model, "draft", vocabulary=model.config.vocab_size)
    settings = Settings(**{**SETTINGS.model_dump(), **changes})
    return SpecBlock(session(target, "target"), RankDrafter(model, drafts, settings), {})


def tiny(architecture: str, model: RankBlockHead, **changes) -> SpecBlock:
    return method(pair(architecture)[0], model, **changes)


# The drafter


@dataclasses.dataclass
class Seen:
    """A block of a tree: the text before it, what follows that on its path, and what its slots say."""

    context: list[int]
    further: list[tuple[int, int]]
    logits: torch.Tensor
    states: torch.Tensor


def watched(monkeypatch) -> list[list[Seen]]:
    """The blocks of every tree, from then on, in the order in which they were read."""
    trees: list[list[Seen]] = []
    tree, said, add, starts = RankDrafter.tree, RankDrafter.said, BlockTree.add, BlockTree.starts

    def of_tree(self, context):
        self.read = []
        grown = tree(self, context)
        of_targets = [[(self.ids[token], cut) for token, cut in path] for path in grown.paths.values()]
        trees.append([Seen(list(context), path, *said) for path, said in zip(of_targets, self.read, strict=True)])
        return grown

    def of_said(self, logits, states):
        size = self.head.slots
        self.read += zip(logits.split(size), states.split(size), strict=True)
        return said(self, logits, states)

    def of_starts(self, most):
        chosen = starts(self, most)
        self.began = {node: self.rows[node] for node in chosen}  # a block of the same turn may draft a node again
        return chosen

    def of_add(self, start, row, slots, counts):
        if start < 0:
            self.paths = {row: []}
        else:
            before = max(one for one in self.paths if one <= self.began[start])
            self.paths[row] = [*self.paths[before], (self.tokens[start], self.began[start] - before + 1)]
        add(self, start, row, slots, counts)

    monkeypatch.setattr(RankDrafter, "tree", of_tree)
    monkeypatch.setattr(RankDrafter, "said", of_said)
    monkeypatch.setattr(BlockTree, "add", of_add)
    monkeypatch.setattr(BlockTree, "starts", of_starts)
    return trees


@pytest.mark.parametrize("architecture", ["llama", *(pytest.param(name, marks=LONG) for name in ("opt", "gemma2"))])
def test_every_block_equals_one_without_cache(monkeypatch, architecture):
    """After different numbers of accepted tokens: what a block reads, and where it stands, shows in its logits."""
    model = stirred(copy.deepcopy(trained(architecture, 20)))
    trees = watched(monkeypatch)
    prompt, _ = lively_prompt(architecture, 12, 30)
    _, rounds = decode(tiny(architecture, model, branches=(2, 3, 2, 2)), prompt, 16)
    chosen = {round_.accepted: i for i, round_ in reversed(list(enumerate(rounds[:-1])))}
    assert len(chosen) >= 2
    assert len({cut for tree in trees for block in tree for _, cut in block.further}) >= 2
    for tree in [trees[0], *(trees[i] for i in [*chosen.values()][:2] if i)]:
        depths = [len(block.further) for block in tree]
        assert depths[:4] == [0, 1, 1, 1] and len(depths) == 7 and max(depths) == 2
        for block in (tree[0], *tree[2:6:3]):
            states, logits, scores = naive_blocks(architecture, model, block.context, block.further)[-1]
            assert torch.allclose(block.states.cpu(), states, atol=1e-4)
            assert torch.allclose(block.logits.cpu(), logits, atol=1e-4)
            ranked = model.rank(block.states, block.logits).cpu()
            assert torch.allclose(ranked, scores, atol=1e-3)
        assert logits.std() > 0.1 and scores.std() > 0.01


def numbers(seed, *shape):
    """Those of official/specblock.py."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def test_the_drafter_says_what_its_own_code_says():
    """Six of two and three layers: logits of the last token's four slots, and the scores of their ranks' classes."""
    for case in official_cases("specblock"):
        layers, tokens = 2 + case["seed"] % 2, torch.tensor([case["tokens"]])
        facts = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers, "rms_norm_eps": 1e-5}
        sizes = LlamaConfig(hidden_size=32, intermediate_size=48, vocab_size=40, attn_implementation="sdpa", **facts)
        embedding = torch.nn.Embedding(48, 32)
        drafter = RankBlockHead(sizes, (0, 1, 2), 4, 256, torch.arange(40), embedding)
        own = {**dict(drafter.named_parameters()), "input_layer.embed_tokens.weight": embedding.weight}
        for at, (name, parameter) in enumerate(sorted(own.items())):
            size = 1 if "norm" in name or "embed" in name or "queries" in name else parameter.shape[-1] ** -0.5
            parameter.copy_(size * numbers(97 * case["seed"] + at, *parameter.shape) + ("norm" in name))
        conditions = drafter.fuse(numbers(1000 + case["seed"], 1, 7, 96).float())
        places = (torch.arange(1, 8)[:, None] + torch.arange(4)).flatten()[None]
        states = drafter.fill(drafter.read(tokens, conditions), places)[0, -4:]
        logits = drafter.predict(states)
        assert torch.allclose(logits, torch.tensor(case["logits"]), atol=2e-4)
        assert torch.allclose(drafter.rank(states, logits), torch.tensor(case["ranks"]), atol=2e-4)


def test_a_slot_reads_the_state_of_the_slot_before_it():
    """Two tokens of three slots: the first slot has its own state, the others that of the slot before."""
    rows = torch.arange(6.0, device=DEVICE).view(1, 6, 1)
    assert head("llama").shifted(rows).flatten().tolist() == [0, 0, 1, 3, 3, 4]


def test_what_the_rank_head_knows_of_a_small_vocabulary():
    """Of two tokens of 3/4 and 1/4; the eight that lack among ten count as impossible."""
    known = evidence(torch.tensor([[0.25, 0.75]], dtype=torch.float64).log())[0].tolist()
    entropy = 0.5623351446188083
    assert known == pytest.approx(
        [-0.2876820724, -1.3862943611, *[-50] * 8, 1.0986122887, 49.7123179276, 49.7123179276, 0.75, entropy]
    )


# The tree


def test_widths_by_class():
    branches = (2, 4, 6, 0)
    assert widths([0, 1, 2], branches) == [2, 4, 6] and widths([0, 1, 2], branches, 9) == [9, 4, 6]
    assert widths([0, 3, 2], branches) == [2, 0, 0] and widths([3, 3, 0], branches, 9) == [9, 0, 0]
    assert widths([3, 0, 0], branches) == [0, 0, 0]


def test_a_tree_by_hand():
    """Blocks of two slots; tokens a to e.

    The context's block: a (-1), b (-2) and c (-3) in slot 0; d (-1) and a (-2) after a in slot 1. Nodes: a -1, b -2,
    c -3, ad -2, aa -3. All are open; the best two are a and b (equal to ad, which comes later). The block after a: d
    (-0.5) is ad again, now -1.5; e (-1) is new, ae -2; slot 1 gives up, one token a after d: ada -2.5. The block after
    b has one token a slot: b -0.25, bb -2.25; a -1, bba -3.25. Open: ad and ae, of several, and bba, of a last slot; ad
    is of a row of the second block. The best five: a -1, ad -1.5, b -2, ae -2, bb -2.25.
    """
    a, b, c, d, e = range(5)
    tree = BlockTree()
    tree.add(-1, 10, Slots([[a, b, c], [d, a, b]], [[-1, -2, -3], [-1, -2, -9]], [0, 0]), [3, 2])
    assert tree.tokens == [a, b, c, d, a] and tree.parents == [-1, -1, -1, 0, 0]
    assert tree.values == [-1, -2, -3, -2, -3] and tree.rows == [10, 10, 10, 11, 11]
    assert tree.starts(2) == [0, 1]
    tree.add(0, 12, Slots([[d, e, a], [a, b, c]], [[-0.5, -1, -9], [-1, -2, -3]], [0, 3]), [2, 0])
    tree.add(1, 14, Slots([[b, a, c], [a, d, e]], [[-0.25, -9, -9], [-1, -9, -9]], [1, 1]), [1, 1])
    assert tree.tokens[5:] == [e, a, b, a] and tree.parents[5:] == [0, 3, 1, 7]
    assert tree.values == [-1, -2, -3, -1.5, -3, -2, -2.5, -2.25, -3.25]
    assert tree.rows[3] == 12 and tree.rows[5:] == [12, 13, 14, 15]
    tokens, parents, nodes = tree.best(5)
    assert (tokens, parents, nodes) == ([a, b, d, e, b], (-1, -1, 0, 0, 1), [0, 1, 3, 5, 7])
    assert tree.starts(9) == [3, 5, 8] and tree.starts(9) == []
    tree.add(-1, 16, Slots([[a]], [[-0.5]], [0]), [2])
    assert tree.starts(9) == [], "a block has begun there"


def test_a_child_as_good_as_its_parent_comes_after_it():
    tree = BlockTree()
    tree.add(-1, 0, Slots([[7, 5], [5, 7], [7, 5]], [[0.0, -50.0]] * 3, [0] * 3), [2, 2, 2])
    assert tree.best(3)[:2] == ([7, 5, 7], (-1, 0, 1))


def test_a_draft_branches_by_the_rank_heads_classes(monkeypatch):
    """One block alone, whose classes are set: 3, then 2, then 3 tokens."""
    monkeypatch.setattr(RankBlockHead, "rank", lambda self, states, logits: torch.eye(4)[[3, 0, 1]].to(states.device))
    used = tiny("llama", head("llama"), blocks=1, nodes=50)
    prompt = oracle.prompts(1, length=9)[0]
    used.drafter.begin(prompt)
    read_prompt(used.target, used.drafter, prompt)
    draft = used.drafter.propose([*prompt, 5], 9, GREEDY, torch.Generator(DEVICE))
    assert draft.parents == (-1, -1, -1, 0, 0, 3, 3, 3) and draft.probs is None
    assert set(draft.tokens.tolist()) <= set(range(0, 96, 2)), "of the draft vocabulary"


# Greedy texts


@pytest.mark.parametrize("architecture", CASES)
def test_greedy_texts_are_the_targets(architecture):
    """A random head, and one that is often right; Gemma 2's window of 16 is crossed."""
    prompt, text = lively_prompt(architecture, 12, 30)
    assert text == oracle.greedy(on_cpu(architecture), prompt, 30) and len(set(text)) >= 12
    assert decode(tiny(architecture, head(architecture)), prompt, 30)[0] == text
    tokens, rounds = decode(tiny(architecture, trained(architecture, 20)), prompt, 30)
    assert tokens == text
    assert len({round_.accepted for round_ in rounds}) >= 3
    # Another prompt, a head that does not know it, and prompts of one and two tokens.
    for other in (oracle.prompts(1, length=20, seed=9)[0], [5], [7, 3]):
        expected = oracle.greedy(on_cpu(architecture), other, 12)
        assert decode(tiny(architecture, trained(architecture, 20), blocks=2), other, 12)[0] == expected


@pytest.mark.long
def test_a_trained_head_drafts_better_than_a_random_one_by_a_token_a_round():
    """Of texts that it has learned; what it commits in a round. And a second block brings more than one alone."""
    prompt, _ = lively_prompt("llama", 12, 30)

    def committed(model, blocks):
        return 30 / len(decode(tiny("llama", model, blocks=blocks), prompt, 30)[1])

    assert committed(trained("llama", 60), 1) - committed(head("llama"), 1) > 1
    assert committed(trained("llama", 60), 2) - committed(trained("llama", 60), 1) > 0.3


def test_nothing_is_left_of_the_last_prompt():
    used = tiny("llama", trained("llama", 20))
    prompt, _ = lively_prompt("llama", 12, 30)
    first = decode(used, prompt, 30)
    assert decode(used, prompt, 30) == first
    sampling = Sampling(0.9)
    again = decode(used, prompt, 20, sampling, seed=3)
    assert again == decode(tiny("llama", trained("llama", 20)), prompt, 20, sampling, seed=3)


def test_forwards_and_reach():
    """A forward of the head for the text and the first block, one for all further blocks, and one of the target."""
    fed = []

    class Spied(Session):
        def forward(self, tokens, *others, **named):
            fed.append((self.role, len(tokens), len(self)))
            return super().forward(tokens, *others, **named)

    used = method(pair("llama")[0], trained("llama", 20), Spied, blocks=2, leaves=4, branches=(2, 2, 2, 2))
    rounds = used.rounds([1, 2, 3, 4], GREEDY, torch.Generator(DEVICE))
    committed = [*next(rounds).tokens]
    assert fed == [("target", 4, 0), ("draft", 9, 0)]
    for _ in range(6):
        fed.clear()
        length, known = 4 + len(committed), len(used.drafter.session)
        verdict = next(rounds)
        committed += verdict.tokens
        rows = 3 * (length - 1) - known
        assert fed[:2] == [("draft", rows, known), ("draft", 12, known + rows)]
        assert fed[2:] == [("target", verdict.drafted + 1, length - 1)] and verdict.drafted < used.reach == 21
        assert len(used.drafter.session) == 3 * (length - 1)


# Sampling


def drawn(sampling, draws=450):
    """How texts of three tokens fit the target's law."""
    target = small_target()
    model = rank_block_head(in_file(new_head(target, range(V), recipe(), 2)), target, V)
    used = method(target, model, branches=(1, 2, 2, 2), first=2, nodes=6, blocks=2)
    used.target = recalled(target, "target")
    return fit(used, target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.parametrize(
    "sampling", [pytest.param(Sampling(1.0), marks=LONG), pytest.param(Sampling(0.7, top_p=0.9), marks=LONG)], ids=str
)
def test_samples_from_the_target(sampling):
    p, stood, fell = drawn(sampling)
    assert p > ALPHA
    assert stood > 20 and fell > 100


@pytest.mark.long
def test_a_greedy_test_of_sampled_texts_is_found(monkeypatch):
    monkeypatch.setattr(
        specblock, "exact_tree", lambda draft, scored, sampling, rng: exact_tree(draft, scored, GREEDY, rng)
    )
    assert drawn(Sampling(1.0), 200).p < ALPHA


@pytest.mark.parametrize("seed", range(3))
def test_siblings_are_different_tokens(seed):
    """Of blocks that begin within another one, whose tokens may be the same."""
    used = tiny("llama", head("llama", seed=seed), nodes=60, branches=(3, 3, 3, 3))
    prompt = oracle.prompts(1, length=9, seed=seed)[0]
    used.drafter.begin(prompt)
    read_prompt(used.target, used.drafter, prompt)
    grown = used.drafter.tree([*prompt, 5])
    places = list(zip(grown.parents, grown.tokens, strict=True))
    assert len(places) == len(set(places)) > 40
    assert all(parent < node for node, parent in enumerate(grown.parents))
    assert all(
        parent < 0 or grown.values[parent] >= value for parent, value in zip(grown.parents, grown.values, strict=True)
    )


# Heads in files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, _: t.update({"input_layer.fuse.weight": t["input_layer.fuse.weight"][:, :40]}), "input_layer."),
        (lambda t, _: t.update({"norm.weight": t["norm.weight"][:5]}), "norm.weight"),
        (lambda t, _: t.pop("shift_proj.0.weight"), "Missing key(s)"),
        (lambda t, _: t.pop("layers.1.mlp.up_proj.weight"), "Missing key(s)"),
        (lambda t, _: t.update({"layers.7.norm.weight": t["norm.weight"]}), "Missing key(s)"),
        (lambda t, _: t.pop("rank_head.0.weight"), "rank_head.0.weight"),
        (lambda t, _: t.update({"rank_head.2.weight": t["rank_head.2.weight"][:3]}), "rank_head.2"),
        (lambda t, _: t.pop("d2t"), "d2t"),
        (lambda t, _: t.update({"d2t": t["d2t"][:5]}), "d2t does not map"),
        (lambda t, _: t.update({"d2t": t["d2t"] + 90}), "d2t does not map"),
        (lambda _, facts: facts.pop("config"), "'config'"),
        (lambda _, facts: facts["config"].update(num_attention_heads=10**9), "wide"),
    ],
)
def test_tensors_that_are_no_head(change, words):
    made = in_file(head("llama"))
    tensors, facts = dict(made.tensors), {**made.trained, "config": dict(made.trained["config"])}
    change(tensors, facts)
    with one_line_error(words, "train or import"):
        rank_block_head(Head("specblock", tensors, facts), pair("llama")[0], 96)


def test_the_settings_are_the_official_codes():
    values = config.load_method("specblock").values
    assert values == {"nodes": 90, "blocks": 2, "leaves": 10, "first": 10, "branches": [2, 4, 6, 4], "head": "auto"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 0}, "specblock: nodes"),
        ({"blocks": 0}, "specblock: blocks"),
        ({"branches": [2, 4, 6]}, "specblock: branches"),
        ({"branches": [2, 4, -1, 0]}, "specblock: branches"),
        ({"nodes": 10**6}, "specblock: its rounds are of up to 1000001 tokens"),
        ({"head": "gone"}, "there is no head gone; train one: specbench train --method specblock"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "specblock", **changes)
