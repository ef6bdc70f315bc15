"""Gate: lookups equal a scan of the documents, and what is damaged or foreign is one clear line."""

import json
import shutil
from pathlib import Path

import naive_datastore as naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import one_line_error

from specbench import config
from specbench.config import UserError
from specbench.engine.models.tokenizer import load_tokenizer, vocabulary_hash
from specbench.methods.lookup.rest_datastore import END, SHIPPED, Datastore, find_datastore
from specbench_extras.datastore.build import build

TEXTS = [[1, 2, 3, 4, 5], [2, 3, 4, 6], [9, 2, 3], [7]]


def made(tmp_path_factory_or_path, documents, shard=2**10, vocabulary=100, name="store") -> Datastore:
    folder = Path(tmp_path_factory_or_path) / name
    shutil.rmtree(folder, ignore_errors=True)
    build(documents, folder, vocabulary, "abc", {"made": "here"}, shard)
    return Datastore(folder)


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(config.load_pair("pocket").target)


# Looking up


DOCUMENTS = st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=8).filter(any)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    documents=DOCUMENTS,
    shard=st.sampled_from([1, 7, 30, 1000]),
    context=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    own=st.booleans(),
    bounds=st.tuples(st.integers(1, 4), st.integers(0, 12)),
    hits=st.sampled_from([1, 3, 1000]),
    count=st.integers(1, 12),
)
def test_lookups_equal_a_scan(tmp_path_factory, documents, shard, context, own, bounds, hits, count):
    """Several shards, ends of documents, a token that never occurs, suffixes as long as the order is deep."""
    store = made(tmp_path_factory.getbasetemp(), documents, shard, vocabulary=3)
    if own:  # half of the contexts end as a document does somewhere
        context = max(documents, key=len)[: len(context)]
    parts = naive.shards(documents, shard)
    pieces = [piece for part in parts for piece in part]
    assert store.about.tokens == len(store) == sum(map(len, documents))
    assert (store.about.documents, store.about.shards) == (len(pieces), len(parts))
    shortest, longest = bounds[0], sum(bounds)
    result = store.longest(context, longest, shortest)
    assert result == naive.longest(pieces, context, longest, shortest)
    for length in {result, min(shortest, len(context))} - {0}:
        rows = [tuple(row) for row in store.continuations(context, length, hits, count).tolist()]
        expected = [naive.following(part, context[-length:], count, hits, END) for part in parts]
        assert rows == [row for part in expected for row in part]


def test_a_lookup_by_hand(tmp_path):
    store = made(tmp_path, TEXTS)
    assert store.longest([0, 1, 2, 3], 16, 2) == 3
    assert store.longest([2, 3], 16, 2) == 2 and store.longest([2, 3], 16, 3) == 0
    assert store.longest([1, 2, 3, 4], 2, 1) == 2
    assert store.longest([3, 9], 16, 2) == 0, "9 follows another document's 4 6"
    assert store.longest([6, 9], 16, 2) == 0
    assert store.continuations([2, 3], 2, 10, 3).tolist() == [[4, 5, END], [4, 6, END], [END, END, END]]
    assert store.continuations([2, 3], 2, 2, 3).tolist() == [[4, 5, END], [4, 6, END]]
    assert store.continuations([7], 1, 10, 2).tolist() == [[END, END]]
    assert store.continuations([8], 1, 10, 2).shape == (0, 2)
    assert store.continuations([100], 1, 10, 2).shape == (0, 2), "outside of the vocabulary"


def test_ids_beyond_16_bits_and_their_order(tmp_path):
    """256 and 65536 come before 255 in bytes of the other order."""
    ids = [255, 256, 65535, 65536, 199_999, 0]
    store = made(tmp_path, [[5, token, token] for token in ids], vocabulary=200_000)
    assert store.about.largest == 199_999
    assert store.continuations([5], 1, 10, 1)[:, 0].tolist() == sorted(ids)
    for token in ids:
        assert store.longest([token, token], 16, 2) == 2
        assert store.longest([5, token + 1], 16, 2) == (2 if token + 1 in ids else 0)


# Reading


def change(folder, **changes):
    path = folder / "datastore.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip(folder, name):
    raw = bytearray((folder / name).read_bytes())
    raw[5] ^= 1
    (folder / name).write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shutil.rmtree, "there is no datastore"),
        (lambda folder: (folder / "datastore.json").unlink(), "there is no datastore"),
        (lambda folder: (folder / "tokens.bin").unlink(), "is damaged (tokens.bin has 0 bytes, not 68)"),
        (lambda folder: (folder / "suffixes.bin").write_bytes(b""), "is damaged (suffixes.bin has 0 bytes"),
        (lambda folder: (folder / "buckets.bin").write_bytes(b"123"), "is damaged (buckets.bin has 3 bytes"),
        (lambda folder: flip(folder, "tokens.bin"), "its contents are not what was written"),
        (lambda folder: flip(folder, "suffixes.bin"), "its contents are not what was written"),
        (lambda folder: change(folder, version=2), "later version of specbench"),
        (lambda folder: change(folder, version="x"), "is damaged"),
        (lambda folder: change(folder, tokens=0), "has no tokens"),
        (lambda folder: change(folder, more=1), "is damaged"),
        (lambda folder: (folder / "datastore.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "datastore.json").write_text("[]"), "is damaged"),
        (lambda folder: (folder / "datastore.json").write_bytes(b"\xff\x00"), "is damaged"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, damage, words):
    made(tmp_path, TEXTS)
    damage(tmp_path / "store")
    with one_line_error(words) as caught:
        find_datastore(str(tmp_path / "store"), None)
    assert "specbench build-datastore" in str(caught.value) or "later version" in words


def test_another_tokenizer(tmp_path):
    made(tmp_path, TEXTS)
    folder = str(tmp_path / "store")
    assert len(find_datastore(folder, "abc")) == len(find_datastore(folder, None)) == 13
    with pytest.raises(UserError, match=r"belongs to another tokenizer \(abc, not xyz\); build one"):
        find_datastore(folder, "xyz")
    with pytest.raises(UserError, match="no datastore ships for this tokenizer; build one"):
        find_datastore("auto", "xyz")
    with pytest.raises(UserError, match="name a pair by --pair, or a datastore's folder"):
        find_datastore("auto", None)


def test_the_shipped_datastore_is_pockets(tokenizer):
    store = find_datastore("auto", vocabulary_hash(tokenizer))
    assert store.folder == SHIPPED / "pocket"
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 1.5e6
    corpora = [one["corpus"] for one in store.about.source["corpora"]]
    families = ("gsm8k", "math500", "humaneval", "cnndm")
    assert corpora == [f"pocket_{family}:calibration" for family in families], "never test documents"
    assert store.about.largest < store.about.vocabulary == len(tokenizer)
    context = tokenizer("Question: Nia has 12 apples.\nAnswer:")["input_ids"]
    assert store.longest(context, 16, 2) >= 2  # " Answer:" at least
