"""The multi-token-prediction modules of a model, as transformers computes them: of its checkpoint, trained, or new.

Module k reads the embedding of a token and the state of the token k + 1 places before, each through its norm, side by
side; a decoder layer follows, a norm, and the target's own output layer (DeepSeek-V3, arXiv 2412.19437, equations 21 to
23). The first state is the target's after its final norm, as in vLLM and transformers.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.engine.models.heads import Head, placed, refuse_damaged
from specbench.engine.models.identity import is_plain
from specbench.engine.models.mtp_model import model_class
from specbench.engine.models.mtp_names import DIALECTS, NEXT, OTHERS, QWEN, Dialect

KIND = "mtp"
ATTENTION = ("full_attention", "sliding_attention")  # kinds of layers that a new module may have, the first if it can


def dialect_of(target: PreTrainedModel) -> Dialect:
    """How a target's modules are called and made."""
    return DIALECTS.get(target.config.get_text_config().model_type, Dialect())


def announced(target: PreTrainedModel) -> int:
    """How many modules a target's configuration announces, as far as transformers can make any."""
    config = target.config.get_text_config()
    counts = (getattr(config, field, None) for field in ("num_mtp_layers", QWEN, NEXT))
    return next(filter(None, counts), dialect_of(target).modules)


class NoModules(UserError):
    """A target announces no modules, or its checkpoint has none of their weights: one can be trained."""


def check_kind(target: PreTrainedModel) -> Any:
    """The class that computes a target's modules. Raises UserError where none can be."""
    kind, made = type(target).__name__, model_class(dialect_of(target))
    if getattr(target.config, "quantization_config", None) is not None or not all(map(is_plain, target.parameters())):
        raise UserError(
            f"mtp: {kind} is in fewer bits and its modules are not; leave out --weights, or load a checkpoint in "
            "bfloat16"
        )
    if reason := OTHERS.get(target.config.get_text_config().model_type):
        raise UserError(f"mtp: {kind} is not handled: {reason}; choose another target or method")
    return made


def load_modules(target: PreTrainedModel, folder: str = "auto") -> Any:
    """The MtpModel of a target, with the weights of its own checkpoint or of another folder.

    Raises UserError; NoModules if the target announces none, or if none of their weights is there.
    """
    kind, made = type(target).__name__, check_kind(target)
    if not (count := announced(target)):
        raise NoModules(
            f"mtp: {kind} announces no modules for more tokens; train one (specbench train --method mtp), or choose "
            "another target or method"
        )
    where = target.config.name_or_path if folder == "auto" else folder
    dialect = dialect_of(target)
    with announcing(target, count, dialect.layer, dialect.mlp, dict(dialect.fields)), _from(target, where):
        try:
            model = made.from_pretrained(target, device_map={"": target.device}, trust_remote_code=False)
        except (RuntimeError, ValueError, KeyError, OSError, TypeError, AttributeError) as error:
            with torch.device("meta"):
                wanted = len(made(target, count).layers.state_dict())
            missing, modules = _missing(error), f"{count} module{'s' * (count > 1)}"
            none = not where or isinstance(error, OSError) or len(missing) >= wanted
            if none:
                found, too = "has none of their weights", ", or train one (specbench train --method mtp)"
            elif missing:
                found, too = f"lacks {len(missing)} of their {wanted} weights, {missing[0]} for one", ""
            else:
                found, too = f"has weights that do not fit ({brief(error)})", ""
            raise (NoModules if none else UserError)(
                f"mtp: {kind} announces {modules} for more tokens, and {where or 'its checkpoint'} {found}; name a "
                f"folder that has them by --set mtp.head=FOLDER{too}"
            ) from None
    return model.to(target.dtype).requires_grad_(False).eval()


def new_modules(target: PreTrainedModel) -> Any:
    """A module for a target that has none, in float32; its layer is a copy of the target's last one with attention.

    Raises UserError for a target whose layers cannot be one.
    """
    kind, made = type(target).__name__, check_kind(target)
    kinds = list(getattr(target.config.get_text_config(), "layer_types", None) or ())
    layer_type = next((one for one in ATTENTION if one in kinds), None)
    try:
        layers = target.get_decoder().layers
        last = len(layers) - 1 if layer_type is None else max(i for i, one in enumerate(kinds) if one == layer_type)
        with announcing(target, 1, layer_type), torch.random.fork_rng(devices=[]):
            model = made(target, 1)
        model.layers.float()
        model.layers[0].mtp_block.load_state_dict(layers[last].state_dict())
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"mtp: transformers makes no module of {kind}'s layers ({brief(error)}); train another head"
        ) from None
    return model


def stored_modules(head: Head, target: PreTrainedModel) -> tuple[Any, int]:
    """The module in a file, in the target's type and on its device, and how many steps it has learned.

    Raises UserError where its tensors disagree.
    """
    model = new_modules(target)
    with refuse_damaged(KIND):
        model.layers.load_state_dict({name.removeprefix("layers."): tensor for name, tensor in head.tensors.items()})
        steps = int(head.trained["steps"])
    placed(model.layers, target)
    return model.eval(), steps


def _missing(error: Exception) -> list[str]:
    """The weights that a checkpoint lacks, if that is why transformers cannot load it."""
    return re.findall(r"'(layers\.[^']+)'", str(error)) if "missing" in str(error) else []


@contextmanager
def announcing(
    target: PreTrainedModel, count: int, layer: str | None, mlp: str = "sparse", fields: Mapping[str, Any] = {}
) -> Iterator[None]:
    """Have the target's configuration announce modules, of a type where its layers have types; then as before."""
    config = target.config.get_text_config()
    wanted: dict[str, Any] = {"num_mtp_layers": count, **fields}
    for name, kind in (("layer_types", layer), ("mlp_layer_types", mlp)):
        if getattr(config, name, None) and not getattr(config, f"mtp_{name}", None):
            wanted[f"mtp_{name}"] = [kind] * count
    before = {name: vars(config)[name] for name in wanted if name in vars(config)}
    for name, value in wanted.items():
        setattr(config, name, value)
    try:
        yield
    finally:
        for name in wanted:
            if name in before:
                setattr(config, name, before[name])
            elif name in vars(config):
                delattr(config, name)


@contextmanager
def _from(target: PreTrainedModel, folder: str) -> Iterator[None]:
    """Let transformers read the modules from a folder."""
    before = target.config.name_or_path
    target.config.name_or_path = folder
    try:
        yield
    finally:
        target.config.name_or_path = before
