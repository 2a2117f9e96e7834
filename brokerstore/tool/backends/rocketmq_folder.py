"""A RocketMQ folder: its log files, its settings, the store opened for reading, and the problems found so far.

The engine is imported where it is needed: `info` answers within 150 ms.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from brokerstore.identify import FolderKind
from commitlog import whole_end
from commitlog.walk import LogFiles, Piece, Step
from messagestore.folder import FolderFacts
from storageio import REAL_DISK, InvalidMessage, MissingExtra, StoreCorrupt, StoreError, UnknownStore
from storageio.ahead import one_ahead
from storebytes.finding import Finding

from ..codes import CLEAN, PROBLEM
from ..escapes import quote
from ..filters import Filters, RecordFilter, is_utf8, queue_number
from ..output import print_line, problem_text

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
        assert isinstance(target.facts, FolderFacts)
        self.target = target
        self.facts = target.facts
        self.problems: list[Finding] = []
        self.shows_fillers = False
        self.decodes = False
        self._fillers = 0
        self._incomplete: dict[str, Any] | None = None  # the count walks over a part of the log
        self.is_incomplete = False  # whether an answer may lack messages

    @property
    def code(self) -> int:
        """Return `PROBLEM` once a problem was found, or after an incomplete answer."""
        return PROBLEM if self.problems or self.is_incomplete else CLEAN

    @property
    def is_in_use(self) -> bool:
        """Return whether a broker or a writer of this library holds the lock of the store."""
        return self.facts.is_in_use

    def files(self) -> LogFiles:
        """Return the log's files, of a store in use up to its present end; raise `UnknownStore` without a log."""
        facts = self.facts
        facts.refuse_unread() if facts.kind is FolderKind.DLEDGER or not facts.log_folders else None
        if not facts.log_folders:
            kind = facts.kind.value
            missing = UnknownStore(f"{facts.path}: a {kind} folder without its commitlog folder (--commitlog names another)")
            missing.add_note(self.with_all_logs() or f"run: brokerstore verify {quote(facts.path)}  (shows what is missing)")
            raise missing
        size = self.target.settings.get("mapped_file_size_commit_log")
        return facts.files(size, whole_end(REAL_DISK, facts.log_folders, size) if facts.is_in_use else None)

    def with_all_logs(self) -> str:
        """Return the command that reads the log with the folders beside it that have more of its files; "" without any.

        They are named and not read: a broker's configuration alone tells which folders belong to its log.
        """
        found = self.facts.contents.log_parts
        if self.target.settings.get("store_path_commit_log") or not found:
            return ""
        folders = ",".join(os.path.join(self.facts.path, name) for name in found)
        return f"run: brokerstore info {quote(self.facts.path)} --commitlog {quote(folders)}  (the log is in several folders)"

    def log_size(self) -> int:
        """Return the bytes of the log's files, 0 without a log folder."""
        return sum(file.size_bytes for file in self.files().files) if self.facts.log_folders else 0

    def config(self) -> StoreConfig:
        """Return the configuration for the engine."""
        from messagestore import StoreConfig

        return StoreConfig(**self.target.settings)

    def require_store(self, *, has_rocksdb: bool = False) -> None:
        """Raise `UnknownStore` for anything but a RocketMQ store with queues in files, or with `has_rocksdb` in RocksDB."""
        kind = self.facts.kind
        if has_rocksdb and kind is FolderKind.ROCKSDB:
            return
        self.facts.refuse_unread()
        if not self.facts.is_store:
            raise UnknownStore(f"{self.facts.path}: a {kind.value} folder; this command needs a RocketMQ store's folder")

    def require_index_layout(self, *, has_rocksdb: bool = False) -> None:
        """Raise `InvalidMessage` if index files hold keys and neither they nor the settings give their slots.

        `has_rocksdb` allows a store with queues in RocksDB.
        """
        from messagestore.read.beside_writer import PAUSE_S, TRIES, beside_writer

        self.require_store(has_rocksdb=has_rocksdb)
        is_given = {"max_hash_slot_num", "max_index_num"} <= self.target.settings.keys()
        for _ in range(TRIES):  # an item may be on its way, or the newest file just created
            if is_given or beside_writer(REAL_DISK, self.target.path, self.facts.has_index_layout):
                return
            if not self.is_in_use:
                break
            REAL_DISK.sleep(PAUSE_S)
        folder = self.facts.paths.index
        raise InvalidMessage(f"{folder}: the files do not show how many slots they have; give --index-slots and --index-num")

    def open_store(self) -> MessageStore:
        """Open the store for reading, which changes nothing and needs no lock."""
        from messagestore import MessageStore

        self.require_store()
        return MessageStore.open(self.target.path, "r", self.config())

    def open_log_reader(self) -> MessageStore:
        """Open the store for what needs its log and configuration, as a copy does; its queues may be in RocksDB."""
        self.require_store(has_rocksdb=True)
        if self.facts.kind is not FolderKind.ROCKSDB:
            return self.open_store()
        from messagestore import MessageStore
        from messagestore.engine import Engine

        engine = Engine(self.target.path, self.config(), REAL_DISK, None, writable=False)
        engine.undispatched.is_reported = True  # the units are in RocksDB
        return MessageStore(engine)

    @contextmanager
    def queues(self) -> Iterator[ConsumeQueues]:
        """Yield the queues in files, opened for reading."""
        from consumequeue import ConsumeQueues, find_file_size
        from consumequeue.layout import FILE_SIZE_DEFAULT

        path = self.facts.paths.queues
        size = self.target.settings.get("mapped_file_size_consume_queue") or find_file_size(REAL_DISK, path)
        with ConsumeQueues(REAL_DISK, path, writable=False, file_size_bytes=size or FILE_SIZE_DEFAULT) as queues:
            yield queues

    def incomplete_keys(self, store: MessageStore) -> dict[str, Any]:
        """Report on stderr, once, what the queues of a killed writer's store lack; return the JSON keys for it."""
        if self._incomplete is None:
            self._incomplete = self._find_incomplete(store)
        return self._incomplete

    def _find_incomplete(self, store: MessageStore) -> dict[str, Any]:
        undispatched = store.engine.undispatched
        undispatched.is_reported = True
        problem = undispatched.problem()
        if not problem:
            return {}
        print_line(f"brokerstore: incomplete: {problem}; run: brokerstore rebuild {quote(store.path)} --apply")
        return {"undispatched_messages": store.undispatched_messages}

    def add(self, finding: Finding) -> None:
        """Report a problem and keep it; ignore a note."""
        if finding.is_problem:
            self.problems.append(finding)
            print_line(f"brokerstore: {problem_text(finding)}")

    def add_unreadable(self, what: str, error: StoreError) -> None:
        """Report what is not shown because it cannot be read; a missing package is no problem of the folder."""
        if not isinstance(error, MissingExtra):
            self.problems.append(Finding(self.facts.path, 0, "unreadable", what, str(error)))
        print_line(f"brokerstore: no {what}: {error}")

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
        self.report_fillers()

    def without_fillers(self, piece: Piece) -> Iterator[Piece]:
        """Yield a run of records without the filler records in it."""
        left = len(piece.positions)
        for part in [piece] if self.shows_fillers else piece.without_fillers():
            left -= len(part.positions)
            yield part
        self._fillers += left

    def decoded(self, messages: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
        """Yield messages as `--decode` shows them; one that cannot be decoded is a problem, and stays as it is stored."""
        if not self.decodes:
            yield from messages
            return
        from messagestore.read.decoded import decoded

        for message in messages:
            try:
                yield from decoded(message)
            except StoreCorrupt as error:
                expected, found = str(error.expected), f"{error.reason}: {error.found}"
                self.add(Finding(self.target.path, message.physical_offset, "bad_compression", expected, found))
                yield message

    def accepts(self, message: StoredMessage) -> bool:
        """Return whether a record is a message, or fillers are shown; count those that are left out."""
        is_left_out = message.is_filler and not self.shows_fillers
        self._fillers += is_left_out
        return not is_left_out

    def report_fillers(self) -> None:
        """Report how many filler records were left out."""
        if self._fillers:
            found = "1 filler record" if self._fillers == 1 else f"{self._fillers} filler records"
            print_line(f"brokerstore: left out {found} of `recover --skip-bad`; `brokerstore dump DIR --fillers` shows them")
            self._fillers = 0

    def record_filter(self, filters: Filters) -> RecordFilter:
        """Return the filters for records; raise `click.BadParameter` for a value that no record can have."""
        if filters.key is not None and not is_utf8(filters.key):
            raise click.BadParameter(f"{filters.key!r} is not UTF-8", param_hint="--key")
        return RecordFilter(filters.topic, queue_number(filters.queue), *filters[2:])
