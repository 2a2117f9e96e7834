"""`import`: between a RabbitMQ folder and a RocketMQ store, and from files of rows."""

from __future__ import annotations

from typing import Any

from brokerstore.file_import import import_file
from brokerstore.identify import FolderKind, identify
from brokerstore.migrate import Moved, export_to_rabbit, import_rabbit
from messagestore import StoreConfig
from rabbitstore import RabbitStore
from storageio import REAL_DISK, UnknownStore

from .codes import CLEAN, PROBLEM
from .output import emit, emit_json, progress, say
from .rabbit_commands import not_read_keys, say_not_read
from .target import say_if_running


def import_from_rabbit(source: str, store: str, vhost: str | None, as_json: bool, quiet: bool, *, small: bool) -> int:
    """Into a commit log."""
    _must_be(source, FolderKind.RABBITMQ)
    say_if_running(source)
    is_new = REAL_DISK.stat(f"{store}/commitlog") is None
    with RabbitStore.open(source, "r", vhost=vhost) as rabbit:
        total = sum(queue.messages for queue in rabbit.queues())
    config = StoreConfig.small() if small and is_new else StoreConfig()
    with progress("import", total, wanted=not quiet, is_bytes=False) as advance:
        moved = import_rabbit(source, store, vhost=vhost, config=config, progress=advance)
    say_not_read(source)
    return _show(moved, as_json, not_read_keys(source))


def import_to_rabbit(source: str, rabbit: str, vhost: str | None, as_json: bool, quiet: bool) -> int:
    """Into a virtual host's folder."""
    _must_be(source, FolderKind.ROCKETMQ)
    with progress("import", 0, wanted=not quiet, is_bytes=False) as advance:
        moved = export_to_rabbit(source, rabbit, vhost=vhost or "/", progress=advance)
    return _show(moved, as_json)


def import_rows(source: str, store: str, as_json: bool, quiet: bool, *, small: bool) -> int:
    """A file of JSON Lines or Parquet into a commit log."""
    is_new = REAL_DISK.stat(f"{store}/commitlog") is None
    with progress("import", 0, wanted=not quiet, is_bytes=False) as advance:
        moved = import_file(source, store, config=StoreConfig.small() if small and is_new else None, progress=advance)
    return _show(moved, as_json)


def _must_be(source: str, kind: FolderKind) -> None:
    found = identify(source)
    if found.kind is not kind:
        raise UnknownStore(f"{source}: a {found.kind.value} folder; this direction reads a {kind.value} one")


def _show(moved: Moved, as_json: bool, more: dict[str, Any] | None = None) -> int:
    for failure in moved.failed:
        say(f"brokerstore: left out: {failure}")
    if as_json:
        counts = {"queues": moved.queues, "messages": moved.messages, "skipped": moved.skipped, "failed": moved.failed}
        emit_json(counts | (more or {}))
    else:
        emit(f"{moved.messages} messages of {moved.queues} queues; {moved.skipped} were there; {len(moved.failed)} left out")
    return PROBLEM if moved.failed else CLEAN
