"""The folder `index/`: its files from oldest to newest; puts go to the newest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from commitlog.layout import FOREVER_MS
from storageio import Closing, Disk, Kind, StoreCorrupt, StoreError, StoreReadOnly

from ._filter_cy import FilteredFiles
from ._index_cy import IndexBuffer, IndexList, hash_of_texts
from .index_file import Header, IndexFile
from .layout import (
    FIRST_ITEM,
    HEADER,
    ITEMS_DEFAULT,
    KEY_HASH_NONE,
    MATCHES_MAX_DEFAULT,
    NAME_DIGITS,
    SLOTS_DEFAULT,
    TAGS_LEFT_OUT,
    TAGS_WRITTEN,
    file_size,
)

if TYPE_CHECKING:
    from .key_filter import KeyFilter

NAME_MAX = (1 << 63) - 1
OPEN_FILES_MAX = 256  # each map holds a descriptor; mapping a file again takes longer than many queries
MILLISECOND = timedelta(milliseconds=1)


def name_of(moment: datetime) -> str:
    """Return the file name for a local time: yyyyMMddHHmmssSSS.

    >>> name_of(datetime(2026, 11, 20, 17, 32, 54, 506000))
    '20261120173254506'
    """
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def index_paths(disk: Disk, folder: str) -> tuple[list[str], list[str]]:
    """Return the paths of the files whose name is a number, in order, and those of all other entries, which are skipped."""
    paths: list[str] = []
    strays: list[str] = []
    if disk.stat(folder) is None:
        return paths, strays
    for entry in disk.list(folder):
        is_number = entry.name.isascii() and entry.name.isdigit() and int(entry.name) <= NAME_MAX
        is_file = entry.kind is Kind.FILE and is_number
        (paths if is_file else strays).append(os.path.join(folder, entry.name))
    return paths, strays


def searched_files(
    files: list[IndexFile], filters: list[KeyFilter], header_of: Callable[[IndexFile], bytes | None]
) -> list[Any]:
    """Return the files, with a `FilteredFiles` in place of neighbours that one filter has.

    A column is used if it names an older file and has its header.  The order of the files stays, because a query with a limit
    wants the newest messages.
    """
    columns = {one.name: (filter, bit, one.header) for filter in filters for bit, one in enumerate(filter.columns)}
    runs: list[tuple[KeyFilter | None, dict[int, IndexFile]]] = []
    for index, file in enumerate(files):
        filter, bit, header = columns.get(int(file.name), (None, 0, b""))
        if filter is None or index == len(files) - 1 or header_of(file) != header:
            runs.append((None, {0: file}))
        elif runs and runs[-1][0] is filter:
            runs[-1][1][bit] = file
        else:
            runs.append((filter, {bit: file}))
    return [
        FilteredFiles(filter.buffer, [run.get(bit) for bit in range(len(filter.columns))]) if filter is not None else run[0]
        for filter, run in runs
    ]


def item_hash(topic: str, key: str) -> int:
    """Return the key hash that an item stores for a topic and a key (docs/formats/indexfile.md#slots-and-items)."""
    code = hash_of_texts(topic, key)
    return 0 if code == KEY_HASH_NONE else abs(code)


class IndexFiles(IndexList, Closing):
    """The key index.  One thread builds; any number of threads select."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        writable: bool,
        slots: int = SLOTS_DEFAULT,
        items: int = ITEMS_DEFAULT,
        max_matches: int = MATCHES_MAX_DEFAULT,
        with_tags: bool = False,
    ) -> None:
        """List the folder; map nothing.

        `slots` and `items` are the numbers of every file, existing ones included (see `find_shape`). With `with_tags` a
        dispatcher also adds an item for the tags of each record.
        """
        self.disk = disk
        self.folder = folder
        self.writable = writable
        self.slots = slots
        self.items = items
        self.max_matches = max_matches
        self.with_tags = with_tags
        self.strays: list[str] = []
        self._guard = threading.Lock()  # guards the lists below
        self.set_files([], [])
        self.filters: list[KeyFilter] = []  # from the oldest index file to the newest
        self._headers: dict[str, bytes] = {}  # by path, of files that a filter may have
        self._full: list[IndexFile] = []  # full files that are not synced yet
        self._opened: list[IndexFile] = []  # old files that a query mapped, the first one first
        self._is_new_name = False
        self.refresh()

    @property
    def files(self) -> list[IndexFile]:
        """Return the current files from oldest to newest."""
        return list(self.listed)

    def refresh(self, *, whole_only: bool = False) -> None:
        """List the folder again, for a reader beside a live writer.

        With `whole_only`, skip a newest file that the writer is still creating.
        """
        paths, self.strays = index_paths(self.disk, self.folder)
        if whole_only and paths:
            newest = self.disk.stat(paths[-1])
            if newest is None or newest.size_bytes < file_size(self.slots, self.items):
                paths.pop()
        with self._guard:
            known = {file.path: file for file in self.listed}
            for path in known.keys() - set(paths):
                known[path].close()
            self._headers = {}  # a recovery may have cut a file that was full
            self._list([known.get(path) or self._file(path) for path in paths])

    def _list(self, files: list[IndexFile]) -> None:
        """Set the current files; the caller holds the guard."""
        self.set_files(files, searched_files(files, self.filters, self._header_bytes))

    def use_filters(self, filters: list[KeyFilter]) -> None:
        """Use these filters, as far as they are of the current files; the newest file, which may get items, never has one."""
        with self._guard:
            self.filters = filters
            for file in self.listed if filters else ():
                if file.path not in self._headers and not file.is_open:
                    file.expect_header()
            self._list(self.listed)

    def has_filter(self, file: IndexFile) -> bool:
        """Return whether a filter is used for a file."""
        return any(isinstance(one, FilteredFiles) and file in one.files for one in self.searched)

    def _header_bytes(self, file: IndexFile) -> bytes | None:
        """Return the header of a file, None if it is not full or not readable."""
        if file.path not in self._headers:
            try:
                header = file.header
            except StoreError:
                return None
            if header.next_item < self.items:
                return None
            self._headers[file.path] = HEADER.pack(*header)
        return self._headers[file.path]

    @property
    def fits(self) -> bool:
        """Return whether the newest file has the size that slots and items give; False if there is no file."""
        return bool(self.listed) and self._is_whole(self.listed[-1])

    def adopt(self, slots: int, items: int) -> None:
        """Set the slots and items that a reader has found in the files; call `refresh` afterwards."""
        with self._guard:
            self.slots, self.items = slots, items
            for file in self.listed:
                file.close()
            self._headers, self.filters = {}, []
            self._list([])

    def _file(self, path: str) -> IndexFile:
        return IndexFile(self.disk, path, self.slots, self.items, writable=self.writable)

    @property
    def has_other_sizes(self) -> bool:
        """Return whether a file does not have the size that slots and items give, so that it cannot be used."""
        return not all(map(self._is_whole, self.listed))

    def load(self) -> None:
        """Raise `StoreCorrupt` if a file does not have the size that slots and items give."""
        for file in self.listed:
            if not self._is_whole(file):
                expected, found = f"{file_size(self.slots, self.items)} bytes", f"{self._size(file)} bytes"
                raise StoreCorrupt("index file size", file=file.path, offset=0, expected=expected, found=found)

    def _size(self, file: IndexFile) -> int:
        entry = self.disk.stat(file.path)
        return entry.size_bytes if entry else 0

    def _is_whole(self, file: IndexFile) -> bool:
        return self._size(file) == file_size(self.slots, self.items)

    # Building

    def active(self) -> IndexBuffer:
        """Return the bytes of the newest file, with room; create a file first if the newest is full or there is none.

        Every dispatched record calls this first, even one without keys (docs/formats/indexfile.md#what-is-indexed).  A file
        that became full is left to `sync_full`.
        """
        self._must_write()
        last = self.listed[-1] if self.listed else None
        if last is None or (last.buffer.space() == 0 and not last.grow()):
            last = self._roll(last)
        last.buffer.tag_items = TAGS_WRITTEN if self.with_tags else TAGS_LEFT_OUT
        return last.buffer

    def _roll(self, full: IndexFile | None) -> IndexFile:
        if full is None:
            self.disk.make_folder(self.folder)
        else:
            self._sync_name()  # or a crash could lose the older file and keep the newer one, which looks whole
        path = os.path.join(self.folder, self._new_name())
        made = IndexFile.create(self.disk, path, self.slots, self.items, full.header if full else None)
        with self._guard:
            self._list([*self.listed, made])
            self._is_new_name = True
            if full is not None:
                self._full.append(full)
        return made

    def _new_name(self) -> str:
        """Return a name made from local time, or a later one if an existing name is not earlier."""
        moment = datetime.fromtimestamp(self.disk.now_ms() / 1000)
        name = name_of(moment)
        newest = max((int(file.name) for file in self.listed), default=-1)
        if int(name) > newest:
            return name
        text = f"{newest:0{NAME_DIGITS}d}"
        try:
            moment = datetime.strptime(text + "000", "%Y%m%d%H%M%S%f") + MILLISECOND
        except (ValueError, OverflowError):  # the number is no time, or is the last one that datetime supports
            return str(newest + 1)
        return name_of(moment)

    # Querying

    def select(
        self,
        topic: str,
        key: str,
        max_count: int = MATCHES_MAX_DEFAULT,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[int]:
        """Return the physical offsets of records with the key, newest first (docs/formats/indexfile.md#querying-a-key).

        Times are cut to seconds from a file's begin, so a `begin_ms` within the same second may miss a record.  Only hashes
        are compared.  Returns at most `max_matches` offsets.
        """
        return list(islice(self.hits(topic, key, begin_ms, end_ms), min(max_count, self.max_matches)))

    def hits(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> Iterator[int]:
        """Yield what `select` returns, without a limit."""
        code = hash_of_texts(topic, key)
        for file in reversed(self.files):
            header = file.header
            if header.overlaps(begin_ms, end_ms):
                self.keep_open(file)
                yield from file.hits(code, begin_ms, end_ms)
            if header.begin_timestamp_ms < begin_ms:
                return

    def keep_open(self, file: IndexFile) -> None:
        """Keep an old file mapped that a query has mapped, and close those mapped first beyond the limit."""
        with self._guard:
            if file not in self.listed[:-1] or file in self._full or (file.is_open and file in self._opened):
                return
            _ = file.buffer  # mapped again if another thread closed it
            file.close_descriptor()
            self._opened = [opened for opened in self._opened if opened.is_open and opened is not file]
            self._opened.append(file)
            while len(self._opened) > OPEN_FILES_MAX:
                self._opened.pop(0).close()

    def last_header(self) -> Header | None:
        """Return the header of the newest file; a query reports its end time and offset."""
        return self.listed[-1].header if self.listed else None

    def needs_refresh(self, log_end: int) -> bool:
        """Return whether a writer has an index file or a log file that a reader does not know yet, or will have next.

        `log_end` is where the log files end that the reader knows.
        """
        header = self.last_header()
        return header is None or header.next_item >= self.items or header.end_physical_offset >= log_end

    # Maintenance

    def sync_full(self) -> int:
        """Sync the files that became full since the last call; return the newest end time that is safe now, or 0.

        The checkpoint's index time moves only here (docs/formats/indexfile.md#rolling-and-flushing).
        """
        self._sync_name()
        safe = 0
        for file in list(self._full):
            safe = max(safe, file.sync())
            with self._guard:
                self._full.remove(file)
            self.keep_open(file)
        return safe

    def sync(self) -> None:
        """Sync everything that was written, at a clean stop."""
        self._must_write()
        self.sync_full()
        if self.listed:
            self.listed[-1].sync()

    def mark_unsynced(self) -> None:
        """Make the next syncs cover every file, because the writer before an unclean stop may not have synced them."""
        with self._guard:
            self._is_new_name = bool(self.listed)
            self._full = self.listed[:-1]

    def sync_active(self) -> tuple[str, int] | None:
        """Sync the newest file while it is still written to.

        Returns its name and the number of the item before which everything is on the disk, or None without a file.
        """
        self._sync_name()
        file = self.listed[-1] if self.listed else None
        if file is None:
            return None
        next_item = file.header.next_item
        file.sync()
        return file.name, next_item

    def keep_sound(self, index_timestamp_ms: int, log_end: int) -> None:
        """Keep the files that the checkpoint vouches for or whose chains are all sound; delete from the first other file on.

        For use after an unclean stop without a hint.  A page that never reached the disk breaks the chains through its items,
        so a sound file is whole up to its last item.  (RocketMQ deletes each file that the checkpoint does not vouch for.)
        """
        self._must_write()
        files = self.files
        kept: list[IndexFile] = []
        for file in files:
            is_safe = self._is_safe(file, index_timestamp_ms)
            if not is_safe and not self._is_sound(file):
                break
            kept.append(file)
            if not is_safe and file.header.next_item < self.items:  # a file that others follow must be full
                break
        self._delete(files[len(kept) :])
        if kept:
            self._keep_items(kept, kept[-1].header.next_item, log_end, has_whole_records=False)

    def _is_safe(self, file: IndexFile, index_timestamp_ms: int) -> bool:
        return self._is_whole(file) and 0 < file.header.end_timestamp_ms <= index_timestamp_ms

    def changes_safe_files(self, index_timestamp_ms: int, log_end: int) -> bool:
        """Return whether `keep_sound` or `keep_until` will change a file that the checkpoint vouches for.

        If so, the checkpoint must stop vouching for it first: the next crash could leave the change half done.
        """
        files = self.files
        return any(
            self._is_safe(file, index_timestamp_ms) and (file is files[-1] or file.header.end_physical_offset >= log_end)
            for file in files
        )

    def _keep_items(self, kept: list[IndexFile], next_item: int, log_end: int, *, has_whole_records: bool) -> None:
        """Drop the last kept file's items from `next_item` on, and every item of a record at or after the end of the log.

        Unless `has_whole_records`, the last record may lack some of its keys and is dropped too.  A file that loses all its
        items is deleted, because its begin would be that of a record that no longer exists.
        """
        while len(kept) > 1 and kept[-2].header.end_physical_offset >= log_end:
            self._delete([kept.pop()])
            next_item = self.items
        last = kept[-1]
        # a file that was emptied, and not deleted before the next crash, keeps its old end offset
        end_before = kept[-2].header.end_physical_offset if len(kept) > 1 else 0
        had_items = last.header.next_item > FIRST_ITEM or last.header.end_physical_offset > end_before
        if not has_whole_records:
            next_item = last.buffer.without_last_record(next_item, log_end)
        if last.buffer.keep_items(next_item, log_end) == FIRST_ITEM and had_items:
            self._delete([last])

    def _is_sound(self, file: IndexFile) -> bool:
        try:
            file.check()
        except StoreCorrupt:
            return False
        return self._is_whole(file)

    def last_item(self, log_end: int) -> tuple[int, int] | None:
        """Return (key hash, physical offset) of the newest file's last item before `log_end`, or None."""
        if not self.fits:
            return None
        newest: IndexFile = self.listed[-1]
        return newest.buffer.last_item(newest.header.next_item, log_end)

    def keep_until(self, name: str, next_item: int, log_end: int) -> bool:
        """Keep what `sync_active` reported as synced, and delete later files; for use after an unclean stop.

        Records at or after `log_end` must be indexed again.  Returns False and changes nothing if the file is missing or has
        fewer items, because it is then another file of the same name.
        """
        self._must_write()
        names = [file.name for file in self.listed]
        index = names.index(name) if name in names else -1
        found = self.listed[index] if index >= 0 else None
        if found is None or not self._is_whole(found) or not 0 <= next_item <= max(found.header.next_item, FIRST_ITEM):
            return False
        kept = self.listed[: index + 1]
        self._delete(self.listed[index + 1 :])
        self._keep_items(kept, next_item, log_end, has_whole_records=True)
        return True

    def _sync_name(self) -> None:
        if not self._is_new_name:
            return
        self._is_new_name = False  # before the call: the writer may create another file meanwhile
        try:
            self.disk.sync_folder(self.folder)
        except StoreError:
            self._is_new_name = True
            raise

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files that end before the log begins, never the newest; return the number of deleted files."""
        self._must_write()
        gone: list[IndexFile] = []
        for file in self.files[:-1]:
            if file.header.end_physical_offset >= log_min_offset:
                break
            gone.append(file)
        self._delete(gone)
        return len(gone)

    def destroy(self) -> None:
        """Delete every file of the index."""
        self._must_write()
        self._delete(self.files)

    def _delete(self, gone: list[IndexFile]) -> None:
        with self._guard:
            self._list([file for file in self.listed if file not in gone])
            self._full = [file for file in self._full if file not in gone]
            self._opened = [file for file in self._opened if file not in gone]
        for file in reversed(gone):  # the newest first, each with a sync: a crash leaves no gap
            file.close()
            self.disk.delete(file.path)
            self.disk.sync_folder(self.folder)

    def _must_write(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f"{self.folder}: opened for reading")

    def close(self) -> None:
        """Drop all maps and descriptors without a sync."""
        for file in self.files:
            file.close()
