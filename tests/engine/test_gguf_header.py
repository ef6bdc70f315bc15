"""GGUF files whose headers lie are refused in one line, before their counts are believed."""

import struct

import pytest
from refusals import one_line_error
from written_gguf import write

from specbench.config import ModelSpec
from specbench.engine.models.gguf_files import gguf_folder
from specbench.engine.models.gguf_header import check_header


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def header(*parts: bytes, version=3, tensors=0, keys=0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def key(kind: int, value: bytes) -> bytes:
    return text(b"k") + struct.pack("<I", kind) + value


def tensor(*sizes: int, kind=0, offset=0) -> bytes:
    return text(b"t") + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


LIES = {
    "a version of tomorrow": header(version=9),
    "tensors without an end": header(tensors=2**60),
    "keys without an end": header(keys=2**63),
    "a text of gigabytes": header(text(b"", 2**34), keys=1),
    "a text beyond the end": header(text(b"abc", 2**20), keys=1),
    "an array of 2^60 numbers": header(key(9, struct.pack("<IQ", 4, 2**60)), keys=1),
    "an array of 2^24 texts": header(key(9, struct.pack("<IQ", 8, 2**24)), keys=1),
    "arrays in arrays": header(key(9, struct.pack("<IQIQ", 9, 1, 9, 1)), keys=1),
    "a value of no type": header(key(77, b""), keys=1),
    "a hundred dimensions": header(tensor(*[2] * 100), tensors=1),
    "a tensor of 2^120 weights": header(tensor(2**60, 2**60), tensors=1),
    "a type of no blocks": header(tensor(4, kind=2**31), tensors=1),
    "weights beyond the end": header(tensor(4, offset=2**50), tensors=1),
    "the half of a header": header(tensors=1)[:13],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(lie, tmp_path):
    """Where a count was believed, this would take hours, or all memory."""
    (tmp_path / "a.gguf").write_bytes(LIES[lie])
    with one_line_error("a.gguf", "cut off or damaged"):
        gguf_folder(ModelSpec(model=str(tmp_path / "a.gguf")), None)


def test_a_sparse_file_of_50_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "a.gguf").open("wb") as sparse:
        sparse.truncate(50 * 10**9)
    with one_line_error("not a GGUF file"):
        gguf_folder(ModelSpec(model=str(tmp_path / "a.gguf")), None)


def test_many_arrays_of_empty_texts_are_not_walked(tmp_path):
    """A hundred times 2^24 texts, in a file of which almost nothing is on the disk."""
    with (tmp_path / "a.gguf").open("wb") as sparse:
        sparse.write(header(keys=100))
        for _ in range(100):
            sparse.write(key(9, struct.pack("<IQ", 8, 2**24)))
            sparse.seek(2**27, 1)
        sparse.write(b"\0")
    with one_line_error("a.gguf", "its arrays claim 16777216 texts"):
        gguf_folder(ModelSpec(model=str(tmp_path / "a.gguf")), None)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [(0, "weights of block 0"), (1, "weights of block 1"), (2**32 - 1, "it claims 4294967295 blocks")],
)
def test_blocks_are_as_many_as_the_file_says(tmp_path, blocks, words):
    """Of a file with fewer, a model of fewer layers would be built, and decode."""
    write(tmp_path / "a.gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    told = text(b"qwen2.block_count") + struct.pack("<I", 4)
    assert content.count(told + struct.pack("<I", 2)) == 1
    (tmp_path / "a.gguf").write_bytes(content.replace(told + struct.pack("<I", 2), told + struct.pack("<I", blocks)))
    with one_line_error("a.gguf", words):
        gguf_folder(ModelSpec(model=str(tmp_path / "a.gguf")), None)


@pytest.mark.parametrize("kind", ["Q8_0", "F32"])
def test_a_sound_file_passes(tmp_path, kind):
    write(tmp_path / "a.gguf", kind)
    check_header(tmp_path / "a.gguf")
