"""The commands' names and options.  What they do is imported when one runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from storageio import StoreError

from .codes import exit_code
from .output import ReaderWentError, say

DIR = click.argument("folder", metavar="DIR", type=click.Path())
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, or one line a message, on stdout.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")


def _named_errors(command: Callable[..., int]) -> Callable[..., int]:
    """Errors of the library become a line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> int:
        try:
            return command(*arguments, **options)
        except StoreError as error:
            say(f"brokerstore: {type(error).__name__}: {error}")
            return exit_code(error)
        except BrokenPipeError as error:
            raise ReaderWentError from error  # click would make a problem of it

    return run


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        import brokerstore

        click.echo(f"brokerstore {brokerstore.__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Say it and end.")
def brokerstore() -> None:
    """Read, check and repair the message stores of RocketMQ and RabbitMQ, with no broker running.

    Nothing here changes a store.  Exit codes: 0 clean, 1 a problem was found, 2 wrong use, 3 not a store, 4 in use,
    5 input or output failed, 130 interrupted.
    """


@brokerstore.command()
@DIR
@JSON
@_named_errors
def info(folder: str, as_json: bool) -> int:
    """What a folder holds: kind, files, first and last message."""
    from .log_commands import show_info

    return show_info(folder, as_json)


@brokerstore.command()
@DIR
@JSON
@_named_errors
def ls(folder: str, as_json: bool) -> int:
    """Topics and queues, with their offsets and how many messages each holds."""
    from .log_commands import list_queues

    return list_queues(folder, as_json)


@brokerstore.command()
@DIR
@JSON
@click.option("--topic", help="Only messages of this topic.")
@click.option("--queue", "queue_id", type=int, help="Only messages of this queue id.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many messages.")
@_named_errors
def dump(folder: str, as_json: bool, topic: str | None, queue_id: int | None, limit: int | None) -> int:
    """Every message in the order of the log, going on past damage."""
    from .log_commands import Wanted, dump_messages

    return dump_messages(folder, as_json, Wanted(topic, queue_id), limit)


@brokerstore.command()
@DIR
@JSON
@click.option("--at", "offset", type=click.IntRange(min=0), required=True, help="The message's physical offset.")
@_named_errors
def get(folder: str, as_json: bool, offset: int) -> int:
    """One message."""
    from .log_commands import get_message

    return get_message(folder, as_json, offset)


@brokerstore.command()
@DIR
@JSON
@QUIET
@_named_errors
def verify(folder: str, as_json: bool, quiet: bool) -> int:
    """Check every file and every record; name each problem."""
    from .log_commands import verify_store

    return verify_store(folder, as_json, quiet)


@brokerstore.command("decode-id")
@click.argument("message_id", metavar="ID")
@JSON
@_named_errors
def decode_id(message_id: str, as_json: bool) -> int:
    """The broker address and physical offset that a message id holds."""
    from .log_commands import show_id

    return show_id(message_id, as_json)


@brokerstore.command()
@JSON
@_named_errors
def doctor(as_json: bool) -> int:
    """Which build of the kernels runs, versions, platform."""
    from .doctor import examine

    return examine(as_json)
