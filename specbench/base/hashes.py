"""Hashes: to tell whether two things are the same, and seeds that are the same on every machine."""

import hashlib


def short_hash(content: str | bytes) -> str:
    """The first 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def stable_seed(*parts: object) -> int:
    """A number of 56 bits, from a hash of the parts as text."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7], "big")
