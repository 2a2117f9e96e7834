"""A whole RocketMQ store with one damage: the permitted results of verification, reading and recovery."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from commitlog.walk import LogFiles, Piece
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, StoreError
from storebytes.finding import Finding


class Copy(NamedTuple):
    """One message of a queue, with its position."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes


class Store:
    """A golden store to be damaged, and its content before the damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        self.records = {message.physical_offset: bytes_of(message) for message in messages_of(folder)}
        self.answers = read_queues(folder)
        assert self.answers, "a golden store has queues"

    def check(self, is_queue_read: bool) -> list[Finding]:
        """Return the problems that verification reports; a wrong message from a queue is an AssertionError."""
        try:
            problems = verify_store(str(self.folder)).problems
        except StoreError as error:
            problems = [Finding(str(self.folder), 0, type(error).__name__, "a store", str(error))]
        if is_queue_read:
            self.check_queues(bool(problems))
        return problems

    def check_queues(self, is_named: bool) -> None:
        """Assert that queues give their own messages only; errors and missing messages must have been reported."""
        try:
            answers = read_queues(self.folder)
        except StoreError:
            assert is_named, "an error in reading, and verification said nothing"
            return
        for queue, copies in answers.items():
            known = set(self.answers.get(queue, ()))
            strange = [copy for copy in copies if copy not in known]
            assert not strange, f"given out and never written: {strange[0]}"
        assert is_named or answers == self.answers, "messages are missing, and verification said nothing"

    def check_recovery(self, copy: Path, touched: set[int]) -> None:
        """Recover a copy: no problem remains, and every record outside of `touched` is there, byte for byte."""
        shutil.copytree(self.folder, copy)
        try:
            Recovery(str(copy), Choice.SKIP).apply()
            left = [problem for problem in verify_store(str(copy)).problems if not _stays(problem)]
            assert not left, f"after the recovery: {left[:3]}"
            there = {message.physical_offset: bytes_of(message) for message in messages_of(copy)}
            gone = [at for at, data in self.records.items() if at not in touched and there.get(at) != data]
            assert not gone, f"a recovery dropped or changed whole records at {gone[:5]}"
        finally:
            shutil.rmtree(copy)


def _stays(problem: Finding) -> bool:
    """Return whether a recovery leaves a problem: one that may be none, or one of compacted copies, which a broker makes."""
    return problem.kind == "suspect_record" or "/compaction/" in problem.file


def bytes_of(message: Any) -> bytes:
    """Return everything that a record contains except its physical offset."""
    fields = (message.topic, message.queue_id, message.queue_offset, message.flag, message.sys_flag, message.store_timestamp_ms)
    return repr((fields, message.body, message.properties_raw)).encode()


def messages_of(folder: Path) -> list[Any]:
    """Return every whole record of the log."""
    steps = LogFiles(REAL_DISK, [str(folder / "commitlog")]).walk()
    return [message for step in steps if isinstance(step, Piece) for message in step.messages()]


def read_queues(folder: Path) -> dict[tuple[str, int], list[Copy]]:
    """Return the messages of every queue."""
    with MessageStore.open(folder, "r") as store:
        return {
            (topic, queue_id): [_copy(message, topic, queue_id) for message in store.read(topic, queue_id)]
            for topic in store.topics()
            for queue_id in store.queue_ids(topic)
        }


def _copy(message: Any, topic: str, queue_id: int) -> Copy:
    """Return the message as one of this queue: LMQ queues hold records of other topics."""
    return Copy(topic, queue_id, message.queue_offset, message.physical_offset, message.body)


def record_offsets(folder: Path) -> list[int]:
    """Return the physical offsets of the real store's records."""
    rows = json.loads((folder.parent / "manifest.json").read_text())["messages"]
    return [row["physicalOffset"] for row in rows]
