"""Staged parts: the files that tasks write for the commit, in `<store>/brokerstore/sink/<sink id>/`.

A part is an Arrow stream of `columns.staged_schema`.  The task syncs the file and its name before it ends and returns a
`SinkPart` to the driver: file name, length, CRC and the largest record.  The commit writes the list of parts that it appends to
`commit.json` beside them (`commit.py`), and deletes the parts afterwards.  A failing task deletes its part; the part of a
killed task is deleted with the folder.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from commitlog.layout import CRC_SIZE, HOST_GROWTH, RECORD_SIZE_MIN
from storageio import Disk, DiskError, File, Kind, Mode, StoreCorrupt, random_bytes

from .columns import OWN_SIZE_MAX, staged_schema

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = os.path.join("brokerstore", "sink")
MANIFEST = "commit.json"
SUFFIX = ".part"
ROWS_MAX = 8192  # in a piece; the commit holds one piece in memory
PIECE_BYTES = 8 << 20  # of bodies in a piece; a single body may be larger
STALE_MS = 7 * 24 * 3600 * 1000  # no job resumes after this time
CRC_PIECE = 1 << 20
FILES_MAX = 1_000_000  # most entries of a folder that are deleted in one call


class SinkPart(NamedTuple):
    """The staged messages of one task; `name` is empty if there are none."""

    partition: int
    name: str = ""
    rows: int = 0
    size_bytes: int = 0
    crc: int = 0
    topics: tuple[str, ...] = ()
    largest_bytes: int = 0  # upper bound of its largest record
    queue_ids: tuple[int, ...] = ()  # of each of `topics`, the largest that a row names; -1: none


def sink_folder(root: str, sink_id: str) -> str:
    """Return the folder of one query's or job's parts."""
    return os.path.join(root, FOLDER, sink_id)


class PartWriter:
    """Writes one part; call `finish` or `discard` in the end."""

    def __init__(self, disk: Disk, root: str, sink_id: str, partition: int) -> None:
        """Choose the file name; the file is created with the first message."""
        self._disk = disk
        self._folder = sink_folder(root, sink_id)
        self._name = f"{partition:05d}-{random_bytes(8).hex()}{SUFFIX}"
        self._partition = partition
        self._target: _Target | None = None
        self._rows = self._largest = 0
        self._topics: dict[str, int] = {}  # with the largest queue id that a row names

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch of `staged_schema`."""
        import pyarrow as pa  # 150 ms
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        if self._target is None:
            self._target = self._open()
        for piece in _pieces(batch):
            self._stream.write_batch(piece)
        self._rows += batch.num_rows
        largest = pa.Table.from_batches([batch]).group_by("topic").aggregate([("queue_id", "max")])
        for topic, queue_id in zip(largest["topic"].to_pylist(), largest["queue_id_max"].to_pylist(), strict=True):
            self._topics[topic] = max(queue_id, self._topics.get(topic, queue_id))
        sizes = pc.add(pc.binary_length(batch.column("body")), pc.binary_length(batch.column("properties")))
        names = pc.binary_length(batch.column("topic"))
        fixed = RECORD_SIZE_MIN + OWN_SIZE_MAX + CRC_SIZE + 2 * HOST_GROWTH
        self._largest = max(self._largest, fixed + pc.max(pc.add(sizes, names)).as_py())

    def _open(self) -> _Target:
        import pyarrow as pa  # 150 ms

        self._disk.make_folder(self._folder)
        target = _Target(self._disk.open(os.path.join(self._folder, self._name), Mode.CREATE))
        self._stream = pa.ipc.new_stream(pa.PythonFile(target, "w"), staged_schema())
        return target

    def finish(self) -> SinkPart:
        """Sync the file and its name, and return the part."""
        if self._target is None:
            return SinkPart(self._partition)
        self._stream.close()
        target, self._target = self._target, None
        try:
            target.file.sync()
        finally:
            target.file.close()
        self._disk.sync_folder(self._folder)
        topics, queue_ids = tuple(self._topics), tuple(self._topics.values())
        size_bytes, crc = target.size_bytes, target.crc
        return SinkPart(self._partition, self._name, self._rows, size_bytes, crc, topics, self._largest, queue_ids)

    def discard(self) -> None:
        """Delete the file if it exists."""
        if self._target is not None:
            self._target.file.close()
            self._target = None
        path = os.path.join(self._folder, self._name)
        if self._disk.stat(path) is not None:
            self._disk.delete(path)


class _Target:
    """A file object for Arrow that counts bytes and computes the CRC."""

    closed = False

    def __init__(self, file: File) -> None:
        self.file = file
        self.size_bytes = 0
        self.crc = 0

    def write(self, data: memoryview) -> int:
        self.file.write(self.size_bytes, data)
        self.crc = zlib.crc32(data, self.crc)
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        """Do nothing: `finish` syncs the file before it closes it."""


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices small enough for a commit to hold as objects."""
    import numpy as np  # 80 ms
    import pyarrow.compute as pc

    ends = np.cumsum(np.asarray(pc.binary_length(batch.column("body"))), dtype=np.int64)
    at = 0
    while at < batch.num_rows:
        before = int(ends[at - 1]) if at else 0
        stop = int(np.searchsorted(ends, before + PIECE_BYTES, "right"))
        stop = min(max(at + 1, stop), at + ROWS_MAX)
        yield batch.slice(at, stop - at)
        at = stop


def check_part(disk: Disk, root: str, sink_id: str, part: SinkPart) -> None:
    """Raise `StoreCorrupt` for a part that differs from what its task wrote, `DiskError` for a missing one."""
    path = os.path.join(sink_folder(root, sink_id), part.name)
    with disk.open(path, Mode.READ) as file:
        size = file.size()
        if size != part.size_bytes:
            raise StoreCorrupt("staged part", file=path, offset=0, expected=f"{part.size_bytes} bytes", found=f"{size} bytes")
        crc = 0
        for at in range(0, size, CRC_PIECE):
            crc = zlib.crc32(file.read(at, CRC_PIECE), crc)
        if crc != part.crc:
            raise StoreCorrupt("staged part", file=path, offset=0, expected=f"CRC {part.crc:08x}", found=f"{crc:08x}")


def read_part(disk: Disk, root: str, sink_id: str, part: SinkPart, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield the pieces of a checked part without its first `skip` rows."""
    import pyarrow as pa  # 150 ms

    path = os.path.join(sink_folder(root, sink_id), part.name)
    with disk.open(path, Mode.READ) as file, file.map(part.size_bytes, writable=False) as held:
        for batch in pa.ipc.open_stream(pa.py_buffer(held.view)):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)


# Deletion


def clear(disk: Disk, root: str, sink_id: str) -> None:
    """Delete the folder of one query or job, and its parent if that is empty then."""
    folder = sink_folder(root, sink_id)
    if disk.stat(folder) is not None:
        for entry in _files(disk, folder):
            disk.delete(os.path.join(folder, entry))
    for emptied in (folder, os.path.join(root, FOLDER)):
        _delete_if_empty(disk, emptied)


def clear_new(disk: Disk, root: str) -> None:
    """Delete the empty folders that an aborted job created for a new store."""
    for emptied in (os.path.join(root, os.path.dirname(FOLDER)), root):
        _delete_if_empty(disk, emptied)


def _delete_if_empty(disk: Disk, folder: str) -> None:
    """Delete an empty folder; it stays if another process creates an entry meanwhile."""
    if disk.stat(folder) is not None and not disk.list(folder):
        with contextlib.suppress(DiskError):
            disk.delete_folder(folder)


def clear_stale(disk: Disk, root: str, now_ms: int) -> list[str]:
    """Delete parts of jobs that were killed before their commit over a week ago; return the sink ids."""
    folder = os.path.join(root, FOLDER)
    if disk.stat(folder) is None:
        return []
    gone = []
    for entry in disk.list(folder):
        inside = os.path.join(folder, entry.name)
        if entry.kind is not Kind.FOLDER or disk.stat(os.path.join(inside, MANIFEST)) is not None:
            continue
        newest = max([entry.modified_ms, *(part.modified_ms for part in disk.list(inside))])
        if now_ms - newest > STALE_MS:
            clear(disk, root, entry.name)
            gone.append(entry.name)
    return gone


def _files(disk: Disk, folder: str) -> Iterable[str]:
    """Return the files that this module created; other files stay, and so does their folder."""
    ours = (SUFFIX, MANIFEST, MANIFEST + ".new")
    return [entry.name for entry in disk.list(folder)[:FILES_MAX] if entry.kind is Kind.FILE and entry.name.endswith(ours)]
