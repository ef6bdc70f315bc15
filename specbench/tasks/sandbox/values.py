"""Values as plain bytes: what the process of the tests and the process of the solution send each other.

A value is a letter and what follows it: `i2a;` is 42, `l2;NT` is [None, True]. Only exact built-in types come out:
None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range and built-in types. A
subclass goes in as its base. Everything else stays where it is and is sent as a number (`o`) that stands for it.

This module runs in the interpreters that become the program's and the tests', so it imports nothing but the standard
library.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False  # typing would only slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

MOST_BYTES = 16 << 20  # of one message
SEQUENCES: tuple[tuple[Any, bytes], ...] = ((list, b"l"), (tuple, b"t"), (set, b"u"), (frozenset, b"z"))
MAKERS = {letter: kind for kind, letter in SEQUENCES}


def send(file: BinaryIO, message: bytes) -> None:
    file.write(len(message).to_bytes(4, "big") + message)
    file.flush()


def receive(file: BinaryIO) -> bytes:
    """The next message. Raises EOFError at the end, ValueError if it is longer than MOST_BYTES."""
    size = int.from_bytes(_exactly(file, 4), "big")
    if size > MOST_BYTES:
        raise ValueError("a message is too long")
    return _exactly(file, size)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def encode(value: Any, refer: Callable[[Any], int]) -> bytes:
    """`refer` gives the number of an object that is no plain value, or raises."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if isinstance(value, int):
        return b"i%x;" % value
    if isinstance(value, float):
        return b"f%s;" % float.hex(value).encode()
    if isinstance(value, complex):
        return b"c" + encode(value.real, refer) + encode(value.imag, refer)
    if isinstance(value, str):
        text = str.encode(value, "utf-8", "surrogatepass")
        return b"s%x;%s" % (len(text), text)
    if isinstance(value, bytes | bytearray):
        return b"%s%x;%s" % (b"b" if isinstance(value, bytes) else b"a", len(value), value)
    if isinstance(value, range):
        return b"r" + b"".join(encode(part, refer) for part in (value.start, value.stop, value.step))
    if isinstance(value, dict):
        items = [encode(part, refer) for item in dict.items(value) for part in item]
        return b"d%x;%s" % (len(items) // 2, b"".join(items))
    for kind, letter in SEQUENCES:
        if isinstance(value, kind):
            items = [encode(item, refer) for item in kind.__iter__(value)]
            return b"%s%x;%s" % (letter, len(items), b"".join(items))
    name = value.__name__ if isinstance(value, type) else ""
    if name and vars(builtins).get(name) is value:
        return b"k" + encode(name, refer)
    return b"o%x;" % refer(value)


def decode(message: bytes, resolve: Callable[[int], Any]) -> Any:
    """`resolve` gives the object that a number stands for. Raises some Exception if `message` is no value."""
    at = 0

    def number() -> int:
        nonlocal at
        end = message.index(b";", at, at + MOST_BYTES)
        text, at = message[at:end], end + 1
        return int(text, 16)

    def taken(size: int) -> bytes:
        nonlocal at
        if not 0 <= size <= len(message) - at:
            raise ValueError("a message is too short")
        at += size
        return message[at - size : at]

    def value() -> Any:
        nonlocal at
        letter = taken(1)
        if letter in (b"N", b"T", b"F"):
            return {b"N": None, b"T": True, b"F": False}[letter]
        if letter == b"i":
            return number()
        if letter == b"f":
            end = message.index(b";", at)
            text, at = message[at:end], end + 1
            return float.fromhex(text.decode())
        if letter == b"c":
            return complex(value(), value())
        if letter == b"s":
            return taken(number()).decode("utf-8", "surrogatepass")
        if letter == b"b":
            return taken(number())
        if letter == b"a":
            return bytearray(taken(number()))
        if letter == b"r":
            return range(value(), value(), value())
        if letter == b"d":
            return {value(): value() for _ in range(number())}
        if letter in MAKERS:
            return MAKERS[letter](value() for _ in range(number()))
        if letter == b"o":
            return resolve(number())
        if letter == b"k":
            return _builtin_type(value())
        raise ValueError("an unknown letter")

    result = value()
    if at != len(message):
        raise ValueError("a message is too long")
    return result


def _builtin_type(name: Any) -> type:
    type_ = getattr(builtins, name)
    if not isinstance(type_, type) or type_.__name__ != name:  # such as what loads modules
        raise ValueError("no built-in type")
    return type_
