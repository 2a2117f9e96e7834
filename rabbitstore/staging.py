"""Change several files of a folder together, so that a kill leaves the old files or a change that the next run completes.

brokerstore/staged/N           new files, synced
brokerstore/staged/commit.json which file each becomes; written when all are staged
brokerstore/cut/               the replaced files
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from storageio import Disk, Kind, Mode, StoreCorrupt, read_head, replace_file
from storebytes.plan import Cost, Step

from .format.layout import CUT_FOLDER, SIDECAR_FOLDER

Pieces = Callable[[], Iterable[bytes | memoryview]]
STAGED = f"{SIDECAR_FOLDER}/staged"
_COMMIT = "commit.json"
_COMMIT_SIZE_MAX = 64 << 20


class Staging:
    """The changes of one plan: a step stages each, and the last step puts all in place."""

    def __init__(self, disk: Disk, path: str, *, keep_backup: bool = True) -> None:
        """Set the folder; nothing is written."""
        self.disk = disk
        self.path = path
        self.keep_backup = keep_backup
        self._rows: list[tuple[str, str | None]] = []

    def stage(self, file: str, pieces: Pieces | None) -> str:
        """Write the new content of a file; without `pieces` the file, or the folder, will be moved aside."""
        folder = f"{self.path}/{STAGED}"
        self.disk.make_folder(folder)
        number = None if pieces is None else str(len(self._rows))
        if pieces is not None:
            _write(self.disk, f"{folder}/{number}", pieces())
        self._rows.append((file, number))
        return ""

    def commit(self) -> str:
        """Write the list of changes, and carry it out: what is moved aside first."""
        folder = f"{self.path}/{STAGED}"
        self.disk.make_folder(folder)
        self.disk.sync_folder(folder)
        rows = sorted(self._rows, key=lambda row: row[1] is not None)
        replace_file(self.disk, f"{folder}/{_COMMIT}", json.dumps(rows).encode())
        return self.finish()

    def finish(self) -> str:
        """Carry out the list of changes; a second call continues where the first one stopped."""
        commit(self.disk, self.path, keep_backup=self.keep_backup)
        return ""

    def discard(self) -> str:
        """Delete what is staged."""
        discard(self.disk, self.path)
        return ""


def charge(steps: list[Step], prefix: str, cost: Cost) -> None:
    """Add a cost to the first step on a file whose path starts with `prefix`, or to the first step."""
    if steps:
        at = next((number for number, step in enumerate(steps) if step.file.startswith(prefix)), 0)
        steps[at] = steps[at]._replace(cost=cost.plus(steps[at].cost))


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
    return disk.stat(f"{path}/{STAGED}/{_COMMIT}") is not None


def has_leftovers(disk: Disk, path: str) -> bool:
    """Return whether an earlier run was interrupted, in `commit` or before it."""
    return disk.stat(f"{path}/{STAGED}") is not None


def commit(disk: Disk, path: str, *, keep_backup: bool = True) -> None:
    """Carry out the staged changes; a second call continues where the first one stopped."""
    folder = f"{path}/{STAGED}"
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
    folder = f"{path}/{STAGED}"
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
