"""Fit a draft to its target: AdamW on all weights or on adapters, the best weights on held-out texts are kept."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.base.console import duration, note, say
from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.engine.clock import now
from specbench.engine.models.layer_ranges import output_of
from specbench.engine.models.pair import Pair
from specbench.training.answered import batches
from specbench.training.documents import Document
from specbench.training.heads import FORECAST, autocast
from specbench.training.loop import Epochs, cosine, descend
from specbench_extras.drafts.data import Answers, Lesson, Packed, Teacher, answer_lesson, packed
from specbench_extras.drafts.losses import losses, mean_of_sides, total_variation
from specbench_extras.drafts.recipe import DraftRecipe


class Forecast:
    """Prints once how long a training takes, as its second step went."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def step(self, left: int) -> None:
        """A step is about to begin, and `left` are left with it."""
        if len(self.begun) == 3:
            return
        self.begun.append(now())
        if len(self.begun) == 3 and left + 2 >= FORECAST:
            say(f"about {duration((self.begun[2] - self.begun[1]) * left)} for {left} steps, as the second one went")


class DraftTraining(Epochs[list[Document]]):
    """The training of a draft; a batch is some documents, whose lessons are made when they are learned from.

    `log` has a row for every step and for every look at the held-out texts: epoch, step, loss, learning rate, places,
    and held-out acceptance, Σ min(p, q) at temperature 1, which is 1 - TVD.
    """

    state_keys = ("draft", "optimizer", "step", "best", "log")
    checkpoint_seconds = 120.0

    def __init__(
        self,
        pair: Pair,
        learned: Sequence[Document],
        answers: Answers,
        held: Sequence[Lesson],
        recipe: DraftRecipe,
        seed: int,
    ) -> None:
        super().__init__(len(learned), recipe.batch, recipe.epochs)
        self.target, self.learned, self.held, self.recipe, self.seed = (
            pair.models["target"],
            learned,
            held,
            recipe,
            seed,
        )
        self.device = pair.device
        self.draft = learner(pair.models["draft"], recipe, seed)
        self.say = output_of(self.draft) if recipe.exits else None
        self.teacher = Teacher(pair, self.draft, answers, recipe, seed)
        self.optimizer = torch.optim.AdamW(
            own(self.draft).values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.log: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.forecast = Forecast()

    def begin(self) -> None:
        self.look()

    def batches(self, epoch: int) -> list[list[Document]]:
        seed = stable_seed(self.seed, "epoch", epoch)
        return batches(self.learned, self.recipe.batch, seed, lambda document: len(document.prompt))

    def learn_unit(self, kept: Path | None) -> None:
        self.forecast.step(self.steps - self.step)
        try:
            super().learn_unit(kept)
        except RuntimeError as error:  # on a CPU, being out of memory has no type of its own
            if not (isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)):
                raise
            raise UserError(
                f"out of memory at step {self.step}; lower batch or length, or set gradient_checkpointing=true or "
                "lora_rank=16, by --recipe"
            ) from None
        if self.step % self.epoch_steps == 0:
            self.look()

    def learn(self, batch: Sequence[Document]) -> float:
        """Make one step, in place, and return its loss; none if no place teaches, or if the loss is not finite."""
        lessons = self.teacher.lessons(batch, self.step // self.epoch_steps)
        blocks = list(packed(lessons, self.device))
        total = torch.zeros((), device=self.device)
        counts = shares(blocks)
        self.draft.train(self.recipe.gradient_checkpointing)
        for block in blocks:
            loss = self.loss(block, counts)
            loss.backward()
            total += loss.detach()
        self.draft.eval()
        value, rate = float(total), self.recipe.learning_rate * self.share
        if blocks and torch.isfinite(total):
            descend(self.optimizer, self.recipe.clip, rate)
        places = sum(len(lesson.places) for lesson in lessons)
        self.row(loss=value if places else None, learning_rate=rate, places=places)
        return value

    @property
    def share(self) -> float:
        """The share of the highest learning rate at this step."""
        return cosine(self.step, self.steps, self.recipe.warmup * self.steps)

    def loss(self, block: Packed, counts: tuple[int, int]) -> Tensor:
        """The part of a step's loss that a block has; `counts` are the step's places of both kinds (`shares`)."""
        spoken, taught = self.both(block)
        each = [losses(self.recipe, drafted, taught, block.targets, block.rejected) for drafted in spoken]
        values = torch.stack(each).sum(0)
        if self.recipe.loss != "split":
            return values.sum() / sum(counts)
        return mean_of_sides(values, block.rejected, block.slots, counts, self.recipe.reject_decay)

    def both(self, block: Packed) -> tuple[list[Tensor], Tensor]:
        """Logits [N, V] at a block's places, in float32 or wider: of each exit of the draft, and of the target.

        The last exit is the whole draft.
        """
        size = min(model.config.get_text_config().vocab_size for model in (self.draft, self.target))
        needed = block.tokens.shape[1] - int(block.places.min()) + 1  # of the last tokens
        asked: dict[str, Any] = {"use_cache": False, "logits_to_keep": needed}
        with autocast(self.device, self.recipe.autocast):
            out = self.draft(block.tokens, output_hidden_states=bool(self.recipe.exits), **asked)
            spoken = [block.at_places(out.logits)]
            if self.say:
                states = [block.at_places(out.hidden_states[before]) for before in self.recipe.exits]
                spoken = [*map(self.say, states), *spoken]
            with torch.no_grad():
                taught = block.at_places(self.target(block.tokens, **asked).logits)
        wide = torch.promote_types(torch.float32, out.logits.dtype)
        return [drafted[:, :size].to(wide) for drafted in spoken], taught[:, :size].to(wide)

    @torch.no_grad()
    def acceptance(self) -> float:
        """The mean of Σ min(p, q) over the places of the held-out texts and the exits, at temperature 1."""
        kept, places = 0.0, 0
        for block in packed(self.held, self.device):
            spoken, taught = self.both(block)
            for drafted in spoken:
                kept += float((1 - total_variation(taught.log_softmax(-1), drafted.log_softmax(-1))).sum())
                places += len(block.places)
        return kept / places

    def look(self) -> None:
        """Measure the held-out acceptance, and keep the weights if it is the highest so far (the first ones too)."""
        acceptance = self.acceptance()
        if not self.best or acceptance > max(row["held_out"] for row in self.log if row["held_out"] is not None):
            self.best = {name: tensor.detach().clone() for name, tensor in own(self.draft).items()}
        self.row(held_out=acceptance)
        when = f"epoch {self.step // self.epoch_steps} of {self.recipe.epochs}" if self.step else "before training"
        note(f"{when}: acceptance Σ min(p, q) of held-out texts {acceptance:.3f}")

    def row(self, **values: Any) -> None:
        empty = {"loss": None, "learning_rate": None, "places": None, "held_out": None}
        self.log.append({"epoch": self.step // self.epoch_steps, "step": self.step} | empty | values)

    def diverged(self, step: int, loss: float, kept: Path | None) -> UserError:
        names = ", ".join(document.name for document in self._epoch[1][step % self.epoch_steps])
        good = f"{kept} holds the last good weights" if kept else "no checkpoint was due yet"
        return UserError(
            f"the loss is {loss} at step {step} (documents {names}); {good}; try a smaller learning_rate by --recipe"
        )

    def finished(self) -> PreTrainedModel:
        """The best weights as a plain model, in the type of the draft's own weights; ends the training."""
        with torch.no_grad():
            for name, parameter in own(self.draft).items():
                parameter.copy_(self.best[name])
        merged = merge_adapters(self.draft) if self.recipe.lora_rank else self.draft
        return merged.to(self.teacher.pair.models["draft"].dtype)

    def adapter_settings(self) -> dict[str, Any]:
        """What peft has to know of the adapters."""
        layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in self.best})
        return {"r": self.recipe.lora_rank, "lora_alpha": 2 * self.recipe.lora_rank, "target_modules": layers}

    def adapters(self) -> dict[str, Tensor]:
        """The best adapters by peft's names, in the type of the draft's own weights."""
        kind = self.teacher.pair.models["draft"].dtype
        return {
            f"base_model.model.{name.replace('.default.', '.')}": tensor.to(kind).cpu().contiguous()
            for name, tensor in self.best.items()
        }

    def state(self) -> dict[str, Any]:
        weights = {name: parameter.detach() for name, parameter in own(self.draft).items()}
        optimizer = self.optimizer.state_dict()
        return {"draft": weights, "optimizer": optimizer, "step": self.step, "best": self.best, "log": self.log}

    def restore(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in own(self.draft).items():
                parameter.copy_(state["draft"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.best, self.log = state["step"], dict(state["best"]), list(state["log"])
        self.advance(self.step)


def shares(blocks: Sequence[Packed]) -> tuple[int, int]:
    """How many places of a step were accepted (or belong to no drafted block), and how many rejected."""
    rejected = sum(int(block.rejected.sum()) for block in blocks)
    return sum(len(block.places) for block in blocks) - rejected, rejected


def learner(draft: PreTrainedModel, recipe: DraftRecipe, seed: int) -> PreTrainedModel:
    """A copy of a draft whose weights learn, in float32 or wider: all of them, or new adapters on its linear layers."""
    model: PreTrainedModel = copy.deepcopy(draft).to(torch.promote_types(draft.dtype, torch.float32))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # dropout is off in the draft (secondary source)
    if recipe.lora_rank:
        lora = peft.LoraConfig(
            r=recipe.lora_rank, lora_alpha=2 * recipe.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        with torch.random.fork_rng():
            torch.manual_seed(stable_seed(seed, "lora") % 2**63)
            peft.get_peft_model(model, lora)  # puts the adapters into the model itself
    else:
        model.requires_grad_(True)
    if recipe.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.eval()


def own(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its adapters added into its weights, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    return model


def held_lessons(documents: Sequence[Document], answers: Answers, length: int) -> list[Lesson]:
    """The target's answers to held-out documents, cut to `length` tokens; those without a place are left out."""
    made = [
        answer_lesson(document.prompt, answer).cut(length)
        for document in documents
        for answer in answers[document.name]
    ]
    return [lesson for lesson in made if lesson.places]
