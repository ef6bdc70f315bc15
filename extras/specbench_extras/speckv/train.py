"""Train SpecKV's network (arXiv 2605.02888): records of rounds, a regression, and what its choices are worth.

Calibration documents are decoded with drafts of the longest length. A draft that is shorter accepts the same first
tokens, so each round tells the tokens of every length.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from specbench.base.console import console, note
from specbench.base.hashes import stable_seed
from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import until_end
from specbench.engine.lengths import DraftToken, Lengths
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import Pair
from specbench.engine.speculate import speculate
from specbench.engine.types import Sampling
from specbench.training.collected import Facts, collect_all
from specbench.training.documents import Document, hold_out, training_documents
from specbench.training.loop import cosine, descend
from specbench.training.publish import announce, collecting, flush_right, publish, source
from specbench.training.train import Job
from specbench_extras.speckv.speckv import KIND, LAYERS, SIGNALS, Settings, expected_tokens, round_times

DECODES = True  # the target and the draft decode what it learns from; see train.py
SHARED = True  # workers may share what it collects; see train.py
HELD_OUT = 5  # one document in this many chooses the step whose network is kept, and shows what it is worth
EVERY = 20  # steps from one look at the held-out error to the next
CLIP = 1.0  # largest norm of a step's gradient
COLUMNS = ("confidence", "entropy", "accepted")


class Recipe(Base):
    """The recipe of SpecKV's network."""

    width: int = Field(ge=1, description="units of each of the two hidden layers")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the records' texts; 0 is greedy")
    steps: int = Field(ge=1, description="steps, each over all rounds")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="the highest, before it falls as a cosine")
    weight_decay: float = Field(ge=0, allow_inf_nan=False, description="of AdamW")


class Rounds(NamedTuple):
    """Rounds of one or more documents."""

    signals: Tensor  # [n, 2]: q(d) and H(q) of the first draft token
    accepted: Tensor  # [n]: tokens of the longest draft that were accepted

    def tokens(self, choices: Sequence[int]) -> Tensor:
        """The tokens that a round commits with each of K lengths [n, K]."""
        return torch.minimum(self.accepted[:, None], torch.tensor(choices)) + 1.0


class Watching(Lengths):
    """Drafts of a fixed length; keeps the signals of each round's first token."""

    looks = True

    def enough(self, step: int, token: DraftToken) -> bool:
        if step == 1:
            self.signals = float(token.chance()), token.entropy()
        return False


def train(job: Job) -> None:
    """Record rounds (or go on with that), fit, write the head to `job.out` and print what its choices are worth.

    The records stay in a folder next to the file, `NAME.collected` for NAME.safetensors. Raises UserError if there is
    nothing to learn.
    """
    recipe, settings = job.recipe_as(Recipe), job.settings
    assert isinstance(settings, Settings)
    job.pair.need_one_tokenizer("the network learns where the draft reads the target's own tokens")
    documents = training_documents(job.plan, job.pair, max(settings.choices) + 1, job.data, stand_ins=True)
    folder = job.folder("collected")
    with collecting(folder, "recording", len(documents), "what was recorded") as advance:
        recorded = collect_all(
            documents,
            folder,
            lambda document: facts(job, recipe, document),
            lambda document: record(document, job.pair, settings, Sampling(recipe.temperature), job.plan.seed),
            rounds_of,
            advance,
        )
    learned, held = split(recorded, job.plan.seed)
    tensors = fit(learned, held, settings.choices, recipe, job.plan.seed)
    trained = {
        **source(job, documents),
        **recipe.model_dump(),
        "choices": list(settings.choices),
        "rounds": len(learned.accepted) + len(held.accepted),
        "held_out_rounds": len(held.accepted),
        "held_out_error": float(error(tensors, held, settings.choices)),
        "seed": job.plan.seed,
    }
    publish(job.out, KIND, tensors, job.pair, trained, "draft")
    note(f"{len(documents)} documents, {trained['rounds']} rounds, {trained['held_out_rounds']} of them held out")
    show(tensors, held, settings)
    announce(job.out, f"records: {folder}", job.use(job.out))


def facts(job: Job, recipe: Recipe, document: Document) -> Facts:
    """Everything that a document's records depend on."""
    settings = job.settings
    assert isinstance(settings, Settings)
    models = {role: fingerprint(job.pair.session(role).model) for role in ("target", "draft")}
    decoded = {"longest": max(settings.choices), "stop_at_eos": settings.stop_at_eos}
    return {**models, **document.facts, **decoded, "temperature": recipe.temperature, "seed": job.plan.seed}


@torch.inference_mode()
def record(document: Document, pair: Pair, settings: Settings, sampling: Sampling, seed: int) -> pa.Table:
    """A row for each round of a document (COLUMNS), but for the prefill and a round that the text's end cut off."""
    policy = Watching()
    drafter = ModelDrafter(pair.session("draft"), policy, pair.eos_ids if settings.stop_at_eos else frozenset())
    rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, KIND, document.name))
    longest = max(settings.choices)
    rounds = speculate(pair.session("target"), drafter, exact, longest, document.prompt, sampling, rng)
    rows = [
        (*policy.signals, decoded.verdict.accepted)
        for decoded in until_end(rounds, document.ending(pair))
        if decoded.verdict and not decoded.truncated
    ]
    confidence, entropy, accepted = zip(*rows, strict=True) if rows else ((), (), ())
    columns = (pa.array(confidence, pa.float32()), pa.array(entropy, pa.float32()), pa.array(accepted, pa.int32()))
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def rounds_of(table: pa.Table) -> Rounds:
    confidence, entropy, accepted = (torch.from_numpy(table[name].to_numpy().copy()) for name in COLUMNS)
    return Rounds(torch.stack([confidence, entropy], 1), accepted)


def split(recorded: Mapping[str, Rounds], seed: int) -> tuple[Rounds, Rounds]:
    """Rounds to learn from, and those of one document in HELD_OUT. Raises UserError if there are too few."""
    names = [name for name, rounds in recorded.items() if len(rounds.accepted)]
    if len(names) < 2:
        raise UserError(f"{len(names)} of {len(recorded)} documents have rounds to learn from; take more --documents")
    parts = ([recorded[name] for name in part] for part in hold_out(names, seed, HELD_OUT))
    learned, held = (Rounds(*map(torch.cat, zip(*part, strict=True))) for part in parts)
    return learned, held


def fit(learned: Rounds, held: Rounds, choices: Sequence[int], recipe: Recipe, seed: int) -> dict[str, Tensor]:
    """The network with the least squared error on `held`, of those at every EVERY-th step; on the CPU."""
    mean, deviation = learned.signals.mean(0), learned.signals.std(0, correction=0).clamp(min=1e-6)
    scaled = Rounds((learned.signals - mean) / deviation, learned.accepted)
    wanted = scaled.tokens(choices)
    tensors = {name: tensor.requires_grad_() for name, tensor in start(recipe.width, len(choices), seed).items()}
    optimizer = torch.optim.AdamW(tensors.values(), weight_decay=recipe.weight_decay)
    best, least = {}, torch.inf
    for step in range(recipe.steps):
        mse_loss(expected_tokens(tensors, scaled.signals), wanted).backward()
        descend(optimizer, CLIP, recipe.learning_rate * cosine(step, recipe.steps, 0))
        if (step + 1) % EVERY == 0 or step + 1 == recipe.steps:
            now = unscaled({name: tensor.detach().clone() for name, tensor in tensors.items()}, mean, deviation)
            if (missed := float(error(now, held, choices))) < least:
                best, least = now, missed
    if not best:
        raise UserError("the error is not a number any more; take a lower rate by --recipe learning_rate=…")
    return best


def start(width: int, lengths: int, seed: int) -> dict[str, Tensor]:
    """Initial tensors: uniform within ±1/√n of a layer that reads n values."""
    rng = torch.Generator().manual_seed(stable_seed(seed, "start"))
    tensors = {}
    for layer, (read, written) in zip(LAYERS, ((SIGNALS, width), (width, width), (width, lengths)), strict=True):
        for kind, shape in (("weight", (written, read)), ("bias", (written,))):
            tensors[f"{layer}.{kind}"] = torch.empty(shape).uniform_(-(read**-0.5), read**-0.5, generator=rng)
    return tensors


def unscaled(tensors: dict[str, Tensor], mean: Tensor, deviation: Tensor) -> dict[str, Tensor]:
    """The same network, which reads raw signals in place of those with mean 0 and deviation 1 [2]."""
    weight = tensors["first.weight"] / deviation
    return {**tensors, "first.weight": weight, "first.bias": tensors["first.bias"] - weight @ mean}


@torch.no_grad()
def error(tensors: Mapping[str, Tensor], rounds: Rounds, choices: Sequence[int]) -> Tensor:
    """The mean squared error of the predicted tokens."""
    return mse_loss(expected_tokens(tensors, rounds.signals), rounds.tokens(choices))


@torch.no_grad()
def show(tensors: Mapping[str, Tensor], held: Rounds, settings: Settings) -> None:
    """Print tokens of a round, and tokens per time, of each fixed length and of both objectives on held-out rounds."""
    tokens = held.tokens(settings.choices).numpy()
    expected = expected_tokens(tensors, held.signals)
    if min(expected[:, -1].std(correction=0), tokens[:, -1].std()) > 0:
        together = np.corrcoef(expected[:, -1].numpy(), tokens[:, -1])[0, 1]
        note(f"correlation of predicted and actual tokens of the last length, held out: {together:.2f}")
    times = round_times(settings.choices, "time", settings.draft_cost).numpy()
    table = flush_right("length", "tokens a round", f"tokens a target forward (c = {settings.draft_cost:g})")
    for place, gamma in enumerate(settings.choices):
        table.add_row(str(gamma), *worth(tokens, times, np.full(len(tokens), place)))
    for objective in ("tokens", "time"):
        chosen = (expected / round_times(settings.choices, objective, settings.draft_cost)).argmax(-1).numpy()
        table.add_row(f"by {objective}", *worth(tokens, times, chosen))
    console.print(table)


def worth(tokens: NDArray[np.float32], times: NDArray[np.float32], chosen: NDArray[np.int64]) -> tuple[str, str]:
    """Tokens of a round, and tokens per time, if each of n rounds had the length that is chosen for it [n]."""
    committed = tokens[np.arange(len(tokens)), chosen]
    return f"{committed.mean():.2f}", f"{committed.sum() / times[chosen].sum():.2f}"
