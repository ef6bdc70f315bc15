"""transformers' own forward as a model of OpenVINO's, kept in a file: traced once for its weights and the versions."""

import hashlib
import inspect
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
import torch.nn.functional as F
import transformers
from openvino import opset13 as op
from openvino._offline_transformations import apply_make_stateful_transformation, apply_moc_transformations
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

from specbench.console import progress
from specbench.environment import cache_folder
from specbench.errors import UserError
from specbench.runtimes.types import Unsupported
from specbench.untrusted import regular

SCHEMA = 1  # of what is written: another number, another file
ATTENTION = "specbench_openvino"
ABOUT = "specbench"  # where a model keeps what is not in its graph
TRACED = (3, 4)  # cached tokens and fed ones of the example that is traced; any other counts will do as well


def exported(model: PreTrainedModel, anew: bool = False) -> tuple[Any, bool]:
    """The model with a cache of its own, as an `openvino.Model`, and whether it was found in the cache folder.

    Inputs: input_ids, attention_mask, position_ids and features if it reads them, of [B, n], and `rows`: which of the
    batch get logits. PagedAttention makes every token a batch of its own, so they choose among tokens then. Outputs:
    the logits, then all hidden states. `about` tells the rest. Raises Unsupported if it cannot be traced.
    """
    path = cache_folder() / "openvino" / digest(model)
    if not anew and path.exists():
        try:
            for name in ("model.xml", "model.bin"):
                regular(path / name)
            found = _read(path)
            if about(found).keys() >= {"windows", "states", "features"}:
                return found, True
        except (UserError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):  # damaged
            pass
    with progress(f"exporting {type(model).__name__} for OpenVINO", 2, aside=True) as advance:
        made = traced(model)
        advance(1)
        try:
            _write(path, made)
        except (OSError, RuntimeError) as error:
            raise Unsupported(
                f"OpenVINO's export cannot be kept in {path.parent} ({' '.join(str(error).split())[:160]}); set "
                "SPECBENCH_CACHE to a folder that can be written"
            ) from None
        advance(1)
    return _read(path), False


def about(exported: Any) -> dict[str, Any]:
    """`windows`: of each layer of the cache, 0 for none; `states`: the number of hidden states; `features`: their F."""
    told: dict[str, Any] = json.loads(exported.get_rt_info([ABOUT, "about"]).astype(str))
    return told


def digest(model: PreTrainedModel) -> str:
    """What an export depends on, as 32 hexadecimal digits: weights, shape and versions."""
    told = [SCHEMA, ov.get_version(), torch.__version__, transformers.__version__, repr(model)]
    found = hashlib.sha256(json.dumps([*told, model.config.to_json_string()]).encode())
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]


def traced(model: PreTrainedModel) -> Any:
    """What `exported` gives, in memory. It must be written and read back: until then some fusions do not find it."""
    width = features_read(model)
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with attending(model) as seen:
                shapes = _cached(model, width)
                windows = [seen.get(layer) or 0 for layer in range(len(shapes) // 2)]
                made = _graph(Traced(model), _example(shapes, width))
            states = len(made.outputs) - 1 - len(shapes)
            _stateful(made, shapes, width)
        except Unsupported:
            raise
        except Exception as error:  # whatever a tracer trips over
            raise Unsupported(
                f"OpenVINO cannot export {type(model).__name__} ({' '.join(str(error).split())[:160]}); "
                "use --runtime static"
            ) from None
    made.set_rt_info(json.dumps({"windows": windows, "states": states, "features": width}), [ABOUT, "about"])
    return made


def _graph(module: nn.Module, example: tuple[Tensor, ...]) -> Any:
    """What `openvino.convert_model` does, but for the usage statistics that it sends."""
    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchScriptPythonDecoder(module, example_input=example)  # must live until all is converted
    return frontend.convert(frontend.load(decoder))


def features_read(model: PreTrainedModel) -> int:
    """The width F of what a model reads beside its tokens; 0 if it reads nothing."""
    return model.config.hidden_size if "features" in inspect.signature(model.forward).parameters else 0


class Past:
    """The cache of a traced forward: given tensors, and those that it makes of them by appending."""

    is_compileable = False

    def __init__(self, past: Sequence[Tensor]) -> None:
        self.past = past
        self.grown: list[Tensor] = list(past)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        at = slice(2 * layer, 2 * layer + 2)
        self.grown[at] = [torch.cat([old, new], 2) for old, new in zip(self.past[at], (key, value), strict=True)]
        return self.grown[2 * layer], self.grown[2 * layer + 1]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.past[0].shape[2]


class Traced(nn.Module):
    """A forward of tensors alone. The mask keeps its input in the graph; PagedAttention does without."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        layer = model.get_output_embeddings() or getattr(model, "lm_head", None)
        if layer is None:
            raise Unsupported(f"{type(model).__name__} has no output layer that OpenVINO could be given")
        self.layer: nn.Module = layer

    def forward(self, ids: Tensor, mask: Tensor, places: Tensor, rows: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        count = len(past) // 2 * 2  # the features come last
        cache = Past(past[:count])
        few = self.layer.register_forward_pre_hook(lambda _, read: (read[0].index_select(0, rows),))
        try:
            out = self.model(
                ids,
                attention_mask=mask[:, None, None].to(torch.float32),
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
                output_hidden_states=True,
                return_dict=True,
                **({"features": past[-1]} if len(past) > count else {}),
            )
        finally:
            few.remove()
        return (out.logits, *out.hidden_states, *cache.grown)


@contextmanager
def attending(model: PreTrainedModel) -> Iterator[dict[int, int | None]]:
    """Around forwards whose attention is to be known as such to OpenVINO; yields each layer's window as it is met."""
    seen: dict[int, int | None] = {}
    kind = type(model).__name__  # and not the model: what is registered stays for good

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **told: Any
    ) -> tuple[Tensor, None]:
        for name in ("softcap", "s_aux", "position_bias"):
            if told.get(name) is not None:
                raise Unsupported(f"OpenVINO's PagedAttention knows no {name} as {kind} has it; use --runtime static")
        seen[module.layer_idx] = told.get("sliding_window")  # type: ignore[index, assignment]
        repeats = int(query.shape[1]) // int(key.shape[1])
        if repeats > 1:
            key, value = _repeated(key, repeats), _repeated(value, repeats)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=told.get("scaling"))
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(ATTENTION, attend)
    own = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield seen
    finally:
        model.set_attn_implementation(own)


def _repeated(cached: Tensor, repeats: int) -> Tensor:
    heads, size = int(cached.shape[1]), int(cached.shape[3])  # numbers, not parts of the graph
    wide = cached[:, :, None].expand(cached.shape[0], heads, repeats, cached.shape[2], size)
    return wide.reshape(cached.shape[0], heads * repeats, cached.shape[2], size)


def _cached(model: PreTrainedModel, width: int) -> list[tuple[int, int]]:
    """Heads and their size, of each layer's keys and values."""
    cache = DynamicCache()
    features = {"features": torch.zeros(1, 2, width)} if width else {}
    model(torch.tensor([[1, 2]]), past_key_values=cache, use_cache=True, **features)
    return [(one.shape[1], one.shape[3]) for layer in cache.layers for one in (layer.keys, layer.values)]


def _example(shapes: list[tuple[int, int]], width: int) -> tuple[Tensor, ...]:
    cached, fed = TRACED
    past = (torch.zeros(1, heads, cached, size) for heads, size in shapes)
    ids, places = torch.ones(1, fed, dtype=torch.long), torch.arange(cached, cached + fed)[None]
    rows = torch.zeros(1, dtype=torch.long)
    features = (torch.zeros(1, fed, width),) if width else ()
    return (ids, torch.ones(1, cached + fed, dtype=torch.long), places, rows, *past, *features)


def _stateful(made: Any, shapes: list[tuple[int, int]], width: int) -> None:
    """Name inputs and outputs, let all counts vary, and make the cache a state of the model, in place.

    That is the form in which `paged_attention_transformation` looks for a cache.
    """
    cache = [f"past_key_values.{layer}.{kind}" for layer in range(len(shapes) // 2) for kind in ("key", "value")]
    dims: dict[str, list[int]] = {name: [-1, -1] for name in ("input_ids", "attention_mask", "position_ids")}
    dims |= {"rows": [-1]}
    dims |= {name: [-1, heads, -1, size] for name, (heads, size) in zip(cache, shapes, strict=True)}
    dims |= {"features": [-1, -1, width]} if width else {}
    for given, (name, shape) in zip(made.inputs, dims.items(), strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_friendly_name(name)
        given.get_node().set_partial_shape(ov.PartialShape(shape))
    made.validate_nodes_and_infer_types()
    apply_moc_transformations(made, cf=False)
    present = {name: name.replace("past_key_values", "present") for name in cache}
    for output, name in zip(made.outputs[-len(cache) :], present.values(), strict=True):
        output.get_tensor().set_names({name})
    made.validate_nodes_and_infer_types()
    beams = op.parameter(name="beam_idx", dtype=ov.Type.i32, shape=ov.PartialShape([-1]))
    beams.output(0).get_tensor().add_names({"beam_idx"})
    made.add_parameters([beams])
    for name in cache:
        past = made.input(name).get_node().output(0)
        readers = past.get_target_inputs()
        chosen = op.gather(past, beams, op.constant(0))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    made.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(made, present)
    batch = op.gather(op.shape_of(made.input("input_ids"), output_type="i64"), op.constant([0]), op.constant(0))
    for node in made.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = [op.constant(np.array([max(size, 0)])) for size in _sizes(node)[1:]]
            node.set_arguments([op.broadcast(op.constant(np.float32(0)), op.concat([batch, *shape], 0))])
    made.validate_nodes_and_infer_types()


def _sizes(node: Any) -> list[int]:
    """The sizes of what a node gives, -1 for those that vary."""
    return [-1 if one.is_dynamic else one.get_length() for one in node.get_output_partial_shape(0)]


def _read(path: Path) -> Any:
    return ov.Core().read_model(path / "model.xml")


def _write(path: Path, made: Any) -> None:
    """Whole or not at all: whoever looks meanwhile finds an older one, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(dir=path.parent))
    try:
        ov.save_model(made, begun / "model.xml", compress_to_fp16=False)
        shutil.rmtree(path, ignore_errors=True)
        try:
            os.replace(begun, path)
        except OSError:
            if not path.exists():  # else another process was faster, with the same
                raise
    finally:
        shutil.rmtree(begun, ignore_errors=True)
