"""Change several files of a folder together, so that a kill leaves the old files or a change that the next run completes.

brokerstore/staged/N           new files, synced
brokerstore/staged/commit.json which file each becomes; written when all are staged
brokerstore/cut/               the replaced files
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from storageio import Disk, Kind, Mode, StoreCorrupt, read_head, replace_file
from storebytes.finding import Finding

from .format.layout import CUT_FOLDER, SIDECAR_FOLDER

STAGED_FOLDER = "staged"
_COMMIT = "commit.json"
_COMMIT_SIZE_MAX = 64 << 20


class Change(NamedTuple):
    """A new content of a file; without `pieces` the file, or the folder, is moved aside."""

    kind: str
    file: str
    reason: str
    pieces: Callable[[], Iterable[bytes | memoryview]] | None = None


@dataclass
class RepairPlan:
    """The changes that repair quorum queues or a stream.

    `kept` counts messages, `lost` log entries or stream offsets without bytes.  `unrepaired` is damage that stays, with the
    reason in `found`.
    """

    changes: list[Change] = field(default_factory=list)
    kept: int = 0
    lost: int = 0
    problems: list[Finding] = field(default_factory=list)
    unrepaired: list[Finding] = field(default_factory=list)


def stage(disk: Disk, path: str, changes: list[Change]) -> None:
    """Write the new files and the list of changes; nothing outside of `brokerstore/` changes before `commit`."""
    folder = f"{path}/{SIDECAR_FOLDER}/{STAGED_FOLDER}"
    disk.make_folder(folder)
    rows = []
    for number, change in enumerate(sorted(changes, key=lambda change: change.pieces is not None)):
        if change.pieces is not None:
            _write(disk, f"{folder}/{number}", change.pieces())
        rows.append([change.file, None if change.pieces is None else str(number)])
    disk.sync_folder(folder)
    replace_file(disk, f"{folder}/{_COMMIT}", json.dumps(rows).encode())


def _write(disk: Disk, target: str, pieces: Iterable[bytes | memoryview]) -> None:
    file = disk.open(target, Mode.CREATE)
    try:
        file.truncate(0)
        at = 0
        for piece in pieces:
            file.write(at, piece)
            at += len(piece)
        file.sync()
    finally:
        file.close()


def is_staged(disk: Disk, path: str) -> bool:
    """Return whether an earlier run was interrupted in `commit`."""
    return disk.stat(f"{path}/{SIDECAR_FOLDER}/{STAGED_FOLDER}/{_COMMIT}") is not None


def commit(disk: Disk, path: str, *, keep_backup: bool = True) -> None:
    """Carry out the staged changes; a second call continues where the first one stopped."""
    folder = f"{path}/{SIDECAR_FOLDER}/{STAGED_FOLDER}"
    for file, staged in _rows(disk, f"{folder}/{_COMMIT}"):
        if staged is None:
            _put_aside(disk, path, file, keep_backup=keep_backup)
        elif disk.stat(f"{folder}/{staged}") is not None:
            _put_aside(disk, path, file, keep_backup=keep_backup)
            above = f"{path}/{file}".rpartition("/")[0]
            disk.make_folder(above)
            disk.rename(f"{folder}/{staged}", f"{path}/{file}")
            disk.sync_folder(above)
    discard(disk, path)


def discard(disk: Disk, path: str) -> None:
    """Delete what is staged, the list of changes first."""
    folder = f"{path}/{SIDECAR_FOLDER}/{STAGED_FOLDER}"
    if disk.stat(folder) is None:
        return
    names = [entry.name for entry in disk.list(folder)]
    for name in sorted(names, key=lambda name: name != _COMMIT):
        disk.delete(f"{folder}/{name}")
        disk.sync_folder(folder)
    disk.delete_folder(folder)


def _rows(disk: Disk, path: str) -> list[tuple[str, str | None]]:
    data = read_head(disk, path, _COMMIT_SIZE_MAX) or b"[]"
    try:
        rows = json.loads(data)
        found = [(file, staged) for file, staged in rows if isinstance(file, str) and isinstance(staged, str | None)]
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreCorrupt("not a list of changes", file=path, offset=0, expected="file, number", found=str(error)) from error
    if len(found) != len(rows) or any(_leaves(file) or (staged is not None and not staged.isdigit()) for file, staged in found):
        raise StoreCorrupt("not a list of changes", file=path, offset=0, expected="file, number", found=str(rows)[:60])
    return found


def _leaves(file: str) -> bool:
    return file.startswith("/") or ".." in file.split("/")


def _put_aside(disk: Disk, path: str, file: str, *, keep_backup: bool) -> None:
    source = f"{path}/{file}"
    if disk.stat(source) is None:
        return
    if not keep_backup:
        _delete(disk, source)
    else:
        folder = f"{path}/{SIDECAR_FOLDER}/{CUT_FOLDER}"
        disk.make_folder(folder)
        target = plain = f"{folder}/{file.replace('/', '__')}"
        number = 0
        while disk.stat(target) is not None:  # of an earlier recovery
            number += 1
            target = f"{plain}.{number}"
        disk.rename(source, target)
        disk.sync_folder(folder)
    disk.sync_folder(source.rpartition("/")[0])


def _delete(disk: Disk, path: str) -> None:
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FOLDER:
        disk.delete(path)
        return
    for part in disk.list(path):
        _delete(disk, f"{path}/{part.name}")
    disk.delete_folder(path)
