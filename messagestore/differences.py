"""Report where a configuration and a folder do not fit together, before either is used.

A broker started with other sizes refuses the folder, or worse: it maps index files at the configured size and misreads them.
Nothing is changed here, and only names, sizes and a few records are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from commitlog import CHECK_POSITION, LogPaths
from commitlog._record_cy import check, is_protected
from commitlog.offset_files import common_file_size
from commitlog.topic_names import LMQ_PREFIX, SCHEDULE_TOPIC
from consumequeue import find_file_size, queue_folders
from consumequeue.layout import BATCH_UNIT_SIZE, round_up
from indexfile import AT_REST, find_shape, index_paths
from indexfile.layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE
from storageio import Disk, Mode, StoreError

from .config import delay_times_ms
from .folder import FolderFacts

EXAMINED_AT = 1 << 20  # bytes read of a log file, for its first record
ROCKSDB = "defaultRocksDB"
Found = int | bool | str


class Difference(NamedTuple):
    """A setting that the folder contradicts.

    `name` is its name in `StoreConfig`, `configured` and `found` are the two values, `where` is the part of the folder.
    """

    name: str
    configured: Found
    found: Found
    where: str

    def __str__(self) -> str:
        """Return the difference as a sentence."""
        return f"{self.name} is {self.configured}, {self.where} has {self.found}"


def config_differences(root: str, settings: Mapping[str, object], disk: Disk) -> list[Difference]:
    """Return every setting that the folder contradicts.

    `settings` has names of `StoreConfig`, for example from `read_broker_properties`. Missing settings and None are not
    compared.
    """
    given = {name: value for name, value in settings.items() if isinstance(value, int | bool | str)}
    elsewhere = str(given.get("store_path_commit_log") or "")
    is_there = bool(elsewhere) and all(
        disk.stat(part.strip()) for part in elsewhere.split(",")
    )  # the path may exist only on the broker's host
    folder = FolderFacts(root, disk, elsewhere if is_there else None)
    return [difference for compare in _COMPARISONS for difference in compare(folder, given)]


def _log_files(folder: FolderFacts) -> list[str]:
    paths = LogPaths.parse(folder.disk, folder.paths.commit_log)
    return [file.path for file in paths.all_files() if file.size_bytes] if paths.present == paths.folders else []


def _sizes(folder: FolderFacts, given: Mapping[str, Found]) -> Iterator[Difference]:
    """Compare the sizes of log and queue files."""
    name = "mapped_file_size_commit_log"
    if name in given and _log_files(folder):
        found = common_file_size(LogPaths.parse(folder.disk, folder.paths.commit_log).all_files())
        if found is not None and found != given[name]:
            yield Difference(name, given[name], found, "commitlog")
    units = (
        ("mapped_file_size_consume_queue", "consumequeue", 20),
        ("mapped_file_size_consume_queue_ext", "consumequeue_ext", 1),
        ("mapper_file_size_batch_consume_queue", "batchconsumequeue", BATCH_UNIT_SIZE),
    )
    for name, part, unit in units:
        if name in given and folder.has(part):
            found = find_file_size(folder.disk, os.path.join(folder.path, part))
            if found is not None and found != round_up(int(given[name]), unit):
                yield Difference(name, given[name], found, part)


def _index(folder: FolderFacts, given: Mapping[str, Found]) -> Iterator[Difference]:
    """Compare slots and items of index files; only their size if the files do not tell more."""
    paths = index_paths(folder.disk, folder.paths.index)[0] if folder.has("index") else []
    shape = find_shape(folder.disk, paths, AT_REST) if paths else None
    names = ("max_hash_slot_num", "max_index_num")
    if shape is not None:
        for name, found in zip(names, (shape.slots, shape.items), strict=True):
            if name in given and given[name] != found:
                yield Difference(name, given[name], found, "index")
    elif paths and all(name in given for name in names):
        expected = HEADER_SIZE + SLOT_SIZE * int(given[names[0]]) + ITEM_SIZE * int(given[names[1]])
        entry = folder.disk.stat(paths[0])
        if entry is not None and entry.size_bytes != expected:
            yield Difference(names[0], given[names[0]], f"files of {entry.size_bytes} bytes, not {expected}", "index")


def _checksum(folder: FolderFacts, given: Mapping[str, Found]) -> Iterator[Difference]:
    """Compare whether the newest file's first record has the whole-record checksum."""
    name = "enabled_append_prop_crc"
    for path in reversed(_log_files(folder) if name in given else []):
        with folder.disk.open(path, Mode.READ) as file:
            data = file.read(0, EXAMINED_AT)
        size = check(data, 0, len(data), int(os.path.basename(path)), CHECK_POSITION)
        if size > 0:
            found = is_protected(data, 0, size)
            if found != given[name]:
                yield Difference(name, given[name], found, os.path.basename(path))
            return


def _kinds(folder: FolderFacts, given: Mapping[str, Found]) -> Iterator[Difference]:
    """Compare the store type: queues in RocksDB, and a Raft log."""
    has_rocks, has_raft = folder.contents.has_rocksdb_queues, folder.contents.has_dledger_log
    is_other = "store_type" in given and (given["store_type"] == ROCKSDB) != has_rocks
    if is_other and (has_rocks or folder.has("consumequeue")):
        found = "queues in RocksDB" if has_rocks else "queues in files"
        yield Difference("store_type", given["store_type"], found, "consumequeue")
    name = "enable_dledger_commit_log"
    if name in given and given[name] != has_raft and (has_raft or _log_files(folder)):
        yield Difference(name, given[name], has_raft, "the folder")


def _switches(folder: FolderFacts, given: Mapping[str, Found]) -> Iterator[Difference]:
    """Compare switches for kinds of queues that the folder has and the configuration would not maintain."""
    has_lmqs = any(topic.startswith(LMQ_PREFIX) for topic, _ in queue_folders(folder.disk, folder.paths.queues))
    for name in ("enable_lmq", "enable_multi_dispatch"):
        if has_lmqs and given.get(name) is False:
            yield Difference(name, False, "LMQs", "consumequeue")
    if given.get("enable_consume_queue_ext") is False and folder.has("consumequeue_ext"):
        yield Difference("enable_consume_queue_ext", False, "extended units", "consumequeue_ext")


def _levels(folder: FolderFacts, given: Mapping[str, Found]) -> Iterator[Difference]:
    """Compare the number of delay levels with the highest level that has a queue."""
    name = "message_delay_level"
    if name not in given:
        return
    try:
        levels = len(delay_times_ms(str(given[name])))
    except StoreError:
        yield Difference(name, given[name], "no levels that can be read", "the configuration")
        return
    queues = queue_folders(folder.disk, folder.paths.queues)
    highest = max((queue_id + 1 for topic, queue_id in queues if topic == SCHEDULE_TOPIC), default=0)
    if highest > levels:
        yield Difference(name, f"{levels} levels", f"messages of level {highest}", "consumequeue")


_COMPARISONS: tuple[Callable[[FolderFacts, Mapping[str, Found]], Iterator[Difference]], ...] = (
    _sizes, _index, _checksum, _kinds, _switches, _levels,
)  # fmt: skip
