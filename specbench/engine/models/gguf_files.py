"""GGUF files as models: found, checked, and dequantised once into a folder of the cache that loads as any other.

A file is named by its path, as `package:NAME/FILE.gguf` within an installed Python package, none of whose code runs, or
as `cache:FILE.gguf` where a recipe has put it. Tokenizer, chat template and end tokens come from the file.
"""

import glob
import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from fcntl import LOCK_EX, flock
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from specbench.base.console import PlainConsole
from specbench.base.environment import cache_folder
from specbench.base.hub import offline
from specbench.base.untrusted import brief, read_object
from specbench.config import CACHED, GGUF, PACKAGED, ModelSpec, UserError
from specbench.engine.clock import free_memory
from specbench.engine.models.gguf_header import check_header

ENDING = "generation_config.json"  # in the cached folder: the end tokens
FACTS = "gguf.json"  # in the cached folder: what the manifest keeps of the file
SETTINGS = "settings"  # in place of a type: a folder without weights
AS_STORED = torch.bfloat16  # of blocks in fewer bits, where no type is asked for
ENDS = ("eos", "eot", "eom")  # the end tokens that a file may name: of a text, a turn, a message
INSTALL = "pip install 'specbench-harness[gguf]'"
GIB = 2**30
FILE = "gguf_file"  # the attribute of a model that names the file of its weights, if they are what it says


def gguf_folder(spec: ModelSpec, dtype: torch.dtype | None, weights: bool = True) -> Path:
    """The cached folder of a GGUF file, dequantised to `dtype` if it is not there yet; without weights if they are not
    wanted.

    Raises:
        UserError: the file is not there, is not the one that the spec states, cannot be read, or there is no room.
    """
    file = gguf_file(spec)
    status = file.stat()
    _check_header(file, spec)
    digest = _digest(file, status.st_size, status.st_mtime_ns)
    if spec.sha256 and digest != spec.sha256:
        raise UserError(
            f"{spec.model} has the sha256 {digest[:16]}…, and {spec.sha256[:16]}… is stated; get the file again"
            + _obtained(spec)
        )
    home, name = cache_folder() / "gguf", f"{file.stem}-{digest[:16]}"
    if not weights and (made := sorted(home.glob(f"{glob.escape(name)}-*/{ENDING}"))):
        return made[0].parent
    kind = dtype or AS_STORED
    folder = home / f"{name}-{str(kind).removeprefix('torch.') if weights else SETTINGS}"
    with _alone(home, folder):
        if not folder.is_dir():
            _make(file, digest, folder, kind if weights else None, spec)
    return folder


def gguf_facts(folder: Path) -> dict[str, str]:
    """What the manifest keeps of the GGUF file that a cached folder was made of; nothing for other folders."""
    return {key: str(value) for key, value in read_object(folder / FACTS).items()} if (folder / FACTS).exists() else {}


def gguf_file(spec: ModelSpec) -> Path:
    """The file that a spec names. Raises UserError if it is not there."""
    name = spec.model
    if name.startswith(PACKAGED):
        package, _, inside = name.removeprefix(PACKAGED).partition("/")
        found = importlib.util.find_spec(package) if package.isidentifier() else None  # without importing it
        if found is None or not found.submodule_search_locations:
            raise UserError(f"{name}: the Python package {package} is not installed{_obtained(spec)}")
        home = Path(found.submodule_search_locations[0])
        file, others = home / inside, sorted(str(path.relative_to(home)) for path in home.rglob(f"*{GGUF}"))
        has = f"it has {', '.join(others)}" if others else "it has no GGUF file"
        missing = f"{name}: the installed {package} has no such file, perhaps as another version; {has}"
    elif name.startswith(CACHED):
        home = cache_folder() / "models"
        file, missing = home / name.removeprefix(CACHED), f"{name}: there is no such file in {home}"
    else:
        home = file = Path(name).expanduser()
        missing = f"cannot load {name}: there is no such file"
    if not file.is_file() or not file.resolve().is_relative_to(home.resolve()):
        raise UserError(missing + _obtained(spec))
    return file


def _obtained(spec: ModelSpec) -> str:
    return f"; to get it: {spec.obtain}" if spec.obtain else ""


@cache
def _digest(file: Path, size: int, changed: int) -> str:
    """The sha256 of a file of this size and time of change, 64 hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def _alone(home: Path, folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder in `home`. Raises UserError if nothing can be written there."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / f"{folder.name}.lock").open("w") as lock:
            flock(lock, LOCK_EX)
            yield
    except OSError as error:
        raise UserError(f"{home}: {brief(error)}; set SPECBENCH_CACHE to a folder with room") from None


def _make(file: Path, digest: str, folder: Path, dtype: torch.dtype | None, spec: ModelSpec) -> None:
    """Make the folder of a GGUF file, whole or not at all; with a `dtype` the weights are in it.

    Raises:
        UserError: the file cannot be read, or neither disk nor memory has room for its weights.
    """
    counts, ends, sizes = _header(file, spec)
    about = f"{file.name} ({file.stat().st_size / 1e9:.2f} GB, {counts})"
    if dtype:
        _check_room(about, sizes, dtype, folder.parent)
    PlainConsole(stderr=True).print(
        f"reading {about}, once: half a minute for each 500 MB; it is kept in {folder}", highlight=False, soft_wrap=True
    )
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as place,
        redirect_stderr(StringIO()),  # transformers draws a bar of its own
        offline(),
    ):
        made = Path(place) / "model"
        made.mkdir()
        _save(file, made, dtype, ends, spec)
        facts = {"file": file.name, "file_sha256": digest, "quantization": counts}
        (made / FACTS).write_text(json.dumps(facts))
        shutil.move(made, folder)


def _save(file: Path, folder: Path, dtype: torch.dtype | None, ends: list[int], spec: ModelSpec) -> None:
    """Save tokenizer, settings and, in `dtype`, weights as transformers reads them. Raises UserError."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    try:
        AutoTokenizer.from_pretrained(**source, trust_remote_code=False).save_pretrained(folder)
        if dtype is None:
            settings = AutoConfig.from_pretrained(**source, trust_remote_code=False)
            settings.save_pretrained(folder)
            generation = GenerationConfig.from_model_config(settings)
            generation.eos_token_id = ends or generation.eos_token_id
            generation.save_pretrained(folder)
            return
        options = {"dtype": dtype, "quantization_config": GgufConfig(dequantize=True), "output_loading_info": True}
        model, loaded = AutoModelForCausalLM.from_pretrained(**source, **options, trust_remote_code=False)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a damaged file fails in any way within transformers
        raise UserError(f"cannot load {spec.model}: transformers cannot read this GGUF file ({brief(error)})") from None
    if missing := sorted(loaded["missing_keys"]) or sorted(str(key) for key in loaded["mismatched_keys"]):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"cannot load {spec.model}: the file lacks {', '.join(missing[:3])}{more}, or has them in another shape"
        )
    if ends:
        model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)


def _check_header(file: Path, spec: ModelSpec) -> None:
    """Raise UserError unless a file is GGUF with a header that can be true; weights are not read for it."""
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise UserError(f"cannot load {spec.model}: it is not a GGUF file; get the file again{_obtained(spec)}")
    try:
        check_header(file)
    except ValueError as error:
        raise _damaged(spec, error) from None


def _damaged(spec: ModelSpec, error: Exception) -> UserError:
    return UserError(
        f"cannot load {spec.model}: the GGUF file is cut off or damaged ({brief(error)}); get it again{_obtained(spec)}"
    )


def _header(file: Path, spec: ModelSpec) -> tuple[str, list[int], list[int]]:
    """What a file says of itself: how many tensors have which type, in words; its end tokens; the sizes of its tensors.

    Raises UserError if it is no sound GGUF file, or the package that reads them is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UserError(f"{spec.model}: GGUF files are read by the package gguf; {INSTALL}") from None
    try:
        reader = GGUFReader(file)
        types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
        sizes = [int(tensor.n_elements) for tensor in reader.tensors]
        keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ENDS]
        ends = [int(reader.fields[key].contents()) for key in keys if key in reader.fields]
    except Exception as error:  # a damaged file fails in any way within gguf
        raise _damaged(spec, error) from None
    if not sizes:
        raise UserError(f"cannot load {spec.model}: the GGUF file has no weights; it may be a vocabulary alone")
    return ", ".join(f"{count} {kind}" for kind, count in types.most_common()), list(dict.fromkeys(ends)), sizes


def _check_room(about: str, sizes: list[int], dtype: torch.dtype, home: Path) -> None:
    """Raise UserError unless disk and memory have room for weights in a type, and for the largest in float32."""
    weights = sum(sizes) * dtype.itemsize
    needed = {f"on the disk of {home}": weights, "of memory": weights + 4 * max(sizes)}
    free = (shutil.disk_usage(home).free, free_memory(torch.device("cpu")))
    for (where, bytes_), left in zip(needed.items(), free, strict=True):
        if bytes_ > left:
            kind = str(dtype).removeprefix("torch.")
            raise UserError(
                f"{about} takes {bytes_ / GIB:.1f} GiB {where} in {kind}, and {left / GIB:.1f} GiB are free; "
                "make room, add --dtype bfloat16, or choose a smaller model"
            )
