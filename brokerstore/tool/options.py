"""Options that several commands share, the types of their values, and the decorators that make a command.

The decorators turn errors of the library into a line on stderr, a hint, and an exit code.  No kernel is imported here, so that
`doctor` runs where one cannot be loaded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import click

from storageio import StoreError
from storebytes.folder_kind import FolderKind

from .backends.opening import open_backend, refuse_options
from .codes import exit_code
from .escapes import quote
from .filters import I32_MAX, Filters, is_utf8
from .hints import after_answer, after_error
from .output import NEXT_STEPS, OutputClosedError, print_line, time_ms

Command = Callable[..., int]
I64_MAX = (1 << 63) - 1

OFFSET = click.IntRange(0, I64_MAX)  # physical offsets, queue offsets, sequence numbers
POSITIVE = click.IntRange(1, I32_MAX)  # sizes of files, slots and items are 32-bit in RocketMQ
QUEUE_ID = click.IntRange(0, I32_MAX)


def TIME(text: str) -> int:  # noqa: N802  (the type of an option, as OFFSET is)
    """Parse milliseconds since 1970, or an ISO 8601 time; refuse what exceeds 64 bits."""
    try:
        found = time_ms(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is neither milliseconds nor an ISO 8601 time") from error
    if found > I64_MAX:
        raise click.BadParameter(f"{text!r} is beyond 64 bits")
    return found


def TEXT(text: str) -> str:  # noqa: N802
    """Refuse text that UTF-8 cannot encode: a topic, a key, a property."""
    if not is_utf8(text):
        raise click.BadParameter(f"{text!r} is not UTF-8")
    return text


TIME_HELP = "milliseconds or ISO 8601, in UTC unless it names a zone."
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, or one JSON line a message.")
JSON_OF_FILE = click.option("--json", "as_json", is_flag=True, help="With --out: print a summary as one JSON object.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="Show no progress on stderr.")


def _is_applied(_context: click.Context, _option: click.Parameter, apply: bool | None) -> bool:
    """Return whether to execute the plan; without either option do as version 0.1 did, with a warning."""
    if apply is None:
        print_line("brokerstore: warning: without --apply, the next version only shows the plan")
    return apply is not False


APPLY = click.option("--apply/--plan", default=None, callback=_is_applied, help="Execute the plan, or only show it.")
APPLY_PLAN = click.option("--apply", is_flag=True, help="Execute the plan; without this nothing is changed.")
DROP_TRANSIENT = click.option(
    "--drop-transient", is_flag=True, help="RabbitMQ: drop transient messages, as a server does when it starts."
)
TOPIC = click.option("--topic", type=TEXT, help="Only messages of this topic.")
QUEUE = click.option("--queue", help="Only messages of this queue id (RocketMQ) or queue name (RabbitMQ).")
LIMIT = click.option("--limit", type=OFFSET, help="Number of messages at most.")
BEGIN = click.option("--begin", "begin_ms", type=TIME, metavar="TIME", help=f"Stored at or after TIME: {TIME_HELP}")
END = click.option("--end", "end_ms", type=TIME, metavar="TIME", help="Stored at or before TIME; as --begin.")


def _joined(_context: click.Context, _option: click.Parameter, folders: tuple[str, ...]) -> str | None:
    """Return the folders of all uses of an option, with commas, as storePathCommitLog has them."""
    return ",".join(folders) or None


_STORE = (
    click.argument("folder", metavar="DIR", type=click.Path()),
    click.option("--config", metavar="FILE", type=click.Path(), help="A broker's properties (broker.conf)."),
    click.option(
        "--commitlog", metavar="DIRS", multiple=True, callback=_joined,
        help="Folder of the log if it is not in DIR; several with commas, or each with an option of its own.",
    ),
    click.option("--vhost", metavar="NAME", help="Virtual host, for a RabbitMQ node with several."),
)  # fmt: skip
_SIZES = (
    click.option("--index-slots", "max_hash_slot_num", type=POSITIVE, help="Slots of an index file."),
    click.option("--index-num", "max_index_num", type=POSITIVE, help="Items of an index file."),
    click.option("--commitlog-size", "mapped_file_size_commit_log", type=POSITIVE, help="Bytes of a log file."),
    click.option("--cq-size", "mapped_file_size_consume_queue", type=POSITIVE, help="Bytes of a queue file."),
)
TARGET_OPTIONS = (
    "config",
    "commitlog",
    "vhost",
    "max_hash_slot_num",
    "max_index_num",
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
)
_FOLDERS = ("folder", "first", "second", "store", "rabbit", "new", "source")


class OneValueCommand(click.Command):
    """A command that refuses two different values of an option that takes one; click would take the last and drop the first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; raise `UsageError` for an option with different values."""
        options = [_with_every_value(param) for param in self.params]
        values, _rest, _order = click.Command(self.name, params=options).make_parser(ctx).parse_args(list(args))
        for option in options:
            given = values.get(option.name or "")
            if option not in self.params and given and len(set(given)) > 1:
                texts = " and ".join(map(repr, dict.fromkeys(given)))
                raise click.UsageError(f"{option.opts[-1]} is given twice, as {texts}; only one can be meant", ctx)
        return super().parse_args(ctx, args)


def _with_every_value(param: click.Parameter) -> click.Parameter:
    """Return a copy of an option with one value that collects all that are given; anything else as it is."""
    if not isinstance(param, click.Option) or param.is_flag or param.count or param.multiple:
        return param
    every = copy(param)
    every.multiple = True
    return every


def plain_command(name: str, *examples: str) -> Callable[[Command], click.Command]:
    """Make a command whose help ends in examples."""

    def decorate(command: Command) -> click.Command:
        lines = "".join(f"\n  brokerstore {example}" for example in examples)
        made: click.Command = click.command(name, OneValueCommand, epilog=f"\b\nExamples:{lines}")(named_errors(command))
        return made

    return decorate


def store_command(
    name: str, *examples: str, sizes: bool = False, rocketmq_only: Sequence[str] | bool = (),
    rabbitmq_only: Sequence[str] | bool = (),
) -> Callable[[Command], click.Command]:  # fmt: skip
    """Make a command with the argument DIR; it gets a `Backend` as its first argument.

    `rocketmq_only` and `rabbitmq_only` name the parameters that the other kind of folder does not have. True refuses the whole
    command there.
    """

    def decorate(command: Command) -> click.Command:
        @functools.wraps(command)
        def run(folder: str, **options: Any) -> int:
            from .target import find_target

            about = {name: options.pop(name, None) for name in TARGET_OPTIONS}
            backend = open_backend(find_target(folder, about))
            refused = rocketmq_only if backend.target.kind is FolderKind.RABBITMQ else rabbitmq_only
            refuse_options(backend, click.get_current_context(), _command_name(), refused)
            code = command(backend, **options)
            choice = " ".join(f"--{name.replace('_', '-')}" for name in ("force", "skip_bad", "truncate") if options.get(name))
            steps = click.get_current_context().meta.get(NEXT_STEPS) or [after_answer(code, _command_name(), folder, choice)]
            for step in steps:
                _print_next(step)
            return code

        wrapped: Command = run
        for option in reversed((*_STORE, *(_SIZES if sizes else ()))):
            wrapped = option(wrapped)
        return plain_command(name, *examples)(wrapped)

    return decorate


def named_errors(command: Command) -> Command:
    """Report an error of the library on stderr, with what to run next, and return its exit code."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> int:
        try:
            return command(*arguments, **options)
        except StoreError as error:
            print_line(f"brokerstore: {type(error).__name__}: {error}")
            _print_next(after_error(error, _command_name(), _folder_of(error, options)))
            return exit_code(error)
        except BrokenPipeError as error:
            raise OutputClosedError from error  # click would report a problem

    return run


def _folder_of(error: StoreError, options: dict[str, Any]) -> str | None:
    """Return the folder of the command line that the error names, else the first."""
    given = [str(options[name]) for name in _FOLDERS if options.get(name)]
    return next((folder for folder in given if folder in str(error)), given[0] if given else None)


def _command_name() -> str:
    """Return the name without the tool's own: `offsets show`."""
    return click.get_current_context().command_path.partition(" ")[2]


def _print_next(line: str) -> None:
    if line:
        print_line(f"brokerstore: {_with_options(line)}")


def _with_options(line: str) -> str:
    """Return a next step with the options of this command that the next one takes as well, such as `--config`."""
    found = re.match(r"(run: brokerstore ([a-z-]+) (?:'[^']*'|\S+))(.*)", line)
    context = click.get_current_context()
    group = context.find_root().command
    following = group.get_command(context.find_root(), found[2]) if found and isinstance(group, click.Group) else None
    if found is None or following is None:
        return line
    known = {option.name for option in following.params}
    kept = [
        f" {option.opts[0]} {quote(str(context.params[option.name]))}"
        for option in context.command.params
        if option.name in TARGET_OPTIONS and option.name in known and context.params.get(option.name) is not None
    ]
    return found[1] + "".join(kept) + found[3]


def refuse_reversed(**bounds: tuple[int | None, int | None]) -> None:
    """Refuse a pair of options, named `begin__end`, whose second value is before the first."""
    for names, (low, high) in bounds.items():
        if low is not None and high is not None and low > high:
            first, second = (f"--{name.replace('_', '-')}" for name in names.split("__"))
            raise click.UsageError(f"{first} {low} is after {second} {high}")


def named_values(properties: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Split each NAME=VALUE into a pair."""
    found = []
    for text in properties:
        name, joint, value = text.partition("=")
        if not name or not joint:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
        found.append((name, value))
    return tuple(found)


ROCKETMQ_FILTERS = ("topic", "begin_ms", "end_ms", "tag", "properties")
_FILTERS = (
    TOPIC,
    QUEUE,
    BEGIN,
    END,
    click.option("--from-offset", type=OFFSET, metavar="N", help="Queue offsets (sequence numbers) from N on."),
    click.option("--to-offset", type=OFFSET, metavar="N", help="Queue offsets up to N."),
    click.option("--key", help="Only messages with this key (RabbitMQ: routing key)."),
    click.option("--tag", type=TEXT, help="Only messages with this tag."),
    click.option(
        "--property", "properties", type=TEXT, metavar="NAME=VALUE", multiple=True,
        help="Only messages with this property; may be repeated.",
    ),
    click.option("--fillers", is_flag=True, help="Also the filler records of `recover --skip-bad`."),
)  # fmt: skip


def with_decoding(command: Command) -> Command:
    """Add `--decode`; the backend gets it as `decodes`."""

    @functools.wraps(command)
    def run(backend: Any, *arguments: Any, decode: bool, **options: Any) -> int:
        backend.decodes = decode
        return command(backend, *arguments, **options)

    return click.option("--decode", is_flag=True, help="Decompress bodies, and show each message of a batch.")(run)


def with_filters(command: Command) -> Command:
    """Add the options that select messages; the command gets them as `filters`."""

    @functools.wraps(command)
    def run(backend: Any, *arguments: Any, properties: tuple[str, ...], fillers: bool, **options: Any) -> int:
        backend.shows_fillers = fillers
        given = {name: options.pop(name) for name in Filters._fields[:-1]}
        filters = Filters(**given, properties=named_values(properties))
        refuse_reversed(
            begin__end=(filters.begin_ms, filters.end_ms), from_offset__to_offset=(filters.from_offset, filters.to_offset)
        )
        return command(backend, *arguments, filters=filters, **options)

    wrapped: Command = run
    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped
