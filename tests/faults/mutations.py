"""What goes wrong with a file: bytes that change on the way, and values that somebody writes into it."""

from __future__ import annotations

import random
import struct
from typing import Any

OTHER_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, 1e308, float("nan"), float("-inf"), "", "x", "\ud800", "\0", "../../x", [], [[]], [0.9],
    {}, {"a": {}}, "a" * 10_000, list(range(1_000)),
)  # fmt: skip
_WORDS = (bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7, *(struct.pack("<Q", size) for size in (7, 2**31, 2**42, 2**63)))


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One change: a bit flipped, bytes cut off, left out, doubled, moved, zeroed or made up, a size out of all bounds."""
    raw = bytearray(data)
    at = chance.randrange(len(raw) if chance.random() < 0.5 else min(len(raw), 1500))  # headers are mostly at the front
    length, other = chance.choice((1, 1, 2, 8, 32, 100)), chance.randrange(len(raw))
    match chance.randrange(10):
        case 0:
            raw[at] ^= 1 << chance.randrange(8)
        case 1:
            del raw[at:]
        case 2:
            del raw[at : at + length]
        case 3:
            raw[at:at] = raw[at : at + length]
        case 4:
            raw[at : at + length] = raw[other : other + length]
        case 5:
            raw[at : at + length] = bytes(length)
        case 6:
            raw[at : at + length] = chance.randbytes(length)
        case 7:
            raw[at:at] = chance.randbytes(length)
        case 8:
            place = chance.choice((0, at))
            raw[place : place + 8] = chance.choice(_WORDS)
        case 9:
            raw[:] = chance.randbytes(length)
    return bytes(raw)
