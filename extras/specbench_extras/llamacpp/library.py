"""libllama, by llama-cpp-python's bindings: a file that is read, a context, and tokens that are computed in it."""

import ctypes
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp as lib
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.base.console import PlainConsole
from specbench.base.environment import cache_folder
from specbench.config import ModelSpec
from specbench.engine.runtimes.types import Unsupported

CHUNK = 512  # tokens that are computed at a time
SEQUENCES = 256  # the most of one context: LLAMA_MAX_SEQ
QUANTISED = {"int8": "Q8_0", "int4": "Q4_0"}
ERROR = 4  # ggml's level of messages

_said: list[str] = []  # the last errors of the library, which has no other way to give a reason


@lib.llama_log_callback
def _log(level: int, text: bytes, _: Any) -> None:
    if level == ERROR:
        _said[:] = [*_said[-3:], text.decode(errors="replace").strip()]


lib.llama_log_set(_log, ctypes.c_void_p())
lib.llama_backend_init()


def reason() -> str:
    """What the library said of its last error."""
    return " ".join(_said[-1:])[:160] or "no reason given"


def version() -> str:
    """That of the bindings, which are built with one commit of llama.cpp; it names itself less exactly."""
    return str(lib.__version__)


def named() -> str:
    """What llama.cpp calls itself, with what it makes of this processor."""
    return f"{lib.llama_version().decode()}, {lib.llama_print_system_info().decode().strip(' |')}"


class Weights:
    """A GGUF file that is read. Raises Unsupported for one that llama.cpp cannot read."""

    def __init__(self, file: Path) -> None:
        settings = lib.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(os.fsencode(file), settings)
        if not self.model:
            raise Unsupported(f"llama.cpp cannot read {file.name} ({reason()}); use --runtime static")
        weakref.finalize(self, lib.llama_model_free, self.model)
        self.vocabulary: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))


class Context:
    """A cache for `capacity` tokens, which `sequences` share where they begin alike, and what computes them."""

    def __init__(self, weights: Weights, capacity: int, sequences: int, threads: int) -> None:
        settings = lib.llama_context_default_params()
        settings.n_ctx = capacity
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_seq_max = sequences
        settings.n_outputs_max_per_seq = CHUNK
        settings.n_threads = settings.n_threads_batch = threads
        settings.kv_unified = True  # sequences share cells
        settings.swa_full = True  # a sliding window rolls back, too
        settings.no_perf = True
        self.weights, self.sequences = weights, sequences
        self.context = lib.llama_init_from_model(weights.model, settings)
        if not self.context:
            raise Unsupported(f"llama.cpp has no cache for {capacity} tokens ({reason()}); use --runtime static")
        self.batch = lib.llama_batch_init(CHUNK, 0, sequences)
        weakref.finalize(self, _free, self.context, self.batch, weights)
        self.memory = lib.llama_get_memory(self.context)
        self.capacity: int = lib.llama_n_ctx(self.context)
        self._ids, self._places, self._wanted, self._counts = (
            np.ctypeslib.as_array(part, (CHUNK,))
            for part in (self.batch.token, self.batch.pos, self.batch.logits, self.batch.n_seq_id)
        )
        self._counts[:] = 1
        self._shared = 0  # the first so many tokens of the batch were last in other sequences than 0
        for at in range(CHUNK):
            self.batch.seq_id[at][0] = 0

    def compute(
        self,
        ids: npt.NDArray[Any],
        places: npt.NDArray[Any],
        keep: int,
        sequences: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Append up to CHUNK tokens [n], at positions [n], to the sequences of each (None: to 0); [keep, V] logits."""
        count = len(ids)
        self._ids[:count], self._places[:count] = ids, places
        self._wanted[: count - keep], self._wanted[count - keep : count] = 0, 1
        if sequences is not None or self._shared:
            self._put(sequences or [(0,)] * max(count, self._shared))
        self.batch.n_tokens = count
        if code := lib.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama.cpp computed nothing (code {code}: {reason()})")
        rows = np.ctypeslib.as_array(lib.llama_get_logits(self.context), (keep, self.weights.vocabulary))
        return torch.from_numpy(rows.copy())

    def _put(self, sequences: Sequence[Sequence[int]]) -> None:
        for at, own in enumerate(sequences):
            self._counts[at] = len(own)
            for i, number in enumerate(own):
                self.batch.seq_id[at][i] = number
        self._shared = 0 if all(tuple(own) == (0,) for own in sequences) else len(sequences)

    def cut(self, sequence: int, length: int) -> None:
        """Forget the tokens of a sequence from a position on. Raises Unsupported if the cache does not roll back."""
        if not lib.llama_memory_seq_rm(self.memory, sequence, length, -1):
            raise Unsupported("llama.cpp's cache of this model does not roll back; choose another model")

    def share(self, source: int, target: int, first: int, end: int) -> None:
        """Let the tokens of a sequence at positions first … end - 1 be another one's as well."""
        lib.llama_memory_seq_cp(self.memory, source, target, first, end)

    def take(self, other: "Context") -> None:
        """Copy all sequences of a smaller context into this empty one."""
        data = np.empty(lib.llama_state_get_size(other.context), np.uint8)
        lib.llama_state_get_data(other.context, _bytes(data), len(data))
        if not lib.llama_state_set_data(self.context, _bytes(data), len(data)):
            raise RuntimeError(f"llama.cpp did not take its own copy of a cache ({reason()})")

    def save(self) -> npt.NDArray[np.uint8]:
        """A copy of sequence 0."""
        data = np.empty(lib.llama_state_seq_get_size(self.context, 0), np.uint8)
        lib.llama_state_seq_get_data(self.context, _bytes(data), len(data), 0)
        return data

    def load(self, data: npt.NDArray[np.uint8]) -> None:
        """Fill sequence 0 with what `save` returned."""
        if not lib.llama_state_seq_set_data(self.context, _bytes(data), len(data), 0):
            raise RuntimeError(f"llama.cpp did not take its own copy of a cache ({reason()})")


def _bytes(data: npt.NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _free(context: Any, batch: Any, weights: Weights) -> None:
    """Free a context before the weights that it reads, which this call keeps."""
    lib.llama_batch_free(batch)
    lib.llama_free(context)


def quantised(file: Path, spec: ModelSpec, digest: str) -> tuple[Path, str]:
    """The file in the fewer bits that a spec asks for, made once by llama.cpp's own quantiser; and words for it.

    Raises Unsupported for a scheme that it has not, and if it fails.
    """
    if spec.weights not in QUANTISED or spec.group not in (None, 32):
        raise Unsupported(
            f"the llamacpp runtime has weights in int8 and int4, in groups of 32; name one of these for {spec.model}, "
            "or use --runtime static"
        )
    name = QUANTISED[spec.weights]
    return rewritten(file, digest, name), f"{spec.weights} in groups of 32, {name}, llama-cpp-python {version()}"


def rewritten(file: Path, digest: str, name: str) -> Path:
    """A file of this sha256 in another of llama.cpp's types, such as Q8_0, written once. Raises Unsupported."""
    made = cache_folder() / "gguf" / f"{file.stem}-{digest[:16]}-{name}-{version()}.gguf"
    if not made.is_file():
        PlainConsole(stderr=True).print(f"writing {file.name} as {name}, once: {made}", highlight=False, soft_wrap=True)
        settings = lib.llama_model_quantize_default_params()
        settings.ftype, settings.allow_requantize = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{name}"), True
        made.parent.mkdir(parents=True, exist_ok=True)
        making = made.with_suffix(f".{os.getpid()}")
        try:
            if lib.llama_model_quantize(os.fsencode(file), os.fsencode(making), ctypes.byref(settings)):
                raise Unsupported(f"llama.cpp cannot write {file.name} as {name} ({reason()})")
            making.replace(made)
        finally:
            making.unlink(missing_ok=True)
    return made
