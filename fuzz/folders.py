"""Whole folders of both engines with changed bytes: verified, read, opened for writing, recovered.

Without damage a folder must be read in full (`control`), since a named error is a valid answer to damage only.  If only files
were damaged that are derived from others, a recovery must end in a folder that opens and gives every message.

`Folder` damages a golden folder in real files and restores them.  A `SmallFolder` has every kind of file, but few messages and
in memory: it allows fifty times as many runs.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from unittest import mock

from fuzz.mutate import mutated
from lab import rabbitmq_lab, rocketmq_lab
from messagestore import MessageStore
from messagestore.repair import store_queues
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from rabbitstore import RabbitStore, apply_recovery, plan_recovery, verify
from storageio import REAL_DISK, Disk, StoreError
from storageio.testing import ForgettingDisk, Image

REPAIR_EVERY = 10
DERIVED_TOPS = {"consumequeue", "index", "checkpoint", "recovery.dets"}
CLEAN_NAMES = {"clean.dot", "file_summary.ets", "msg_store_index.ets"}
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
    """Mutate up to 64 bytes of the data, so that large files change in small places."""
    at = chance.randrange(len(data)) if data else 0
    window = data[at : at + 64]
    made = mutated(chance, [window])
    keeps_size = chance.random() < 0.8
    return data[:at] + (made[: len(window)].ljust(len(window), b"\0") if keeps_size else made) + data[at + 64 :]


class SmallFolder:
    """A folder of few messages in memory, damaged anew in each run."""

    def __init__(self, image: Image, time_ms: int, root: str) -> None:
        """Check that the undamaged folder has as many messages after a recovery as before."""
        self.image, self.time_ms, self.root = image, time_ms, root
        self.names = sorted(image.files)
        self.messages = self.examine(self._disk(image))
        assert self.messages > 0
        self.repair(self._disk(image), self.messages)

    def examine(self, disk: Disk) -> int:
        """Verify the folder and return the number of messages that a reader gets; a named error may be raised."""
        raise NotImplementedError

    def repair(self, disk: Disk, messages: int | None) -> None:
        """Recover the folder; with `messages`, it must have that many afterwards."""
        raise NotImplementedError

    def is_derived(self, name: str) -> bool:
        """Return whether no message is lost with a file."""
        return is_derived(name)

    def run(self, seed: int) -> None:
        """Damage up to three files and read the folder; every tenth run also recovers it and opens it for writing."""
        chance = random.Random(seed)
        files = dict(self.image.files)
        changed = chance.sample(self.names, chance.randint(1, 3))
        for name in changed:
            files[name] = damaged(chance, files[name])
        image = self.image._replace(files=files)
        with contextlib.suppress(StoreError):
            self.examine(self._disk(image))
        if seed % REPAIR_EVERY == 0 and all(self.is_derived(name.removeprefix(f"{self.root}/")) for name in changed):
            self.repair(self._disk(image), self.messages)
        elif seed % REPAIR_EVERY == 0:
            with contextlib.suppress(StoreError):
                self.repair(self._disk(image), None)

    def _disk(self, image: Image) -> ForgettingDisk:
        return ForgettingDisk.of(image, self.time_ms)


class SmallStore(SmallFolder):
    """A store of about twenty messages, closed cleanly or not."""

    def __init__(self, *, is_rabbit: bool, is_closed: bool) -> None:
        """Run a program of the lab and keep the image that a kill leaves."""
        self.is_rabbit = is_rabbit
        run = rabbitmq_lab.RabbitRun(1, tries=False) if is_rabbit else rocketmq_lab.RocketmqRun(1, tries=False)
        for operation in RABBITMQ_PROGRAM if is_rabbit else ROCKETMQ_PROGRAM:
            run.do(operation)
        if is_closed:
            run.store.close()
        image, time_ms = run.disk.after_kill(), run.disk.time_ms
        run.store.abandon() if isinstance(run, rabbitmq_lab.RabbitRun) else rocketmq_lab.abandon(run.store)
        super().__init__(image, time_ms, rabbitmq_lab.ROOT if is_rabbit else rocketmq_lab.ROOT)

    def examine(self, disk: Disk) -> int:
        """Verify the folder and return the number of messages that a reader gets; a named error may be raised."""
        return examine(self.root, disk, is_rabbit=self.is_rabbit)

    def repair(self, disk: Disk, messages: int | None) -> None:
        """Recover the folder without threads."""
        with mock.patch.object(store_queues, "Engine", rocketmq_lab.StillEngine):
            repair(self.root, disk, messages, is_rabbit=self.is_rabbit)


class Folder:
    """A golden folder in real files, damaged anew in each run."""

    def __init__(self, golden: Path, work: Path, *, is_rabbit: bool) -> None:
        self.golden, self.work, self.is_rabbit = golden, work, is_rabbit
        shutil.copytree(golden, work)
        self.files = {path.relative_to(work): path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()}
        self.messages = self.control()

    def control(self) -> int:
        """Assert that the undamaged folder has as many messages after a recovery as before; return their number."""
        messages = examine(str(self.work), REAL_DISK, is_rabbit=self.is_rabbit)
        assert messages > 0
        repair(str(self.work), REAL_DISK, messages, is_rabbit=self.is_rabbit)
        self._restore()
        return messages

    def run(self, seed: int) -> None:
        """Damage up to three files and read the folder; every tenth run also recovers it and opens it for writing."""
        chance = random.Random(seed)
        changed = chance.sample(sorted(self.files), chance.randint(1, 3))
        for name in changed:
            (self.work / name).write_bytes(damaged(chance, self.files[name]))
        try:
            with contextlib.suppress(StoreError):
                examine(str(self.work), REAL_DISK, is_rabbit=self.is_rabbit)
            if seed % REPAIR_EVERY == 0:
                self._repair(all(is_derived(name.as_posix()) for name in changed))
        finally:
            if seed % REPAIR_EVERY == 0:
                self._restore()
            else:
                for name in changed:
                    (self.work / name).write_bytes(self.files[name])

    def _repair(self, must_open: bool) -> None:
        with contextlib.nullcontext() if must_open else contextlib.suppress(StoreError):
            repair(str(self.work), REAL_DISK, self.messages if must_open else None, is_rabbit=self.is_rabbit)

    def _restore(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.golden, self.work)


def is_derived(name: str) -> bool:
    """Return whether a file of the store can be rebuilt from others, so that no message is lost with it."""
    parts = name.split("/")
    return parts[0] in DERIVED_TOPS or parts[-1] in CLEAN_NAMES


def examine(root: str, disk: Disk, *, is_rabbit: bool) -> int:
    """Verify the folder and return the number of messages that a reader gets; a named error may be raised."""
    if is_rabbit:
        verify(root, disk)
        with contextlib.closing(RabbitStore.open(root, "r", disk=disk).folder()) as folder:
            return sum(1 for _ in folder.messages())
    verify_store(root, disk=disk)
    return _read(root, disk)


def _read(root: str, disk: Disk) -> int:
    with MessageStore.open(root, "r", disk=disk) as store:
        found = 0
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                found += len(store.get(topic, queue_id, store.min_offset(topic, queue_id)).messages)
        store.query("HotTopic", "hot-0")
        return found


def repair(root: str, disk: Disk, messages: int | None, *, is_rabbit: bool) -> None:
    """Recover the folder, assert that a second recovery has nothing to do, and open it for writing.

    With `messages`, the folder must have that many afterwards.
    """
    if is_rabbit:
        apply_recovery(root, disk)
        left = {step.kind for step in plan_recovery(root, disk).steps}
        assert left <= {"write_name"}, f"a second recovery has something to do: {left}"  # a lost name may be unknown
    else:
        # new files are as small as the existing ones
        config = rocketmq_lab.lab_config() if isinstance(disk, ForgettingDisk) else None
        Recovery(root, Choice.SKIP, config, disk).apply()
        again = [step.kind for step in Recovery(root, Choice.SKIP, config, disk).plan().steps]
        assert not again, f"a second recovery has something to do: {again}"
    if messages is not None:
        found = examine(root, disk, is_rabbit=is_rabbit)
        assert found == messages, f"{found} messages after a recovery, and {messages} before the damage"
    _open_rabbit(root, disk) if is_rabbit else _open_rocket(root, disk)


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
