"""What the gate tests share: sessions and texts of tiny models, on the CPU or on a GPU, always in float64."""

import functools
import os
from typing import Any

import oracle
import torch

from specbench.config import load_method, validated
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.types import Runtime
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Method, Round, Sampling
from specbench.methods import module, names
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla
from specbench.methods.lengths.confidence import Confidence
from specbench.methods.lengths.cumulative import Cumulative
from specbench.methods.lengths.entropy import Entropy
from specbench.methods.lengths.heuristic import Heuristic
from specbench.methods.lengths.oracle import Oracle
from specbench.methods.lengths.specdecpp import AcceptanceHead, Predicted
from specbench.methods.lossy.csd import CSD
from specbench.methods.lossy.csd import Settings as CSDSettings
from specbench.methods.lossy.csd_memory import Memory
from specbench_extras.bandit.bandit import Bandit
from specbench_extras.speckv.speckv import Learned, round_times
from specbench_extras.specserve.specserve import Efficiency

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
    return lively(pair(architecture)[0], length, count)


def lively(target, length: int, count: int) -> tuple[list[int], list[int]]:
    """The same of any target."""
    vanilla = Vanilla(Session(target, "target"))
    for prompt in oracle.prompts(20, length=length, seed=length):
        text, _ = decode(vanilla, prompt, count)
        if len(set(text)) >= 12:
            return prompt, text
    raise AssertionError(f"no prompt of {length} tokens makes {type(target).__name__} say 12 different things")


class Words:
    """A tokenizer for the tiny models: the token i is the text "i"."""

    eos_token_id = None

    def decode(self, ids: list[int], **_: object) -> str:
        return " ".join(map(str, ids))

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(96)}

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}


# Settings that suit tiny models, by method and label. A method that is not here is gated with the settings of its YAML
# if these are lossless. Lossy methods are here only with settings under which they must equal vanilla decoding.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "confidence": {"confidence": {"threshold": 0.15, "shortest": 1}},
    "cumulative": {"cumulative": {"threshold": 0.01, "shortest": 2}},
    "cs-drafting": {"cs-drafting": {"later": 3, "ngram": 3, "guesses": 4}},
    "entropy": {"entropy": {"threshold": 2.8, "shortest": 1}},
    "heuristic": {"heuristic": {"first": 3}},
    "bandit": {"bandit": {"choices": (1, 2, 4)}},
    "oracle": {"oracle": {"tokens": 40}},
    "k-by-batch": {"k-by-batch": {"schedule": {"1-1": 3, "2-2": 0, "3-9": 2}}},
    "specserve": {"specserve": {"draft": 0.2, "token": 0.05, "shortest": 1}},
    "tlt": {"tlt": {"strategies": ((2, 2, 4), (3, 3, 9), (4, 1, 4)), "epsilon": 0.3}},
    "goodput": {"goodput": {"token": 0.3, "draft": 0.2, "draft_token": 0.05, "expected": 0.6, "memory": 8}},
    "suffix": {
        "suffix, tree": {"offset": 2.0, "answers": 3},
        "suffix, chain": {"offset": 2.0, "form": "chain", "fallback": "draft"},
    },
    "target-acceptance": {"target-acceptance": {"target": 0.5, "window": 3, "fewest": 1}},
    "graft": {
        f"graft, {variant}": {"drafter": "draft", "variant": variant, "nodes": 12, "depth": 3, "kept": (2, 4, 6)}
        for variant in ("graft", "root", "tail")
    },
    "logitspec": {"logitspec": {"nodes": 20, "gamma": 6, "ranks": (2, 5)}},
    "lookahead": {"lookahead": {"window": 5, "ngram": 4, "candidates": 3}},
    "pld": {
        "pld, first": {"ngram": 3, "shortest": 1, "match": "first", "whole": False, "reuse": False},
        "pld, last": {"ngram": 3, "shortest": 1, "match": "last", "whole": False, "reuse": True},
        "pld, whole": {"ngram": 3, "shortest": 1, "match": "first", "whole": True, "reuse": False},
    },
    "eagle2": {"eagle2": {"nodes": 9, "top_k": 3}},
    "mirror": {"mirror": {"branches": 2}},
    "opt-tree": {"opt-tree": {"nodes": 8, "threshold": 0.01}},
    "rapid": {"rapid, weight 0": {"eta": 0.0, "chunk": 3, "kept": 3, "share": 0.0, "question": 3, "head": 1}},
    "recycling": {"recycling": {"successors": 3, "nodes": 20}},
    "rsd": {
        "rsd, beam": {"search": "beam", "width": 3},
        "rsd, constant": {"search": "constant", "branching": (3, 2)},
    },
    "sequoia": {"sequoia": {"acceptance": (0.5, 0.3, 0.2), "nodes": 9}},
    "mdsd": {
        "mdsd": {"drafts": 2, "replacement": False},
        "mdsd, traversal": {"drafts": 2, "replacement": True, "rule": "traversal"},
    },
    "s2d": {"s2d": {"exits": (1,), "thresholds": (0.15, 0.1)}},
    "sps": {"sps": {}, "sps, block": {"rule": "block"}},
    "window": {
        "window": {"sink": 1, "recent": 6},
        "window, draft": {"sink": 0, "recent": 9, "drafter": "draft"},
    },
    "cospec": {"cospec, never": {"arbiter": "never"}},
    "fly": {"fly, no entropy is enough": {"entropy_threshold": 100.0, "window_length": 1}},
    "lossy": {"lossy, threshold 1": {"form": "gate", "gate_threshold": 1.0}},
    "reflective": {"reflective, weight 0": {"alpha": 0, "prompt": "7 70 17", "prefix_tokens": 4}},
    "csd": {
        "csd, no rescue by count": {"count_threshold": float("inf"), "gate_threshold": 0.0},
        "csd, no rescue by gate": {"count_threshold": 0, "gate_threshold": 1.0},
    },
}
# No trained head of theirs comes with the bundled pair.
UNSHIPPED = ("chimera", "deer", "dovetail", "fspad", "taps", "taps-average", "taps-route")
# Methods that tiny models alone cannot run; the test file of each has its gate.
ELSEWHERE = {
    "chimera": "needs a trained head: test_chimera.py",
    "deer": "needs a trained head: test_dflash.py",
    "del": "needs trained adapters: test_del.py",
    "dflare": "needs a trained head: test_dflash.py",
    "dflash": "needs a trained head: test_dflash.py",
    "diffuspec": "needs a trained head: test_diffuspec.py",
    "eagle": "needs a trained head: test_eagle.py",
    "eagle3": "needs a trained head: test_eagle3.py",
    "eagle3-typical": "needs a trained head: test_eagle3_typical.py",
    "hydra": "needs trained heads: test_medusa.py",
    "kangaroo": "needs a trained adapter: test_kangaroo.py",
    "medusa": "needs trained heads: test_medusa.py",
    "judge": "needs a trained head: test_judge.py",
    "mtp": "needs modules: test_mtp.py",
    "omnidraft": "is for two tokenizers: test_omnidraft.py",
    "specblock": "needs a trained head: test_specblock.py",
    "rest": "needs a datastore: test_rest.py",
    "swift": "needs a deeper target: test_swift.py",
    **dict.fromkeys(("taps", "taps-average", "taps-route"), "needs trained heads: test_taps.py"),
    "tlt-online": "needs a trained head: test_tlt_online.py",
    "vocabtrim": "needs counts of tokens: test_draft_output.py",
}


def methods(architecture: str, gamma: int, runtime: Runtime = EAGER) -> dict[str, Method]:
    """Every lossless method, and lossy ones with settings under which they must be lossless.

    A new method is among them as soon as it has its file and its YAML.
    """
    models = tiny(architecture, runtime)
    result = {}
    for label, (name, _) in labelled().items():
        method = made(label, models, gamma)
        if name in SETTINGS or (method.lossless and method.combination is None):
            result[label] = method
    return result


@functools.cache
def labelled() -> dict[str, tuple[str, dict[str, Any]]]:
    """The name and the changed settings of every method that tiny models can run, by label; lossy ones too."""
    known = [name for name in names() if name not in ELSEWHERE]
    return {label: (name, changes) for name in known for label, changes in SETTINGS.get(name, {name: {}}).items()}


def made(label: str, models: Pair, gamma: int) -> Method:
    name, changes = labelled()[label]
    own = {"specdecpp": specdecpp, "speckv": speckv}  # their heads are in no file
    return own[name](models, gamma) if name in own else with_settings(name, models, gamma, changes)


def tiny(architecture: str, runtime: Runtime = EAGER) -> Pair:
    target, draft = pair(architecture)
    return Pair("tiny", {"target": target, "draft": draft}, Words(), runtime=runtime)


def with_settings(name: str, models: Pair, gamma: int, changes: dict[str, Any]) -> Method:
    """A method with the settings of its YAML but for γ and some changes."""
    implementation = module(name)
    sizes = {"gamma": gamma, "longest": gamma + 2}
    sizes = {key: size for key, size in sizes.items() if key in implementation.Settings.model_fields}
    values = {**load_method(name).values, **sizes, **changes}
    return implementation.build(validated(implementation.Settings, values, name), models, Unwatched())


def specdecpp(models: Pair, gamma: int) -> SpS:
    """SpecDec++ with a random head, for which there is no file."""
    lengths = Predicted(random_head(models.models["draft"]), 0.6, shortest=1, hashes={})
    return SpS(models.session("target"), ModelDrafter(models.session("draft"), lengths), gamma + 2)


def speckv(models: Pair, gamma: int) -> SpS:
    return SpS(models.session("target"), ModelDrafter(models.session("draft"), network()), gamma + 2)


def network(choices: tuple[int, ...] = (6, 4, 2, 1), bounds: tuple[float, ...] = (1.8, 2.4, 3.0)) -> Learned:
    """SpecKV with a network whose lengths, from the first on, are for H(q) + q(d) / 2 up to each of `bounds`."""
    slopes = torch.arange(len(choices)).float()
    tensors = {f"{layer}.weight": torch.eye(2) for layer in ("first", "second")}
    tensors |= {f"{layer}.bias": torch.zeros(2) for layer in ("first", "second")}
    tensors |= {
        "out.weight": slopes[:, None] * torch.tensor([0.5, 1.0]),
        "out.bias": -torch.tensor((0.0, *bounds)).cumsum(0),
    }
    return Learned(tensors, choices, round_times(choices, "tokens", 1.0), {})


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
        "speckv": network(),
        "specserve": Efficiency(0.08, 1.0, shortest=1),
        "heuristic": Heuristic(3),
        "bandit": Bandit((1, 2, 4), draft_cost=0.2, alpha=1.0),
        "oracle": oracle,
    }


def random_head(model, depth: int = 2, seed: int = 0, more: int = 0) -> AcceptanceHead:
    """A head that says something else at each state; it may read `more` further values."""
    width = model.get_output_embeddings().weight.shape[-1] + more
    rng = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=rng) / width**0.5).to(DEVICE)

    return AcceptanceHead(noise(depth, width, width), noise(depth, width), 4 * noise(2, width), noise(2), depth)


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


def decode(
    method: Method, prompt: list[int], count: int, sampling: Sampling = GREEDY, seed: int = 0, device: str = DEVICE
):
    """`count` tokens, and the rounds that made them; `device` is the method's."""
    ending = Ending(Limits(count, frozenset()), lambda ids: "")
    rng = torch.Generator(device).manual_seed(seed)
    rounds: list[Round] = list(until_end(method.rounds(prompt, sampling, rng), ending))
    return ending.tokens, rounds


def assert_greedy_exact(architecture: str, runtime: Runtime, texts: int) -> None:
    """Every lossless method says what whole forwards without a cache say, text after text, beyond Gemma 2's window."""
    prompt, _ = lively_prompt(architecture, 13, 28)
    expected = oracle.greedy(oracle.tiny_pair(architecture)[0], prompt, 28)
    assert len(set(expected)) >= 12
    for name, method in methods(architecture, 4, runtime).items():
        for _ in range(texts):
            assert decode(method, prompt, 28)[0] == expected, name
            runtime.settle()
