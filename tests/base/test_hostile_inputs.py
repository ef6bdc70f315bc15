"""Heads, memories, datastores and imports that somebody made to do harm: one line each, in bounded time and memory."""

import itertools
import json
import os
import random
import struct

import fuzz
import fuzz_targets
import pyarrow.parquet as pq
import pytest
import torch
from cases import mostly_long
from fuzz import assert_refused
from safetensors.torch import load_file, save_file

from specbench.engine.models.heads import KEY
from specbench.methods.lookup.rest_datastore import Datastore
from specbench.methods.lossy.csd_memory import DOC_HASHES

RNG = random.Random(0)
GIB = 2**30


def metadata(folder) -> dict:
    raw = (folder / "head.safetensors").read_bytes()
    return json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]


def changed(folder, **tensors) -> None:
    """The head with other tensors."""
    path, facts = folder / "head.safetensors", metadata(folder)
    save_file(load_file(path) | tensors, path, facts)


def huge_header(folder) -> None:
    """A gigabyte that is all header, of which the disk holds next to nothing."""
    path = folder / "head.safetensors"
    path.write_bytes(struct.pack("<Q", GIB) + b"{")
    os.truncate(path, GIB + 8)


def deep_metadata(folder) -> None:
    path, tensors = folder / "head.safetensors", load_file(folder / "head.safetensors")
    save_file(tensors, path, {KEY: "[" * 100_000})


def many_names(folder) -> None:
    """Offsets that overlap: a thousand tensors of the same bytes."""
    one = {"dtype": "F32", "shape": [250_000], "data_offsets": [0, 1_000_000]}
    header = json.dumps({f"t{number}": one for number in range(1000)}).encode()
    (folder / "head.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1_000_000))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (huge_header, "damaged"),
        (deep_metadata, "nested too deeply"),
        (many_names, "damaged"),
        (lambda folder: changed(folder, **{first(folder): torch.ones(7, 7, 7)}), "tensors are not those"),
        (lambda folder: changed(folder, more=torch.ones(1)), "no place for, more"),
        (lambda folder: changed(folder, **{first(folder): filled(folder, torch.nan)}), "not finite"),
        (lambda folder: changed(folder, **{first(folder): filled(folder, torch.inf)}), "not finite"),
    ],
)
def test_heads(tmp_path, make, words):
    fuzz_targets.make_head(tmp_path)
    make(tmp_path)
    assert_refused(lambda: fuzz_targets.read_acceptance(tmp_path, RNG), tmp_path, words)


def first(folder) -> str:
    return min(load_file(folder / "head.safetensors"))


def filled(folder, value: float) -> torch.Tensor:
    return torch.full_like(load_file(folder / "head.safetensors")[first(folder)], value)


@pytest.mark.parametrize("name", ["datastore.json", "tokens.bin", "buckets.bin"])
def test_files_of_a_datastore_that_have_a_gigabyte(tmp_path, name):
    fuzz_targets.make_store(tmp_path)
    os.truncate(tmp_path / "store" / name, GIB)
    assert_refused(lambda: Datastore(tmp_path / "store"), tmp_path, str(GIB))


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, "5", '["\\ud800"]', "\x00"])
def test_memories(tmp_path, text):
    fuzz_targets.make_memory(tmp_path)
    path = tmp_path / "memory" / "gsm8k.parquet"
    table = pq.read_table(path)
    for key in (DOC_HASHES, "schema", "documents"):
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, key: text}), path)
        outcome, said = fuzz.judged(lambda: fuzz_targets.read_memory(path, fuzz_targets.WORDS, 3), tmp_path)
        assert outcome != "failed", said
        assert key != DOC_HASHES or outcome == "refused"


HOSTILE = [
    b"[" * 10**6,
    b'{"a":' * 10**6,
    b"[" + b"9" * 10**6 + b"]",
    b'[{"choices": [], "choices": 1}]',
    b"\x00" * 1000,
    b'["\\ud800"]',
    b"[1e999, -1e999, NaN]",
    b'{"input_lens": [1e999], "output_lens": [-1], "ttfts": [NaN], "itls": [[Infinity]]}',
]


READERS = ("vllm responses", "spec-bench answers", "profile", "figures", "traces and corpora")


@mostly_long(
    "data, target",
    itertools.product(HOSTILE, READERS),
    lambda data, target: target != "vllm responses" or data in HOSTILE[-2:],  # it reads each of a dozen files
    ids=lambda one: one if isinstance(one, str) else ascii(one[:12])[2:-1],
)
def test_imports(tmp_path, target, data):
    (reader,) = (one for one in fuzz_targets.TARGETS if one.name == target)
    for file in reader.make(tmp_path):
        path = tmp_path / file
        whole = path.read_bytes()
        path.write_bytes(data)
        for seed in range(4):
            outcome, said = fuzz.judged(lambda seed=seed: reader.read(tmp_path, random.Random(seed)), tmp_path)
            assert outcome != "failed", said
        path.write_bytes(whole)
