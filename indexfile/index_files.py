"""The folder `index/`: its files from oldest to newest, of which the newest is put to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice

from commitlog.layout import FOREVER_MS
from storageio import Disk, Kind, StoreCorrupt, StoreError, StoreReadOnly

from ._index_cy import IndexBuffer, IndexList, hash_of_texts
from .index_file import Header, IndexFile
from .layout import (
    FIRST_ITEM,
    ITEMS_DEFAULT,
    KEY_HASH_NONE,
    KEY_SEPARATOR,
    MATCHES_MAX_DEFAULT,
    NAME_DIGITS,
    SLOTS_DEFAULT,
    file_size,
)

NAME_MAX = (1 << 63) - 1
OPEN_FILES_MAX = 8
MILLISECOND = timedelta(milliseconds=1)


def name_of(moment: datetime) -> str:
    """yyyyMMddHHmmssSSS.

    >>> name_of(datetime(2026, 11, 20, 17, 32, 54, 506000))
    '20261120173254506'
    """
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def index_paths(disk: Disk, folder: str) -> tuple[list[str], list[str]]:
    """(the files named by a number, in order; the others, which are passed over), both with their folder."""
    paths: list[str] = []
    strays: list[str] = []
    if disk.stat(folder) is None:
        return paths, strays
    for entry in disk.list(folder):
        is_number = entry.name.isascii() and entry.name.isdigit() and int(entry.name) <= NAME_MAX
        is_file = entry.kind is Kind.FILE and is_number
        (paths if is_file else strays).append(os.path.join(folder, entry.name))
    return paths, strays


def item_hash(topic: str, key: str) -> int:
    """What an item keeps of a topic and a key (section 3.2)."""
    code = hash_of_texts(topic, key)
    return 0 if code == KEY_HASH_NONE else abs(code)


class IndexFiles(IndexList):
    """The key index.  One thread builds; any number select."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        writable: bool,
        slots: int = SLOTS_DEFAULT,
        items: int = ITEMS_DEFAULT,
        max_matches: int = MATCHES_MAX_DEFAULT,
    ) -> None:
        """`slots` and `items`: of every file, existing ones too (see `find_shape`).  Lists the folder, maps nothing."""
        self.disk = disk
        self.folder = folder
        self.writable = writable
        self.slots = slots
        self.items = items
        self.max_matches = max_matches
        self.strays: list[str] = []
        self._guard = threading.Lock()  # of the list and of what is mapped
        self.listed: list[IndexFile] = []  # from oldest to newest; a new list after every change
        self._full: list[IndexFile] = []  # rolled from and not synced since
        self._opened: list[IndexFile] = []  # for reading, least recently used first
        self._is_new_name = False
        self.refresh()

    @property
    def files(self) -> list[IndexFile]:
        """From oldest to newest, as they are at the call."""
        return list(self.listed)

    def refresh(self, *, whole_only: bool = False) -> None:
        """Take in files that came or went (a reader beside a live writer); with `whole_only` none that is still being made."""
        paths, self.strays = index_paths(self.disk, self.folder)
        if whole_only and paths:
            newest = self.disk.stat(paths[-1])
            if newest is None or newest.size_bytes < file_size(self.slots, self.items):
                paths.pop()
        with self._guard:
            known = {file.path: file for file in self.listed}
            for path in known.keys() - set(paths):
                known[path].close()
            self.listed = [known.get(path) or self._file(path) for path in paths]

    @property
    def fits(self) -> bool:
        """Whether the newest file is as long as slots and items say; without a file nothing is known of that."""
        listed = self.listed
        return bool(listed) and self._size(listed[-1]) == file_size(self.slots, self.items)

    def adopt(self, slots: int, items: int) -> None:
        """A reader learnt what the files have; `refresh` lists them anew."""
        with self._guard:
            self.slots, self.items = slots, items
            for file in self.listed:
                file.close()
            self.listed = []

    def _file(self, path: str) -> IndexFile:
        return IndexFile(self.disk, path, self.slots, self.items, writable=self.writable)

    @property
    def has_other_sizes(self) -> bool:
        """Whether a file is not as long as slots and items say: nothing could be put to it, or found in it."""
        wanted = file_size(self.slots, self.items)
        return any(self._size(file) != wanted for file in self.listed)

    def load(self) -> None:
        """Refuse files of another size now, not when they are asked."""
        wanted = file_size(self.slots, self.items)
        for file in self.listed:
            if self._size(file) != wanted:
                found = f"{self._size(file)} bytes"
                raise StoreCorrupt("index file size", file=file.path, offset=0, expected=f"{wanted} bytes", found=found)

    def delete_unsafe(self, index_timestamp_ms: int) -> int:
        """After an unclean stop: delete each file that ends after the checkpoint's index time (section 3.5); how many.

        A file without a whole header goes too.
        """
        self._must_write()
        size = file_size(self.slots, self.items)
        gone = [file for file in self.listed if self._size(file) < size or file.header.end_timestamp_ms > index_timestamp_ms]
        self._delete(gone)
        return len(gone)

    def _size(self, file: IndexFile) -> int:
        entry = self.disk.stat(file.path)
        return entry.size_bytes if entry else 0

    # Building

    def active(self) -> IndexBuffer:
        """The bytes that the next key goes to: the newest file's, or a new file's when that is full or there is none.

        Every dispatched record calls this first, one without keys too (section 3.3).  A file that became full is handed to
        `sync_full`.
        """
        self._must_write()
        last = self.listed[-1] if self.listed else None
        if last is None or last.is_full:
            last = self._roll(last)
        return last.buffer

    def _roll(self, full: IndexFile | None) -> IndexFile:
        if full is None:
            self.disk.make_folder(self.folder)
        else:
            self._sync_name()  # or a crash could lose the older file and keep the younger, which looks whole without it
        path = os.path.join(self.folder, self._new_name())
        made = IndexFile.create(self.disk, path, self.slots, self.items, full.header if full else None)
        with self._guard:
            self.listed = [*self.listed, made]
            self._is_new_name = True
            if full is not None:
                self._full.append(full)
        return made

    def _new_name(self) -> str:
        """From local time; later than every name there is."""
        moment = datetime.fromtimestamp(self.disk.now_ms() / 1000)
        name = name_of(moment)
        newest = max((int(file.name) for file in self.listed), default=-1)
        if int(name) > newest:
            return name
        text = f"{newest:0{NAME_DIGITS}d}"
        try:
            moment = datetime.strptime(text + "000", "%Y%m%d%H%M%S%f") + MILLISECOND
        except (ValueError, OverflowError):  # a number that is no time, or the last that a date can say
            return str(newest + 1)
        return name_of(moment)

    def build(
        self,
        topic: str,
        unique_key: str | None,
        keys: str | None,
        physical_offset: int,
        store_timestamp_ms: int,
        *,
        is_rollback: bool = False,
    ) -> int:
        """Index one record (section 3.3); how many items were added.

        `keys`: the property, words joined by a space.  A record before the newest one indexed is a repeat and adds
        nothing; the newest one itself is indexed again.
        """
        buffer = self.active()
        if is_rollback or buffer.is_repeat(physical_offset):
            return 0
        words = [unique_key or "", *(keys or "").split(KEY_SEPARATOR)]
        encoded = [word.encode("utf-8", "replace") for word in words if word]
        for word in encoded:
            while not buffer.put(topic.encode(), word, physical_offset, store_timestamp_ms):
                buffer = self.active()
        return len(encoded)

    # Asking

    def select(
        self,
        topic: str,
        key: str,
        max_count: int = MATCHES_MAX_DEFAULT,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        *,
        keep: Callable[[int], bool] | None = None,
    ) -> list[int]:
        """Physical offsets of records with the key, newest file first and newest item first (section 3.6).

        Times are cut to seconds from a file's begin, so a `begin_ms` within the same second may miss a record.  Only hashes
        are compared: `keep` reads the record at an offset and says whether topic and key are really these; what it drops
        does not count.  At most `max_matches`.
        """
        hits = self.hits(topic, key, begin_ms, end_ms)
        return list(islice(filter(keep, hits) if keep else hits, min(max_count, self.max_matches)))

    def hits(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> Iterator[int]:
        """As `select`, one after the other and without a limit."""
        code = hash_of_texts(topic, key)
        for file in reversed(self.files):
            header = file.header
            if header.overlaps(begin_ms, end_ms):
                self.touch(file)
                yield from file.hits(code, begin_ms, end_ms)
            if header.begin_timestamp_ms < begin_ms:
                return

    def touch(self, file: IndexFile) -> None:
        """Keep few of the old files mapped."""
        with self._guard:
            if not self.listed or file is self.listed[-1] or file in self._full:
                return
            if file in self._opened:
                self._opened.remove(file)
            self._opened.append(file)
            while len(self._opened) > OPEN_FILES_MAX:
                self._opened.pop(0).close()

    def last_header(self) -> Header | None:
        """Of the newest file: a query reports its end time and offset."""
        return self.listed[-1].header if self.listed else None

    # Upkeep

    def sync_full(self) -> int:
        """Sync the files that became full since the last call; the newest end time that is safe now, 0 when none was.

        The checkpoint's index time moves only here (section 3.4).
        """
        self._sync_name()
        safe = 0
        for file in list(self._full):
            safe = max(safe, file.sync())
            with self._guard:
                self._full.remove(file)
                self._opened.append(file)
        return safe

    def sync(self) -> None:
        """Sync all that was written: at a clean stop."""
        self._must_write()
        self.sync_full()
        if self.listed:
            self.listed[-1].sync()

    def doubt(self) -> None:
        """After an unclean stop: whoever wrote may have died before its syncs, so the next ones are of every file's."""
        with self._guard:
            self._is_new_name = bool(self.listed)
            self._full = self.listed[:-1]

    def sync_active(self) -> tuple[str, int] | None:
        """Sync the newest file while it is still written to: its name and the item before which all is on the disk then."""
        self._sync_name()
        file = self.listed[-1] if self.listed else None
        if file is None:
            return None
        next_item = file.header.next_item
        file.sync()
        return file.name, next_item

    def keep_sound(self, index_timestamp_ms: int, log_end: int) -> None:
        """After an unclean stop, without a note: keep files that the checkpoint vouches for or whose chains are all sound.

        From the first other file on all are deleted.  A page that the disk never got breaks the chains through its items, so
        a sound file is whole up to its last item.  (The real store deletes each file the checkpoint does not vouch for.)
        """
        self._must_write()
        files = self.files
        kept: list[IndexFile] = []
        for file in files:
            is_vouched = self._is_vouched(file, index_timestamp_ms)
            if not is_vouched and not self._is_sound(file):
                break
            kept.append(file)
            if not is_vouched and file.header.next_item < self.items:  # one before others was full
                break
        self._delete(files[len(kept) :])
        if kept:
            self._keep_items(kept, kept[-1].header.next_item, log_end, has_whole_records=False)

    def _is_vouched(self, file: IndexFile, index_timestamp_ms: int) -> bool:
        is_whole = self._size(file) == file_size(self.slots, self.items)
        return is_whole and 0 < file.header.end_timestamp_ms <= index_timestamp_ms

    def changes_vouched(self, index_timestamp_ms: int, log_end: int) -> bool:
        """Whether `keep_sound` or `keep_until` will change a file that the checkpoint vouches for.

        It must not do so any more then: the next crash could leave the change half done.
        """
        files = self.files
        return any(
            self._is_vouched(file, index_timestamp_ms) and (file is files[-1] or file.header.end_physical_offset >= log_end)
            for file in files
        )

    def _keep_items(self, kept: list[IndexFile], next_item: int, log_end: int, *, has_whole_records: bool) -> None:
        """Of the kept files the items before `next_item` of the last one; in no file any of records behind the log's end.

        Without `has_whole_records` the last record may lack some of its keys, and goes.  A file of which nothing is left goes
        too: its begin would be that of a record that is no longer there.
        """
        while len(kept) > 1 and kept[-2].header.end_physical_offset >= log_end:
            self._delete([kept.pop()])
            next_item = self.items
        last = kept[-1]
        # one that was emptied, and not deleted before the next crash, still says an end that it no longer has
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
        return self._size(file) == file_size(self.slots, self.items)

    def last_item(self, log_end: int) -> tuple[int, int] | None:
        """(key hash, physical offset) of the newest file's last item of a record before `log_end`; None without one."""
        if not self.listed or self._size(self.listed[-1]) != file_size(self.slots, self.items):
            return None
        return self.listed[-1].buffer.last_item(self.listed[-1].header.next_item, log_end)

    def keep_until(self, name: str, next_item: int, log_end: int) -> bool:
        """After an unclean stop, instead of `delete_unsafe`: keep what `sync_active` vouched for, delete later files.

        `log_end`: records at or behind it are to be indexed again.  False when there is no such file; nothing was changed
        then; nor one that has so many items: it is another of the same name.
        """
        self._must_write()
        names = [file.name for file in self.listed]
        place = names.index(name) if name in names else -1
        if place < 0 or not self._has_items(self.listed[place], next_item):
            return False
        kept = self.listed[: place + 1]
        self._delete(self.listed[place + 1 :])
        self._keep_items(kept, next_item, log_end, has_whole_records=True)
        return True

    def _has_items(self, file: IndexFile, next_item: int) -> bool:
        is_whole = self._size(file) == file_size(self.slots, self.items)
        return is_whole and 0 <= next_item <= max(file.header.next_item, FIRST_ITEM)

    def _sync_name(self) -> None:
        if not self._is_new_name:
            return
        self._is_new_name = False  # before the call: the writer may make another file meanwhile
        try:
            self.disk.sync_folder(self.folder)
        except StoreError:
            self._is_new_name = True
            raise

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files that end before the log does begin, never the newest (section 3.7); how many."""
        self._must_write()
        gone: list[IndexFile] = []
        for file in self.files[:-1]:
            if file.header.end_physical_offset >= log_min_offset:
                break
            gone.append(file)
        self._delete(gone)
        return len(gone)

    def destroy(self) -> None:
        """Delete every file."""
        self._must_write()
        self._delete(self.files)

    def _delete(self, gone: list[IndexFile]) -> None:
        with self._guard:
            self.listed = [file for file in self.listed if file not in gone]
            self._full = [file for file in self._full if file not in gone]
            self._opened = [file for file in self._opened if file not in gone]
        for file in reversed(gone):  # the youngest first, each for good: what a crash leaves has no hole
            file.close()
            self.disk.delete(file.path)
            self.disk.sync_folder(self.folder)

    def _must_write(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f"{self.folder}: opened for reading")

    def close(self) -> None:
        """Drop all maps and descriptors.  Does not sync."""
        for file in self.files:
            file.close()
