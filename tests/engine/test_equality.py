"""A token's logits and states have the same bits in every block, at every entry point of the static runtime."""

import copy
import functools
import itertools
import os
import random
import subprocess
import sys

import oracle
import pytest
import torch
from cases import mostly_long
from forms import DEVICE, FORMS, eagle, path_to, text
from torch import Tensor, nn

from specbench.engine.layer_session import LayerSession
from specbench.engine.models import packed
from specbench.engine.prefix import Prefixes
from specbench.engine.runtimes import blocks, equality, lean, products, static
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.blocks import multiplies
from specbench.engine.runtimes.equality import remembered, unequal
from specbench.engine.runtimes.slots import Feed
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Reads, Unsupported
from specbench.engine.session import Session
from specbench.engine.types import Sampling, Scored

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="what a CPU promises")

LENGTH = 290  # beyond two borders of the blocks of values, and no multiple of anything
HIDDEN = (0, 1, 2, -1)
TYPES = (torch.float32, torch.bfloat16)
WIDE = "wide"  # its products of one row are computed by another kernel
needs_halves = pytest.mark.skipif(not multiplies("cpu", torch.bfloat16), reason="its processor has no bfloat16")
CASES = [(form, dtype) for form in (*FORMS, WIDE) for dtype in TYPES]
SHORT = [(WIDE, torch.bfloat16), ("gemma2", torch.float32), ("mistral, window", torch.bfloat16), ("opt", torch.float32)]


@pytest.fixture(autouse=True)
def halved_caches_of_small_models(monkeypatch):
    monkeypatch.setattr(lean, "LARGE", 0)


@functools.cache
def model(form, dtype):
    """A tiny model with weights of the size that real ones have."""
    longer = {"max_position_embeddings": 512} if form in ("opt", "no biases") else {}
    made = FORMS[form](**longer) if form in FORMS else oracle.tiny("llama", intermediate_size=1536)
    small = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in small.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(0.3)
    return small.to(dtype)


def told(scored: Scored) -> Tensor:
    """Logits and states of every token, side by side."""
    return torch.cat([scored.logits, scored.hidden], -1)


@functools.cache
def singles(form, dtype) -> Tensor:
    session = Session(model(form, dtype), "target", runtime=STATIC)
    return torch.cat([told(session.forward([token], hidden=HIDDEN)) for token in text(LENGTH)])


def assert_same_bits(some: Tensor, expected: Tensor) -> None:
    """Equal bits, in rows that are finite, and that differ within and among themselves."""
    assert some.shape == expected.shape and expected.isfinite().all() and some.isfinite().all()
    assert (expected != expected[:, :1]).any(1).all() and len(expected.unique(dim=0)) >= min(2, len(expected))
    different = (some != expected).any(1)
    assert not different.any(), f"{int(different.sum())} of {len(some)} tokens differ"


@pytest.mark.parametrize("value", (torch.nan, 0.0, 3.5))
def test_rows_that_tell_nothing_do_not_pass(value):
    with pytest.raises(AssertionError):
        assert_same_bits(torch.full((4, 9), value), torch.full((4, 9), value))
    rows = torch.randn(1, 9).repeat(4, 1)
    with pytest.raises(AssertionError):  # all tokens alike
        assert_same_bits(rows, rows)


@mostly_long("form, dtype", CASES, SHORT)
def test_chains(form, dtype, monkeypatch):
    """In blocks of any width, in chunks of a prompt, and after rollbacks."""
    monkeypatch.setattr(static, "CHUNK", 100)
    tokens, expected, one = text(LENGTH), singles(form, dtype), model(form, dtype)
    for width in (2, 3, 5, 8, 63, LENGTH):
        session, rows = Session(one, "target", runtime=STATIC), []
        for start in range(0, LENGTH, width):
            rows.append(told(session.forward(tokens[start : start + width], hidden=HIDDEN)))
            length = len(session)
            session.forward(text(1 + start % 11, seed=start))
            session.truncate(length)
        assert_same_bits(torch.cat(rows), expected)


@mostly_long("form, dtype", CASES, SHORT[:2])
def test_doors(form, dtype):
    """The last rows alone, a shared prefix, a return to earlier tokens, a draft in one call, a path that was kept."""
    tokens, expected, one = text(LENGTH), singles(form, dtype), model(form, dtype)
    vocabulary = one.config.vocab_size
    prefixes = Prefixes()
    prefixes.begin(tokens[:140])
    for _ in range(2):  # the prefix is read, then copied
        session = Session(one, "target", runtime=STATIC, prefixes=prefixes)
        scored = session.forward(tokens[:200], keep=3, hidden=HIDDEN)
        assert_same_bits(scored.logits, expected[197:200, :vocabulary])
        assert_same_bits(scored.hidden, expected[:200, vocabulary:])
    assert_same_bits(told(session.catch_up(tokens[:131], hidden=HIDDEN)), expected[130:131])
    session.truncate(0)
    session.forward(tokens[:120])
    chain = session.draft_chain(tokens[:125], 9, Sampling(), torch.Generator())
    again = Session(one, "target", runtime=STATIC)
    drafted = again.forward([*tokens[:125], *chain.tokens.tolist()[:-1]]).logits[124:]
    assert_same_bits(chain.logits, drafted)
    session.truncate(120)
    session.forward([5, tokens[120], 7, tokens[121], 9], parents=[-1, -1, 0, 1, 2])
    session.keep(120, [1, 3])
    assert_same_bits(told(session.forward(tokens[122:], hidden=HIDDEN)), expected[122:])


def random_tree(draw: random.Random, count: int) -> list[int]:
    """Parents: long paths and wide ones."""
    return [-1, *(draw.choice((node - 1, node - 1, draw.randrange(-1, node))) for node in range(1, count))]


def assert_tree_like_its_paths(one, root: int, count: int, seed: int, nodes: int = 8, most: int = 1000) -> None:
    draw = random.Random(seed)
    context, tree, parents = text(root, seed=seed), text(count, seed=seed + 1), random_tree(draw, count)
    session, chain = Session(one, "target", runtime=STATIC), Session(one, "target", runtime=STATIC)
    session.forward(context)
    chain.forward(context)
    cuts = [0, *sorted(draw.sample(range(1, count), min(2, count - 1))), count]
    rows = torch.cat(
        [told(session.forward(tree[a:b], parents=parents[a:b], hidden=HIDDEN)) for a, b in itertools.pairwise(cuts)]
    )
    for node in {count - 1, *draw.sample(range(count), min(nodes, count))}:
        path = path_to(parents, node)
        chain.truncate(root)
        alone = torch.cat([told(chain.forward([tree[i]], hidden=HIDDEN)) for i in path])
        assert_same_bits(rows[path], alone)


@mostly_long("form, dtype", CASES, SHORT[:3])
def test_trees(form, dtype):
    """Every node of random trees, which cross the borders of blocks, is as its path by single tokens."""
    one = model(form, dtype)
    for seed, (root, count) in enumerate(((3, 12), (122, 30), (126, 20), (128, 9), (250, 40), (60, 150))):
        assert_tree_like_its_paths(one, root, count, seed, nodes=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_any_tree(dtype, seed):
    draw = random.Random(seed)
    form = draw.choice((*FORMS, WIDE))
    assert_tree_like_its_paths(model(form, dtype), draw.randrange(1, 270), draw.randrange(1, 220), seed, nodes=20)


@mostly_long("form, dtype", CASES, SHORT[:3])
@torch.inference_mode()
def test_batches(form, dtype):
    """Sequences that are fed together: each its own number of tokens, chains next to trees and prompts."""
    one, draw = model(form, dtype), random.Random(0)
    shared, texts = Batched("static"), [text(LENGTH, seed=seed) for seed in range(5)]
    runners = [shared.runner(one) for _ in texts]
    alone = [STATIC.runner(one) for _ in texts]
    for turn in range(14):
        chosen = draw.sample(range(5), draw.randrange(1, 6))
        feeds, expected = [], []
        for i in chosen:
            runner, width = runners[i], draw.choice((1, 1, 2, 5, 9, 40) if turn else (3, 130, 20))
            ids = torch.tensor(texts[i][runner.length : runner.length + width])
            feeds.append(Feed(ids, 0, HIDDEN, None, None))
            alone[i].truncate(runner.length)
            rows = [alone[i].forward(token, 0, HIDDEN, None, None) for token in ids.split(1)]
            expected.append(torch.cat([torch.cat(row, -1) for row in rows]))
        answers = runners[chosen[0]].rows.forward([(runners[i], feed) for i, feed in zip(chosen, feeds, strict=True)])
        for i, feed, answer, wanted in zip(chosen, feeds, answers, expected, strict=True):
            runners[i].length += len(feed.ids)
            assert_same_bits(torch.cat(answer, -1), wanted)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_trees_in_batches(dtype):
    one, shared = model("llama", dtype), Batched("static")
    parents, tree = random_tree(random.Random(3), 25), text(25, seed=9)
    results = []
    for runtime in (STATIC, shared):
        session = Session(one, "target", runtime=runtime)
        session.forward(text(119))
        results.append(told(session.forward(tree, parents=parents, hidden=HIDDEN)))
    assert_same_bits(*results)


@mostly_long("form, dtype", CASES, SHORT[:2])
def test_layer_by_layer(form, dtype):
    """The first layers read ahead, one token at a time, and the others follow together."""
    one, tokens, expected = model(form, dtype), text(LENGTH), singles(form, dtype)
    session = LayerSession(one, "target", runtime=STATIC)
    session.forward(tokens[:100])
    ahead = torch.cat([session.read([token], 1) for token in tokens[100:140]])
    scored = session.finish({1: ahead}, tokens[140:150])
    assert_same_bits(scored.logits, expected[100:150, : scored.logits.shape[1]])
    width = ahead.shape[1]
    begin = scored.logits.shape[1] + width  # behind what enters the first layer
    assert_same_bits(scored.hidden, expected[100:150, begin : begin + width])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_head_that_reads_states(dtype):
    head = copy.deepcopy(eagle("llama")).to(dtype)
    features = torch.randn(150, 32, generator=torch.Generator().manual_seed(3)).to(dtype)
    tokens = text(150)
    session = Session(head, "draft", vocabulary=48, runtime=STATIC)
    expected = torch.cat(
        [told(session.forward([token], features=features[i : i + 1], hidden=(0, -1))) for i, token in enumerate(tokens)]
    )
    session.truncate(0)
    cuts = (0, 60, 64, 127, 130, 150)
    rows = [
        told(session.forward(tokens[a:b], features=features[a:b], hidden=(0, -1))) for a, b in itertools.pairwise(cuts)
    ]
    assert_same_bits(torch.cat(rows), expected)
    assert unequal(STATIC.lean(head, checked=False)) == ""


# Defects that are put in on purpose


def one_key_too_many(patch) -> None:
    made = lean.Masks._sliced

    def shifted(self, width, cached, reach, window):
        return made(self, width, cached + (width > 1), reach, window)

    patch.setattr(lean.Masks, "_sliced", shifted)


def one_key_too_few(patch) -> None:
    made = lean.Masks._sliced
    patch.setattr(
        lean.Masks, "_sliced", lambda self, width, cached, *more: made(self, width, cached - (cached > 120), *more)
    )


def a_sum_in_another_order(patch) -> None:
    summed = blocks.summed
    patch.setattr(blocks, "summed", lambda w, v, reach, span=128: summed(w, v, reach, 64 if w.shape[1] > 8 else span))


def rows_without_padding(patch) -> None:
    patch.setattr(blocks, "ROWS", 1)


def one_row_by_its_own_kernel(patch) -> None:
    patch.setattr(products, "_same_alone", lambda packed, weight: True)


def rounded_weights(patch) -> None:
    weights = blocks._weights

    def rounded(layer, rows, *more):
        made = weights(layer, rows, *more)
        return made.bfloat16().to(made.dtype) if rows.shape[1] > 8 else made

    patch.setattr(blocks, "_weights", rounded)


def levels_of_few_rows(patch) -> None:
    level_of = blocks.level_of
    patch.setattr(blocks, "level_of", lambda scores: level_of(scores) * (scores.shape[1] <= 8))


def one_row_is_another_kernels() -> bool:
    """True if this processor has another order of sums for one row than for several."""
    layers = [module for module in model(WIDE, torch.float32).modules() if type(module) is nn.Linear]
    return any(not products.Product([layer]).alone for layer in layers)


DEFECTS = (one_key_too_many, one_key_too_few, a_sum_in_another_order, rows_without_padding, rounded_weights)
if one_row_is_another_kernels():
    DEFECTS += (one_row_by_its_own_kernel,)
if multiplies("cpu", torch.bfloat16):
    DEFECTS += (levels_of_few_rows,)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect, monkeypatch):
    """By blocks next to single tokens, and by what is tried when a model is read.

    Rounding to half precision hides most of it where states have 64 numbers, so there the first finds it by chance.
    """
    tokens, found = text(LENGTH), []
    defect(monkeypatch)
    for dtype in TYPES:
        one = copy.deepcopy(model(WIDE, dtype))
        lean = STATIC.lean(one, checked=False)
        sessions = [Session(one, "target", runtime=STATIC) for _ in range(2)]
        rows = [torch.cat([told(sessions[0].forward([token], hidden=HIDDEN)) for token in tokens])]
        rows.append(
            torch.cat([told(sessions[1].forward(tokens[i : i + 5], hidden=HIDDEN)) for i in range(0, LENGTH, 5)])
        )
        found.append((not torch.equal(*rows), bool(unequal(lean))))
    assert any(blocks_differ for blocks_differ, _ in found)
    differ, tried = found[0]
    assert tried or not differ, found


def test_a_tree_that_reads_a_neighbour_is_found(monkeypatch):
    made = blocks.PlacedTree.of.__func__

    def neighbour(cls, reads):
        grown = made(cls, reads)
        return grown._replace(order=(grown.order + (grown.order > 4)).clamp_(max=reads.allowed.shape[1] - 1))

    one = model("llama", torch.float32)
    assert_tree_like_its_paths(one, 20, 9, 0)
    monkeypatch.setattr(blocks.PlacedTree, "of", classmethod(neighbour))
    with pytest.raises(AssertionError):
        assert_tree_like_its_paths(one, 20, 9, 0)
    assert unequal(STATIC.lean(one))


def unlike_paths(unit: int) -> int:
    """Of how many pairs of positions, over nodes of trees, the values stand elsewhere than one after the other."""
    wrong = 0
    for root, count in ((21, 30), (126, 40), (250, 150)):
        paths = [path_to(random_tree(random.Random(root), count), node) for node in range(count)]
        allowed = torch.ones(count, root + count, dtype=torch.bool)
        allowed[:, root:] = torch.tensor([[other in path for other in range(count)] for path in paths])
        places = torch.tensor([*range(root), *(root + len(path) - 1 for path in paths)])
        grown, total = blocks.PlacedTree.of(Reads(allowed, places, root)), blocks.round_up(root + count, 64)
        for nodes in grown.groups(total - grown.sealed):
            tails = grown.paths(nodes, total - grown.sealed, 1, unit).tails
            for at, path in enumerate(paths[nodes]):
                read = [*range(grown.sealed, root), *(root + node for node in path)]
                for tail in tails:
                    mine = read[tail.positions.start - grown.sealed : tail.positions.stop - grown.sealed]
                    stand = tail.targets[at].tolist()[: len(mine)]
                    assert torch.arange(1000)[tail.rows][stand].tolist() == mine and stand == sorted(set(stand))
                    wrong += sum(a % 2 or b != a + 1 for a, b in zip(stand[::2], stand[1::2], strict=False))
    return wrong


def test_pairs_of_values_stand_together_in_a_tree():
    """In half precision a product adds up two rows of values at a time; the rounding of its result hides most of it."""
    assert unlike_paths(1) > unlike_paths(2) == 0


# Caches in half precision


@needs_halves
@pytest.mark.parametrize("why", ("", "other logits", "other rows"))
def test_caches_are_in_half_precision_where_logits_and_rows_allow(monkeypatch, why):
    """A model that is not itself with them, or has unequal rows, keeps caches in float32."""
    runtime, one = static.Static(), copy.deepcopy(model("llama", torch.bfloat16))

    def refused(model, runner, joins):
        if runner.lean.cached.itemsize == 2:
            raise Unsupported("as a test wants it")

    if why == "other logits":
        monkeypatch.setattr(static, "check", refused)
    if why == "other rows":
        monkeypatch.setattr(static, "unequal", lambda lean: "it rounds" if lean.cached.itemsize == 2 else "")
    monkeypatch.setattr(static, "remembered", lambda model, tried, how="": tried())
    expected = torch.float32 if why else torch.bfloat16
    runner = runtime.runner(one)
    runner.forward(torch.tensor([1, 2, 3]), 0, (), None, None)
    assert runner.cache.keys[0].dtype == runner.cache.values[0].dtype == expected
    assert runtime.bytes_each(one) == expected.itemsize and runtime.equal(one)


def test_products_of_spans_are_those_of_all_positions():
    """Next to float64, at a part of a cache, with fewer positions than a span and with many spans."""
    rng = torch.Generator().manual_seed(0)
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 0.01)):
        for rows, reach in ((8, 64), (8, 320), (72, 1472)):
            q, keys = (torch.randn(3, count, 64, generator=rng).to(dtype) for count in (rows, 1600))
            part, mask, level = keys[:, :reach], torch.zeros(rows, reach, dtype=dtype), torch.ones(3, rows, 1)
            mask[:, reach // 2 :] = -torch.inf
            exact = 0.1 * q.double() @ part.double().transpose(1, 2)
            scores = blocks.scored(q, part, 0.1, mask)
            assert scores[..., reach // 2 :].isneginf().all()
            torch.testing.assert_close(
                scores[..., : reach // 2].double(), exact[..., : reach // 2], atol=error, rtol=error
            )
            if dtype == torch.bfloat16:
                less = blocks.scored(q, part, 0.1, None, level.to(dtype))
                torch.testing.assert_close(less.double(), exact - 1, atol=error, rtol=error)
            weights = exact.softmax(-1)
            summed = blocks.summed(weights.to(dtype), part, reach)
            assert summed.dtype == torch.float32
            torch.testing.assert_close(summed.double(), weights @ part.double(), atol=error, rtol=0)


# Other machines


OTHERS = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
}
TRY = """
import sys, torch
from specbench.engine.runtimes.equality import remembered, unequal
from specbench.engine.runtimes.static import STATIC
import oracle
one = oracle.tiny("llama", intermediate_size=1536).to(getattr(torch, sys.argv[1]))
assert STATIC.lean(one, checked=False).cached == torch.float32  # whose products are the processor's own
print(repr(unequal(STATIC.lean(one, checked=False))))
"""


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@mostly_long("machine", OTHERS, ("avx2",))
def test_other_processors_are_judged_by_their_own_kernels(machine, dtype):
    """In float32 they are equal, and where products are widened; in bfloat16 they are, or the difference is found."""
    support = os.path.dirname(oracle.__file__)
    settings = {**os.environ, **OTHERS[machine], "PYTHONPATH": os.pathsep.join([support, *sys.path])}
    ran = subprocess.run([sys.executable, "-c", TRY, dtype], env=settings, capture_output=True, text=True, check=True)
    said = ran.stdout.strip()
    assert said == "''" or (dtype == "bfloat16" and machine == "avx512" and " rounds " in said)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_a_processor_without_products_in_half_precision_computes_them_in_float32(monkeypatch, dtype):
    """Rows are the sums in float64 to the rounding of their type, the same bits among any others, and so are sums."""
    monkeypatch.setattr(products, "packs", lambda device, kind: device == "cpu" and kind == torch.float32)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    rng = torch.Generator().manual_seed(0)
    layer = nn.Linear(512, 1536).to(dtype)
    made = products.Product([layer])
    x, other = (torch.randn(9, width, generator=rng).to(dtype) for width in (512, 1536))
    exact = x.double() @ layer.weight.double().t() + layer.bias.double()
    step = torch.finfo(dtype).eps
    for found, expected in (
        (made(x), exact),
        (made.joined(x, other, "add"), other.double() + exact),
        (made.joined(x, other, "mul"), other.double() * exact),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=0.51 * step, atol=1e-5)
    for rows in (1, 2, 5):
        assert torch.equal(made(x[:rows]), made(x)[:rows])
        assert torch.equal(made.joined(x[:rows], other[:rows], "add"), made.joined(x, other, "add")[:rows])


# What is remembered


@pytest.fixture
def read_again():
    """The code that computes is read again, and once more after the test."""
    equality._machine.cache_clear()
    yield equality._machine.cache_clear
    equality._machine.cache_clear()


def test_a_form_is_tried_once_on_a_machine(tmp_path, monkeypatch, read_again):
    """Not again with other weights; again at another form, type, code or number of threads, or if it was unequal."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    tried: list[object] = []

    def trial(answer=""):
        return lambda: tried.append(answer) or answer

    one = model("llama", torch.float32)
    assert remembered(one, trial("it rounds")) == remembered(one, trial("it rounds")) == "it rounds"
    assert remembered(one, trial()) == remembered(one, trial("a lie")) == ""
    other = copy.deepcopy(one)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    remembered(other, trial())
    assert len(tried) == 3
    for changed in (model("llama", torch.bfloat16), model(WIDE, torch.float32), model("qwen2", torch.float32)):
        remembered(changed, trial())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    remembered(one, trial())
    assert len(tried) == 7
    (tmp_path / "file").write_text("# other sums")
    monkeypatch.setattr(packed, "__file__", str(tmp_path / "file"))
    read_again()
    remembered(one, trial())
    assert len(tried) == 8
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "file"))
    assert remembered(one, trial()) == "" and len(tried) == 9
