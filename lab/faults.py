"""Failing every storage call of a program, once and permanently, in every way in which it can fail.

    for fault in faults_of(calls):           # the calls of an undisturbed run
        suffer_rocketmq(PROGRAM, fault)      # raises `Broken` if a promise is not kept

After a fault the store raises only errors of the library, still returns what it can, and keeps what it promised when the
machine crashes.
"""

from __future__ import annotations

import contextlib
import errno as errnos
import os
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from rabbitstore import RabbitStore
from storageio import DiskError, DiskFull, StoreClosed, StoreError
from storageio.testing import ForgettingDisk, Image, ShortWrite

from . import rabbitmq_lab, rocketmq_lab
from .rabbitmq_check import check_rabbit
from .rocketmq_check import Broken, check_store, must

SPACE = frozenset({"create", "write", "allocate", "truncate", "make folder", "rename"})
ALL: frozenset[str] = frozenset()
KINDS: dict[str, tuple[int, frozenset[str]]] = {  # the calls that can fail in this way; an empty set means all
    "EIO": (errnos.EIO, ALL),
    "ENOSPC": (errnos.ENOSPC, SPACE),
    "EMFILE": (errnos.EMFILE, frozenset({"open", "create", "list", "sync folder", "lock"})),
    "ENOMEM": (errnos.ENOMEM, frozenset({"map", "read", "open", "create"})),
    "short write": (errnos.ENOSPC, frozenset({"write"})),
}
Program = list[tuple[Any, ...]]

ROCKETMQ_PROGRAM: Program = [
    ("put", "T", 0, 40, 1), ("put_many", "T", 6, 300), ("dispatch",), ("flush",), ("derive", True), ("wait", 4000),
    ("put_batch", "U", 1, 4, 60), ("put", "T", 1, 4500, 2), ("put", "T", 0, 3000, 1), ("dispatch",), ("commit", "T", 0),
    ("flush",), ("derive", False), ("prepare",), ("wait", 61_000), ("put_many", "T", 9, 800), ("flush",), ("dispatch",),
    ("derive", True), ("retain", 1), ("put", "U", 2, 10, 0), ("flush",),
]  # fmt: skip
ROLLING_PROGRAM: Program = [  # with unsynced files, and directly after an open
    ("put", "T", 0, 3000, 0), ("put", "T", 0, 3000, 0), ("put", "T", 0, 3000, 0), ("put_many", "T", 9, 1500), ("flush",),
    ("dispatch",), ("derive", True), ("reopen",), ("put", "T", 0, 4500, 1), ("put", "T", 1, 4500, 1), ("flush",), ("bring",),
    ("put", "T", 0, 10, 1), ("reopen",), ("put", "T", 2, 3000, 1), ("dispatch",), ("flush",),
]  # fmt: skip
RABBITMQ_PROGRAM: Program = [
    ("declare", "a", "default"), ("declare", "b", "lazy"), ("publish", ("a", "b"), 10, True), ("publish", ("a",), 400, True),
    ("sync",), ("get", "a", True), ("publish", ("b",), 3000, True), ("publish", ("a", "b"), 3000, True),
    ("publish", ("a",), 3000, False), ("sync",), ("get", "b", True), ("get", "b", True), ("flush_journals",),
    ("publish", ("a",), 3000, True), ("publish", ("b",), 3000, True), ("publish", ("b",), 3000, True), ("sync",),
    ("get", "b", True), ("get", "b", True), ("get", "a", True), ("get", "a", True), ("sync",), ("collect",), ("balance",),
    ("publish", ("a", "b"), 150, True), ("publish", ("a", "b"), 10, True), ("mode", "a", "lazy"), ("sync",),
    ("purge", "b"), ("publish", ("a",), 10, True), ("flush_journals",),
]  # fmt: skip


class Fault(NamedTuple):
    """A failure of the `number`-th call, counted from 1; with `for_ever`, of all later calls of its kind too."""

    kind: str
    number: int
    for_ever: bool


class Counted:
    """A `refuse` hook of a disk that counts the calls and fails those of a fault."""

    def __init__(self, fault: Fault | None = None) -> None:
        """Take the fault; None fails nothing."""
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self.failed = 0

    def __call__(self, operation: str, path: str) -> None:
        """Count a call, and fail it if the fault covers it."""
        self.calls.append((operation, path))
        if self.fault is None:
            return
        errno, operations = KINDS[self.fault.kind]
        number = len(self.calls)
        is_meant = number == self.fault.number or (self.fault.for_ever and number > self.fault.number)
        if is_meant and (not operations or operation in operations):
            self.failed += 1
            error = ShortWrite if self.fault.kind == "short write" else DiskFull if errno == errnos.ENOSPC else DiskError
            raise error(operation, path, errno, os.strerror(errno))


def faults_of(calls: list[tuple[str, str]]) -> Iterator[Fault]:
    """Yield every call with every way in which it can fail, once and permanently."""
    for number, (operation, _path) in enumerate(calls, 1):
        for kind, (_errno, operations) in KINDS.items():
            if not operations or operation in operations:
                yield Fault(kind, number, False)
                yield Fault(kind, number, True)


def after(disk: ForgettingDisk, seed: int) -> list[Image]:
    """Return what may remain when the machine crashes at the end: everything, the least, and two random images."""
    random = Random(seed)
    return [disk.after_kill(), disk.least(), *(disk.any_image(random) for _ in range(2))]


# RocketMQ


def run_rocketmq(program: Program, refuse: Counted, **changes: Any) -> tuple[rocketmq_lab.RocketmqRun | None, ForgettingDisk]:
    """Run a program to its end, whatever fails; the run is None if the store could not be created."""
    disk = ForgettingDisk()
    disk.refuse = refuse
    run = None
    with contextlib.suppress(StoreError):
        run = rocketmq_lab.RocketmqRun(config=rocketmq_lab.lab_config(**changes), tries=False, disk=disk)
    for operation in program if run is not None else ():
        with contextlib.suppress(StoreError):
            if operation == ("reopen",):
                _reopen(run)  # type: ignore[arg-type]
            else:
                run.do(operation)  # type: ignore[union-attr]
    return run, disk


def _reopen(run: rocketmq_lab.RocketmqRun) -> None:
    """Close the store, cleanly or as the fault allows, and open it again."""
    _learn(run)
    close_rocketmq(run)
    run.store = run.open()


def suffer_rocketmq(program: Program, fault: Fault, **changes: Any) -> bool:
    """Run a program with a fault; check that what was flushed is there, in the open store and after a crash.

    Returns False if the fault never occurred: which maps are kept differs between runs.
    """
    refuse = Counted(fault)
    run, disk = run_rocketmq(program, refuse, **changes)
    try:
        if run is not None:
            _still_reads(run)
            close_rocketmq(run)
        disk.refuse = None
        for image in after(disk, fault.number):
            _recovers(run, image, disk.time_ms, **changes)
    except (Broken, StoreError, AssertionError) as error:
        operation, path = refuse.calls[fault.number - 1]
        raise Broken(f"{fault}, {operation} of {path}: {type(error).__name__}: {error}") from error
    return refuse.failed > 0


def _learn(run: rocketmq_lab.RocketmqRun) -> None:
    """Update the ledger from the log, without faults."""
    refuse, run.disk.refuse = run.disk.refuse, None
    with contextlib.suppress(StoreClosed):
        run.ledger.learn(run.store)
    run.disk.refuse = refuse


def _still_reads(run: rocketmq_lab.RocketmqRun) -> None:
    """Read the flushed records by their offsets; an error of the library is an accepted answer."""
    _learn(run)
    for entry in run.ledger.entries[: run.ledger.flushed]:
        with contextlib.suppress(StoreError):
            found = run.store.message_at(entry.physical_offset)
            must(
                found is not None or entry.physical_offset < run.ledger.low, f"the record at {entry.physical_offset} is unread"
            )
    for topic in ("T", "U"):
        with contextlib.suppress(StoreError):
            run.store.get(topic, 0, 0)


def close_rocketmq(run: rocketmq_lab.RocketmqRun) -> None:
    """Stop cleanly, or leave the abort file."""
    with contextlib.suppress(StoreError):
        run.store.close()
        if f"{rocketmq_lab.ROOT}/abort" not in run.disk.files():
            run.ledger.flushed = len(run.ledger.entries)
    must(run.store.engine.is_closed, "the store is not closed")


def _recovers(run: rocketmq_lab.RocketmqRun | None, image: Image, now_ms: int, **changes: Any) -> None:
    """Open what remains in a new process and check it."""
    disk = ForgettingDisk.of(image, now_ms)
    store = rocketmq_lab.open_still(disk, rocketmq_lab.lab_config(**changes))
    if run is not None:
        check_store(store, disk, run.ledger, run.ledger.flushed)
    rocketmq_lab.abandon(store)


# RabbitMQ


def run_rabbitmq(program: Program, refuse: Counted) -> tuple[rabbitmq_lab.RabbitRun | None, ForgettingDisk]:
    """Run a program as `run_rocketmq` does."""
    disk = ForgettingDisk()
    disk.refuse = refuse
    run = None
    with contextlib.suppress(StoreError):
        run = rabbitmq_lab.RabbitRun(tries=False, disk=disk)
    for operation in program if run is not None else ():
        with contextlib.suppress(StoreError):
            run.do(operation)  # type: ignore[union-attr]
    return run, disk


def suffer_rabbitmq(program: Program, fault: Fault) -> None:
    """Run a program with a fault; check that what was synced and not acknowledged is there."""
    refuse = Counted(fault)
    run, disk = run_rabbitmq(program, refuse)
    try:
        if run is not None:
            with contextlib.suppress(StoreError):
                run.store.close()
                run.ledger.sync()
        must(refuse.failed, "the fault never came")
        disk.refuse = None
        for image in after(disk, fault.number):
            _rabbit_recovers(run, image, disk.time_ms)
    except (Broken, StoreError, AssertionError) as error:
        operation, path = refuse.calls[fault.number - 1]
        raise Broken(f"{fault}, {operation} of {path}: {type(error).__name__}: {error}") from error


def _rabbit_recovers(run: rabbitmq_lab.RabbitRun | None, image: Image, now_ms: int) -> None:
    """Open what remains in a new process, even of a folder whose creation failed."""
    disk = ForgettingDisk.of(image, now_ms)
    store = RabbitStore.open(rabbitmq_lab.ROOT, settings=rabbitmq_lab.SETTINGS, disk=disk)
    if run is not None:
        check_rabbit(store, run.ledger, run.ledger.floor())
    store.abandon()
