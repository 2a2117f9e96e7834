"""The folder that a command was given, with what its options and a broker's own properties say about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerstore.identify import FolderKind, StoreFolder, identify, is_folder
from brokerstore.opening import refuse_unread
from commitlog.growing import whole_end
from commitlog.walk import LogFiles
from storageio import REAL_DISK, InvalidMessage, UnknownStore

from .output import say

if TYPE_CHECKING:
    from messagestore import StoreConfig

ROCKETMQ_KINDS = (FolderKind.ROCKETMQ, FolderKind.LOG, FolderKind.ROCKSDB, FolderKind.DLEDGER)


class Target(NamedTuple):
    """`settings` are fields of `StoreConfig`; `vhost` names one of several virtual hosts of a RabbitMQ node; `said` is all
    that a broker's own file says, where one was given.
    """

    path: str
    kind: FolderKind
    log_folders: list[str]
    settings: dict[str, Any]
    vhost: str | None = None
    said: dict[str, Any] | None = None

    @property
    def is_rabbit(self) -> bool:
        """Whether a RabbitMQ virtual host, or a node with some, lies there."""
        return self.kind is FolderKind.RABBITMQ

    @property
    def is_in_use(self) -> bool:
        """Whether a broker or a writer of ours holds the lock of the store."""
        root = os.path.dirname(os.path.abspath(self.path)) if self.kind is FolderKind.LOG else self.path
        return not self.is_rabbit and REAL_DISK.is_locked(os.path.join(root, "lock"))

    def files(self) -> LogFiles:
        """The log's files; of a store in use up to the end that the log has now.  Raises `UnknownStore` without a log."""
        if not self.log_folders or self.kind is FolderKind.DLEDGER:
            refuse_unread(StoreFolder(self.path, self.kind, self.log_folders))
            raise UnknownStore(f"{self.path}: a {self.kind.value} folder; it has no commit log to read")
        size = self.settings.get("mapped_file_size_commit_log")
        end_offset = whole_end(REAL_DISK, self.log_folders, size) if self.is_in_use else None
        return LogFiles(REAL_DISK, self.log_folders, size, end_offset=end_offset)

    def config(self) -> StoreConfig:
        """For the engine."""
        from messagestore import StoreConfig

        return StoreConfig(**self.settings)

    def need_store(self) -> None:
        """Raise `UnknownStore` for anything but a RocketMQ store with queues in files."""
        refuse_unread(StoreFolder(self.path, self.kind, self.log_folders))
        if self.kind is not FolderKind.ROCKETMQ:
            raise UnknownStore(f"{self.path}: a {self.kind.value} folder; this command needs a RocketMQ store's folder")

    def need_shape(self) -> None:
        """Raise `InvalidMessage` where index files hold keys and do not say how many slots they have.

        Whoever writes into files without a key asks for the slots too (`store_settings`).
        """
        from messagestore.read.beside_writer import PAUSE_S, TRIES, beside_writer

        for _ in range(TRIES):  # an item may be on its way, or the newest file just made
            if beside_writer(REAL_DISK, self.path, self._has_shape):
                return
            if not self.is_in_use:
                break
            REAL_DISK.sleep(PAUSE_S)
        folder = os.path.join(self.path, "index")
        raise InvalidMessage(f"{folder}: the files do not say how many slots they have; give --index-slots and --index-num")

    def _has_shape(self) -> bool:
        from indexfile import PAUSES_S, index_paths, itemless_shape
        from messagestore.store_settings import index_shape

        folder, own = (os.path.join(self.path, name) for name in ("index", "brokerstore"))
        paths = index_paths(REAL_DISK, folder)[0]
        is_unsaid = "max_hash_slot_num" not in self.settings or "max_index_num" not in self.settings
        if not paths or not is_unsaid or itemless_shape(REAL_DISK, paths) is not None:
            return True
        return index_shape(REAL_DISK, folder, own, PAUSES_S) is not None

    def has(self, name: str) -> bool:
        """Whether something of this name lies in the folder."""
        return REAL_DISK.stat(os.path.join(self.path, name)) is not None


def find_target(folder: str, options: dict[str, Any]) -> Target:
    """From the options of the command line, which count before those of the broker's file.

    Raises `UnknownStore` where no store is.
    """
    said = _broker_file(options.get("config"))
    settings = _broker_settings(said) | {name: value for name, value in options.items() if name in _SIZES and value is not None}
    if options.get("commitlog"):
        settings["store_path_commit_log"] = options["commitlog"]
    elsewhere = settings.get("store_path_commit_log")
    if elsewhere and is_folder(REAL_DISK, folder):
        return Target(folder, FolderKind.ROCKETMQ, _log_folders(elsewhere), settings, None, said)
    found = identify(folder)
    if found.kind is FolderKind.RABBITMQ:
        say_if_running(found.path)
    return Target(found.path, found.kind, found.log_folders, settings, options.get("vhost"), said)


def say_if_running(path: str) -> None:
    """On stderr, where a server has a RabbitMQ folder: a look at its files is not a look at its messages."""
    from rabbitstore.folder_lock import running_server

    server = running_server(REAL_DISK, path)
    if server is not None:
        who = f"{server.name}, process {server.process_id}"
        say(f"brokerstore: a server runs on this folder ({who}): what it has in memory alone is not seen")


_SIZES = ("mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num")


def _log_folders(text: str) -> list[str]:
    folders = [part.strip() for part in text.split(",") if part.strip()]
    for folder in folders:
        if not is_folder(REAL_DISK, folder):
            raise UnknownStore(f"{folder}: no such folder of a commit log")
    return folders


def _broker_file(path: str | None) -> dict[str, Any] | None:
    """A broker.conf, with known keys under their names in `StoreConfig`."""
    if path is None:
        return None
    from messagestore.broker.config.broker_properties import read_broker_properties

    return dict(read_broker_properties(REAL_DISK, path))


def _broker_settings(said: dict[str, Any] | None) -> dict[str, Any]:
    """What a broker.conf says that a store's opening needs."""
    if said is None:
        return {}
    from dataclasses import fields

    from messagestore import StoreConfig
    from messagestore.config import DELAY_LEVELS

    known = {field.name for field in fields(StoreConfig)}
    said = {"message_delay_level": DELAY_LEVELS} | said  # a broker that is not told has RocketMQ's
    return {name: value for name, value in said.items() if name in known}
