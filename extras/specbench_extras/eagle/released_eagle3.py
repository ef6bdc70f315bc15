"""Imports draft heads of EAGLE-3 that others trained: SafeAILab/EAGLE's, SpecForge's (SGLang), speculators' (vLLM).

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin. Its tensors are `fc`, `midlayer`
(`layers.0` in speculators), `norm`, `lm_head`, and the draft vocabulary, unless it is whole: `d2t` (the target's id of
each draft token minus its draft id) and `t2d` (for each of the target's tokens, True if the head can draft it). Some
bring `embed_tokens`: a copy of the target's, or their own if they are not as wide as the target (`target_hidden_size`).
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import UserError
from specbench.engine.models.eagle_head import config_of, layers_read, stored_settings
from specbench.engine.models.heads import Head
from specbench.engine.models.pair import Pair
from specbench.methods.heads.eagle3 import EMBEDDING, KIND, SHAPES, check_target, eagle_head, rising
from specbench_extras.importer import Fitted, LayerImporter, Shapes, Tensors
from specbench_extras.released import AGAIN, OTHER_PAIR, EagleLayer, attention_shapes, check_reads, mlp_shapes
from specbench_extras.released_forms import in_own_names

OF_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")  # which speculators may store
LAYERS = "eagle_aux_hidden_state_layer_ids"  # in `eagle_config`: other trainers name the layers there


class Config(EagleLayer):
    """The fields of a head's config.json that are needed."""

    draft_vocab_size: int = Field(ge=1)
    eagle_config: dict[str, Any] = Field(default={})
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    target_hidden_size: int | None = Field(default=None, ge=1)

    @property
    def reads(self) -> int:
        """The width of the target's states."""
        return self.target_hidden_size or self.hidden_size

    @property
    def whole(self) -> bool:
        """True if every token can be drafted: then the official code maps none, whatever d2t says."""
        return self.draft_vocab_size == self.vocab_size


def checked(folder: Path, config: Config, stored: Tensors, pair: Pair) -> dict[str, Tensor]:
    """The tensors of a head file, if they fit the pair's target. Raises UserError."""
    target = check_target(pair)
    own = config.reads != config.hidden_size
    check_reads(folder, config.reads, None if own else stored.get(EMBEDDING), pair)
    layers = list(layers_read(target))
    read = config.eagle_config.get(LAYERS) or config.eagle_aux_hidden_state_layer_ids or layers
    if read != layers:
        raise UserError(
            f"{folder} reads the states of layers {read}, and here heads read those that enter "
            f"{layers}, as EAGLE-3's own do; it cannot be used"
        )
    # Output layers of whole vocabularies may be longer than the tokenizer's, for the sake of round sizes.
    drafted = min(config.draft_vocab_size, pair.vocabulary) if config.whole else config.draft_vocab_size
    last = drafted - 1 + int(stored["d2t"][drafted - 1])
    if last >= pair.vocabulary:
        raise UserError(f"{folder} drafts token {last}, but {pair.name} has {pair.vocabulary} tokens; {OTHER_PAIR}")
    cut = {name: stored[name][:drafted] for name in ("d2t", "lm_head.weight")}
    kept = {name: stored[name] for name in (*SHAPES, *([EMBEDDING] * own))} | cut
    return {name: tensor.float().clone() for name, tensor in kept.items()}


class Eagle3Importer(LayerImporter[Config]):
    kinds = (KIND,)
    what, config = "EAGLE-3", Config
    optional = (EMBEDDING, "d2t", "t2d", *OF_TARGET)

    def read(self, folder: Path) -> tuple[Config, Tensors]:
        config, stored = super().read(folder)
        drafted = config.draft_vocab_size
        if config.whole:
            return config, {**stored, "d2t": torch.zeros(drafted)}
        ids = torch.arange(drafted) + stored["d2t"].long()
        named = stored["t2d"].nonzero()[:, 0] if "t2d" in stored else ids
        if not rising(ids, config.vocab_size) or not torch.equal(named, ids):
            raise UserError(
                f"{folder}: d2t and t2d do not name the same {drafted} of {config.vocab_size} tokens; {AGAIN}"
            )
        return config, stored

    def named(self, stored: Tensors) -> Tensors:
        return in_own_names(stored)

    def shapes(self, config: Config, stored: Tensors) -> Shapes:
        width, drafted = config.hidden_size, config.draft_vocab_size
        attention = attention_shapes(config, 2 * width)
        return {
            **{f"midlayer.self_attn.{name}": shape for name, shape in attention.items()},
            **{f"midlayer.mlp.{name}": shape for name, shape in mlp_shapes(config).items()},
            **{name: (width,) for name, shape in SHAPES.items() if len(shape) == 1 and name != "d2t"},
            "fc.weight": (width, 3 * config.reads),
            "lm_head.weight": (drafted, width),
            **({} if config.whole else {"d2t": (drafted,)}),
            **({EMBEDDING: (config.vocab_size, width)} if config.reads != width else {}),
        }

    def fitted(self, folder: Path, form: Config, stored: Tensors, pair: Pair) -> Fitted:
        tensors = checked(folder, form, stored, pair)
        sizes = form.hidden_size, form.intermediate_size, len(tensors["d2t"])
        return tensors, {
            "config": stored_settings(config_of(*sizes, form.in_head_file())),
            "layers": list(layers_read(pair.models["target"])),
            "draft_vocabulary": len(tensors["d2t"]),
        }

    def check(self, head: Head, pair: Pair) -> None:
        eagle_head(head, pair.models["target"], pair.vocabulary)


import_head = Eagle3Importer.import_head
