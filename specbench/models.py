"""Load the models of a pair and their tokenizer, and make sure that they belong together and can roll back."""

import hashlib
import json
import logging
import pickle
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from specbench.config import BUNDLED as BUNDLED_PREFIX
from specbench.config import PACKAGE, ModelSpec, PairSpec, UserError
from specbench.decoding.generate import Detokenizer
from specbench.decoding.prefix import Prefixes
from specbench.decoding.session import Session
from specbench.decoding.translate import Translation
from specbench.decoding.translated import Translated
from specbench.decoding.types import NotFinite, Watch
from specbench.hub import offline_if_unreachable
from specbench.runtimes.eager import EAGER
from specbench.runtimes.types import Runtime

UNBOUNDED = 2**31  # positions of models that are made for any length
BUNDLED = PACKAGE / "pocket" / "weights"
REVISION = re.compile(r"(?!.*\.\.)[\w.][\w./+-]*")  # a branch, a tag or a commit; the hub's client makes a path of it
LEAST_SHARED = 0.01  # of the target's tokens: with fewer, a draft of another tokenizer has nothing to say


@dataclass(frozen=True)
class Pair:
    """Loaded models by role (`target`, `draft`, and those of further members) over the target's vocabulary.

    A draft may have another tokenizer, and then a translation.
    """

    name: str
    models: dict[str, PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    specs: dict[str, ModelSpec] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # the roles that decode together, in order; none: draft and target
    gammas: tuple[int | None, ...] = ()  # the tokens that each member proposes at a time, where its pair says so
    translations: dict[str, Translation] = field(default_factory=dict)  # of a draft with a tokenizer of its own
    runtime: Runtime = EAGER  # how their forwards are computed
    prefixes: Prefixes = field(default_factory=Prefixes)  # what the prompts of a task begin with alike

    def session(self, role: str, watch: Watch | None = None, model: PreTrainedModel | None = None) -> Session:
        """A new sequence for one of the models, or for another `model` in its place, in the target's tokens."""
        if role not in self.models:
            known = ", ".join(self.models)
            raise UserError(
                f"the pair {self.name} has no {role} model, only {known}; choose another pair, or a method without one"
            )
        chosen = model or self.models[role]
        if role in self.translations:
            return Translated(chosen, role, watch, self.translations[role], self.runtime)
        return Session(chosen, role, watch, self.vocabulary, self.runtime, self.prefixes)

    def with_model(self, role: str, model: PreTrainedModel) -> "Pair":
        """The same pair and one more model, over the target's vocabulary."""
        return replace(self, models={**self.models, role: model})

    def own_ids(self, role: str, tokens: list[int]) -> list[int]:
        """Token ids as a model has them; those that it lacks are left out."""
        if role not in self.translations:
            return tokens
        shared = self.translations[role].shared
        return [shared[token] for token in tokens if token in shared]

    @property
    def collaboration(self) -> tuple[str, ...]:
        """The roles of the models that decode together, in order. UserError where they have not one vocabulary."""
        self.need_one_tokenizer("models that decode together need one vocabulary")
        return self.members or tuple(role for role in ("draft", "target") if role in self.models)

    def need_one_tokenizer(self, why: str) -> None:
        """Raise UserError, with the reason, if the draft has a tokenizer of its own."""
        if self.translations:
            raise UserError(
                f"{self.name}: its draft has another tokenizer, and {why}; choose a draft of the target's family"
            )

    @property
    def further(self) -> tuple[str, ...]:
        """Those of them that are neither target nor draft."""
        return tuple(role for role in self.members if role not in ("target", "draft"))

    @cached_property
    def vocabulary(self) -> int:
        """Logits beyond the smallest model's belong to no token (some models pad theirs)."""
        own = [model for role, model in self.models.items() if role not in self.translations]
        return min(model.config.get_text_config().vocab_size for model in own)

    @cached_property
    def context(self) -> int:
        """The longest sequence that every model was made for; one with a translation may lose a text's beginning."""
        own = [model for role, model in self.models.items() if role not in self.translations]
        configs = [model.config.get_text_config() for model in own]
        return min(getattr(config, "max_position_embeddings", None) or UNBOUNDED for config in configs)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends a text, by the target's generation settings and the tokenizer."""
        ids = self.models["target"].generation_config.eos_token_id
        ids = ids if isinstance(ids, list) else [ids]
        return frozenset(i for i in (*ids, self.tokenizer.eos_token_id) if i is not None)

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """From the target's tokens to text, without special ones."""
        own = self.tokenizer
        return Detokenizer(lambda ids: own.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def tokenizer_hash(self) -> str:
        return vocabulary_hash(self.tokenizer)

    @property
    def device(self) -> torch.device:
        return self.models["target"].device

    def describe(self) -> dict[str, dict[str, object]]:
        """What a manifest keeps of each model."""
        told = {role: _describe(model, self.specs.get(role)) for role, model in self.models.items()}
        for role, translation in self.translations.items():
            own = {"tokenizer_hash": vocabulary_hash(translation.draft), "shared_tokens": len(translation.shared)}
            told[role] |= own
        return told


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Which token each id stands for, as 16 hexadecimal digits.

    Added tokens are left out: within a family they carry other names for reserved ids (Llama 3 and 3.2, for example).
    """
    added = tokenizer.get_added_vocab()
    own = sorted((token, i) for token, i in tokenizer.get_vocab().items() if token not in added)
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]


def load_pair(
    spec: PairSpec,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Pair:
    """Load the models of a pair. Raises UserError for what cannot be had or does not fit together.

    `device` is a torch device, `auto`, or `spread`: the target over all GPUs (by accelerate), the draft on the first.
    """
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    where = _device(device)
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"--dtype {dtype}: no such type; use auto, float32, bfloat16, float16 or float64")
    specs = spec.models
    models, tokenizers = {}, {}
    for role, one in specs.items():
        with _reaching(one):
            spread = device == "spread" and role == "target"
            models[role] = _load_model(one, where, dtype, trust_remote_code, allow_pickle, spread)
            tokenizers[role] = _load_tokenizer(one, trust_remote_code)
    translations = {}
    for role, one in specs.items():
        if vocabulary_hash(tokenizers["target"]) == vocabulary_hash(tokenizers[role]):
            continue
        if role != "draft" or spec.members:
            raise UserError(
                f"the tokenizers of {spec.target.model} and {one.model} differ, and models that decode together need "
                "one vocabulary; choose members of the target's family"
            )
        translations[role] = _translation(spec, models, tokenizers)
    gammas = tuple(member.gamma for member in spec.members)
    pair = Pair(spec.name, models, tokenizers["target"], specs, tuple(spec.collaboration), gammas, translations)
    for role in models:
        check_rollback(Session(models[role], role))
    return pair


def load_member(name: str, pair: Pair, why: str) -> PreTrainedModel:
    """One more model for a loaded pair, on the target's device in the target's type.

    Raises UserError if it cannot be loaded, or if its tokenizer is another one; `why` says what that is needed for.
    """
    spec = ModelSpec(model=name)
    with _reaching(spec):
        model = _load_model(
            spec, pair.device, str(pair.models["target"].dtype).removeprefix("torch."), False, False, False
        )
        tokenizer = _load_tokenizer(spec, False)
    if vocabulary_hash(tokenizer) != pair.tokenizer_hash:
        raise UserError(
            f"{name} has another tokenizer than {pair.name}, and {why}; choose a model of the target's family"
        )
    return model


def _translation(
    spec: PairSpec, models: dict[str, PreTrainedModel], tokenizers: dict[str, PreTrainedTokenizerBase]
) -> Translation:
    """From the target's tokens to those of a draft with another tokenizer. UserError where they share too few."""
    sizes = [models[role].config.get_text_config().vocab_size for role in ("target", "draft")]
    found = Translation(tokenizers["target"], tokenizers["draft"], (sizes[0], sizes[1]))
    if len(found.shared) < LEAST_SHARED * len(found.spellings):
        assert spec.draft
        raise UserError(
            f"the tokenizers of {spec.target.model} and {spec.draft.model} differ: they share {len(found.shared)} of "
            f"the target's {len(found.spellings)} tokens; choose a draft whose tokenizer is more like the target's"
        )
    return found


def check_rollback(session: Session) -> None:
    """Feed, roll back and feed again: the logits must be those of a fresh sequence. Leaves the session empty."""
    vocabulary = session.model.config.get_text_config().vocab_size
    one, other = [5 % vocabulary, 7 % vocabulary, 11 % vocabulary], [13 % vocabulary, 3 % vocabulary]
    kind = type(session.model).__name__
    try:
        expected = session.forward(one + other).logits[-1].float()
        session.truncate(len(one))
        session.forward([17 % vocabulary] * 4)
        session.truncate(len(one))
        found = session.forward(other).logits[-1].float()
        session.truncate(0)
    except torch.OutOfMemoryError:
        raise
    except NotFinite as error:
        raise UserError(f"{kind} cannot be used: {error}; its weights are damaged, or its type is too narrow") from None
    except Exception as error:  # caches of other kinds fail in their own ways
        raise UserError(
            f"{kind} cannot be used: its cache does not roll back ({' '.join(str(error).split())})"
        ) from None
    spread = float(expected[expected.isfinite()].std())  # a translated draft's logits are -inf for what it lacks
    if not torch.allclose(expected, found, rtol=0.1, atol=0.1 * spread):
        raise UserError(f"{kind} cannot be used: after a rollback of its cache it gives other logits")


def _load_model(
    spec: ModelSpec, device: torch.device, dtype: str, trust_remote_code: bool, allow_pickle: bool, spread: bool
) -> PreTrainedModel:
    where = location(spec.model)
    _check_revision(spec)
    chosen = dtype if dtype != "auto" else "float32" if device.type == "cpu" else spec.dtype
    try:
        settings = AutoConfig.from_pretrained(where, revision=spec.revision, trust_remote_code=trust_remote_code)
        if not trust_remote_code:
            _refuse_kernels(settings, spec.model)
        model = AutoModelForCausalLM.from_pretrained(
            where,
            revision=spec.revision,
            dtype=chosen if chosen == "auto" else getattr(torch, chosen),
            device_map="auto" if spread else None,
            use_safetensors=None if allow_pickle else True,
            trust_remote_code=trust_remote_code,
        )
    except UserError:
        raise
    except pickle.UnpicklingError:
        raise UserError(
            f"{spec.model}: its pickled weights hold more than tensors, which is never loaded, not even with "
            "--allow-pickle; convert them to safetensors where you trust them"
        ) from None
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        if "trust_remote_code" in str(error):
            raise UserError(f"{spec.model} brings code of its own; to let it run, add --trust-remote-code") from None
        if not allow_pickle and any(Path(where).glob("pytorch_model*.bin")):
            raise UserError(
                f"{spec.model} has no safetensors, and pickled weights may run code; "
                "if you trust them, add --allow-pickle"
            ) from None
        raise UserError(
            f"cannot load {spec.model}: {reason} -- give a folder with config.json and safetensors weights, "
            "or a hub name on a machine that reaches the hub"
        ) from None
    if not hasattr(model, "hf_device_map"):
        model = model.to(device)
    return model.eval()


def _check_revision(spec: ModelSpec) -> None:
    if not REVISION.fullmatch(spec.revision):
        raise UserError(f"{spec.model}: {spec.revision!r} is no revision; give a branch, a tag or a commit")


def _refuse_kernels(settings: PreTrainedConfig, name: str) -> None:
    """Raise UserError where a model's settings ask for compiled code from the hub, OWNER/REPOSITORY."""
    parts = [settings, *(getattr(settings, name, None) for name in settings.sub_configs)]
    keys = ("_attn_implementation", "_experts_implementation")
    if any("/" in str(getattr(part, key, None)) for part in parts for key in keys):
        raise UserError(f"{name} asks for a kernel of the hub, which is code; to let it run, add --trust-remote-code")


def load_tokenizer(spec: ModelSpec, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """A model's tokenizer without the model. Raises UserError if it cannot be had."""
    with _reaching(spec):
        return _load_tokenizer(spec, trust_remote_code)


def _reaching(spec: ModelSpec) -> AbstractContextManager[None]:
    """Around a load from the hub: no retries for minutes where it cannot be reached."""
    return nullcontext() if Path(location(spec.model)).exists() else offline_if_unreachable()


def _load_tokenizer(spec: ModelSpec, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    _check_revision(spec)
    try:
        return AutoTokenizer.from_pretrained(
            location(spec.model), revision=spec.revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{spec.model}: its tokenizer brings code of its own; to let it run, add --trust-remote-code"
            ) from None
        raise UserError(f"cannot load the tokenizer of {spec.model}: {reason}; put tokenizer.json beside it") from None


def _device(name: str) -> torch.device:
    try:
        usual = {"auto": "cuda" if torch.cuda.is_available() else "cpu", "spread": "cuda:0"}
        device = torch.device(usual.get(name, name))
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # events are recorded on the current device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {name}: {str(error).splitlines()[0]}; use auto, cpu, cuda, cuda:N or spread"
        ) from None
    return device


def location(name: str) -> str:
    """The folder of a model, or its name on the hub. UserError for a bundled one that there is not."""
    if name.startswith(BUNDLED_PREFIX):
        own = name.removeprefix(BUNDLED_PREFIX)
        if own not in (known := sorted(path.name for path in BUNDLED.iterdir() if path.is_dir())):
            raise UserError(f"there is no model {name}; bundled are {', '.join(known)}")
        return str(BUNDLED / own)
    return str(Path(name).expanduser()) if Path(name).expanduser().exists() else name


def _describe(model: PreTrainedModel, spec: ModelSpec | None) -> dict[str, object]:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return {
        "model": spec.model if spec else type(model).__name__,
        "revision": spec.revision if spec else "",
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "weights_hash": digest.hexdigest()[:16],
    }
