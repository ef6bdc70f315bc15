"""Imports heads that the authors of Medusa and Hydra released, or others in their form.

A checkpoint is a folder with config.json and medusa_lm_head.pt (or .safetensors), or hydra_lm_head.pt. Hydra's heads
must read the tokens before them (`grounded_heads`) and the target's last
state itself: those of Hydra++ read a further layer on it, which is not built here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, Field
from torch import Tensor

from specbench.base.untrusted import read_object
from specbench.config import Settings, UserError, validated
from specbench.engine.models.heads import Head, hidden_size
from specbench.engine.models.pair import Pair
from specbench.methods.heads import hydra, medusa
from specbench.methods.heads.medusa import Make, of_file
from specbench_extras.importer import Fitted, Importer, Tensors
from specbench_extras.released import AGAIN, OTHER_PAIR, read_tensors

# How often each rank is right is in no checkpoint. Our inference: the authors tell of about 60 % for the first head's
# first token; each further head is taken to be right 0.8 times as often, each further rank 0.35 times.
OFFICIAL = 5  # Medusa's heads in the official code
ASSUMED = [[round(0.6 * 0.8**head * 0.35**rank, 4) for rank in range(10)] for head in range(10)]


class MedusaConfig(Settings):
    model_config = ConfigDict(extra="ignore", frozen=True)

    medusa_num_heads: int = Field(default=1, ge=1, le=len(ASSUMED))
    medusa_num_layers: int = Field(default=1, ge=1)

    def refusal(self) -> str:
        """Why such heads cannot be used here; empty if they can."""
        return ""

    def heads(self, found: int) -> int:
        """How many heads are used of `found` in the file: at most five, as in the official code, whatever it says.

        (MedusaModelABC.from_pretrained in medusa_model.py: the first released files say 2 and hold 5.)
        """
        return min(found, OFFICIAL) if self.medusa_num_heads <= found else self.medusa_num_heads


class HydraConfig(Settings):
    model_config = ConfigDict(extra="ignore", frozen=True)

    hydra_num_heads: int = Field(ge=1, le=len(ASSUMED))
    hydra_num_layers: int = Field(default=1, ge=1)
    hydra_head_arch: str = "mlp"
    grounded_heads: bool = False
    hidden_state_offset: int = 0

    def refusal(self) -> str:
        """Why such heads cannot be used here; empty if they can."""
        if self.hydra_head_arch != "mlp":
            return f"hydra_head_arch is {self.hydra_head_arch}, and only mlp is built here (Hydra++ is not)"
        if not self.grounded_heads:
            return "grounded_heads is false: such heads are Medusa's"
        return f"hidden_state_offset is {self.hidden_state_offset}, not 0" if self.hidden_state_offset else ""

    def heads(self, found: int) -> int:
        """How many heads are used of `found` in the file."""
        return self.hydra_num_heads


@dataclass(frozen=True)
class Form:
    """A form of released heads."""

    config: type[MedusaConfig] | type[HydraConfig]
    names: tuple[str, str]  # of the file with the tensors: as safetensors, or pickled
    make: Make
    numbered: str  # a tensor of head i and of no other: a pattern whose group is i
    left_out: tuple[str, ...] = ()  # tensors that are the target's


FORMS = {
    medusa.KIND: Form(
        MedusaConfig,
        ("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
        medusa.medusa_heads,
        r"(\d+)\.",
    ),
    hydra.KIND: Form(
        HydraConfig,
        ("hydra_lm_head.safetensors", "hydra_lm_head.pt"),
        hydra.hydra_heads,
        r"hydra_(?:mlp|lm_head)\.(\d+)\.",
        ("input_embed_fn.weight",),
    ),
}


def check_sizes(folder: Path, tensors: Tensors, pair: Pair) -> None:
    """Raise UserError if heads do not read the states of the pair's target, or say other tokens than it."""
    target = pair.models["target"]
    width, known = hidden_size(target), target.get_output_embeddings().weight.shape[0]
    for name, tensor in tensors.items():
        if re.fullmatch(r"(hydra_mlp\.)?\d+\.\d+\.linear\.bias", name) and len(tensor) != width:
            raise UserError(
                f"{folder} reads {len(tensor)} values, but the target of {pair.name} has {width}; {OTHER_PAIR}"
            )
        if re.fullmatch(r"(hydra_lm_head\.\d+|\d+\.\d+)\.weight", name) and len(tensor) != known:
            raise UserError(f"{folder} says {len(tensor)} tokens, but {pair.name} has {known}; {OTHER_PAIR}")


@dataclass(frozen=True)
class Told:
    """What config.json tells of a file's heads."""

    heads: int
    layers: int  # blocks of each


class DraftHeadsImporter(Importer[Told]):
    kinds = (medusa.KIND, hydra.KIND)

    def read(self, folder: Path) -> tuple[Told, dict[str, Tensor]]:
        """The tensors of the heads that are used."""
        form = FORMS[self.kind]
        stored, path = read_tensors(folder, form.names), folder / "config.json"
        config = validated(form.config, read_object(path), str(path))
        if reason := config.refusal():
            raise UserError(f"{path}: {reason}; name the folder of other heads")
        numbers = {name: re.match(form.numbered, name) for name in stored}
        heads = config.heads(len({number[1] for number in numbers.values() if number}))
        tensors = {}
        for name, tensor in stored.items():
            number = numbers[name]
            if not (number and int(number[1]) >= heads) and name not in form.left_out:
                tensors[name] = tensor.float().clone()  # blocks of a head may share their tensors: `[ResBlock] * n`
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise UserError(f"{folder} holds values that are no numbers; {AGAIN}")
        return Told(heads, getattr(config, f"{self.kind}_num_layers")), tensors

    def fitted(self, folder: Path, form: Told, stored: Tensors, pair: Pair) -> Fitted:
        check_sizes(folder, stored, pair)
        told = f"{form.heads} heads of {self.kind} with {form.layers} blocks"
        wrong = f"{folder} holds no {told}, as its config.json says; {AGAIN}"
        try:
            made = FORMS[self.kind].make(dict(stored), pair.models["target"])
        except (ValueError, KeyError):
            raise UserError(wrong) from None
        expected = {name: tensor.shape for name, tensor in made.state_dict().items()}
        blocks = sum(bool(re.fullmatch(r"(hydra_mlp\.)?0\.\d+\.linear\.bias", name)) for name in expected)
        sizes = {name: tensor.shape for name, tensor in stored.items()}
        if expected != sizes or (len(made), blocks) != (form.heads, form.layers):
            raise UserError(wrong)
        return dict(stored), {"accuracies": ASSUMED[: form.heads], "assumed": True}

    def check(self, head: Head, pair: Pair) -> None:
        of_file(head, pair.models["target"], FORMS[self.kind].make)


import_head = DraftHeadsImporter.import_head
