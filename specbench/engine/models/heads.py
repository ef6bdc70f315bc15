"""Trained heads as files: a few small tensors that read one model's hidden states, and the models they belong to.

A file is safetensors with metadata, JSON under one key: the kind of head, the model of the pair that it reads, the
hidden size, weights and tokenizer that it was trained for, and how it was trained. A head that reads the draft predicts
what the target will do, so it belongs to the weights of both.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.base import files
from specbench.base.untrusted import brief, is_file, listed, parse_json
from specbench.config import DATA, SUITES, UserError, plugins
from specbench.engine.models.identity import stored
from specbench.engine.models.pair import Pair

VERSION = 1
KEY = "specbench"
SHIPPED = DATA / "trained" / "heads"
CHECKED = ("cospec",)  # kinds that learn from whether answers are right
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SAMPLED = 4096  # how many values of each tensor the fingerprint of a model reads
Reads = Literal["target", "draft", "arbitrator"]  # whose hidden states a head reads; an arbitrator has adapters too
Shapes = Mapping[str, tuple[int, ...]]  # of tensors by name; -1 for any size
Made = TypeVar("Made")
# The models whose weights a head belongs to next to the target's.
_OTHERS: Mapping[Reads, tuple[str, ...]] = {"target": (), "draft": ("draft",), "arbitrator": ("draft", "arbitrator")}


@dataclass(frozen=True)
class Head:
    """Tensors by name, float32 on the CPU; `trained` describes the training."""

    kind: str
    tensors: Mapping[str, Tensor]
    trained: Mapping[str, Any]

    def hashes(self) -> dict[str, str]:
        """The first 16 hexadecimal digits of SHA-256 of the tensors, under the name `head`."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return {"head": digest.hexdigest()[:16]}


def hidden_size(model: PreTrainedModel) -> int:
    """The width of the last hidden state, which the output layer reads."""
    return int(model.get_output_embeddings().weight.shape[-1])


def fingerprint(model: PreTrainedModel) -> str:
    """A hash of a model's weights, 16 hexadecimal digits; the same in every wider type that they are loaded in.

    It reads about SAMPLED values of each tensor, spread evenly and rounded to bfloat16: reading all of a large model
    would take minutes, and training changes these values too.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        for part in stored(tensor):
            values = part.detach().flatten()
            some = values[:: max(1, values.numel() // SAMPLED)].to(torch.bfloat16).cpu().contiguous()
            digest.update(some.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def weights(pair: Pair, reads: Reads) -> dict[str, str]:
    """The fingerprints, by role, of the models that a head belongs to."""
    return {role: fingerprint(pair.session(role).model) for role in dict.fromkeys(("target", *_OTHERS[reads]))}


def placed(model: nn.Module, target: PreTrainedModel, where: torch.device | None = None) -> None:
    """Freeze a head and move it to the target's type and device, or to the device `where`, in place."""
    for parameter in model.parameters():  # the frequencies of the positions stay in float32
        parameter.data = parameter.data.to(target.dtype)
    model.requires_grad_(False).eval().to(where or target.device)


@contextmanager
def refuse_damaged(kind: str) -> Iterator[None]:
    """Raise UserError where the parts of a head disagree, for whatever error that leads to."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        reason = " ".join(str(error).split())[:80]
        raise UserError(f"the head for {kind} is damaged ({reason}); train or import it again") from None


def write_head(
    path: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    pair: Pair,
    trained: Mapping[str, Any],
    reads: Reads = "target",
) -> None:
    """Save a head for the pair as float32; `trained` (JSON-like) describes the training."""
    metadata = {
        "version": VERSION,
        "kind": kind,
        "pair": pair.name,
        "reads": reads,
        **weights(pair, reads),
        "tokenizer": pair.tokenizer_hash,
        "hidden_size": hidden_size(pair.session(reads).model),
        "trained": dict(trained),
    }
    # One key: several would come in an order that changes from call to call, and equal heads should make equal files.
    data = save(
        {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()},
        {KEY: json.dumps(metadata)},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as new:
        new.write_bytes(data)


def read_head(
    path: Path, kind: str, pair: Pair, shapes: Shapes | None, reads: Reads = "target", same_weights: bool = True
) -> Head:
    """The head in a file, which must read the model `reads` and have tensors of these shapes (None: not checked).

    Without `same_weights` it may have been trained on other weights of that model: one that goes on to learn may.
    Raises UserError for a file that is missing, damaged or of a later version, for a head of another kind, and for
    one that was trained for another hidden size, tokenizer, target or draft.
    """
    remedy = f"train one: {command(kind, pair)}"
    if not is_file(path):
        raise UserError(f"there is no head {path}; {remedy}")
    damaged = f"{path} is no head of specbench, or damaged"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {})[KEY], str(path), remedy)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        version, width, trained = (metadata[key] for key in ("version", "hidden_size", "trained"))
        actual_kind, trained_on, tokenizer = (metadata[key] for key in ("kind", "pair", "tokenizer"))
        model = metadata.get("reads", "target")  # missing in the first heads
        if not (type(version) is int and type(width) is int and isinstance(trained, dict)):
            raise ValueError("its metadata have wrong types")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{damaged} ({brief(error)}); {remedy}") from None
    if version > VERSION:
        raise UserError(f"the head {path} was written by a later version of specbench; use that one to read it")
    if actual_kind != kind:
        raise UserError(f"{path} is a head for {actual_kind}, not for {kind}; {remedy}")
    if model != reads:
        raise UserError(f"{damaged} (it reads the {model}, and a head for {kind} reads the {reads}); {remedy}")
    size = hidden_size(pair.session(reads).model)
    if width != size:
        raise UserError(f"the head {path} reads {width} values, but the {reads} of {pair.name} has {size}; {remedy}")
    if tokenizer != pair.tokenizer_hash:
        raise UserError(
            f"the head {path} (of {trained_on}) belongs to another tokenizer than that of {pair.name}; {remedy}"
        )
    for role, actual in weights(pair, reads).items():
        if same_weights and metadata.get(role) != actual:
            raise UserError(
                f"the head {path} was trained on {trained_on}, whose {role} has different weights from this "
                f"one; {remedy}"
            )
    if shapes is not None and (differing := tensors.keys() ^ shapes.keys()):
        raise UserError(f"{damaged} (it lacks, or has no place for, {listed(differing)}); {remedy}")
    if shapes is not None and not all(_fits(tensors[name], shape) for name, shape in shapes.items()):
        raise UserError(f"{damaged} (the shapes of its tensors are not those of a head for {kind}); {remedy}")
    if not all(tensor.dtype in FLOATS and tensor.isfinite().all() for tensor in tensors.values()):
        raise UserError(f"{damaged} (it holds values that are not finite); {remedy}")
    return Head(kind, {name: tensor.float() for name, tensor in tensors.items()}, trained)


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.ndim == len(shape) and all(wanted in (-1, n) for n, wanted in zip(tensor.shape, shape, strict=True))


def find_head(
    setting: str, kind: str, pair: Pair, shapes: Shapes | None, reads: Reads = "target", same_weights: bool = True
) -> Head:
    """The head that a setting names: a file, or `auto` for the one that ships with the pair. Errors as in read_head."""
    if setting != "auto":
        return read_head(Path(setting), kind, pair, shapes, reads, same_weights)
    path = shipped(kind, pair, reads)
    if path is None:
        released = f"{kind}-head" in plugins.entries("importers")
        raise UserError(
            f"no head of {kind} ships with {pair.name}; train one ({command(kind, pair)})"
            + f" or import one (specbench import {kind}-head FOLDER)" * released
            + f" and name it by --set {kind}.{'arbitrator' if reads == 'arbitrator' else 'head'}=FILE"
        )
    return read_head(path, kind, pair, shapes, reads)


def load_once(
    setting: str, kind: str, pair: Pair, shapes: Shapes | None, make: Callable[[Head], Made]
) -> tuple[Made, dict[str, str]]:
    """What `make` makes of a head that reads the target, and the head's hashes; rows of a batch share it.

    Errors as of `find_head` and `make`.
    """

    def load() -> tuple[Made, dict[str, str]]:
        head = find_head(setting, kind, pair, shapes)
        return make(head), head.hashes()

    return pair.runtime.once((kind, setting), load)


def shipped(kind: str, pair: Pair, reads: Reads = "target") -> Path | None:
    """The head that ships with a pair, or else with another one of the same models, as far as it reads them."""
    folders = (SHIPPED, *plugins.folders())
    found = {path.stem: path for folder in folders for path in folder.glob(f"{kind}-*.safetensors")}
    if own := found.get(f"{kind}-{pair.name}"):
        return own
    for _, path in sorted(found.items()):
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()[KEY])
        if metadata["tokenizer"] == pair.tokenizer_hash and weights(pair, reads).items() <= metadata.items():
            return path
    return None


def command(kind: str, pair: Pair) -> str:
    """How to train a head for a pair, as it is typed."""
    named = pair.name if (SUITES / "pairs" / f"{pair.name}.yaml").is_file() else "target=…,draft=…"
    suite = "pocket" if pair.name == "pocket" and kind not in CHECKED else "math"
    return f"specbench train --method {kind} --pair {named} --suite {suite} --out {kind}.safetensors"
