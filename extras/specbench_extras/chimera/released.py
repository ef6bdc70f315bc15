"""Imports heads of Chimera that its authors released (github.com/kafkayu/Chimera), or others in their form.

A checkpoint is a folder with config.json, trimlp.pt, fast_layer1.pt and chimera_head.pt. The layer has the sizes and
positions of the target's layers, which no checkpoint repeats. Of several output layers the first is taken: in the
official code it drafts every token.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, Field
from torch import Tensor

from specbench.base import files
from specbench.base.untrusted import listed, read_object
from specbench.config import Settings, UserError, load_pair, validated
from specbench.engine.models.heads import Head, write_head
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.heads.eagle3 import check_target
from specbench_extras.chimera.chimera import KIND, chimera_head
from specbench_extras.chimera.chimera_head import READ
from specbench_extras.released import (
    LayerConfig,
    attention_shapes,
    check_reads,
    check_tensors,
    mlp_shapes,
    read_tensors,
)

OUTPUT = "chimera_head.0.0.weight"
PARTS = ("trimlp", "fast_layer1", "chimera_head")
REMEDY = "name the folder of a head that Chimera's authors released, or one of the same form"
# Old versions of the layer store the frequencies of its positions, which follow from its size.
DERIVED = "fast_layer1.0.self_attn.rotary_emb.inv_freq"


class Config(Settings):
    """The field of a head's config.json that is needed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    chimera_num_heads: int = Field(default=1, ge=1)


def import_head(checkpoint: Path, pair: str, out: Path | None, kind: str = KIND) -> Path:
    """Write a released head as a head file for a pair, and return its path.

    Raises UserError for a folder that holds no such head, and for a pair whose target it does not fit.
    """
    stored = read_released(checkpoint)
    path = out or Path(f"{KIND}-{checkpoint.resolve().name}.safetensors")
    files.refuse_existing(path)
    loaded = load_models(load_pair(pair))
    target = check_target(loaded, KIND)
    layer = validated(LayerConfig, target.config.get_text_config().to_dict(), f"the target of {loaded.name}")
    encoder = stored.get("trimlp.1.weight")
    if encoder is not None and encoder.dim() == 2:
        check_reads(checkpoint, len(encoder), None, loaded)
    try:
        wanted, facts = shapes(layer, len(target.get_output_embeddings().weight)), layer.in_head_file()
    except ValueError as error:
        raise UserError(f"the target of {loaded.name} has layers that heads here do not have: {error}") from None
    check_tensors(checkpoint, stored, wanted, "Chimera", REMEDY, (DERIVED,), f"the target of {loaded.name}")
    tensors = {name: stored[name].float() for name in wanted}
    tensors[OUTPUT] = tensors[OUTPUT][: loaded.vocabulary].clone()
    trained = {"released": checkpoint.resolve().name, "config": facts}
    chimera_head(Head(KIND, tensors, trained), target, loaded.vocabulary)  # raises if it cannot be read
    write_head(path, KIND, tensors, loaded, trained)
    return path


def read_released(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of a released head by their names in `ChimeraHead`, without further output layers.

    Raises UserError.
    """
    path = folder / "config.json"
    config = validated(Config, read_object(path), str(path))
    stored = {
        f"{part}.{name}": tensor
        for part in PARTS
        for name, tensor in read_tensors(folder, (f"{part}.safetensors", f"{part}.pt")).items()
    }
    outputs = {f"chimera_head.{number}.0.weight" for number in range(config.chimera_num_heads)}
    if missing := sorted(outputs - stored.keys()):
        raise UserError(f"{folder} holds no head of Chimera: it lacks {listed(missing)}; {REMEDY}")
    left_out = outputs - {OUTPUT}
    return {name: tensor for name, tensor in stored.items() if name not in left_out}


def shapes(layer: LayerConfig, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a released head for a target with such layers, whose output layer has `vocabulary` rows.

    Raises ValueError as of `LayerConfig.in_head_file`.
    """
    width = layer.hidden_size
    return {
        "trimlp.0.linear.weight": (READ * width, READ * width),
        "trimlp.0.linear.bias": (READ * width,),
        "trimlp.1.weight": (width, READ * width),
        **{f"fast_layer1.0.self_attn.{name}": shape for name, shape in attention_shapes(layer, width).items()},
        **{f"fast_layer1.0.mlp.{name}": shape for name, shape in mlp_shapes(layer).items()},
        "fast_layer1.0.input_layernorm.weight": (width,),
        "fast_layer1.0.post_attention_layernorm.weight": (width,),
        OUTPUT: (vocabulary, 2 * width),
    }
