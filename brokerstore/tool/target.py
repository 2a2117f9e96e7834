"""The folder that a command was given, with what its options and a broker's own properties say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from brokerstore.identify import FolderKind, identify
from storageio import REAL_DISK

if TYPE_CHECKING:
    from messagestore.folder import FolderFacts
    from rabbitstore.folder import RabbitmqFacts

_SIZES = ("mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num")


class Target(NamedTuple):
    """A folder's facts, and what the command was told about it.

    `settings` are fields of `StoreConfig`; `vhost` selects one of several virtual hosts of a RabbitMQ node; `broker_file` is
    the content of a broker's own file, if one was given.
    """

    facts: FolderFacts | RabbitmqFacts
    settings: dict[str, Any]
    vhost: str | None = None
    broker_file: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """The folder as it was given."""
        return self.facts.path

    @property
    def kind(self) -> FolderKind:
        """The kind of the folder."""
        return self.facts.kind


def find_target(folder: str, options: dict[str, Any]) -> Target:
    """Identify a folder; options of the command line override the broker's file.

    Raises `UnknownStore` if the folder holds no store.
    """
    broker_file = _read_broker_file(options.get("config"))
    settings = _broker_settings(broker_file)
    settings |= {name: value for name, value in options.items() if name in _SIZES and value is not None}
    if options.get("commitlog"):
        settings["store_path_commit_log"] = options["commitlog"]
    facts = identify(folder, commit_log=settings.get("store_path_commit_log"))
    return Target(facts, settings, options.get("vhost"), broker_file)


def _read_broker_file(path: str | None) -> dict[str, Any] | None:
    """Read a broker.conf; known keys get their names in `StoreConfig`."""
    if path is None:
        return None
    from messagestore.broker.config.broker_properties import read_broker_properties

    return dict(read_broker_properties(REAL_DISK, path))


def _broker_settings(broker_file: dict[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a broker.conf that opening a store needs."""
    if broker_file is None:
        return {}
    from dataclasses import fields

    from messagestore import StoreConfig
    from messagestore.config import DELAY_LEVELS, clamped_ratios

    known = {field.name for field in fields(StoreConfig)}
    given = {"message_delay_level": DELAY_LEVELS} | broker_file  # RocketMQ's default if the file does not set it
    return clamped_ratios({name: value for name, value in given.items() if name in known})
