"""Options that several commands share, and what turns a library's errors into exit codes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from storageio import StoreError

from .codes import exit_code
from .hints import after_answer, after_error
from .output import ReaderWentError, say
from .target import Target, find_target
from .value_types import I32_MAX, MOMENT, OFFSET, POSITIVE, TEXT, is_utf8
from .wanted import RabbitWanted, Wanted

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, or one line a message, on stdout.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
DROP_TRANSIENT = click.option(
    "--drop-transient", is_flag=True, help="RabbitMQ: let go of transient messages, as a server does at its start."
)
TOPIC = click.option("--topic", type=TEXT, help="Only messages of this topic.")
QUEUE = click.option("--queue", help="Only messages of this queue id (RocketMQ) or queue name (RabbitMQ).")
LIMIT = click.option("--limit", type=OFFSET, help="At most so many messages.")

_STORE = (
    click.argument("folder", metavar="DIR", type=click.Path()),
    click.option("--config", metavar="FILE", type=click.Path(), help="A broker's properties (broker.conf)."),
    click.option("--commitlog", metavar="DIRS", help="Where the log lies if not in DIR; several with commas."),
    click.option("--vhost", metavar="NAME", help="Of a RabbitMQ node with several virtual hosts."),
)
_SIZES = (
    click.option("--index-slots", "max_hash_slot_num", type=POSITIVE, help="Slots of an index file."),
    click.option("--index-num", "max_index_num", type=POSITIVE, help="Items of an index file."),
    click.option("--commitlog-size", "mapped_file_size_commit_log", type=POSITIVE, help="Bytes of a log file."),
    click.option("--cq-size", "mapped_file_size_consume_queue", type=POSITIVE, help="Bytes of a queue file."),
)
_TARGET_OPTIONS = (
    "config",
    "commitlog",
    "vhost",
    "max_hash_slot_num",
    "max_index_num",
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
)
_FOLDERS = ("folder", "first", "second", "store", "rabbit", "new", "source")
Command = Callable[..., int]


def named_errors(command: Command) -> Command:
    """Errors of the library become a line on stderr, another that says what to run next, and an exit code."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> int:
        try:
            return command(*arguments, **options)
        except StoreError as error:
            say(f"brokerstore: {type(error).__name__}: {error}")
            _say_next(after_error(error, _command_name(), _folder_of(error, options)))
            return exit_code(error)
        except BrokenPipeError as error:
            raise ReaderWentError from error  # click would make a problem of it

    return run


def _folder_of(error: StoreError, options: dict[str, Any]) -> str | None:
    """Of those that a command was given the one that the error is about; else the first."""
    given = [str(options[name]) for name in _FOLDERS if options.get(name)]
    return next((folder for folder in given if folder in str(error)), given[0] if given else None)


def _command_name() -> str:
    """Without the tool's own name: `offsets show`."""
    return click.get_current_context().command_path.partition(" ")[2]


def _say_next(line: str) -> None:
    if line:
        say(f"brokerstore: {line}")


def with_target(*, sizes: bool = False) -> Callable[[Command], Command]:
    """The argument DIR and the options that say more of it; the command gets a `Target` as its first argument."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(folder: str, **options: Any) -> int:
            about = {name: options.pop(name, None) for name in _TARGET_OPTIONS}
            code = command(find_target(folder, about), **options)
            choice = next((f"--{name.replace('_', '-')}" for name in ("skip_bad", "truncate") if options.get(name)), "")
            _say_next(after_answer(code, _command_name(), folder, choice))
            return code

        wrapped: Command = named_errors(run)
        for option in reversed((*_STORE, *(_SIZES if sizes else ()))):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def refuse_reversed(**bounds: tuple[int | None, int | None]) -> None:
    """Wrong use of a pair of options, named `begin__end`, whose second is before the first: nothing could fit."""
    for names, (low, high) in bounds.items():
        if low is not None and high is not None and low > high:
            first, second = (f"--{name.replace('_', '-')}" for name in names.split("__"))
            raise click.UsageError(f"{first} {low} lies behind {second} {high}")


def queue_number(queue: str | None) -> int | None:
    """A queue id of RocketMQ; wrong use for anything else."""
    if queue is None:
        return None
    if not (queue.isascii() and queue.isdigit()) or len(queue) > 10 or int(queue) > I32_MAX:
        raise click.BadParameter(f"{queue!r} is no queue id", param_hint="--queue")
    return int(queue)


def named_values(properties: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Of NAME=VALUE; wrong use for anything else."""
    found = []
    for text in properties:
        name, joint, value = text.partition("=")
        if not name or not joint:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
        found.append((name, value))
    return tuple(found)


class Filters(NamedTuple):
    """What `filters` gathered from the command line."""

    topic: str | None
    queue: str | None
    begin_ms: int | None
    end_ms: int | None
    from_offset: int | None
    to_offset: int | None
    key: str | None
    tag: str | None
    properties: tuple[tuple[str, str], ...]

    def for_log(self) -> Wanted:
        """On a RocketMQ folder."""
        if self.key is not None and not is_utf8(self.key):
            raise click.BadParameter(f"{self.key!r} is not UTF-8", param_hint="--key")
        return Wanted(self.topic, queue_number(self.queue), *self[2:])

    def for_rabbit(self) -> RabbitWanted:
        """On a RabbitMQ folder; wrong use of a filter that its messages have no field for."""
        given = {"--topic": self.topic, "--begin": self.begin_ms, "--end": self.end_ms, "--tag": self.tag}
        for name, value in (given | {"--property": self.properties or None}).items():
            if value is not None:
                raise click.UsageError(
                    f"{name} works on a RocketMQ store; of a RabbitMQ folder --queue, --from-offset, --to-offset and --key"
                )
        return RabbitWanted(self.queue, self.from_offset, self.to_offset, self.key)


_FILTERS = (
    TOPIC,
    QUEUE,
    click.option(
        "--begin",
        "begin_ms",
        type=MOMENT,
        metavar="TIME",
        help="Stored then or later: milliseconds or ISO 8601, in UTC unless it says otherwise.",
    ),
    click.option("--end", "end_ms", type=MOMENT, metavar="TIME", help="Stored then or before; as --begin."),
    click.option(
        "--from-offset",
        "from_offset",
        type=OFFSET,
        metavar="N",
        help="Queue offsets (sequence numbers) from N on.",
    ),
    click.option("--to-offset", "to_offset", type=OFFSET, metavar="N", help="Queue offsets up to N."),
    click.option("--key", help="Only messages with this key (RabbitMQ: routing key)."),
    click.option("--tag", type=TEXT, help="Only messages with this tag."),
    click.option(
        "--property",
        "properties",
        type=TEXT,
        metavar="NAME=VALUE",
        multiple=True,
        help="Only messages with it; as often as wanted.",
    ),
)


def filters(command: Command) -> Command:
    """The options that choose messages; the command gets them as `chosen`, a `Filters`."""

    @functools.wraps(command)
    def run(*arguments: Any, properties: tuple[str, ...], **options: Any) -> int:
        about = {name: options.pop(name) for name in Filters._fields[:-1]}
        chosen = Filters(**about, properties=named_values(properties))
        refuse_reversed(
            begin__end=(chosen.begin_ms, chosen.end_ms), from_offset__to_offset=(chosen.from_offset, chosen.to_offset)
        )
        return command(*arguments, chosen=chosen, **options)

    wrapped: Command = run
    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped


def refuse_for_log(target: Target, **used: bool) -> None:
    """Wrong use of options that only a RabbitMQ folder knows."""
    if not target.is_rabbit and _names(used):
        raise click.UsageError(f"{' '.join(_names(used))} works on a RabbitMQ folder; {target.path} is none")


def refuse_for_rabbit(target: Target, *words: str, **used: bool) -> None:
    """Wrong use of a command that only a RocketMQ store knows, or of the options of it that are used."""
    options = _names(used)
    if target.is_rabbit and (options or not used):
        raise click.UsageError(f"{' '.join((*words, *options))} works on a RocketMQ store; {target.path} is a RabbitMQ folder")


def _names(used: dict[str, bool]) -> list[str]:
    """Of options that are used, as they are written."""
    return [f"--{name.replace('_', '-')}" for name, is_used in used.items() if is_used]
