"""Whether a model's files hold all of its weights and no others. transformers draws what is missing at random."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from specbench.base.untrusted import brief
from specbench.config import UserError

MOST = 4  # names that a message lists
# Masks that earlier versions of transformers stored with GPT-J, GPT-Neo and CodeGen; it declares those of GPT-2 itself.
MASKS = re.compile(r"\.(attn|attention)\.(bias|masked_bias|causal_mask)$")
# What a model that also sees or hears has besides its language model.
SENSES = re.compile(r"(^|\.)(vision|visual|image|video|audio|speech|multi_modal|mm_)")


def check_whole(model: PreTrainedModel, found: Mapping[str, Any], settings: PreTrainedConfig, name: str) -> None:
    """Raise UserError unless a loaded model has its weights from its files, and has all that are in them.

    `found` is transformers' account of the loading, without the names that the model's class declares tied or
    ignorable; `settings` are those of the folder, of which the model may be a part.
    """
    part = type(model.config) is not type(settings)
    left = [key for key in found["unexpected_keys"] if not (MASKS.search(key) or (part and SENSES.search(key)))]
    if missing := found["missing_keys"]:
        hint = ", or set tie_word_embeddings to true if the output layer is the embedding" * _lacks_output(
            model, missing
        )
        raise UserError(
            f"{name}: its files lack {listed(missing)}, which would be random numbers; fetch the model again{hint}"
        )
    if left:
        raise UserError(
            f"{name}: its files hold {listed(left)}, which {type(model).__name__} with its config.json has no place "
            "for; give the config.json that belongs to these weights"
        )
    untied = model.get_expanded_tied_weights_keys(all_submodels=True).keys() - model.all_tied_weights_keys.keys()
    if untied:
        raise UserError(
            f"{name}: its config.json ties {listed(untied)} to the embedding, and its files hold other values for it; "
            "set tie_word_embeddings to false if they are meant"
        )


def listed(names: Collection[str]) -> str:
    """The first names in order, and how many more there are."""
    first = ", ".join(brief(name) for name in sorted(names, key=_numbered)[:MOST])
    return first + (f" and {len(names) - MOST} more" if len(names) > MOST else "")


def _numbered(name: str) -> list[tuple[int, str]]:
    """A key by which layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in name.split(".")]


def _lacks_output(model: PreTrainedModel, missing: Iterable[str]) -> bool:
    output = model.get_output_embeddings()
    return output is not None and any(model.get_submodule(key.rpartition(".")[0]) is output for key in missing)
