"""Imports heads of Chimera that its authors released (github.com/kafkayu/Chimera), or others in their form.

A checkpoint is a folder with config.json, trimlp.pt, fast_layer1.pt and chimera_head.pt. The layer has the sizes and
positions of the target's layers, which no checkpoint repeats. Of several output layers the first is taken: in the
official code it drafts every token.
"""

from pathlib import Path

from pydantic import ConfigDict, Field

from specbench.base.untrusted import listed, read_object
from specbench.config import Settings, UserError, validated
from specbench.engine.models.heads import Head
from specbench.engine.models.pair import Pair
from specbench.methods.heads.eagle3 import check_target
from specbench_extras.chimera.chimera import KIND, chimera_head
from specbench_extras.chimera.chimera_head import READ
from specbench_extras.importer import Fitted, Importer, Shapes, Tensors
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
# Old versions of the layer store the frequencies of its positions, which follow from its size.
DERIVED = "fast_layer1.0.self_attn.rotary_emb.inv_freq"


class Config(Settings):
    """The field of a head's config.json that is needed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    chimera_num_heads: int = Field(default=1, ge=1)


def shapes(layer: LayerConfig, vocabulary: int) -> Shapes:
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


class ChimeraImporter(Importer[Config]):
    kinds = (KIND,)
    what = "Chimera"

    def read(self, folder: Path) -> tuple[Config, Tensors]:
        """The tensors by their names in `ChimeraHead`, without further output layers."""
        path = folder / "config.json"
        config = validated(Config, read_object(path), str(path))
        stored = {
            f"{part}.{name}": tensor
            for part in PARTS
            for name, tensor in read_tensors(folder, (f"{part}.safetensors", f"{part}.pt")).items()
        }
        outputs = {f"chimera_head.{number}.0.weight" for number in range(config.chimera_num_heads)}
        if missing := sorted(outputs - stored.keys()):
            raise UserError(f"{folder} holds no head of Chimera: it lacks {listed(missing)}; {self.remedy}")
        left_out = outputs - {OUTPUT}
        return config, {name: tensor for name, tensor in stored.items() if name not in left_out}

    def fitted(self, folder: Path, form: Config, stored: Tensors, pair: Pair) -> Fitted:
        target, owner = check_target(pair, KIND), f"the target of {pair.name}"
        layer = validated(LayerConfig, target.config.get_text_config().to_dict(), owner)
        encoder = stored.get("trimlp.1.weight")
        if encoder is not None and encoder.dim() == 2:
            check_reads(folder, len(encoder), None, pair)
        try:
            wanted, facts = shapes(layer, len(target.get_output_embeddings().weight)), layer.in_head_file()
        except ValueError as error:
            raise UserError(f"{owner} has layers that heads here do not have: {error}") from None
        check_tensors(folder, stored, wanted, self.what, self.remedy, (DERIVED,), owner)
        tensors = {name: stored[name].float() for name in wanted}
        tensors[OUTPUT] = tensors[OUTPUT][: pair.vocabulary].clone()
        return tensors, {"config": facts}

    def check(self, head: Head, pair: Pair) -> None:
        chimera_head(head, pair.models["target"], pair.vocabulary)


import_head = ChimeraImporter.import_head
