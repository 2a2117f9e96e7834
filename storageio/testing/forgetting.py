"""A disk in memory that drops unsynced data at a crash.

    disk = ForgettingDisk()
    store = MessageStore.open("/store", disk=disk)      # any engine; the machine's disk is not touched
    ...
    for image in disk.images(random.Random(7)):         # what a power failure at this moment may leave
        check(ForgettingDisk.of(image))

`watch(operation, path)` is called before every call that changes something, and can take images.  Stores through maps make no
call; `examine` records them, and runs before every call.  `refuse(operation, path)` is called before every call and may raise.
A refused `sync` leaves its pages clean and in an unknown state (`FileNode.fail_sync`); a refused write that raises `ShortWrite`
leaves its first half.  Not thread-safe.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable, Iterator
from random import Random

from ..closing import Closing
from ..disk import Entry, File, FolderLock, Map, Mode, Space, Writer
from ..disk import Kind as EntryKind
from ..errors import DiskError, DiskFull, StoreLocked
from .forgetting_images import Image, Question, build, by_chance, everything, one_apart, prefixes, questions, subsets
from .forgetting_nodes import Change, FileNode, FolderNode, QuestionKind

START_MS = 1_700_000_000_000
TOTAL_BYTES = 1 << 40
CHANGING = {
    "create", "write", "allocate", "truncate", "sync", "make folder", "sync folder", "rename", "delete", "delete folder",
}  # fmt: skip
Hook = Callable[[str, str], None]


class ShortWrite(DiskFull):
    """A failed write that left its first half in the file."""


def _error(operation: str, path: str, number: int) -> DiskError:
    return DiskError(operation, path, number, os.strerror(number))


class ForgettingMap(Closing):
    """A view of the live bytes."""

    def __init__(self, node: FileNode, size_bytes: int, writable: bool) -> None:
        """Map a file that has at least `size_bytes`."""
        view = memoryview(node.live)[:size_bytes]
        self._view: memoryview | None = view if writable else view.toreadonly()

    @property
    def view(self) -> memoryview:
        """The whole mapped range."""
        assert self._view is not None, "a closed map was used"
        return self._view

    def populate(self, start: int, stop: int) -> None:
        """Do nothing: memory needs no faults."""

    def expect_random(self) -> None:
        """Do nothing: memory has no read-ahead."""

    def expect_sequential(self) -> None:
        """Do nothing: memory has no read-ahead."""

    def close(self) -> None:
        """Drop the reference; the bytes stay."""
        self._view = None


class ForgettingFile(Closing):
    """An open file of a `ForgettingDisk`."""

    def __init__(self, disk: ForgettingDisk, path: str, node: FileNode) -> None:
        """Take a node that `ForgettingDisk.open` found."""
        self._disk = disk
        self._path = path
        self._node = node
        self._is_open = True
        disk.open_files += 1

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    def size(self) -> int:
        """Return the live size."""
        self._disk.before("size", self._path)
        return len(self._node.live)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return the live bytes."""
        self._disk.before("read", self._path)
        return bytes(self._node.live[offset : offset + size_bytes])

    def next_data(self, offset: int) -> int:
        """Return `offset`, like a file system without hole detection."""
        self._disk.before("next data", self._path)
        return min(offset, len(self._node.live))

    def forget_zeros(self, _offset: int) -> None:
        """Do nothing: memory has no read-ahead."""

    def expect_read(self, _offset: int, _size_bytes: int) -> None:
        """Do nothing: memory needs no reads."""

    def data_end(self, offset: int) -> int:
        """Return the size, like a file system without hole detection."""
        self._disk.before("next data", self._path)
        return len(self._node.live)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all; keep the first half if `refuse` raises `ShortWrite`."""
        try:
            self._disk.before("write", self._path)
        except ShortWrite:
            self._put(offset, bytes(data)[: len(data) // 2])
            raise
        self._put(offset, bytes(data))

    def write_pieces(self, offset: int, pieces: list[memoryview]) -> None:
        """Write the pieces as one write."""
        self.write(offset, b"".join(pieces))

    def _put(self, offset: int, data: bytes) -> None:
        node = self._node
        if offset + len(data) > len(node.live):
            node.resize(offset + len(data))
        node.allocate(offset, offset + len(data))
        node.live[offset : offset + len(data)] = data
        self._disk.examine_one(node)
        self._disk.touch(node, offset, offset + len(data))

    def allocate(self, size_bytes: int, start: int = 0) -> None:
        """Give the range blocks; grow the file with zeros."""
        self._disk.before("allocate", self._path)
        self._node.allocate(start, size_bytes)
        if size_bytes > len(self._node.live):
            self._node.resize(size_bytes)
            self._disk.examine_one(self._node)

    def truncate(self, size_bytes: int) -> None:
        """Set the live size."""
        self._disk.before("truncate", self._path)
        self._node.resize(size_bytes)
        self._disk.examine_one(self._node)

    def sync(self) -> None:
        """Make the content durable; a crash keeps it if a durable name leads to it."""
        try:
            self._disk.before("sync", self._path)
        except DiskError:
            self._node.fail_sync()
            raise
        self._node.sync()

    def map(self, size_bytes: int, *, writable: bool) -> Map:
        """Map bytes that the file has."""
        self._disk.before("map", self._path)
        if not 0 < size_bytes <= len(self._node.live):
            raise _error("map", self._path, errnos.EINVAL)
        if writable:
            self._disk.expect_stores(self._node)
        return ForgettingMap(self._node, size_bytes, writable)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._disk.open_files -= 1


class _Lock:
    """A held lock of a path."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def renew(self) -> bool:
        """Return False: only `release` releases it."""
        return False

    def release(self) -> None:
        self._held.discard(self._path)


class ForgettingDisk:
    """Files by path in memory, and all states that a crash may leave of them."""

    def __init__(self, now_ms: int = START_MS) -> None:
        """Create an empty disk.  Its clock stands still until a test changes `time_ms`."""
        self.time_ms = now_ms
        self.watch: Hook | None = None
        self.refuse: Hook | None = None
        self.free_bytes = TOTAL_BYTES
        self.open_files = 0
        self._root = FolderNode(1, now_ms)
        self._changes: list[Change] = []
        self._held: set[str] = set()
        self._stored_to: list[FileNode] = []
        self._number = 0
        self._inode = 1

    @classmethod
    def of(cls, image: Image, now_ms: int = START_MS) -> ForgettingDisk:
        """Return the disk of the restarted machine: everything in the image is durable."""
        disk = cls(now_ms)
        for path in image.folders:
            folder, name = disk._parent(path, "make folder")
            folder.live[name] = folder.durable[name] = FolderNode(disk._next_inode(), now_ms)
        for path, data in image.files.items():
            folder, name = disk._parent(path, "create")
            folder.live[name] = folder.durable[name] = FileNode(disk._next_inode(), data, image.times_ms[path])
        return disk

    # Crashes

    def examine(self) -> None:
        """Record what was stored through maps."""
        for node in self._stored_to:
            if node.live != node.seen:
                self.examine_one(node)

    def expect_stores(self, node: FileNode) -> None:
        """Add a file that is mapped for writing: it may change without a call."""
        if node not in self._stored_to:
            self._stored_to.append(node)

    def touch(self, node: FileNode, start: int, stop: int) -> None:
        """Record a write to this range, even if no byte changed."""
        if node.stuck:
            self._number += 1
            node.touch(start, stop, self._number)

    def examine_one(self, node: FileNode) -> None:
        """Record what changed in one file."""
        if node.examine(self._number + 1, self.time_ms):
            self._number += 1

    def questions(self) -> list[Question]:
        """Return what a crash at this moment would decide."""
        self.examine()
        return questions([node for node in self._nodes() if node.is_dirty], self._changes)

    def images(self, random: Random, chances: int = 4, *, limit: int = 0) -> Iterator[Image]:
        """Yield crash images: all lost; none lost; each change lost or kept alone; prefixes; random ones, whole and torn.

        If `limit` is set and there are at most that many combinations, yield all of them, and random torn ones.
        """
        open_questions = self.questions()
        every = subsets(open_questions, limit) if limit else None
        if every is not None:
            yield from (build(self._root, open_questions, answers) for answers in every)
        else:
            yield build(self._root, open_questions, everything(open_questions, False))
            yield build(self._root, open_questions, everything(open_questions, True))
            yield from (build(self._root, open_questions, answers) for answers in one_apart(open_questions))
            yield from (build(self._root, open_questions, answers) for answers in prefixes(open_questions))
        for number in range(chances if open_questions else 0):
            yield build(self._root, open_questions, by_chance(open_questions, random, torn=number % 2 == 0))

    def any_image(self, random: Random) -> Image:
        """Return one random image: nothing lost, everything lost, or each change decided separately."""
        open_questions = self.questions()
        kind = random.randrange(4)
        return build(
            self._root,
            open_questions,
            everything(open_questions, kind == 1) if kind < 2 else by_chance(open_questions, random, torn=kind == 2),
        )

    def least(self) -> Image:
        """Return the image in which everything unsynced is lost."""
        open_questions = self.questions()
        return build(self._root, open_questions, everything(open_questions, False))

    def unsettled_paths(self) -> set[str]:
        """Return the live paths of every file and name that a crash at this moment could leave in more than one state."""
        found = set()
        paths = {node.inode: path for path, node in self._live()}
        for question in self.questions():
            if question.node is not None:
                found.add(paths.get(question.node.inode, "/gone"))
            else:
                change = question.change
                assert change is not None, "of a file or of a name"
                found.add(f"{paths.get(change.to_folder.inode, '/gone')}/{change.to_name or change.name}")
        return found

    def _live(self) -> Iterator[tuple[str, FileNode | FolderNode]]:
        """Yield path and node of everything that is there, a folder before what it holds."""
        left: list[tuple[str, FileNode | FolderNode]] = [("", self._root)]
        while left:
            path, node = left.pop()
            yield path, node
            if isinstance(node, FolderNode):
                left += [(f"{path}/{name}", node.live[name]) for name in sorted(node.live, reverse=True)]

    def after_kill(self) -> Image:
        """Return the image that the death of the process alone leaves: everything that was written."""
        open_questions = self.questions()
        return build(self._root, open_questions, everything(open_questions, True))

    def files(self) -> dict[str, bytes]:
        """Return the live bytes of every file by its path."""
        return {path: bytes(node.live) for path, node in self._live() if isinstance(node, FileNode)}

    def _nodes(self) -> list[FileNode]:
        """Return every file that a name may lead to, in the order of creation."""
        found: dict[int, FileNode] = {}
        seen: set[int] = set()

        def walk(node: FileNode | FolderNode) -> None:
            if isinstance(node, FileNode):
                found[node.inode] = node
            elif node.inode not in seen:
                seen.add(node.inode)
                for child in (*node.live.values(), *node.durable.values()):
                    walk(child)

        walk(self._root)
        for change in self._changes:
            walk(change.node)
        return [found[inode] for inode in sorted(found)]

    # Calls

    def before(self, operation: str, path: str) -> None:
        """Run the hooks and record stores; called first by every operation."""
        if self.watch is not None and operation in CHANGING:
            self.watch(operation, path)
        self.examine()
        if self.refuse is not None:
            self.refuse(operation, path)

    def _next_inode(self) -> int:
        self._inode += 1
        return self._inode

    def _parent(self, path: str, operation: str) -> tuple[FolderNode, str]:
        """Return the folder that holds the last name of a path, and that name."""
        *folders, name = [part for part in path.split("/") if part and part != "."]
        here = self._root
        for part in folders:
            below = here.live.get(part)
            if not isinstance(below, FolderNode):
                raise _error(operation, path, errnos.ENOENT if below is None else errnos.ENOTDIR)
            here = below
        return here, name

    def _find(self, path: str) -> FileNode | FolderNode | None:
        here: FileNode | FolderNode | None = self._root
        for part in path.split("/"):
            if part and part != ".":
                here = here.live.get(part) if isinstance(here, FolderNode) else None
        return here

    def _folder(self, path: str, operation: str) -> FolderNode:
        found = self._find(path)
        if not isinstance(found, FolderNode):
            raise _error(operation, path, errnos.ENOENT if found is None else errnos.ENOTDIR)
        return found

    def _change(
        self, kind: QuestionKind, folder: FolderNode, name: str, node: FileNode | FolderNode, to: FolderNode | None = None,
        to_name: str = "",
    ) -> None:  # fmt: skip
        self._number += 1
        self._changes.append(Change(self._number, kind, folder, name, node, to or folder, to_name))

    def open(self, path: str, mode: Mode) -> File:
        """Open a file, created if the mode asks for it."""
        node = self._find(path)
        self.before("create" if mode is Mode.CREATE else "open", path)
        if node is None and mode is Mode.CREATE:
            node = self._create(path)
        if not isinstance(node, FileNode):
            raise _error("open", path, errnos.ENOENT if node is None else errnos.EINVAL)
        return ForgettingFile(self, path, node)

    def _create(self, path: str) -> FileNode:
        folder, name = self._parent(path, "open")
        node = FileNode(self._next_inode(), b"", self.time_ms)
        folder.live[name] = node
        self._change(QuestionKind.LINK, folder, name, node)
        return node

    def list(self, folder: str) -> list[Entry]:
        """Return the live names of a folder."""
        self.before("list", folder)
        found = self._folder(folder, "list").live
        return [self._entry(name, found[name]) for name in sorted(found)]

    def stat(self, path: str) -> Entry | None:
        """Return the live entry, None if it does not exist."""
        self.before("stat", path)
        found = self._find(path)
        return None if found is None else self._entry(os.path.basename(path), found)

    def _entry(self, name: str, node: FileNode | FolderNode) -> Entry:
        is_file = isinstance(node, FileNode)
        size = len(node.live) if is_file else 0
        return Entry(name, EntryKind.FILE if is_file else EntryKind.FOLDER, size, node.modified_ms, 1, node.inode)

    def make_folder(self, folder: str) -> None:
        """Create the missing folders, from the topmost one down, and sync each parent."""
        path = ""
        for part in folder.split("/"):
            if not part or part == ".":
                continue
            above, path = path, f"{path}/{part}"
            there = self._find(path)
            if there is None:
                self.before("make folder", path)
                parent, name = self._parent(path, "make folder")
                made = parent.live[name] = FolderNode(self._next_inode(), self.time_ms)
                self._change(QuestionKind.LINK, parent, name, made)
                self.sync_folder(above or "/")
            elif isinstance(there, FileNode):
                raise _error("make folder", path, errnos.EEXIST)

    def sync_folder(self, folder: str) -> None:
        """Make the names of a folder durable, and the new names of what was renamed out of it."""
        self.before("sync folder", folder)
        synced = self._folder(folder, "sync folder")
        left = []
        for change in self._changes:
            if change.folder is synced:
                if change.to_folder is not synced:
                    change.to_folder.durable[change.to_name] = change.node
            elif change.to_folder is synced:
                left.append(change._replace(kind=QuestionKind.UNLINK, to_folder=change.folder))
            else:
                left.append(change)
        self._changes = left
        synced.durable = dict(synced.live)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder."""
        self.before("rename", source)
        from_folder, from_name = self._parent(source, "rename")
        to_folder, to_name = self._parent(target, "rename")
        node = from_folder.live.get(from_name)
        if node is None:
            raise _error("rename", source, errnos.ENOENT)
        there = to_folder.live.get(to_name)
        if there is not None and type(there) is not type(node):
            raise _error("rename", source, errnos.EISDIR if isinstance(there, FolderNode) else errnos.ENOTDIR)
        if isinstance(there, FolderNode) and there.live:
            raise _error("rename", source, errnos.ENOTEMPTY)
        del from_folder.live[from_name]
        to_folder.live[to_name] = node
        self._change(QuestionKind.RENAME, from_folder, from_name, node, to_folder, to_name)

    def delete(self, path: str) -> None:
        """Delete the name of a file."""
        self.before("delete", path)
        folder, name = self._parent(path, "delete")
        node = folder.live.get(name)
        if not isinstance(node, FileNode):
            raise _error("delete", path, errnos.ENOENT if node is None else errnos.EISDIR)
        del folder.live[name]
        self._change(QuestionKind.UNLINK, folder, name, node)

    def unlink(self, path: str) -> None:
        """Delete the name of a file: there is no space to free."""
        self.delete(path)

    def free_unlinked(self) -> None:
        """Do nothing: `unlink` has freed it."""

    def delete_folder(self, folder: str) -> None:
        """Delete an empty folder."""
        self.before("delete folder", folder)
        node = self._folder(folder, "delete folder")
        if node.live:
            raise _error("delete folder", folder, errnos.ENOTEMPTY)
        parent, name = self._parent(folder, "delete folder")
        del parent.live[name]
        self._change(QuestionKind.UNLINK, parent, name, node)

    def space(self, path: str) -> Space:
        """Return the free space that the test has set."""
        self.before("space", path)
        return Space(TOTAL_BYTES, self.free_bytes)

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Lock the path.  There is no other process, so `wait` raises as well if the lock is held."""
        self.before("lock", path)
        if path in self._held:
            raise StoreLocked(f"{path}: this process has the store open for writing")
        if self._find(path) is None:
            self._create(path)
        return _Lock(self._held, path)

    def is_locked(self, path: str) -> bool:
        """Return whether `lock` was called and not released."""
        return path in self._held

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Return nothing: there is no other process."""
        return ()

    def now_ms(self) -> int:
        """Return the time that the test has set."""
        return self.time_ms

    def sleep(self, pause_s: float) -> None:
        """Return immediately: no other process writes to this disk."""
