"""Mutations, deterministic from a seed, so that every find can be reproduced from its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

SIZE_MAX = 1 << 13
NUMBERS = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63)


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Return one of the seeds, changed in one to six places."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 6)):
        chance.choice(_CHANGES)(chance, data, seeds)
    return bytes(data[:SIZE_MAX])


def neighbours(chance: random.Random, data: bytes, count: int) -> Iterator[bytes]:
    """Yield the bytes, then `count - 1` variants, each with one more byte changed: a tenth of a mutation's cost."""
    yield data
    changed = bytearray(data)
    for word in memoryview(chance.randbytes(4 * (count - 1))).cast("I"):
        if changed:
            changed[(word >> 8) % len(changed)] ^= word & 0xFF or 1
        yield bytes(changed)


def _position(chance: random.Random, data: bytearray) -> int:
    return chance.randrange(len(data)) if data else 0


def _flip(chance: random.Random, data: bytearray, _seeds: list[bytes]) -> None:
    if data:
        data[_position(chance, data)] ^= 1 << chance.randrange(8)


def _number(chance: random.Random, data: bytearray, _seeds: list[bytes]) -> None:
    size = chance.choice((1, 2, 4, 8))
    at = _position(chance, data)
    data[at : at + size] = (chance.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "big")


def _cut(chance: random.Random, data: bytearray, _seeds: list[bytes]) -> None:
    at = _position(chance, data)
    del data[at : at + chance.choice((1, 2, 8, 100, SIZE_MAX))]


def _noise(chance: random.Random, data: bytearray, _seeds: list[bytes]) -> None:
    at = _position(chance, data)
    data[at:at] = chance.randbytes(chance.choice((1, 4, 20)))


def _splice(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = chance.choice(seeds)
    start = chance.randrange(len(other)) if other else 0
    at = _position(chance, data)
    data[at:at] = other[start : start + chance.choice((4, 64, 512))]


def _repeat(chance: random.Random, data: bytearray, _seeds: list[bytes]) -> None:
    at = _position(chance, data)
    data[at:at] = data[at : at + 16] * chance.choice((1, 4, 64))


_CHANGES: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (_flip, _number, _cut, _noise, _splice, _repeat)
