"""Trained heads as files: a few small tensors that read one model's hidden states, and whose they are.

A file is safetensors with metadata, JSON under one key: what kind of head it is, which model of the pair it reads, the
hidden size, weights and tokenizer it was trained for, and how. A head that reads the draft judges what the target will
do, so it belongs to the weights of both.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

from specbench import files
from specbench.config import OWN_PAIR, SUITES, UserError
from specbench.models import Pair
from specbench.untrusted import brief, is_file, parse_json

VERSION = 1
KEY = "specbench"
SHIPPED = SUITES / "methods" / "heads"
RELEASED = ("eagle3", "specdecpp")  # kinds of heads that others have released
CHECKED = ("cospec",)  # kinds that learn from answers which are right or wrong
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SAMPLED = 4096  # values of each tensor that tell one model from another
Reads = Literal["target", "draft", "arbitrator"]  # whose hidden states; an arbitrator is adapters inside that model too
Shapes = Mapping[str, tuple[int, ...]]  # of tensors by name; -1 for any size
_BESIDE: Mapping[Reads, tuple[str, ...]] = {"target": (), "draft": ("draft",), "arbitrator": ("draft", "arbitrator")}


@dataclass(frozen=True)
class Head:
    """Tensors by name, float32 on the CPU; `trained` tells how they came about."""

    kind: str
    tensors: Mapping[str, Tensor]
    trained: Mapping[str, Any]

    def hashes(self) -> dict[str, str]:
        """The first 16 hexadecimal digits of SHA-256 of the tensors, by the name `head`."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return {"head": digest.hexdigest()[:16]}


def hidden_size(model: PreTrainedModel) -> int:
    """The width of the last hidden state: what the output layer reads."""
    return int(model.get_output_embeddings().weight.shape[-1])


def fingerprint(model: PreTrainedModel) -> str:
    """Which weights a model has, in 16 hexadecimal digits; the same whatever wider type they are loaded in.

    Of each tensor about SAMPLED values, spread evenly and rounded to bfloat16: reading all of a large model would take
    minutes, and no training leaves these as they were.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().flatten()
        some = values[:: max(1, values.numel() // SAMPLED)].to(torch.bfloat16).cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(some.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def weights(pair: Pair, reads: Reads) -> dict[str, str]:
    """Fingerprints, by role, of the models that a head belongs to."""
    return {role: fingerprint(pair.session(role).model) for role in dict.fromkeys(("target", *_BESIDE[reads]))}


def write_head(
    path: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    pair: Pair,
    trained: Mapping[str, Any],
    reads: Reads = "target",
) -> None:
    """Save a head for the pair as float32; `trained` (JSON-like) says how it came about."""
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
    # One key: the order of several is drawn anew at each call, and the same training shall give the same file.
    data = save(
        {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()},
        {KEY: json.dumps(metadata)},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as new:
        new.write_bytes(data)


def read_head(path: Path, kind: str, pair: Pair, shapes: Shapes | None, reads: Reads = "target") -> Head:
    """The head in a file; its tensors must have these shapes, and it must read the model that `reads` names.

    Without `shapes` it is the caller who checks them.

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
        own, whose, speaks_of = (metadata[key] for key in ("kind", "pair", "tokenizer"))
        model = metadata.get("reads", "target")  # the first heads did not say it
        if not (type(version) is int and type(width) is int and isinstance(trained, dict)):
            raise ValueError("its metadata are of other types")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{damaged} ({brief(error)}); {remedy}") from None
    if version > VERSION:
        raise UserError(f"the head {path} was written by a later version of specbench; use that one to read it")
    if own != kind:
        raise UserError(f"{path} is a head for {own}, not for {kind}; {remedy}")
    if model != reads:
        raise UserError(f"{damaged} (it reads the {model}, and a head for {kind} reads the {reads}); {remedy}")
    size = hidden_size(pair.session(reads).model)
    if width != size:
        raise UserError(f"the head {path} reads {width} values, but the {reads} of {pair.name} has {size}; {remedy}")
    if speaks_of != pair.tokenizer_hash:
        raise UserError(f"the head {path} (of {whose}) belongs to another tokenizer than that of {pair.name}; {remedy}")
    for role, found in weights(pair, reads).items():
        if metadata.get(role) != found:
            raise UserError(
                f"the head {path} was trained on {whose}, whose {role} has other weights than this; {remedy}"
            )
    if shapes is not None and not (
        tensors.keys() == shapes.keys() and all(_fits(tensors[name], shape) for name, shape in shapes.items())
    ):
        raise UserError(f"{damaged} (its tensors are not those of a head for {kind}); {remedy}")
    if not all(tensor.dtype in FLOATS and tensor.isfinite().all() for tensor in tensors.values()):
        raise UserError(f"{damaged} (it holds values that are no numbers); {remedy}")
    return Head(kind, {name: tensor.float() for name, tensor in tensors.items()}, trained)


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.ndim == len(shape) and all(wanted in (-1, n) for n, wanted in zip(tensor.shape, shape, strict=True))


def find_head(setting: str, kind: str, pair: Pair, shapes: Shapes | None, reads: Reads = "target") -> Head:
    """The head that a setting names: a file, or `auto` for the one that ships with the pair. Errors as in read_head."""
    if setting != "auto":
        return read_head(Path(setting), kind, pair, shapes, reads)
    shipped = SHIPPED / f"{kind}-{pair.name}.safetensors"
    if not shipped.is_file():
        raise UserError(
            f"no head of {kind} ships with {pair.name}; train one ({command(kind, pair)})"
            + f" or import one (specbench import {kind}-head FOLDER)" * (kind in RELEASED)
            + f" and name it by --set {kind}.{'arbitrator' if reads == 'arbitrator' else 'head'}=FILE"
        )
    return read_head(shipped, kind, pair, shapes, reads)


def command(kind: str, pair: Pair) -> str:
    """How to train a head for a pair, as it is typed."""
    named = "target=…,draft=…" if pair.name == OWN_PAIR else pair.name
    suite = "pocket" if pair.name == "pocket" and kind not in CHECKED else "math"
    return f"specbench train --method {kind} --pair {named} --suite {suite} --out {kind}.safetensors"
