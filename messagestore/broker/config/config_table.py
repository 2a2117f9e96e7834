"""Share what the tables of `config/` have in common: a lock, change tracking, `dataVersion`, and typed fields."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from storageio import Disk, StoreCorrupt, StoreError, UnsupportedFormat

from ...rocksdb.config import has_config, read_config
from .config_files import BACKUP, ConfigFile, Document, Loaded, Source

Entry = TypeVar("Entry")
INT64_MAX = (1 << 63) - 1


class ConfigTable(ABC):
    """The content of one config file in memory.

    Any thread may read and change it; `persist` writes the changes.
    """

    file_name: str
    table_name: str  # the document's member with the table
    rocksdb_name: str | None = None  # the field of `RocksdbConfig` with the table of a broker that keeps it in RocksDB
    needs_rocksdb = True  # whether to raise the error of a table in RocksDB; else it is kept, and the table is empty
    rocksdb_error: StoreError | None = None

    def __init__(self, disk: Disk, folder: str) -> None:
        """Read the file. `folder` is the store's `config/`, which need not exist before `persist`.

        The table of a broker that keeps it in RocksDB is read from there. Raises `MissingExtra` if that needs the extra.
        """
        self.path = os.path.join(folder, self.file_name)
        self._disk = disk
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._file = ConfigFile(disk, self.path)
        self._is_dirty = False
        self._use(self._file.load())
        self.is_in_rocksdb = self._read_rocksdb(os.path.dirname(folder))
        try:
            self._take(self._map_of(self.table_name))
        except StoreCorrupt as error:  # JSON, but not of this table
            if self.is_in_rocksdb or self.source is not Source.FILE or self._file.has_no_backup:
                raise
            self._use(self._file.load_backup(error))
            self._take(self._map_of(self.table_name))

    def _use(self, loaded: Loaded) -> None:
        """Take the document that was read, and where it is from."""
        self._document, self.source, self.damage = loaded

    @property
    def is_lost(self) -> bool:
        """Return whether the table is empty because neither the file nor its backup is readable."""
        return self.damage is not None and self.source is Source.DEFAULTS

    def _read_rocksdb(self, root: str) -> bool:
        """Replace the document by the table in RocksDB and return whether the broker keeps it there."""
        if self.rocksdb_name is None or not has_config(self._disk, root):
            return False
        self.path = os.path.dirname(self.path)
        self.source, self.damage = Source.FILE, None
        table: Document = {}
        try:
            table = getattr(read_config(self._disk, root), self.rocksdb_name)
        except StoreError as error:
            if self.needs_rocksdb:
                raise
            self.rocksdb_error = error
        self._document = {self.table_name: table}
        return True

    @abstractmethod
    def _take(self, table: Document) -> None:
        """Check the table that was read, and keep it in the form used for queries."""

    @abstractmethod
    def _fill(self, document: Document) -> None:
        """Put the current state into a copy of the document that was read."""

    @property
    def is_dirty(self) -> bool:
        """Return whether `persist` has something to write."""
        return self._is_dirty

    @property
    def version(self) -> int:
        """Return `dataVersion.counter`, which counts content changes."""
        with self._lock:
            return self._version_field("counter")

    def persist(self) -> bool:
        """Write changes durably and return whether there were any. After an error all changes remain to be written.

        Raises `UnsupportedFormat` for changes of a table in RocksDB.
        """
        with self._saving:
            with self._lock:
                if not self._is_dirty:
                    return False
                document = self._render()
                self._is_dirty = False
            try:
                self._save(document)
            except BaseException:
                with self._lock:
                    self._is_dirty = True
                raise
            return True

    def _save(self, document: Document) -> None:
        if self.is_in_rocksdb:
            raise UnsupportedFormat("configuration:", file=self.path, found="RocksDB", supported="JSON files to write to")
        self._disk.make_folder(os.path.dirname(self.path) or ".")
        self._file.save(document)

    def replace(self, document: Document) -> None:
        """Take the content of another broker's table; `persist` writes it.  After `StoreCorrupt` nothing has changed."""
        with self._lock:
            before = self._document
            if document == before:
                return
            self._document = document
            try:
                self._take(self._map_of(self.table_name))
            except StoreCorrupt:
                self._document = before
                self._take(self._map_of(self.table_name))
                raise
            self._is_dirty = True

    def document(self) -> Document:
        """Return the content as it would be written now."""
        with self._lock:
            return self._render()

    def _render(self) -> Document:
        """Return the document to write: known fields by name, then unknown fields that were read."""
        document = dict(self._document)
        document["dataVersion"] = self._version()
        self._fill(document)
        return dict(sorted(document.items(), key=lambda item: str(item[0])))

    def _change(self, *, counts: bool = True) -> None:
        """Mark the table as changed, under the lock. `counts` increases `dataVersion`."""
        self._is_dirty = True
        if counts:
            version = self._version()
            version["counter"] = self._version_field("counter") + 1
            version["timestamp"] = self._disk.now_ms()
            self._document["dataVersion"] = version

    def _version(self) -> Document:
        """Return `dataVersion` with all its fields."""
        known = self._map_of("dataVersion")
        fresh = {"counter": 0, "stateVersion": 0, "timestamp": self._disk.now_ms()}
        return dict(sorted((fresh | known).items()))

    def _version_field(self, name: str) -> int:
        return self.number(self._map_of("dataVersion"), name, 0, where="dataVersion")

    def _map_of(self, name: str) -> Document:
        """Return a member of the document that is a map; empty if it is absent or null."""
        found = self._document.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.corrupt(name, "a map", found)
        return found

    def corrupt(self, where: str, expected: str, found: object) -> StoreCorrupt:
        """Return the error for a value of the wrong type. It names the member, because the byte offset is no longer known."""
        path = self.path if self.source is Source.FILE else self.path + BACKUP
        return StoreCorrupt(f"{where} in a config file", file=path, offset=0, expected=expected, found=repr(found)[:80])

    def number(self, table: Document, name: str | int, default: int, *, where: str, maximum: int = INT64_MAX) -> int:
        """Return an integer field, also if it is quoted; `default` if it is absent or null."""
        found = table.get(name)
        if found is None:
            return default
        if isinstance(found, str) and _is_integer(found):
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or abs(found) > maximum:
            raise self.corrupt(f"{where}.{name}", f"a number up to {maximum}", found)
        return found

    def count(self, table: Document, name: str, default: int, *, where: str, maximum: int) -> int:
        """Return an integer field that is not negative."""
        found = self.number(table, name, default, where=where, maximum=maximum)
        if found < 0:
            raise self.corrupt(f"{where}.{name}", "no negative number", found)
        return found

    def flag(self, table: Document, name: str, default: bool, *, where: str) -> bool:
        """Return a boolean field; `default` if it is absent or null."""
        return self._field(table, name, default, where, "true or false")

    def text(self, table: Document, name: str, default: str, *, where: str) -> str:
        """Return a text field; `default` if it is absent or null."""
        return self._field(table, name, default, where, "text")

    def _field(self, table: Document, name: str, default: Entry, where: str, expected: str) -> Entry:
        found = table.get(name)
        if found is None:
            return default
        if not isinstance(found, type(default)):
            raise self.corrupt(f"{where}.{name}", expected, found)
        return found

    def offsets(self, table: Document, where: str) -> dict[int, int]:
        """Return a map from integers to integers; keys may be quoted."""
        found = {}
        for key in table:
            number = int(key) if isinstance(key, str) and _is_integer(key) else key
            if isinstance(number, str) or abs(number) > INT64_MAX:
                raise self.corrupt(where, "a number as key", key)
            found[number] = self.number(table, key, 0, where=where)
        return found


class KeyedTable(ConfigTable, Generic[Entry]):
    """A table that has an entry under each name, such as a topic.  Unknown fields of an entry are kept."""

    def _take(self, table: Document) -> None:
        self._raw: dict[str, Document] = {}
        self._entries: dict[str, Entry] = {}
        for key, raw in table.items():
            if not isinstance(raw, dict):
                raise self.corrupt(f"{self.table_name}.{key}", "a map", raw)
            self._raw[str(key)] = raw
            self._entries[str(key)] = self.parse(str(key), raw)

    @abstractmethod
    def parse(self, name: str, raw: Document) -> Entry:
        """Return the entry of a document in RocketMQ's form.  Raises `StoreCorrupt` for a field of another type."""

    def _fill(self, document: Document) -> None:
        document[self.table_name] = dict(self._raw)

    def get(self, name: str) -> Entry | None:
        """Return an entry; None if it does not exist."""
        with self._lock:
            return self._entries.get(name)

    def __contains__(self, name: object) -> bool:
        """Return whether there is an entry of this name."""
        with self._lock:
            return name in self._entries

    @property
    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        with self._lock:
            return not self._entries

    def names(self) -> list[str]:
        """Return all names, sorted."""
        with self._lock:
            return sorted(self._entries)

    def _put(self, name: str, entry: Entry, known: Document) -> None:
        """Set all known fields of an entry."""
        with self._lock:
            merged = self._raw.get(name, {}) | known
            self._raw[name] = dict(sorted(merged.items(), key=lambda item: str(item[0])))
            self._entries[name] = entry
            self._change()

    def delete(self, name: str) -> bool:
        """Remove an entry and return whether it existed.  What it names is not touched."""
        with self._lock:
            if self._entries.pop(name, None) is None:
                return False
            del self._raw[name]
            self._change()
            return True


def _is_integer(text: str) -> bool:
    """Return whether `text` is an integer of fewer than 20 digits."""
    digits = text.removeprefix("-")
    return 0 < len(digits) < 20 and digits.isascii() and digits.isdigit()
