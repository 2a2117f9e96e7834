"""Random lives of one folder: puts of ours and of a real system of some version, kills of either, and cuts of the log."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

from commitlog import Message
from commitlog.walk import LogFiles
from messagestore import MessageStore, StoreConfig
from messagestore.repair.recover import Choice, Recovery
from storageio import REAL_DISK
from tests.archives import unpack
from tests.faults.test_unknown_formats import records
from tests.stores import problem_kinds

from .folders import ITEMS, JAVA_NAMES, LOG_SIZE, QUEUE_SIZE, SLOTS, ours

YEARS = Path(__file__).parents[2] / "data" / "years"
FIXTURES = {"4.9.7": "rocket497", "5.4.0": "rocket540", "5.5.0": "rocket550", "5.5.1": "rocket551"}
SMALL = dict(zip(JAVA_NAMES, (65536, 2000, 500, 2000), strict=True)) | {"mappedFileSizeTimerLog": 52_000}
OURS = dict(zip(JAVA_NAMES, (LOG_SIZE, QUEUE_SIZE, SLOTS, ITEMS), strict=True))
TOPIC = "programs"
HIDDEN = ("%", "RMQ_SYS", "rmq_sys", "SCHEDULE", "TRANS_", "OFFSET_MOVED", "BenchmarkTest")
MOST_STEPS = 5


def fixture(version: str, root: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack the folder that a broker of a version left; return it with what that broker delivered."""
    unpack(YEARS / f"{FIXTURES[version]}.tar.xz", root)
    folder = root / FIXTURES[version]
    return folder / "store", json.loads((folder / "manifest.json").read_text())


def of_log(folder: Path) -> dict[str, list[int]]:
    """Return the log offsets of the messages of each topic, from the log alone."""
    found: dict[str, list[int]] = {}
    for message in LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages():
        if getattr(message, "topic", None):
            found.setdefault(message.topic, []).append(message.physical_offset)  # type: ignore[union-attr]
    return found


def by_tag(folder: Path, topic: str, tag: str) -> list[int]:
    """Return the log offsets of a topic's messages with a tag, from the log alone."""
    walk = LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages()
    return [one.physical_offset for one in walk if getattr(one, "topic", "") == topic and one.tags == tag]  # type: ignore[union-attr]


def by_key(folder: Path, topic: str, key: str) -> list[int]:
    """Return the log offsets of a topic's messages with a key, from the log alone."""
    walk = LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages()
    return [one.physical_offset for one in walk if getattr(one, "topic", "") == topic and key in one.keys]  # type: ignore[union-attr]


class Program:
    """A random life of one folder; a subclass knows how the real system gets and stores messages."""

    def __init__(self, seed: int, version: str, root: Path) -> None:
        """Begin with an empty folder, or with that of a broker of the version."""
        self.random = random.Random(f"{version} {seed}")
        self.seed, self.version, self.root = seed, version, root
        self.settings, self.config = dict(OURS), ours(broker_version=version)
        self.folder = root / "store"
        self.starts = self.kills = self.cuts = 0
        if version in FIXTURES and self.random.random() < 0.5:
            self.folder, _ = fixture(version, root)
            self.settings, self.config = dict(SMALL), StoreConfig()
        steps = [self.put, self.put_and_kill, self.send, self.send_and_kill, self.cut]
        self.steps = [self.put, *self.random.choices(steps, k=self.random.randint(2, MOST_STEPS - 1))]

    def send(self) -> None:
        """Have the real system store messages and stop cleanly."""
        raise NotImplementedError

    def send_and_kill(self) -> None:
        """Have the real system store messages, and kill it."""
        raise NotImplementedError

    def repair(self, step: str) -> None:
        """Repair whatever a step has broken."""
        if problem_kinds(self.folder):
            Recovery(str(self.folder), Choice.TRUNCATE, force=True).apply()
            assert problem_kinds(self.folder) == set(), f"{self} after {step}"

    def put(self) -> None:
        """Put messages in this process."""
        with MessageStore.open(self.folder, "a", self.config) as store:
            self._put_some(store)

    def put_and_kill(self) -> None:
        """Put messages, and go on with the folder as a kill would leave it."""
        with MessageStore.open(self.folder, "a", self.config) as store:
            self._put_some(store)
            self.folder = self.copy_as_killed()

    def copy_as_killed(self) -> Path:
        """Copy the folder while a store has it open: a kill leaves these bytes."""
        copied = self.root / f"killed-{self.kills}"
        self.kills += 1
        subprocess.run(["cp", "-r", "--sparse=always", self.folder, copied], check=True)
        return copied

    def cut(self) -> None:
        """Overwrite a record, so that the log ends there."""
        if not (found := records(self.folder)):
            return
        path, at = found[-self.random.randint(1, min(len(found), 12))]
        self.cuts += 1
        with path.open("r+b") as file:
            file.seek(at + 8)  # its checksum, queue and offsets: damage that a record without a checksum of the whole shows
            file.write(b"\xee" * 24)

    def messages(self) -> list[dict[str, Any]]:
        """Return messages for the real system."""
        return [
            {"topic": TOPIC, "queue_id": number % 3, "body": "YWJj", "tags": "a", "keys": [f"k{number % 7}"]}
            for number in range(self.random.randint(1, 40))
        ]

    def _put_some(self, store: MessageStore) -> None:
        for number in range(self.random.randint(1, 60)):
            tags = self.random.choice((None, "a", "b"))
            keys = self.random.choice((None, [f"k{number % 7}"]))
            store.put(Message(TOPIC, bytes(self.random.randrange(900)), queue_id=number % 3, tags=tags, keys=keys))

    def __str__(self) -> str:
        done = ", ".join(step.__name__ for step in self.steps)
        return f"{self.version} seed {self.seed} ({done}): {self.starts} starts, {self.kills} kills, {self.cuts} cuts"
