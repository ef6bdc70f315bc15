"""The model hub, where there is one: no half minute of retries where there is none."""

import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Where the hub cannot be reached, use its local cache only: the hub's client retries for half a minute."""
    from huggingface_hub import constants

    url = urlsplit(constants.ENDPOINT)
    before = constants.HF_HUB_OFFLINE
    if not before and not any(os.environ.get(x) for x in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        try:
            socket.create_connection((url.hostname or "", url.port or 443), timeout=5).close()
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
