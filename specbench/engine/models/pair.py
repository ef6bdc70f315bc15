"""The models of a pair and their tokenizer: load them, and check that they fit together and can roll back."""

import logging
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from specbench.config import ModelSpec, PairSpec, UserError
from specbench.config.specs import Constraint
from specbench.engine.generate import Detokenizer
from specbench.engine.models.folders import model_folder
from specbench.engine.models.identity import has_more_than_keys, loaded_hashes, weights_hash
from specbench.engine.models.load import DRAFT_OPTION, LLAMACPP, OPENVINO, device_of, load_model, type_of
from specbench.engine.models.room import Coming, check_room
from specbench.engine.models.tokenizer import load_tokenizer, vocabulary_hash
from specbench.engine.prefix import Prefixes
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.reference import off, tolerance
from specbench.engine.runtimes.types import Runtime
from specbench.engine.session import Session, positions
from specbench.engine.types import NotFinite, Watch

if TYPE_CHECKING:
    from specbench.engine.constraint import Constraining
    from specbench.engine.penalties import Change, Penalties
    from specbench.engine.translate import Translation

LEAST_SHARED = 0.01  # the least share of the target's tokens that a draft with another tokenizer must have


@dataclass(frozen=True)
class Pair:
    """Loaded models by role (`target`, `draft`, and the roles of other members) over the target's vocabulary.

    A draft with another tokenizer has a translation.
    """

    name: str
    models: dict[str, PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    specs: dict[str, ModelSpec] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # the roles that decode together, in order; empty: draft and target
    gammas: tuple[int | None, ...] = ()  # how many tokens each member proposes at a time, if the pair's file says so
    translations: "dict[str, Translation]" = field(default_factory=dict)  # by role, of a draft with another tokenizer
    runtime: Runtime = EAGER  # computes the forwards
    prefixes: Prefixes = field(default_factory=Prefixes)  # caches of the prefix that all prompts of a task share
    hashes: dict[str, dict[str, Any]] = field(default_factory=dict)  # by role: what was loaded next to the weights
    chains_only: frozenset[str] = frozenset()  # the roles of models that cannot read trees
    draft_device: torch.device | None = None  # of all models but the target, and of heads; None: the target's
    penalties: "Penalties | None" = None  # of all sessions over the target's tokens
    constraining: "Constraining | None" = None  # of those of the target, perhaps of those of drafts
    ignore_eos: bool = False  # no token ends a text
    seconds: dict[str, float] = field(default_factory=dict)  # of what methods do besides decoding, such as learning

    def session(self, role: str, watch: Watch | None = None, model: PreTrainedModel | None = None) -> Session:
        """A new sequence, in the target's tokens, for the model of a role, or for `model` in its place."""
        if role not in self.models:
            roles = ", ".join(self.models)
            raise UserError(
                f"the pair {self.name} has no {role} model, only {roles}; choose another pair, or a method without one"
            )
        chosen = model or self.models[role]
        if role in self.translations:
            from specbench.engine.translated import Translated

            return Translated(chosen, role, watch, self.translations[role], self.runtime, self.device)
        trees = role not in self.chains_only
        return Session(
            chosen,
            role,
            watch,
            self.vocabulary,
            self.runtime,
            self.prefixes,
            trees,
            self.device,
            self.change(role, watch),
        )

    def change(self, role: str, watch: Watch | None = None) -> "Change | None":
        """What changes the logits of a new session for a role."""
        return self.constraining.of(role, self.penalties, watch) if self.constraining else self.penalties

    def alone(self) -> "Pair":
        """The same pair for a text that is decoded at the same time as others."""
        return replace(self, constraining=self.constraining.another()) if self.constraining else self

    def constrain(self, constraint: Constraint | None) -> None:
        """Say what the text that its sessions decode next must be, in place."""
        if self.constraining:
            self.constraining.current = constraint

    def with_model(self, role: str, model: PreTrainedModel) -> "Pair":
        """The same pair with one more model, over the target's vocabulary."""
        return replace(self, models={**self.models, role: model})

    def own_ids(self, role: str, tokens: list[int]) -> list[int]:
        """The ids that the model of a role has for these tokens, without tokens that it lacks."""
        if role not in self.translations:
            return tokens
        shared = self.translations[role].shared
        return [shared[token] for token in tokens if token in shared]

    @property
    def collaboration(self) -> tuple[str, ...]:
        """The roles of the models that decode together, in order. Raises UserError if their vocabularies differ."""
        self.need_one_tokenizer("models that decode together need one vocabulary")
        return self.members or tuple(role for role in ("draft", "target") if role in self.models)

    def need_one_tokenizer(self, why: str) -> None:
        """Raise UserError, with the reason `why`, if the draft has another tokenizer."""
        if self.translations:
            raise UserError(
                f"{self.name}: its draft has another tokenizer, and {why}; choose a draft of the target's family"
            )

    def need_one_device(self, why: str) -> None:
        """Raise UserError, with the reason `why`, if drafts have another device than the target."""
        if self.draft_device:
            raise UserError(
                f"{self.name}: its drafts are on {self.draft_device}, and {why}; leave out the method or --draft-device"
            )

    @property
    def extra_members(self) -> tuple[str, ...]:
        """The members that are neither target nor draft."""
        return tuple(role for role in self.members if role not in ("target", "draft"))

    @cached_property
    def vocabulary(self) -> int:
        """The least number of logits of all models; some models pad theirs, and further logits belong to no token."""
        models = [model for role, model in self.models.items() if role not in self.translations]
        return min(model.config.get_text_config().vocab_size for model in models)

    @cached_property
    def context(self) -> int:
        """The longest sequence that every model can read; a translated one does not count, as it may cut the text."""
        return min(self._windows.values(), default=2**31)

    @property
    def window(self) -> str:
        """The context in words, with the model that bounds it where the target reads more."""
        shortest = min(self._windows, key=self._windows.__getitem__, default="target")
        if self.context == self._windows.get("target", self.context):
            return str(self.context)
        return f"{self.context} (as its {shortest} reads no more; the target reads {self._windows['target']})"

    @cached_property
    def _windows(self) -> dict[str, int]:
        return {role: positions(model) for role, model in self.models.items() if role not in self.translations}

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """All tokens that end a text, by the target's generation settings and the tokenizer; none to `ignore_eos`."""
        if self.ignore_eos:
            return frozenset()
        ids = self.models["target"].generation_config.eos_token_id if self.models else None
        ids = ids if isinstance(ids, list) else [ids]
        return frozenset(i for i in (*ids, self.tokenizer.eos_token_id) if i is not None)

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """Decodes the target's tokens to text, without special ones or with them."""
        decode = partial(self.tokenizer.decode, clean_up_tokenization_spaces=False)
        return Detokenizer(partial(decode, skip_special_tokens=True), partial(decode, skip_special_tokens=False))

    @cached_property
    def tokenizer_hash(self) -> str:
        return vocabulary_hash(self.tokenizer)

    @property
    def device(self) -> torch.device:
        """Where the target is; the CPU if only the tokenizer is loaded."""
        return self.models["target"].device if self.models else torch.device("cpu")

    def describe(self) -> dict[str, dict[str, object]]:
        """The description of each model that a manifest keeps."""
        described = {
            role: _describe(model, self.specs.get(role)) | self.hashes.get(role, {}) | _rollback(model)
            for role, model in self.models.items()
        }
        for role, translation in self.translations.items():
            described[role] |= {
                "tokenizer_hash": vocabulary_hash(translation.draft),
                "shared_tokens": len(translation.shared),
            }
        return described


def _rollback(model: PreTrainedModel) -> dict[str, str]:
    """How a model with a state rolls back, for a manifest."""
    if not has_more_than_keys(model):
        return {}
    from specbench.engine.runtimes.states import facts

    return facts(model)


def load_pair(
    spec: PairSpec,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    runtime: str = EAGER.name,
) -> Pair:
    """Load the models of a pair. Raises UserError for models that cannot be loaded or do not fit together.

    `device` is a torch device, `auto`, or `spread`: the target over all GPUs (by accelerate), the draft on the first.
    The pair's own `draft_device` has all other models instead. Weights in fewer bits are made for `runtime`, since
    `openvino` has its own; for `llamacpp` all weights stay in their GGUF files.
    """
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    where = device_of(device)
    apart = draft_device_of(spec, where)
    places = {role: where if role == "target" else apart or where for role in spec.models}
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"--dtype {dtype}: no such type; use auto, float32, bfloat16, float16 or float64")
    specs = spec.models
    in_files = runtime == LLAMACPP
    for place in () if in_files else dict.fromkeys(places.values()):
        kinds = {role: type_of(each, place, dtype) for role, each in specs.items() if places[role] == place}
        folders = [
            Coming(specs[role], model_folder(specs[role], pickles=allow_pickle, dtype=kind), kind, runtime == OPENVINO)
            for role, kind in kinds.items()
        ]
        check_room(spec.name, folders, place, torch.cuda.device_count() if device == "spread" else 1)
    models, tokenizers = {}, {}
    hashes: dict[str, dict[str, Any]] = {}
    for role, model_spec in specs.items():
        spread = device == "spread" and role == "target"
        place = places[role]
        models[role], facts = load_model(model_spec, place, dtype, trust_remote_code, allow_pickle, spread, runtime)
        tokenizers[role] = load_tokenizer(model_spec, trust_remote_code)
        hashes[role] = {**loaded_hashes(models[role], tokenizers[role]), **facts}
        hashes[role]["chat_template"] = bool(tokenizers[role].chat_template)
    translations: dict[str, Translation] = {}
    for role, model_spec in specs.items():
        if vocabulary_hash(tokenizers["target"]) == vocabulary_hash(tokenizers[role]):
            continue
        if role != "draft" or spec.members:
            raise UserError(
                f"the tokenizers of {spec.target.model} and {model_spec.model} differ, and models that decode together "
                "need one vocabulary; choose members of the target's family"
            )
        translations[role] = _translation(spec, models, tokenizers)
    gammas = tuple(member.gamma for member in spec.members)
    members = tuple(spec.collaboration)
    pair = Pair(
        spec.name, models, tokenizers["target"], specs, members, gammas, translations, hashes=hashes, draft_device=apart
    )
    if in_files:  # the runtime checks each model itself
        return pair
    for role in models:
        check_rollback(Session(models[role], role))
    return replace(pair, chains_only=frozenset(r for r in models if not reads_trees(Session(models[r], r))))


def draft_device_of(spec: PairSpec, target: torch.device) -> torch.device | None:
    """Where the drafts of a pair are; None if that is where its target is. Raises UserError for no device."""
    if spec.draft_device is None:
        return None
    device = device_of(spec.draft_device, DRAFT_OPTION)
    there, here = (torch.empty(0, device=each).device for each in (device, target))  # with their numbers
    return None if there == here else there


def load_member(name: str, pair: Pair, why: str) -> PreTrainedModel:
    """One more model for a loaded pair, on the draft's device in the target's type.

    Raises UserError if it cannot be loaded, or if its tokenizer is not the target's; `why` is the reason for that.
    """
    spec = ModelSpec(model=name)
    dtype = str(pair.models["target"].dtype).removeprefix("torch.")
    model, _ = load_model(spec, pair.draft_device or pair.device, dtype)
    tokenizer = load_tokenizer(spec, False)
    if vocabulary_hash(tokenizer) != pair.tokenizer_hash:
        raise UserError(
            f"{name} has another tokenizer than {pair.name}, and {why}; choose a model of the target's family"
        )
    return model


def _translation(
    spec: PairSpec, models: dict[str, PreTrainedModel], tokenizers: dict[str, PreTrainedTokenizerBase]
) -> "Translation":
    """The translation for a draft with another tokenizer. Raises UserError if the two share too few tokens."""
    from specbench.engine.translate import Translation

    sizes = [models[role].config.get_text_config().vocab_size for role in ("target", "draft")]
    translation = Translation(tokenizers["target"], tokenizers["draft"], (sizes[0], sizes[1]))
    shared, total = len(translation.shared), len(translation.spellings)
    if shared < LEAST_SHARED * total:
        assert spec.draft
        raise UserError(
            f"the tokenizers of {spec.target.model} and {spec.draft.model} differ: they share {shared} of "
            f"the target's {total} tokens; choose a draft whose tokenizer is more like the target's"
        )
    return translation


def check_rollback(session: Session) -> None:
    """Feed, roll back and feed again: the logits must be those of a fresh sequence. Leaves the session empty.

    Raises UserError if they are not.
    """
    vocabulary = session.model.config.get_text_config().vocab_size
    first, second = [5 % vocabulary, 7 % vocabulary, 11 % vocabulary], [13 % vocabulary, 3 % vocabulary]
    kind = type(session.model).__name__
    try:
        expected = session.forward(first + second).logits[-1].float()
        session.truncate(len(first))
        session.forward([17 % vocabulary] * 4)
        session.truncate(len(first))
        actual = session.forward(second).logits[-1].float()
        session.truncate(0)
    except torch.OutOfMemoryError:
        raise
    except NotFinite as error:
        raise UserError(f"{kind} cannot be used: {error}; its weights are damaged, or its type is too narrow") from None
    except Exception as error:  # caches of other kinds fail in their own ways
        reason = "it is of another kind" if isinstance(error, IndexError) else " ".join(str(error).split())
        raise UserError(f"{kind} cannot be used: its cache does not roll back ({reason})") from None
    if not off(actual, expected) <= tolerance(session.model):
        raise UserError(f"{kind} cannot be used: after a rollback of its cache it gives other logits")


def reads_trees(session: Session) -> bool:
    """True if a token of a tree has the logits that it has in a chain of its own path. Leaves the session empty.

    Eight siblings stand before the path: a model that takes a token's place in the cache for its position (as MPT's
    ALiBi does) is off by them.
    """
    vocabulary = session.model.config.get_text_config().vocab_size
    root, path = ([i % vocabulary for i in ids] for ids in ((5, 7, 11), (13, 3, 2)))
    siblings = [(17 + i) % vocabulary for i in range(8)]
    try:
        expected = session.forward(root + path).logits[-1].float()
        session.truncate(len(root))
        actual = session.forward([*siblings, *path], parents=[-1] * 9 + [8, 9]).logits[-1].float()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # models that take no mask of ours fail in their own ways
        return False
    finally:
        session.truncate(0)
    return off(actual, expected) <= tolerance(session.model)


def _describe(model: PreTrainedModel, spec: ModelSpec | None) -> dict[str, object]:
    return {
        "model": spec.model if spec else type(model).__name__,
        "revision": spec.revision if spec else "",
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "weights_hash": weights_hash(model),
    }
