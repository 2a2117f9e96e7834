"""Read a RocksDB database without changing its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from storageio import StoreCorrupt
from storageio.extras import needs_extra
from storageio.linked_folder import linked_folder

EXTRA = "rocksdb"


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


def _corrupt(path: str, error: Exception) -> StoreCorrupt:
    """Return the error for what RocksDB says about a damaged database; it has no class of its own for that."""
    return StoreCorrupt("RocksDB", file=path, offset=0, expected="a readable database", found=str(error))
