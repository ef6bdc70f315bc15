"""Hashes that tell whether two things are the same."""

import hashlib


def short_hash(content: str | bytes) -> str:
    """The first 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]
