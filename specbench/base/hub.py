"""The model hub, or its local cache if the hub cannot be reached."""

import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """If the hub cannot be reached, use its local cache only, instead of half a minute of retries."""
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
