"""What the gate tests share: sessions and texts of tiny models, on the CPU or on a GPU, always in float64."""

import functools
import os

import oracle
import torch

from specbench.config import load_method
from specbench.decoding.acceptance import AcceptanceHead
from specbench.decoding.arbiters import Never
from specbench.decoding.bandit import Bandit
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.lengths import Confidence, Cumulative, Entropy, Heuristic, Lengths, Oracle, Predicted
from specbench.decoding.lookup import Index, Lookup
from specbench.decoding.multidraft import Beam, Branching, TreeDrafter
from specbench.decoding.session import Session
from specbench.decoding.types import Method, Round, Sampling
from specbench.memory import Memory
from specbench.methods.cospec import CoSpec
from specbench.methods.cospec import Settings as CoSpecSettings
from specbench.methods.csd import CSD
from specbench.methods.csd import Settings as CSDSettings
from specbench.methods.lookahead import Lookahead
from specbench.methods.lookahead import Settings as LookaheadSettings
from specbench.methods.mdsd import MDSD
from specbench.methods.mdsd import Settings as MDSDSettings
from specbench.methods.reflective import Reflective
from specbench.methods.reflective import Settings as ReflectiveSettings
from specbench.methods.rsd import TreeSpeculation
from specbench.methods.sps import SpS
from specbench.methods.vanilla import Vanilla

DEVICE = os.environ.get("SPECBENCH_TEST_DEVICE", "cpu")
GREEDY = Sampling()


@functools.cache
def pair(architecture: str):
    target, draft = oracle.tiny_pair(architecture)
    return target.to(DEVICE), draft.to(DEVICE)


def without_looking(monkeypatch):
    """As on a GPU, where nobody waits to see whether logits are finite."""
    monkeypatch.setattr(Session, "_check", lambda self, logits: None)


def lively_prompt(architecture: str, length: int, count: int) -> tuple[list[int], list[int]]:
    """A prompt whose greedy text holds many distinct tokens, and that text: one that repeats itself proves nothing."""
    vanilla = Vanilla(Session(pair(architecture)[0], "target"))
    for prompt in oracle.prompts(20, length=length, seed=length):
        text, _ = decode(vanilla, prompt, count)
        if len(set(text)) >= 12:
            return prompt, text
    raise AssertionError(f"no prompt of {length} tokens makes {architecture} say 12 different things")


def never(gamma: int) -> CoSpecSettings:
    return CoSpecSettings(**{**load_method("cospec").values, "gamma": gamma, "arbiter": "never"})


def methods(architecture: str, gamma: int) -> dict[str, Method]:
    """Every lossless method, and CSD with the settings under which it must be lossless."""
    target, draft = pair(architecture)

    def drafter() -> ModelDrafter:
        return ModelDrafter(Session(draft, "draft"))

    return {
        "vanilla": Vanilla(Session(target, "target")),
        "sps": SpS(Session(target, "target"), drafter(), gamma),
        **{f"sps, {name}": sps(architecture, gamma + 2, chosen) for name, chosen in policies(architecture).items()},
        "lookahead": Lookahead(Session(target, "target"), LookaheadSettings(window=5, ngram=4, candidates=3)),
        "pld": SpS(Session(target, "target"), Lookup(lambda: Index(3, 1, 1, False), True, torch.device(DEVICE)), gamma),
        "rsd, beam": grown(target, Beam(Session(draft, "draft"), 3), gamma, 3 * gamma),
        "rsd, constant": grown(target, Branching(Session(draft, "draft"), (3, 2)), gamma, 3 + 6 * gamma),
        "cospec, never": CoSpec(Session(target, "target"), drafter(), never(gamma), Never(), {}),
        "mdsd": MDSD(
            Session(target, "target"),
            Session(draft, "draft"),
            MDSDSettings(drafts=2, gamma=gamma, replacement=False),
        ),
        "reflective, weight 0": Reflective(Session(target, "target"), drafter(), reflecting(gamma), [7, 70, 17]),
        "csd, no rescue by count": csd(target, draft, gamma, count_threshold=float("inf"), gate_threshold=0.0),
        "csd, no rescue by gate": csd(target, draft, gamma, count_threshold=0, gate_threshold=1.0),
    }


def grown(target, drafter: TreeDrafter, gamma: int, most: int) -> TreeSpeculation:
    return TreeSpeculation(Session(target, "target"), drafter, gamma, most)


def sps(architecture: str, gamma: int, lengths: Lengths) -> SpS:
    """Speculative sampling with a policy for its draft lengths."""
    target, draft = pair(architecture)
    return SpS(Session(target, "target"), ModelDrafter(Session(draft, "draft"), lengths), gamma)


def policies(architecture: str) -> dict[str, Lengths]:
    """Every way to choose a draft length, set so that it chooses different ones."""
    target, draft = pair(architecture)
    oracle = Oracle(Session(target, "target"), Session(draft, "draft"), frozenset(), 40)
    return {
        "confidence": Confidence(0.15, shortest=1),
        "cumulative": Cumulative(0.01, shortest=2),
        "entropy": Entropy(2.8, shortest=1),
        "specdecpp": Predicted(random_head(draft), 0.6, shortest=1, hashes={}),
        "heuristic": Heuristic(3),
        "bandit": Bandit((1, 2, 4), draft_cost=0.2, alpha=1.0),
        "oracle": oracle,
    }


def random_head(model, depth: int = 2, seed: int = 0, more: int = 0) -> AcceptanceHead:
    """A head that says something else at each state; it may read `more` values beside."""
    width = model.get_output_embeddings().weight.shape[-1] + more
    rng = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=rng) / width**0.5).to(DEVICE)

    return AcceptanceHead(noise(depth, width, width), noise(depth, width), 4 * noise(2, width), noise(2), depth)


def reflecting(gamma: int) -> ReflectiveSettings:
    return ReflectiveSettings(gamma=gamma, alpha=0, prompt="given as ids", prefix_tokens=4)


def csd(target, draft, gamma: int, counts=None, **changes) -> CSD:
    settings = {
        "gamma": gamma,
        "count_threshold": 6,
        "gate_threshold": 0.01,
        "count_test": "at_least",
        "online": True,
        "count_rescued": True,
        "exclude_eos": False,
        "memory": "none",
        "calibration": "task-specific",
        "calibration_size": 0,
    }
    chosen = CSDSettings(**{**settings, **changes})
    return CSD(Session(target, "target"), ModelDrafter(Session(draft, "draft")), chosen, Memory({"": counts or {}}))


def decode(method: Method, prompt: list[int], count: int, sampling: Sampling = GREEDY, seed: int = 0):
    """`count` tokens, and the rounds that made them."""
    ending = Ending(Limits(count, frozenset()), lambda ids: "")
    rng = torch.Generator(DEVICE).manual_seed(seed)
    rounds: list[Round] = list(until_end(method.rounds(prompt, sampling, rng), ending))
    return ending.tokens, rounds
