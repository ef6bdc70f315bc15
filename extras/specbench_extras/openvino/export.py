"""Export a transformers model to an OpenVINO model in a cached file, which depends on its weights and on versions."""

import hashlib
import inspect
import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
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

from specbench.base.console import progress
from specbench.base.environment import cache_folder
from specbench.base.errors import UserError
from specbench.base.untrusted import regular
from specbench.engine.runtimes.types import Unsupported

SCHEMA = 1  # of the cached file; with another number, another file is written
ATTENTION = "specbench_openvino"
ABOUT = "specbench"  # the key of facts about a model that are not in its graph
_instead: weakref.WeakKeyDictionary[PreTrainedModel, Any] = weakref.WeakKeyDictionary()  # see `use_instead`
TRACED = (3, 4)  # the numbers of cached and fed tokens of the traced example; any others would do


def exported(model: PreTrainedModel, again: bool = False) -> tuple[Any, bool]:
    """The model, with its own cache, as an `openvino.Model`; and True if it was found in the cache folder.

    Inputs: input_ids, attention_mask, position_ids, and features if the model reads them, all [B, n]; and `rows`, the
    batch rows that get logits. With PagedAttention every token is a batch row of its own, so `rows` chooses tokens.
    Outputs: the logits, then all hidden states. `about` gives the rest. Raises Unsupported if tracing fails.
    """
    need_float32(model)
    if model in _instead:
        return _instead[model], False
    return kept(model, digest(model), lambda: traced(model), again)


def use_instead(model: PreTrainedModel, export: Any) -> None:
    """From here on an export, with the same outputs, stands for the model's own."""
    _instead[model] = export


def kept(model: PreTrainedModel, name: str, make: Callable[[], Any], again: bool = False) -> tuple[Any, bool]:
    """A model's export of this name from the cache folder, and True; or what `make` returns, kept there, and False."""
    path = cache_folder() / "openvino" / name
    if not again and path.exists():
        try:
            for file in ("model.xml", "model.bin"):
                regular(path / file)
            cached = _read(path)
            if about(cached).keys() >= {"windows", "states", "features"}:
                return cached, True
        except (UserError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):  # damaged
            pass
    with progress(f"exporting {type(model).__name__} for OpenVINO", 2, aside=True) as advance:
        export = make()
        advance(1)
        try:
            _write(path, export)
        except (OSError, RuntimeError) as error:
            raise Unsupported(
                f"OpenVINO's export cannot be kept in {path.parent} ({' '.join(str(error).split())[:160]}); set "
                "SPECBENCH_CACHE to a writable folder"
            ) from None
        advance(1)
    return _read(path), False


def need_float32(model: PreTrainedModel) -> None:
    """Raise Unsupported for a model that is not in float32 on the CPU."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        dtype = str(model.dtype).removeprefix("torch.")
        raise Unsupported(
            f"the openvino runtime computes in float32 on a CPU, and {type(model).__name__} is {dtype} on "
            f"{model.device}; add --device cpu --dtype float32"
        )


def about(exported: Any) -> dict[str, Any]:
    """`windows`: of each cached layer, 0 for none; `states`: the number of hidden states; `features`: their width F."""
    facts: dict[str, Any] = json.loads(exported.get_rt_info([ABOUT, "about"]).astype(str))
    return facts


def digest(model: PreTrainedModel) -> str:
    """A hash of everything that an export depends on, as 32 hexadecimal digits: weights, shape and versions."""
    facts = [SCHEMA, ov.get_version(), torch.__version__, transformers.__version__, repr(model)]
    contents = hashlib.sha256(json.dumps([*facts, model.config.to_json_string()]).encode())
    for name, tensor in model.state_dict().items():
        contents.update(name.encode())
        contents.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return contents.hexdigest()[:32]


def traced(model: PreTrainedModel) -> Any:
    """The result of `exported`, in memory. It must be written and read back, or OpenVINO misses some fusions."""
    width = features_read(model)
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with traceable_attention(model) as layer_windows:
                shapes = _cache_shapes(model, width)
                windows = [layer_windows.get(layer) or 0 for layer in range(len(shapes) // 2)]
                export = _graph(Traced(model), _example(shapes, width))
            states = len(export.outputs) - 1 - len(shapes)
            _make_stateful(export, shapes, width)
        except Unsupported:
            raise
        except Exception as error:  # tracing may fail in any way
            raise Unsupported(
                f"OpenVINO cannot export {type(model).__name__} ({' '.join(str(error).split())[:160]}); "
                "use --runtime static"
            ) from None
    export.set_rt_info(json.dumps({"windows": windows, "states": states, "features": width}), [ABOUT, "about"])
    return export


def _graph(module: nn.Module, example: tuple[Tensor, ...]) -> Any:
    """Convert as `openvino.convert_model` does, but without sending usage statistics."""
    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchScriptPythonDecoder(module, example_input=example)  # must live until the conversion ends
    return frontend.convert(frontend.load(decoder))


def features_read(model: PreTrainedModel) -> int:
    """The width F of the features that a model reads next to its tokens; 0 if it reads none."""
    return model.config.hidden_size if "features" in inspect.signature(model.forward).parameters else 0


class Past:
    """The cache of a traced forward: the tensors it was given, and `grown`, the same with new tokens appended."""

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
    """A forward whose arguments are all tensors. PagedAttention needs no mask, but the graph must keep that input."""

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
        select = self.layer.register_forward_pre_hook(lambda _, args: (args[0].index_select(0, rows),))
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
            select.remove()
        return (out.logits, *out.hidden_states, *cache.grown)


@contextmanager
def traceable_attention(model: PreTrainedModel) -> Iterator[dict[int, int | None]]:
    """A context in which OpenVINO recognises the model's attention. Yields layer -> window, filled by forwards."""
    windows: dict[int, int | None] = {}
    kind = type(model).__name__  # not the model itself: a registered function is never freed

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **settings: Any
    ) -> tuple[Tensor, None]:
        for name in ("softcap", "s_aux", "position_bias"):
            if settings.get(name) is not None:
                raise Unsupported(f"OpenVINO's PagedAttention knows no {name} as {kind} has it; use --runtime static")
        windows[module.layer_idx] = settings.get("sliding_window")  # type: ignore[index, assignment]
        repeats = int(query.shape[1]) // int(key.shape[1])
        if repeats > 1:
            key, value = _repeated(key, repeats), _repeated(value, repeats)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=settings.get("scaling"))
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(ATTENTION, attend)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield windows
    finally:
        model.set_attn_implementation(before)


def _repeated(cached: Tensor, repeats: int) -> Tensor:
    heads, size = int(cached.shape[1]), int(cached.shape[3])  # numbers, not parts of the graph
    wide = cached[:, :, None].expand(cached.shape[0], heads, repeats, cached.shape[2], size)
    return wide.reshape(cached.shape[0], heads * repeats, cached.shape[2], size)


def _cache_shapes(model: PreTrainedModel, width: int) -> list[tuple[int, int]]:
    """The number of heads and their size, of the keys and the values of each layer."""
    cache = DynamicCache()
    features = {"features": torch.zeros(1, 2, width)} if width else {}
    model(torch.tensor([[1, 2]]), past_key_values=cache, use_cache=True, **features)
    return [(cached.shape[1], cached.shape[3]) for layer in cache.layers for cached in (layer.keys, layer.values)]


def _example(shapes: list[tuple[int, int]], width: int) -> tuple[Tensor, ...]:
    cached, fed = TRACED
    past = (torch.zeros(1, heads, cached, size) for heads, size in shapes)
    ids, places = torch.ones(1, fed, dtype=torch.long), torch.arange(cached, cached + fed)[None]
    rows = torch.zeros(1, dtype=torch.long)
    features = (torch.zeros(1, fed, width),) if width else ()
    return (ids, torch.ones(1, cached + fed, dtype=torch.long), places, rows, *past, *features)


def _make_stateful(export: Any, shapes: list[tuple[int, int]], width: int) -> None:
    """Name inputs and outputs, let all counts vary, and make the cache a state of the model, in place.

    `paged_attention_transformation` expects a cache in this form.
    """
    cache = [f"past_key_values.{layer}.{kind}" for layer in range(len(shapes) // 2) for kind in ("key", "value")]
    dims: dict[str, list[int]] = {name: [-1, -1] for name in ("input_ids", "attention_mask", "position_ids")}
    dims |= {"rows": [-1]}
    dims |= {name: [-1, heads, -1, size] for name, (heads, size) in zip(cache, shapes, strict=True)}
    dims |= {"features": [-1, -1, width]} if width else {}
    for port, (name, shape) in zip(export.inputs, dims.items(), strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    export.validate_nodes_and_infer_types()
    apply_moc_transformations(export, cf=False)
    present = {name: name.replace("past_key_values", "present") for name in cache}
    for output, name in zip(export.outputs[-len(cache) :], present.values(), strict=True):
        output.get_tensor().set_names({name})
    export.validate_nodes_and_infer_types()
    beams = op.parameter(name="beam_idx", dtype=ov.Type.i32, shape=ov.PartialShape([-1]))
    beams.output(0).get_tensor().add_names({"beam_idx"})
    export.add_parameters([beams])
    for name in cache:
        past = export.input(name).get_node().output(0)
        readers = past.get_target_inputs()
        chosen = op.gather(past, beams, op.constant(0))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    export.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(export, present)
    batch = op.gather(op.shape_of(export.input("input_ids"), output_type="i64"), op.constant([0]), op.constant(0))
    for node in export.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = [op.constant(np.array([max(size, 0)])) for size in _sizes(node)[1:]]
            node.set_arguments([op.broadcast(op.constant(np.float32(0)), op.concat([batch, *shape], 0))])
    export.validate_nodes_and_infer_types()


def _sizes(node: Any) -> list[int]:
    """The shape of a node's output, -1 for dimensions that vary."""
    return [-1 if size.is_dynamic else size.get_length() for size in node.get_output_partial_shape(0)]


def _read(path: Path) -> Any:
    return ov.Core().read_model(path / "model.xml")


def _write(path: Path, export: Any) -> None:
    """Write a model to the folder `path` atomically: other processes see an older one, none, or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=path.parent))
    try:
        ov.save_model(export, unfinished / "model.xml", compress_to_fp16=False)
        shutil.rmtree(path, ignore_errors=True)
        try:
            os.replace(unfinished, path)
        except OSError:
            if not path.exists():  # if it exists, another process has just written the same model
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
