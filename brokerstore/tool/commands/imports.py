"""`import`: messages from the other kind of folder, or from a file of rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from storageio import REAL_DISK, UnknownStore

from ..codes import CLEAN, NO_STORE, PROBLEM
from ..options import JSON, QUIET, plain_command
from ..output import Answer, count_text, print_line, progress, show

if TYPE_CHECKING:
    from brokerstore.identify import FolderKind
    from brokerstore.migrate import Moved
    from messagestore import StoreConfig


@plain_command(
    "import",
    "import vhost --to from-rabbit --small",
    "import orders.jsonl --to from-lines --small",
    "import orders-store --to-rabbit to-rabbit",
)
@click.argument("source", metavar="DIR|FILE", type=click.Path())
@click.option(
    "--to",
    "store",
    metavar="STORE_DIR",
    type=click.Path(),
    help="RocketMQ store to import into, from a RabbitMQ folder or a .jsonl or .parquet file.",
)
@click.option(
    "--to-rabbit",
    "rabbit",
    metavar="RABBIT_DIR",
    type=click.Path(),
    help="RabbitMQ folder to import a store into.",
)
@click.option("--vhost", metavar="NAME", help="Virtual host of the RabbitMQ folder.")
@click.option("--small", is_flag=True, help="Give a new store log files of 64 MiB.")
@JSON
@QUIET
def imports(
    source: str, store: str | None, rabbit: str | None, vhost: str | None, small: bool, as_json: bool, quiet: bool
) -> int:  # fmt: skip
    """Move messages between RabbitMQ and RocketMQ, or from a file.

    The source is only read.  The command may be repeated: messages that were imported before are skipped.
    """
    if (store is None) == (rabbit is None):
        raise click.UsageError("give one of --to STORE_DIR and --to-rabbit RABBIT_DIR")
    more: dict[str, Any] = {}
    if rabbit is not None:
        moved = _to_rabbit(source, rabbit, vhost, quiet)
    elif os.path.isfile(source):
        moved = _from_file(source, str(store), quiet, small)
    else:
        moved, more = _from_rabbit(source, str(store), vhost, quiet, small)
    for failure in moved.failed:
        print_line(f"brokerstore: not imported: {failure}")
    facts = {"queues": moved.queues, "messages": moved.messages, "skipped": moved.skipped, "failed": moved.failed} | more
    imported = f"Imported {count_text(moved.messages, 'message')} of {count_text(moved.queues, 'queue')}"
    text = f"{imported}; {moved.skipped} already there, {len(moved.failed)} not imported"
    return show(Answer(facts, [text], PROBLEM if moved.failed else NO_STORE if moved.unread else CLEAN), as_json)


def _from_rabbit(source: str, store: str, vhost: str | None, quiet: bool, small: bool) -> tuple[Moved, dict[str, Any]]:
    from brokerstore.identify import FolderKind
    from brokerstore.migrate import import_rabbit
    from rabbitstore import RabbitStore
    from rabbitstore.folder import RabbitmqFacts

    from ..backends.rabbitmq_folder import report_running_server, report_unread, unread_keys

    _require_kind(source, FolderKind.RABBITMQ)
    facts = RabbitmqFacts(source)
    report_running_server(facts)
    config = _config(store, small)
    with RabbitStore.open(source, "r", vhost=vhost) as rabbit:
        node = facts.node
        others = node is not None and (node.quorum_queues or node.streams)  # their messages are counted by reading them
        total = 0 if others else sum(queue.messages for queue in rabbit.queues())
    with progress("import", total, quiet=quiet, is_bytes=False) as advance:
        moved = import_rabbit(source, store, vhost=vhost, config=config, progress=advance)
    report_unread(moved.unread)
    return moved, unread_keys(moved.unread)


def _to_rabbit(source: str, rabbit: str, vhost: str | None, quiet: bool) -> Moved:
    from brokerstore.identify import FolderKind
    from brokerstore.migrate import export_to_rabbit

    _require_kind(source, FolderKind.ROCKETMQ)
    with progress("import", 0, quiet=quiet, is_bytes=False) as advance:
        return export_to_rabbit(source, rabbit, vhost=vhost or "/", progress=advance)


def _from_file(source: str, store: str, quiet: bool, small: bool) -> Moved:
    from brokerstore.file_import import import_file

    with progress("import", 0, quiet=quiet, is_bytes=False) as advance:
        return import_file(source, store, config=_config(store, small), progress=advance)


def _config(store: str, small: bool) -> StoreConfig | None:
    """Return the configuration of small files for a new store; None means the default."""
    from messagestore import StoreConfig

    return StoreConfig.small() if small and REAL_DISK.stat(f"{store}/commitlog") is None else None


def _require_kind(source: str, kind: FolderKind) -> None:
    from brokerstore.identify import identify

    found = identify(source)
    if found.kind is not kind:
        raise UnknownStore(f"{source}: a {found.kind.value} folder; this direction reads a {kind.value} folder")
