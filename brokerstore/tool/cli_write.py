"""The commands that change a folder: names and options.  What they do is imported when one runs."""

from __future__ import annotations

import os

import click

from .options import DROP_TRANSIENT, JSON, QUIET, named_errors, refuse_for_log, refuse_for_rabbit, with_target
from .target import Target
from .value_types import I64_MAX, MOMENT, POSITIVE, QUEUE_ID, TEXT


@click.command()
@with_target(sizes=True)
@click.argument("topic", type=TEXT)
@click.argument("body", required=False)
@JSON
@click.option("--body-file", metavar="FILE", type=click.Path(), help="The body, '-' for stdin; stdin too without any body.")
@click.option("--key", "keys", type=TEXT, multiple=True, help="A key; as often as wanted.")
@click.option("--tag", type=TEXT, help="The tag.")
@click.option("--property", "properties", type=TEXT, metavar="NAME=VALUE", multiple=True, help="As often as wanted.")
@click.option("--queue", "queue_id", type=QUEUE_ID, help="The queue id; else by key, or in turn.")
@DROP_TRANSIENT
def put(
    target: Target, topic: str, body: str | None, as_json: bool, body_file: str | None, keys: tuple[str, ...],
    tag: str | None, properties: tuple[str, ...], queue_id: int | None, drop_transient: bool,
) -> int:  # fmt: skip
    """Put one message; it is on the disk when the command ends.

    Of a RabbitMQ folder TOPIC is the queue, --key a routing key, and --property one of AMQP's, or a header.
    """
    if body is not None and body_file is not None:
        raise click.UsageError("a body or --body-file, not both")
    refuse_for_log(target, drop_transient=drop_transient)
    from .put import Outgoing, put_message

    outgoing = Outgoing(topic, body, body_file, keys, tag, properties, queue_id)
    if target.is_rabbit:
        from .rabbit_write import put_message as put_rabbit

        return put_rabbit(target, as_json, outgoing, drop_transient=drop_transient)
    return put_message(target, as_json, outgoing)


@click.command()
@with_target(sizes=True)
@JSON
@QUIET
@click.option("--apply", is_flag=True, help="Do it; without this nothing is changed.")
@click.option("--skip-bad", is_flag=True, help="Close holes with filler records and keep what lies behind them.")
@click.option("--truncate", is_flag=True, help="End the log at the first hole, as RocketMQ does.")
@click.option("--no-backup", is_flag=True, help="Do not keep what is cut beside the store.")
@click.option("--follow-links", is_flag=True, help="Mend a log that is a link to another disk, too.")
@click.option("--force", is_flag=True, help="Truncate even in front of timers; take an unknown magic for a damaged one.")
def recover(
    target: Target, as_json: bool, quiet: bool, apply: bool, skip_bad: bool, truncate: bool, no_backup: bool,
    follow_links: bool, force: bool,
) -> int:  # fmt: skip
    """Say what would make the folder whole, and with --apply do it."""
    if skip_bad and truncate:
        raise click.UsageError("--skip-bad or --truncate, not both")
    refuse_for_rabbit(target, "recover", skip_bad=skip_bad, truncate=truncate, follow_links=follow_links, force=force)
    if target.is_rabbit:
        from .rabbit_commands import recover_folder

        return recover_folder(target, as_json, apply=apply, keep_backup=not no_backup, quiet=quiet)
    from .recover import recover_store

    choice = "skip-bad" if skip_bad else "truncate" if truncate else "refuse"
    return recover_store(
        target, as_json, quiet, choice, apply=apply, keep_backup=not no_backup, follow_links=follow_links, force=force
    )


@click.command()
@with_target(sizes=True)
@click.argument("what", type=click.Choice(["consumequeue", "index", "all"]), default="all")
@JSON
@QUIET
@DROP_TRANSIENT
def rebuild(target: Target, what: str, as_json: bool, quiet: bool, drop_transient: bool) -> int:
    """Make queues, index or both anew from the log.

    Of a RabbitMQ folder: the files of a clean stop, so that a server starts without reading every message.
    """
    if target.is_rabbit:
        from .rabbit_write import rebuild_tables

        if what != "all":
            raise click.UsageError(f"rebuild {what} works on a RocketMQ store; {target.path} is a RabbitMQ folder")
        return rebuild_tables(target, as_json, drop_transient=drop_transient)
    refuse_for_log(target, drop_transient=drop_transient)
    from .rebuild import rebuild_target

    return rebuild_target(target, what, as_json, quiet)


@click.group()
def offsets() -> None:
    """How far consumer groups have read, and setting it."""


@offsets.command("show")
@with_target(sizes=True)
@JSON
@click.option("--group", type=TEXT, help="Only this group.")
@click.option("--topic", type=TEXT, help="Only this topic.")
def show_offsets(target: Target, as_json: bool, group: str | None, topic: str | None) -> int:
    """Offset and lag of every group and queue."""
    refuse_for_rabbit(target, "offsets")
    from .offsets import show

    return show(target, as_json, group, topic)


@offsets.command("reset")
@with_target(sizes=True)
@JSON
@click.option("--group", type=TEXT, required=True, help="The group.")
@click.option("--topic", type=TEXT, required=True, help="The topic.")
@click.option("--queue", "queue_id", type=QUEUE_ID, help="Only this queue id.")
@click.option("--to", "where", help="earliest, latest, or a queue offset.")
@click.option(
    "--to-time",
    "time_ms",
    type=MOMENT,
    metavar="TIME",
    help="The first message stored then or later: milliseconds or ISO 8601, in UTC unless it says otherwise.",
)
def reset_offsets(
    target: Target, as_json: bool, group: str, topic: str, queue_id: int | None, where: str | None, time_ms: int | None
) -> int:  # fmt: skip
    """Set the next offset to read; no broker may run."""
    refuse_for_rabbit(target, "offsets")
    is_place = where in ("earliest", "latest") or _is_offset(where)
    if (where is None) == (time_ms is None) or (where is not None and not is_place):
        raise click.UsageError("one of --to earliest|latest|OFFSET and --to-time TIME")
    from .offsets import reset

    return reset(target, as_json, (group, topic, queue_id), where, time_ms)


def _is_offset(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= I64_MAX


@click.command("import")
@click.argument("source", metavar="DIR|FILE", type=click.Path())
@click.option(
    "--to",
    "store",
    metavar="STORE_DIR",
    type=click.Path(),
    help="From a RabbitMQ folder, or a .jsonl or .parquet file, into this RocketMQ store.",
)
@click.option("--to-rabbit", "rabbit", metavar="RABBIT_DIR", type=click.Path(), help="From a RocketMQ store into this folder.")
@click.option(
    "--vhost", metavar="NAME", help="Of a RabbitMQ node with several virtual hosts; the new folder's with --to-rabbit."
)
@click.option("--small", is_flag=True, help="A new store gets 64 MiB log files.")
@JSON
@QUIET
@named_errors
def import_(
    source: str, store: str | None, rabbit: str | None, vhost: str | None, small: bool, as_json: bool, quiet: bool
) -> int:  # fmt: skip
    """Move messages between a RabbitMQ folder and a RocketMQ store, or from a file into a store.

    The source is only read.  May be run again: what is there is passed over.
    """
    if (store is None) == (rabbit is None):
        raise click.UsageError("one of --to STORE_DIR and --to-rabbit RABBIT_DIR")
    from .imports import import_from_rabbit, import_rows, import_to_rabbit

    if store is not None and os.path.isfile(source):
        return import_rows(source, store, as_json, quiet, small=small)
    if store is not None:
        return import_from_rabbit(source, store, vhost, as_json, quiet, small=small)
    assert rabbit is not None
    return import_to_rabbit(source, rabbit, vhost, as_json, quiet)


@click.command()
@with_target()
@click.option("--to", "new", metavar="NEW_DIR", required=True, type=click.Path(), help="The new store; no store may be there.")
@click.option("--topic", "topics", type=TEXT, multiple=True, help="A topic to copy; as often as wanted.")
@click.option("--all", "every", is_flag=True, help="Every topic.")
@click.option("--commitlog-size", "new_mapped_file_size_commit_log", type=POSITIVE, help="Bytes of the new store's log files.")
@click.option("--cq-size", "new_mapped_file_size_consume_queue", type=POSITIVE, help="Bytes of its queue files.")
@click.option("--index-slots", "new_max_hash_slot_num", type=POSITIVE, help="Slots of its index files.")
@click.option("--index-num", "new_max_index_num", type=POSITIVE, help="Items of its index files.")
@JSON
@QUIET
def copy(
    target: Target, new: str, topics: tuple[str, ...], as_json: bool, quiet: bool, *, every: bool, **sizes: int | None
) -> int:  # fmt: skip
    """Copy topics into a new store, with their offsets, times and groups; sizes not given stay as they are."""
    refuse_for_rabbit(target, "copy")
    if bool(topics) == every:
        raise click.UsageError("--topic NAME, as often as wanted, or --all")
    from .copy import copy_store

    return copy_store(target, as_json, quiet, new, topics, sizes, every=every)


COMMANDS: tuple[click.Command, ...] = (put, recover, rebuild, offsets, copy, import_)
