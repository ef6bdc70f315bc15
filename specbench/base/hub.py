"""The hub of models and data sets: its libraries look up nothing there unless a command asks; then its host is named.

The local cache, of what was fetched before, is read without the hub.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specbench.base.console import PlainConsole
from specbench.base.errors import UserError

PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@contextmanager
def offline() -> Iterator[None]:
    """Let the hub's libraries read local files and the local cache only; they look up and count nothing elsewhere."""
    with _switched(off=True):
        yield


@contextmanager
def online(what: str) -> Iterator[None]:
    """Let the hub's libraries fetch `what` within the block. Its host is named on stderr before it is asked.

    Raises UserError if the hub cannot be reached, or is switched off by the user's environment.
    """
    from huggingface_hub import constants

    url = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{what} is not in the hub's local cache, and HF_HUB_OFFLINE forbids fetching it")
    PlainConsole(stderr=True).print(f"fetching {what} from {url.hostname}", highlight=False, soft_wrap=True)
    if not any(os.environ.get(name) for name in PROXIES):
        try:  # the libraries would try again for half a minute
            socket.create_connection((url.hostname or "", url.port or 443), timeout=5).close()
        except OSError:
            raise UserError(f"{what} is not in the hub's local cache, and {url.hostname} cannot be reached") from None
    with _switched(off=False):
        yield


@contextmanager
def _switched(off: bool) -> Iterator[None]:
    """The hub's libraries switched on or off. Usage is never reported, and downloads are not counted elsewhere."""
    from huggingface_hub import constants

    of_hub = constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY
    datasets: Any = sys.modules.get("datasets.config")  # has its own copies of the switches, made when it is imported
    of_datasets = (datasets.HF_HUB_OFFLINE, datasets.HF_UPDATE_DOWNLOAD_COUNTS) if datasets else (of_hub[0], False)
    constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY = off, True
    if datasets:
        datasets.HF_HUB_OFFLINE, datasets.HF_UPDATE_DOWNLOAD_COUNTS = off, False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY = of_hub
        datasets = sys.modules.get("datasets.config")
        if datasets:
            datasets.HF_HUB_OFFLINE, datasets.HF_UPDATE_DOWNLOAD_COUNTS = of_datasets


def cached(name: str, revision: str) -> Path | None:
    """The folder of a model in the local cache, which may lack some of its files; None if there is none."""
    from huggingface_hub import try_to_load_from_cache

    for file in ("config.json", "tokenizer_config.json", "tokenizer.json", "adapter_config.json"):
        try:
            path = try_to_load_from_cache(name, file, revision=revision)
        except ValueError:  # no name of a model
            return None
        if isinstance(path, str):
            return Path(path).parent
    return None


def fetch(name: str, revision: str, patterns: Sequence[str]) -> Path:
    """Fetch the files of a model that match some of the patterns into the local cache, and return its folder there.

    Only within `online`. Raises UserError if the hub has no such model, or does not give it.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot fetch {name}: {' '.join(str(error).split())[:200]}") from None
