"""Whole folders of both engines with bytes changed: verified, read, opened for writing, recovered.

`Folder` damages a golden folder in real files, and puts the files back.  `SmallFolder` has every kind of file too, but a few
messages alone, and lies in memory: fifty times as many runs.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from unittest import mock

from brokerstore.testing import rabbitmq_lab, rocketmq_lab
from fuzz.mutate import mutated
from messagestore import MessageStore
from messagestore.mending import recover as mending
from messagestore.mending.recover import Choice, Recovery
from messagestore.mending.verification import verify_store
from rabbitstore import RabbitStore, apply_recovery, plan_recovery, verify
from storageio import REAL_DISK, Disk, StoreError
from storageio.testing import ForgettingDisk, Image

MEND_EVERY = 10
ROCKETMQ_PROGRAM: rocketmq_lab.Program = [
    ("put", "HotTopic", 0, 40, 1), ("put_many", "T", 6, 60), ("put_batch", "U", 1, 4, 30), ("put", "T", 1, 900, 2),
    ("dispatch",), ("commit", "T", 0), ("flush",), ("derive", True), ("put", "T", 0, 300, 1), ("flush",), ("dispatch",),
]  # fmt: skip
RABBITMQ_PROGRAM: rocketmq_lab.Program = [
    ("declare", "a", "default"), ("declare", "b", "lazy"), ("publish", ("a", "b"), 10, True), ("publish", ("a",), 400, True),
    ("sync",), ("get", "a", True), ("publish", ("b",), 900, True), ("publish", ("a",), 900, False), ("flush_journals",),
    ("publish", ("a", "b"), 150, True), ("publish", ("b",), 300, True), ("sync",),
]  # fmt: skip


def damaged(chance: random.Random, data: bytes) -> bytes:
    """In a window, so that large files change in small places."""
    at = chance.randrange(len(data)) if data else 0
    window = data[at : at + 64]
    made = mutated(chance, [window])
    keeps_size = chance.random() < 0.8
    return data[:at] + (made[: len(window)].ljust(len(window), b"\0") if keeps_size else made) + data[at + 64 :]


class SmallFolder:
    """A folder of some twenty messages in memory, closed cleanly or not, damaged anew in each run."""

    def __init__(self, *, is_rabbit: bool, is_closed: bool) -> None:
        """Made by a program of the lab."""
        self.is_rabbit = is_rabbit
        run = rabbitmq_lab.RabbitRun(1, tries=False) if is_rabbit else rocketmq_lab.Run(1, tries=False)
        for operation in RABBITMQ_PROGRAM if is_rabbit else ROCKETMQ_PROGRAM:
            run.do(operation)
        if is_closed:
            run.store.close()
        self.image = run.disk.after_kill()
        self.time_ms = run.disk.time_ms
        run.store.abandon() if isinstance(run, rabbitmq_lab.RabbitRun) else rocketmq_lab.abandon(run.store)
        self.root = rabbitmq_lab.ROOT if is_rabbit else rocketmq_lab.ROOT
        self.names = sorted(self.image.files)

    def run(self, seed: int) -> None:
        """One damage; every tenth run recovers and opens for writing, which must end sound or by name."""
        chance = random.Random(seed)
        files = dict(self.image.files)
        for name in chance.sample(self.names, chance.randint(1, 3)):
            files[name] = damaged(chance, files[name])
        image = self.image._replace(files=files)
        look(self.root, self._disk(image), is_rabbit=self.is_rabbit)
        if seed % MEND_EVERY == 0:
            with mock.patch.object(mending, "Engine", rocketmq_lab.StillEngine):
                mend(self.root, self._disk(image), is_rabbit=self.is_rabbit)

    def _disk(self, image: Image) -> ForgettingDisk:
        return ForgettingDisk.of(image, self.time_ms)


class Folder:
    """A folder that is damaged again and again."""

    def __init__(self, golden: Path, work: Path, *, is_rabbit: bool) -> None:
        self.golden, self.work, self.is_rabbit = golden, work, is_rabbit
        shutil.copytree(golden, work)
        self.files = {path.relative_to(work): path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()}

    def run(self, seed: int) -> None:
        """One damage; every tenth run also goes through a recovery and a writing opening, which must end sound or by name."""
        chance = random.Random(seed)
        changed = chance.sample(sorted(self.files), chance.randint(1, 3))
        for name in changed:
            (self.work / name).write_bytes(damaged(chance, self.files[name]))
        try:
            self.look()
            if seed % 10 == 0:
                self.mend()
        finally:
            if seed % 10 == 0:
                shutil.rmtree(self.work)
                shutil.copytree(self.golden, self.work)
            else:
                for name in changed:
                    (self.work / name).write_bytes(self.files[name])

    def look(self) -> None:
        """An answer or a named error."""
        look(str(self.work), REAL_DISK, is_rabbit=self.is_rabbit)

    def mend(self) -> None:
        """See `mend`."""
        mend(str(self.work), REAL_DISK, is_rabbit=self.is_rabbit)


def look(root: str, disk: Disk, *, is_rabbit: bool) -> None:
    """An answer or a named error."""
    try:
        if is_rabbit:
            verify(root, disk)
            list(RabbitStore.open(root, "r", disk=disk).messages())
        else:
            verify_store(root, disk=disk)
            _read(root, disk)
    except StoreError:
        return


def _read(root: str, disk: Disk) -> None:
    with MessageStore.open(root, "r", disk=disk) as store:
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                store.get(topic, queue_id, store.min_offset(topic, queue_id))
        store.query("HotTopic", "hot-0")


def mend(root: str, disk: Disk, *, is_rabbit: bool) -> None:
    """One recovery leaves nothing wrong that a second one would mend."""
    try:
        if is_rabbit:
            apply_recovery(plan_recovery(root, disk), disk)
            left = {action.kind for action in plan_recovery(root, disk).actions}
            assert left <= {"write_name"}, f"a second recovery has something to do: {left}"  # a name need not be found
            _open_rabbit(root, disk)
        else:
            config = (
                rocketmq_lab.lab_config() if isinstance(disk, ForgettingDisk) else None
            )  # new files are as small as the others
            Recovery(root, Choice.SKIP, config, disk).apply()
            again = Recovery(root, Choice.SKIP, config, disk).plan().actions
            assert not again, f"a second recovery has something to do: {again}"
            _open_rocket(root, disk)
    except StoreError:
        return


def _open_rabbit(root: str, disk: Disk) -> None:
    if disk is REAL_DISK:
        RabbitStore.open(root, "r+").close()
    else:
        RabbitStore.open(root, "r+", settings=rabbitmq_lab.SETTINGS, disk=disk).abandon()


def _open_rocket(root: str, disk: Disk) -> None:
    if isinstance(disk, ForgettingDisk):
        rocketmq_lab.abandon(rocketmq_lab.open_still(disk, rocketmq_lab.lab_config(), root))
    else:
        MessageStore.open(root, "a").close()
