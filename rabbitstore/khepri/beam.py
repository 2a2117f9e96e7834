"""Decode a compiled Erlang module: a transaction in Khepri's log is one (docs/formats/rabbitmq-metadata.md#transactions).

    FOR1 size:32 BEAM  chunks: name:4 size:32 data, padded to four bytes
    AtU8  the atoms        Code  the instructions      LitT  constants, compressed
    ImpT  called functions of other modules            ExpT  exported functions     FunT  local functions used as values

An instruction is its number and its operands.  An operand begins with a byte whose low three bits are its kind.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.terms import Atom
from ..format.terms_cy import decode

# the number of operands of each instruction, from number 1 on
_ARITIES = (
    "1302322324523232110000211244444444444333333322222222222223331212333332110113222555421122555210122444"
    "43121112635122357775322562222134086265454543333301171552334002223432243121116301532"
)
_LARGEST = 183
X, Y, CONSTANT, LABEL, LIST, OTHER = range(6)
Operand = tuple[int, Any]
_HEAD = 12
_SIZE_MAX = 16 << 20


class Import(NamedTuple):
    """A function of another module."""

    module: str
    name: str
    arity: int


class LocalFunction(NamedTuple):
    """A function that is used as a value; `free` values are passed behind its arguments."""

    label: int
    arity: int
    free: int


class Module(NamedTuple):
    """A module: `labels` has the position of each label in `code`, `exports` the label of each exported function."""

    name: str
    code: list[tuple[int, tuple[Operand, ...]]]
    labels: dict[int, int]
    imports: list[Import]
    exports: dict[tuple[str, int], int]
    functions: list[LocalFunction]


def read_module(data: bytes, name: str) -> Module:
    """Decode a module; raise `StoreCorrupt` for bytes that are none, `UnsupportedFormat` for later instructions."""
    try:
        chunks = _chunks(data)
        atoms = _atoms(chunks[b"AtU8"])
        imports = [Import(atoms[a], atoms[b], arity) for a, b, arity in _rows(chunks.get(b"ImpT"), 3)]
        exports = {(str(atoms[atom]), arity): label for atom, arity, label in _rows(chunks.get(b"ExpT"), 3)}
        functions = [LocalFunction(row[2], row[1] - row[4], row[4]) for row in _rows(chunks.get(b"FunT"), 6)]
        reader = _Operands(chunks[b"Code"], atoms, _literals(chunks.get(b"LitT")))
        code, labels = reader.instructions()
    except (KeyError, IndexError, struct.error, zlib.error, ValueError, RecursionError) as error:
        raise StoreCorrupt("not a compiled module", file=name, offset=0, expected="FOR1", found=str(error)[:60]) from error
    return Module(name, code, labels, imports, exports, functions)


def _chunks(data: bytes) -> dict[bytes, bytes]:
    if data[:4] != b"FOR1":
        raise ValueError(data[:4])
    found, at = {}, _HEAD
    while at + 8 <= len(data):
        size = struct.unpack_from(">I", data, at + 4)[0]
        found[data[at : at + 4]] = data[at + 8 : at + 8 + size]
        at += 8 + (size + 3) // 4 * 4
    return found


def _rows(data: bytes | None, width: int) -> list[tuple[int, ...]]:
    if data is None:
        return []
    count = struct.unpack_from(">I", data)[0]
    return [struct.unpack_from(f">{width}I", data, 4 + 4 * width * number) for number in range(min(count, len(data)))]


def _atoms(data: bytes) -> list[Atom]:
    """Return the atoms; number 0 is the empty list, which operands have as an atom."""
    count, at = struct.unpack_from(">i", data)[0], 4
    found = [Atom("[]")]
    for _ in range(min(abs(count), len(data))):
        size = data[at]
        if count < 0:  # since OTP 28
            size, at = (size >> 4, at) if not size & 8 else ((size & 0xE0) << 3 | data[at + 1], at + 1)
        found.append(Atom(data[at + 1 : at + 1 + size].decode()))
        at += 1 + size
    return found


def _literals(data: bytes | None) -> list[Any]:
    if data is None:
        return []
    size = struct.unpack_from(">I", data)[0]
    if size > _SIZE_MAX:
        raise ValueError(f"{size} bytes of constants")
    table = zlib.decompressobj().decompress(data[4:], size) if size else data[4:]  # a size of 0 since OTP 28
    found, at = [], 4
    for _ in range(min(struct.unpack_from(">I", table)[0], len(table))):
        size = struct.unpack_from(">I", table, at)[0]
        found.append(decode(table[at + 4 : at + 4 + size], improper=True))
        at += 4 + size
    return found


class _Operands:
    """The instructions of a module and a position in them."""

    def __init__(self, data: bytes, atoms: list[Atom], literals: list[Any]) -> None:
        head, _set, largest = struct.unpack_from(">III", data)
        if largest > _LARGEST:
            raise UnsupportedFormat("instruction", file="", offset=12, found=largest, supported=f"up to {_LARGEST}")
        self._data = data
        self._at = 4 + head
        self._atoms = atoms
        self._literals = literals
        self._kinds: dict[int, Callable[[int], Operand]] = {
            0: lambda first: (OTHER, self._value(first)),
            1: lambda first: (CONSTANT, self._value(first)),
            2: lambda first: (CONSTANT, self._atom(self._value(first))),
            3: lambda first: (X, self._value(first)),
            4: lambda first: (Y, self._value(first)),
            5: lambda first: (LABEL, self._value(first)),
            6: lambda first: (CONSTANT, self._value(first)),
            7: self._extended,
        }

    def instructions(self) -> tuple[list[tuple[int, tuple[Operand, ...]]], dict[int, int]]:
        code: list[tuple[int, tuple[Operand, ...]]] = []
        labels: dict[int, int] = {}
        while self._at < len(self._data):
            number = self._byte()
            if not 1 <= number <= _LARGEST:
                raise UnsupportedFormat("instruction", file="", offset=self._at, found=number, supported=f"1 to {_LARGEST}")
            operands = tuple(self._operand() for _ in range(int(_ARITIES[number - 1])))
            if number == 1:
                labels[operands[0][1]] = len(code)
            code.append((number, operands))
            if number == 3:
                break
        return code, labels

    def _byte(self) -> int:
        self._at += 1
        return int(self._data[self._at - 1])

    def _operand(self) -> Operand:
        first = self._byte()
        return self._kinds[first & 7](first)

    def _value(self, first: int) -> int:
        """Return the number that a byte begins: of 4 bits, of 11, or of whole bytes."""
        if not first & 8:
            return first >> 4
        if not first & 16:
            return (first & 0xE0) << 3 | self._byte()
        size = (first >> 5) + 2
        if size == 9:
            size = self._value(self._byte()) + 9
        if size < 0:
            raise ValueError(f"a number of {size} bytes")
        self._at += size
        return int.from_bytes(bytes(self._data[self._at - size : self._at]), "big", signed=True)

    def _atom(self, number: int) -> Any:
        return self._atoms[number] if number else []

    def _extended(self, first: int) -> Operand:
        kind = first >> 4
        if kind == 1:
            return LIST, tuple(self._operand() for _ in range(self._number()))
        if kind == 3:
            return OTHER, [(self._number(), self._number()) for _ in range(self._number())]
        if kind == 4:
            return CONSTANT, self._literals[self._number()]
        if kind == 5:  # a register and its type
            found = self._operand()
            self._number()  # of the type
            return found
        return OTHER, self._number()  # a register of floats

    def _number(self) -> int:
        return self._value(self._byte())
