"""What loading a checkpoint takes, next to reading its files: seconds, and the most memory, in a process of its own.

As a script it measures once: `loading.py FOLDER DTYPE WHAT…`, with `read`, `load`, `write`, `cold` and `copy` as words.
`write` fills new memory of the size of the loaded weights, the least that loading them into another type takes.
"""

import copy
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.config import ModelSpec
from specbench.engine.models.load import load_model

PAGE = 4096
STORED = torch.bfloat16


class Took(NamedTuple):
    seconds: float
    cpu: float  # seconds of the processor
    anonymous: float  # the most bytes of memory that no file backs, beyond those before
    resident: float  # the most bytes of memory, files included, beyond those before


def write_checkpoint(folder: Path, hidden: int, inner: int, layers: int, vocabulary: int, heads: int) -> int:
    """Write a Llama of constant weights in bfloat16; returns its parameters."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(STORED).to_empty(device="cpu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.01)
    model.save_pretrained(folder)
    return model.num_parameters()


def measured(folder: Path, dtype: str, *what: str) -> dict[str, Took]:
    """What a new process says of reading the files of a folder, of loading it, or of both, in this order."""
    root = Path(__file__).parents[2]
    outcome = subprocess.run(
        [sys.executable, __file__, str(folder), dtype, *what],
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: Took(*values) for name, values in json.loads(outcome.stdout).items()}


def main(folder: Path, dtype: str, what: list[str]) -> None:
    files = list(folder.glob("*.safetensors"))

    def read() -> object:
        return [path.read_bytes() for path in files]

    def load() -> object:
        model = load_model(ModelSpec(model=str(folder)), torch.device("cpu"), dtype, False, False, False).model
        for weight in model.parameters():  # weights that a file backs come when they are read
            weight.detach().view(-1).view(torch.uint8)[::PAGE].sum()
        return (model, copy.deepcopy(model)) if "copy" in what else model

    def write() -> object:
        size = sum(path.stat().st_size for path in files) * getattr(torch, dtype).itemsize // STORED.itemsize
        return torch.empty(size, dtype=torch.uint8).fill_(1)

    took: dict[str, Took] = {}
    known = {"read": read, "load": load, "write": write}
    for name in [word for word in what if word in known]:
        if "cold" in what:
            forget(files)
        took[name] = timed(known[name])
        gc.collect()
    print(json.dumps(took))


def forget(files: list[Path]) -> None:
    """Drop the pages of files from the system's cache."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(function: Callable[[], object]) -> Took:
    before, most, ended = memory(), list(memory()), threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            most[:] = map(max, most, memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, cpu = time.perf_counter(), time.process_time()
    kept = function()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    most[:] = map(max, most, memory())
    ended.set()
    watcher.join()
    del kept
    return Took(seconds, cpu, *(high - low for high, low in zip(most, before, strict=True)))


def memory() -> tuple[int, int]:
    """Bytes of this process' resident memory: those that no file backs, and all."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024, int(lines["VmRSS"].split()[0]) * 1024


if __name__ == "__main__":
    import transformers
    import transformers.models.llama.modeling_llama

    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
