"""Every fact about a RocketMQ-style folder, found once: `FolderFacts`.

A tool or an engine makes one value for a folder and asks it. The value tells the kind, the parts that are read and that are
not, the sizes of log, queue and index files, whether the last stop was clean, who has the folder open, and what refuses it:

- `refuse_foreign` is for every open: queues in RocksDB and RabbitMQ's messages
- `refuse_unsupported` is for writers: also a DLedger log, unsupported parts of a store, records of an unknown version at the
  beginning of a log file, unknown queue types in `topics.json`, and timer files of an unknown layout

Everything else is checked where it is read: opening and recovery check each record that they scan. Names are listed once;
what a writer may change meanwhile is read at each call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from commitlog.entry_layout import ENTRY_HEADER_SIZE
from commitlog.layout import MAGIC_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from commitlog.offset_files import OffsetFile
from commitlog.walk import LogFiles
from consumequeue.layout import FILE_SIZE_DEFAULT as QUEUE_FILE_SIZE_DEFAULT
from indexfile import AT_REST, PAUSES_S, Shape, folder_shape, has_shape, index_paths, itemless_shape, refuse_other_shape
from indexfile.layout import ITEMS_DEFAULT, SLOTS_DEFAULT
from storageio import REAL_DISK, Disk, InvalidMessage, Kind, Mode, StoreError, UnknownStore, UnsupportedFormat
from storebytes.folder_kind import FolderKind

from .abort_file import AbortFile
from .broker_versions import BrokerVersion, known_version, shown_version
from .checkpoint import FILE_NAME as CHECKPOINT_NAME
from .checkpoint import read_checkpoint
from .folder_contents import LOG, ROCKSDB_STORE, FolderContents, Use, has_rocksdb, is_entry, is_folder
from .paths import StorePaths, replaced_folder
from .store_settings import read_settings

if TYPE_CHECKING:
    from .checkpoint import Found
    from .clean_stop import CleanStop
    from .config import StoreConfig

ROCKSDB_TEXT = "RocksDB queues"
DLEDGER_TEXT = "a DLedger (Raft) log"
SUPPORTED_STORES = "a commit log and queues in files"
ROCKSDB_PARTS = (
    "consumequeue",
    "config/topics",
    "config/subscriptionGroups",
    "config/consumerOffsets",
    "config/rdb",
    "config/metadata",
)
_RABBITMQ_FOLDERS = ("msg_store_persistent", "msg_stores")
_REPAIR_KEEPS = (("compaction/compactionLog", "compacted topics"), ("kvStore", "the state of pop consumers"))
_HEADS = {magic.to_bytes(4, "big", signed=True) for magic in (0, MAGIC_V1, MAGIC_V2, MAGIC_BLANK)}
_RECORD_HEADS = {magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)}
_QUEUE_TYPE = re.compile(rb'"queue\.type"\s*:\s*"((?:[^"\\]|\\.)*)"')
_QUEUE_TYPES = ("BatchCQ", "SimpleCQ")
TOPICS_SIZE_MAX = 1 << 30


_ADVICE = {  # what to do about a part that only a broker writes
    ROCKSDB_STORE: "only a broker changes it; `brokerstore copy` makes a store with index and timers in files",
    "consumequeue_rocksdb": (
        "only a broker changes both kinds of queues; `brokerstore copy` puts the messages into a new store with queues in files"
    ),
}


class FolderFacts:
    """What one folder holds and how it was left."""

    def __init__(
        self, path: str, disk: Disk = REAL_DISK, commit_log: str | None = None, contents: FolderContents | None = None
    ) -> None:  # fmt: skip
        """Nothing is read yet, but for `contents`. `commit_log` names the folders of a log outside the store, with commas."""
        self.path = path
        self.disk = disk
        self.contents = contents or FolderContents(disk, path)
        self.abort_file = AbortFile(disk, path)
        self.checkpoint_path = os.path.join(path, CHECKPOINT_NAME)
        self._commit_log = commit_log
        self._has_other_log = bool(commit_log)
        self._shape: Shape | None = None

    # What it is

    @cached_property
    def commit_log(self) -> str | None:
        """The folders of a log that is not in `commitlog`, with commas: those given, or of a DLedger log."""
        logs = self.contents.dledger_logs
        if self._commit_log or not logs:
            return self._commit_log
        names = [LOG, *logs] if self.contents.has_folder(LOG) else logs  # of a store that was converted, both
        return ",".join(os.path.join(self.path, name) for name in names)

    @cached_property
    def paths(self) -> StorePaths:
        """The paths inside the folder."""
        return StorePaths(self.path, self.commit_log)

    @property
    def is_store(self) -> bool:
        """Whether this is a store with queues in files, which a reader opens."""
        return self.kind in (FolderKind.ROCKETMQ, FolderKind.DLEDGER)

    @property
    def kind(self) -> FolderKind:
        """The kind; a folder that only lacks a log, which is elsewhere, is a store, whose queues may be in RocksDB."""
        found = self.contents.kind
        return FolderKind.ROCKETMQ if found is None or (self._has_other_log and found is not FolderKind.ROCKSDB) else found

    @cached_property
    def log_folders(self) -> list[str]:
        """The folders of the log that a reader takes; of a log outside the store, all that were named."""
        if self.kind is FolderKind.LOG:
            return [self.path]
        return self._log_folders if self.commit_log or LOG in self.contents.entries else []

    @property
    def _log_folders(self) -> list[str]:
        text = self.paths.commit_log
        return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip())) if self.commit_log else [text]

    @cached_property
    def is_rocksdb(self) -> bool:
        """Whether the store has its queues in RocksDB, or had them before they were lost or a rebuild was killed.

        Such a store has its configuration in RocksDB too, and no queues in files.
        """
        from .rocksdb.config import VERSION_2, has_config, read_config

        if not has_config(self.disk, self.path):
            return False
        queues = self.paths.queues
        if self.disk.stat(queues) is not None:
            has_files = any(entry.kind is Kind.FOLDER for entry in self.disk.list(queues))
            return has_rocksdb(self.disk, queues) and not has_files
        if has_rocksdb(self.disk, replaced_folder(self.path, "consumequeue")):
            return True
        if has_rocksdb(self.disk, os.path.join(self.path, VERSION_2)):
            return False
        with suppress(StoreError):  # version 1 of the configuration is one that only such a broker writes
            return bool(read_config(self.disk, self.path).topics)
        return False

    def has(self, name: str) -> bool:
        """Return whether the folder has an entry of this name now."""
        return self.disk.stat(os.path.join(self.path, name)) is not None

    # Who has it, and how it was left

    @property
    def is_in_use(self) -> bool:
        """Whether a broker or a writer of this library holds the lock of the store."""
        root = os.path.dirname(os.path.abspath(self.path)) if self.kind is FolderKind.LOG else self.path
        return self.disk.is_locked(os.path.join(root, "lock"))

    @cached_property
    def was_clean(self) -> bool:
        """Whether the last stop was clean, even if a recovery of it was interrupted since."""
        return "abort" not in self.contents.entries or self.abort_file.was_clean

    # How far the store reaches, as the files that a writer leaves say; `recovery.witnesses` compares them with the log

    @property
    def checkpoint(self) -> Found:
        """The times up to which log, queues and index were synced."""
        return read_checkpoint(self.disk, self.checkpoint_path)

    @property
    def clean_stop(self) -> CleanStop | None:
        """The end of the log at the last clean stop, None if it is not known."""
        from .clean_stop import read_clean

        return read_clean(self.disk, self.path)

    def broker_version(self, given: str | None = None) -> BrokerVersion:
        """Return the version of the broker whose store this is.

        It is the newest one that `given` or the last writer's settings name, or that the folder shows.
        """
        shown = shown_version(
            has_rocksdb_store=ROCKSDB_STORE in self.contents.entries,
            has_logics_offset=self.checkpoint.values.logics_physical_offset > 0,
        )  # fmt: skip
        named = known_version(given or read_settings(self.disk, self.paths.own).broker_version)
        return max(shown, named, key=lambda version: version.order)

    # Sizes

    def index_shape(self, pauses_s: Sequence[float] = AT_REST) -> Shape | None:
        """Return the slot layout that the items show, else the one kept for files of this length; None if it is not known.

        Files of an index never get another layout, so a layout that was found is not looked for again.
        """
        if self._shape is None:
            self._shape = self._shape_in(self.paths.index, pauses_s)
        return self._shape

    def _shape_in(self, folder: str, pauses_s: Sequence[float]) -> Shape | None:
        return folder_shape(self.disk, folder, self._kept_shape(), pauses_s)

    def _kept_shape(self) -> Shape | None:
        """Return the slot layout of the last writer's index, or None."""
        settings = read_settings(self.disk, self.paths.own)
        return Shape(settings.index_slots, settings.index_items) if settings.index_slots else None

    def has_index_layout(self) -> bool:
        """Return whether index files that hold keys show their slots."""
        if self.index_shape(PAUSES_S) is not None:
            return True
        paths = index_paths(self.disk, self.paths.index)[0]
        return not paths or itemless_shape(self.disk, paths) is not None

    @property
    def keeps_no_index(self) -> bool:
        """Whether the broker of this store writes no index files: since 5.4.0 indexFileWriteEnable=false leaves none at all."""
        is_lost = self.disk.stat(replaced_folder(self.path, "index")) is not None
        return ROCKSDB_STORE in self.contents.entries and "index" not in self.contents.entries and not is_lost and self.has(LOG)

    def with_sizes(self, config: StoreConfig, *, is_locked: bool = False, guesses: bool = False) -> StoreConfig:
        """Return the configuration with missing sizes detected from the files, or set to RocketMQ's defaults.

        `is_locked` means that the caller holds the store's lock, so that no other process writes.  `guesses` accepts the file
        size alone as the slot layout of an index without items.  A reader must not guess, because a writer may know better; the
        layout that the last writer kept is not a guess.
        """
        from consumequeue import find_file_size

        disk, paths = self.disk, self.paths
        queue_size = None
        shape = self._shape
        for folder in (paths.index, replaced_folder(self.path, "index")):
            if shape is None and disk.stat(folder) is not None:
                shape = self._shape_in(folder, PAUSES_S if not is_locked and self.abort_file.is_present else AT_REST)
                if shape is None and (guesses or is_locked):
                    shape = itemless_shape(disk, index_paths(disk, folder)[0])
        shape = shape or self._kept_shape()
        for folder in (paths.queues, replaced_folder(self.path, "consumequeue")):
            if queue_size is None and disk.stat(folder) is not None:
                queue_size = find_file_size(disk, folder)
        has_ext = disk.stat(paths.ext) is not None
        ext_size = find_file_size(disk, paths.ext) if has_ext else None
        return config.but(
            message_index_enable=config.message_index_enable and not self.keeps_no_index,
            enable_consume_queue_ext=has_ext if config.enable_consume_queue_ext is None else config.enable_consume_queue_ext,
            mapped_file_size_consume_queue_ext=config.mapped_file_size_consume_queue_ext or ext_size,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue or queue_size or QUEUE_FILE_SIZE_DEFAULT,
            max_hash_slot_num=config.max_hash_slot_num or (shape.slots if shape else SLOTS_DEFAULT),
            max_index_num=config.max_index_num or (shape.items if shape else ITEMS_DEFAULT),
        )

    def files(self, size_bytes: int | None = None, end_offset: int | None = None) -> LogFiles:
        """Return the log files that are there, up to an offset."""
        return LogFiles(self.disk, self.log_folders, size_bytes, end_offset=end_offset)

    # Refusals; none changes anything

    def refuse_unread(self) -> None:
        """Raise `UnsupportedFormat` for a kind that is recognised but cannot be read."""
        if self.kind is FolderKind.ROCKSDB:
            raise self._unsupported(ROCKSDB_TEXT)
        if len(self.contents.dledger_logs) > 1 and not self._has_other_log:
            raise UnsupportedFormat(
                "store with", file=self.path, found=f"the logs of {len(self.contents.dledger_logs)} DLedger peers",
                supported="one of them, named with --commitlog",
            )  # fmt: skip

    def _unsupported(self, found: str) -> UnsupportedFormat:
        return UnsupportedFormat("store with", file=self.path, found=found, supported=SUPPORTED_STORES)

    def refuse_foreign(self, *, has_rocksdb: bool = False) -> None:
        """Raise an error for a folder of another format: `UnsupportedFormat`, or `UnknownStore` for RabbitMQ's.

        `has_rocksdb` allows queues in RocksDB.
        """
        if not self.contents.entries.keys().isdisjoint(_RABBITMQ_FOLDERS):
            raise UnknownStore(f"{self.path}: RabbitMQ's messages lie here; a RocketMQ store would hide them")
        if self.contents.has_rocksdb_queues and not self.contents.has_both_queues and not has_rocksdb:
            raise self._unsupported(ROCKSDB_TEXT)

    def refuse_dledger(self) -> None:
        """Raise `UnsupportedFormat` for a store that a DLedger broker continues; a copy of it can be written to."""
        if self.contents.has_dledger_log:
            refused = self._unsupported(DLEDGER_TEXT)
            refused.add_note(f"run: brokerstore copy {self.path} NEW  (an ordinary store with the same messages)")
            raise refused

    def _file_without_entries(self, folder: str) -> str | None:
        """Return the first file of a DLedger log that begins with a record: a file of an ordinary log, moved there."""
        for found in LogFiles(self.disk, [os.path.join(self.path, folder)]).files:
            with self.disk.open(found.path, Mode.READ) as file:
                if file.read(MAGIC_AT, 4) in _RECORD_HEADS:
                    return found.path
        return None

    def refuse_unsupported(self, *, reads_log: bool = True, has_rocksdb: bool = False, has_dledger: bool = False) -> None:
        """Raise `UnsupportedFormat` for a store that must not be written to.

        Callers that scan the whole log can turn off `reads_log`. `has_rocksdb` allows the databases that a broker with
        queues in RocksDB has, `has_dledger` a DLedger log.
        """
        from .timers.timer_log import refuse_unknown_layout

        self.refuse_foreign(has_rocksdb=has_rocksdb)
        if not has_dledger:
            self.refuse_dledger()
        for path in map(self._file_without_entries, self.contents.dledger_logs):
            if path is not None:
                raise UnsupportedFormat(
                    "log file with", file=path, found="records without entries", supported="DLedger's entries"
                )
        for part in self.contents.parts:
            if part.use is Use.UNSUPPORTED and not (has_rocksdb and part.name in ROCKSDB_PARTS):
                path = os.path.join(self.path, part.name)
                error = UnsupportedFormat("store part:", file=path, found=part.what, supported=SUPPORTED_STORES)
                if advice := _ADVICE.get(part.name):
                    error.add_note(advice)
                raise error
        if "config/topics.json" in self.contents.entries:
            _refuse_queue_types(self.disk, os.path.join(self.path, "config", "topics.json"))
        if not self.contents.entries.keys().isdisjoint(("timerwheel", "timerlog")):
            refuse_unknown_layout(self.disk, self.path)
        folders = sorted(set(self._log_folders)) if reads_log else []
        for file in LogFiles(self.disk, [folder for folder in folders if is_folder(self.disk, folder)]).files:
            _refuse_first_record(self.disk, file)

    def refuse_other_sizes(self, config: StoreConfig, given: StoreConfig) -> None:
        """Raise `StoreCorrupt` if a size of `given` is not that of the files.  `config` has the detected sizes.

        Without this check a put would reach the log before its queue fails, and a query would find nothing.
        """
        from consumequeue import refuse_other_file_size

        if given.mapped_file_size_consume_queue and self.disk.stat(self.paths.queues) is not None:
            refuse_other_file_size(self.disk, self.paths.queues, given.mapped_file_size_consume_queue)
        slots, items = config.max_hash_slot_num, config.max_index_num
        is_shape_given = given.max_hash_slot_num or given.max_index_num
        if is_shape_given and slots and items and self.disk.stat(self.paths.index) is not None:
            refuse_other_shape(self.disk, index_paths(self.disk, self.paths.index)[0], Shape(slots, items))

    def refuse_unknown_shape(self, config: StoreConfig) -> None:
        """Raise `InvalidMessage` if keys would be written to files whose number of slots is not known.

        Only items show it. A file whose length matches RocketMQ's defaults is taken to have the default layout.
        """
        is_given = config.max_hash_slot_num and config.max_index_num
        paths = index_paths(self.disk, self.paths.index)[0]
        if is_given or not config.message_index_enable or itemless_shape(self.disk, paths) is None:
            return
        if not any(has_shape(self.disk, paths, shape) for shape in (Shape(SLOTS_DEFAULT, ITEMS_DEFAULT), self._kept_shape())):
            raise InvalidMessage(
                f"{self.paths.index}: the files have no key yet and do not say how many slots they have; give the broker's "
                "max_hash_slot_num and max_index_num (--index-slots and --index-num)"
            )

    def cut_refusals(self) -> list[str]:
        """Return reasons against cutting the log: files that no repair changes and that may point behind the cut."""
        return [f"{name}: {what} may point behind the cut" for name, what in _REPAIR_KEEPS if self.has(name)]


def refuse_unknown_end(files: LogFiles) -> None:
    """Raise `UnsupportedFormat` if the headers of the last file lead to a record of an unknown version.

    This is for writers beside a log that no open scans.
    """
    from commitlog.findings import UNKNOWN_VERSION, unsupported_record

    problem = files.end().problem
    if problem is not None and problem.kind == UNKNOWN_VERSION:
        raise unsupported_record(problem)


def _refuse_queue_types(disk: Disk, path: str) -> None:
    """Search the file's bytes for unknown queue types, without parsing it: a large table is parsed once, by its reader."""
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FILE or entry.size_bytes > TOPICS_SIZE_MAX:
        return
    with disk.open(path, Mode.READ) as file:
        data = file.read(0, entry.size_bytes)
    for found in _QUEUE_TYPE.finditer(data):
        queue_type = found[1].decode("utf-8", "replace")
        if queue_type not in _QUEUE_TYPES:
            raise UnsupportedFormat(
                "queue.type", file=path, offset=found.start(), found=repr(queue_type), supported=", ".join(_QUEUE_TYPES)
            )


def _refuse_first_record(disk: Disk, found: OffsetFile) -> None:
    """Check the first record's version; only an unknown magic number costs more than one read."""
    with disk.open(found.path, Mode.READ) as file:
        head = file.read(0, ENTRY_HEADER_SIZE)
    if is_entry(head):
        raise UnsupportedFormat(
            "log file with", file=found.path, found="the entries of a DLedger log", supported=SUPPORTED_STORES
        )
    head = head[MAGIC_AT : MAGIC_AT + 4]
    if len(head) < 4 or head in _HEADS:
        return
    from commitlog import MappedFile, is_unknown_version
    from commitlog.findings import Location, unknown_version, unsupported_record

    with MappedFile.of(disk, found, writable=False) as mapped:
        if is_unknown_version(mapped.view, 0, found.start_offset):
            raise unsupported_record(unknown_version(found.path, Location(mapped.view, 0, found.start_offset)))
