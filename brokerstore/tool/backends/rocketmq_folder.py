"""A RocketMQ folder: its log files, its settings, the store opened for reading, and the problems found so far.

The engine is imported where it is needed: `info` answers within 150 ms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from brokerstore.identify import FolderKind, StoreFolder
from brokerstore.opening import refuse_unread
from commitlog.growing import whole_end
from commitlog.walk import LogFiles, Piece, Step
from storageio import REAL_DISK, InvalidMessage, UnknownStore
from storageio.ahead import one_ahead
from storebytes.finding import Finding

from ..codes import CLEAN, PROBLEM
from ..escapes import quote
from ..filters import Filters, RecordFilter, is_utf8, queue_number
from ..output import problem_text, say

if TYPE_CHECKING:
    from commitlog import StoredMessage
    from consumequeue import ConsumeQueues
    from messagestore import MessageStore, StoreConfig

    from ..target import Target


AHEAD_MIN = 64 << 20  # bytes of log that are worth a second thread


def walk_ahead(files: LogFiles) -> Iterator[Step]:
    """Walk over a log of some size in a second thread, which reads and checks the next records while the last are used."""
    is_large = sum(file.size_bytes for file in files.files) > AHEAD_MIN
    return one_ahead(files.walk()) if is_large else files.walk()


class RocketmqFolder:
    """What every operation on a RocketMQ folder needs."""

    def __init__(self, target: Target) -> None:
        """Nothing is opened yet."""
        self.target = target
        self.problems: list[Finding] = []
        self.shows_fillers = False
        self._fillers = 0
        self.is_incomplete = False  # whether an answer may lack messages

    @property
    def code(self) -> int:
        """Return `PROBLEM` once a problem was found, or after an incomplete answer."""
        return PROBLEM if self.problems or self.is_incomplete else CLEAN

    @property
    def is_in_use(self) -> bool:
        """Return whether a broker or a writer of this library holds the lock of the store."""
        path = self.target.path
        root = os.path.dirname(os.path.abspath(path)) if self.target.kind is FolderKind.LOG else path
        return REAL_DISK.is_locked(os.path.join(root, "lock"))

    def files(self) -> LogFiles:
        """Return the log's files, of a store in use up to its present end; raise `UnknownStore` without a log."""
        target = self.target
        if not target.log_folders or target.kind is FolderKind.DLEDGER:
            self._refuse_unread()
            kind = target.kind.value
            missing = UnknownStore(f"{target.path}: a {kind} folder without its commitlog folder (--commitlog names another)")
            missing.add_note(f"run: brokerstore verify {quote(target.path)}  (shows what is missing)")
            raise missing
        size = target.settings.get("mapped_file_size_commit_log")
        end_offset = whole_end(REAL_DISK, target.log_folders, size) if self.is_in_use else None
        return LogFiles(REAL_DISK, target.log_folders, size, end_offset=end_offset)

    def log_size(self) -> int:
        """Return the bytes of the log's files, 0 without a log folder."""
        return sum(file.size_bytes for file in self.files().files) if self.target.log_folders else 0

    def config(self) -> StoreConfig:
        """Return the configuration for the engine."""
        from messagestore import StoreConfig

        return StoreConfig(**self.target.settings)

    def _refuse_unread(self) -> None:
        refuse_unread(StoreFolder(self.target.path, self.target.kind, self.target.log_folders))

    def require_store(self, *, has_rocksdb: bool = False) -> None:
        """Raise `UnknownStore` for anything but a RocketMQ store with queues in files, or with `has_rocksdb` in RocksDB."""
        if has_rocksdb and self.target.kind is FolderKind.ROCKSDB:
            return
        self._refuse_unread()
        if self.target.kind is not FolderKind.ROCKETMQ:
            path, kind = self.target.path, self.target.kind.value
            raise UnknownStore(f"{path}: a {kind} folder; this command needs a RocketMQ store's folder")

    def require_index_layout(self, *, has_rocksdb: bool = False) -> None:
        """Raise `InvalidMessage` if index files hold keys and neither they nor the settings give their slots.

        `has_rocksdb` allows a store with queues in RocksDB.
        """
        from messagestore.read.beside_writer import PAUSE_S, TRIES, beside_writer

        self.require_store(has_rocksdb=has_rocksdb)
        for _ in range(TRIES):  # an item may be on its way, or the newest file just created
            if beside_writer(REAL_DISK, self.target.path, self._has_index_layout):
                return
            if not self.is_in_use:
                break
            REAL_DISK.sleep(PAUSE_S)
        folder = os.path.join(self.target.path, "index")
        raise InvalidMessage(f"{folder}: the files do not show how many slots they have; give --index-slots and --index-num")

    def _has_index_layout(self) -> bool:
        from indexfile import PAUSES_S, index_paths, itemless_shape
        from messagestore.store_settings import index_shape

        folder, own = (os.path.join(self.target.path, name) for name in ("index", "brokerstore"))
        paths = index_paths(REAL_DISK, folder)[0]
        is_given = {"max_hash_slot_num", "max_index_num"} <= self.target.settings.keys()
        if not paths or is_given or itemless_shape(REAL_DISK, paths) is not None:
            return True
        return index_shape(REAL_DISK, folder, own, PAUSES_S) is not None

    def open_store(self) -> MessageStore:
        """Open the store for reading, which changes nothing and needs no lock."""
        from messagestore import MessageStore

        self.require_store()
        return MessageStore.open(self.target.path, "r", self.config())

    @contextmanager
    def queues(self) -> Iterator[ConsumeQueues]:
        """Yield the queues in files, opened for reading."""
        from consumequeue import ConsumeQueues, find_file_size
        from consumequeue.layout import FILE_SIZE_DEFAULT

        path = os.path.join(self.target.path, "consumequeue")
        size = self.target.settings.get("mapped_file_size_consume_queue") or find_file_size(REAL_DISK, path)
        queues = ConsumeQueues(REAL_DISK, path, writable=False, file_size_bytes=size or FILE_SIZE_DEFAULT)
        try:
            yield queues
        finally:
            queues.close()

    def incomplete_keys(self, store: MessageStore) -> dict[str, Any]:
        """Report on stderr what the queues of a killed writer's store lack; return the JSON keys for it."""
        undispatched = store.engine.undispatched
        undispatched.is_reported = True
        problem = undispatched.problem()
        if not problem:
            return {}
        say(f"brokerstore: incomplete: {problem}; run: brokerstore rebuild {quote(store.path)} --apply")
        return {"undispatched_messages": store.undispatched_messages}

    def add(self, finding: Finding) -> None:
        """Report a problem and keep it; ignore a note."""
        if finding.is_problem:
            self.problems.append(finding)
            say(f"brokerstore: {problem_text(finding)}")

    def pieces(self, files: LogFiles, *, is_whole: bool = True) -> Iterator[Piece]:
        """Iterate over runs of good records; damage is reported and skipped.

        A caller that wants the whole log gets the next run from a second thread.
        """
        for finding in files.check():
            self.add(finding)
        for step in walk_ahead(files) if is_whole else files.walk():
            if isinstance(step, Finding):
                self.add(step)
            elif isinstance(step, Piece):
                yield from self.without_fillers(step)
        self.say_fillers()

    def without_fillers(self, piece: Piece) -> Iterator[Piece]:
        """Yield a run of records without the filler records in it."""
        left = len(piece.positions)
        for part in [piece] if self.shows_fillers else piece.without_fillers():
            left -= len(part.positions)
            yield part
        self._fillers += left

    def accepts(self, message: StoredMessage) -> bool:
        """Return whether a record is a message, or fillers are shown; count those that are left out."""
        is_left_out = message.is_filler and not self.shows_fillers
        self._fillers += is_left_out
        return not is_left_out

    def say_fillers(self) -> None:
        """Report how many filler records were left out."""
        if self._fillers:
            found = "1 filler record" if self._fillers == 1 else f"{self._fillers} filler records"
            say(f"brokerstore: left out {found} of `recover --skip-bad`; `brokerstore dump DIR --fillers` shows them")
            self._fillers = 0

    def record_filter(self, filters: Filters) -> RecordFilter:
        """Return the filters for records; raise `click.BadParameter` for a value that no record can have."""
        if filters.key is not None and not is_utf8(filters.key):
            raise click.BadParameter(f"{filters.key!r} is not UTF-8", param_hint="--key")
        return RecordFilter(filters.topic, queue_number(filters.queue), *filters[2:])
