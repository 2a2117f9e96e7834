"""Stores for tests, and damage to them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig

SMALL = StoreConfig.small().but(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=100, max_index_num=400)


def make_store(path: Path) -> Path:
    """Make a store with many sizes of records, several keys, queues and files."""
    chance = random.Random(8)
    with MessageStore.open(path, config=SMALL) as store:
        for number in range(1500):
            body = chance.randbytes(chance.choice((0, 1, 17, 300, 5000)))
            keys = [f"k{number % 7}", f"only-{number}"][: number % 3]
            store.put(Message(f"topic-{number % 3}", body, tags="paid" if number % 2 else None, keys=keys))
    return path


def make_forged_store(path: Path) -> Path:
    """Make a store of three messages; the second body consists of records that have the physical offsets of their copies."""
    with MessageStore.open(path, config=SMALL) as store:
        store.put(Message("t", b"real"))
    log = next((path / "commitlog").iterdir()).read_bytes()
    record = log[: int.from_bytes(log[:4], "big")]
    record = record.replace(record[-20:], b"")  # without the whole-record checksum
    plain = len(record).to_bytes(4, "big") + record[4:]
    plain = plain[:-2] + b"\0\0" if plain[-2:] != b"\0\0" else plain
    start, forged = len(log[: int.from_bytes(log[:4], "big")]) + 88, bytearray()
    while len(forged) < 4000:
        copy = bytearray(plain)
        copy[28:36] = (start + len(forged)).to_bytes(8, "big")
        forged += copy
    with MessageStore.open(path, config=SMALL.but(enabled_append_prop_crc=False)) as store:
        store.put(Message("t", bytes(forged)))
        store.put(Message("t", b"behind"))
    return path


def damage(store: Path, row: dict[str, Any]) -> tuple[str, int]:
    """Flip a bit in a record's body; return its file and its offset in the file."""
    file = store / "commitlog" / f"{row['physical_offset'] // 65536 * 65536:020d}"
    at, data = row["physical_offset"] % 65536, bytearray(file.read_bytes())
    data[at + 88] ^= 1
    file.write_bytes(data)
    return str(file), at
