"""The commands that read: names and options.  What they do is imported when one runs."""

from __future__ import annotations

import click

from .examples import add_examples
from .options import (
    JSON,
    LIMIT,
    QUEUE,
    QUIET,
    TOPIC,
    Filters,
    filters,
    named_errors,
    queue_number,
    refuse_for_rabbit,
    refuse_reversed,
    with_target,
)
from .target import Target
from .value_types import MOMENT, OFFSET, POSITIVE, TEXT


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        import brokerstore

        click.echo(f"brokerstore {brokerstore.__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Say it and end.")
def brokerstore() -> None:
    """Read, check and repair the message stores of RocketMQ and RabbitMQ, with no broker running.

    Only put, recover --apply, rebuild, offsets reset, copy and import change a folder.  Exit codes: 0 clean, 1 a problem was
    found, 2 wrong use, 3 not a store, 4 in use, 5 input or output failed, 6 repaired with data dropped, 7 repaired, 130
    interrupted.
    """


@brokerstore.command()
@with_target()
@JSON
def info(target: Target, as_json: bool) -> int:
    """What a folder holds: kind, files, sizes, first and last message, index, checkpoint."""
    if target.is_rabbit:
        from .rabbit_commands import show_info as show_rabbit

        return show_rabbit(target, as_json)
    from .info import show_info

    return show_info(target, as_json)


@brokerstore.command()
@with_target(sizes=True)
@JSON
def ls(target: Target, as_json: bool) -> int:
    """Topics and queues, with their offsets and how many messages each holds."""
    if target.is_rabbit:
        from .rabbit_commands import list_queues as list_rabbit

        return list_rabbit(target, as_json)
    from .queue_list import list_queues

    return list_queues(target, as_json)


@brokerstore.command()
@with_target()
@JSON
@filters
@LIMIT
def dump(target: Target, as_json: bool, chosen: Filters, limit: int | None) -> int:
    """Every message, in the order of the log or of the queues, going on past damage."""
    if target.is_rabbit:
        from .rabbit_commands import dump_messages as dump_rabbit

        return dump_rabbit(target, as_json, chosen.for_rabbit(), limit)
    from .log_commands import dump_messages

    return dump_messages(target, as_json, chosen.for_log(), limit)


@brokerstore.command()
@with_target(sizes=True)
@JSON
@click.option("--at", type=OFFSET, help="The message at this physical offset.")
@click.option("--id", "message_id", help="The message of this id.")
@TOPIC
@QUEUE
@click.option("--offset", type=OFFSET, help="The first queue offset (RabbitMQ: sequence number).")
@click.option("--count", type=POSITIVE, default=1, show_default=True, help="So many from there on.")
def get(
    target: Target, as_json: bool, at: int | None, message_id: str | None, topic: str | None, queue: str | None,
    offset: int | None, count: int,
) -> int:  # fmt: skip
    """One message, or some of one queue."""
    by_queue = topic is not None or queue is not None or offset is not None
    if (at is not None) + (message_id is not None) + by_queue != 1:
        raise click.UsageError("one of --at, --id, or a queue with --offset")
    if target.is_rabbit:
        from .rabbit_commands import get_messages as get_rabbit

        if at is not None or (by_queue and (queue is None or offset is None)):
            raise click.UsageError("in a RabbitMQ folder --id, or --queue with --offset")
        return get_rabbit(target, as_json, message_id, queue, offset, count)
    from . import log_commands, queue_commands

    if at is not None:
        return log_commands.get_message(target, as_json, at)
    if message_id is not None:
        return log_commands.get_by_id(target, as_json, message_id)
    number = queue_number(queue)
    if topic is None or number is None or offset is None:
        raise click.UsageError("--topic, --queue and --offset go together")
    return queue_commands.get_messages(target, as_json, topic, number, offset, count)


@brokerstore.command()
@with_target(sizes=True)
@click.argument("topic", type=TEXT)
@click.argument("key", type=TEXT)
@JSON
@click.option(
    "--begin",
    type=MOMENT,
    metavar="TIME",
    help="Stored then or later: milliseconds or ISO 8601, in UTC unless it says otherwise.",
)
@click.option("--end", type=MOMENT, metavar="TIME", help="Stored then or before; as --begin.")
@click.option("--max", "max_count", type=POSITIVE, default=32, show_default=True, help="At most so many.")
def query(
    target: Target, topic: str, key: str, as_json: bool, begin: int | None, end: int | None, max_count: int
) -> int:  # fmt: skip
    """Messages of a topic with a key, by the index.

    Of a RabbitMQ folder TOPIC is the queue, and KEY a routing key, message id or correlation id.
    """
    refuse_for_rabbit(target, "query", begin=begin is not None, end=end is not None)
    refuse_reversed(begin__end=(begin, end))
    if target.is_rabbit:
        from .rabbit_commands import query_messages as query_rabbit

        return query_rabbit(target, as_json, topic, key, max_count)
    from .queue_commands import query_messages

    return query_messages(target, as_json, topic, key, (begin, end), max_count)


@brokerstore.command()
@with_target(sizes=True)
@JSON
@filters
@click.option("-n", "--lines", type=OFFSET, default=10, show_default=True, help="The last so many.")
@click.option("-f", "--follow", is_flag=True, help="Go on as messages come, until interrupted.")
def tail(target: Target, as_json: bool, chosen: Filters, lines: int, follow: bool) -> int:
    """The last messages of the log, and what comes then.  Of a RabbitMQ folder: the last of each queue."""
    refuse_for_rabbit(target, "tail", follow=follow)
    if target.is_rabbit:
        from .rabbit_commands import show_tail as tail_rabbit

        return tail_rabbit(target, as_json, chosen.for_rabbit(), lines)
    from .tail import show_tail

    return show_tail(target, as_json, chosen.for_log(), lines, follow)


@brokerstore.command()
@with_target()
@JSON
@click.option("--by", type=click.Choice(["queue", "hour"]), default="queue", show_default=True, help="What a row is.")
@QUIET
def stats(target: Target, as_json: bool, by: str, quiet: bool) -> int:
    """Messages, bytes, first and last time of every queue, or of every topic by the hour."""
    if by == "hour":
        refuse_for_rabbit(target, "stats --by hour")
    if target.is_rabbit:
        from .rabbit_commands import show_stats as stats_rabbit

        return stats_rabbit(target, as_json, quiet)
    from .stats import show_stats

    return show_stats(target, as_json, by, quiet)


@brokerstore.command()
@with_target(sizes=True)
@JSON
@QUIET
@click.option("--log-only", is_flag=True, help="The log alone, without queues, index, checkpoint and config.")
def verify(target: Target, as_json: bool, quiet: bool, log_only: bool) -> int:
    """Check every file and every record, and whether queues and index agree with them; name each problem."""
    refuse_for_rabbit(target, "verify", log_only=log_only)
    if target.is_rabbit:
        from .rabbit_commands import verify_folder

        return verify_folder(target, as_json, quiet)
    from .verify import verify_target

    return verify_target(target, as_json, quiet, log_only)


@brokerstore.command()
@with_target()
@click.option("--to", "form", type=click.Choice(["jsonl", "parquet", "arrow", "csv"]), default="jsonl", show_default=True)
@click.option("-o", "--out", metavar="FILE", type=click.Path(), help="Instead of stdout; parquet and arrow need one.")
@filters
@LIMIT
@click.option(
    "--csv-guard/--no-csv-guard",
    default=True,
    show_default=True,
    help="Of csv: an apostrophe before text that a spreadsheet would take for a formula, escapes for control characters.",
)
@click.option("--json", "as_json", is_flag=True, help="With --out: what was written, as one JSON object on stdout.")
@QUIET
def export(
    target: Target, form: str, out: str | None, chosen: Filters, limit: int | None, as_json: bool, quiet: bool, *,
    csv_guard: bool,
) -> int:  # fmt: skip
    """Every message as JSON Lines, Parquet, Arrow or CSV; constant memory.

    Interrupted, an export into a file goes on where it stopped when the same command is run again.
    """
    if out is None and form in ("parquet", "arrow"):
        raise click.UsageError(f"{form} needs --out FILE")
    if out is None and as_json:
        raise click.UsageError("--json needs --out FILE: stdout has the messages")
    from .export import Order

    order = Order(form, out, limit, as_json, quiet, csv_guard)
    if target.is_rabbit:
        from .rabbit_export import export_messages as export_rabbit

        return export_rabbit(target, order, chosen.for_rabbit())
    from .export import export_messages

    return export_messages(target, order, chosen.for_log())


@brokerstore.command("decode-id")
@click.argument("message_id", metavar="ID")
@JSON
@named_errors
def decode_id(message_id: str, as_json: bool) -> int:
    """The broker address and physical offset that a message id holds."""
    from .log_commands import show_id

    return show_id(message_id, as_json)


@brokerstore.command()
@JSON
@named_errors
def doctor(as_json: bool) -> int:
    """Which build of the kernels runs, versions, platform."""
    from .doctor import examine

    return examine(as_json)


def _add_other_commands() -> None:
    from . import cli_more, cli_write, mqadmin

    for command in (*cli_write.COMMANDS, *cli_more.COMMANDS, *mqadmin.COMMANDS):
        brokerstore.add_command(command)
    add_examples(brokerstore)


_add_other_commands()
