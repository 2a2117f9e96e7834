"""Read a RocksDB database without changing its folder, and create a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from storageio import Closing, Disk, StoreCorrupt, needs_extra

EXTRA = "rocksdb"
ROWS_AT_ONCE = 1000
TABLE_FORMAT = 5  # of the library in RocketMQ 5; newer formats are the default of newer libraries
_OWN_FILE = "rocksdict-config.json"


def can_read() -> bool:
    """Return whether the package that reads RocksDB is installed."""
    with suppress(ValueError):  # a module that was set to None
        return find_spec("rocksdict") is not None
    return False


class Database:
    """An open database: its rows by column family, in the order of their keys."""

    def __init__(self, path: str, opened: Any, families: list[str]) -> None:
        """Keep the open database of `rocksdict`; `path` is the folder that the user knows."""
        self.path = path
        self.families = families
        self._opened = opened

    def rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of each row of a column family; nothing if the database has no such family."""
        if family not in self.families:
            return
        try:
            found = self._opened.get_column_family(family).iter()
            found.seek_to_first()
        except Exception as error:
            raise _corrupt(self.path, error) from error
        while found.valid():
            yield found.key(), found.value()
            found.next()
        try:
            found.status()  # an iterator ends silently at a damaged block
        except Exception as error:
            raise _corrupt(self.path, error) from error

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        try:
            found: bytes | None = self._opened.get_column_family(family).get(key)
        except Exception as error:
            raise _corrupt(self.path, error) from error
        return found


@contextmanager
def open_database(path: str) -> Iterator[Database]:
    """Open a database read-only. Raises `MissingExtra`, and `StoreCorrupt` for one that RocksDB does not open."""
    from storageio.linked_folder import linked_folder  # not needed to count no timers: `info` imports little

    with needs_extra(EXTRA):
        from rocksdict import AccessType, Options, Rdict
    with linked_folder(path) as linked:  # rocksdict writes its own configuration into the folder
        try:
            families = Rdict.list_cf(linked)
            options = {name: Options(raw_mode=True) for name in families}
            opened = Rdict(linked, Options(raw_mode=True), column_families=options, access_type=AccessType.read_only())
        except Exception as error:
            raise _corrupt(path, error) from error
        try:
            yield Database(path, opened, families)
        finally:
            opened.close()


class NewDatabase(Closing):
    """A database that is being created; rows are written in any order."""

    def __init__(self, opened: Any, batch: type[Any]) -> None:
        """Keep the open database of `rocksdict`, and its class of batches."""
        self._opened = opened
        self._new_batch = batch
        self._batch = batch(raw_mode=True)
        self._handles: dict[str, Any] = {}

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Add a row, or replace that of the same key."""
        if family not in self._handles:
            self._handles[family] = self._opened.get_column_family_handle(family)
        self._batch.put(key, value, self._handles[family])
        if len(self._batch) >= ROWS_AT_ONCE:
            self._write()

    def _write(self) -> None:
        self._opened.write(self._batch)
        self._batch = self._new_batch(raw_mode=True)

    def finish(self, families: list[str]) -> None:
        """Write all rows to table files, which RocksDB syncs."""
        self._write()
        for family in families:
            self._opened.get_column_family(family).flush(wait=True)

    def close(self) -> None:
        """Close the database; what still refers to a family would keep it locked for this process."""
        self._handles.clear()
        self._opened.close()


@contextmanager
def new_database(disk: Disk, path: str, families: list[str]) -> Iterator[NewDatabase]:
    """Create a database in a new folder, in a format that RocketMQ 5 opens; it is complete and synced after the block."""
    with needs_extra(EXTRA):
        from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch
    disk.make_folder(path)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_compression_type(DBCompressionType.none())
    tables = BlockBasedOptions()
    tables.set_format_version(TABLE_FORMAT)
    options.set_block_based_table_factory(tables)
    opened = Rdict(path, options, column_families=dict.fromkeys(families, options))
    with NewDatabase(opened, WriteBatch) as made:
        yield made
        made.finish(families)
    own = os.path.join(path, _OWN_FILE)
    if disk.stat(own) is not None:
        disk.delete(own)
    disk.sync_folder(path)


def _corrupt(path: str, error: Exception) -> StoreCorrupt:
    """Return the error for what RocksDB says about a damaged database; it has no class of its own for that."""
    return StoreCorrupt("RocksDB", file=path, offset=0, expected="a readable database", found=str(error))
