"""The permitted effects of one flipped bit in a virtual host's folder."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from rabbitstore import RabbitStore, verify
from storageio import StoreError
from tests.faults.golden import flipped

# Fields that nothing in the formats covers: a message's bytes have no checksum (16 bits in version 2).
UNCOVERED = {
    "content": "a message's bytes, where they still are a term",
    "expiry_us": "when a message expires",
    "persistent": "one bit of the index entry",
    "size": "the body's length in the index",
    "mark": "whose mark it is: another message counts as acknowledged; only the clean-stop files say how many there were",
}


class Vhost:
    """A golden folder and its messages before the damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = self.read()
        self.files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]

    def read(self) -> list[dict[str, Any]]:
        """Return the fields of the messages that a reader gets."""
        names = ("queue", "seq_id", "msg_id", "persistent", "expiry_us", "size", "content", "file", "offset")
        with_names = RabbitStore.open(str(self.folder), "r").folder().messages()
        return [{name: getattr(message, name) for name in names} for message in with_names]

    def judge(self, path: Path, bit: int) -> str:
        """Return `named`, `same`, or the uncovered fields that differ; any other effect is an AssertionError."""
        with flipped(path, bit):
            try:
                seen = verify(str(self.folder))
            except StoreError:
                return "named"
            if seen.problems or seen.notes:
                self.check_readable()
                return "named"
            rows = self.read()
        if path.suffix in (".jif", ".idx") and 0 < abs(len(rows) - len(self.rows)) <= 1:
            return "mark"
        assert len(rows) == len(self.rows), f"{path.name} bit {bit}: messages came or went and nothing was said"
        wrong = {name for before, after in zip(self.rows, rows, strict=True) for name in before if before[name] != after[name]}
        if path.suffix in (".jif", ".idx") and wrong & {"seq_id", "msg_id", "offset"}:
            assert len({row["seq_id"] for row in rows} ^ {row["seq_id"] for row in self.rows}) <= 2
            return "mark"
        assert wrong <= set(UNCOVERED), f"{path.name} bit {bit}: {wrong} changed and nothing was said"
        return "+".join(sorted(wrong)) or "same"

    def check_readable(self) -> None:
        """Read all messages; a `StoreError` is permitted."""
        try:
            self.read()
        except StoreError:
            return

    def sweep(self, runs: int, seed: int) -> Counter[str]:
        """Flip `runs` random bits, in each kind of file equally often; count the results."""
        chance = random.Random(seed)
        kinds = sorted({path.suffix or path.name for path in self.files})
        found: Counter[str] = Counter()
        for number in range(runs):
            kind = kinds[number % len(kinds)]
            path = chance.choice([path for path in self.files if (path.suffix or path.name) == kind])
            found[f"{kind} {self.judge(path, chance.randrange(8 * path.stat().st_size))}"] += 1
        return found
