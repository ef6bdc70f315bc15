"""Train the module that `mtp` drafts with, by the draft steps of decoding (FastMTP, arXiv 2509.18362, section 3).

One module is applied again and again, so it learns from its own states, as when it drafts. The target is frozen and
answers the documents itself; its states are computed on the fly.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.engine.models.heads import find_head, fingerprint
from specbench.engine.models.mtp import KIND, NoModules, load_modules, new_modules, stored_modules
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered, PaddedAnswers
from specbench.training.eagle3.fit import DraftStep, Taught, Unrolled, unroll
from specbench.training.eagle3.train import show
from specbench.training.heads import Lessons, to_learn
from specbench.training.recipe import UnrolledRecipe
from specbench.training.template import Figures, HeadTrainer, rounded
from specbench.training.train import Job

GOES_ON = True  # --warm-up: a module that the training goes on with; see train.py
SHARED = True  # workers may share what it collects; see train.py


class Module(nn.Module):
    """One module that learns. What it shares with the target is not among its weights."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        super().__init__()
        self.layers = model.layers
        self.model = (model,)  # in a tuple, so that the target's layers are not submodules
        self.register_buffer("ids", torch.arange(vocabulary), persistent=False)  # it drafts any token
        self.ids: Tensor

    def read(self, tokens: Tensor, states: Tensor, at: Tensor, blocked: Tensor, cache: DynamicCache) -> Tensor:
        """States [B, n, D] after tokens [B, n], each with the state [B, n, D] of the token before it.

        `at` [1 or B, n] are their places, `blocked` [1 or B, 1, n, cached + n] what they must not attend to.
        """
        (model,) = self.model
        embedded = model.embed_tokens(tokens).to(states)
        typed = {"layer_type": model.config.layer_types[0]} if model.has_per_layer_rope else {}
        rotation = model.rotary_emb(embedded, position_ids=at, **typed) if model.rotary_emb is not None else None
        mask = torch.zeros(blocked.shape, dtype=states.dtype, device=states.device).masked_fill(blocked, -torch.inf)
        after: Tensor = self.layers[0](
            embedded,
            states,
            position_embeddings=rotation,
            attention_mask=mask,
            position_ids=at,
            past_key_values=cache,
        )
        return after

    def predict(self, states: Tensor) -> Tensor:
        """Logits [..., vocabulary] of the next token, by the target's output layer."""
        (model,) = self.model
        logits: Tensor = model._project_to_logits(states.to(model.shared_head.weight.dtype))
        return logits[..., : len(self.ids)]


def steps_of(head: Module, text: Tensor, states: Tensor, at: Tensor, read: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Draft from places of texts as the module will when decoding; as `draft_steps` of EAGLE's heads.

    Step 0 reads the whole text with the target's states. Step k at a place reads its token with the state of step
    k - 1, and attends to step 0 at all places up to its own and to steps 1 … k at its own place.
    """
    (model,), length, count = head.model, text.shape[1] - 1, at.shape[1]
    states = states.to(head.layers[0].eh_proj.weight.dtype)
    cache = DynamicCache(config=model.config)
    columns = torch.arange(length, device=text.device)
    after = head.read(text[:, 1:], states[:, :-1], columns[None] + 1, (columns > columns[:, None])[None, None], cache)
    held = at.clamp(max=length - 1)
    after = after.gather(1, held[..., None].expand(-1, -1, after.shape[-1]))
    yield head.predict(after), after
    blocked = (columns > held[..., None])[:, None]
    own = ~torch.eye(count, dtype=torch.bool, device=text.device).expand(len(text), 1, -1, -1)
    for step in range(1, read.shape[-1]):
        blocked = torch.cat([blocked, own], -1)
        after = head.read(read[..., step], after, at + 1 + step, blocked, cache)
        yield head.predict(after), after


class MtpTraining(Unrolled):
    """The training of a module."""

    def __init__(
        self,
        target: PreTrainedModel,
        answered: Sequence[Answered],
        vocabulary: int,
        recipe: UnrolledRecipe,
        seed: int,
        earlier: Any = None,
    ) -> None:
        head, self.begun = first_module(target, vocabulary, seed, earlier)
        super().__init__(target, head, LAST, answered, recipe, seed)  # type: ignore[arg-type]

    def drafted(self, block: PaddedAnswers, taught: Taught) -> list[DraftStep]:
        return unroll(self.head, block, taught, self.recipe.steps, steps_of)


def earlier_module(named: str, pair: Pair) -> Any:
    """The modules of a folder or a trained file, by its name. Raises UserError if they do not fit the pair's target."""
    target = pair.models["target"]
    if Path(named).is_dir():
        return load_modules(target, named)
    head = find_head(named, KIND, pair, None)
    model, _ = stored_modules(head, target)
    to_learn(model.layers, {name.removeprefix("layers."): tensor for name, tensor in head.tensors.items()})
    return model


def first_module(target: PreTrainedModel, vocabulary: int, seed: int, earlier: Any = None) -> tuple[Module, str]:
    """An earlier module, else that of the target's checkpoint, else a new one; and which it is, in words.

    It is on the target's device, in float32. A new one begins with a layer of the target; what joins embedding and
    state is random (our inference). Raises UserError for several modules, for a target that none can be made for, and
    for a checkpoint with a part of them.
    """
    try:
        begun = "the checkpoint's module" if earlier is None else "an earlier module"
        model = load_modules(target) if earlier is None else earlier
    except NoModules:
        model, begun = new_modules(target), "a new module"
        joined = model.layers[0].eh_proj
        rng = torch.Generator().manual_seed(stable_seed(seed, "head"))
        with torch.no_grad():
            joined.weight.normal_(std=joined.in_features**-0.5, generator=rng)
    if (count := model.num_mtp_layers) > 1:
        raise UserError(f"mtp: {type(target).__name__} has {count} modules, and one is trained; choose another target")
    model.layers.float()
    return Module(model, vocabulary).to(target.device).requires_grad_(True), begun


class MtpTrainer(HeadTrainer[UnrolledRecipe, MtpTraining]):
    """The trainer of a module. It goes on with the one that --warm-up or the method's setting `head` names."""

    recipe_type = UnrolledRecipe
    kind = KIND

    def load(self) -> None:
        self.target, begins_with = check_target(self.pair, KIND), self.job.begins_with
        self.earlier = None if begins_with == "auto" else earlier_module(begins_with, self.pair)
        first_module(self.target, self.pair.vocabulary, self.seed, self.earlier)  # raises for other targets

    def begin(self, lessons: Lessons) -> MtpTraining:
        if self.earlier is not None:
            lessons.facts["warm_up"] = fingerprint(self.earlier.layers)
        return MtpTraining(self.target, lessons.learned, self.pair.vocabulary, self.recipe, self.seed, self.earlier)

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {"begun": self.training.begun, "held_out_agreement": rounded(after)}

    def about(self) -> str:
        return f"{self.training.begun}, {super().about()}"

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        show(held, after)


def train(job: Job) -> None:
    """As `HeadTrainer.train`. Raises UserError as `earlier_module` and `first_module` do, too."""
    MtpTrainer(job).train()
