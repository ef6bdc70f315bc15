"""The arbitrator of CoSpec (arXiv 2605.24793, section 3.3): a causal LM with LoRA that outputs one logit per token.

The backbone is the draft model unless another one is named. Its weights are shared, not copied: the arbitrator is a
second tree of modules over the same parameters, into which peft puts its adapters. So the draft model stays as fast as
it was.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.config import Settings, UserError
from specbench.engine.models.heads import Head, Reads, find_head, hidden_size, write_head
from specbench.engine.models.identity import configuration_hash
from specbench.engine.models.pair import Pair, load_member

KIND = "cospec"
DRAFT = "draft"
ROLE: Reads = "arbitrator"


class Adapter(Settings):
    """LoRA on all linear layers inside the backbone."""

    rank: int = Field(ge=1, description="rank of the adapters (r)")
    alpha: float = Field(gt=0, allow_inf_nan=False, description="scale of the adapters, times r (α)")


class Verdicts(nn.Linear):
    """The head wᵀh + b in float32 or wider, which replaces the output layer."""

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.to(self.weight.dtype), self.weight, self.bias)


def new_arbitrator(backbone: PreTrainedModel, adapter: Adapter, seed: int, dropout: float = 0.0) -> PreTrainedModel:
    """An arbitrator over the backbone's parameters, which are frozen. A new one's logits are all 0.

    Its own parameters (`own_parameters`) are float32 or wider. Raises UserError for a backbone without linear layers
    (GPT-2 has other ones).
    """
    shared = {id(tensor): tensor for tensor in (*backbone.parameters(), *backbone.buffers())}
    model: PreTrainedModel = copy.deepcopy(backbone, shared)  # type: ignore[arg-type]
    config = model.config.get_text_config()
    if getattr(config, "final_logit_softcapping", None) is not None:  # Gemma 2: meant for logits of tokens
        config.final_logit_softcapping = None
    wide = torch.promote_types(backbone.dtype, torch.float32)
    with torch.random.fork_rng(devices=[]):
        head = Verdicts(hidden_size(backbone), 1, dtype=wide).to(backbone.device)  # initialised by the host's generator
        model.set_output_embeddings(head)
        if not _linear(model):
            raise UserError(f"{type(backbone).__name__} has no linear layers for adapters; choose another backbone")
        lora = peft.LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # any number
            lora_dropout=dropout,
            target_modules=sorted(_linear(model)),
        )
        model = peft.inject_adapter_in_model(lora, model)
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        parameter.data = parameter.data.to(wide)
        if "lora_A" in name:  # as peft does, from our own generator
            bound = (1 / parameter.shape[1]) ** 0.5
            with torch.no_grad():
                parameter.copy_(torch.empty(parameter.shape, dtype=wide).uniform_(-bound, bound, generator=rng))
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    for parameter in (head.weight, head.bias):
        parameter.requires_grad_(True)
    return model.eval()


def _linear(model: PreTrainedModel) -> set[str]:
    """The names of all linear layers except the head."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name for name, module in linear.items() if not isinstance(module, Verdicts)}


def own_parameters(arbitrator: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters of adapters and head, by name: all that is trained and stored."""
    return {name: parameter for name, parameter in arbitrator.named_parameters() if parameter.requires_grad}


def detached(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Copies of parameters on the CPU."""
    return {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}


def load_own(arbitrator: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Set all own parameters to `tensors`, in place."""
    with torch.no_grad():
        for name, parameter in own_parameters(arbitrator).items():
            parameter.copy_(tensors[name])


def with_backbone(pair: Pair, backbone: str) -> Pair:
    """The pair with the backbone added under the arbitrator's role.

    Raises UserError for a model that cannot be loaded, or whose tokenizer is not the target's.
    """
    if backbone == DRAFT:
        pair.need_one_tokenizer("the arbitrator reads draft and target tokens with the draft model")
        return pair.with_model(ROLE, pair.session(DRAFT).model)
    model = load_member(backbone, pair, "an arbitrator reads the target's tokens")
    joined = pair.with_model(ROLE, model)
    if joined.context < pair.context:
        raise UserError(
            f"{backbone} reads {joined.context} tokens, and {pair.name} up to {pair.context}; choose a backbone that "
            "reads as many"
        )
    return joined


def backbone_hash(backbone: str, joined: Pair) -> dict[str, str]:
    """A hash of a named backbone's configuration, under the name `backbone`; its weights are told by the head.

    Empty for the draft model, which the manifest tells of by itself.
    """
    return {} if backbone == DRAFT else {"backbone": configuration_hash(joined.models[ROLE].config)}


def write_arbitrator(path: Path, arbitrator: PreTrainedModel, pair: Pair, trained: Mapping[str, Any]) -> None:
    """Save adapters and head; `pair` includes the backbone, and `trained` must have `rank` and `alpha`."""
    write_head(path, KIND, own_parameters(arbitrator), pair, trained, ROLE)


def find_arbitrator(setting: str, pair: Pair) -> tuple[PreTrainedModel, Head]:
    """The arbitrator that a setting names, over the pair's backbone. Raises UserError as `find_head` does."""
    head = find_head(setting, KIND, pair, None, ROLE)
    backbone = pair.session(ROLE).model
    try:
        adapter = Adapter(rank=head.trained["rank"], alpha=head.trained["alpha"])
    except (KeyError, ValueError):
        raise UserError(f"the arbitrator {setting} does not hold the rank of its adapters; train it again") from None
    arbitrator = new_arbitrator(backbone, adapter, seed=0)
    shapes = {name: parameter.shape for name, parameter in own_parameters(arbitrator).items()}
    if shapes != {name: tensor.shape for name, tensor in head.tensors.items()}:
        raise UserError(
            f"the arbitrator {setting} has adapters for another model than {type(backbone).__name__}; train one for it"
        )
    load_own(arbitrator, head.tensors)
    return arbitrator, head
