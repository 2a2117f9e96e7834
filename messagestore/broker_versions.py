"""What RocketMQ brokers of different versions write: one table, which the store, the checks and the docs follow.

A version between two rows writes what the row before it says. The folder shows the least version that a broker of it had.
"""

from __future__ import annotations

from typing import NamedTuple


class BrokerVersion(NamedTuple):
    """One version, and what its broker writes that others do not."""

    name: str
    has_long_topics: bool = True  # records of version 2; an older broker ends the log at the first one
    has_tag_items: bool = False  # the key index has an item for the tags of a record
    has_rocksdb_store: bool = False  # each start creates the database `rocksdbstore`
    has_logics_offset: bool = False  # the checkpoint has `logics_physical_offset`

    @property
    def order(self) -> tuple[int, ...]:
        """Return the numbers of the version, for comparisons."""
        return tuple(map(int, self.name.split(".")))


BROKER_VERSIONS = (
    BrokerVersion("4.9.7", has_long_topics=False),
    BrokerVersion("5.3.3"),
    BrokerVersion("5.4.0", has_tag_items=True, has_rocksdb_store=True),
    BrokerVersion("5.5.0", has_tag_items=True, has_rocksdb_store=True, has_logics_offset=True),
    BrokerVersion("5.5.1", has_tag_items=True, has_rocksdb_store=True, has_logics_offset=True),
)
BY_NAME = {version.name: version for version in BROKER_VERSIONS}
DEFAULT = "5.3.3"  # of new stores


def shown_version(*, has_rocksdb_store: bool, has_logics_offset: bool) -> BrokerVersion:
    """Return the first version whose broker leaves these traces in a folder."""
    return next(
        version
        for version in BROKER_VERSIONS
        if version.has_rocksdb_store >= has_rocksdb_store and version.has_logics_offset >= has_logics_offset
    )


def known_version(name: str | None) -> BrokerVersion:
    """Return the row of a version; the default one for None or a name that a later release of this library has kept."""
    return BY_NAME.get(name or DEFAULT, BY_NAME[DEFAULT])
